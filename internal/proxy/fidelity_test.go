package proxy_test

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"crypto/rand"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"testing"

	"github.com/fractalboxdev/sbx/internal/egress"
)

// echoHead answers each request with the head that arrived, as the body.
func echoHead(c net.Conn, br *bufio.Reader) {
	for h := readRequest(br); h != ""; h = readRequest(br) {
		fmt.Fprintf(c, "HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s", len(h), h)
	}
}

func TestCase52_TargetsAreByteExact(t *testing.T) {
	w := newWorld(t)
	port := w.rawOrigin("ok.test", echoHead)
	odd := func(r *egress.Rule) { r.OddPaths = true }
	w.grant(rule(t, "ok.test", port, "GET,OPTIONS", "/**", odd))
	c := w.rawTLS("ok.test", "ok.test", port)
	br := bufio.NewReader(c)
	for _, target := range []string{
		"/@s%2fp", "/@s%2Fp", "/a|b", "/a%7Cb", "/a[1]", "/a;b?x=1;y=2", "/?q=a+b%20c&&=", "/a?", "/%E2%82%AC",
		"/raw-\xe2\x82\xac", "/a//b", "//a//b", "/" + strings.Repeat("long", 3<<10), "/a?b?c", "/a'()!*$,:@~", "/a\"<>^`{}\\b",
	} {
		fmt.Fprintf(c, "GET %s HTTP/1.1\r\nHost: ok.test:%d\r\n\r\n", target, port)
		got := readAnswer(br, "GET")
		line, _, _ := strings.Cut(got.body, "\r\n")
		switch want := "GET " + target + " HTTP/1.1"; {
		case got.status == 403: // refused whole: nothing else was sent in its place
			c = w.rawTLS("ok.test", "ok.test", port)
			br = bufio.NewReader(c)
			if !strings.HasPrefix(got.body, "sbx: path-") {
				t.Errorf("%q: %q", target, got.body)
			}
			if !strings.ContainsAny(target, "\\") && !strings.Contains(target, "//") {
				t.Errorf("%q was refused", target)
			}
		case line != want:
			t.Errorf("upstream saw %q, want %q", line, want)
		}
	}
}

func TestCase52_TargetsOverHTTP2(t *testing.T) {
	w := newWorld(t)
	got := make(chan string, 1)
	port := w.origin(func(_ http.ResponseWriter, r *http.Request) { got <- r.Proto + " " + r.RequestURI }, false, "ok.test")
	w.grant(rule(t, "ok.test", port, "GET", "/**"))
	c := w.rawH2("ok.test", port)
	for _, target := range []string{"/@s%2fp", "/a|b", "/a[1]", "/a;b?x=1;y=2", "/?q=a+b%20c&&=", "/a?", "/raw-\xe2\x82\xac"} {
		c.headers(t, true, ":method", "GET", ":scheme", "https", ":authority", fmt.Sprintf("ok.test:%d", port), ":path", target)
		if want, seen := "HTTP/2.0 "+target, <-got; seen != want {
			t.Errorf("upstream saw %q, want %q", seen, want)
		}
	}
}

func TestCase53_HeadersAreByteFaithful(t *testing.T) {
	w := newWorld(t)
	port := w.rawOrigin("ok.test", echoHead)
	w.grant(rule(t, "ok.test", port, "GET", "/**", preserve), rule(t, "ok.test", port, "POST", "/**"))
	c := w.rawTLS("ok.test", "ok.test", port)
	br := bufio.NewReader(c)
	big := strings.Repeat("X-Many: 1\r\n", 290) + "X-Big: " + strings.Repeat("b", 60<<10) + "\r\n"
	for _, block := range []string{
		"", "x-lower: 1\r\nX-A: 1\r\nX-UPPER: 2\r\nX-A: 2\r\nX-Empty: \r\n", "Range: bytes=5-9\r\nIf-Range: \"e\"\r\nIf-None-Match: *\r\n", big,
	} {
		want := fmt.Sprintf("GET /x HTTP/1.1\r\nHost: ok.test:%d\r\n%s\r\n", port, block)
		if _, err := io.WriteString(c, want); err != nil {
			t.Fatal(err)
		}
		if got := readAnswer(br, "GET"); got.body != want {
			t.Errorf("upstream saw %.300q, want %.300q", got.body, want)
		}
	}
}

func TestVector19_CredentialsFromInsideNeverLeave(t *testing.T) {
	secret := []string{"Authorization", "Bearer inside", "Cookie", "a=inside", "X-Api-Key", "inside", "Proxy-Authorization", "Basic inside", "X-Auth-Token", "inside", "Private-Token", "inside"}
	for name, mode := range map[string]func(*egress.Rule){"minimal": func(*egress.Rule) {}, "preserve": preserve} {
		w := newWorld(t)
		port := w.origin(func(rw http.ResponseWriter, r *http.Request) {
			rw.Header().Add("Set-Cookie", "session=1")
			fmt.Fprint(rw, r.Header)
		}, false, "ok.test")
		w.grant(rule(t, "ok.test", port, "GET", "/**", mode))
		for _, how := range ways {
			got := w.do(w.client(how), "GET", urlFor("https", "ok.test", port, "/x"), "", secret...)
			if got.status != 200 || strings.Contains(got.body, "inside") {
				t.Errorf("%s: %d %q", name, got.status, got.body)
			}
			if got.header.Get("Set-Cookie") != "" {
				t.Errorf("%s: a cookie came back", name)
			}
		}
	}
}

func TestMinimalHeadersAndNothingAdded(t *testing.T) {
	w := newWorld(t)
	port := w.rawOrigin("ok.test", echoHead)
	w.grant(rule(t, "ok.test", port, "GET", "/**"))
	c := w.rawTLS("ok.test", "ok.test", port)
	fmt.Fprintf(c, "GET /x HTTP/1.1\r\nAccept: */*\r\nHost: ok.test:%d\r\nX-Other: 1\r\nAccept-Language: de\r\nuser-agent: u\r\nConnection: accept-encoding\r\nAccept-Encoding: br\r\n\r\n", port)
	got := readAnswer(bufio.NewReader(c), "GET")
	if want := fmt.Sprintf("GET /x HTTP/1.1\r\nAccept: */*\r\nHost: ok.test:%d\r\nuser-agent: u\r\n\r\n", port); got.body != want {
		t.Errorf("upstream saw %q, want %q", got.body, want)
	}
}

func TestCase53_HTTP2AddsNothing(t *testing.T) {
	w := newWorld(t)
	got := make(chan http.Header, 1)
	port := w.origin(func(_ http.ResponseWriter, r *http.Request) { got <- r.Header }, false, "ok.test")
	w.grant(rule(t, "ok.test", port, "GET", "/**", preserve))
	c := w.rawH2("ok.test", port)
	c.headers(t, true, ":method", "GET", ":scheme", "https", ":authority", fmt.Sprintf("ok.test:%d", port), ":path", "/x", "x-a", "1", "x-a", "2")
	if h := <-got; len(h) != 1 || strings.Join(h["X-A"], ",") != "1,2" {
		t.Errorf("upstream saw %v", h)
	}
}

func TestCase53_LargeResponseHeaders(t *testing.T) {
	w := newWorld(t)
	port := w.origin(func(rw http.ResponseWriter, _ *http.Request) {
		for i := range 100 {
			rw.Header().Add("X-Big", strings.Repeat(strconv.Itoa(i%10), 1000))
		}
	}, false, "ok.test")
	w.grant(rule(t, "ok.test", port, "GET", "/**"))
	for name, how := range ways {
		if got := w.do(w.client(how), "GET", urlFor("https", "ok.test", port, "/x"), ""); got.status != 200 || len(got.header["X-Big"]) != 100 {
			t.Errorf("%s: %d, %d fields, %v", name, got.status, len(got.header["X-Big"]), got.err)
		}
	}
}

func TestCase54_EncodingsPassThrough(t *testing.T) {
	var zipped bytes.Buffer
	z := gzip.NewWriter(&zipped)
	_, _ = io.WriteString(z, strings.Repeat("text ", 1000))
	_ = z.Close()
	w := newWorld(t)
	port := w.origin(func(rw http.ResponseWriter, r *http.Request) {
		rw.Header().Set("Content-Encoding", r.URL.Query().Get("e"))
		rw.Header().Set("X-Accept", r.Header.Get("Accept-Encoding"))
		_, _ = rw.Write(zipped.Bytes())
	}, false, "ok.test")
	w.grant(rule(t, "ok.test", port, "GET", "/**"))
	for name, how := range ways {
		for _, encoding := range []string{"gzip", "br", "x-foo", "gzip, br"} {
			got := w.do(w.client(how), "GET", urlFor("https", "ok.test", port, "/x?e="+strings.ReplaceAll(encoding, " ", "%20")), "")
			if got.body != zipped.String() || got.header.Get("Content-Encoding") != encoding || got.header.Get("X-Accept") != "" {
				t.Errorf("%s %s: %d bytes, %v", name, encoding, len(got.body), got.header)
			}
		}
	}
}

func TestCase41_Framing(t *testing.T) {
	body := strings.Repeat("0123456789", 5000)
	w := newWorld(t)
	port := w.rawOrigin("ok.test", func(c net.Conn, br *bufio.Reader) {
		for {
			h := readRequest(br)
			switch {
			case h == "":
				return
			case strings.Contains(h, "/length"):
				fmt.Fprintf(c, "HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s", len(body), body)
			case strings.Contains(h, "/chunked"):
				fmt.Fprintf(c, "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n%x;ext=1\r\n%s\r\n0\r\nX-Trailer: t\r\n\r\n", len(body), body)
			case strings.Contains(h, "/old"):
				fmt.Fprintf(c, "HTTP/1.0 200 OK\r\n\r\n%s", body)
				return
			case strings.Contains(h, "/close"):
				fmt.Fprintf(c, "HTTP/1.1 200 OK\r\n\r\n%s", body)
				return
			case strings.Contains(h, "/cut-length"):
				fmt.Fprintf(c, "HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s", len(body)+1, body)
				return
			case strings.Contains(h, "/cut-chunk"):
				fmt.Fprintf(c, "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n%x\r\n%s", len(body)+1, body)
				return
			case strings.Contains(h, "/empty"):
				fmt.Fprint(c, "HTTP/1.1 204 No Content\r\n\r\n")
			}
		}
	})
	w.grant(rule(t, "ok.test", port, "GET", "/**"))
	for name, how := range ways {
		c := w.client(how)
		for path, length := range map[string]string{"/length": strconv.Itoa(len(body)), "/chunked": "", "/old": "", "/close": ""} {
			got := w.do(c, "GET", urlFor("https", "ok.test", port, path), "")
			if got.err != nil || got.body != body || got.header.Get("Content-Length") != length {
				t.Errorf("%s %s: %d bytes, length %q, %v", name, path, len(got.body), got.header.Get("Content-Length"), got.err)
			}
		}
		for _, path := range []string{"/cut-length", "/cut-chunk"} {
			if got := w.do(c, "GET", urlFor("https", "ok.test", port, path), ""); got.err == nil {
				t.Errorf("%s %s: a clean response of %d bytes", name, path, len(got.body))
			}
		}
		if got := w.do(c, "GET", urlFor("https", "ok.test", port, "/empty"), ""); got.status != 204 {
			t.Errorf("%s: %+v", name, got)
		}
		if got := w.do(c, "HEAD", urlFor("https", "ok.test", port, "/length"), ""); got.status != 200 || got.header.Get("Content-Length") != strconv.Itoa(len(body)) {
			t.Errorf("%s HEAD: %d %v %v", name, got.status, got.header, got.err)
		}
	}
	old := exchangeRaw(t, w.rawTLS("ok.test", "ok.test", port), fmt.Sprintf("GET /chunked HTTP/1.0\r\nHost: ok.test:%d\r\n\r\n", port))
	if !strings.HasSuffix(old, "\r\n\r\n"+body) {
		t.Errorf("to an HTTP/1.0 client: %.200q", old)
	}
}

func TestCase42_Trailers(t *testing.T) {
	w := newWorld(t)
	port := w.origin(func(rw http.ResponseWriter, _ *http.Request) {
		rw.Header().Set("Trailer", "Grpc-Status")
		_, _ = io.WriteString(rw, "body")
		rw.Header().Set("Grpc-Status", "0")
	}, false, "ok.test")
	w.grant(rule(t, "ok.test", port, "GET", "/**"))
	for name, how := range ways {
		resp, err := w.client(how).Get(urlFor("https", "ok.test", port, "/x"))
		if err != nil {
			t.Fatal(err)
		}
		_, _ = io.ReadAll(resp.Body)
		_ = resp.Body.Close()
		if resp.Trailer.Get("Grpc-Status") != "0" {
			t.Errorf("%s: trailer %v", name, resp.Trailer)
		}
	}
}

func TestCase45_InterimResponses(t *testing.T) {
	w := newWorld(t)
	port := w.rawOrigin("ok.test", func(c net.Conn, br *bufio.Reader) {
		for readRequest(br) != "" {
			fmt.Fprint(c, "HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\nHTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 102 Processing\r\n\r\n")
			fmt.Fprint(c, "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nfinal")
		}
	})
	w.grant(rule(t, "ok.test", port, "GET", "/**"))
	for name, how := range ways {
		c := w.client(how)
		for range 2 {
			if got := w.do(c, "GET", urlFor("https", "ok.test", port, "/x"), ""); got.status != 200 || got.body != "final" {
				t.Errorf("%s: %d %q %v", name, got.status, got.body, got.err)
			}
		}
	}
}

func TestMalformedUpstreams(t *testing.T) {
	for name, text := range map[string]string{
		"no HTTP":            "hello\r\n\r\n",
		"two lengths":        "HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nxx",
		"unknown coding":     "HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip\r\n\r\n",
		"unasked upgrade":    "HTTP/1.1 101 Switching Protocols\r\nUpgrade: h2c\r\nConnection: Upgrade\r\n\r\n",
		"only hints":         strings.Repeat("HTTP/1.1 103 Early Hints\r\n\r\n", 100),
		"status below 100":   "HTTP/1.1 099 OK\r\n\r\n",
		"header without end": "HTTP/1.1 200 OK\r\nX: y",
	} {
		w := newWorld(t)
		port := w.rawOrigin("ok.test", func(c net.Conn, br *bufio.Reader) {
			readRequest(br)
			_, _ = io.WriteString(c, text)
		})
		w.grant(rule(t, "ok.test", port, "GET", "/**"))
		got := w.do(w.client(transparent), "GET", urlFor("https", "ok.test", port, "/x"), "")
		if got.status != 502 {
			t.Errorf("%s: %d %v", name, got.status, got.err)
		}
	}
}

func TestCase47_LargeTransfers(t *testing.T) {
	w := newWorld(t)
	block := make([]byte, 1<<20)
	_, _ = rand.Read(block)
	const blocks = 24
	port := w.origin(func(rw http.ResponseWriter, r *http.Request) {
		if r.Method == "PUT" {
			n, err := io.Copy(io.Discard, r.Body)
			fmt.Fprint(rw, n, err)
			return
		}
		for range blocks {
			_, _ = rw.Write(block)
		}
	}, false, "ok.test")
	w.grant(rule(t, "ok.test", port, "GET,PUT", "/**", maxBody(1<<30)))
	for name, how := range ways {
		c := w.client(how)
		got := w.do(c, "GET", urlFor("https", "ok.test", port, "/x"), "")
		if got.err != nil || got.body != strings.Repeat(string(block), blocks) {
			t.Errorf("%s: %d bytes, %v", name, len(got.body), got.err)
		}
		up := w.do(c, "PUT", urlFor("https", "ok.test", port, "/x"), got.body)
		if want := fmt.Sprint(len(got.body), " <nil>"); up.body != want {
			t.Errorf("%s PUT: %q, want %q, %v", name, up.body, want, up.err)
		}
	}
}
