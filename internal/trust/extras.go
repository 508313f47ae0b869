package trust

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
)

// fileVariables name a file, or for some tools a directory, of CAs that the
// caller trusts beyond the system.
var fileVariables = [...]string{
	"SSL_CERT_FILE", "NODE_EXTRA_CA_CERTS", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "GIT_SSL_CAINFO",
	"PIP_CERT", "CARGO_HTTP_CAINFO", "AWS_CA_BUNDLE", "DENO_CERT", "NIX_SSL_CERT_FILE", "npm_config_cafile",
	"BUNDLE_SSL_CA_CERT", "CLOUDSDK_CORE_CUSTOM_CA_CERTS_FILE", "GRPC_DEFAULT_SSL_ROOTS_FILE_PATH",
}

// systemDirs hold the system's roots one by one; they are in the bundle already.
var systemDirs = [...]string{"/etc/ssl/certs", "/etc/pki/tls/certs", "/usr/lib/ssl/certs", "/etc/ca-certificates/extracted/cadir"}

// anchorDirs is where an administrator puts the CAs of the own organisation.
var anchorDirs = [...]string{
	"/usr/local/share/ca-certificates", "/etc/pki/ca-trust/source/anchors",
	"/etc/ca-certificates/trust-source/anchors", "/usr/share/pki/trust/anchors", "/etc/pki/trust/anchors",
}

// maxDirFiles bounds how many files of one directory are read.
const maxDirFiles = 500

// Extras are the CAs of the caller's own environment.
type Extras struct {
	all []byte
	ids map[string]bool
	// Sources says where they were found; Skipped, what could not be read and why.
	Sources, Skipped []string
}

// FindExtras reads what the caller's environment and the administrator's anchor
// directories add to the system's roots. refuse is asked with each path, links
// resolved, and says no to what a sandbox could have written; nil refuses
// nothing.
func FindExtras(getenv func(string) string, refuse func(path string) bool) Extras {
	return findExtras("/", getenv, refuse)
}

func findExtras(root string, getenv func(string) string, refuse func(string) bool) Extras {
	f := finder{refuse: refuse, done: make(map[string]bool)}
	// The system bundle is no extra, whatever variable names it.
	for _, path := range targets(root) {
		f.done[path] = true
	}
	for _, dir := range systemDirs {
		if real, err := filepath.EvalSymlinks(filepath.Join(root, dir)); err == nil {
			f.done[real] = true
		}
	}
	for _, name := range fileVariables {
		if path := getenv(name); path != "" {
			f.add(name, path)
		}
	}
	for _, dir := range filepath.SplitList(getenv("SSL_CERT_DIR")) {
		f.add("SSL_CERT_DIR", dir)
	}
	for _, dir := range anchorDirs {
		f.add(dir, filepath.Join(root, dir))
	}
	return f.extras
}

type finder struct {
	refuse func(string) bool
	done   map[string]bool
	extras Extras
}

// add reads the file, or the files of the directory, unless it was read before.
func (f *finder) add(source, path string) {
	real, err := filepath.EvalSymlinks(path)
	if err == nil && !filepath.IsAbs(real) {
		real, err = filepath.Abs(real)
	}
	if err != nil {
		if !slices.Contains(anchorDirs[:], source) {
			f.skip(source, err)
		}
		return
	}
	if f.done[real] {
		return
	}
	f.done[real] = true
	if f.refuse != nil && f.refuse(real) {
		f.skip(source, errors.New(real+" can be written from inside a sandbox"))
		return
	}
	info, err := os.Stat(real)
	if err != nil {
		f.skip(source, err)
		return
	}
	if info.IsDir() {
		f.addDir(source, real)
		return
	}
	f.addFile(source, real)
}

func (f *finder) addDir(source, dir string) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		f.skip(source, err)
		return
	}
	if len(entries) > maxDirFiles {
		f.skip(source, fmt.Errorf("%s has over %d files: %w", dir, maxDirFiles, fs.ErrInvalid))
		return
	}
	for _, e := range entries {
		if !e.IsDir() {
			f.add(source, filepath.Join(dir, e.Name()))
		}
	}
}

func (f *finder) addFile(source, path string) {
	text, err := readFile(path)
	if err != nil {
		f.skip(source, err)
		return
	}
	before := len(f.extras.all)
	certificates(text, f.extras.add)
	if len(f.extras.all) > before {
		f.extras.Sources = append(f.extras.Sources, source+"="+path)
	}
}

func (f *finder) skip(source string, err error) {
	f.extras.Skipped = append(f.extras.Skipped, fmt.Sprintf("%s: %v", source, err))
}

// add keeps the certificate once.
func (e *Extras) add(body []byte) {
	id := identity(body)
	if e.ids[id] {
		return
	}
	if e.ids == nil {
		e.ids = make(map[string]bool)
	}
	e.ids[id] = true
	e.all = appendCertificate(e.all, body)
}

// missing returns those that host has not, as far as host is written the same way:
// one that stands there in other line lengths is only said twice.
func (e Extras) missing(host []byte) []byte {
	var out []byte
	certificates(e.all, func(body []byte) {
		if !bytes.Contains(host, body) {
			out = appendCertificate(out, body)
		}
	})
	return out
}
