package sbxtest

import (
	"archive/tar"
	"archive/zip"
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"testing"
)

// ServeCrates starts a sparse registry of cargo's, whose files are on the host
// files. Each crate has version 1.0.0 and no dependencies; names have at least
// four letters.
//
// The format is that of https://doc.rust-lang.org/cargo/reference/registry-index.html.
func (l *Lab) ServeCrates(t testing.TB, index, files string, crates ...string) (server, store *Server) {
	t.Helper()
	answers := map[string][]byte{"/config.json": fmt.Appendf(nil, `{"dl": "https://%s/crates", "api": "https://%s"}`, files, index)}
	downloads := map[string][]byte{}
	for _, name := range crates {
		file := crate(t, name)
		answers["/"+name[:2]+"/"+name[2:4]+"/"+name] = fmt.Appendf(nil,
			`{"name":%q,"vers":"1.0.0","deps":[],"cksum":"%x","features":{},"yanked":false}`+"\n", name, sha256.Sum256(file))
		downloads["/crates/"+name+"/1.0.0/download"] = file
	}
	return l.Serve(index, files200(answers)), l.Serve(files, files200(downloads))
}

// files200 answers GET for what it has.
func files200(answers map[string][]byte) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, known := answers[r.URL.Path]
		if !known || r.Method != http.MethodGet {
			http.NotFound(w, r)
			return
		}
		if len(body) > 0 && body[0] == '<' {
			w.Header().Set("Content-Type", "text/html")
		}
		_, _ = w.Write(body) // the client is gone
	})
}

func crate(t testing.TB, name string) []byte {
	t.Helper()
	top := name + "-1.0.0/"
	return gzipped(t, map[string]string{
		top + "Cargo.toml": fmt.Sprintf("[package]\nname = %q\nversion = \"1.0.0\"\nedition = \"2021\"\n", name),
		top + "src/lib.rs": "pub const NAME: &str = \"" + name + "\";\n",
	})
}

// gzipped packs files into a tar archive.
func gzipped(t testing.TB, files map[string]string) []byte {
	t.Helper()
	var packed bytes.Buffer
	zipped := gzip.NewWriter(&packed)
	archive := tar.NewWriter(zipped)
	for _, name := range slices.Sorted(maps.Keys(files)) {
		header := &tar.Header{Name: name, Mode: 0o755, Size: int64(len(files[name]))}
		if err := archive.WriteHeader(header); err != nil {
			t.Fatalf("packing %s: %v", name, err)
		}
		if _, err := archive.Write([]byte(files[name])); err != nil {
			t.Fatalf("packing %s: %v", name, err)
		}
	}
	if err := archive.Close(); err != nil {
		t.Fatal(err)
	}
	if err := zipped.Close(); err != nil {
		t.Fatal(err)
	}
	return packed.Bytes()
}

// ServePython starts an index of Python packages (PEP 503) at /simple/, whose
// files are on the host files. Each package is a wheel of version 1.0.
func (l *Lab) ServePython(t testing.TB, index, files string, packages ...string) (server, store *Server) {
	t.Helper()
	pages, wheels := map[string][]byte{}, map[string][]byte{}
	for _, name := range packages {
		file := "/packages/" + module(name) + "-1.0-py3-none-any.whl"
		wheels[file] = wheel(t, name)
		pages["/simple/"+name+"/"] = fmt.Appendf(nil, "<!DOCTYPE html><a href=\"https://%s%s#sha256=%x\">%s-1.0-py3-none-any.whl</a>",
			files, file, sha256.Sum256(wheels[file]), module(name))
	}
	return l.Serve(index, files200(pages)), l.Serve(files, files200(wheels))
}

func module(name string) string { return strings.ReplaceAll(name, "-", "_") }

// wheel packs a module in the binary distribution format (PEP 427).
func wheel(t testing.TB, name string) []byte {
	t.Helper()
	var packed bytes.Buffer
	archive := zip.NewWriter(&packed)
	info := module(name) + "-1.0.dist-info/"
	for file, text := range map[string]string{
		module(name) + ".py": "NAME = '" + name + "'\n",
		info + "METADATA":    "Metadata-Version: 2.1\nName: " + name + "\nVersion: 1.0\n",
		info + "WHEEL":       "Wheel-Version: 1.0\nGenerator: lab\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
		info + "RECORD":      module(name) + ".py,,\n",
	} {
		w, err := archive.Create(file)
		if err != nil {
			t.Fatalf("packing %s: %v", file, err)
		}
		if _, err := w.Write([]byte(text)); err != nil {
			t.Fatalf("packing %s: %v", file, err)
		}
	}
	if err := archive.Close(); err != nil {
		t.Fatal(err)
	}
	return packed.Bytes()
}
