package trust

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"log"
	"math/big"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// authority makes a CA and a server certificate for "localhost" under it.
func authority(t testing.TB, name string) (caPEM []byte, leaf tls.Certificate) {
	t.Helper()
	caKey, leafKey := newKey(t), newKey(t)
	ca := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: name}, NotBefore: time.Now().Add(-time.Hour),
		NotAfter: time.Now().Add(time.Hour), IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	caDER, err := x509.CreateCertificate(rand.Reader, ca, ca, caKey.Public(), caKey)
	if err != nil {
		t.Fatal(err)
	}
	parent, err := x509.ParseCertificate(caDER)
	if err != nil {
		t.Fatal(err)
	}
	server := &x509.Certificate{
		SerialNumber: big.NewInt(2), DNSNames: []string{"localhost"}, NotBefore: ca.NotBefore, NotAfter: ca.NotAfter,
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, server, parent, leafKey.Public(), caKey)
	if err != nil {
		t.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: caDER}), tls.Certificate{Certificate: [][]byte{der}, PrivateKey: leafKey}
}

func newKey(t testing.TB) *ecdsa.PrivateKey {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return key
}

func write(t *testing.T, path string, text []byte) string {
	t.Helper()
	if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, text, 0o644)); err != nil {
		t.Fatal(err)
	}
	return path
}

func names(t *testing.T, text []byte) []string {
	t.Helper()
	var out []string
	for {
		var block *pem.Block
		if block, text = pem.Decode(text); block == nil {
			break
		}
		c, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, c.Subject.CommonName)
	}
	if len(bytes.TrimSpace(text)) > 0 {
		t.Errorf("left over: %q", text)
	}
	return out
}

func getenvOf(vars map[string]string) func(string) string {
	return func(name string) string { return vars[name] }
}

func TestPackIsPlainPEM(t *testing.T) {
	run, _ := authority(t, "run")
	root, _ := authority(t, "root")
	messy := "# a comment\r\nOU = x\r\n" + strings.ReplaceAll(string(root), "\n", "\r\n") +
		"-----BEGIN TRUSTED CERTIFICATE-----\nAAAA\n-----END TRUSTED CERTIFICATE-----\n" +
		"-----BEGIN CERTIFICATE-----\nnot base64!\n-----END CERTIFICATE-----\n-----BEGIN CERTIFICATE-----\ncut"
	pack, err := Build([]byte(messy), Extras{}, run)
	if err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string][]byte{"bundle": pack.Bundle, "ca": pack.CA} {
		if !bytes.HasPrefix(text, []byte("-----BEGIN CERTIFICATE-----\n")) || !bytes.HasSuffix(text, []byte("-----END CERTIFICATE-----\n")) {
			t.Errorf("%s does not begin and end plainly", name)
		}
		if bytes.ContainsAny(text, "\r#!") {
			t.Errorf("%s has more than certificates", name)
		}
	}
	if diff := cmp.Diff([]string{"run", "root"}, names(t, pack.Bundle)); diff != "" {
		t.Errorf("bundle (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]string{"run"}, names(t, pack.CA)); diff != "" {
		t.Errorf("ca (-want +got):\n%s", diff)
	}
	if _, err := Build(root, Extras{}, []byte("nothing")); err == nil {
		t.Error("a pack without the run's CA was built")
	}
}

func TestCase33_CallersOwnCAsStayTrusted(t *testing.T) {
	root := t.TempDir()
	run, _ := authority(t, "run")
	system, _ := authority(t, "system")
	corp, _ := authority(t, "corp")
	node, _ := authority(t, "node")
	inDir, _ := authority(t, "in a directory")
	anchor, _ := authority(t, "anchor")
	bundle := write(t, filepath.Join(root, "etc/ssl/certs/ca-certificates.crt"), append(append([]byte{}, system...), anchor...))
	write(t, filepath.Join(root, "usr/local/share/ca-certificates/corp.crt"), anchor)
	dir := filepath.Dir(write(t, filepath.Join(root, "mine/x.pem"), inDir))
	vars := getenvOf(map[string]string{
		"SSL_CERT_FILE":       write(t, filepath.Join(root, "corp.pem"), append(append([]byte{}, corp...), system...)),
		"NODE_EXTRA_CA_CERTS": write(t, filepath.Join(root, "node.pem"), node),
		"REQUESTS_CA_BUNDLE":  bundle,
		"CURL_CA_BUNDLE":      filepath.Join(root, "corp.pem"),
		"SSL_CERT_DIR":        dir + ":" + filepath.Join(root, "etc/ssl/certs"),
		"AWS_CA_BUNDLE":       filepath.Join(root, "missing.pem"),
	})
	extras := findExtras(root, vars, nil)
	host, err := readBundle(root)
	if err != nil {
		t.Fatal(err)
	}
	pack, err := Build(host, extras, run)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"run", "system", "anchor", "corp", "node", "in a directory"}, names(t, pack.Bundle)); diff != "" {
		t.Errorf("bundle (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]string{"run", "corp", "system", "node", "in a directory", "anchor"}, names(t, pack.CA)); diff != "" {
		t.Errorf("ca (-want +got):\n%s", diff)
	}
	if len(extras.Sources) != 4 || len(extras.Skipped) != 1 || !strings.HasPrefix(extras.Skipped[0], "AWS_CA_BUNDLE: ") {
		t.Errorf("sources %q, skipped %q", extras.Sources, extras.Skipped)
	}
}

func TestExtrasThatASandboxCouldWriteAreRefused(t *testing.T) {
	ca, _ := authority(t, "planted")
	work := t.TempDir()
	write(t, filepath.Join(work, "ca.pem"), ca)
	link := filepath.Join(t.TempDir(), "ca.pem")
	if err := os.Symlink(filepath.Join(work, "ca.pem"), link); err != nil {
		t.Fatal(err)
	}
	extras := findExtras(t.TempDir(), getenvOf(map[string]string{"SSL_CERT_FILE": link}),
		func(path string) bool { return strings.HasPrefix(path, work) })
	if len(extras.all) != 0 || len(extras.Skipped) != 1 {
		t.Errorf("%d bytes taken, skipped %q", len(extras.all), extras.Skipped)
	}
}

func TestAPipeInPlaceOfAFileDoesNotBlock(t *testing.T) {
	fifo := filepath.Join(t.TempDir(), "fifo")
	if out, err := exec.Command("mkfifo", fifo).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	extras := findExtras(t.TempDir(), getenvOf(map[string]string{"SSL_CERT_FILE": fifo}), nil)
	if len(extras.Skipped) != 1 {
		t.Errorf("skipped %q", extras.Skipped)
	}
}

func TestManyExtrasDoNotMakeTheSmallFileLarge(t *testing.T) {
	root, _ := authority(t, "root")
	run, _ := authority(t, "run")
	var all []byte
	for i := range maxSmall {
		ca, _ := authority(t, fmt.Sprint(i))
		all = append(all, ca...)
	}
	file := write(t, filepath.Join(t.TempDir(), "all.pem"), append(all, root...))
	pack, err := Build(append(all, root...), findExtras(t.TempDir(), getenvOf(map[string]string{"SSL_CERT_FILE": file}), nil), run)
	if err != nil {
		t.Fatal(err)
	}
	if got := names(t, pack.CA); len(got) != 1 {
		t.Errorf("small file has %q", got)
	}
}

func TestHostWithoutBundle(t *testing.T) {
	if _, err := readBundle(t.TempDir()); !errors.Is(err, ErrNoHostBundle) {
		t.Errorf("%v", err)
	}
}

func TestTargetsResolveLinksOnce(t *testing.T) {
	root := t.TempDir()
	real := write(t, filepath.Join(root, "etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem"), []byte("x"))
	if err := errors.Join(os.MkdirAll(filepath.Join(root, "etc/pki/tls/certs"), 0o755), os.MkdirAll(filepath.Join(root, "etc/ssl"), 0o755),
		os.Symlink(real, filepath.Join(root, "etc/pki/tls/certs/ca-bundle.crt")),
		os.Symlink("nowhere", filepath.Join(root, "etc/ssl/cert.pem"))); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{real}, targets(root)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestUpstreamPoolTrustsHostAndCallerButNotTheRun(t *testing.T) {
	system, systemLeaf := authority(t, "system")
	corp, corpLeaf := authority(t, "corp")
	_, runLeaf := authority(t, "run")
	file := write(t, filepath.Join(t.TempDir(), "corp.pem"), corp)
	extras := findExtras(t.TempDir(), getenvOf(map[string]string{"SSL_CERT_FILE": file}), nil)
	pool := UpstreamPool(system, extras)()
	for name, c := range map[string]struct {
		leaf tls.Certificate
		ok   bool
	}{"system": {systemLeaf, true}, "corp": {corpLeaf, true}, "run": {runLeaf, false}} {
		cert, err := x509.ParseCertificate(c.leaf.Certificate[0])
		if err != nil {
			t.Fatal(err)
		}
		if _, err := cert.Verify(x509.VerifyOptions{Roots: pool, DNSName: "localhost"}); (err == nil) != c.ok {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// clients are programs that connect to the URL in their last argument and fail
// unless they trust the server. wget with GnuTLS is not among them: it knows no
// variable and needs the bundle at the system's path.
var clients = []struct {
	name string
	args []string
}{
	{"curl", []string{"-sS", "--noproxy", "*", "-o", "/dev/null"}},
	{"python3", []string{"-c", "import sys,ssl,http.client as h;c=h.HTTPSConnection(sys.argv[1][8:].rstrip('/'),context=ssl.create_default_context());c.request('GET','/');c.getresponse()"}},
	{"node", []string{"-e", "require('https').get(process.argv[1],r=>r.resume()).on('error',e=>{console.error(e);process.exit(1)})"}},
	{"git", []string{"-c", "http.proxy=", "ls-remote"}},
}

// TestRealClientsTrustThePack runs every client that is installed, once without
// the pack, which must fail, and once with it.
func TestRealClientsTrustThePack(t *testing.T) {
	ca, leaf := authority(t, "run")
	server := httptest.NewUnstartedServer(http.HandlerFunc(serve))
	server.Config.ErrorLog = log.New(io.Discard, "", 0)
	server.TLS = &tls.Config{Certificates: []tls.Certificate{leaf}}
	server.StartTLS()
	defer server.Close()
	url := strings.Replace(server.URL, "127.0.0.1", "localhost", 1) + "/"
	host, err := HostBundle()
	if err != nil {
		t.Fatal(err)
	}
	pack, err := Build(host, Extras{}, ca)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	env := []string{"PATH=" + os.Getenv("PATH"), "HOME=" + os.Getenv("HOME"), "NO_PROXY=*", "GIT_CONFIG_GLOBAL=/dev/null"}
	trusting := append([]string{}, env...)
	for _, v := range Env(write(t, filepath.Join(dir, "bundle.pem"), pack.Bundle), write(t, filepath.Join(dir, "ca.pem"), pack.CA)) {
		trusting = append(trusting, v.Name+"="+v.Value)
	}
	ran := 0
	for _, c := range clients {
		if _, err := exec.LookPath(c.name); err != nil {
			continue
		}
		ran++
		if out, err := runClient(t, env, c.name, c.args, url); err == nil {
			t.Errorf("%s trusts the CA without the pack: %s", c.name, out)
		}
		if out, err := runClient(t, trusting, c.name, c.args, url); err != nil {
			t.Errorf("%s does not trust the pack: %v\n%s", c.name, err, out)
		}
	}
	if ran == 0 {
		t.Fatal("no client is installed")
	}
}

// serve answers an empty git repository for git and an empty page for the rest.
func serve(w http.ResponseWriter, r *http.Request) {
	if r.URL.Query().Get("service") == "git-upload-pack" {
		w.Header().Set("Content-Type", "application/x-git-upload-pack-advertisement")
		fmt.Fprint(w, "001e# service=git-upload-pack\n00000000")
	}
}

func runClient(t *testing.T, env []string, name string, args []string, url string) (string, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	cmd := exec.CommandContext(ctx, name, append(append([]string{}, args...), url)...)
	cmd.Env = env
	out, err := cmd.CombinedOutput()
	return string(out), err
}

func BenchmarkReadAndBuild(b *testing.B) {
	ca, _ := authority(b, "run")
	for b.Loop() {
		host, err := readBundle("/")
		if err != nil {
			b.Fatal(err)
		}
		if _, err := Build(host, Extras{}, ca); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkFindExtras(b *testing.B) {
	for b.Loop() {
		FindExtras(os.Getenv, nil)
	}
}
