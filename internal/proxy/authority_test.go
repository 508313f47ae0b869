package proxy_test

import (
	"bufio"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"strings"
	"testing"
)

// twoHosts is a world with two granted hosts on one port each, plain and TLS.
func twoHosts(t *testing.T) (w *world, secure, plain uint16) {
	w = newWorld(t)
	secure, plain = w.origin(hello, false, "good.test", "also.test"), w.origin(hello, true)
	w.grant(
		rule(t, "good.test", secure, "GET", "/**"), rule(t, "also.test", secure, "GET", "/**"),
		rule(t, "good.test", plain, "GET", "/**", plainHTTP), rule(t, "also.test", plain, "GET", "/**", plainHTTP),
	)
	return w, secure, plain
}

func (w *world) dialExplicit() net.Conn {
	w.t.Helper()
	c, err := net.Dial("tcp", w.explicit.String())
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() { _ = c.Close() })
	return c
}

func TestVector15_UserinfoMeansTheOtherHost(t *testing.T) {
	w, port, _ := twoHosts(t)
	c := w.client(transparent)
	if got := w.do(c, "GET", fmt.Sprintf("https://good.test@evil.test:%d/", port), ""); got.status != 520 {
		t.Errorf("%d %v", got.status, got.err)
	}
	if row := w.rows.recorded(1)[0]; row.Host != "evil.test" {
		t.Errorf("%+v", row)
	}
}

func TestVector16_NormalisedHostIsSent(t *testing.T) {
	w := newWorld(t)
	seen := make(chan string, 1)
	port := w.rawOrigin("good.test", func(c net.Conn, br *bufio.Reader) {
		seen <- readRequest(br)
		fmt.Fprint(c, "HTTP/1.1 204 No Content\r\n\r\n")
	})
	w.grant(rule(t, "good.test", port, "GET", "/**"))
	c := w.rawTLS("good.test", "GOOD.test", port)
	fmt.Fprintf(c, "GET /x HTTP/1.1\r\nhost: GOOD.test.:%d\r\n\r\n", port)
	if got, want := <-seen, fmt.Sprintf("GET /x HTTP/1.1\r\nhost: good.test:%d\r\n\r\n", port); got != want {
		t.Errorf("upstream saw %q, want %q", got, want)
	}
}

// connect opens a CONNECT tunnel through the explicit listener.
func (w *world) connect(host string, port uint16) net.Conn {
	w.t.Helper()
	c := w.dialExplicit()
	at := net.JoinHostPort(host, fmt.Sprint(port))
	fmt.Fprintf(c, "CONNECT %s HTTP/1.1\r\nHost: %s\r\n\r\n", at, at)
	head := readRequest(bufio.NewReaderSize(oneByte{c}, 16))
	if head != "HTTP/1.1 200 Connection established\r\n\r\n" {
		w.t.Fatalf("CONNECT: %q", head)
	}
	return c
}

// oneByte reads nothing ahead.
type oneByte struct{ io.Reader }

func (r oneByte) Read(p []byte) (int, error) { return r.Reader.Read(p[:1]) }

func TestConnectIsChecked(t *testing.T) {
	w, port, _ := twoHosts(t)
	for text, status := range map[string]string{
		"CONNECT good.test HTTP/1.1\r\nHost: good.test\r\n\r\n":                                                  "400",
		"CONNECT good.test:0 HTTP/1.1\r\nHost: good.test:0\r\n\r\n":                                              "400",
		fmt.Sprintf("CONNECT good.test:%d HTTP/1.1\r\nHost: also.test:%d\r\n\r\n", port, port):                   "421",
		fmt.Sprintf("CONNECT good.test:%d HTTP/1.1\r\nHost: a:1\r\nContent-Length: 3\r\n\r\nabc", port):          "400",
		"GET /x HTTP/1.1\r\nHost: good.test\r\n\r\n":                                                             "400",
		fmt.Sprintf("GET https://good.test:%d/x HTTP/1.1\r\nHost: good.test:%d\r\n\r\n", port, port):             "400",
		fmt.Sprintf("GET ftp://good.test:%d/x HTTP/1.1\r\nHost: good.test:%d\r\n\r\n", port, port):               "400",
		fmt.Sprintf("CONNECT 127.0.0.1:%d HTTP/1.1\r\nHost: 127.0.0.1:%d\r\n\r\nGET / HTTP/1.1\r\n", port, port): "200",
	} {
		before := len(w.rows.all())
		c := w.dialExplicit()
		go func() { _, _ = io.WriteString(c, text) }()
		b := make([]byte, 12)
		_, _ = io.ReadFull(c, b)
		if string(b) != "HTTP/1.1 "+status {
			t.Errorf("%q: %q, want %s", text, b, status)
		}
		if n := len(w.rows.all()) - before; status != "200" && n != 1 {
			t.Errorf("%q: %d records", text, n)
		}
	}
}

func TestCase62_NotHTTPAtTheProxy(t *testing.T) {
	w := newWorld(t)
	for _, text := range []string{"\x05\x01\x00", "\x04\x01\x00\x50", "\x16\x03\x01", "\x00"} {
		before := len(w.rows.all())
		if got := exchangeRaw(t, w.dialExplicit(), text); got != "" {
			t.Errorf("%q: %q", text, got)
		}
		if rows := w.rows.recorded(before + 1)[before:]; rows[0].Code != "not-http" {
			t.Errorf("%q: %+v", text, rows)
		}
	}
}

func TestCase58_GrantedAddress(t *testing.T) {
	w := newWorld(t)
	port := w.origin(hello, false, "127.0.0.1")
	w.grant(rule(t, "127.0.0.1", port, "GET", "/**"))
	got := w.do(w.client(transparent), "GET", urlFor("https", "127.0.0.1", port, "/x"), "")
	if got.status != 200 {
		t.Errorf("%d %v", got.status, got.err)
	}
}

func TestCase58_UngrantedAddresses(t *testing.T) {
	w := newWorld(t)
	for _, addr := range []string{"192.0.32.10", "2001:500:88:200::10", "::ffff:127.0.0.1", "198.18.40.1"} {
		before := len(w.rows.all())
		c := w.raw(addr, 80)
		host := addr
		if strings.Contains(addr, ":") {
			host = "[" + addr + "]"
		}
		if got := exchangeRaw(t, c, "GET / HTTP/1.1\r\nHost: "+host+"\r\n\r\n"); !strings.HasPrefix(got, "HTTP/1.1 520 ") {
			t.Errorf("%s: %q", addr, got)
		}
		rows := w.rows.all()[before:]
		if len(rows) != 1 || rows[0].Host != strings.TrimPrefix(addr, "::ffff:") {
			t.Errorf("%s: %+v", addr, rows)
		}
	}
}

func TestCase60_AbsoluteFormToAnotherHost(t *testing.T) {
	w, _, port := twoHosts(t)
	for _, inner := range []string{"denied.test", fmt.Sprintf("also.test:%d", port)} {
		got := exchangeRaw(t, w.raw("good.test", port), "GET http://"+inner+"/ HTTP/1.1\r\nHost: "+inner+"\r\n\r\n")
		if !strings.HasPrefix(got, "HTTP/1.1 421 ") {
			t.Errorf("%s: %q", inner, got)
		}
	}
	got := exchangeRaw(t, w.raw("good.test", port), fmt.Sprintf("GET //denied.test/ HTTP/1.1\r\nHost: good.test:%d\r\n\r\n", port))
	if !strings.HasPrefix(got, "HTTP/1.1 403 sbx path-refused") {
		t.Errorf("double slash: %q", got)
	}
	if w.dials.count("denied.test")+w.dials.count("also.test") != 0 {
		t.Error("another host was dialled")
	}
}

func TestCase60_HTTP10WithoutHost(t *testing.T) {
	w, _, port := twoHosts(t)
	if got := exchangeRaw(t, w.raw("good.test", port), "GET /x HTTP/1.0\r\n\r\n"); !strings.HasPrefix(got, "HTTP/1.1 200 ") {
		t.Errorf("%q", got)
	}
	if got := exchangeRaw(t, w.raw("denied.test", port), "GET /x HTTP/1.0\r\n\r\n"); !strings.HasPrefix(got, "HTTP/1.1 520 ") {
		t.Errorf("%q", got)
	}
}

func TestBypass33_OtherProtocols(t *testing.T) {
	w := newWorld(t)
	w.grant(rule(t, "ssh.test", 443, "GET", "/**"), rule(t, "ssh.test", 8443, "GET", "/**"))
	for _, c := range []struct {
		host  string
		port  uint16
		first string
		code  string
	}{
		{"ssh.test", 443, "SSH-2.0-OpenSSH_9.2\r\n", "not-tls"},
		{"ssh.test", 8443, "SSH-2.0-OpenSSH_9.2\r\n", "not-http"},
		{"ssh.test", 443, "\x00\x00\x00\x08\x04\xd2\x16\x2f", "not-tls"}, // PostgreSQL
		{"ssh.test", 5432, "\x00\x00\x00\x08\x04\xd2\x16\x2f", "not-http"},
		{"denied.test", 443, "SSH-2.0-OpenSSH_9.2\r\n", "host-not-granted"},
		{"denied.test", 6379, "*1\r\n$4\r\nPING\r\n", "host-not-granted"},
	} {
		for name, conn := range map[string]net.Conn{"redirected": w.raw(c.host, c.port), "CONNECT": w.connect(c.host, c.port)} {
			before := len(w.rows.all())
			if got := exchangeRaw(t, conn, c.first); got != "" {
				t.Errorf("%s %s:%d: answered %q", name, c.host, c.port, got)
			}
			rows := w.rows.recorded(before + 1)[before:]
			if len(rows) != 1 || rows[0].Code != c.code || rows[0].Host != c.host || rows[0].Port != c.port {
				t.Errorf("%s %s:%d %q: %+v", name, c.host, c.port, c.first, rows)
			}
		}
	}
}

func TestCase61_ServerSpeaksFirst(t *testing.T) {
	w := newWorld(t)
	w.grant(rule(t, "ok.test", 443, "GET", "/**"))
	for host, port := range map[string]uint16{"mail.test": 25, "ok.test": 25} {
		before := len(w.rows.all())
		if b, err := io.ReadAll(w.raw(host, port)); err == nil || len(b) > 0 || strings.Contains(err.Error(), "timeout") {
			t.Errorf("%s:%d: %q %v", host, port, b, err)
		}
		if rows := w.rows.all()[before:]; len(rows) != 1 || rows[0].Protocol != "tcp" || rows[0].Port != 25 {
			t.Errorf("%s: %+v", host, rows)
		}
	}
}

func TestUnusedConnections(t *testing.T) {
	w := newWorld(t)
	w.grant(rule(t, "ok.test", 443, "GET", "/**"))
	_ = w.raw("ok.test", 443).Close()
	_ = w.rawTLS("ok.test", "ok.test", 443).Close()
	_ = w.rawTLS("denied.test", "denied.test", 443).Close()
	_ = w.rawTLS("denied.test", "denied.test", 443, "h2").Close()
	for _, row := range w.rows.recorded(2) {
		if row.Host != "denied.test" || row.Protocol != "https" || row.Code != "host-not-granted" {
			t.Errorf("%+v", row)
		}
	}
}

func TestHandshakeFailuresAreRecorded(t *testing.T) {
	w := newWorld(t)
	w.grant(rule(t, "ok.test", 443, "GET", "/**"))
	for host, code := range map[string]string{"ok.test": "not-tls", "denied.test": "host-not-granted"} {
		before := len(w.rows.all())
		c := w.raw(host, 443)
		if err := tlsClientWithoutTrust(c, host); err == nil {
			t.Errorf("%s: a client without the run's CA was satisfied", host)
		}
		_ = c.Close()
		if rows := w.rows.recorded(before + 1)[before:]; rows[0].Code != code || rows[0].Host != host {
			t.Errorf("%s: %+v", host, rows)
		}
	}
}

// full is the error of a certificate authority at its bound.
type full struct{}

func (full) Error() string { return "the run has made 4096 leaf certificates, its bound" }
func (full) Bound() bool   { return true }

func TestLeafBoundIsRecorded(t *testing.T) {
	w := newWorld(t, func(c *proxyConfig) {
		c.Certificate = func(string) (*tls.Certificate, error) { return nil, full{} }
	})
	w.grant(rule(t, "ok.test", 443, "GET", "/**"))
	c := w.raw("ok.test", 443)
	if err := tlsClientWithoutTrust(c, "ok.test"); err == nil {
		t.Error("a handshake without a certificate")
	}
	if row := w.rows.recorded(1)[0]; row.Code != "bound-certificates" || row.Host != "ok.test" {
		t.Errorf("%+v", row)
	}
}
