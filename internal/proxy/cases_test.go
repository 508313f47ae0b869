package proxy_test

import (
	"bytes"
	"compress/gzip"
	"context"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"testing"

	"github.com/fractalboxdev/sbx/internal/egress"
	"github.com/fractalboxdev/sbx/internal/event"
	"github.com/fractalboxdev/sbx/internal/upstream"
)

// Scoped packages under the three spellings of a rule; the wire keeps what was written.
func TestCase55_ScopedPackages(t *testing.T) {
	for pattern, c := range map[string]struct{ allowed, refused []string }{
		"/**": {[]string{"/@types/node", "/@types%2fnode", "/@types%2Fnode", "/left-pad"}, nil},
		// A slash in a pattern is a slash: clients that encode it need the other spelling.
		"/@types/*":   {[]string{"/@types/node"}, []string{"/@types%2fnode", "/@types/node/x", "/@typesX/node"}},
		"/@types%2f*": {[]string{"/@types%2fnode", "/@types%2Fnode", "/%40types%2fnode"}, []string{"/@types/node", "/@types%2f", "/@types%2fa%2fb"}},
	} {
		s := newSite(t, hello, []string{"npm.test"})
		s.allow("npm.test", "GET", pattern)
		eachDoor(t, func(t *testing.T, d door) {
			for _, target := range c.allowed {
				if got, _ := s.answer(d, "npm.test", "GET", "GET "+target+" HTTP/1.1\r\nHost: HOST\r\n\r\n"); got.body != "hello GET "+target {
					t.Errorf("%s, %s: %+v", pattern, target, got)
				}
			}
			traps := []string{"/@types%252fnode", "/@types%2f..%2f..%2fadmin", "/@types%5cnode", "/%2e%2e/admin", "/@types%2f%2e%2e%2fadmin"}
			if pattern != "/**" {
				traps = append(traps, "/@typesX%2fnode")
			}
			for _, target := range append(traps, c.refused...) {
				got, rows := s.answer(d, "npm.test", "GET", "GET "+target+" HTTP/1.1\r\nHost: HOST\r\n\r\n")
				if got.status != 403 || len(rows) != 1 {
					t.Errorf("%s, %s: %+v", pattern, target, got)
				}
			}
		})
	}
}

// IPv6 is judged as IPv4 is, and a name that has nothing else is reached.
func TestCase58_IPv6(t *testing.T) {
	v6 := func(c *proxyConfig) {
		d := upstream.New(upstream.Options{Lookup: func(context.Context, string) ([]netip.Addr, error) { return []netip.Addr{netip.IPv6Loopback()}, nil }})
		c.Vet, c.Dial = d.Vet, d.Dial
	}
	w := newWorld(t, v6)
	s := &site{w, map[string]uint16{"http": w.originAt("[::1]:0", ""), "https": w.originAt("[::1]:0", "::1", "only6.test")}}
	eachDoor(t, func(t *testing.T, d door) {
		text := fmt.Sprintf("GET /x HTTP/1.1\r\nHost: [::1]:%d\r\n\r\n", s.ports[d.scheme])
		got, rows := s.answer(withoutName(d), "::1", "GET", text)
		if got.status != 520 {
			t.Errorf("ungranted: %+v", got)
		}
		denied(t, "ungranted", rows, egress.CodeHostNotGranted)
		if len(rows) == 1 && rows[0].Host != "::1" {
			t.Errorf("%+v", rows)
		}
	})
	s.grant(append(s.rules("::1", "GET", "/**"), s.rules("only6.test", "GET", "/**")...)...)
	eachDoor(t, func(t *testing.T, d door) {
		text := fmt.Sprintf("GET /x HTTP/1.1\r\nHost: [::1]:%d\r\n\r\n", s.ports[d.scheme])
		if got, _ := s.answer(withoutName(d), "::1", "GET", text); got.body != "hello GET /x" {
			t.Errorf("granted address: %+v", got)
		}
		if got, _ := s.answer(d, "only6.test", "GET", "GET /x HTTP/1.1\r\nHost: HOST\r\n\r\n"); got.body != "hello GET /x" {
			t.Errorf("a name with AAAA only: %+v", got)
		}
	})
}

// originAt is an origin on an address of its own.
func (w *world) originAt(address string, names ...string) uint16 {
	w.t.Helper()
	l, err := net.Listen("tcp", address)
	if err != nil {
		w.t.Fatal(err)
	}
	if names[0] != "" {
		var leaves []tls.Certificate
		for _, name := range names {
			leaf, err := w.up.Leaf(name)
			if err != nil {
				w.t.Fatal(err)
			}
			leaves = append(leaves, *leaf)
		}
		l = tls.NewListener(l, &tls.Config{Certificates: leaves})
	}
	srv := &http.Server{Handler: http.HandlerFunc(hello)}
	done := make(chan struct{})
	go func() { defer close(done); _ = srv.Serve(l) }()
	w.t.Cleanup(func() { _ = srv.Close(); <-done })
	return netip.MustParseAddrPort(l.Addr().String()).Port()
}

// A refusal is short, final and says sbx, over HTTP/2 as well.
func TestCase64_RefusalsAreFinal(t *testing.T) {
	s := newSite(t, hello, []string{"ok.test"})
	s.allow("ok.test", "GET", "/ok/**")
	eachDoor(t, func(t *testing.T, d door) {
		for host, want := range map[string]string{"ok.test": "403 sbx path-not-granted", "no.test": "520 sbx host-not-granted"} {
			got, rows := s.ask(d, host, "GET /no HTTP/1.1\r\nHost: HOST\r\n\r\nGET /no HTTP/1.1\r\nHost: HOST\r\n\r\n")
			if !strings.HasPrefix(got, "HTTP/1.1 "+want+"\r\n") || strings.Count(got, "HTTP/1.1") != 1 || !strings.Contains(got, "Connection: close") || len(rows) != 1 || strings.Contains(got, "Retry-After") {
				t.Errorf("%s: %q %+v", host, got, rows)
			}
		}
		if d.scheme == "http" {
			return
		}
		for host, want := range map[string]string{"ok.test": "403 sbx: path-not-granted test/get", "no.test": "520"} {
			c := newRawH2(t, s.tunnelTo(d, host, host, "h2"))
			id := c.headers(t, true, ":method", "GET", ":scheme", "https", ":authority", s.authority(d, host), ":path", "/no")
			if got := c.result(id); got != want {
				t.Errorf("HTTP/2, %s: %q", host, got)
			}
		}
	})
}

// Each denial says its own cause, and what is not one is none.
func TestCase65_DenialsSayTheirCause(t *testing.T) {
	s := newSite(t, func(rw http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/theirs":
			http.Error(rw, "forbidden by the host itself", http.StatusForbidden)
		case "/theirs520":
			rw.WriteHeader(520)
		case "/theirs401":
			rw.Header().Set("WWW-Authenticate", "Basic")
			rw.WriteHeader(http.StatusUnauthorized)
		case "/away":
			rw.Header().Set("Location", "https://away.test/x?y=z")
			rw.WriteHeader(http.StatusFound)
		}
	}, []string{"ok.test"})
	asserts := func(r *egress.Rule) {
		r.ID, r.MaxBody, r.Body.JSON = "test/json", 100, []egress.JSONAssertion{{Pointer: "/a", OneOf: []string{"b"}}}
	}
	rules := append(s.rules("ok.test", "GET", "/**", func(r *egress.Rule) { r.ID = "test/read" }), s.rules("ok.test", "POST", "/json", asserts)...)
	wrong := s.origin(hello, false, "other.test")
	s.grant(append(rules, rule(t, "wrong.test", wrong, "GET", "/**"))...)
	eachDoor(t, func(t *testing.T, d door) {
		port := s.ports[d.scheme]
		for _, c := range []struct {
			host, text string
			want       event.Request
		}{
			{"no.test", "GET /p?q=secret HTTP/1.1", event.Request{Code: "host-not-granted", Source: event.SourceGate, Method: "GET", Path: "/p"}},
			{"ok.test", "DELETE /p HTTP/1.1", event.Request{Code: "method-not-granted", Rule: "test/read", Method: "DELETE", Path: "/p"}},
			{"ok.test", "POST /json HTTP/1.1\r\nContent-Type: application/json\r\nContent-Length: 9\r\n\r\n{\"a\":\"c\"}", event.Request{Code: "body-assertion", Rule: "test/json", Method: "POST", Path: "/json"}},
			{"ok.test", "POST /json HTTP/1.1\r\nContent-Length: 101", event.Request{Code: "body-too-large", Rule: "test/json", Method: "POST", Path: "/json"}},
			{"ok.test", "GET /p HTTP/1.1\r\nContent-Length: 1\r\n\r\nx", event.Request{Code: "body-not-granted", Rule: "test/read", Method: "GET", Path: "/p"}},
			{"ok.test", "GET /a\\b HTTP/1.1", event.Request{Code: "path-refused", Rule: "test/read", Method: "GET", Path: "/a\\b"}},
		} {
			head, body, _ := strings.Cut(c.text, "\r\n\r\n")
			got, rows := s.answer(d, c.host, "GET", head+"\r\nHost: "+c.host+".:"+fmt.Sprint(port)+"\r\n\r\n"+body) // with the dot of a fully qualified name
			denied(t, c.text, rows, egress.Code(c.want.Code))
			if len(rows) != 1 {
				continue
			}
			row := rows[0]
			if c.want.Source == "" {
				c.want.Source = event.SourceHandler
			}
			if row.Host != c.host || row.Port != port || row.Protocol != d.scheme || row.Method != c.want.Method || row.Path != c.want.Path || row.Rule != c.want.Rule || row.Source != c.want.Source || row.Reason == "" || strings.Contains(row.Reason, "secret") {
				t.Errorf("%s: %+v", c.text, row)
			}
			if got.status != 403 && got.status != 520 {
				t.Errorf("%s: %+v", c.text, got)
			}
		}
		_, rows := s.answer(d, "ok.test", "GET", "GET /away HTTP/1.1\r\nHost: HOST\r\n\r\n")
		if len(rows) != 2 || rows[1].Code != "redirect-not-granted" || rows[1].Host != "away.test" || rows[1].Port != 443 || rows[1].Path != "/x" || rows[1].RedirectedFrom != "GET "+s.url(d, "ok.test", "/away") {
			t.Errorf("%+v", rows)
		}
		for path, status := range map[string]int{"/theirs": 403, "/theirs520": 520, "/theirs401": 401} {
			got, rows := s.answer(d, "ok.test", "GET", "GET "+path+" HTTP/1.1\r\nHost: HOST\r\n\r\n")
			if got.status != status || strings.Contains(got.reason, "sbx") || len(rows) != 1 || rows[0].Denied() {
				t.Errorf("%s: the host's own answer: %+v %+v", path, got, rows)
			}
		}
		if d.scheme == "https" {
			if got := s.do(s.client(d.client), "GET", urlFor("https", "wrong.test", wrong, "/x"), ""); got.status != 502 {
				t.Errorf("a certificate of another: %+v", got)
			}
		}
	})
	for _, row := range s.world.rows.all() {
		if row.Host == "wrong.test" && row.Denied() {
			t.Errorf("an upstream's failure is no denial: %+v", row)
		}
	}
}

// None of the spellings of a push reaches receive-pack, and every read works.
func TestCase67_SpellingsOfAPush(t *testing.T) {
	seen := make(chan string, 100)
	s := newSite(t, func(_ http.ResponseWriter, r *http.Request) {
		b, _ := io.ReadAll(r.Body)
		seen <- fmt.Sprintf("%s %s %d", r.Method, r.RequestURI, len(b))
	}, []string{"git.test"})
	noSlash := func(r *egress.Rule) { r.EncodedSlash = false }
	upload := func(r *egress.Rule) {
		r.ID, r.MaxBody, r.Body.Git = "test/upload", 1<<20, egress.GitUploadPack
	}
	refs := func(r *egress.Rule) {
		r.ID, r.Query = "test/refs", []egress.QueryMatch{{Key: "service", Value: "git-upload-pack"}}
	}
	s.grant(append(s.rules("git.test", "POST", "/acme/widget.git/git-upload-pack", upload, noSlash), s.rules("git.test", "GET", "/acme/widget.git/info/refs", refs, noSlash)...)...)
	const want = "0032want 0123456789012345678901234567890123456789\n00000009done\n"
	const kind = "Content-Type: application/x-git-upload-pack-request\r\n"
	var zipped bytes.Buffer
	z := gzip.NewWriter(&zipped)
	_, _ = io.WriteString(z, want)
	_ = z.Close()
	eachDoor(t, func(t *testing.T, d door) {
		post := func(target, fields, body string) (answer, []event.Request) {
			return s.answer(d, "git.test", "POST", fmt.Sprintf("POST %s HTTP/1.1\r\nHost: HOST\r\n%sContent-Length: %d\r\n\r\n%s", target, fields, len(body), body))
		}
		const base = "/acme/widget.git"
		for _, fields := range []string{kind, kind + "Git-Protocol: version=1\r\n"} {
			if got, _ := post(base+"/git-upload-pack", fields, want); got.status != 200 {
				t.Errorf("a fetch: %+v", got)
			}
		}
		if got, _ := post(base+"/git-upload-pack", kind+"Git-Protocol: version=2\r\n", "0014command=ls-refs\n0000"); got.status != 200 {
			t.Errorf("version 2: %+v", got)
		}
		if got, _ := post(base+"/git-upload-pack", kind+"Content-Encoding: gzip\r\n", zipped.String()); got.status != 200 {
			t.Errorf("gzip: %+v", got)
		}
		if got, _ := s.answer(d, "git.test", "GET", "GET "+base+"/info/refs?service=git-upload-pack HTTP/1.1\r\nHost: HOST\r\n\r\n"); got.status != 200 {
			t.Errorf("refs: %+v", got)
		}
		for len(seen) > 0 {
			<-seen
		}
		for _, target := range []string{
			"/git-receive-pack", "/git-upload-pack/../git-receive-pack", "/git-upload-pack/%2e%2e/git-receive-pack", "//git-receive-pack", "/git-upload-pack%2f..%2fgit-receive-pack",
			"/git-receive-pack%3fx", "/git-upload-pack/git-receive-pack", "/%67it-receive-pack", "/git-upload-pack;/git-receive-pack", "/git-upload-pack/", "/git%2fgit-receive-pack",
		} {
			got, rows := post(base+target, kind, want)
			if got.status != 403 || len(rows) != 1 || !rows[0].Denied() {
				t.Errorf("%s: %+v", target, got)
			}
		}
		for _, query := range []string{"service=git-receive-pack", "service=git-upload-pack&service=git-receive-pack", "", "Service=git-upload-pack", "service=git%2dreceive-pack", "x&service=git-receive-pack"} {
			if got, rows := s.answer(d, "git.test", "GET", "GET "+base+"/info/refs?"+query+" HTTP/1.1\r\nHost: HOST\r\n\r\n"); got.status != 403 || len(rows) != 1 {
				t.Errorf("?%s: %+v", query, got)
			}
		}
		// A query on the read itself says nothing to git; the path is what it goes by.
		if got, _ := post(base+"/git-upload-pack?service=git-receive-pack", kind, want); got.status != 200 {
			t.Errorf("a query: %+v", got)
		}
		if got := <-seen; got != fmt.Sprintf("POST %s/git-upload-pack?service=git-receive-pack %d", base, len(want)) || len(seen) > 0 {
			t.Errorf("upstream saw %q and %d more", got, len(seen))
		}
		if got, _ := post(base+"/git-upload-pack", "Content-Type: application/x-git-receive-pack-request\r\n", want); got.status != 403 {
			t.Errorf("another type: %+v", got)
		}
	})
}

// A redirect to another scheme, port or name of nearly the same host takes nothing along.
func TestCase72_InjectionDoesNotFollow(t *testing.T) {
	names := []string{"a.test", "a.test.evil.test", "sub.a.test"}
	s := newSite(t, redirector, names, credential(t, token))
	other := s.origin(echo, false, names...)
	echoed, plain := s.origin(echo, false, names...), s.origin(echo, true)
	rules := []egress.Rule{
		rule(t, "a.test", s.ports["https"], "GET", "/**", sends, follow), rule(t, "a.test", plain, "GET", "/**", plainHTTP), rule(t, "a.test", other, "GET", "/**"),
		rule(t, "*.a.test", echoed, "GET", "/**"), rule(t, "a.test.evil.test", echoed, "GET", "/**"),
	}
	s.grant(rules...)
	targets := []string{
		urlFor("http", "a.test", plain, "/x"), urlFor("https", "a.test", other, "/x"), urlFor("https", "sub.a.test", echoed, "/x"), urlFor("https", "a.test.evil.test", echoed, "/x"),
	}
	for _, d := range doors[1:] { // nothing is injected over plain HTTP to begin with
		for _, target := range targets {
			for _, status := range []int{302, 307} {
				got := s.do(s.client(d.client), "GET", s.url(d, "a.test", to(status, target)), "")
				if got.body != "/x|" {
					t.Errorf("%s, %d to %s: %+v", d.name, status, target, got)
				}
			}
		}
	}
	if n := s.server.Injected()["test/c"]; n != int64(2*2*len(targets)) {
		t.Errorf("injected %d times, want once for each first hop", n)
	}
}

// Userinfo that somebody puts into a request stands in no record, and no query does.
func TestCase74_RecordsHaveNoUserinfo(t *testing.T) {
	s := newSite(t, hello, []string{"ok.test"})
	s.allow("ok.test", "GET", "/**")
	const secretText = "hunter22"
	eachDoor(t, func(t *testing.T, d door) {
		for _, text := range []string{
			"GET " + d.scheme + "://user:" + secretText + "@ok.test/x HTTP/1.1\r\nHost: HOST\r\n\r\n",
			"GET /x HTTP/1.1\r\nHost: user:" + secretText + "@ok.test\r\n\r\n",
			"GET /x HTTP/1.1\r\nHost: ok.test\r\nHost: user:" + secretText + "@ok.test\r\n\r\n",
			"CONNECT user:" + secretText + "@ok.test:443 HTTP/1.1\r\nHost: x\r\n\r\n",
			"GET ftp://user:" + secretText + "@ok.test/x HTTP/1.1\r\nHost: HOST\r\n\r\n",
			"GET " + d.scheme + "://user:" + secretText + "@ok.test/x\r\n\r\n",
			"GET /x?token=" + secretText + " HTTP/1.1\r\nHost: no.test\r\n\r\n",
			"GET /../x?token=" + secretText + " HTTP/1.1\r\nHost: HOST\r\n\r\n",
			"GET /x?token=" + secretText + "#y HTTP/1.1\r\nHost: HOST\r\n\r\n",
		} {
			_, rows := s.ask(d, "ok.test", text)
			b, err := json.Marshal(rows)
			if err != nil || bytes.Contains(b, []byte(secretText)) || len(rows) != 1 {
				t.Errorf("%q: %s", text, b)
			}
		}
	})
	c := s.dialExplicit()
	_ = exchangeRaw(t, c, "CONNECT user:"+secretText+"@ok.test:443 HTTP/1.1\r\nHost: x\r\n\r\n")
	h := newRawH2(t, s.tunnelTo(doors[1], "ok.test", "ok.test", "h2"))
	for _, fields := range [][]string{{":authority", "user:" + secretText + "@ok.test", ":path", "/x"}, {":authority", s.authority(doors[1], "ok.test"), ":path", "/x?t=" + secretText + "#y"}, {":authority", s.authority(doors[1], "ok.test"), ":path", "/x?t=" + secretText + " y"}} {
		_ = h.result(h.headers(t, true, append([]string{":method", "GET", ":scheme", "https"}, fields...)...))
	}
	b, err := json.Marshal(s.world.rows.all())
	if err != nil || bytes.Contains(b, []byte(secretText)) {
		t.Errorf("%s", b)
	}
}
