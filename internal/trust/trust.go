// Package trust builds what makes programs inside the sandbox trust the run's
// CA: two PEM files and the variables that point at them. It also knows which
// roots the host trusts, for the proxy's own connections.
package trust

import (
	"bytes"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
)

// maxFile bounds one file of certificates, in bytes.
const maxFile = 8 << 20

// ErrNoHostBundle is a host without a bundle at any usual path. Nothing can be
// verified upstream there until one is installed.
var ErrNoHostBundle = errors.New("the host has no CA bundle at any usual path (install ca-certificates)")

// systemPaths is where distributions keep one file with all roots, most usual
// first: what OpenSSL, GnuTLS, Go and curl are built with. /etc/ssl/cert.pem
// and /usr/lib/ssl/cert.pem are OpenSSL's own default name.
var systemPaths = [...]string{
	"/etc/ssl/certs/ca-certificates.crt",
	"/etc/pki/tls/certs/ca-bundle.crt",
	"/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem",
	"/etc/ssl/ca-bundle.pem",
	"/etc/ssl/cert.pem",
	"/etc/ssl/certs/ca-bundle.crt",
	"/etc/pki/tls/cert.pem",
	"/etc/pki/tls/cacert.pem",
	"/etc/ca-certificates/extracted/tls-ca-bundle.pem",
	"/var/lib/ca-certificates/ca-bundle.pem",
	"/usr/lib/ssl/cert.pem",
	"/usr/local/share/certs/ca-root-nss.crt",
}

// targets returns the host's own bundles: every usual path that exists, links
// resolved, each once.
func targets(root string) []string {
	var out []string
	seen := make(map[string]bool)
	for _, path := range systemPaths {
		real, err := filepath.EvalSymlinks(filepath.Join(root, path))
		if err != nil || seen[real] {
			continue // a path that leads nowhere trusts nothing
		}
		seen[real] = true
		out = append(out, real)
	}
	return out
}

var hostBundle = sync.OnceValues(func() ([]byte, error) { return readBundle("/") })

// HostBundle reads the host's bundle, once in the life of the process. The
// slice is shared and must not be changed.
func HostBundle() ([]byte, error) { return hostBundle() }

func readBundle(root string) ([]byte, error) {
	for _, path := range systemPaths {
		text, err := readFile(filepath.Join(root, path))
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("reading the host's CA bundle: %w", err)
		}
		if bytes.Contains(text, begin) {
			return text, nil
		}
	}
	return nil, ErrNoHostBundle
}

// readFile reads a regular file of at most maxFile bytes; a pipe or device
// under the name never blocks it.
func readFile(path string) ([]byte, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, fmt.Errorf("%s is no regular file: %w", path, fs.ErrInvalid)
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	if info.Size() > maxFile {
		return nil, fmt.Errorf("%s has over %d bytes: %w", path, maxFile, fs.ErrInvalid)
	}
	text := make([]byte, info.Size())
	n, err := io.ReadFull(f, text)
	if errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, io.EOF) {
		err = nil // it became shorter meanwhile
	}
	return text[:n], err
}

// Pack is the content of the two files of a run. Both start with BEGIN, have
// nothing but certificates and LF line ends.
type Pack struct {
	// Bundle replaces the system bundle: the run's CA, the host's roots, the
	// caller's own CAs.
	Bundle []byte
	// CA is for programs that add to the roots they bring along: the run's CA
	// and the caller's own. Node reads such a file at every start, at 0.2 ms a
	// certificate, so it must stay small.
	CA []byte
}

// Build makes the files. host may be nil.
func Build(host []byte, extras Extras, runCA []byte) (Pack, error) {
	own := appendCertificates(nil, runCA)
	if len(own) == 0 {
		return Pack{}, errors.New("building the trust pack: the run's CA is no PEM certificate")
	}
	bundle := make([]byte, 0, len(own)+len(host)+len(extras.all)+64)
	bundle = append(bundle, own...)
	if plain(host) {
		bundle = append(bundle, host...)
	} else {
		bundle = appendCertificates(bundle, host)
	}
	missing, small := extras.missing(host), extras.all
	if len(extras.ids) > maxSmall {
		small = missing // the caller's file is a whole set of roots
	}
	return Pack{
		Bundle: append(bundle, missing...),
		CA:     append(own, small...),
	}, nil
}

// maxSmall is how many certificates of the caller the small file takes as they are.
const maxSmall = 32

// UpstreamPool returns a function that gives the roots for connections to
// upstreams: the host's and the caller's own, never a run's CA. Parsing them
// takes milliseconds and waits for the first call.
func UpstreamPool(host []byte, extras Extras) func() *x509.CertPool {
	return sync.OnceValue(func() *x509.CertPool {
		pool := x509.NewCertPool()
		pool.AppendCertsFromPEM(host)
		pool.AppendCertsFromPEM(extras.all)
		return pool
	})
}
