package registry

import (
	"errors"
	"path/filepath"
	"slices"
	"strings"
)

// goNames are the settings of the go command that say where it asks, and what it
// must not ask in public.
var goNames = []string{"GOPROXY", "GOSUMDB", "GOPRIVATE", "GONOPROXY", "GONOSUMDB"}

// golang reads the go command's settings in the order of their weight: the
// user's go/env, then go.env of the toolchain.
func (r *Resolver) golang() (*answer, error) {
	b, complete := r.begin("go")
	settings := map[string]setting{}
	for _, name := range goNames {
		if v, ok := r.clientVar(name); ok {
			settings[name] = v
		}
	}
	if err := r.goEnvFile(settings, filepath.Join(r.configHome(), "go/env")); err != nil {
		return nil, err
	}
	why := r.goRootFile(settings)
	switch {
	case complete:
		settings["GOPROXY"] = setting{strings.Join(operatorProxies(b), ","), "operator configuration"}
	case settings["GOPROXY"].value == "":
		r.ask(b, why)
		settings["GOPROXY"] = setting{strings.Join(operatorProxies(b), ","), "go's own answer"}
	default:
		addProxies(b, settings["GOPROXY"])
	}
	if !hasRole(b, "checksums") {
		addChecksums(b, settings["GOSUMDB"])
	}
	for _, name := range goNames {
		if value := settings[name].value; value != "" {
			b.setenv(name, withoutUserinfo(value))
		}
	}
	return b.done()
}

func hasRole(b *builder, role string) bool {
	for _, e := range b.answer.endpoints {
		if e.Role == role {
			return true
		}
	}
	return false
}

// operatorProxies returns the URLs of the default role.
func operatorProxies(b *builder) []string {
	var urls []string
	for _, e := range b.answer.endpoints {
		if e.Role == "" {
			urls = append(urls, e.URL)
		}
	}
	return urls
}

// goEnvFile reads NAME=VALUE lines into what is not set yet.
func (r *Resolver) goEnvFile(settings map[string]setting, path string) error {
	text, found, err := r.read(path)
	if err != nil || !found {
		return err
	}
	here := map[string]setting{}
	for i, line := range strings.Split(text, "\n") {
		name, value, ok := strings.Cut(strings.TrimSpace(line), "=")
		if ok && slices.Contains(goNames, name) && value != "" {
			here[name] = setting{value, r.lineSource(path, i+1)}
		}
	}
	for name, v := range here {
		if _, have := settings[name]; !have {
			settings[name] = v
		}
	}
	return nil
}

// goRootFile reads go.env of the toolchain of PATH, else of the usual places. A
// toolchain that cannot be trusted is passed over; the error says why none counts.
func (r *Resolver) goRootFile(settings map[string]setting) error {
	roots := []string{"/usr/local/go", "/usr/lib/go", "/usr/lib/golang"}
	if real, ok := r.program("go"); ok {
		roots = append([]string{filepath.Dir(filepath.Dir(real))}, roots...)
	}
	why := errors.New("no installed go toolchain tells its defaults")
	for _, root := range roots {
		before := len(settings)
		if err := r.goEnvFile(settings, filepath.Join(root, "go.env")); err != nil {
			why = err
		}
		if len(settings) > before || settings["GOPROXY"].value != "" && settings["GOSUMDB"].value != "" {
			return nil
		}
	}
	return why
}

// addProxies reads GOPROXY: URLs, direct and off, separated by commas or bars
// (https://go.dev/ref/mod#module-proxy).
func addProxies(b *builder, s setting) {
	for text := range strings.FieldsFuncSeq(s.value, func(c rune) bool { return c == ',' || c == '|' }) {
		if text = strings.TrimSpace(text); text == "direct" || text == "off" || text == "" {
			continue
		}
		if strings.HasPrefix(text, "file:") {
			continue // read from the disk, not from the network
		}
		b.add("", setting{text, s.source})
	}
}

// addChecksums reads GOSUMDB: off, or name[+key] with an optional URL
// (https://go.dev/ref/mod#environment-variables).
func addChecksums(b *builder, s setting) {
	fields := strings.Fields(s.value)
	if len(fields) == 0 || fields[0] == "off" {
		return
	}
	name, _, _ := strings.Cut(fields[0], "+")
	address := "https://" + name
	if len(fields) > 1 {
		address = fields[1]
	}
	b.add("checksums", setting{address, s.source})
}

// withoutUserinfo drops userinfo from every URL in a list, whatever separates them.
func withoutUserinfo(value string) string {
	var out strings.Builder
	for value != "" {
		at := strings.Index(value, "://")
		if at < 0 {
			break
		}
		out.WriteString(value[:at+3])
		value = value[at+3:]
		end := strings.IndexAny(value, "/,| ")
		if end < 0 {
			end = len(value)
		}
		authority := value[:end]
		out.WriteString(authority[strings.LastIndexByte(authority, '@')+1:])
		value = value[end:]
	}
	return out.String() + value
}
