package proxy_test

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/netip"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/fractalboxdev/sbx/internal/egress"
)

func TestStalePooledConnections(t *testing.T) {
	w := newWorld(t)
	var conns atomic.Int64
	port := w.rawOrigin("ok.test", func(c net.Conn, br *bufio.Reader) {
		conns.Add(1)
		if readRequest(br) != "" {
			fmt.Fprint(c, "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
			readRequest(br) // the second request of a connection is never answered
		}
	})
	w.grant(rule(t, "ok.test", port, "GET,POST", "/**", maxBody(10)))
	c := w.client(transparent)
	for i, method := range []string{"GET", "GET", "POST", "POST"} {
		if got := w.do(c, method, urlFor("https", "ok.test", port, "/x"), ""); got.status != 200 {
			t.Errorf("request %d: %d %q %v", i, got.status, got.body, got.err)
		}
	}
	if conns.Load() != 4 {
		t.Errorf("%d connections", conns.Load())
	}
}

func TestBrokenUpstreamsAreTriedAgain(t *testing.T) {
	w := newWorld(t)
	var tries atomic.Int64
	port := w.rawOrigin("", func(c net.Conn, br *bufio.Reader) {
		readRequest(br)
		if tries.Add(1) < 2 {
			return
		}
		fmt.Fprint(c, "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
	})
	w.grant(rule(t, "ok.test", port, "GET,POST", "/**", plainHTTP, maxBody(10)))
	c := w.client(transparent)
	if got := w.do(c, "GET", urlFor("http", "ok.test", port, "/x"), ""); got.status != 200 || tries.Load() != 2 {
		t.Errorf("GET: %d after %d tries, %v", got.status, tries.Load(), got.err)
	}
	if done := w.rows.completed(1)[0]; done.Attempts != 2 {
		t.Errorf("%+v", done)
	}
	tries.Store(-1)
	if got := w.do(c, "GET", urlFor("http", "ok.test", port, "/x"), ""); got.status != 502 || tries.Load() != 1 {
		t.Errorf("GET: %d after %d tries, %v", got.status, tries.Load(), got.err)
	}
	tries.Store(0)
	if got := w.do(c, "POST", urlFor("http", "ok.test", port, "/x"), "body"); got.status != 502 || tries.Load() != 1 {
		t.Errorf("POST: %d after %d tries, %v", got.status, tries.Load(), got.err)
	}
}

// charging answers GETs and, as a host that charges a card does, acts on a POST and
// then fails: it says the beginning of an answer and ends the connection.
func (w *world) charging(posts *atomic.Int64, said string, gets *sync.WaitGroup) uint16 {
	return w.rawOrigin("a.test", func(c net.Conn, br *bufio.Reader) {
		for head := readRequest(br); strings.HasPrefix(head, "GET"); head = readRequest(br) {
			if strings.Contains(head, "/fail") {
				posts.Add(1)
				fmt.Fprint(c, said)
				return
			}
			gets.Done()
			gets.Wait() // so that each has a connection of its own
			fmt.Fprint(c, "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
		}
		if _, err := io.ReadFull(br, make([]byte, 4)); err == nil {
			posts.Add(1)
			fmt.Fprint(c, said)
		}
	})
}

// A host that was asked something which is not idempotent is asked once, whatever
// connections were idle; an idempotent request leaves twice at most, and not again
// after any byte of an answer. Each attempt counts for the receipt.
func TestWhatMayHaveBeenActedOnIsNotRepeated(t *testing.T) {
	for _, c := range []struct {
		method, path, said string
		times              int64
	}{
		{"POST", "/pay", "", 1},
		{"POST", "/pay", "HTTP/1.1 200 OK\r\nX-Order: 1\r\n", 1},
		{"GET", "/fail", "", 2},
		{"GET", "/fail", "HTTP/1.1 200 OK\r\nX-Order: 1\r\n", 1},
		{"GET", "/fail", "H", 1},
	} {
		w := newWorld(t, credential(t, token))
		var posts atomic.Int64
		var gets, sent sync.WaitGroup
		gets.Add(3)
		port := w.charging(&posts, c.said, &gets)
		w.grant(rule(t, "a.test", port, "GET,POST", "/**", maxBody(10), sends))
		client := w.client(transparent)
		for range 3 {
			sent.Go(func() { w.do(client, "GET", urlFor("https", "a.test", port, "/g"), "") })
		}
		sent.Wait()
		body := ""
		if c.method == "POST" {
			body = "body"
		}
		got := w.do(client, c.method, urlFor("https", "a.test", port, c.path), body)
		if got.status != 502 || posts.Load() != c.times {
			t.Errorf("%s, %q: %d, and it reached the host %d times", c.method, c.said, got.status, posts.Load())
		}
		if n := w.server.Injected()["test/c"]; n != 3+c.times {
			t.Errorf("%s, %q: the secret left %d times", c.method, c.said, n)
		}
		for _, done := range w.rows.completed(4) {
			if done.Status == 502 && (done.Attempts != 0 && c.times == 1 || done.Sent != int64(len(body))) {
				t.Errorf("%s, %q: %+v", c.method, c.said, done)
			}
		}
	}
}

// Connections of requests that want one of their own do not add up.
func TestPostsLeaveOneIdleConnection(t *testing.T) {
	var open atomic.Int64
	w := newWorld(t, func(c *proxyConfig) {
		dial := c.Dial
		c.Dial = func(ctx context.Context, h egress.Host, port uint16, a egress.AddressAllowance) (net.Conn, error) {
			conn, err := dial(ctx, h, port, a)
			if err != nil {
				return nil, err
			}
			open.Add(1)
			return &closing{Conn: conn, closed: func() { open.Add(-1) }}, nil
		}
	})
	port := w.origin(hello, true)
	w.grant(rule(t, "a.test", port, "POST", "/**", plainHTTP, maxBody(10)))
	c := w.client(transparent)
	for range 5 {
		if got := w.do(c, "POST", urlFor("http", "a.test", port, "/x"), "body"); got.status != 200 {
			t.Fatalf("%d %v", got.status, got.err)
		}
	}
	if n := open.Load(); n != 1 {
		t.Errorf("%d upstream connections are open", n)
	}
}

func TestUnsentRequestsCarryNoSecret(t *testing.T) {
	for _, how := range []way{transparent, transparentH2} {
		w := newWorld(t, credential(t, token))
		l := listener(t)
		port := netip.MustParseAddrPort(l.Addr().String()).Port()
		_ = l.Close() // nobody listens there now
		w.grant(rule(t, "a.test", port, "GET", "/**", sends))
		if got := w.do(w.client(how), "GET", urlFor("https", "a.test", port, "/x"), ""); got.status != 502 {
			t.Errorf("%d %v", got.status, got.err)
		}
		if n := w.server.Injected()["test/c"]; n != 0 {
			t.Errorf("the secret left %d times", n)
		}
	}
}
