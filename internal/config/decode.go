package config

import (
	"errors"
	"fmt"
	"net/url"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/BurntSushi/toml"

	"github.com/fractalboxdev/sbx/internal/profile"
)

// file is one configuration file as written. Pointers tell unset from zero.
type file struct {
	StateDir     *string               `toml:"state_dir"`
	Timeout      *string               `toml:"timeout"`
	Grace        *string               `toml:"grace"`
	Quiet        *bool                 `toml:"quiet"`
	Summary      *bool                 `toml:"summary"`
	FailOnDenial *bool                 `toml:"fail_on_denial"`
	ClientEnv    *bool                 `toml:"client_env"`
	Signers      *string               `toml:"allowed_signers"`
	Advisory     *string               `toml:"advisory"`
	CanaryFirst  *bool                 `toml:"require_canary"`
	Env          envTable              `toml:"env"`
	Registries   map[string][]string   `toml:"registries"`
	FileHosts    map[string][]string   `toml:"file_hosts"`
	Checksums    map[string][]string   `toml:"checksums"`
	DefaultClass *string               `toml:"default_class"`
	Ceiling      *int                  `toml:"ceiling"`
	Queue        *bool                 `toml:"queue"`
	Wait         *string               `toml:"wait"`
	Class        map[string]classTable `toml:"class"`
}

type envTable struct {
	Allow *[]string `toml:"allow"`
}

// apply reads one file over what is known so far.
func (c *Config) apply(path string, text []byte) error {
	var f file
	meta, err := toml.Decode(string(text), &f)
	if err != nil {
		return syntaxError(path, err)
	}
	src := source{path: path, lines: keyLines(string(text))}
	if unknown := meta.Undecoded(); len(unknown) > 0 {
		return src.fault(unknown[0], unknownKey(unknown[0]))
	}
	for _, set := range []func(file, source) error{
		c.setPlain, c.setTimes, c.setPaths, c.setEnv, c.setTables, c.setClasses, c.setPools,
	} {
		if err := set(f, src); err != nil {
			return err
		}
	}
	return nil
}

func syntaxError(path string, err error) error {
	if syntax, ok := errors.AsType[toml.ParseError](err); ok {
		return &FileError{File: path, Line: syntax.Position.Line, What: syntax.Message}
	}
	return &FileError{File: path, What: strings.TrimPrefix(err.Error(), "toml: ")}
}

// unknownKey says which key was perhaps meant.
func unknownKey(key toml.Key) string {
	known := keysOf(reflect.TypeFor[file]())
	if len(key) > 1 && key[0] == "env" {
		known = keysOf(reflect.TypeFor[envTable]())
	}
	if len(key) > 2 && key[0] == "class" {
		known = keysOf(reflect.TypeFor[classTable]())
	}
	text := fmt.Sprintf("there is no setting %q", key.String())
	if near := profile.Nearest(key[len(key)-1], known); near != "" {
		text += fmt.Sprintf(" (did you mean %s?)", near)
	}
	return text
}

func keysOf(t reflect.Type) []string {
	var keys []string
	for field := range t.Fields() {
		keys = append(keys, field.Tag.Get("toml"))
	}
	return keys
}

// source makes sources and faults of one file.
type source struct {
	path  string
	lines map[string]int
}

func (s source) at(key ...string) string {
	if line := s.lines[strings.Join(key, ".")]; line > 0 {
		return fmt.Sprintf("%s:%d", s.path, line)
	}
	return s.path
}

func (s source) fault(key []string, what string) error {
	return &FileError{File: s.path, Line: s.lines[strings.Join(key, ".")], What: what}
}

// set stores a setting that the file has.
func set[T any](into *Value[T], v *T, from string) {
	if v != nil {
		*into = Value[T]{*v, from}
	}
}

func (c *Config) setPlain(f file, src source) error {
	set(&c.Quiet, f.Quiet, src.at("quiet"))
	set(&c.Summary, f.Summary, src.at("summary"))
	set(&c.FailOnDenial, f.FailOnDenial, src.at("fail_on_denial"))
	set(&c.ClientEnv, f.ClientEnv, src.at("client_env"))
	set(&c.CanaryFirst, f.CanaryFirst, src.at("require_canary"))
	return nil
}

func (c *Config) setTimes(f file, src source) error {
	for key, it := range map[string]struct {
		text *string
		into *Value[time.Duration]
	}{"timeout": {f.Timeout, &c.Timeout}, "grace": {f.Grace, &c.Grace}, "wait": {f.Wait, &c.Wait}} {
		if it.text == nil {
			continue
		}
		d, err := time.ParseDuration(*it.text)
		if err != nil || d < 0 {
			return src.fault([]string{key}, fmt.Sprintf("%s = %q is no duration such as \"90s\" or \"30m\"", key, *it.text))
		}
		*it.into = Value[time.Duration]{d, src.at(key)}
	}
	return nil
}

func (c *Config) setPaths(f file, src source) error {
	for key, it := range map[string]struct {
		path *string
		into *Value[string]
	}{"state_dir": {f.StateDir, &c.StateDir}, "allowed_signers": {f.Signers, &c.Signers}, "advisory": {f.Advisory, &c.Advisory}} {
		if it.path == nil {
			continue
		}
		if !filepath.IsAbs(*it.path) {
			return src.fault([]string{key}, fmt.Sprintf("%s = %q is not an absolute path", key, *it.path))
		}
		*it.into = Value[string]{filepath.Clean(*it.path), src.at(key)}
	}
	return nil
}

func (c *Config) setEnv(f file, src source) error {
	if f.Env.Allow == nil {
		return nil
	}
	for _, name := range *f.Env.Allow {
		if !validVariable(name) {
			return src.fault([]string{"env", "allow"}, fmt.Sprintf("env.allow has %q, which is no name of a variable", name))
		}
	}
	c.EnvAllow = Value[[]string]{*f.Env.Allow, src.at("env", "allow")}
	return nil
}

func validVariable(name string) bool {
	for i, c := range []byte(name) {
		letter := c == '_' || (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z')
		if !letter && (i == 0 || c < '0' || c > '9') {
			return false
		}
	}
	return name != ""
}

func (c *Config) setTables(f file, src source) error {
	for _, t := range []struct {
		name  string
		known []string
		from  map[string][]string
		into  map[string]Value[[]string]
	}{
		{"registries", Ecosystems(), f.Registries, c.Registries},
		{"file_hosts", []string{"python"}, f.FileHosts, c.FileHosts},
		{"checksums", []string{"go"}, f.Checksums, c.Checksums},
	} {
		for name, urls := range t.from {
			if err := checkEntry(t.name, name, t.known, urls); err != nil {
				return src.fault([]string{t.name, name}, err.Error())
			}
			t.into[name] = Value[[]string]{urls, src.at(t.name, name)}
		}
	}
	return nil
}

func checkEntry(table, name string, known, urls []string) error {
	if !slices.Contains(known, name) {
		text := fmt.Sprintf("%s has no entry %q", table, name)
		if near := profile.Nearest(name, known); near != "" {
			text += fmt.Sprintf(" (did you mean %s?)", near)
		} else {
			text += " (known: " + strings.Join(known, ", ") + ")"
		}
		return errors.New(text)
	}
	for _, u := range urls {
		if err := checkURL(withoutScope(name, u)); err != nil {
			return fmt.Errorf("%s.%s: %w", table, name, err)
		}
	}
	return nil
}

// withoutScope takes the scope off an entry such as "@acme=https://npm.test".
func withoutScope(ecosystem, entry string) string {
	scope, address, ok := strings.Cut(entry, "=")
	if ok && (ecosystem == "npm" || ecosystem == "yarn") && strings.HasPrefix(scope, "@") && !strings.Contains(scope, "/") {
		return address
	}
	return entry
}

// checkURL accepts a base URL: what a rule's paths are relative to. The text is
// not repeated where it may hold a password.
func checkURL(text string) error {
	u, err := url.Parse(text)
	switch {
	case err != nil:
		return errors.New("a URL cannot be parsed")
	case u.User != nil:
		return fmt.Errorf("the URL of %s has a user name or password; they do not belong into configuration", u.Host)
	case u.Scheme != "https" && u.Scheme != "http":
		return fmt.Errorf("%q is no http or https URL", text)
	case u.Hostname() == "":
		return fmt.Errorf("%q has no host", text)
	case u.RawQuery != "" || u.ForceQuery || u.Fragment != "":
		return fmt.Errorf("the URL of %s has a query or fragment; a base URL has none", u.Host)
	}
	return nil
}

// keyLines finds the line, 1-based, of every key of a TOML file that parsed. It
// knows tables, dotted and quoted keys; keys of inline tables and of
// continuation lines are not found, and their faults name the file alone.
func keyLines(text string) map[string]int {
	lines := make(map[string]int)
	table := ""
	for i, line := range strings.Split(text, "\n") {
		line = strings.TrimSpace(line)
		if header, ok := tableHeader(line); ok {
			table = header
			note(lines, table, i+1)
			continue
		}
		key, _, ok := strings.Cut(line, "=")
		if !ok || strings.HasPrefix(line, "#") {
			continue
		}
		name := plainKey(key)
		if table != "" {
			name = table + "." + name
		}
		note(lines, name, i+1)
	}
	return lines
}

func tableHeader(line string) (string, bool) {
	inner, ok := strings.CutPrefix(line, "[")
	if !ok {
		return "", false
	}
	inner, _, ok = strings.Cut(inner, "]")
	return plainKey(strings.TrimPrefix(inner, "[")), ok
}

// plainKey takes spaces and quotes off the parts of a dotted key.
func plainKey(key string) string {
	parts := strings.Split(key, ".")
	for i, p := range parts {
		parts[i] = strings.Trim(strings.TrimSpace(p), `"'`)
	}
	return strings.Join(parts, ".")
}

// note keeps the first line of a key.
func note(lines map[string]int, key string, line int) {
	if _, ok := lines[key]; !ok {
		lines[key] = line
	}
}
