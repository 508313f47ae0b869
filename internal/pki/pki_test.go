package pki

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"
)

func newAuthority(t testing.TB) *Authority {
	t.Helper()
	a, err := NewAuthority(time.Now())
	if err != nil {
		t.Fatal(err)
	}
	return a
}

func TestAuthorityPEMIsPlain(t *testing.T) {
	b := newAuthority(t).CertificatePEM()
	if !bytes.HasPrefix(b, []byte("-----BEGIN CERTIFICATE-----\n")) {
		t.Errorf("the PEM begins with %q", b[:30])
	}
	if bytes.ContainsRune(b, '\r') {
		t.Error("the PEM has carriage returns")
	}
	if _, rest := pem.Decode(b); len(rest) != 0 {
		t.Errorf("%d bytes after the certificate", len(rest))
	}
}

func TestAuthorityExtensions(t *testing.T) {
	c := newAuthority(t).Certificate()
	if !c.IsCA || !c.BasicConstraintsValid || c.KeyUsage&x509.KeyUsageCertSign == 0 || len(c.SubjectKeyId) == 0 {
		t.Errorf("CA extensions: %+v", c)
	}
	for _, e := range c.Extensions {
		if e.Id.String() == "2.5.29.19" && !e.Critical {
			t.Error("basicConstraints is not critical")
		}
	}
}

func TestLeafVerifies(t *testing.T) {
	a := newAuthority(t)
	pool := x509.NewCertPool()
	pool.AddCert(a.Certificate())
	long := strings.Repeat("a", 60) + ".b.test"
	for host, name := range map[string]string{
		"ok.test": "ok.test", "OK.test.": "ok.test", "under_score.test": "under_score.test",
		long: long, "192.0.2.7": "192.0.2.7", "[2001:db8::7]": "2001:db8::7",
	} {
		leaf, err := a.Leaf(host)
		if err != nil {
			t.Fatalf("%s: %v", host, err)
		}
		c := leaf.Leaf
		if _, err := c.Verify(x509.VerifyOptions{Roots: pool, DNSName: name}); err != nil {
			t.Errorf("%s: %v", host, err)
		}
		if c.NotBefore.Before(a.Certificate().NotBefore) || c.NotAfter.Sub(c.NotBefore) > 398*24*time.Hour {
			t.Errorf("%s: valid from %v to %v", host, c.NotBefore, c.NotAfter)
		}
		if c.SerialNumber.Sign() <= 0 || len(c.AuthorityKeyId) == 0 || len(c.Subject.CommonName) > 64 {
			t.Errorf("%s: serial %v, AKI %x, CN %q", host, c.SerialNumber, c.AuthorityKeyId, c.Subject.CommonName)
		}
	}
}

func TestLeafRefusesWhatIsNoHost(t *testing.T) {
	a := newAuthority(t)
	for _, host := range []string{"", ".", "a..b", "evil\x00.ok.test", "a b", "*.ok.test", "a/b", strings.Repeat("a.", 200)} {
		if _, err := a.Leaf(host); err == nil {
			t.Errorf("a leaf for %q was minted", host)
		}
	}
}

func TestLeafMintedOnce(t *testing.T) {
	a := newAuthority(t)
	var mu sync.Mutex
	seen := map[*tls.Certificate]bool{}
	var wg sync.WaitGroup
	for range 32 {
		wg.Go(func() {
			c, err := a.Leaf("one.test")
			if err != nil {
				t.Error(err)
			}
			mu.Lock()
			defer mu.Unlock()
			seen[c] = true
		})
	}
	wg.Wait()
	if len(seen) != 1 {
		t.Errorf("%d leaves for one host", len(seen))
	}
}

func TestLeafLimit(t *testing.T) {
	a := newAuthority(t)
	for i := range MaxLeaves {
		a.leaves[fmt.Sprintf("h%d.test", i)] = new(entry)
	}
	if _, err := a.Leaf("one-more.test"); !errors.Is(err, ErrLeafLimit) {
		t.Errorf("beyond the limit: %v", err)
	}
	if _, err := a.Leaf("h0.test"); err != nil {
		t.Errorf("a known host at the limit: %v", err)
	}
}

func TestDestroy(t *testing.T) {
	a := newAuthority(t)
	if _, err := a.Leaf("ok.test"); err != nil {
		t.Fatal(err)
	}
	a.Destroy()
	if _, err := a.Leaf("ok.test"); !errors.Is(err, ErrDestroyed) {
		t.Errorf("after Destroy: %v", err)
	}
	if !a.Destroyed() {
		t.Error("Destroyed is false")
	}
}

// writeChain stores the CA and one leaf for tools that read files.
func writeChain(t *testing.T, a *Authority, host string) (ca, leaf string) {
	t.Helper()
	c, err := a.Leaf(host)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	ca, leaf = filepath.Join(dir, "ca.pem"), filepath.Join(dir, "leaf.pem")
	block := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: c.Certificate[0]})
	for path, b := range map[string][]byte{ca: a.CertificatePEM(), leaf: block} {
		if err := os.WriteFile(path, b, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return ca, leaf
}

func TestOpenSSLStrict(t *testing.T) {
	tool, err := exec.LookPath("openssl")
	if err != nil {
		t.Log("no openssl on this machine; crypto/x509 checked the chain in TestLeafVerifies")
		return
	}
	a := newAuthority(t)
	for _, host := range []string{"ok.test", "192.0.2.7", strings.Repeat("a", 60) + ".b.test"} {
		ca, leaf := writeChain(t, a, host)
		out, err := exec.CommandContext(t.Context(), tool, "verify", "-x509_strict", "-purpose", "sslserver", "-CAfile", ca, leaf).CombinedOutput()
		if err != nil {
			t.Errorf("%s: %v\n%s", host, err, out)
		}
	}
}

func TestGnuTLS(t *testing.T) {
	tool, err := exec.LookPath("certtool")
	if err != nil {
		t.Log("no certtool on this machine; crypto/x509 checked the chain in TestLeafVerifies")
		return
	}
	ca, leaf := writeChain(t, newAuthority(t), "ok.test")
	out, err := exec.CommandContext(t.Context(), tool, "--verify", "--load-ca-certificate", ca, "--infile", leaf, "--verify-hostname", "ok.test").CombinedOutput()
	if err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}

func TestHandshake(t *testing.T) {
	a := newAuthority(t)
	pool := x509.NewCertPool()
	pool.AddCert(a.Certificate())
	cert, err := a.Leaf("ok.test")
	if err != nil {
		t.Fatal(err)
	}
	client, server := net.Pipe()
	done := make(chan error, 1)
	go func() { done <- tls.Server(server, &tls.Config{Certificates: []tls.Certificate{*cert}}).Handshake() }()
	if err := tls.Client(client, &tls.Config{RootCAs: pool, ServerName: "ok.test"}).Handshake(); err != nil {
		t.Error(err)
	}
	if err := <-done; err != nil {
		t.Error(err)
	}
}

func BenchmarkNewAuthority(b *testing.B) {
	for b.Loop() {
		if _, err := NewAuthority(time.Now()); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkLeafNew(b *testing.B) {
	a := newAuthority(b)
	for b.Loop() {
		if _, err := a.mint("ok.test", netip.Addr{}, time.Now()); err != nil {
			b.Fatal(err)
		}
	}
}
