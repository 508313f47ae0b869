package proxy_test

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/fractalboxdev/sbx/internal/egress"
)

// chunked hides the length of a body from net/http.
type chunked struct{ io.Reader }

func (w *world) send(c *http.Client, method, url string, body io.Reader) answer {
	w.t.Helper()
	req, err := http.NewRequestWithContext(w.t.Context(), method, url, body)
	if err != nil {
		w.t.Fatal(err)
	}
	resp, err := c.Do(req)
	if err != nil {
		return answer{err: err}
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	return answer{resp.StatusCode, resp.Status, resp.Header, string(b), err}
}

func TestVector4_BodyCaps(t *testing.T) {
	for _, limit := range []int64{1 << 20, 3 << 20} { // judged whole, and streamed
		w := newWorld(t)
		var reached, complete atomic.Int64
		port := w.origin(func(rw http.ResponseWriter, r *http.Request) {
			reached.Add(1)
			n, err := io.Copy(io.Discard, r.Body)
			if err == nil {
				complete.Add(1)
			}
			fmt.Fprint(rw, n)
		}, false, "ok.test")
		w.grant(rule(t, "ok.test", port, "POST", "/**", maxBody(limit)))
		for name, how := range ways {
			c, url := w.client(how), urlFor("https", "ok.test", port, "/x")
			fits, over := strings.Repeat("b", int(limit)), strings.Repeat("b", int(limit)+1)
			for kind, body := range map[string]io.Reader{"length": strings.NewReader(fits), "chunked": chunked{strings.NewReader(fits)}} {
				if got := w.send(c, "POST", url, body); got.status != 200 || got.body != fmt.Sprint(limit) {
					t.Errorf("%s %s, %d bytes: %d %q %v", name, kind, limit, got.status, got.body, got.err)
				}
			}
			reached.Store(0)
			complete.Store(0)
			if got := w.send(c, "POST", url, strings.NewReader(over)); got.err == nil && got.status != 403 {
				t.Errorf("%s declared over: %d %v", name, got.status, got.err)
			}
			if reached.Load() != 0 {
				t.Errorf("%s: a declared length over the cap reached upstream", name)
			}
			if got := w.send(c, "POST", url, chunked{strings.NewReader(over)}); got.err == nil && got.status != 403 {
				t.Errorf("%s chunked over: %d %v", name, got.status, got.err)
			}
			if limit <= 1<<20 && reached.Load() != 0 || complete.Load() != 0 {
				t.Errorf("%s: a body over the cap reached upstream", name)
			}
		}
		denied := 0
		for _, row := range w.rows.all() {
			if row.Denied() {
				denied++
				if row.Code != "body-too-large" {
					t.Errorf("%+v", row)
				}
			}
		}
		if denied != 2*len(ways) {
			t.Errorf("cap %d: %d denials", limit, denied)
		}
	}
}

func TestVector14_BodyAssertions(t *testing.T) {
	w := newWorld(t)
	var reached atomic.Int64
	port := w.origin(func(http.ResponseWriter, *http.Request) { reached.Add(1) }, false, "ok.test")
	w.grant(rule(t, "ok.test", port, "POST", "/**", maxBody(256<<10), func(r *egress.Rule) {
		r.Body.JSON = []egress.JSONAssertion{{Pointer: "/operation", OneOf: []string{"download"}}}
	}))
	for body, status := range map[string]int{
		`{"operation":"download"}`: 200,
		`{"operation":"upload"}`:   403,
		`not json`:                 403,
		``:                         403,
		`{"operation":"download","operation":"upload"}`:  403,
		`{"operation":"download"}{"operation":"upload"}`: 403,
	} {
		for name, how := range ways {
			reached.Store(0)
			got := w.do(w.client(how), "POST", urlFor("https", "ok.test", port, "/x"), body, "Content-Type", "application/json")
			if got.status != status || (status == 200) != (reached.Load() == 1) {
				t.Errorf("%s %s: %d, reached %d times", name, body, got.status, reached.Load())
			}
		}
	}
}

func TestVector17_MethodsAndBodies(t *testing.T) {
	w := newWorld(t)
	port := w.origin(hello, false, "ok.test")
	w.grant(rule(t, "ok.test", port, "GET,DELETE", "/**", maxBody(100)))
	for name, how := range ways {
		for method, code := range map[string]string{"PUT": "method-not-granted", "GET": "body-not-granted", "DELETE": "body-not-granted"} {
			before := len(w.rows.all())
			got := w.do(w.client(how), method, urlFor("https", "ok.test", port, "/pkg"), "body")
			rows := w.rows.all()[before:]
			if got.status != 403 || len(rows) != 1 || rows[0].Code != code {
				t.Errorf("%s %s: %d %v %+v", name, method, got.status, got.err, rows)
			}
		}
	}
}

func TestVector28_SameDenialThreeTimes(t *testing.T) {
	w := newWorld(t)
	port := w.origin(hello, false, "ok.test")
	w.grant(rule(t, "ok.test", port, "GET", "/ok"))
	for range 3 {
		_ = w.do(w.client(transparent), "GET", urlFor("https", "ok.test", port, "/no?x=1"), "")
	}
	ids := map[uint64]bool{}
	for _, row := range w.rows.all() {
		ids[row.ID] = true
		if row.Path != "/no" || row.Code != "path-not-granted" {
			t.Errorf("%+v", row)
		}
	}
	if len(ids) != 3 {
		t.Errorf("%d ids", len(ids))
	}
}

func TestCase39_ExpectContinue(t *testing.T) {
	w := newWorld(t)
	body := strings.Repeat("b", 2<<20)
	port := w.rawOrigin("ok.test", func(c net.Conn, br *bufio.Reader) {
		h := readRequest(br)
		if !strings.Contains(h, "Expect: 100-continue\r\n") {
			t.Errorf("upstream saw %q", h)
		}
		if strings.Contains(h, "/early") {
			fmt.Fprint(c, "HTTP/1.1 417 Expectation Failed\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
			return
		}
		if !strings.Contains(h, "/ignores") {
			fmt.Fprint(c, "HTTP/1.1 100 Continue\r\n\r\n") // nothing came before
		}
		n, _ := io.CopyN(io.Discard, br, int64(len(body)))
		answer := fmt.Sprint(n)
		fmt.Fprintf(c, "HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s", len(answer), answer)
	})
	w.grant(rule(t, "ok.test", port, "PUT", "/**", maxBody(4<<20)))
	put := func(path, expect string) (*bufio.Reader, net.Conn) {
		c := w.rawTLS("ok.test", "ok.test", port)
		fmt.Fprintf(c, "PUT %s HTTP/1.1\r\nHost: ok.test:%d\r\nExpect: %s\r\nContent-Length: %d\r\n\r\n", path, port, expect, len(body))
		return bufio.NewReader(c), c
	}
	for path, expect := range map[string]string{"/x": "100-continue", "/y": "100-Continue", "/ignores": "100-continue"} {
		br, c := put(path, expect)
		if got := readRequest(br); got != "HTTP/1.1 100 Continue\r\n\r\n" {
			t.Fatalf("before the body: %q", got)
		}
		_, _ = io.WriteString(c, body)
		if got := readAnswer(br, "PUT"); got.status != 200 || got.body != fmt.Sprint(len(body)) {
			t.Fatalf("%+v", got)
		}
	}
	br, c := put("/early", "100-continue")
	go func() { _, _ = io.WriteString(c, body) }() // not every client waits
	if got := readAnswer(br, "PUT"); got.status != 417 {
		t.Errorf("early answer: %+v", got)
	}
}

func TestCase39_DeniedBeforeTheBody(t *testing.T) {
	w := newWorld(t)
	w.grant(rule(t, "ok.test", 443, "PUT", "/ok", maxBody(4<<20)))
	for text, want := range map[string]string{
		"PUT /no HTTP/1.1\r\nHost: ok.test\r\nExpect: 100-continue\r\nContent-Length: 1073741824\r\n\r\n": "sbx: path-not-granted test/put\n",
		"PUT /ok HTTP/1.1\r\nHost: ok.test\r\nExpect: 100-continue\r\nContent-Length: 1073741824\r\n\r\n": "sbx: body-too-large test/put\n",
		"PUT /no HTTP/1.1\r\nHost: ok.test\r\nContent-Length: 1073741824\r\n\r\nsome of the body":         "sbx: path-not-granted test/put\n",
	} {
		got := exchangeRaw(t, w.rawTLS("ok.test", "ok.test", 443), text)
		if !strings.HasPrefix(got, "HTTP/1.1 403 ") || !strings.HasSuffix(got, "\r\n\r\n"+want) || !strings.Contains(got, "Connection: close\r\n") {
			t.Errorf("%q", got)
		}
	}
}

func TestBufferedBodiesAreBounded(t *testing.T) {
	w := newWorld(t, func(c *proxyConfig) { c.Limits.BufferedBytes = 1000 })
	port := w.origin(hello, false, "ok.test")
	w.grant(rule(t, "ok.test", port, "POST", "/**", maxBody(10_000)))
	url := urlFor("https", "ok.test", port, "/x")
	c := w.client(transparent)
	for range 3 { // what was taken is given back before the connection's next request
		if got := w.do(c, "POST", url, strings.Repeat("b", 900)); got.status != 200 {
			t.Errorf("%d %v", got.status, got.err)
		}
	}
	if got := w.do(w.client(transparent), "POST", url, strings.Repeat("b", 1001)); got.status != 403 || !strings.Contains(got.body, "bound-bodies") {
		t.Errorf("%d %q", got.status, got.body)
	}
}

func TestUploadBudget(t *testing.T) {
	w := newWorld(t)
	port := w.origin(func(rw http.ResponseWriter, r *http.Request) { _, _ = io.Copy(rw, r.Body) }, false, "ok.test")
	w.grant(
		rule(t, "ok.test", port, "POST", "/count", maxBody(100), func(r *egress.Rule) { r.UploadBudget.Requests = 2 }),
		rule(t, "ok.test", port, "PUT", "/bytes", maxBody(8<<20), func(r *egress.Rule) { r.UploadBudget.Bytes = 3 << 20 }),
	)
	c := w.client(transparent)
	for i, want := range []int{200, 200, 403} {
		if got := w.do(c, "POST", urlFor("https", "ok.test", port, "/count"), "b"); got.status != want {
			t.Errorf("request %d: %d %q", i, got.status, got.body)
		}
	}
	for i, want := range []int{200, 0} {
		got := w.do(c, "PUT", urlFor("https", "ok.test", port, "/bytes"), strings.Repeat("b", 2<<20))
		if want == 200 && got.status != 200 || want == 0 && got.err == nil && got.status != 403 {
			t.Errorf("upload %d: %d %v", i, got.status, got.err)
		}
	}
	rows := w.rows.all()
	if last := rows[len(rows)-1]; last.Code != "upload-budget" {
		t.Errorf("%+v", last)
	}
}

func TestClientThatLeavesInItsBody(t *testing.T) {
	w := newWorld(t)
	cut := make(chan error, 1)
	port := w.origin(func(_ http.ResponseWriter, r *http.Request) {
		_, err := io.Copy(io.Discard, r.Body)
		cut <- err
	}, false, "ok.test")
	w.grant(rule(t, "ok.test", port, "PUT", "/**", maxBody(4<<20)))
	c := w.rawTLS("ok.test", "ok.test", port)
	fmt.Fprintf(c, "PUT /x HTTP/1.1\r\nHost: ok.test:%d\r\nContent-Length: 3000000\r\n\r\n%s", port, strings.Repeat("b", 10_000))
	w.rows.recorded(1)
	_ = c.NetConn().Close()
	if err := <-cut; err == nil {
		t.Error("a cut body looked complete upstream")
	}
	if done := w.rows.completed(1)[0]; done.Error == "" {
		t.Errorf("%+v", done)
	}
}
