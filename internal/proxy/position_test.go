package proxy_test

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"

	"github.com/fractalboxdev/sbx/internal/egress"
	"github.com/fractalboxdev/sbx/internal/proxy"
)

func at(p proxy.Position) option { return func(cfg *proxy.Config) { cfg.Position = p } }

// openly lets tests dial loopback for hosts that no rule knows to be internal.
func openly(cfg *proxy.Config) {
	cfg.Vet = nil
	dial := cfg.Dial
	cfg.Dial = func(ctx context.Context, h egress.Host, port uint16, _ egress.AddressAllowance) (net.Conn, error) {
		return dial(ctx, h, port, egress.AllowInternal)
	}
}

// whole answers with everything that identifies the request.
func whole(w http.ResponseWriter, r *http.Request) {
	b, _ := io.ReadAll(r.Body)
	w.Header().Set("Set-Cookie", "s=1")
	fmt.Fprintf(w, "%s %s %d %s %s %s", r.Method, r.RequestURI, len(b), r.Header.Get("Authorization"), r.Header.Get("Cookie"), r.Header.Get("X-Original-Url"))
}

func TestVector27_ReportForwardsUntouched(t *testing.T) {
	for name, how := range ways {
		w := newWorld(t, at(proxy.Report), openly, credential(t, token, placeholder, required))
		port := w.origin(whole, false, "a.test", "b.test", "c.test")
		w.grant(rule(t, "a.test", port, "GET,POST", "/**", sends, maxBody(10)), rule(t, "c.test", port, "POST", "/**", maxBody(4<<20)))
		for _, c := range []struct {
			method, host, path, code string
			body                     int
			rows                     int
		}{
			{"GET", "a.test", "/x?token=own", "", 0, 1},
			{"GET", "b.test", "/x", "host-not-granted", 0, 1},
			{"DELETE", "a.test", "/x", "method-not-granted", 0, 1},
			{"GET", "a.test", "/a//b", "path-refused", 0, 1},
			{"POST", "a.test", "/x", "body-too-large", 5000, 1},
			{"POST", "a.test", "/x", "", 10, 1},
			{"POST", "c.test", "/x", "", 2 << 20, 1},
			{"GET", "a.test", "/x?a=" + ph, "placeholder-misplaced", 0, 1},
		} {
			for _, chunked := range []bool{false, true} {
				w.rows.clear()
				body := strings.Repeat("x", c.body)
				var got answer
				if chunked && c.body > 0 {
					got = w.doStream(w.client(how), c.method, urlFor("https", c.host, port, c.path), body)
				} else {
					got = w.do(w.client(how), c.method, urlFor("https", c.host, port, c.path), body, "Authorization", "Bearer own", "Cookie", "c=1", "X-Original-Url", "/y")
				}
				want := fmt.Sprintf("%s %s %d Bearer own c=1 /y", c.method, c.path, c.body)
				if got.body != want || got.header.Get("Set-Cookie") != "s=1" {
					t.Errorf("%s %s %s: %d %q %v, want %q", name, c.method, c.path, got.status, got.body, got.err, want)
				}
				rows := w.rows.all()
				if len(rows) != c.rows || rows[0].Verdict != "allow" || rows[0].WouldDeny != (c.code != "") || rows[0].Position != "report" || rows[0].Credential != "" {
					t.Errorf("%s %s %s: %+v", name, c.method, c.path, rows)
				}
				if c.code != "" && rows[0].Code != c.code {
					t.Errorf("%s %s %s: code %s, want %s", name, c.method, c.path, rows[0].Code, c.code)
				}
			}
		}
		if n := w.server.Injected()["test/c"]; n != 0 {
			t.Errorf("%s: injected %d times", name, n)
		}
	}
}

// doStream sends a body of unknown length.
func (w *world) doStream(c *http.Client, method, url, body string) answer {
	w.t.Helper()
	req, err := http.NewRequestWithContext(w.t.Context(), method, url, io.MultiReader(strings.NewReader(body)))
	if err != nil {
		w.t.Fatal(err)
	}
	for _, kv := range []string{"Authorization: Bearer own", "Cookie: c=1", "X-Original-Url: /y"} {
		k, v, _ := strings.Cut(kv, ": ")
		req.Header.Set(k, v)
	}
	resp, err := c.Do(req)
	if err != nil {
		return answer{err: err}
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	return answer{resp.StatusCode, resp.Status, resp.Header, string(b), err}
}

// A secret that is required and unset would have stopped the request.
func TestReportOfAMissingSecret(t *testing.T) {
	w := newWorld(t, at(proxy.Report), openly, credential(t, "", required))
	port := w.origin(whole, false, "a.test")
	w.grant(rule(t, "a.test", port, "GET", "/**", sends))
	got := w.do(w.client(transparent), "GET", urlFor("https", "a.test", port, "/x"), "")
	if rows := w.rows.all(); got.status != 200 || len(rows) != 1 || rows[0].Code != "credential-missing" || !rows[0].WouldDeny {
		t.Errorf("%d %+v", got.status, rows)
	}
}

// A cap that shows only while the body goes up is a second row, and cuts nothing.
func TestReportOfACapThatIsPassedOnTheWay(t *testing.T) {
	w := newWorld(t, at(proxy.Report), openly)
	port := w.origin(whole, false, "a.test")
	w.grant(rule(t, "a.test", port, "POST", "/**", maxBody(2<<20)))
	for name, how := range ways {
		w.rows.clear()
		got := w.doStream(w.client(how), "POST", urlFor("https", "a.test", port, "/x"), strings.Repeat("x", 3<<20))
		rows := w.rows.recorded(2)
		if got.status != 200 || !strings.Contains(got.body, fmt.Sprint(3<<20)) || rows[0].WouldDeny || rows[1].Code != "body-too-large" || !rows[1].WouldDeny || rows[1].ID != rows[0].ID {
			t.Errorf("%s: %d %q %+v", name, got.status, got.body, rows)
		}
	}
}

func TestLegacyOnlyLogs(t *testing.T) {
	w := newWorld(t, at(proxy.Legacy), openly)
	port := w.origin(whole, false, "a.test", "b.test")
	w.server.Apply(nil)
	for name, how := range ways {
		w.rows.clear()
		got := w.do(w.client(how), "POST", urlFor("https", "b.test", port, "/x?t=1"), "body", "Authorization", "Bearer own", "Cookie", "c=1", "X-Original-Url", "/y")
		rows := w.rows.all()
		if got.body != "POST /x?t=1 4 Bearer own c=1 /y" || len(rows) != 1 || rows[0].Denied() || rows[0].Code != "allowed" || rows[0].Position != "legacy" {
			t.Errorf("%s: %d %q %v %+v", name, got.status, got.body, got.err, rows)
		}
	}
	if !w.server.Applied() {
		t.Error("legacy without a grant is not the floor")
	}
	w.server.Floor()
	if got := w.do(w.client(transparent), "GET", urlFor("https", "b.test", port, "/x"), ""); got.status != 520 || w.server.Applied() {
		t.Errorf("after the revoke: %d", got.status)
	}
}

// Redirects go to the client as they are; what it asks next is judged then.
func TestReportPassesRedirects(t *testing.T) {
	w := newWorld(t, at(proxy.Report), openly)
	port := w.origin(redirector, false, "a.test", "evil.test")
	w.grant(rule(t, "a.test", port, "GET", "/**", follow))
	target := urlFor("https", "evil.test", port, "/x")
	got := w.do(w.client(transparent), "GET", urlFor("https", "a.test", port, to(302, target)), "")
	if got.status != 302 || got.header.Get("Location") != target || len(w.rows.all()) != 1 {
		t.Errorf("%d %v %+v", got.status, got.header, w.rows.all())
	}
}

// Malformed requests and internal addresses die in every position.
func TestEveryPositionRefusesMalformedRequestsAndInternalAddresses(t *testing.T) {
	for _, p := range []proxy.Position{proxy.Report, proxy.Legacy} {
		w := newWorld(t, at(p))
		port := w.origin(whole, false, "a.test", "in.test")
		w.grant(rule(t, "in.test", port, "GET", "/**"))
		if got := w.do(w.client(transparent), "GET", urlFor("https", "a.test", port, "/x"), ""); got.status != 403 || w.rows.all()[0].Code != "address-refused" || w.rows.all()[0].WouldDeny {
			t.Errorf("%s: internal: %d %+v", p, got.status, w.rows.all())
		}
		if got := w.do(w.client(transparent), "DELETE", urlFor("https", "in.test", port, "/x"), ""); got.status != 200 {
			t.Errorf("%s: internal by a rule: %d %q", p, got.status, got.body)
		}
		const both = "GET /x HTTP/1.1\r\nHost: in.test\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n"
		connect := fmt.Sprintf("CONNECT in.test:%d HTTP/1.1\r\nHost: in.test:%d\r\n\r\n", port, port)
		for text, want := range map[string]int{
			"GET /x HTTP/1.1\r\nHost: other.test\r\n\r\n": 421,
			"GET /a#b HTTP/1.1\r\nHost: in.test\r\n\r\n":  400,
			"GET /x HTTP/1.1\r\n\r\n":                     400,
			both:                                          400,
			connect:                                       403,
		} {
			w.rows.clear()
			c := w.rawTLS("in.test", "in.test", port)
			_, _ = io.WriteString(c, text)
			got := readAnswer(bufio.NewReader(c), "GET")
			_ = c.Close()
			if rows := w.rows.recorded(1); got.status != want || rows[0].Verdict != "deny" || rows[0].WouldDeny || rows[0].Position != p.String() {
				t.Errorf("%s %q: %d %+v", p, text, got.status, rows)
			}
		}
	}
}

// What is neither TLS nor HTTP is relayed, also when the server speaks first.
func TestReportRelaysOtherProtocols(t *testing.T) {
	for _, p := range []proxy.Position{proxy.Report, proxy.Legacy} {
		w := newWorld(t, at(p), openly)
		first := w.rawOrigin("", func(c net.Conn, br *bufio.Reader) {
			_, _ = io.WriteString(c, "220 hello\r\n")
			line, _ := br.ReadString('\n')
			_, _ = io.WriteString(c, "250 "+line)
		})
		inTLS := w.rawOrigin("s.test", func(c net.Conn, br *bufio.Reader) {
			line, _ := br.ReadString('\n')
			_, _ = io.WriteString(c, "got "+line)
		})
		w.grant(rule(t, "other.test", 443, "GET", "/**"))
		c := w.raw("s.test", first)
		br := bufio.NewReader(c)
		if line, err := br.ReadString('\n'); line != "220 hello\r\n" {
			t.Fatalf("%s: %q %v", p, line, err)
		}
		_, _ = io.WriteString(c, "\x00binary\n")
		if line, err := br.ReadString('\n'); line != "250 \x00binary\n" {
			t.Errorf("%s: %q %v", p, line, err)
		}
		_ = c.Close()
		s := w.rawTLS("s.test", "s.test", inTLS)
		_, _ = io.WriteString(s, "\x01\x02\x03 not http\n")
		if line, err := bufio.NewReader(s).ReadString('\n'); line != "got \x01\x02\x03 not http\n" {
			t.Errorf("%s in TLS: %q %v", p, line, err)
		}
		_ = s.Close()
		for _, row := range w.rows.recorded(2) {
			if row.Verdict != "allow" || row.WouldDeny != (p == proxy.Report) {
				t.Errorf("%s: %+v", p, row)
			}
		}
	}
}

func TestParsePosition(t *testing.T) {
	for _, p := range []proxy.Position{proxy.Enforce, proxy.Report, proxy.Legacy} {
		if got, err := proxy.ParsePosition(p.String()); got != p || err != nil {
			t.Errorf("%s: %s %v", p, got, err)
		}
	}
	if got, err := proxy.ParsePosition(""); got != proxy.Enforce || err != nil {
		t.Errorf("%s %v", got, err)
	}
	if _, err := proxy.ParsePosition("Report"); err == nil {
		t.Error("another spelling passed")
	}
}
