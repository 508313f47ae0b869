package proxy_test

import (
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"

	"github.com/fractalboxdev/sbx/internal/egress"
	"github.com/fractalboxdev/sbx/internal/event"
)

// The host that a granted one redirects to is not granted with it: the request ends at
// once, and the record says where from and where to.
func TestBypass75_RedirectsToAnotherHostAreNamed(t *testing.T) {
	s := newSite(t, func(rw http.ResponseWriter, r *http.Request) {
		_, port, _ := strings.Cut(r.Host, ":")
		scheme := "http"
		if r.TLS != nil {
			scheme = "https"
		}
		rw.Header().Set("Location", fmt.Sprintf("%s://release-assets.test:%s/1/2?sig=abc", scheme, port))
		rw.WriteHeader(http.StatusFound)
	}, []string{"code.test", "release-assets.test"})
	for _, mode := range []func(*egress.Rule){func(*egress.Rule) {}, follow} {
		s.grant(s.rules("code.test", "GET", "/acme/widget/releases/**", mode)...)
		eachDoor(t, func(t *testing.T, d door) {
			got, rows := s.answer(d, "code.test", "GET", "GET /acme/widget/releases/v1.tgz HTTP/1.1\r\nHost: HOST\r\n\r\n")
			if got.status != 403 || !strings.HasPrefix(got.body, "sbx: redirect-not-granted") || got.header.Get("Location") != "" {
				t.Errorf("%+v", got)
			}
			if len(rows) != 2 || rows[1].Code != "redirect-not-granted" || rows[1].Host != "release-assets.test" || rows[1].Path != "/1/2" ||
				rows[1].RedirectedFrom != "GET "+s.url(d, "code.test", "/acme/widget/releases/v1.tgz") {
				t.Errorf("%+v", rows)
			}
		})
	}
	s.noDials("release-assets.test")
}

// What a rule covers, and what it does not: paths of one organisation, a wildcard
// without its apex, one label and no more.
func TestBypass76_ScopesCoverWhatTheySay(t *testing.T) {
	s := newSite(t, hello, []string{"api.test", "x.cdn.test", "y.x.cdn.test", "cdn.test"})
	s.grant(append(s.rules("api.test", "GET", "/repos/acme/**"), s.rules("*.cdn.test", "GET", "/**")...)...)
	eachDoor(t, func(t *testing.T, d door) {
		for _, c := range []struct {
			host, path string
			status     int
		}{
			{"api.test", "/repos/acme/widget", 200},
			{"api.test", "/repos/acme-evil/widget", 403},
			{"api.test", "/repos/other/widget", 403},
			{"api.test", "/orgs/acme", 403},
			{"x.cdn.test", "/f", 200},
			{"cdn.test", "/f", 520},
			{"y.x.cdn.test", "/f", 520},
			{"evilcdn.test", "/f", 520},
			{"sub.api.test", "/repos/acme/widget", 520},
		} {
			got, rows := s.answer(d, c.host, "GET", "GET "+c.path+" HTTP/1.1\r\nHost: HOST\r\n\r\n")
			if got.status != c.status || len(rows) != 1 || rows[0].Denied() != (c.status != 200) {
				t.Errorf("%s%s: %+v %+v", c.host, c.path, got, rows)
			}
		}
	})
	s.noDials("cdn.test", "y.x.cdn.test", "evilcdn.test", "sub.api.test")
}

// A refusal names its rule or code inside, so that a program's message has it, and all
// the rest is in the record only. It is the last word on its connection.
func TestBypass77_RefusalsSayWhatAndNoMore(t *testing.T) {
	s := newSite(t, hello, []string{"api.test"})
	s.allow("api.test", "GET", "/repos/acme/**")
	eachDoor(t, func(t *testing.T, d door) {
		for _, c := range []struct {
			host, text, reason, body string
			why                      string // in the record
		}{
			{"api.test", "GET /orgs HTTP/1.1", "403 sbx path-not-granted", "sbx: path-not-granted test/get\n", "path is not granted, test/get grants /repos/acme/**"},
			{"api.test", "PUT /repos/acme/x HTTP/1.1", "403 sbx method-not-granted", "sbx: method-not-granted test/get\n", "method is not granted, test/get grants GET"},
			{"other.test", "GET /x HTTP/1.1", "520 sbx host-not-granted", "", "host is not granted by test"},
			{"api.test", "GET /x/../y HTTP/1.1", "403 sbx path-refused", "sbx: path-refused test/get\n", "dot segment"},
		} {
			got, rows := s.answer(d, c.host, "GET", c.text+"\r\nHost: HOST\r\n\r\n")
			if got.reason != c.reason || got.body != c.body || got.header.Get("Connection") != "close" && !closes(got) {
				t.Errorf("%s: %+v", c.text, got)
			}
			if len(rows) != 1 || !strings.Contains(rows[0].Reason, c.why) || rows[0].Host != c.host {
				t.Errorf("%s: %+v", c.text, rows)
			}
			for name := range got.header {
				if name != "Content-Length" && name != "Content-Type" && name != "Connection" {
					t.Errorf("%s: the answer has %s", c.text, name)
				}
			}
		}
	})
}

// closes reports whether net/http took "Connection: close" out of an answer's header.
func closes(a answer) bool { return a.header.Get("Connection") == "" }

// The same request ends in the same way however often, at once, and through whichever
// door it is made.
func TestBypass66_DecisionsDoNotVary(t *testing.T) {
	s := newSite(t, hello, []string{"api.test", "x.cdn.test"}, patient)
	s.grant(append(append(s.rules("api.test", "GET", "/repos/acme/**", func(r *egress.Rule) { r.ID = "test/a" }), s.rules("api.test", "GET,POST", "/repos/*/x", func(r *egress.Rule) { r.ID = "test/b" })...),
		s.rules("*.cdn.test", "GET", "/**", func(r *egress.Rule) { r.ID = "test/c" })...)...)
	var mu sync.Mutex
	seen := map[string]map[string]int{}
	eachDoor(t, func(t *testing.T, d door) {
		var wg sync.WaitGroup
		for _, c := range []string{"api.test GET /repos/acme/x", "api.test GET /repos/other/y", "api.test PUT /repos/acme/x", "x.cdn.test GET /f", "cdn.test GET /f", "other.test GET /f"} {
			for range 20 {
				wg.Go(func() {
					f := strings.Fields(c)
					got := s.do(s.client(d.client), f[1], s.url(d, f[0], f[2]), "")
					mu.Lock()
					defer mu.Unlock()
					if seen[c] == nil {
						seen[c] = map[string]int{}
					}
					seen[c][fmt.Sprint(got.status, got.body, got.err)]++
				})
			}
		}
		wg.Wait()
	})
	for c, results := range seen {
		if len(results) != 1 {
			t.Errorf("%s: %v", c, results)
		}
	}
	rules := map[string]map[string]bool{}
	for _, row := range s.world.rows.all() {
		key := fmt.Sprint(row.Host, row.Method, row.Path)
		if rules[key] == nil {
			rules[key] = map[string]bool{}
		}
		rules[key][verdictOf(row)] = true
	}
	for key, verdicts := range rules {
		if len(verdicts) != 1 {
			t.Errorf("%s: %v", key, verdicts)
		}
	}
}

func verdictOf(row event.Request) string { return row.Verdict + " " + row.Code + " " + row.Rule }
