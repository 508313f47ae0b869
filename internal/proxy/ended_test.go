package proxy_test

import (
	"bytes"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/fractalboxdev/sbx/internal/egress"
)

// half is the beginning of a ClientHello for name.
func half(t *testing.T, name string) []byte {
	t.Helper()
	ours, theirs := net.Pipe()
	go func() { _ = tls.Client(ours, &tls.Config{ServerName: name}).HandshakeContext(t.Context()) }()
	defer ours.Close()
	b := make([]byte, 100)
	if _, err := io.ReadFull(theirs, b); err != nil {
		t.Fatal(err)
	}
	return b
}

// What a command leaves behind of its connections ends when the grant is gone. They
// are judged by the grant under which they were made: a granted host that nothing was
// asked is no denial, another one is.
func TestConnectionsThatEndWithTheRun(t *testing.T) {
	for name, leave := range map[string]func(c net.Conn, host string){
		"nothing":      func(net.Conn, string) {},
		"half a hello": func(c net.Conn, host string) { _, _ = c.Write(half(t, host)) },
		"half a head":  func(c net.Conn, _ string) { fmt.Fprint(c, "GET /x HTTP/1.1\r\nHo") },
	} {
		for _, end := range []string{"closed", "reset"} {
			for _, when := range []string{"before", "after"} {
				w := newWorld(t, func(c *proxyConfig) { c.Limits.Sniff = 5 * time.Second })
				w.grant(
					rule(t, "ok.test", 443, "GET", "/**"), rule(t, "ok.test", 443, "GET", "/**", plainHTTP),
					rule(t, "tun.test", 443, "GET", "/**", tunnel),
				)
				if when == "before" {
					w.server.Floor() // while they wait to be accepted
				}
				var conns []net.Conn
				for _, host := range []string{"ok.test", "tun.test", "other.test"} {
					if name == "half a head" && host == "tun.test" {
						continue
					}
					c := w.raw(host, 443)
					leave(c, host)
					conns = append(conns, c)
				}
				time.Sleep(50 * time.Millisecond) // they are read, or wait to be
				w.server.Floor()
				w.server.Floor() // a second time changes nothing
				for _, c := range conns {
					if tc, ok := c.(*net.TCPConn); ok && end == "reset" {
						_ = tc.SetLinger(0)
					}
					_ = c.Close()
				}
				w.rows.recorded(1)
				time.Sleep(20 * time.Millisecond)
				rows := w.rows.all()
				if len(rows) != 1 || rows[0].Host != "other.test" || rows[0].Code != string(egress.CodeHostNotGranted) {
					t.Errorf("%s, %s, accepted %s the floor: %+v", name, end, when, rows)
				}
			}
		}
	}
}

// A whole request that is read only after the floor came back is refused, and the
// record does not call its host one that was never granted.
func TestRequestsThatAreReadAfterTheRevoke(t *testing.T) {
	w := newWorld(t)
	w.grant(rule(t, "ok.test", 443, "GET", "/**"))
	w.server.Floor()
	for i, c := range []struct {
		host string
		code egress.Code
	}{{"ok.test", egress.CodeGrantNotApplied}, {"other.test", egress.CodeHostNotGranted}} {
		if got := w.do(w.client(transparent), "GET", "https://"+c.host+"/x", ""); got.status != 520 {
			t.Errorf("%s: %d %v", c.host, got.status, got.err)
		}
		if row := w.rows.recorded(i + 1)[i]; row.Code != string(c.code) || row.Verdict != "deny" {
			t.Errorf("%+v", row)
		}
	}
}

// A server name with a dot at its end is refused for that, where the host is granted.
func TestServerNameThatEndsInADot(t *testing.T) {
	w := newWorld(t)
	w.grant(rule(t, "a-host.test", 443, "GET", "/**"), rule(t, "tunnels.test", 443, "GET", "/**", tunnel))
	for i, c := range []struct{ host, written, want string }{
		{"a-host.test", "xa-host.test", "malformed-request"},
		{"tunnels.test", "xtunnels.test", "malformed-request"},
		{"x-other.test", "xx-other.test", "host-not-granted"},
	} {
		ours, theirs := net.Pipe()
		go func() { _ = tls.Client(ours, &tls.Config{ServerName: c.written}).HandshakeContext(t.Context()) }()
		b := make([]byte, 16<<10)
		n, err := theirs.Read(b)
		if err != nil {
			t.Fatal(err)
		}
		_ = ours.Close()
		// crypto/tls would write no dot: the name's letters move over the first one.
		hello := bytes.Replace(b[:n], []byte(c.written), []byte(c.host+"."), 1)
		conn := w.raw(c.host, 443)
		_, _ = conn.Write(hello)
		_, _ = io.ReadAll(conn)
		row := w.rows.recorded(i + 1)[i]
		if row.Code != c.want || row.Host != c.host || c.want == "malformed-request" && !strings.Contains(row.Reason, "ends in a dot") {
			t.Errorf("%+v", row)
		}
	}
}
