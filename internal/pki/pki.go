// Package pki is the certificate authority of one run: its key exists only in
// memory and signs one short-lived leaf per intercepted host.
package pki

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net/netip"
	"strings"
	"sync"
	"time"
)

// MaxLeaves bounds how many hosts one run can have certificates for by default. The code
// inside the fence chooses the names, so the bound is what keeps memory finite.
const MaxLeaves = 4096

const (
	skew         = 5 * time.Minute // clocks inside a sandbox are the host's, those of other tools may not be
	authorityAge = 30 * 24 * time.Hour
	leafAge      = 24 * time.Hour
	renewBefore  = time.Hour
	maxCommon    = 64 // RFC 5280, ub-common-name
)

// ErrLeafLimit is wrapped by what Leaf returns for a new host once as many were minted
// as there may be.
var ErrLeafLimit = errors.New("the bound of leaf certificates")

// boundError says which bound that is.
type boundError struct{ limit int }

func (e boundError) Error() string {
	return fmt.Sprintf("the run has made %d leaf certificates, its bound", e.limit)
}

// Unwrap returns ErrLeafLimit.
func (boundError) Unwrap() error { return ErrLeafLimit }

// Bound tells callers that know only the method what kind of failure this is.
func (boundError) Bound() bool { return true }

// ErrDestroyed is returned by Leaf after Destroy.
var ErrDestroyed = errors.New("the run's certificate authority was destroyed")

// Authority signs leaves for one run. It is safe for concurrent use.
type Authority struct {
	created time.Time // with a monotonic reading when the caller's clock has one
	cert    *x509.Certificate
	pem     []byte

	mu     sync.Mutex
	key    *ecdsa.PrivateKey // nil after Destroy
	leaf   *ecdsa.PrivateKey // one key for all leaves: they protect nothing from each other
	leaves map[string]*entry
	limit  int // of leaves
}

// entry is one host's leaf; its lock makes concurrent first connections mint once.
type entry struct {
	mu   sync.Mutex
	cert *tls.Certificate
}

// NewAuthority makes a CA whose validity starts five minutes before now.
func NewAuthority(now time.Time) (*Authority, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("generating the run CA's key: %w", err)
	}
	leaf, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("generating the leaves' key: %w", err)
	}
	cert, err := signAuthority(key, now)
	if err != nil {
		return nil, err
	}
	return &Authority{
		created: now,
		cert:    cert,
		pem:     pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: cert.Raw}),
		key:     key,
		leaf:    leaf,
		leaves:  make(map[string]*entry),
		limit:   MaxLeaves,
	}, nil
}

// LimitLeaves sets another bound than MaxLeaves.
func (a *Authority) LimitLeaves(n int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.limit = n
}

func signAuthority(key *ecdsa.PrivateKey, now time.Time) (*x509.Certificate, error) {
	serial, err := newSerial()
	if err != nil {
		return nil, err
	}
	template := &x509.Certificate{
		SerialNumber:          serial,
		Subject:               pkix.Name{CommonName: "sbx run CA", Organization: []string{"sbx"}},
		NotBefore:             now.Add(-skew),
		NotAfter:              now.Add(authorityAge),
		KeyUsage:              x509.KeyUsageCertSign | x509.KeyUsageCRLSign,
		BasicConstraintsValid: true,
		IsCA:                  true,
		MaxPathLenZero:        true,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return nil, fmt.Errorf("signing the run CA: %w", err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, fmt.Errorf("parsing the run CA: %w", err)
	}
	return cert, nil
}

// newSerial returns a positive number of at most 127 bits (RFC 5280 section 4.1.2.2).
func newSerial() (*big.Int, error) {
	var b [16]byte
	if _, err := rand.Read(b[:]); err != nil {
		return nil, fmt.Errorf("choosing a serial number: %w", err)
	}
	b[0] = b[0]&0x7f | 0x40 // never negative, never zero
	return new(big.Int).SetBytes(b[:]), nil
}

// CertificatePEM returns the CA's certificate: it starts with BEGIN, lines end in LF.
func (a *Authority) CertificatePEM() []byte { return append([]byte(nil), a.pem...) }

// Certificate returns the CA's certificate, for the receipt and for pools.
func (a *Authority) Certificate() *x509.Certificate { return a.cert }

// Leaf returns the certificate for a host name or IP literal, minting it once.
// It fails with ErrLeafLimit or ErrDestroyed, or when host is neither.
func (a *Authority) Leaf(host string) (*tls.Certificate, error) {
	name, addr, err := parseSubject(host)
	if err != nil {
		return nil, err
	}
	e, err := a.entry(name)
	if err != nil {
		return nil, err
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	now := a.now()
	if e.cert != nil && now.Before(e.cert.Leaf.NotAfter.Add(-renewBefore)) {
		return e.cert, nil
	}
	cert, err := a.mint(name, addr, now)
	if err != nil {
		return nil, err
	}
	e.cert = cert
	return cert, nil
}

// Destroy drops the keys: every later Leaf fails.
func (a *Authority) Destroy() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.key, a.leaf, a.leaves = nil, nil, nil
}

// Destroyed reports whether the key is gone, for the receipt.
func (a *Authority) Destroyed() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.key == nil
}

// now is the run's clock, independent of steps of the wall clock.
func (a *Authority) now() time.Time { return a.created.Add(time.Since(a.created)) }

func (a *Authority) entry(name string) (*entry, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.key == nil {
		return nil, ErrDestroyed
	}
	if e, ok := a.leaves[name]; ok {
		return e, nil
	}
	if len(a.leaves) >= a.limit {
		return nil, boundError{a.limit}
	}
	e := new(entry)
	a.leaves[name] = e
	return e, nil
}

func (a *Authority) keys() (authority, leaf *ecdsa.PrivateKey, err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.key == nil {
		return nil, nil, ErrDestroyed
	}
	return a.key, a.leaf, nil
}

func (a *Authority) mint(name string, addr netip.Addr, now time.Time) (*tls.Certificate, error) {
	key, leafKey, err := a.keys()
	if err != nil {
		return nil, err
	}
	serial, err := newSerial()
	if err != nil {
		return nil, err
	}
	template := leafTemplate(name, addr)
	template.SerialNumber = serial
	// .NET refuses a leaf that is older than its CA, so it begins with it.
	template.NotBefore = a.cert.NotBefore
	template.NotAfter = earlier(now.Add(leafAge), a.cert.NotAfter)
	der, err := x509.CreateCertificate(rand.Reader, template, a.cert, leafKey.Public(), key)
	if err != nil {
		return nil, fmt.Errorf("signing the leaf for %s: %w", name, err)
	}
	leaf, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, fmt.Errorf("parsing the leaf for %s: %w", name, err)
	}
	return &tls.Certificate{Certificate: [][]byte{der}, PrivateKey: leafKey, Leaf: leaf}, nil
}

func leafTemplate(name string, addr netip.Addr) *x509.Certificate {
	template := &x509.Certificate{
		KeyUsage:              x509.KeyUsageDigitalSignature,
		ExtKeyUsage:           []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
		BasicConstraintsValid: true,
	}
	// With an empty subject crypto/x509 marks the SAN critical, as RFC 5280 demands.
	if len(name) <= maxCommon {
		template.Subject = pkix.Name{CommonName: name}
	}
	if addr.IsValid() {
		template.IPAddresses = append(template.IPAddresses, addr.AsSlice())
	} else {
		template.DNSNames = []string{name}
	}
	return template
}

func earlier(a, b time.Time) time.Time {
	if a.Before(b) {
		return a
	}
	return b
}

// parseSubject brings a host into the form that keys the cache. The name comes
// from a ClientHello, so it is checked even though callers parse it as well.
func parseSubject(host string) (string, netip.Addr, error) {
	if addr, err := netip.ParseAddr(strings.Trim(host, "[]")); err == nil {
		addr = addr.WithZone("").Unmap()
		return addr.String(), addr, nil
	}
	name := strings.ToLower(strings.TrimSuffix(host, "."))
	if name == "" || len(name) > 253 {
		return "", netip.Addr{}, fmt.Errorf("minting a leaf: %d bytes are no host name", len(name))
	}
	for label := range strings.SplitSeq(name, ".") {
		if label == "" || len(label) > 63 || strings.Trim(label, "abcdefghijklmnopqrstuvwxyz0123456789-_") != "" {
			return "", netip.Addr{}, fmt.Errorf("minting a leaf: %q is no host name", host)
		}
	}
	return name, netip.Addr{}, nil
}
