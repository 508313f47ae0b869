package cli

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	sbx "github.com/fractalboxdev/sbx"
	"github.com/fractalboxdev/sbx/internal/egress"
	"github.com/fractalboxdev/sbx/internal/event"
	"github.com/fractalboxdev/sbx/internal/grant"
	"github.com/fractalboxdev/sbx/internal/pki"
	"github.com/fractalboxdev/sbx/internal/profile"
	"github.com/fractalboxdev/sbx/internal/proxy"
	"github.com/fractalboxdev/sbx/internal/secret"
)

// asked is one request, as a person would name it to explain and a program would make
// it inside.
type asked struct {
	method, scheme, host, target string
	kind, encoding               string // of the body
	body                         []byte
	chunked                      bool
}

// FuzzExplain: what explain says is what the proxy does. For any profile text and any
// request, the verdict, code and rule that "sbx explain" computes are those that a
// proxy under the same grant records, and it does them: what is denied gets the status
// that explain names and nothing is dialled, what is allowed arrives at the very host
// and port that were asked for.
//
// Left out is what explain cannot be asked: messages that are malformed as such, and a
// body without a length of which nothing comes. For a body whose size the proxy learns
// on the way, several rules may take it; the one that takes most is recorded, explain
// names the first that fits.
func FuzzExplain(f *testing.F) {
	w := newExplained(f)
	const rules = "[profiles.x-a]\nversion = 1\nsummary = 's'\n[[profiles.x-a.rules]]\nid = 'r'\nhost = 'a.test'\nprotocol = ['https', 'http']\nmethods = ['GET', 'POST']\npath = '/api/**'\nmax_body = 30\nallow = ['GET /api/x']\ndeny = ['GET /x']\n" +
		"[[profiles.x-a.rules]]\nid = 'j'\nhost = 'a.test'\nmethods = ['POST']\npath = '/json'\nquery = { v = '1' }\nmax_body = '2MiB'\nbody = { json = [{ pointer = '/a', equals = 'b' }] }\nallow = ['POST /json?v=1']\n" +
		"[[profiles.x-a.rules]]\nid = 's'\nhost = '*.a.test'\nmethods = ['PUT']\npath = '/*/{hex32}/'\nencoded_slash = true\nmax_body = '3MiB'\nupload_budget = { bytes = 40 }\nallow = ['PUT https://b.a.test/x/0123456789abcdef0123456789abcdef/']\n"
	f.Add(rules, "GET", false, "a.test", "/api/x?y", "", "", []byte(nil), false)
	f.Add(rules, "POST", true, "a.test", "/api/x", "text/plain", "gzip", []byte("not gzip"), false)
	f.Add(rules, "POST", false, "A.test.", "/json?v=1", "application/json", "", []byte(`{"a":"b"}`), true)
	f.Add(rules, "POST", false, "a.test", "/json?v=1&v=2", "application/json", "identity", []byte(`{"a":"b"}`), false)
	f.Add(rules, "PUT", false, "b.a.test", "/x%2fy/0123456789abcdef0123456789abcdef/", "", "br", []byte("\x0b\x02\x80hello\x03"), true)
	f.Add(rules, "PUT", false, "b.a.test", "/x/0123456789abcdef0123456789abcdef/", "", "", bytes.Repeat([]byte("x"), 50), false)
	f.Add(rules, "GET", false, "gist.github.com", "/", "", "", []byte(nil), false)
	f.Add(sbx.BuiltinProfiles, "POST", false, "github.com", "/acme/widget.git/git-upload-pack", "application/x-git-upload-pack-request", "", []byte("0000"), false)
	f.Add(sbx.BuiltinProfiles, "GET", false, "npm.test", "/@types%2fnode", "", "", []byte(nil), false)
	f.Add(sbx.BuiltinProfiles, "PUT", false, "api.cloudflare.com", "/client/v4/accounts/0123456789abcdef0123456789abcdef/workers/scripts/x", "", "", []byte("x"), true)
	f.Fuzz(func(t *testing.T, text, method string, plain bool, host, target, kind, encoding string, body []byte, chunked bool) {
		a := asked{method, "https", host, target, kind, encoding, body, chunked}
		if plain {
			a.scheme = "http"
		}
		if g, ok := someGrant(text); ok && a.expressible() {
			w.check(t, g, a)
		}
	})
}

// someGrant is the grant of all profiles of a text, with inputs and endpoints made up.
func someGrant(text string) (grant.Grant, bool) {
	set, err := profile.Parse(text, "f.toml")
	if err != nil {
		return grant.Grant{}, false
	}
	inputs := map[string]string{}
	for _, name := range set.Names() {
		p, err := set.Get(name)
		if err != nil {
			return grant.Grant{}, false
		}
		for _, in := range p.Inputs {
			inputs[in.Name] = map[profile.InputKind]string{profile.KindRepo: "acme/widget", profile.KindFlag: "true", profile.KindHost: "target.test"}[in.Kind]
		}
	}
	g, err := set.Resolve(set.Names(), inputs, func(ecosystem string) ([]grant.Endpoint, error) {
		h, err := egress.ParseHost(ecosystem + ".test")
		return []grant.Endpoint{{Ecosystem: ecosystem, URL: "https://" + ecosystem + ".test", Endpoint: egress.Endpoint{Protocol: egress.ProtocolHTTPS, Host: h, Port: 443}}}, err
	})
	return g, err == nil
}

// expressible reports whether the request is a message as it should be.
func (a asked) expressible() bool {
	token := a.method != "" && len(a.method) <= 32 && strings.Trim(a.method, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-") == ""
	field := !strings.ContainsFunc(a.kind+a.encoding+a.host, func(r rune) bool { return r < ' ' && r != '\t' || r == 0x7f })
	return token && field && a.method != "CONNECT" && len(a.target) < 16<<10 && strings.HasPrefix(a.target, "/") && !strings.ContainsAny(a.host, "@/?#\\") &&
		len(a.kind)+len(a.encoding)+len(a.host) < 16<<10 && len(a.body) < 1<<20 && (!a.chunked || len(a.body) > 0)
}

// explained is a real proxy with both of its sides in memory.
type explained struct {
	run, up  *pki.Authority
	trust    *tls.Config // towards upstreams
	mu       sync.Mutex
	dialled  []string // host:port
	requests []event.Request
	done     int
	changed  sync.Cond
}

func newExplained(f *testing.F) *explained {
	w := &explained{}
	w.changed.L = &w.mu
	var err error
	if w.run, err = pki.NewAuthority(time.Now()); err != nil {
		f.Fatal(err)
	}
	if w.up, err = pki.NewAuthority(time.Now()); err != nil {
		f.Fatal(err)
	}
	roots := x509.NewCertPool()
	roots.AddCert(w.up.Certificate())
	w.trust = &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12}
	return w
}

// Record keeps a row.
func (w *explained) Record(r event.Request) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.requests = append(w.requests, r)
	return nil
}

// Complete counts.
func (w *explained) Complete(event.Completion) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.done++
	w.changed.Broadcast()
}

// dial is the world: every host is there, reads its request and says yes.
func (w *explained) dial(_ context.Context, h egress.Host, port uint16, _ egress.AddressAllowance) (net.Conn, error) {
	w.mu.Lock()
	w.dialled = append(w.dialled, fmt.Sprintf("%s:%d", h, port))
	w.mu.Unlock()
	ours, theirs := net.Pipe()
	go func() {
		defer theirs.Close()
		br := bufio.NewReader(theirs)
		c := theirs
		if first, err := br.Peek(1); err == nil && first[0] == 0x16 {
			leaf, err := w.up.Leaf(h.String())
			if err != nil {
				return
			}
			c = tls.Server(&peeked{theirs, br}, &tls.Config{Certificates: []tls.Certificate{*leaf}})
			br = bufio.NewReader(c)
		}
		req, err := http.ReadRequest(br)
		if err != nil {
			return
		}
		if _, err := io.Copy(io.Discard, req.Body); err == nil {
			_, _ = io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
		}
	}()
	return addressed{ours}, nil
}

// addressed has the address that a pipe lacks.
type addressed struct{ net.Conn }

// RemoteAddr is one of documentation.
func (addressed) RemoteAddr() net.Addr { return &net.TCPAddr{IP: net.IPv4(192, 0, 2, 1), Port: 1} }

type peeked struct {
	net.Conn
	br *bufio.Reader
}

// Read drains what was read ahead.
func (p *peeked) Read(b []byte) (int, error) { return p.br.Read(b) }

// pipes is a listener of connections in memory.
type pipes struct {
	conns chan net.Conn
	once  sync.Once
	done  chan struct{}
}

// Accept waits for the next one.
func (p *pipes) Accept() (net.Conn, error) {
	select {
	case c := <-p.conns:
		return c, nil
	case <-p.done:
		return nil, net.ErrClosed
	}
}

// Close ends Accept.
func (p *pipes) Close() error { p.once.Do(func() { close(p.done) }); return nil }

// Addr is none.
func (p *pipes) Addr() net.Addr { return &net.TCPAddr{} }

// do sends the request through a new proxy under the grant, and returns the status that
// the client saw with the rows.
func (w *explained) do(t *testing.T, g grant.Grant, a asked, req egress.Request) (int, []event.Request, []string) {
	w.mu.Lock()
	w.dialled, w.requests, w.done = nil, nil, 0
	w.mu.Unlock()
	s := proxy.New(proxy.Config{
		Recorder: w, Certificate: w.run.Leaf, Dial: w.dial, UpstreamTLS: w.trust, Credentials: someCredentials(t, g),
		NameOf: func(netip.Addr) (string, bool) { return req.Host.String(), true },
	})
	s.Apply(g.Policy())
	l := &pipes{conns: make(chan net.Conn), done: make(chan struct{})}
	served := make(chan struct{})
	go func() {
		defer close(served)
		_ = s.Serve(l, func(net.Conn) (netip.AddrPort, error) {
			return netip.AddrPortFrom(netip.MustParseAddr("198.18.1.1"), req.Port), nil
		})
	}()
	ours, theirs := net.Pipe()
	l.conns <- theirs
	_ = ours.SetDeadline(time.Now().Add(20 * time.Second))
	status := a.send(ours, req)
	_ = ours.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	if err := s.Close(ctx); err != nil {
		t.Fatal(err)
	}
	<-served
	w.mu.Lock()
	defer w.mu.Unlock()
	return status, slices.Clone(w.requests), slices.Clone(w.dialled)
}

func someCredentials(t *testing.T, g grant.Grant) map[string]proxy.Credential {
	value, err := secret.Parse("a value that nobody else has")
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]proxy.Credential{}
	for _, c := range g.Credentials() {
		out[c.Name] = proxy.Credential{
			Secret: c.SecretName(), Value: value, Required: c.Required, Hosts: g.CredentialHosts(c.Name), Header: c.Header, Template: c.Template,
			Basic: c.Basic, Username: c.Username, QueryKey: c.QueryKey,
		}
	}
	return out
}

// send makes the request and returns the status of its answer, 0 for none.
func (a asked) send(c net.Conn, req egress.Request) int {
	raw := c // closing TLS would wait for a reader
	if a.scheme == "https" {
		name := req.Host.String()
		if _, literal := req.Host.Addr(); literal {
			name = ""
		}
		c = tls.Client(c, &tls.Config{ServerName: name, InsecureSkipVerify: true})
	}
	var b bytes.Buffer
	fmt.Fprintf(&b, "%s %s HTTP/1.1\r\nHost: %s\r\n", a.method, a.target, a.host)
	if a.kind != "" {
		fmt.Fprintf(&b, "Content-Type: %s\r\n", a.kind)
	}
	if a.encoding != "" {
		fmt.Fprintf(&b, "Content-Encoding: %s\r\n", a.encoding)
	}
	switch {
	case a.chunked:
		fmt.Fprintf(&b, "Transfer-Encoding: chunked\r\n\r\n%x\r\n%s\r\n0\r\n\r\n", len(a.body), a.body)
	case len(a.body) > 0:
		fmt.Fprintf(&b, "Content-Length: %d\r\n\r\n%s", len(a.body), a.body)
	default:
		b.WriteString("\r\n")
	}
	written := make(chan struct{})
	go func() {
		defer close(written)
		_, _ = c.Write(b.Bytes())
	}()
	resp, err := http.ReadResponse(bufio.NewReader(c), &http.Request{Method: a.method})
	status := 0
	if err == nil {
		status = resp.StatusCode
		_, _ = io.Copy(io.Discard, resp.Body)
		_ = resp.Body.Close()
	}
	_ = raw.Close()
	<-written
	return status
}

func isSize(c egress.Code) bool { return c == egress.CodeBodyTooLarge || c == egress.CodeBodyEncoding }

func (w *explained) check(t *testing.T, g grant.Grant, a asked) {
	req, err := egress.ParseURL(a.scheme + "://" + a.host + a.target)
	if err != nil {
		return
	}
	req.Method, req.BodyLength = a.method, int64(len(a.body))
	if p := g.Policy(); p.Unopened(req.Host) != nil {
		return // a connection, not a request, is what is judged there
	}
	x := explainDecision(req, judgeAsked(g.Policy(), req, append([]byte{}, a.body...), a.encoding, a.kind))
	status, rows, dialled := w.do(t, g, a, req)
	if len(rows) == 0 {
		t.Fatalf("%+v: no row; explain says %+v", a, x)
	}
	row := rows[len(rows)-1] // a later row takes the first one back
	if row.Code == string(egress.CodeMalformed) {
		return
	}
	coded := a.encoding != "" && isSize(x.Code) && isSize(egress.Code(row.Code)) // in pieces, another fault may come first
	if row.Verdict != x.Verdict || row.Code != string(x.Code) && !coded {
		t.Fatalf("%+v: explain says %s %s %s, the proxy %s %s %s", a, x.Verdict, x.Code, x.Reason, row.Verdict, row.Code, row.Reason)
	}
	if rule := x.Rule + x.Nearest; row.Rule != rule && !a.chunked && a.encoding == "" {
		t.Fatalf("%+v: explain names the rule %s, the proxy %s", a, rule, row.Rule)
	}
	if row.Host != req.Host.String() || row.Port != req.Port || row.Method != a.method {
		t.Fatalf("%+v: the row is about another request: %+v", a, row)
	}
	want := fmt.Sprintf("%s:%d", req.Host, req.Port)
	switch {
	case x.Verdict == verdictAllow && (status != 200 || len(dialled) != 1 || dialled[0] != want):
		t.Fatalf("%+v: allowed, but status %d, dialled %v", a, status, dialled)
	case x.Verdict == verdictDeny && len(rows) == 1 && (status != x.Status || len(dialled) != 0):
		t.Fatalf("%+v: explain says status %d, the client saw %d, dialled %v", a, x.Status, status, dialled)
	case x.Verdict == verdictDeny && status == 200:
		t.Fatalf("%+v: denied, and served", a)
	}
}
