package proxy_test

import (
	"bufio"
	"bytes"
	"crypto/tls"
	"io"
	"net"
	"strings"
	"testing"
)

// Records of a handshake, as they stand on the wire.
const (
	changeCipherSpec = "\x14\x03\x03\x00\x01\x01"
	earlyData        = "\x17\x03\x03\x00\x05early"
	// looksLikeHello is an encrypted Finished of TLS 1.2 whose first byte is that of a
	// ClientHello: with ChaCha20 or CBC one in 256 is.
	looksLikeHello = "\x16\x03\x03\x00\x08\x01\xff\xff\xff\xff\xff\xff\xff"
	retryRandom    = "\xcf\x21\xad\x74\xe5\x9a\x61\x11\xbe\x1d\x8c\x02\x1e\x65\xb8\x91\xc2\xa2\x11\x16\x7a\xbb\x8c\x5e\x07\x9e\x09\xe2\xc8\xa8\x33\x9c"
)

// serverHello is the beginning of one; only its random counts here.
func serverHello(random string) string {
	return "\x16\x03\x03\x00\x26\x02\x00\x00\x22\x03\x03" + random
}

// tunnelled sends hello, waits for answer, sends the rest, and returns what upstream saw
// behind the first hello.
func tunnelled(t *testing.T, conn func(w *world, host string, port uint16) net.Conn, answer string, rest ...string) string {
	t.Helper()
	w := newWorld(t)
	first := string(helloFor("a.test"))
	seen := make(chan string, 1)
	port := w.rawOrigin("", func(c net.Conn, br *bufio.Reader) {
		_, _ = io.ReadFull(br, make([]byte, len(first)))
		_, _ = io.WriteString(c, answer)
		b, _ := io.ReadAll(br)
		seen <- string(b)
	})
	w.grant(rule(t, "a.test", port, "GET", "/**", tunnel))
	c := conn(w, "a.test", port)
	_, _ = io.WriteString(c, first)
	if _, err := io.ReadFull(c, make([]byte, len(answer))); err != nil {
		t.Fatalf("the server's answer: %v", err)
	}
	for _, part := range rest {
		_, _ = io.WriteString(c, part) // the last one may find the connection cut
	}
	_ = c.(interface{ CloseWrite() error }).CloseWrite()
	_, _ = io.ReadAll(c)
	return <-seen
}

// tunnelWays are the ways to a connection that is not opened: there is none over plain HTTP.
var tunnelWays = map[string]func(w *world, host string, port uint16) net.Conn{
	"transparent": func(w *world, host string, port uint16) net.Conn { return w.raw(host, port) },
	"CONNECT":     func(w *world, host string, port uint16) net.Conn { return w.connect(host, port) },
}

// A resumed TLS 1.2 connection goes through whatever its encrypted bytes look like.
func TestTunnelledResumptionIsNotTakenForAHello(t *testing.T) {
	alert := "\x15\x03\x03\x00\x02\x01\x70" // unrecognized_name, a warning
	for name, conn := range tunnelWays {
		for answer, text := range map[string]string{"hello": serverHello(strings.Repeat("r", 32)), "warning first": alert + serverHello(strings.Repeat("r", 32))} {
			rest := changeCipherSpec + looksLikeHello + earlyData
			if got := tunnelled(t, conn, text, rest); got != rest {
				t.Errorf("%s, %s: upstream saw %q, want %q", name, answer, got, rest)
			}
		}
	}
}

// A server that asked for another ClientHello gets one with the same name only,
// whatever the client sends in front of it.
func TestBypass13_NothingHidesASecondClientHello(t *testing.T) {
	good, evil := string(helloFor("a.test")), string(helloFor("evil.test"))
	for name, conn := range tunnelWays {
		for what, rest := range map[string][]string{
			"early data":       {earlyData, evil},
			"both":             {changeCipherSpec, earlyData, evil},
			"an honest hello":  {good, evil},
			"in one record":    {changeCipherSpec, "\x16\x03\x03\x02\x00" + good[5:9] + strings.Repeat("x", 508), evil},
			"half a hello":     {evil[:40]},
			"another message":  {looksLikeHello, evil},
			"not a hello":      {"\x16\x03\x03\x00\x05\x10\x00\x00\x01\x00", evil},
			"another protocol": {"\x80\x2e\x01\x03\x01", evil},
		} {
			for _, answer := range []string{serverHello(retryRandom), "nothing of TLS at all"} {
				if got := tunnelled(t, conn, answer, rest...); strings.Contains(got, "evil.test") {
					t.Errorf("%s, %s, after %q: upstream saw the name", name, what, answer[:4])
				}
			}
		}
		if got := tunnelled(t, conn, serverHello(retryRandom), changeCipherSpec, good, earlyData); got != changeCipherSpec+good+earlyData {
			t.Errorf("%s: an honest retry: upstream saw %d bytes", name, len(got))
		}
	}
}

func TestBypass13_TwoHellosInOneRecord(t *testing.T) {
	good, evil := helloFor("a.test"), helloFor("evil.test")
	both := append(append([]byte{}, good[5:]...), evil[5:]...)
	record := append([]byte{0x16, 3, 1, byte(len(both) >> 8), byte(len(both))}, both...)
	for name, conn := range tunnelWays {
		w := newWorld(t)
		w.grant(rule(t, "a.test", 443, "GET", "/**", tunnel))
		c := conn(w, "a.test", 443)
		_, _ = c.Write(record)
		if b, _ := io.ReadAll(c); len(b) > 0 {
			t.Errorf("%s: %q", name, b)
		}
		if row := w.rows.recorded(1)[0]; row.Code != "not-tls" || w.dials.count("a.test") != 0 {
			t.Errorf("%s: %+v", name, row)
		}
	}
}

// Real resumption, with the suites in which it once failed.
func TestTunnelledResumption(t *testing.T) {
	w := newWorld(t)
	leaf, err := w.up.Leaf("pinned.test")
	if err != nil {
		t.Fatal(err)
	}
	suites := []uint16{tls.TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256}
	serving := &tls.Config{Certificates: []tls.Certificate{*leaf}, MaxVersion: tls.VersionTLS12, CipherSuites: suites}
	port := w.rawOrigin("", func(c net.Conn, br *bufio.Reader) {
		s := tls.Server(&readerConn{Conn: c, r: br}, serving)
		_, _ = io.Copy(s, s)
	})
	w.grant(rule(t, "pinned.test", port, "", "/", tunnel))
	cfg := &tls.Config{ServerName: "pinned.test", InsecureSkipVerify: true, ClientSessionCache: tls.NewLRUClientSessionCache(1), CipherSuites: suites, MaxVersion: tls.VersionTLS12}
	for i := range 20 {
		c := tls.Client(w.raw("pinned.test", port), cfg)
		_, _ = c.Write([]byte("ping"))
		b := make([]byte, 4)
		if _, err := io.ReadFull(c, b); err != nil || !bytes.Equal(b, []byte("ping")) || c.ConnectionState().DidResume != (i > 0) {
			t.Fatalf("connection %d: %q %v, resumed %v", i, b, err, c.ConnectionState().DidResume)
		}
		_ = c.Close()
	}
}
