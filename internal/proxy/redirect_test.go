package proxy_test

import (
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"testing"

	"github.com/fractalboxdev/sbx/internal/egress"
)

// redirector answers /to/<status>?<url, escaped> with a redirect there, /loop with
// the next one, and anything else with what arrived.
func redirector(w http.ResponseWriter, r *http.Request) {
	if status, ok := strings.CutPrefix(r.URL.Path, "/to/"); ok && len(status) == 3 {
		n, _ := strconv.Atoi(status)
		to, _ := url.QueryUnescape(r.URL.RawQuery)
		w.Header().Set("Location", to)
		w.WriteHeader(n)
		return
	}
	if strings.HasPrefix(r.URL.Path, "/loop") {
		w.Header().Set("Location", r.URL.Path+"x")
		w.WriteHeader(http.StatusFound)
		return
	}
	b, _ := io.ReadAll(r.Body)
	fmt.Fprintf(w, "%s %s body=%q type=%q", r.Method, r.RequestURI, b, r.Header.Get("Content-Type"))
}

func to(status int, target string) string {
	return fmt.Sprintf("/to/%d?%s", status, url.QueryEscape(target))
}

// redirectWorld grants start.test with the given mode, and end.test for GET below /end.
func redirectWorld(t *testing.T, f ...func(*egress.Rule)) (*world, uint16) {
	w := newWorld(t)
	port := w.origin(redirector, false, "start.test", "end.test")
	w.grant(
		rule(t, "start.test", port, "GET,POST", "/**", append(f, func(r *egress.Rule) { r.ID, r.MaxBody = "test/start", 1<<20 })...),
		rule(t, "end.test", port, "GET", "/end/**", func(r *egress.Rule) { r.ID = "test/end" }),
	)
	return w, port
}

func TestRedirectPass(t *testing.T) {
	w, port := redirectWorld(t)
	granted := urlFor("https", "end.test", port, "/end/x?q=1")
	for name, how := range ways {
		c := w.client(how)
		got := w.do(c, "GET", urlFor("https", "start.test", port, to(302, granted)), "")
		if got.status != 302 || got.header.Get("Location") != granted {
			t.Errorf("%s: %d %v %v", name, got.status, got.header, got.err)
		}
		if n := len(w.rows.all()); n != 1 {
			t.Errorf("%s: %d records: a passed redirect is not a request yet", name, n)
		}
		w.rows.clear()
	}
}

func (r *rows) clear() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.requests, r.done = nil, nil
}

func TestVector10_RedirectsOutOfTheGrant(t *testing.T) {
	for name, mode := range map[string]func(*egress.Rule){"pass": func(*egress.Rule) {}, "follow": follow} {
		w, port := redirectWorld(t, mode)
		for target, host := range map[string]string{
			"https://gist.test/x":                          "gist.test",
			urlFor("http", "end.test", port, "/end/x"):     "end.test",
			"https://evil.test/":                           "evil.test",
			"//evil.test/x":                                "evil.test",
			urlFor("https", "end.test", port, "/other"):    "end.test",
			urlFor("https", "end.test", port+1, "/end/x"):  "end.test",
			urlFor("https", "end.test", port, "/end/../x"): "end.test",
			"javascript:alert(1)":                          "start.test",
			"https://start.test@evil.test/":                "start.test",
			"https://evil.test\\@start.test/":              "start.test",
			"https:evil.test":                              "start.test",
		} {
			before := len(w.rows.all())
			got := w.do(w.client(transparent), "GET", urlFor("https", "start.test", port, to(302, target)), "")
			if got.status != 403 || got.header.Get("Location") != "" {
				t.Errorf("%s %s: %d %v", name, target, got.status, got.err)
			}
			rows := w.rows.all()[before:]
			if len(rows) != 2 || rows[1].Code != "redirect-not-granted" || rows[1].Host != host || !strings.HasPrefix(rows[1].RedirectedFrom, "GET https://start.test:") {
				t.Errorf("%s %s: %+v", name, target, rows)
			}
		}
		if w.dials.count("evil.test")+w.dials.count("gist.test")+w.dials.count("end.test") != 0 {
			t.Error("a refused target was dialled")
		}
	}
}

func TestTwoLocations(t *testing.T) {
	w := newWorld(t)
	port := w.origin(func(rw http.ResponseWriter, _ *http.Request) {
		rw.Header()["Location"] = []string{"/end/a", "https://evil.test/"}
		rw.WriteHeader(http.StatusFound)
	}, false, "start.test")
	w.grant(rule(t, "start.test", port, "GET", "/**"))
	if got := w.do(w.client(transparent), "GET", urlFor("https", "start.test", port, "/x"), ""); got.status != 403 {
		t.Errorf("%d %v", got.status, got.err)
	}
}

func TestVector8_FollowedRedirect(t *testing.T) {
	w, port := redirectWorld(t, follow)
	for name, how := range ways {
		w.rows.clear()
		got := w.do(w.client(how), "GET", urlFor("https", "start.test", port, to(302, urlFor("https", "end.test", port, "/end/x?a=%2f|"))), "")
		if got.status != 200 || got.body != `GET /end/x?a=%2f| body="" type=""` {
			t.Errorf("%s: %d %q %v", name, got.status, got.body, got.err)
		}
		rows := w.rows.all()
		if len(rows) != 2 || rows[1].Verdict != "allow" || rows[1].Host != "end.test" || rows[1].RedirectedFrom == "" || rows[1].ID == rows[0].ID {
			t.Errorf("%s: %+v", name, rows)
		}
		if done := w.rows.completed(2); done[0].Status != 0 || done[1].Status != 200 {
			t.Errorf("%s: %+v", name, done)
		}
	}
}

func TestVector9_FollowedRedirectIsNamed(t *testing.T) {
	w, port := redirectWorld(t, follow)
	got := w.do(w.client(transparent), "GET", urlFor("https", "start.test", port, to(302, urlFor("https", "end.test", port, "/other/repo"))), "")
	if got.status != 403 || got.body != "sbx: redirect-not-granted test/end\n" {
		t.Errorf("%d %q", got.status, got.body)
	}
	row := w.rows.all()[1]
	if row.Host != "end.test" || row.Path != "/other/repo" || !strings.Contains(row.Reason, "redirected from GET https://start.test") {
		t.Errorf("%+v", row)
	}
}

func TestVector11_SixthRedirect(t *testing.T) {
	w, port := redirectWorld(t, follow)
	got := w.do(w.client(transparent), "GET", urlFor("https", "start.test", port, "/loop"), "")
	rows := w.rows.all()
	if got.status != 403 || len(rows) != 7 || rows[6].Code != "redirect-hops" || rows[5].Verdict != "allow" {
		t.Errorf("%d %v, %d rows: %+v", got.status, got.err, len(rows), rows)
	}
}

func TestVector12_307KeepsMethodAndIsJudged(t *testing.T) {
	for name, mode := range map[string]func(*egress.Rule){"pass": func(*egress.Rule) {}, "follow": follow} {
		w, port := redirectWorld(t, mode)
		got := w.do(w.client(transparent), "POST", urlFor("https", "start.test", port, to(307, urlFor("https", "end.test", port, "/end/x"))), "body")
		rows := w.rows.all()
		if got.status != 403 || len(rows) != 2 || rows[1].Method != "POST" || rows[1].Host != "end.test" {
			t.Errorf("%s: %d %v %+v", name, got.status, got.err, rows)
		}
	}
}

func TestRedirect307OnTheSameHostKeepsTheBody(t *testing.T) {
	w, port := redirectWorld(t, follow)
	for name, how := range ways {
		got := w.do(w.client(how), "POST", urlFor("https", "start.test", port, to(308, "/end/y")), "body", "Content-Type", "text/x")
		if got.body != `POST /end/y body="body" type="text/x"` {
			t.Errorf("%s: %d %q %v", name, got.status, got.body, got.err)
		}
	}
}

func TestVector13_302OnPostBecomesGet(t *testing.T) {
	w, port := redirectWorld(t, follow)
	got := w.do(w.client(transparent), "POST", urlFor("https", "start.test", port, to(302, urlFor("https", "end.test", port, "/end/x"))), "body", "Content-Type", "text/x")
	if got.status != 200 || got.body != `GET /end/x body="" type=""` {
		t.Errorf("%d %q %v", got.status, got.body, got.err)
	}
	if got = w.do(w.client(transparent), "HEAD", urlFor("https", "start.test", port, to(302, urlFor("https", "end.test", port, "/end/x"))), ""); got.status != 200 {
		t.Errorf("HEAD: %d %v", got.status, got.err)
	}
}

func TestRelativeLocations(t *testing.T) {
	w, port := redirectWorld(t, follow)
	for target, want := range map[string]string{
		"next?a=1":  "/to/next?a=1",
		"../../y":   "/y",
		"./z":       "/to/z",
		"?only=q":   "/to/302?only=q",
		"/abs#frag": "/abs",
	} {
		w.rows.clear()
		_ = w.do(w.client(transparent), "GET", urlFor("https", "start.test", port, to(302, target)), "")
		rows := w.rows.all()
		path, _, _ := strings.Cut(want, "?")
		if len(rows) < 2 || rows[1].Path != path {
			t.Errorf("%s: %+v", target, rows)
		}
	}
}
