package proxy_test

import (
	"bufio"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"strings"
	"testing"

	"github.com/fractalboxdev/sbx/internal/egress"
)

func TestCase61_TCPRule(t *testing.T) {
	w := newWorld(t)
	port := w.rawOrigin("", func(c net.Conn, br *bufio.Reader) {
		_, _ = io.WriteString(c, "220 ready\r\n") // the server speaks first
		line, _ := br.ReadString('\n')
		_, _ = io.WriteString(c, "got "+line)
	})
	w.grant(rule(t, "mail.test", port, "", "/", tcp))
	for name, c := range map[string]net.Conn{"redirected": w.raw("mail.test", port), "CONNECT": w.connect("mail.test", port)} {
		br := bufio.NewReader(c)
		if banner, err := br.ReadString('\n'); banner != "220 ready\r\n" {
			t.Fatalf("%s: %q %v", name, banner, err)
		}
		fmt.Fprint(c, "HELO x\r\n")
		if b, err := io.ReadAll(br); string(b) != "got HELO x\r\n" || err != nil {
			t.Errorf("%s: %q %v", name, b, err)
		}
		_ = c.Close()
	}
	for _, row := range w.rows.all() {
		if row.Verdict != "allow" || row.Protocol != "tcp" || row.Host != "mail.test" {
			t.Errorf("%+v", row)
		}
	}
	for _, done := range w.rows.completed(2) {
		if done.Sent != 8 || done.Received != 23 || done.Error != "" {
			t.Errorf("%+v", done)
		}
	}
}

func TestTCPRuleKeepsTheGuard(t *testing.T) {
	w := newWorld(t)
	w.grant(rule(t, "mail.test", 25, "", "/", tcp, func(r *egress.Rule) { r.Internal = false }))
	if b, err := io.ReadAll(w.raw("mail.test", 25)); err == nil {
		t.Errorf("%q", b)
	}
	if rows := w.rows.all(); len(rows) != 1 || rows[0].Code != "address-refused" {
		t.Errorf("%+v", rows)
	}
}

func TestRelaysEndAtTheFloor(t *testing.T) {
	w := newWorld(t)
	port := w.rawOrigin("", func(c net.Conn, br *bufio.Reader) { _, _ = io.Copy(c, br) })
	w.grant(rule(t, "echo.test", port, "", "/", tcp))
	c := w.raw("echo.test", port)
	fmt.Fprint(c, "ping")
	if _, err := io.ReadFull(c, make([]byte, 4)); err != nil {
		t.Fatal(err)
	}
	w.server.Floor()
	if _, err := io.ReadAll(c); err == nil {
		t.Error("a relay survived the floor without an error")
	}
	if done := w.rows.completed(1)[0]; done.Error != "the grant was revoked" {
		t.Errorf("%+v", done)
	}
}

// tunnelWorld grants a TLS server that is not intercepted.
func tunnelWorld(t *testing.T) (*world, uint16) {
	w := newWorld(t)
	port := w.rawOrigin("pinned.test", func(c net.Conn, br *bufio.Reader) { _, _ = io.Copy(c, br) })
	w.grant(rule(t, "pinned.test", port, "", "/", tunnel))
	return w, port
}

func TestTunnelRule(t *testing.T) {
	w, port := tunnelWorld(t)
	for name, raw := range map[string]net.Conn{"redirected": w.raw("pinned.test", port), "CONNECT": w.connect("pinned.test", port)} {
		pool := w.roots()
		pool.AddCert(w.up.Certificate())
		c := tls.Client(raw, &tls.Config{ServerName: "pinned.test", RootCAs: pool})
		fmt.Fprint(c, "ping")
		b := make([]byte, 4)
		if _, err := io.ReadFull(c, b); err != nil || string(b) != "ping" {
			t.Fatalf("%s: %q %v", name, b, err)
		}
		if issuer := c.ConnectionState().PeerCertificates[0]; issuer.CheckSignatureFrom(w.up.Certificate()) != nil {
			t.Errorf("%s: the tunnel was intercepted", name)
		}
	}
}

func TestBypass13_SecondClientHello(t *testing.T) {
	w := newWorld(t)
	leaf, err := w.up.Leaf("pinned.test")
	if err != nil {
		t.Fatal(err)
	}
	// The server takes only P-384, the client offers a key share for X25519: a
	// HelloRetryRequest and a second ClientHello follow.
	port := w.rawOrigin("", func(c net.Conn, br *bufio.Reader) {
		s := tls.Server(&readerConn{Conn: c, r: br}, &tls.Config{Certificates: []tls.Certificate{*leaf}, CurvePreferences: []tls.CurveID{tls.CurveP384}})
		_, _ = io.Copy(s, s)
	})
	w.grant(rule(t, "pinned.test", port, "", "/", tunnel))
	pool := w.roots()
	pool.AddCert(w.up.Certificate())
	cfg := &tls.Config{ServerName: "pinned.test", RootCAs: pool, CurvePreferences: []tls.CurveID{tls.X25519, tls.CurveP384}}
	for name, conn := range tunnelWays {
		w.rows.clear()
		c := tls.Client(conn(w, "pinned.test", port), cfg)
		if err := c.Handshake(); err != nil {
			t.Fatalf("%s, an honest retry: %v", name, err)
		}
		if !c.ConnectionState().HelloRetryRequest {
			t.Fatal("there was no second ClientHello: the test shows nothing")
		}
		// The same, with the name of the second hello changed on the wire.
		evil := &rewriter{Conn: conn(w, "pinned.test", port), from: "pinned.test", to: "evil-2.test"}
		if err := tls.Client(evil, cfg).Handshake(); err == nil {
			t.Errorf("%s: a second ClientHello with another name went through", name)
		}
		if done := w.rows.completed(1)[0]; !strings.Contains(done.Error, "evil-2.test") {
			t.Errorf("%s: %+v", name, done)
		}
	}
}

type readerConn struct {
	net.Conn
	r io.Reader
}

func (c *readerConn) Read(p []byte) (int, error) { return c.r.Read(p) }

// rewriter changes a text in every write but the first.
type rewriter struct {
	net.Conn
	from, to string
	writes   int
}

func (c *rewriter) Write(p []byte) (int, error) {
	c.writes++
	if c.writes > 1 {
		_, err := c.Conn.Write([]byte(strings.ReplaceAll(string(p), c.from, c.to)))
		return len(p), err
	}
	return c.Conn.Write(p)
}

func TestBypass03_TunnelsSeeOnlyTheServerName(t *testing.T) {
	w, port := tunnelWorld(t)
	hello := func(name string) string {
		client, server := net.Pipe()
		go func() {
			_ = tls.Client(client, &tls.Config{ServerName: name, InsecureSkipVerify: true}).Handshake()
			_ = client.Close()
		}()
		b := make([]byte, 16<<10)
		n, _ := server.Read(b)
		_ = server.Close()
		return string(b[:n])
	}
	ok := hello("pinned.test")
	for name, c := range map[string]struct{ text, code string }{
		"other name":     {hello("evil.test"), "authority-mismatch"},
		"no name":        {hello(""), "not-tls"},
		"no TLS":         {"SSH-2.0-x\r\n", "not-tls"},
		"HTTP":           {fmt.Sprintf("GET / HTTP/1.1\r\nHost: pinned.test:%d\r\n\r\n", port), "protocol-not-granted"},
		"garbled hello":  {ok[:9] + strings.Repeat("\xff", len(ok)-9), "not-tls"},
		"alert":          {"\x16\x03\x01\x00\x02\x02\x00", "not-tls"},
		"endless record": {"\x16\x03\x01\xff\xff", "not-tls"},
	} {
		for way, open := range tunnelWays {
			before := len(w.rows.all())
			conn := open(w, "pinned.test", port)
			go func() {
				_, _ = io.WriteString(conn, c.text)
				_ = conn.(*net.TCPConn).CloseWrite()
			}()
			_, _ = io.ReadAll(conn)
			if rows := w.rows.recorded(before + 1)[before:]; rows[0].Code != c.code || !rows[0].Denied() {
				t.Errorf("%s, %s: %+v", way, name, rows)
			}
		}
	}
	before := len(w.rows.all())
	for _, open := range tunnelWays { // one that ends before it has said where to is as if unused
		conn := open(w, "pinned.test", port)
		_, _ = io.WriteString(conn, ok[:len(ok)/2])
		_ = conn.(*net.TCPConn).CloseWrite()
		_, _ = io.ReadAll(conn)
	}
	if rows := w.rows.all()[before:]; len(rows) != 0 {
		t.Errorf("cut hellos: %+v", rows)
	}
	if n := w.dials.count("pinned.test"); n != 0 {
		t.Errorf("%d dials", n)
	}
}

// socketSite grants a websocket echo server.
func socketSite(t *testing.T) *site {
	s := rawSite(t, func(c net.Conn, br *bufio.Reader) {
		h := readRequest(br)
		if !strings.Contains(h, "Upgrade: websocket\r\n") || !strings.Contains(h, "Sec-WebSocket-Key: k\r\n") || strings.Contains(h, "Cookie") {
			t.Errorf("the handshake upstream: %q", h)
		}
		fmt.Fprint(c, "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Accept: a\r\n\r\n\x81\x05first")
		_, _ = io.Copy(c, br)
	}, "ws.test")
	s.allow("ws.test", "GET", "/socket", func(r *egress.Rule) { r.WebSocket = true })
	return s
}

func (s *site) socket(d door, frames string) string {
	c := d.open(s.world, "ws.test", s.ports[d.scheme])
	fmt.Fprintf(c, "GET /socket HTTP/1.1\r\nHost: %s\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Key: k\r\nCookie: c\r\n\r\n", s.authority(d, "ws.test"))
	br := bufio.NewReader(c)
	head := readRequest(br)
	go func() {
		_, _ = io.WriteString(c, frames)
		_ = c.(interface{ CloseWrite() error }).CloseWrite()
	}()
	b, _ := io.ReadAll(br)
	return head + string(b)
}

func TestBypass23_WebSocket(t *testing.T) {
	s := socketSite(t)
	mask := "\x00\x00\x00\x00"
	frames := "\x01\x83" + mask + "abc" + "\x89\x82" + mask + "pi" + "\x80\x80" + mask + "\x82\xfe\x01\x00" + mask + strings.Repeat("x", 256) + "\x88\x80" + mask
	eachDoor(t, func(t *testing.T, d door) {
		s.world.rows.clear()
		got := s.socket(d, frames)
		if !strings.HasPrefix(got, "HTTP/1.1 101 Switching Protocols\r\n") || !strings.HasSuffix(got, "\r\n\r\n\x81\x05first"+frames) {
			t.Errorf("%q", got)
		}
		if done := s.world.rows.completed(1)[0]; done.Status != 101 || done.Sent != int64(len(frames)) || done.Received != int64(len(frames))+7 || done.Error != "" {
			t.Errorf("%+v", done)
		}
	})
}

func TestBypass18_OnlyFramesAfterTheHandshake(t *testing.T) {
	for name, bytes := range map[string]string{
		"HTTP":        "GET /smuggled HTTP/1.1\r\nHost: ws.test\r\n\r\n",
		"unmasked":    "\x81\x05hello",
		"bad opcode":  "\x83\x80\x00\x00\x00\x00",
		"HTTP/2":      "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
		"long length": "\x82\xff\xff\xff\xff\xff\xff\xff\xff\xff\x00\x00\x00\x00",
	} {
		s := socketSite(t)
		eachDoor(t, func(t *testing.T, d door) {
			s.world.rows.clear()
			if got := s.socket(d, bytes); strings.Contains(got, bytes) {
				t.Errorf("%s: it reached upstream: %q", name, got)
			}
			if done := s.world.rows.completed(1)[0]; !strings.Contains(done.Error, "websocket frames") {
				t.Errorf("%s: %+v", name, done)
			}
		})
	}
}

func TestWebSocketThatUpstreamRefuses(t *testing.T) {
	w := newWorld(t)
	port := w.origin(hello, true)
	w.grant(rule(t, "ws.test", port, "GET", "/**", plainHTTP, func(r *egress.Rule) { r.WebSocket = true }))
	text := fmt.Sprintf("GET /x HTTP/1.1\r\nHost: ws.test:%d\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Key: k\r\n\r\n", port)
	c := w.raw("ws.test", port)
	fmt.Fprint(c, text)
	if got := readRequest(bufio.NewReader(c)); !strings.HasPrefix(got, "HTTP/1.1 200 OK\r\n") {
		t.Errorf("%q", got)
	}
}
