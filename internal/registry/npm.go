package registry

import (
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"
)

// npmSettings are the settings of npm that say where it asks.
type npmSettings struct {
	registry     setting
	scopes       map[string]setting // by "@scope"
	prefix       string
	globalConfig string
}

// npm reads npm's files in the order of their weight: user, global, built-in.
// npm's own documentation has the order under npmrc.
func (r *Resolver) npm() (*answer, error) {
	b, complete := r.begin("npm")
	if !complete {
		s, err := r.npmFiles()
		if err != nil {
			return nil, err
		}
		if v, ok := r.clientVar("npm_config_registry", "NPM_CONFIG_REGISTRY"); ok {
			s.registry = v
		}
		r.addNPM(b, s)
	}
	b.setenv("npm_config_registry", b.first()+"/")
	b.setenv("pnpm_config_registry", b.first()+"/")
	b.answer.files = npmrcFile(b)
	return b.done()
}

func (r *Resolver) addNPM(b *builder, s npmSettings) {
	if s.registry.value == "" {
		found, err := r.npmDefault()
		if err != nil {
			r.ask(b, err)
		} else {
			s.registry = found
		}
	}
	if s.registry.value != "" {
		b.add("", s.registry)
	}
	for _, scope := range slices.Sorted(maps.Keys(s.scopes)) {
		b.add(scope, s.scopes[scope])
	}
}

// npmrcFile says by file what variables cannot: shells drop names like
// npm_config_@scope:registry.
func npmrcFile(b *builder) []File {
	var text strings.Builder
	for _, e := range b.answer.endpoints {
		if strings.HasPrefix(e.Role, "@") {
			fmt.Fprintf(&text, "%s:registry=%s/\n", e.Role, e.URL)
		}
	}
	if text.Len() == 0 {
		return nil
	}
	return []File{{Path: ".npmrc", Content: text.String()}}
}

// npmFiles joins the files; what is set in an earlier one wins.
func (r *Resolver) npmFiles() (npmSettings, error) {
	s := npmSettings{scopes: map[string]setting{}}
	if err := r.npmFile(&s, r.home(".npmrc")); err != nil {
		return s, err
	}
	for _, path := range r.npmGlobal(s) {
		if err := r.npmFile(&s, path); err != nil {
			return s, err
		}
	}
	return s, nil
}

// npmGlobal returns the global files: the configured one, that of the prefix,
// that of distributions, and the one beside npm itself.
func (r *Resolver) npmGlobal(s npmSettings) []string {
	var paths []string
	switch {
	case s.globalConfig != "":
		paths = append(paths, s.globalConfig)
	case s.prefix != "":
		paths = append(paths, filepath.Join(s.prefix, "etc/npmrc"))
	default:
		if node, ok := r.program("node"); ok {
			paths = append(paths, filepath.Join(filepath.Dir(filepath.Dir(node)), "etc/npmrc"))
		}
	}
	paths = append(paths, "/etc/npmrc")
	for _, root := range r.npmRoots() {
		paths = append(paths, filepath.Join(root, "npmrc"))
	}
	return paths
}

// npmRoots returns where npm may be installed: that of PATH first.
func (r *Resolver) npmRoots() []string {
	roots := []string{"/usr/lib/node_modules/npm", "/usr/local/lib/node_modules/npm", "/usr/share/nodejs/npm"}
	if real, ok := r.program("npm"); ok {
		root := filepath.Dir(filepath.Dir(real))
		roots = slices.DeleteFunc(roots, func(known string) bool { return known == root })
		roots = append([]string{root}, roots...)
	}
	return roots
}

// npmFile reads one npmrc (ini, as npm's own parser has it) into what is not set yet.
func (r *Resolver) npmFile(s *npmSettings, path string) error {
	text, found, err := r.read(path)
	if err != nil || !found {
		return err
	}
	here := npmSettings{scopes: map[string]setting{}}
	for i, line := range strings.Split(text, "\n") {
		line = strings.TrimRight(line, "\r")
		if strings.HasPrefix(strings.TrimSpace(line), "[") && !strings.Contains(line, "=") {
			break // keys of sections are not npm's settings
		}
		r.npmLine(&here, path, i+1, line)
	}
	s.fill(here)
	return nil
}

func (r *Resolver) npmLine(s *npmSettings, path string, number int, line string) {
	key, value, ok := strings.Cut(line, "=")
	key, value = iniValue(key), iniValue(value)
	if !ok || value == "" || strings.HasPrefix(key, ";") || strings.HasPrefix(key, "#") {
		return
	}
	source := r.lineSource(path, number)
	scope, isScope := strings.CutSuffix(key, ":registry")
	switch {
	case key == "registry":
		s.registry = setting{value, source}
	case isScope && strings.HasPrefix(scope, "@"):
		s.scopes[scope] = setting{value, source}
	case key == "prefix":
		s.prefix = r.npmPath(value)
	case key == "globalconfig":
		s.globalConfig = r.npmPath(value)
	}
}

// npmPath fills in the home directory; other paths with variables or relative
// ones are left out, as they depend on the caller's environment.
func (r *Resolver) npmPath(value string) string {
	value = strings.Replace(value, "${HOME}", r.opts.Home, 1)
	if rest, ok := strings.CutPrefix(value, "~/"); ok {
		value = r.home(rest)
	}
	if !filepath.IsAbs(value) || strings.Contains(value, "$") {
		return ""
	}
	return filepath.Clean(value)
}

// iniValue trims, unquotes and cuts a comment off.
func iniValue(s string) string {
	s = strings.TrimSpace(s)
	if len(s) > 1 && (s[0] == '"' || s[0] == '\'') && s[len(s)-1] == s[0] {
		return s[1 : len(s)-1]
	}
	if i := strings.IndexAny(s, ";#"); i > 0 && s[i-1] != '\\' {
		s = strings.TrimSpace(s[:i])
	}
	return s
}

func (s *npmSettings) fill(from npmSettings) {
	if s.registry.value == "" {
		s.registry = from.registry
	}
	if s.prefix == "" {
		s.prefix = from.prefix
	}
	if s.globalConfig == "" {
		s.globalConfig = from.globalConfig
	}
	for scope, v := range from.scopes {
		if _, have := s.scopes[scope]; !have {
			s.scopes[scope] = v
		}
	}
}

// npmSources are the files of npm's versions that hold its default registry,
// newest first: since 8, 7 and 6.
var npmSources = []string{
	"node_modules/@npmcli/config/lib/definitions/definitions.js",
	"lib/utils/config/definitions.js",
	"lib/config/defaults.js",
}

// npmDefault reads npm's default out of its own source, without running it.
func (r *Resolver) npmDefault() (setting, error) {
	why := errors.New("no installed npm that can be trusted was found")
	for _, root := range r.npmRoots() {
		for _, name := range npmSources {
			path := filepath.Join(root, name)
			text, found, err := r.read(path)
			if err != nil {
				why = err
			}
			if value := npmLiteral(text); found && value != "" {
				return setting{value, "npm's built-in default in " + r.display(path)}, nil
			}
		}
	}
	return setting{}, why
}

// npmLiteral finds the string literal that is the default of registry.
func npmLiteral(source string) string {
	for _, mark := range []string{"'registry', {", "\n  registry: '", "\n    registry: '"} {
		_, rest, found := strings.Cut(source, mark)
		if !found {
			continue
		}
		if strings.HasSuffix(mark, "{") {
			var ok bool
			if rest, ok = strings.CutPrefix(strings.TrimSpace(rest), "default: '"); !ok {
				continue
			}
		}
		if value, _, ok := strings.Cut(rest, "'"); ok && strings.HasPrefix(value, "https://") {
			return value
		}
	}
	return ""
}
