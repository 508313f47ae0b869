package proxy_test

import (
	"bufio"
	"bytes"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"testing"

	"github.com/fractalboxdev/sbx/internal/egress"
)

// oneSession offers the same session for every name.
type oneSession struct{ state *tls.ClientSessionState }

func (o *oneSession) Get(string) (*tls.ClientSessionState, bool) { return o.state, o.state != nil }

func (o *oneSession) Put(_ string, s *tls.ClientSessionState) { o.state = s }

func TestBypass02_ResumedSessionsAgreeOnTheServerNameToo(t *testing.T) {
	w := newWorld(t)
	port := w.origin(func(rw http.ResponseWriter, _ *http.Request) { fmt.Fprint(rw, "hello") }, false, "a.test")
	w.grant(rule(t, "a.test", port, "GET", "/**"))
	session := &oneSession{}
	ask := func(sni string) (status int, resumed bool) {
		c := tls.Client(w.raw("a.test", port), &tls.Config{
			ServerName: sni, InsecureSkipVerify: true, ClientSessionCache: session, NextProtos: []string{"http/1.1"},
		})
		defer c.Close()
		if err := c.Handshake(); err != nil {
			return 0, false
		}
		fmt.Fprintf(c, "GET /x HTTP/1.1\r\nHost: a.test:%d\r\n\r\n", port)
		return readAnswer(bufio.NewReader(c), "GET").status, c.ConnectionState().DidResume
	}
	if status, _ := ask("a.test"); status != 200 {
		t.Fatalf("the first connection: %d", status)
	}
	if status, resumed := ask("a.test"); status != 200 || !resumed {
		t.Fatalf("the same name again: %d, resumed %v", status, resumed)
	}
	for _, sni := range []string{"evil.test", "not..a_name!"} {
		if status, _ := ask(sni); status == 200 {
			t.Errorf("a resumed session for %q is served as a.test", sni)
		}
	}
}

func TestBodyIsReadUpstreamAsItWasJudged(t *testing.T) {
	w := newWorld(t)
	reached := make(chan string, 8)
	port := w.rawOrigin("a.test", func(c net.Conn, br *bufio.Reader) {
		for head := readRequest(br); head != ""; head = readRequest(br) {
			reached <- head
			_, _ = io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\nok")
			return
		}
	})
	w.grant(rule(t, "a.test", port, "POST", "/**", maxBody(1000), func(r *egress.Rule) {
		r.Body.JSON = []egress.JSONAssertion{{Pointer: "/operation", OneOf: []string{"download"}}}
	}))
	const body = `{"operation":"download","x":"&operation=upload&y="}`
	ask := func(fields string) int {
		c := w.rawTLS("a.test", "a.test", port, "http/1.1")
		defer c.Close()
		fmt.Fprintf(c, "POST /x HTTP/1.1\r\nHost: a.test:%d\r\n%sContent-Length: %d\r\n\r\n%s", port, fields, len(body), body)
		return readAnswer(bufio.NewReader(c), "POST").status
	}
	if status := ask("Content-Type: application/json\r\n"); status != 200 {
		t.Fatalf("the honest request: %d", status)
	}
	<-reached
	for _, fields := range []string{
		"Content-Type: application/json\r\nContent-Type: application/x-www-form-urlencoded\r\n",
		"Content-Type: application/json\r\nConnection: content-type\r\n",
		"Content-Type: application/json\r\nContent-Encoding: identity\r\nContent-Encoding: br\r\n",
		"Content-Type: application/json\r\nContent-Encoding: identity\r\nConnection: content-encoding\r\n",
	} {
		if status := ask(fields); status != 400 {
			t.Errorf("%q: %d, want 400", fields, status)
		}
	}
	select {
	case head := <-reached:
		t.Errorf("upstream got %q", head)
	default:
	}
}

func TestBypass13_AlertsDoNotEndTheWatchOverATunnel(t *testing.T) {
	for name, conn := range tunnelWays {
		w := newWorld(t)
		got := make(chan []byte, 1)
		port := w.rawOrigin("", func(_ net.Conn, br *bufio.Reader) {
			b, _ := io.ReadAll(br)
			got <- b
		})
		w.grant(rule(t, "a.test", port, "GET", "/**", tunnel))
		c := conn(w, "a.test", port)
		userCanceled := []byte{0x15, 3, 3, 0, 2, 1, 90}
		for _, part := range [][]byte{helloFor("a.test"), userCanceled, helloFor("evil.test")} {
			_, _ = c.Write(part) // the last one may find the connection cut
		}
		_ = c.Close()
		if b := <-got; bytes.Contains(b, []byte("evil.test")) || !bytes.Contains(b, []byte("a.test")) {
			t.Errorf("%s: upstream saw %d bytes, evil.test among them: %v", name, len(b), bytes.Contains(b, []byte("evil.test")))
		}
	}
}

// helloFor is the ClientHello of a client that asks for name.
func helloFor(name string) []byte {
	client, server := net.Pipe()
	defer server.Close()
	go func() {
		_ = tls.Client(client, &tls.Config{ServerName: name, InsecureSkipVerify: true}).Handshake()
	}()
	buf := make([]byte, 16<<10)
	n, _ := server.Read(buf)
	return buf[:n]
}
