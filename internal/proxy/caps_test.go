package proxy_test

import (
	"bytes"
	"compress/gzip"
	"compress/zlib"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/andybalholm/brotli"
	"github.com/klauspost/compress/zstd"

	"github.com/fractalboxdev/sbx/internal/egress"
	"github.com/fractalboxdev/sbx/internal/proxy"
)

// bodyCodings are the codings in which bodies are sent.
var bodyCodings = map[string]func(io.Writer) io.WriteCloser{
	"gzip":    func(w io.Writer) io.WriteCloser { return gzip.NewWriter(w) },
	"deflate": func(w io.Writer) io.WriteCloser { return zlib.NewWriter(w) },
	"br":      func(w io.Writer) io.WriteCloser { return brotli.NewWriter(w) },
	"zstd":    func(w io.Writer) io.WriteCloser { e, _ := zstd.NewWriter(w, zstd.WithEncoderConcurrency(1)); return e },
}

func coded(t testing.TB, coding, text string) []byte {
	t.Helper()
	var b bytes.Buffer
	e := bodyCodings[coding](&b)
	_, err := io.WriteString(e, text)
	if err = errors.Join(err, e.Close()); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// sink counts the bodies that arrive whole and answers with their length.
type sink struct{ whole atomic.Int64 }

func (s *sink) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	n, err := io.Copy(io.Discard, r.Body)
	if err == nil {
		s.whole.Add(1)
	}
	fmt.Fprint(w, n)
}

func (s *site) post(c *http.Client, url, coding string, body io.Reader) answer {
	s.t.Helper()
	req, err := http.NewRequestWithContext(s.t.Context(), "POST", url, body)
	if err != nil {
		s.t.Fatal(err)
	}
	req.Header.Set("Content-Encoding", coding)
	resp, err := c.Do(req)
	if err != nil {
		return answer{err: err}
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	return answer{resp.StatusCode, resp.Status, resp.Header, string(b), err}
}

// A cap holds for what the origin makes of a body, too, in every coding, judged whole
// or on its way, whether or not the body has a length.
func TestVector4_CapsCountDecodedBytes(t *testing.T) {
	for _, limit := range []int{64 << 10, 1<<20 + 1<<10} {
		target := &sink{}
		s := newSite(t, target.ServeHTTP, []string{"ok.test"})
		s.allow("ok.test", "POST", "/**", maxBody(int64(limit)))
		small, bomb := map[string][]byte{}, map[string][]byte{}
		for coding := range bodyCodings {
			small[coding], bomb[coding] = coded(t, coding, noisy(limit-100)), coded(t, coding, strings.Repeat("z", limit+1))
			if len(small[coding]) > limit || len(bomb[coding]) > limit/4 {
				t.Fatalf("%s: %d and %d bytes encoded show nothing", coding, len(small[coding]), len(bomb[coding]))
			}
		}
		for _, how := range []door{doors[0], doors[1], doors[2], {scheme: "https", name: "HTTP/2", client: transparentH2}} {
			c, url := s.client(how.client), s.url(how, "ok.test", "/x")
			for coding := range bodyCodings {
				small, bomb := small[coding], bomb[coding]
				what := fmt.Sprintf("%s, %s under %d", how.name, coding, limit)
				if got := s.post(c, url, coding, bytes.NewReader(small)); got.body != fmt.Sprint(len(small)) {
					t.Errorf("%s: what fits: %d %q %v", what, got.status, got.body, got.err)
				}
				if got := s.post(c, url, coding, chunked{bytes.NewReader(small)}); got.body != fmt.Sprint(len(small)) {
					t.Errorf("%s: what fits, chunked: %d %q %v", what, got.status, got.body, got.err)
				}
				target.whole.Store(0)
				for kind, body := range map[string]io.Reader{"length": bytes.NewReader(bomb), "chunked": chunked{bytes.NewReader(bomb)}} {
					s.world.rows.clear()
					if got := s.post(c, url, coding, body); got.err == nil && got.status != 403 {
						t.Errorf("%s, %s: %d %q", what, kind, got.status, got.body)
					}
					s.lastIs(what+" "+kind, egress.CodeBodyTooLarge)
				}
				if n := target.whole.Load(); n != 0 {
					t.Errorf("%s: %d bodies over the cap arrived whole", what, n)
				}
			}
		}
	}
}

// lastIs waits for a denial of what was just asked.
func (s *site) lastIs(what string, code egress.Code) {
	s.t.Helper()
	rows := s.world.rows.all()
	if len(rows) == 0 || !rows[len(rows)-1].Denied() || rows[len(rows)-1].Code != string(code) {
		s.t.Errorf("%s: want %s, got %+v", what, code, rows)
	}
}

// noisy is text of n bytes that does not shrink to next to nothing.
func noisy(n int) string {
	var b strings.Builder
	for i := uint32(1); b.Len() < n; i = i*1664525 + 1013904223 {
		fmt.Fprintf(&b, "%x", i)
	}
	return b.String()[:n]
}

// What cannot be decoded has no size, so no cap can hold for it.
func TestVector4_CodingsThatCannotBeCounted(t *testing.T) {
	for _, limit := range []int64{1000, 3 << 20} {
		target := &sink{}
		s := newSite(t, target.ServeHTTP, []string{"ok.test"})
		s.allow("ok.test", "POST", "/**", maxBody(limit))
		whole := coded(t, "gzip", "hello hello hello")
		for _, d := range doors {
			for name, c := range map[string]struct{ coding, body string }{
				"unknown": {"compress", "x"}, "two": {"gzip, gzip", "x"}, "two fields": {"gzip\r\nContent-Encoding: br", "x"}, "cut": {"gzip", string(whole[:20])},
				"more": {"gzip", string(whole) + "more"}, "none": {"gzip", "hello"}, "empty zstd": {"zstd", "hello"}, "br": {"br", "\xff\xff\xff\xff"},
			} {
				text := fmt.Sprintf("POST /x HTTP/1.1\r\nHost: HOST\r\nConnection: close\r\nContent-Encoding: %s\r\nContent-Length: %d\r\n\r\n%s", c.coding, len(c.body), c.body)
				got, rows := s.answer(d, "ok.test", "POST", text)
				if got.err == nil && got.status != 403 && got.status != 400 {
					t.Errorf("%s, %s under %d: %+v", d.name, name, limit, got)
				}
				if last := rows[len(rows)-1]; !last.Denied() || last.Code != "body-encoding" && last.Code != "malformed-request" {
					t.Errorf("%s, %s under %d: %+v", d.name, name, limit, rows)
				}
			}
			signed := "5;chunk-signature=0\r\nhello\r\n0;chunk-signature=0\r\n\r\n"
			for _, c := range [][2]string{{"aws-chunked", signed}, {"identity", "hello"}, {"gzip", string(whole)}} {
				text := fmt.Sprintf("POST /x HTTP/1.1\r\nHost: HOST\r\nConnection: close\r\nContent-Encoding: %s\r\nContent-Length: %d\r\n\r\n%s", c[0], len(c[1]), c[1])
				if got, _ := s.answer(d, "ok.test", "POST", text); got.body != fmt.Sprint(len(c[1])) {
					t.Errorf("%s, %s: %+v", d.name, c[0], got)
				}
			}
		}
		if n := target.whole.Load(); n != 9 {
			t.Errorf("under %d: %d bodies arrived whole, want the 9 that are fine", limit, n)
		}
	}
}

// Under report nothing is cut, and what would have been is said.
func TestReportOfADecodedCap(t *testing.T) {
	target := &sink{}
	s := newSite(t, target.ServeHTTP, []string{"ok.test"}, func(c *proxyConfig) { c.Position = proxy.Report })
	s.allow("ok.test", "POST", "/**", maxBody(3<<20))
	bomb := coded(t, "gzip", strings.Repeat("z", 4<<20))
	for _, d := range doors {
		for body, code := range map[string]string{string(bomb): "body-too-large", "no gzip at all": "body-encoding"} {
			s.world.rows.clear()
			got := s.post(s.client(d.client), s.url(d, "ok.test", "/x"), "gzip", strings.NewReader(body))
			if got.body != fmt.Sprint(len(body)) {
				t.Errorf("%s: %d %q %v", d.name, got.status, got.body, got.err)
			}
			rows := s.world.rows.recorded(2)
			if rows[1].Code != code || !rows[1].WouldDeny || rows[1].Verdict != "allow" {
				t.Errorf("%s: %+v", d.name, rows)
			}
		}
	}
}

// Of several rules that take a body, the one that takes most counts, whether or not its
// size is known at the beginning.
func TestUnionOfCaps(t *testing.T) {
	target := &sink{}
	s := newSite(t, target.ServeHTTP, []string{"ok.some.test"})
	asserts := func(r *egress.Rule) {
		r.MaxBody, r.Body.JSON = 8<<20, []egress.JSONAssertion{{Pointer: "/a", OneOf: []string{"b"}}}
	}
	s.grant(append(s.rules("ok.some.test", "POST", "/**", maxBody(1000)),
		append(s.rules("*.some.test", "POST", "/**", maxBody(2<<20)), s.rules("ok.some.test", "POST", "/json", asserts)...)...)...)
	large := fmt.Sprintf(`{"a":"b","x":"%s"}`, strings.Repeat("x", 5<<20))
	for _, d := range doors {
		for _, body := range []func(string) io.Reader{func(s string) io.Reader { return strings.NewReader(s) }, func(s string) io.Reader { return chunked{strings.NewReader(s)} }} {
			for path, text := range map[string]string{"/x": strings.Repeat("x", 2<<20), "/json": large} {
				req, err := http.NewRequestWithContext(t.Context(), "POST", s.url(d, "ok.some.test", path), body(text))
				if err != nil {
					t.Fatal(err)
				}
				req.Header.Set("Content-Type", "application/json")
				resp, err := s.client(d.client).Do(req)
				if err != nil {
					t.Fatalf("%s %s: %v", d.name, path, err)
				}
				b, _ := io.ReadAll(resp.Body)
				_ = resp.Body.Close()
				if string(b) != fmt.Sprint(len(text)) {
					t.Errorf("%s %s: %d %q", d.name, path, resp.StatusCode, b)
				}
			}
		}
	}
}
