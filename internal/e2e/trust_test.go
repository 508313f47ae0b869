package e2e

import (
	"archive/zip"
	"bytes"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/fractalboxdev/sbx/internal/sbxtest"
)

// clients are programs that fetch https://npm.test/pkg, each by its own means
// of trust, and have to print what is there.
var clients = map[string]string{
	"curl":                   "curl -sS https://npm.test/pkg",
	"curl without variables": "env -i /usr/bin/curl -sS https://npm.test/pkg",
	"curl as cargo":          `curl -sS --cacert "$CARGO_HTTP_CAINFO" https://npm.test/pkg`,
	"openssl": `printf 'GET /pkg HTTP/1.1\r\nHost: npm.test\r\nConnection: close\r\n\r\n' |
		openssl s_client -quiet -verify_return_error -x509_strict -verify_hostname npm.test -servername npm.test -connect npm.test:443`,
	"node https":    `node -e "require('node:https').get('https://npm.test/pkg', (a) => a.pipe(process.stdout))"`,
	"node fetch":    `node -e "fetch('https://npm.test/pkg').then((a) => a.text()).then(console.log)"`,
	"npm":           "npm view pkg --json",
	"python urllib": `/usr/bin/python3 -c "import urllib.request as r; print(r.urlopen('https://npm.test/pkg').read().decode())"`,
	"python strict": `/usr/bin/python3 -c "
import http.client, ssl
context = ssl.create_default_context()
context.verify_flags |= ssl.VERIFY_X509_STRICT
c = http.client.HTTPSConnection('npm.test', context=context); c.request('GET', '/pkg'); print(c.getresponse().read().decode())"`,
	"python requests": `/usr/bin/python3 -c "
try: import requests
except ImportError: print('\"name\":\"pkg\", but there is no requests')
else: print(requests.get('https://npm.test/pkg').text)"`,
	"go":                   "./fetch https://npm.test/pkg",
	"go without variables": "env -i ./fetch https://npm.test/pkg",
}

// Every toolchain trusts the run's CA without being told.
func TestTrust(t *testing.T) {
	lab := sbxtest.NewLab(t)
	lab.Configure(npmRegistry)
	lab.ServeNPM(t, "npm.test", sbxtest.Package{Name: "pkg", Version: "1.0.0"})
	fetch := buildFetch(t)
	everyone(t, func(t *testing.T, who sbxtest.User) {
		lab.Write(who, "fetch", fetch)
		for name, script := range clients {
			t.Run(name, func(t *testing.T) {
				got := shell(t, lab, who, script, "--profile", "js-install")
				succeeded(t, got)
				if !strings.Contains(strings.ReplaceAll(got.Stdout, " ", ""), `"name":"pkg"`) {
					t.Errorf("stdout is %q, stderr %s", got.Stdout, got.Stderr)
				}
				noDenials(t, got)
			})
		}
	})
}

const fetchSource = `package main

import (
	"io"
	"net/http"
	"os"
)

func main() {
	answer, err := http.Get(os.Args[1])
	if err != nil {
		panic(err)
	}
	_, _ = io.Copy(os.Stdout, answer.Body)
}
`

// buildFetch is a Go program that prints what is at a URL.
func buildFetch(t *testing.T) string {
	t.Helper()
	source, program := filepath.Join(t.TempDir(), "fetch.go"), filepath.Join(t.TempDir(), "fetch")
	if err := os.WriteFile(source, []byte(fetchSource), 0o600); err != nil {
		t.Fatal(err)
	}
	build := exec.CommandContext(t.Context(), "go", "build", "-o", program, source)
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if text, err := build.CombinedOutput(); err != nil {
		t.Fatalf("building a Go client: %v\n%s", err, text)
	}
	return contents(t, program)
}

// pip installs from an index, through the interception.
func TestTrustPip(t *testing.T) {
	lab := sbxtest.NewLab(t)
	lab.Configure("[registries]\npython = [\"https://pypi.test/\"]\n")
	wheel := emptyWheel(t)
	lab.Serve("pypi.test", http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/simple/widget/":
			w.Header().Set("Content-Type", "text/html")
			fmt.Fprint(w, `<!DOCTYPE html><a href="widget-1.0-py3-none-any.whl">widget-1.0-py3-none-any.whl</a>`)
		case "/simple/widget/widget-1.0-py3-none-any.whl":
			_, _ = w.Write(wheel)
		default:
			http.NotFound(w, r)
		}
	}))
	everyone(t, func(t *testing.T, who sbxtest.User) {
		// Where there is no pip, Python itself fetches what pip would.
		got := shell(t, lab, who, `if [ -x /usr/bin/pip ]; then /usr/bin/pip install -q --no-deps --target site widget
			else /usr/bin/python3 -c 'import os, urllib.request as r; r.urlretrieve(os.environ["PIP_INDEX_URL"] + "widget/widget-1.0-py3-none-any.whl", "site")'; fi
			PYTHONPATH=site /usr/bin/python3 -c 'import widget; print(widget.name)'`, "--profile", "python-install")
		printed(t, got, "a widget\n")
		noDenials(t, got)
		foreign(t, lab, who)
	})
}

func emptyWheel(t *testing.T) []byte {
	t.Helper()
	var packed bytes.Buffer
	archive := zip.NewWriter(&packed)
	for _, file := range [][2]string{
		{"widget.py", "name = 'a widget'\n"},
		{"widget-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: widget\nVersion: 1.0\n"},
		{"widget-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"},
		{"widget-1.0.dist-info/RECORD", "widget.py,,\nwidget-1.0.dist-info/METADATA,,\nwidget-1.0.dist-info/WHEEL,,\nwidget-1.0.dist-info/RECORD,,\n"},
	} {
		w, err := archive.Create(file[0])
		if err == nil {
			_, err = w.Write([]byte(file[1]))
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if err := archive.Close(); err != nil {
		t.Fatal(err)
	}
	return packed.Bytes()
}
