package sbxtest

import (
	"cmp"
	"crypto/sha512"
	"encoding/base64"
	"encoding/json"
	"net/http"
	"net/url"
	"path"
	"strings"
	"testing"
)

// Package is one npm package, in one version.
type Package struct {
	Name, Version string
	Scripts       map[string]string // lifecycle scripts, as in package.json
	Dependencies  map[string]string
	Files         map[string]string // beside package.json
	Elsewhere     string            // host that the tarball is said to be on; "" for the registry
}

// published is when each package came out.
const published = "2020-01-01T00:00:00.000Z"

// ServeNPM starts a package registry of the npm ecosystem with these packages.
func (l *Lab) ServeNPM(t testing.TB, name string, packages ...Package) *Server {
	t.Helper()
	return l.ServeNPMBelow(t, name, "", packages...)
}

// ServeNPMBelow is ServeNPM for a registry below a path of its host, such as "/npm".
func (l *Lab) ServeNPMBelow(t testing.TB, name, base string, packages ...Package) *Server {
	t.Helper()
	answers := map[string][]byte{}
	for _, p := range packages {
		tarball := p.tarball(t)
		file := path.Join("/", base, p.Name, "-", path.Base(p.Name)+"-"+p.Version+".tgz")
		answers[file] = tarball
		manifest := p.manifest()
		digest := sha512.Sum512(tarball)
		manifest["dist"] = map[string]string{
			"tarball":   "https://" + cmp.Or(p.Elsewhere, name) + file,
			"integrity": "sha512-" + base64.StdEncoding.EncodeToString(digest[:]),
		}
		answers[base+"/"+p.Name] = encode(t, map[string]any{
			"name": p.Name, "dist-tags": map[string]string{"latest": p.Version},
			"versions": map[string]any{p.Version: manifest},
			"time":     map[string]string{p.Version: published}, // some clients take nothing that is new
		})
	}
	return l.Serve(name, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked, err := url.PathUnescape(r.URL.EscapedPath()) // npm sends scopes as @scope%2fname
		body, known := answers[asked]
		if err != nil || !known || r.Method != http.MethodGet {
			http.NotFound(w, r)
			return
		}
		if !strings.HasSuffix(asked, ".tgz") {
			w.Header().Set("Content-Type", "application/json")
		}
		_, _ = w.Write(body) // the client is gone
	}))
}

func encode(t testing.TB, v any) []byte {
	t.Helper()
	text, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// manifest is the package's package.json.
func (p Package) manifest() map[string]any {
	m := map[string]any{"name": p.Name, "version": p.Version}
	if p.Scripts != nil {
		m["scripts"], m["hasInstallScript"] = p.Scripts, true
	}
	if p.Dependencies != nil {
		m["dependencies"] = p.Dependencies
	}
	return m
}

// tarball packs the package as npm does: everything below package/.
func (p Package) tarball(t testing.TB) []byte {
	t.Helper()
	files := map[string]string{"package/package.json": string(encode(t, p.manifest()))}
	for name, text := range p.Files {
		files["package/"+name] = text
	}
	return gzipped(t, files)
}
