package proxy

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httputil"
	"strings"
	"testing"

	"github.com/fractalboxdev/sbx/internal/egress"
)

// serialize writes a head as this package would send it.
func serialize(h head) string {
	b := []byte(h.line + "\r\n")
	for _, f := range h.fields {
		b = appendField(b, f.name, f.value)
	}
	return string(append(b, "\r\n"...))
}

// FuzzRequestHead states that a head which is understood is written and read
// again as the same head, and that net/http sees the same message length in it.
func FuzzRequestHead(f *testing.F) {
	for _, seed := range []string{
		"GET / HTTP/1.1\r\nHost: a\r\n\r\n", "POST /x HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nhello",
		"POST /x HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n",
		"\r\nGET / HTTP/1.0\r\n\r\n", "GET / HTTP/1.1\r\nA:\t b \r\n\r\n", "GET / HTTP/1.1\nHost: a\n\n",
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		h, err := readHead(bufio.NewReader(bytes.NewReader(data)), requestLimits, false)
		if err != nil {
			return
		}
		method, target, minor, err := parseRequestLine(h.line)
		if err != nil {
			return
		}
		req := &request{method: method, target: target, fields: h.fields}
		if req.parse(minor) != nil {
			return
		}
		text := serialize(h)
		again, err := readHead(bufio.NewReader(strings.NewReader(text)), requestLimits, false)
		if err != nil || serialize(again) != text {
			t.Fatalf("%q was read again as %q, %v", text, serialize(again), err)
		}
		theirs, err := http.ReadRequest(bufio.NewReader(strings.NewReader(text)))
		if err != nil {
			return // stricter about targets than we are
		}
		if theirs.Method != method || theirs.ContentLength != req.length {
			t.Fatalf("%q: we see %s with %d bytes, net/http sees %s with %d", text, method, req.length, theirs.Method, theirs.ContentLength)
		}
	})
}

// FuzzChunkedBody states that a body which is accepted holds the same bytes for
// the standard library's decoder.
func FuzzChunkedBody(f *testing.F) {
	for _, seed := range []string{"5\r\nhello\r\n0\r\n\r\n", "0\r\n\r\n", "5;a=b\r\nhello\r\n0\r\nX: y\r\n\r\n", "A\r\n0123456789\r\n00\r\n\r\n", "5 \r\nhello\r\n0\r\n\r\n"} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		ours, err := io.ReadAll(newBody(bufio.NewReader(bytes.NewReader(data)), -1))
		if err != nil {
			return
		}
		theirs, err := io.ReadAll(httputil.NewChunkedReader(bytes.NewReader(data)))
		if err != nil || !bytes.Equal(ours, theirs) {
			t.Fatalf("%q: we read %q, the standard library %q, %v", data, ours, theirs, err)
		}
	})
}

// FuzzFrames states that the websocket check neither fails nor passes differently
// when the same bytes arrive in other pieces.
func FuzzFrames(f *testing.F) {
	f.Add([]byte("\x81\x85\x00\x00\x00\x00hello"), 3)
	f.Add([]byte("\x82\xfe\x01\x00\x00\x00\x00\x00"+strings.Repeat("x", 256)), 1)
	f.Fuzz(func(t *testing.T, data []byte, size int) {
		whole, werr := io.ReadAll(&frames{r: bytes.NewReader(data)})
		pieces, perr := io.ReadAll(&frames{r: &small{bytes.NewReader(data), max(1, size%7)}})
		if (werr == nil) != (perr == nil) || werr == nil && !bytes.Equal(whole, pieces) {
			t.Fatalf("%q: whole %v, in pieces %v", data, werr, perr)
		}
	})
}

// small returns few bytes at a time.
type small struct {
	r io.Reader
	n int
}

func (s *small) Read(p []byte) (int, error) { return s.r.Read(p[:min(len(p), s.n)]) }

func TestFixedBodyThatEndsEarly(t *testing.T) {
	b := newBody(bufio.NewReader(strings.NewReader("abc")), 5)
	if got, err := io.ReadAll(b); !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Errorf("%q %v", got, err)
	}
}

func TestResponseFraming(t *testing.T) {
	for _, c := range []struct {
		fields fields
		status int
		method string
		length int64
		bad    bool
	}{
		{fields{{"Content-Length", "5"}}, 200, "GET", 5, false},
		{fields{{"Content-Length", "5"}}, 200, "HEAD", 0, false},
		{fields{{"Content-Length", "5"}}, 304, "GET", 0, false},
		{fields{{"Content-Length", "5, 5"}, {"content-length", "5"}}, 200, "GET", 5, false},
		{fields{{"Content-Length", "5, 6"}}, 200, "GET", 0, true},
		{fields{{"Content-Length", "5"}, {"Transfer-Encoding", "chunked"}}, 200, "GET", -1, false},
		{fields{{"Transfer-Encoding", "gzip, chunked"}}, 200, "GET", 0, true},
		{nil, 200, "GET", untilClose, false},
		{nil, 204, "GET", 0, false},
	} {
		length, err := responseFraming(c.fields, c.status, c.method)
		if (err != nil) != c.bad || err == nil && length != c.length {
			t.Errorf("%v %d %s: %d %v", c.fields, c.status, c.method, length, err)
		}
	}
}

func TestFoldedResponseHeader(t *testing.T) {
	h, err := readHead(bufio.NewReader(strings.NewReader("HTTP/1.1 200 OK\nX: a\r\n\t b\r\n\r\n")), responseLimits, true)
	if v, _ := h.fields.get("x"); err != nil || v != "a b" {
		t.Errorf("%q %v", v, err)
	}
}

func TestResolveReferences(t *testing.T) {
	path, query, err := egress.ParseTarget("/a/b/c?q=1")
	if err != nil {
		t.Fatal(err)
	}
	h := &hop{ask: egress.Request{Path: path, Query: query}}
	// RFC 3986 section 5.4, without authority and scheme.
	for ref, want := range map[string]string{
		"": "/a/b/c?q=1", "g": "/a/b/g", "./g": "/a/b/g", "g/": "/a/b/g/", "/g": "/g", "?y": "/a/b/c?y", "g?y": "/a/b/g?y",
		".": "/a/b/", "./": "/a/b/", "..": "/a/", "../": "/a/", "../g": "/a/g", "../..": "/", "../../g": "/g", "../../../g": "/g",
		"g;x=1/../y": "/a/b/y", "..g": "/a/b/..g",
	} {
		if got := resolve(h, ref); got != want {
			t.Errorf("%q: %q, want %q", ref, got, want)
		}
	}
}

func TestEveryRefusalNamesNoMoreThanRuleAndCode(t *testing.T) {
	for r, want := range map[*refusal]string{
		refuseDecision(egress.Decision{}):                                                                               "",
		refuse(egress.CodePath, "GET https://secret.test/path: path is not granted"):                                    "sbx: path-not-granted\n",
		refuseDecision(egress.Decision{Stage: egress.StageHandler, Code: egress.CodePath, Nearest: "p/r", Reason: "x"}): "sbx: path-not-granted p/r\n",
		refuseWire(malformed("a secret")):                                                                               "sbx: malformed-request\n",
	} {
		if got := r.text(); got != want {
			t.Errorf("%+v: %q, want %q", r, got, want)
		}
	}
}

func ExampleServer_reasonPhrase() {
	r := refuseDecision(egress.Decision{Stage: egress.StageGate, Code: egress.CodeHostNotGranted})
	fmt.Println(r.status, "sbx", r.code)
	// Output: 520 sbx host-not-granted
}
