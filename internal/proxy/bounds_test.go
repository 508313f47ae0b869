package proxy_test

import (
	"bufio"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/andybalholm/brotli"

	"github.com/fractalboxdev/sbx/internal/egress"
)

// What one connection may hold is little; many of them are counted together.
func TestHTTP2RequestsAreBoundedOverAllConnections(t *testing.T) {
	w := newWorld(t, func(c *proxyConfig) { c.Limits.Streams = 5 })
	release := make(chan struct{})
	port := w.origin(func(rw http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/hang" {
			<-release
		}
		hello(rw, r)
	}, false, "good.test")
	w.grant(rule(t, "good.test", port, "GET", "/**"))
	good := fmt.Sprintf("good.test:%d", port)
	var conns []*rawH2
	for range 6 {
		conns = append(conns, w.rawH2("good.test", port))
	}
	ask := func(c *rawH2, path string) uint32 {
		return c.headers(t, true, ":method", "GET", ":scheme", "https", ":authority", good, ":path", path)
	}
	var held []uint32
	for i := range 5 {
		held = append(held, ask(conns[i], "/hang"))
		w.rows.recorded(i + 1)
	}
	if got := conns[5].result(ask(conns[5], "/x")); got != "|RST REFUSED_STREAM" {
		t.Errorf("the sixth request: %q", got)
	}
	if row := w.rows.recorded(6)[5]; row.Code != "bound-streams" || row.Verdict != "deny" || row.Method != "GET" || row.Path != "/x" || row.Host != "good.test" {
		t.Errorf("%+v", row)
	}
	close(release)
	for i, id := range held {
		if got := conns[i].result(id); got != "200 hello GET /hang" {
			t.Errorf("request %d: %q", i, got)
		}
	}
	w.rows.completed(5)
	if got := conns[5].result(ask(conns[5], "/y")); got != "200 hello GET /y" {
		t.Errorf("afterwards: %q", got)
	}
}

func TestHeadsAreBoundedOverAllConnections(t *testing.T) {
	w := newWorld(t, func(c *proxyConfig) { c.Limits.HeadBytes = 10_000 })
	release := make(chan struct{})
	port := w.origin(func(http.ResponseWriter, *http.Request) { <-release }, false, "good.test")
	w.grant(rule(t, "good.test", port, "GET", "/**"))
	defer close(release)
	good, large := fmt.Sprintf("good.test:%d", port), strings.Repeat("a", 4000)
	c2 := w.rawH2("good.test", port)
	c2.headers(t, true, ":method", "GET", ":scheme", "https", ":authority", good, ":path", "/x", "x-large", large)
	w.rows.recorded(1)
	text := fmt.Sprintf("GET /x HTTP/1.1\r\nHost: %s\r\nX-Large: %s\r\n\r\n", good, large)
	fmt.Fprint(w.rawTLS("good.test", "good.test", port), text)
	w.rows.recorded(2)

	c1 := w.rawTLS("good.test", "good.test", port)
	fmt.Fprint(c1, text)
	if got := readAnswer(bufio.NewReader(c1), "GET"); got.status != 403 || got.body != "sbx: bound-heads\n" {
		t.Errorf("HTTP/1: %+v", got)
	}
	id := c2.headers(t, true, ":method", "GET", ":scheme", "https", ":authority", good, ":path", "/x", "x-large", large)
	if got := c2.result(id); got != "|RST REFUSED_STREAM" {
		t.Errorf("HTTP/2: %q", got)
	}
	for _, row := range w.rows.recorded(4)[2:] {
		if row.Code != "bound-heads" || row.Verdict != "deny" || row.Path != "/x" {
			t.Errorf("%+v", row)
		}
	}
}

// Bodies that wait for their turn are held, whether or not they are judged whole.
func TestWaitingBodiesAreBoundedOverAllConnections(t *testing.T) {
	release := make(chan struct{})
	w := newWorld(t, func(c *proxyConfig) {
		c.Limits.BufferedBytes = 100_000
		vet := c.Vet
		c.Vet = func(ctx context.Context, h egress.Host, port uint16, a egress.AddressAllowance) error {
			<-release
			return vet(ctx, h, port, a)
		}
	})
	port := w.origin(func(rw http.ResponseWriter, r *http.Request) { _, _ = io.Copy(rw, r.Body) }, false, "good.test")
	w.grant(rule(t, "good.test", port, "POST", "/**", maxBody(8<<20)))
	good := fmt.Sprintf("good.test:%d", port)
	c := w.rawH2("good.test", port)
	post := func() uint32 {
		id := c.headers(t, false, ":method", "POST", ":scheme", "https", ":authority", good, ":path", "/x")
		for range 4 {
			if err := c.fr.WriteData(id, false, make([]byte, 15_000)); err != nil {
				t.Fatal(err)
			}
		}
		return id
	}
	first, second := post(), post()
	if got := c.result(second); got != "|RST ENHANCE_YOUR_CALM" {
		t.Errorf("what is too much: %q", got)
	}
	close(release)
	if err := c.fr.WriteData(first, true, nil); err != nil {
		t.Fatal(err)
	}
	if got := c.result(first); !strings.HasPrefix(got, "200") || len(got) < 60_000 {
		t.Errorf("what was there before: %.60q", got)
	}
	w.rows.completed(2)
	var codes []string
	for _, row := range w.rows.all() {
		codes = append(codes, row.Code)
	}
	if got := strings.Join(codes, " "); strings.Count(got, "bound-bodies") != 1 {
		t.Errorf("%s", got)
	}
}

// What decoders of searched responses hold is counted over all connections: who finds
// no room waits for a while, and is refused then.
func TestSearchedResponsesAreBoundedOverAllConnections(t *testing.T) {
	const each = 17 << 20 // what one may take with br, about
	for wait, ends := range map[time.Duration]bool{100 * time.Millisecond: false, 20 * time.Second: true} {
		w := newWorld(t, credential(t, token), func(c *proxyConfig) { c.Limits.SearchedBytes, c.Limits.SearchWait = 2*each, wait })
		release := make(chan struct{})
		port := w.origin(func(rw http.ResponseWriter, r *http.Request) {
			rw.Header().Set("Content-Encoding", "br")
			rw.WriteHeader(200)
			e := brotli.NewWriter(rw)
			fmt.Fprint(e, "hello ")
			_ = errors.Join(e.Flush(), http.NewResponseController(rw).Flush())
			if r.URL.Path == "/hang" {
				<-release
			}
			_ = e.Close()
		}, false, "a.test")
		w.grant(rule(t, "a.test", port, "GET", "/**", sends))
		var held sync.WaitGroup
		for range 2 {
			held.Go(func() {
				if got := w.do(w.client(transparentH2), "GET", urlFor("https", "a.test", port, "/hang"), ""); got.status != 200 || got.err != nil {
					t.Errorf("one that was there before: %d %v", got.status, got.err)
				}
			})
		}
		w.rows.recorded(2)
		time.Sleep(100 * time.Millisecond) // until their bodies are searched
		if ends {
			time.AfterFunc(100*time.Millisecond, func() { close(release) })
		}
		got := w.do(w.client(transparent), "GET", urlFor("https", "a.test", port, "/x"), "")
		if ends && got.status != 200 || !ends && (got.status != 403 || got.body != "sbx: bound-responses test/get\n") {
			t.Errorf("waiting for %v: %d %q %v", wait, got.status, got.body, got.err)
		}
		if !ends {
			if row := w.rows.recorded(4)[3]; row.Code != "bound-responses" || row.Verdict != "deny" || row.ID == 0 {
				t.Errorf("%+v", row)
			}
			close(release)
		}
		held.Wait()
		w.rows.completed(3)
		if got := w.do(w.client(transparent), "GET", urlFor("https", "a.test", port, "/x"), ""); got.status != 200 {
			t.Errorf("afterwards: %d %q", got.status, got.body)
		}
	}
}

// A server that answers twice at once must not have its second answer taken for that
// to the next request: it may lie decrypted inside of the TLS connection.
func TestEarlySecondAnswersSpoilNothing(t *testing.T) {
	w := newWorld(t)
	leaf, err := w.up.Leaf("ok.test")
	if err != nil {
		t.Fatal(err)
	}
	port := w.rawOrigin("", func(raw net.Conn, rawReader *bufio.Reader) {
		c := tls.Server(&readerConn{Conn: raw, r: rawReader}, &tls.Config{Certificates: []tls.Certificate{*leaf}, DynamicRecordSizingDisabled: true})
		br := bufio.NewReader(c)
		for head := readRequest(br); head != ""; head = readRequest(br) {
			if strings.Contains(head, "/next") {
				_, _ = io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\nhonest")
				continue
			}
			// The end of the body comes in a record of its own, larger than what is read ahead.
			_, _ = io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Length: 10000\r\n\r\n"+strings.Repeat("a", 1000))
			_, _ = io.WriteString(c, strings.Repeat("b", 9000)+"HTTP/1.1 200 OK\r\nContent-Length: 7\r\n\r\nspoiled")
		}
	})
	w.grant(rule(t, "ok.test", port, "GET", "/**"))
	c := w.client(transparent)
	for range 3 {
		if got := w.do(c, "GET", urlFor("https", "ok.test", port, "/first"), ""); len(got.body) != 10_000 {
			t.Fatalf("%d bytes, %v", len(got.body), got.err)
		}
		if got := w.do(c, "GET", urlFor("https", "ok.test", port, "/next"), ""); got.body != "honest" {
			t.Errorf("%d %q %v", got.status, got.body, got.err)
		}
	}
}

// What is sent again leaves the host again.
func TestRetriesAreChargedToTheBudget(t *testing.T) {
	for name, budget := range map[string]egress.Budget{"requests": {Requests: 1}, "bytes": {Bytes: 6}} {
		w := newWorld(t)
		var tries atomic.Int64
		port := w.rawOrigin("", func(_ net.Conn, br *bufio.Reader) {
			if strings.Contains(readRequest(br), "/x") {
				_, _ = io.ReadFull(br, make([]byte, 4))
				tries.Add(1)
			}
		})
		w.grant(rule(t, "ok.test", port, "PUT", "/**", plainHTTP, maxBody(10), func(r *egress.Rule) { r.UploadBudget = budget }))
		got := w.do(w.client(transparent), "PUT", urlFor("http", "ok.test", port, "/x"), "body")
		if got.status != 502 || tries.Load() != 1 {
			t.Errorf("%s: %d after %d tries, %v", name, got.status, tries.Load(), got.err)
		}
		if got := w.do(w.client(transparent), "PUT", urlFor("http", "ok.test", port, "/x"), "body"); got.status != 403 || !strings.Contains(got.body, "upload-budget") {
			t.Errorf("%s: %d %q", name, got.status, got.body)
		}
	}
}

// Shared upstream connections that nobody uses any more are ended, so that a wildcard
// does not keep one for every name.
func TestIdleHTTP2UpstreamsAreBounded(t *testing.T) {
	w := newWorld(t, func(c *proxyConfig) { c.Limits.IdleUpstream = 3 })
	var names []string
	for i := range 12 {
		names = append(names, fmt.Sprintf("n%d.cdn.test", i))
	}
	var open, most atomic.Int64
	port := w.origin(hello, false, names...)
	counted := func(c *proxyConfig) {
		c.Limits.IdleUpstream = 3
		dial := c.Dial
		c.Dial = func(ctx context.Context, h egress.Host, port uint16, a egress.AddressAllowance) (net.Conn, error) {
			conn, err := dial(ctx, h, port, a)
			if err != nil {
				return nil, err
			}
			most.Store(max(most.Load(), open.Add(1)))
			return &closing{Conn: conn, closed: func() { open.Add(-1) }}, nil
		}
	}
	w2 := newWorld(t, counted, func(c *proxyConfig) { c.UpstreamTLS.RootCAs.AddCert(w.up.Certificate()) })
	w2.grant(rule(t, "*.cdn.test", port, "GET", "/**"))
	for _, name := range names {
		if got := w2.do(w2.client(transparentH2), "GET", urlFor("https", name, port, "/x"), ""); got.status != 200 {
			t.Fatalf("%s: %+v", name, got)
		}
	}
	w2.rows.completed(len(names))
	if n := most.Load(); n > 5 {
		t.Errorf("%d upstream connections were open at once", n)
	}
}

// closing tells when a connection is closed.
type closing struct {
	net.Conn
	once   sync.Once
	closed func()
}

func (c *closing) Close() error {
	c.once.Do(c.closed)
	return c.Conn.Close()
}
