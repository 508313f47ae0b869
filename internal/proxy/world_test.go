package proxy_test

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"flag"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"net/url"
	"os"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/fractalboxdev/sbx/internal/egress"
	"github.com/fractalboxdev/sbx/internal/event"
	"github.com/fractalboxdev/sbx/internal/pki"
	"github.com/fractalboxdev/sbx/internal/proxy"
	"github.com/fractalboxdev/sbx/internal/resolver"
	"github.com/fractalboxdev/sbx/internal/upstream"
)

// TestMain fails when connections of the tests left goroutines behind.
func TestMain(m *testing.M) {
	before := runtime.NumGoroutine()
	code := m.Run()
	if flag.Lookup("test.fuzz").Value.String() != "" {
		os.Exit(code) // the fuzzer keeps goroutines of its own
	}
	deadline := time.Now().Add(10 * time.Second)
	for runtime.NumGoroutine() > before && time.Now().Before(deadline) {
		<-time.After(10 * time.Millisecond)
	}
	if n := runtime.NumGoroutine(); code == 0 && n > before {
		buf := make([]byte, 1<<20)
		fmt.Fprintf(os.Stderr, "%d goroutines before the tests, %d after:\n%s\n", before, n, buf[:runtime.Stack(buf, true)])
		code = 1
	}
	os.Exit(code)
}

// rows is a recorder in memory.
type rows struct {
	mu       sync.Mutex
	changed  sync.Cond
	requests []event.Request
	done     []event.Completion
	fail     error
}

func (r *rows) Record(req event.Request) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.fail != nil {
		return r.fail
	}
	r.requests = append(r.requests, req)
	r.changed.Broadcast()
	return nil
}

func (r *rows) Complete(c event.Completion) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.done = append(r.done, c)
	r.changed.Broadcast()
}

func (r *rows) all() []event.Request {
	r.mu.Lock()
	defer r.mu.Unlock()
	return append([]event.Request(nil), r.requests...)
}

// completed waits until n requests are complete.
func (r *rows) completed(n int) []event.Completion {
	r.mu.Lock()
	defer r.mu.Unlock()
	for len(r.done) < n {
		r.changed.Wait()
	}
	return append([]event.Completion(nil), r.done...)
}

// recorded waits until n rows are there.
func (r *rows) recorded(n int) []event.Request {
	r.mu.Lock()
	defer r.mu.Unlock()
	for len(r.requests) < n {
		r.changed.Wait()
	}
	return append([]event.Request(nil), r.requests...)
}

// world is a proxy with everything around it, on loopback.
type world struct {
	t        testing.TB
	rows     *rows
	server   *proxy.Server
	run, up  *pki.Authority
	names    *resolver.Resolver
	dials    *dialLog
	plain    net.Addr // the transparent listener
	explicit net.Addr

	mu      sync.Mutex
	arrived sync.Cond
	targets map[string]netip.AddrPort // by the client's local address
}

// dialLog counts what left, by host.
type dialLog struct {
	mu    sync.Mutex
	hosts map[string]int
}

func (d *dialLog) count(host string) int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.hosts[host]
}

type option func(*proxy.Config)

func newWorld(t testing.TB, options ...option) *world {
	t.Helper()
	w := &world{t: t, rows: &rows{}, names: resolver.New(resolver.Config{}), dials: &dialLog{hosts: map[string]int{}}, targets: map[string]netip.AddrPort{}}
	w.rows.changed.L = &w.rows.mu
	w.arrived.L = &w.mu
	w.run, w.up = authority(t), authority(t)
	roots := x509.NewCertPool()
	roots.AddCert(w.up.Certificate())
	d := upstream.New(upstream.Options{Lookup: func(context.Context, string) ([]netip.Addr, error) {
		return []netip.Addr{netip.MustParseAddr("127.0.0.1")}, nil
	}})
	cfg := proxy.Config{
		Run: "run-1", Recorder: w.rows, Certificate: w.run.Leaf, NameOf: w.names.NameOf, Vet: d.Vet,
		Dial: func(ctx context.Context, h egress.Host, port uint16, a egress.AddressAllowance) (net.Conn, error) {
			w.dials.mu.Lock()
			w.dials.hosts[h.String()]++
			w.dials.mu.Unlock()
			return d.Dial(ctx, h, port, a)
		},
		UpstreamTLS: &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12},
		Limits:      proxy.Limits{Sniff: 50 * time.Millisecond, Linger: 50 * time.Millisecond},
	}
	for _, o := range options {
		o(&cfg)
	}
	w.server = proxy.New(cfg)
	w.listen()
	return w
}

func authority(t testing.TB) *pki.Authority {
	t.Helper()
	a, err := pki.NewAuthority(time.Now())
	if err != nil {
		t.Fatal(err)
	}
	return a
}

func (w *world) listen() {
	transparent, explicit := listener(w.t), listener(w.t)
	w.plain, w.explicit = transparent.Addr(), explicit.Addr()
	var wg sync.WaitGroup
	wg.Go(func() { _ = w.server.Serve(transparent, w.original) })
	wg.Go(func() { _ = w.server.ServeExplicit(explicit) })
	w.t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
		defer cancel()
		if err := w.server.Close(ctx); err != nil {
			w.t.Error(err)
		}
		wg.Wait()
	})
}

func listener(t testing.TB) net.Listener {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	return l
}

// original stands in for the kernel's memory of redirected connections.
func (w *world) original(c net.Conn) (netip.AddrPort, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for {
		if dst, ok := w.targets[c.RemoteAddr().String()]; ok {
			return dst, nil
		}
		w.arrived.Wait()
	}
}

// dial connects as a program inside would: by name or address, redirected.
func (w *world) dial(ctx context.Context, host string, port uint16) (net.Conn, error) {
	addr, err := netip.ParseAddr(host)
	if err != nil {
		var ok bool
		if addr, ok = w.names.Bind(host); !ok {
			return nil, errors.New("no such host: " + host)
		}
	}
	c, err := (&net.Dialer{}).DialContext(ctx, "tcp", w.plain.String())
	if err != nil {
		return nil, err
	}
	w.mu.Lock()
	w.targets[c.LocalAddr().String()] = netip.AddrPortFrom(addr, port)
	w.arrived.Broadcast()
	w.mu.Unlock()
	return c, nil
}

// raw connects and fails the test when it cannot.
func (w *world) raw(host string, port uint16) net.Conn {
	w.t.Helper()
	c, err := w.dial(w.t.Context(), host, port)
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() { _ = c.Close() })
	_ = c.SetDeadline(time.Now().Add(5 * time.Second))
	return c
}

func (w *world) rawTLS(host, sni string, port uint16, protos ...string) *tls.Conn {
	w.t.Helper()
	t := tls.Client(w.raw(host, port), &tls.Config{ServerName: sni, RootCAs: w.roots(), NextProtos: protos, InsecureSkipVerify: sni == ""})
	if err := t.HandshakeContext(w.t.Context()); err != nil {
		w.t.Fatal(err)
	}
	return t
}

func (w *world) roots() *x509.CertPool {
	pool := x509.NewCertPool()
	pool.AddCert(w.run.Certificate())
	return pool
}

// way is one of the ways in which programs reach the proxy.
type way int

const (
	transparent way = iota
	transparentH2
	explicit
	explicitH2
)

var ways = map[string]way{"transparent": transparent, "transparent h2": transparentH2, "explicit": explicit, "explicit h2": explicitH2}

func (w *world) client(how way) *http.Client {
	t := &http.Transport{
		DisableCompression: true,
		TLSClientConfig:    &tls.Config{RootCAs: w.roots()},
		ForceAttemptHTTP2:  how == transparentH2 || how == explicitH2,
	}
	if how == transparent || how == transparentH2 {
		t.DialContext = func(ctx context.Context, _, address string) (net.Conn, error) {
			host, port, err := net.SplitHostPort(address)
			if err != nil {
				return nil, err
			}
			n, err := strconv.ParseUint(port, 10, 16)
			if err != nil {
				return nil, err
			}
			return w.dial(ctx, host, uint16(n))
		}
	} else {
		t.Proxy = http.ProxyURL(&url.URL{Scheme: "http", Host: w.explicit.String()})
	}
	w.t.Cleanup(t.CloseIdleConnections)
	return &http.Client{Transport: t, Timeout: 20 * time.Second, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
}

// answer is a response read to its end.
type answer struct {
	status int
	reason string
	header http.Header
	body   string
	err    error
}

func (w *world) do(c *http.Client, method, url, body string, header ...string) answer {
	w.t.Helper()
	var r io.Reader
	if body != "" {
		r = strings.NewReader(body)
	}
	req, err := http.NewRequestWithContext(w.t.Context(), method, url, r)
	if err != nil {
		w.t.Fatal(err)
	}
	for i := 0; i+1 < len(header); i += 2 {
		req.Header.Add(header[i], header[i+1])
	}
	resp, err := c.Do(req)
	if err != nil {
		return answer{err: err}
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	return answer{resp.StatusCode, resp.Status, resp.Header, string(b), err}
}

// rule makes a rule for https on one host and port; f changes it.
func rule(t testing.TB, host string, port uint16, methods, path string, f ...func(*egress.Rule)) egress.Rule {
	t.Helper()
	h, err := egress.ParseHostPattern(host)
	if err != nil {
		t.Fatal(err)
	}
	p, err := egress.ParsePathPattern(path, true)
	if err != nil {
		t.Fatal(err)
	}
	r := egress.Rule{
		ID: "test/" + strings.ToLower(methods), Protocol: egress.ProtocolHTTPS, Host: h, Ports: []uint16{port},
		Methods: strings.Split(methods, ","), Path: p, Internal: true, EncodedSlash: true,
	}
	for _, change := range f {
		change(&r)
	}
	return r
}

func plainHTTP(r *egress.Rule) { r.Protocol = egress.ProtocolHTTP }
func preserve(r *egress.Rule)  { r.Headers = egress.HeadersPreserve }
func follow(r *egress.Rule)    { r.Redirects = egress.RedirectFollow }
func maxBody(n int64) func(*egress.Rule) {
	return func(r *egress.Rule) { r.MaxBody = n }
}

func tcp(r *egress.Rule) {
	r.Protocol, r.Methods, r.Path = egress.ProtocolTCP, nil, egress.PathPattern{}
}

func tunnel(r *egress.Rule) { r.Tunnel, r.Methods, r.Path = true, nil, egress.PathPattern{} }

func (w *world) grant(rules ...egress.Rule) {
	w.t.Helper()
	p, err := egress.Compile(rules, nil)
	if err != nil {
		w.t.Fatal(err)
	}
	w.server.Apply(p)
}

// origin runs an HTTP server with a certificate for names, over TLS unless plain.
func (w *world) origin(h http.HandlerFunc, plain bool, names ...string) uint16 {
	w.t.Helper()
	s := httptest.NewUnstartedServer(h)
	s.EnableHTTP2 = true
	s.Config.ErrorLog = log.New(io.Discard, "", 0)
	if plain {
		s.Start()
	} else {
		s.TLS = &tls.Config{MinVersion: tls.VersionTLS12}
		for _, name := range names {
			leaf, err := w.up.Leaf(name)
			if err != nil {
				w.t.Fatal(err)
			}
			s.TLS.Certificates = append(s.TLS.Certificates, *leaf)
		}
		s.StartTLS()
	}
	w.t.Cleanup(func() { s.CloseClientConnections(); s.Close() })
	return netip.MustParseAddrPort(s.Listener.Addr().String()).Port()
}

// rawOrigin answers each connection with f, over TLS when name is not empty.
func (w *world) rawOrigin(name string, f func(c net.Conn, br *bufio.Reader)) uint16 {
	w.t.Helper()
	l := listener(w.t)
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			wg.Go(func() {
				defer c.Close()
				defer context.AfterFunc(ctx, func() { _ = c.Close() })()
				_ = c.SetDeadline(time.Now().Add(30 * time.Second))
				if name != "" {
					leaf, err := w.up.Leaf(name)
					if err != nil {
						return
					}
					c = tls.Server(c, &tls.Config{Certificates: []tls.Certificate{*leaf}})
				}
				f(c, bufio.NewReader(c))
			})
		}
	})
	w.t.Cleanup(func() { _ = l.Close(); cancel(); wg.Wait() })
	return netip.MustParseAddrPort(l.Addr().String()).Port()
}

// readRequest reads one raw request head, with the line endings.
func readRequest(br *bufio.Reader) string {
	var b bytes.Buffer
	for {
		line, err := br.ReadString('\n')
		b.WriteString(line)
		if err != nil || line == "\r\n" {
			return b.String()
		}
	}
}

// readAnswer reads one response to method.
func readAnswer(br *bufio.Reader, method string) answer {
	resp, err := http.ReadResponse(br, &http.Request{Method: method})
	if err != nil {
		return answer{err: err}
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	return answer{resp.StatusCode, resp.Status, resp.Header, string(b), err}
}

func urlFor(scheme, host string, port uint16, path string) string {
	return fmt.Sprintf("%s://%s:%d%s", scheme, host, port, path)
}

// exchangeRaw writes text and returns all that comes back until the end.
func exchangeRaw(t testing.TB, c net.Conn, text string) string {
	t.Helper()
	go func() { _, _ = io.WriteString(c, text) }()
	b, _ := io.ReadAll(c)
	return string(b)
}

type proxyConfig = proxy.Config

// tlsClientWithoutTrust makes a handshake that only knows other authorities.
func tlsClientWithoutTrust(c net.Conn, host string) error {
	t := tls.Client(c, &tls.Config{ServerName: host, RootCAs: x509.NewCertPool()})
	return t.HandshakeContext(context.Background())
}
