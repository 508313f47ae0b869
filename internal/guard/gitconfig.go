package guard

import (
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"
)

// Setting is one line of a git configuration. Section and Key are lower-case;
// Sub is as it is written.
type Setting struct{ Section, Sub, Key, Value string }

// Name is the setting's name as git writes it, "remote.origin.url".
func (s Setting) Name() string {
	if s.Sub == "" {
		return s.Section + "." + s.Key
	}
	return s.Section + "." + s.Sub + "." + s.Key
}

// errConfig means that a text is no git configuration, or one in an odd spelling.
var errConfig = errors.New("reading a git configuration")

// ParseConfig takes a configuration apart, by the rules of git-config(1), section
// SYNTAX. Where git is lenient it refuses.
func ParseConfig(text string) ([]Setting, error) {
	p := &configParser{rest: strings.TrimPrefix(text, "\ufeff"), line: 1}
	for {
		p.blank()
		if p.rest == "" {
			return p.out, nil
		}
		var err error
		if p.rest[0] == '[' {
			err = p.header()
		} else {
			err = p.setting()
		}
		if err != nil {
			return nil, fmt.Errorf("%w: line %d: %w", errConfig, p.line, err)
		}
	}
}

type configParser struct {
	rest         string
	line         int
	section, sub string
	out          []Setting
}

// blank skips white space and comments between things.
func (p *configParser) blank() {
	for p.rest != "" {
		switch p.rest[0] {
		case ' ', '\t', '\r':
			p.rest = p.rest[1:]
		case '\n':
			p.line++
			p.rest = p.rest[1:]
		case '#', ';':
			_, after, _ := strings.Cut(p.rest, "\n")
			p.line++
			p.rest = after
		default:
			return
		}
	}
}

// header reads [section], [section.sub] or [section "sub"].
func (p *configParser) header() error {
	name := p.word(".")
	section, sub, _ := strings.Cut(strings.ToLower(name), ".")
	p.section, p.sub = section, sub
	p.rest = strings.TrimLeft(p.rest, " \t")
	if sub == "" && strings.HasPrefix(p.rest, `"`) {
		if err := p.quotedSub(); err != nil {
			return err
		}
	}
	if section == "" || strings.HasSuffix(name, ".") || !strings.HasPrefix(p.rest, "]") {
		return errors.New("a section's header is odd or does not end")
	}
	p.rest = p.rest[1:]
	return nil
}

// word takes a name after the first byte: letters, digits, hyphens and what is in more.
func (p *configParser) word(more string) string {
	i := 1
	for i < len(p.rest) && (isAlnum(p.rest[i]) || p.rest[i] == '-' || strings.IndexByte(more, p.rest[i]) >= 0) {
		i++
	}
	word := p.rest[1:i]
	p.rest = p.rest[i:]
	return word
}

func isAlnum(c byte) bool {
	return 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9'
}

func (p *configParser) quotedSub() error {
	var sub strings.Builder
	for i := 1; i < len(p.rest); i++ {
		switch c := p.rest[i]; c {
		case '"':
			p.sub, p.rest = sub.String(), p.rest[i+1:]
			if p.sub == "" {
				return errors.New("a subsection is empty")
			}
			return nil
		case '\n', 0:
			return errors.New("a subsection has a line break or a NUL byte")
		case '\\':
			if i++; i >= len(p.rest) || p.rest[i] == '\n' || p.rest[i] == 0 {
				return errors.New("a subsection has a line break or a NUL byte")
			}
			sub.WriteByte(p.rest[i])
		default:
			sub.WriteByte(c)
		}
	}
	return errors.New("a subsection does not end")
}

// setting reads a key and its value. A key alone is true.
func (p *configParser) setting() error {
	first := p.rest[0]
	if p.section == "" || !isAlnum(first) || '0' <= first && first <= '9' {
		return errors.New("a key begins oddly")
	}
	s := Setting{Section: p.section, Sub: p.sub, Key: strings.ToLower(string(first) + p.word(""))}
	p.rest = strings.TrimLeft(p.rest, " \t")
	switch {
	case strings.HasPrefix(p.rest, "="):
		p.rest = p.rest[1:]
		value, err := p.value()
		if err != nil {
			return err
		}
		s.Value = value
	case p.rest == "" || strings.HasPrefix(p.rest, "\n") || strings.HasPrefix(p.rest, "\r\n"):
		s.Value = "true"
	default:
		return errors.New("a key without value has something behind it")
	}
	p.out = append(p.out, s)
	return nil
}

// value reads up to the end of the line: quotes, escapes, continuations, comments.
func (p *configParser) value() (string, error) {
	var out strings.Builder
	quoted, kept := false, 0 // white space behind kept is dropped
	for i := 0; i < len(p.rest); i++ {
		switch c := p.rest[i]; {
		case c == '\n' && quoted:
			return "", errors.New("a quoted value has a line break")
		case c == '\n', !quoted && (c == '#' || c == ';'):
			p.rest = p.rest[i:]
			return out.String()[:kept], nil
		case c == '"':
			quoted = !quoted
			kept = out.Len()
		case c == '\\':
			i++
			if err := p.escape(&out, i); err != nil {
				return "", err
			}
			kept = out.Len()
		case c == 0:
			return "", errors.New("a value has a NUL byte")
		case c == '\r':
			if !strings.HasPrefix(p.rest[i:], "\r\n") {
				return "", errors.New("a value has a carriage return")
			}
		case !quoted && (c == ' ' || c == '\t'):
			if out.Len() > 0 {
				out.WriteByte(' ')
			}
		default:
			out.WriteByte(c)
			kept = out.Len()
		}
	}
	if quoted {
		return "", errors.New("a quoted value does not end")
	}
	p.rest = ""
	return out.String()[:kept], nil
}

func (p *configParser) escape(out *strings.Builder, at int) error {
	if at >= len(p.rest) {
		return errors.New("the last line is continued")
	}
	switch c := p.rest[at]; c {
	case '\n':
		p.line++
	case 'n':
		out.WriteByte('\n')
	case 't':
		out.WriteByte('\t')
	case 'b':
		out.WriteByte('\b')
	case '"', '\\':
		out.WriteByte(c)
	default:
		return errors.New("an escape is unknown")
	}
	return nil
}

// Naming says what kind of thing the value of a setting names.
type Naming uint8

// The kinds of things.
const (
	NamesNothing Naming = iota
	NamesHooks          // a directory of hooks
	NamesConfig         // a further configuration
	NamesProgram        // a command line that git runs
)

// Kind returns what the setting's value names.
func (s Setting) Kind() Naming {
	switch s.Section {
	case "core":
		switch s.Key {
		case "hookspath":
			return NamesHooks
		case "fsmonitor", "sshcommand", "pager", "editor", "askpass", "gitproxy", "alternaterefscommand":
			return NamesProgram
		}
	case "include", "includeif":
		if s.Key == "path" {
			return NamesConfig
		}
	case "alias", "pager", "filter", "diff", "merge", "mergetool", "difftool", "credential", "gpg", "sequence", "uploadpack", "interactive", "browser", "man", "trailer", "remote", "submodule":
		if s.Key != "url" && s.Key != "fetch" {
			return NamesProgram
		}
	}
	return NamesNothing
}

// HooksPath returns the last core.hooksPath of a configuration, "" if there is none.
func HooksPath(text string) string {
	settings, err := ParseConfig(text)
	if err != nil {
		return ""
	}
	found := ""
	for _, s := range settings {
		if s.Kind() == NamesHooks {
			found = s.Value
		}
	}
	return found
}

// CleanConfig returns the configuration of a repository without what could make
// git run a program, read another configuration or write elsewhere, and the names
// of what was left out. at is the repository's directory relative to the project,
// against which a worktree's path is judged. Settings that are not known to be
// harmless are left out; a text that is no configuration is an error.
func CleanConfig(text, at string) (clean string, dropped []string, err error) {
	settings, err := ParseConfig(text)
	if err != nil {
		return "", nil, err
	}
	var out strings.Builder
	header := ""
	for _, s := range settings {
		if !harmless(s, at) {
			dropped = append(dropped, s.Name())
			continue
		}
		if h := s.header(); h != header {
			header = h
			out.WriteString(h + "\n")
		}
		out.WriteString("\t" + s.Key + " = " + quote(s.Value) + "\n")
	}
	slices.Sort(dropped)
	return out.String(), slices.Compact(dropped), nil
}

func (s Setting) header() string {
	if s.Sub == "" {
		return "[" + s.Section + "]"
	}
	return "[" + s.Section + " " + quote(s.Sub) + "]"
}

func quote(text string) string {
	return `"` + strings.NewReplacer(`\`, `\\`, `"`, `\"`, "\n", `\n`, "\t", `\t`, "\b", `\b`).Replace(text) + `"`
}

// harmless reports whether a setting is one that git's own commands write and that
// runs, reads and writes nothing elsewhere.
func harmless(s Setting, at string) bool {
	if strings.ContainsAny(s.Sub, "\n\x00") {
		return false
	}
	switch s.Section {
	case "core":
		return s.Sub == "" && harmlessCore(s, at)
	case "extensions", "advice", "color", "gc", "fetch", "push", "pull", "init", "index", "pack", "user", "author", "committer", "log", "status", "rerere", "checkout", "rebase":
		return s.Sub == "" && !harmfulKey(s)
	case "remote":
		return s.Sub != "" && harmlessRemote(s.Key)
	case "branch":
		return s.Sub != "" && (s.Key == "remote" || s.Key == "merge" || s.Key == "rebase" || s.Key == "pushremote" || s.Key == "description")
	case "submodule":
		return harmlessSubmodule(s)
	case "lfs":
		return s.Sub == "" && s.Key == "repositoryformatversion"
	}
	return false
}

// harmfulKey are keys of otherwise harmless sections that name programs or files,
// or hand arguments to a shell.
func harmfulKey(s Setting) bool {
	switch s.Section + "." + s.Key {
	case "init.templatedir", "gc.recentobjectshook", "pack.packobjectshook", "log.mailmap", "rebase.instructionformat":
		return true
	}
	return false
}

func harmlessCore(s Setting, at string) bool {
	switch s.Key {
	case "repositoryformatversion", "filemode", "bare", "logallrefupdates", "ignorecase", "precomposeunicode", "symlinks", "autocrlf", "eol",
		"safecrlf", "quotepath", "abbrev", "compression", "untrackedcache", "preloadindex", "multipackindex", "commitgraph",
		"sharedrepository", "whitespace", "trustctime", "checkstat", "longpaths", "sparsecheckout", "sparsecheckoutcone":
		return true
	case "fsmonitor":
		value := strings.ToLower(s.Value)
		return value == "true" || value == "false"
	case "worktree":
		return !path.IsAbs(s.Value) && local(path.Join(at, s.Value))
	}
	return false
}

// local reports whether a clean relative path stays below its base.
func local(p string) bool { return p != ".." && !strings.HasPrefix(p, "../") && !path.IsAbs(p) }

func harmlessRemote(key string) bool {
	switch key {
	case "url", "pushurl", "fetch", "push", "mirror", "tagopt", "prune", "prunetags", "promisor", "partialclonefilter", "skipdefaultupdate", "skipfetchall":
		return true
	}
	return false
}

func harmlessSubmodule(s Setting) bool {
	switch s.Key {
	case "update": // a command, when it begins with "!"
		return s.Value == "checkout" || s.Value == "rebase" || s.Value == "merge" || s.Value == "none"
	case "url", "active", "branch", "ignore", "fetchrecursesubmodules", "shallow", "recurse", "fetchjobs", "alternatelocation", "alternateerrorstrategy":
		return true
	}
	return false
}
