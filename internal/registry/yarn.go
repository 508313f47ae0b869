package registry

import (
	"maps"
	"path/filepath"
	"slices"
	"strings"

	"github.com/fractalboxdev/sbx/internal/grant"
)

// yarnPrefix is how much of yarn's single source file is searched, in bytes; its
// constants stand in the first 100 KB.
const yarnPrefix = 512 << 10

// yarn reads the user's files of yarn's modern and classic lines. A yarn that is
// not installed on the host, or that corepack brings, is told to ask npm's registry.
func (r *Resolver) yarn() (*answer, error) {
	b, complete := r.begin("yarn")
	classic := true
	if !complete {
		found, err := r.yarnFiles()
		if err != nil {
			return nil, err
		}
		if v, ok := r.clientVar("YARN_NPM_REGISTRY_SERVER", "YARN_REGISTRY"); ok {
			found.registry = v
		}
		if found.registry.value == "" {
			found.registry = r.yarnDefault()
		}
		if classic = found.registry.value != ""; classic {
			b.add("", found.registry)
		} else if err := r.likeNPM(b); err != nil {
			return nil, err
		}
		for _, scope := range slices.Sorted(maps.Keys(found.scopes)) {
			b.add(scope, found.scopes[scope])
		}
	}
	b.setenv("YARN_NPM_REGISTRY_SERVER", b.first())
	if classic { // versions 2 and 3 of yarn stop at a variable of version 1
		b.setenv("YARN_REGISTRY", b.first())
	}
	b.answer.files = yarnFile(b)
	return b.done()
}

// likeNPM takes over npm's default index.
func (r *Resolver) likeNPM(b *builder) error {
	npm, err := r.locked("npm")
	if err != nil {
		return err
	}
	e := npm.endpoints[0]
	b.answer.endpoints = append(b.answer.endpoints, grant.Endpoint{
		Ecosystem: "yarn", Endpoint: e.Endpoint, URL: e.URL, Source: e.Source + ", as for npm",
	})
	return nil
}

func (r *Resolver) yarnFiles() (npmSettings, error) {
	s := npmSettings{scopes: map[string]setting{}}
	path := r.home(".yarnrc.yml")
	text, found, err := r.read(path)
	if err != nil {
		return s, err
	}
	if found {
		r.yarnModern(&s, path, text)
	}
	path = r.home(".yarnrc")
	text, found, err = r.read(path)
	if err == nil && found && s.registry.value == "" {
		r.yarnClassic(&s, path, text)
	}
	return s, err
}

// yarnModern reads the few keys that say where yarn asks, in the block form that
// yarn itself writes; other YAML forms of these keys do not look like a URL and
// are refused as endpoints.
func (r *Resolver) yarnModern(s *npmSettings, path, text string) {
	section, scope := "", ""
	for i, line := range strings.Split(text, "\n") {
		key, value, ok := strings.Cut(line, ":")
		name, value := strings.Trim(strings.TrimSpace(key), `"'`), strings.Trim(strings.TrimSpace(value), `"'`)
		indent := len(line) - len(strings.TrimLeft(line, " "))
		switch {
		case !ok || strings.HasPrefix(name, "#"):
		case indent == 0:
			section, scope = name, ""
			if name == "npmRegistryServer" {
				s.registry = setting{value, r.lineSource(path, i+1)}
			}
		case section == "npmScopes" && value == "":
			scope = "@" + name
		case section == "npmScopes" && name == "npmRegistryServer" && scope != "":
			s.scopes[scope] = setting{value, r.lineSource(path, i+1)}
		}
	}
}

// yarnClassic reads lines like: registry "https://npm.test".
func (r *Resolver) yarnClassic(s *npmSettings, path, text string) {
	for i, line := range strings.Split(text, "\n") {
		key, value, _ := strings.Cut(strings.TrimSpace(line), " ")
		key, value = strings.Trim(key, `":`), strings.Trim(strings.TrimSpace(value), `"'`)
		scope, isScope := strings.CutSuffix(key, ":registry")
		switch {
		case key == "registry":
			s.registry = setting{value, r.lineSource(path, i+1)}
		case isScope && strings.HasPrefix(scope, "@"):
			s.scopes[scope] = setting{value, r.lineSource(path, i+1)}
		}
	}
}

// yarnDefault reads the default of an installed classic yarn out of its source.
func (r *Resolver) yarnDefault() setting {
	paths := []string{"/usr/share/yarn/lib/cli.js", "/usr/lib/node_modules/yarn/lib/cli.js", "/usr/local/lib/node_modules/yarn/lib/cli.js"}
	if real, ok := r.program("yarn"); ok {
		paths = append([]string{filepath.Join(filepath.Dir(filepath.Dir(real)), "lib/cli.js")}, paths...)
	}
	for _, path := range paths {
		text, err := r.readPrefix(path, yarnPrefix)
		if err != nil {
			continue
		}
		_, rest, found := strings.Cut(text, "exports.YARN_REGISTRY = '")
		if value, _, ok := strings.Cut(rest, "'"); found && ok {
			return setting{value, "yarn's built-in default in " + r.display(path)}
		}
	}
	return setting{}
}

// yarnFile writes scoped registries in the form of modern yarn; classic reads npm's.
func yarnFile(b *builder) []File {
	var text strings.Builder
	for _, e := range b.answer.endpoints {
		if scope, ok := strings.CutPrefix(e.Role, "@"); ok {
			if text.Len() == 0 {
				text.WriteString("npmScopes:\n")
			}
			text.WriteString("  \"" + scope + "\":\n    npmRegistryServer: \"" + e.URL + "\"\n")
		}
	}
	if text.Len() == 0 {
		return nil
	}
	return []File{{Path: ".yarnrc.yml", Content: text.String()}}
}
