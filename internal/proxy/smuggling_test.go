package proxy_test

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"

	"github.com/fractalboxdev/sbx/internal/egress"
)

// smuggled is a request that must never be seen upstream.
const smuggled = "GET /smuggled HTTP/1.1\r\nHost: ok.test\r\n\r\n"

// TestBypass17_Smuggling sends messages whose end can be read in two ways, through every
// door.
func TestBypass17_Smuggling(t *testing.T) {
	head := "POST /x HTTP/1.1\r\nHost: ok.test:PORT\r\n"
	get := "GET /x HTTP/1.1\r\nHost: ok.test:PORT\r\n"
	corpus := map[string]struct {
		text   string
		status string
	}{
		"CL and TE":                {head + "Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n" + smuggled, "400"},
		"TE and CL":                {head + "Transfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n0\r\n\r\n" + smuggled, "400"},
		"two CL, different":        {head + "Content-Length: 0\r\nContent-Length: 40\r\n\r\n" + smuggled, "400"},
		"two CL, same":             {head + "Content-Length: 0\r\nContent-Length: 0\r\n\r\n" + smuggled, "400"},
		"CL list":                  {head + "Content-Length: 0, 0\r\n\r\n" + smuggled, "400"},
		"CL with sign":             {head + "Content-Length: +0\r\n\r\n" + smuggled, "400"},
		"CL hex":                   {head + "Content-Length: 0x0\r\n\r\n" + smuggled, "400"},
		"CL huge":                  {head + "Content-Length: 99999999999999999999\r\n\r\n" + smuggled, "400"},
		"CL empty":                 {head + "Content-Length: \r\n\r\n" + smuggled, "400"},
		"TE twice":                 {head + "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", "400"},
		"TE list":                  {head + "Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n", "501"},
		"TE identity":              {head + "Transfer-Encoding: identity\r\n\r\n" + smuggled, "501"},
		"TE with a vertical tab":   {head + "Transfer-Encoding: \x0bchunked\r\n\r\n0\r\n\r\n", "400"},
		"TE quoted":                {head + "Transfer-Encoding: \"chunked\"\r\n\r\n0\r\n\r\n", "501"},
		"space before colon":       {head + "Transfer-Encoding : chunked\r\n\r\n0\r\n\r\n", "400"},
		"space before name":        {get + " X: y\r\n\r\n", "400"},
		"folded header":            {get + "X: y\r\n z\r\n\r\n", "400"},
		"folded TE":                {head + "Transfer-Encoding:\r\n chunked\r\n\r\n0\r\n\r\n", "400"},
		"bare LF":                  {strings.ReplaceAll(get, "\r\n", "\n") + "\n", "400"},
		"bare LF at the end":       {get + "\n" + smuggled, "400"},
		"bare CR in a value":       {get + "X: y\rContent-Length: 5\r\n\r\n", "400"},
		"NUL in a value":           {get + "X: y\x00\r\n\r\n", "400"},
		"NUL in a name":            {get + "X\x00: y\r\n\r\n", "400"},
		"no colon":                 {get + "Nonsense\r\n\r\n", "400"},
		"empty name":               {get + ": y\r\n\r\n", "400"},
		"TE in HTTP/1.0":           {"POST /x HTTP/1.0\r\nHost: ok.test:PORT\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", "400"},
		"HTTP/0.9":                 {"GET /x\r\n", "400"},
		"HTTP/1.2":                 {"GET /x HTTP/1.2\r\nHost: ok.test:PORT\r\n\r\n", "505"},
		"HTTP/2.0 without preface": {"GET /x HTTP/2.0\r\nHost: ok.test:PORT\r\n\r\n", "505"},
		"two spaces":               {"GET  /x HTTP/1.1\r\nHost: ok.test:PORT\r\n\r\n", "400"},
		"tab in the request line":  {"GET\t/x HTTP/1.1\r\nHost: ok.test:PORT\r\n\r\n", ""},
		"space in the target":      {"GET /x y HTTP/1.1\r\nHost: ok.test:PORT\r\n\r\n", "400"},
		"fragment":                 {"GET /x#y HTTP/1.1\r\nHost: ok.test:PORT\r\n\r\n", "400"},
		"no Host":                  {"GET /x HTTP/1.1\r\n\r\n", "400"},
		"two Hosts":                {get + "Host: ok.test:PORT\r\n\r\n", "400"},
		"two Hosts, one evil":      {get + "Host: evil.test\r\n\r\n", "400"},
		"authority as target":      {"GET ok.test:PORT HTTP/1.1\r\nHost: ok.test:PORT\r\n\r\n", "400"},
		"userinfo in target":       {"GET https://ok.test@evil.test/ HTTP/1.1\r\nHost: ok.test:PORT\r\n\r\n", "400"},
		"userinfo in Host":         {"GET /x HTTP/1.1\r\nHost: ok.test@evil.test\r\n\r\n", "400"},
		"two ports in Host":        {"GET /x HTTP/1.1\r\nHost: ok.test:443:evil\r\n\r\n", "400"},
		"other expectation":        {get + "Expect: 200-ok\r\n\r\n", "417"},
		"chunk size with sign":     {head + "Transfer-Encoding: chunked\r\n\r\n+5\r\nhello\r\n0\r\n\r\n", "400"},
		"chunk size 0x":            {head + "Transfer-Encoding: chunked\r\n\r\n0x5\r\nhello\r\n0\r\n\r\n", "400"},
		"chunk size too long":      {head + "Transfer-Encoding: chunked\r\n\r\n00000000000000005\r\nhello\r\n0\r\n\r\n", "400"},
		"chunk size missing":       {head + "Transfer-Encoding: chunked\r\n\r\n\r\nhello\r\n0\r\n\r\n", "400"},
		"chunk with bare LF":       {head + "Transfer-Encoding: chunked\r\n\r\n5\nhello\r\n0\r\n\r\n", "400"},
		"chunk longer than size":   {head + "Transfer-Encoding: chunked\r\n\r\n3\r\nhello\r\n0\r\n\r\n", "400"},
		"chunk extension too long": {head + "Transfer-Encoding: chunked\r\n\r\n5;" + strings.Repeat("a", 4096) + "\r\nhello\r\n0\r\n\r\n", "400"},
		"chunk extension with LF":  {head + "Transfer-Encoding: chunked\r\n\r\n5;a\nhello\r\n0\r\n\r\n", "400"},
		"bad trailer":              {head + "Transfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\nX : y\r\n\r\n", "400"},
		"line too long":            {"GET /" + strings.Repeat("a", 64<<10) + " HTTP/1.1\r\n", "414"},
		"block too large":          {get + strings.Repeat("X: "+strings.Repeat("y", 1000)+"\r\n", 200), "431"},
		"too many fields":          {get + strings.Repeat("X: y\r\n", 1000) + "\r\n", "431"},
	}
	for _, d := range doors {
		for name, c := range corpus {
			t.Run(d.name+", "+name, func(t *testing.T) { smuggle(t, d, c.text, c.status) })
		}
	}
}

// smuggle sends text, which must end in one answer with a status, or none where that is
// empty, and one denial.
func smuggle(t *testing.T, d door, text, status string) {
	s := rawSite(t, func(conn net.Conn, br *bufio.Reader) {
		for h := readRequest(br); h != ""; h = readRequest(br) {
			if strings.Contains(h, "smuggled") {
				t.Errorf("upstream saw %q", h)
			}
		}
	}, "ok.test")
	s.allow("ok.test", "GET,POST", "/**", maxBody(2<<20))
	got, _ := s.ask(d, "ok.test", strings.ReplaceAll(text, "ok.test:PORT", "HOST"))
	if want := "HTTP/1.1 " + status + " "; status != "" && !strings.HasPrefix(got, want) || status == "" && got != "" {
		t.Errorf("got %.200q, want %q", got, want)
	}
	if status != "" && strings.Count(got, "HTTP/1.1") != 1 {
		t.Errorf("more than one answer: %.300q", got)
	}
	count := 0
	for _, row := range s.world.rows.recorded(1) {
		if row.Denied() {
			count++
		}
	}
	if count != 1 {
		t.Errorf("rows: %+v", s.world.rows.all())
	}
}

func TestBypass21_EachRequestIsJudged(t *testing.T) {
	s := newSite(t, hello, []string{"ok.test"})
	s.allow("ok.test", "GET,POST", "/ok/**", maxBody(100))
	eachDoor(t, func(t *testing.T, d door) {
		end := " HTTP/1.1\r\nHost: HOST\r\n\r\n"
		got, rows := s.ask(d, "ok.test", "GET /ok/1"+end+"GET /ok/2"+end+"GET /no"+end+"GET /ok/4"+end)
		for _, want := range []string{"GET /ok/1", "GET /ok/2", "403 sbx path-not-granted"} {
			if !strings.Contains(got, want) {
				t.Errorf("%q is missing in %q", want, got)
			}
		}
		if strings.Contains(got, "/ok/4") {
			t.Errorf("the connection went on after a refusal: %q", got)
		}
		if len(rows) != 3 {
			t.Errorf("%d records for three requests", len(rows))
		}
		old := "GET /ok/1 HTTP/1.0\r\nConnection: keep-alive\r\nHost: HOST\r\n\r\nGET /ok/2 HTTP/1.0\r\nHost: HOST\r\n\r\n"
		got, rows = s.ask(d, "ok.test", old)
		if !strings.Contains(got, "GET /ok/1") || strings.Contains(got, "/ok/2") || !strings.Contains(got, "Connection: close") || len(rows) != 1 {
			t.Errorf("HTTP/1.0: %q %+v", got, rows)
		}
	})
}

func TestBypass18_UpgradeIsStripped(t *testing.T) {
	seen := make(chan string, 4)
	s := rawSite(t, func(c net.Conn, br *bufio.Reader) {
		for h := readRequest(br); h != ""; h = readRequest(br) {
			seen <- h
			fmt.Fprint(c, "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
		}
	}, "ok.test")
	s.allow("ok.test", "GET", "/**", preserve)
	eachDoor(t, func(t *testing.T, d door) {
		for _, protocol := range []string{"h2c", "h2c, websocket", "websocket, h2c", "TLS/1.0", "connect-udp", "\t h2c"} {
			text := "GET /x HTTP/1.1\r\nHost: HOST\r\nConnection: Upgrade, HTTP2-Settings, x-hop\r\nUpgrade: " + protocol +
				"\r\nHTTP2-Settings: AAMAAABkAARAAAAAAAIAAAAA\r\nX-Hop: 1\r\nX-Kept: 1\r\n\r\n"
			if got, _ := s.answer(d, "ok.test", "GET", text); got.status != 200 {
				t.Fatalf("%s: %+v", protocol, got)
			}
			if got, want := <-seen, "GET /x HTTP/1.1\r\nHost: "+s.authority(d, "ok.test")+"\r\nX-Kept: 1\r\n\r\n"; got != want {
				t.Errorf("%s: upstream saw %q, want %q", protocol, got, want)
			}
		}
	})
}

// A server that switches protocols unasked is not followed.
func TestBypass18_UpgradesThatNobodyAskedFor(t *testing.T) {
	for _, answered := range []string{"h2c", "websocket", "TLS/1.0"} {
		s := rawSite(t, func(c net.Conn, br *bufio.Reader) {
			readRequest(br)
			fmt.Fprintf(c, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: %s\r\n\r\n", answered)
			_, _ = io.Copy(c, br)
		}, "ok.test")
		s.allow("ok.test", "GET", "/**", func(r *egress.Rule) { r.WebSocket = true })
		eachDoor(t, func(t *testing.T, d door) {
			text := "GET /x HTTP/1.1\r\nHost: HOST\r\nConnection: close\r\n\r\n"
			if answered != "websocket" { // asked for one thing, got another
				text = "GET /x HTTP/1.1\r\nHost: HOST\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Key: k\r\n\r\n"
			}
			if got, _ := s.answer(d, "ok.test", "GET", text); got.status != 502 {
				t.Errorf("%s: %+v", answered, got)
			}
		})
	}
}

func TestBypass18_WebSocketNeedsAGrant(t *testing.T) {
	s := newSite(t, hello, []string{"ok.test"})
	s.allow("ok.test", "GET,POST", "/**", maxBody(10))
	eachDoor(t, func(t *testing.T, d door) {
		got, rows := s.answer(d, "ok.test", "GET", "GET /x HTTP/1.1\r\nHost: HOST\r\nConnection: keep-alive, Upgrade\r\nUpgrade: WebSocket\r\n\r\n")
		if got.reason != "403 sbx upgrade-not-granted" {
			t.Errorf("%+v", got)
		}
		denied(t, "without a grant", rows, egress.CodeUpgrade)
	})
	s.allow("ok.test", "GET,POST", "/**", maxBody(10), func(r *egress.Rule) { r.WebSocket = true })
	eachDoor(t, func(t *testing.T, d door) {
		for _, begin := range []string{"POST /x HTTP/1.1\r\nContent-Length: 0\r\n", "GET /x HTTP/1.1\r\nContent-Length: 1\r\n"} {
			got, rows := s.answer(d, "ok.test", "GET", begin+"Host: HOST\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\nx")
			if got.status != 403 || len(rows) != 1 {
				t.Errorf("%q: %+v %+v", begin, got, rows)
			}
		}
	})
}

// overrides ask a server to take a request for another one.
var overrides = []string{
	"X-HTTP-Method-Override", "POST", "X-Original-URL", "/admin", "X-Rewrite-URL", "/admin", "X-Method-Override", "POST", "X-HTTP-Method", "PUT",
	"X_HTTP_Method_Override", "POST", "X-Forwarded-Host", "evil.test", "X-Host", "evil.test", "Forwarded", "host=evil.test", "X-Forwarded-Prefix", "/admin",
}

func TestBypass24_OverrideHeadersAreDropped(t *testing.T) {
	for name, mode := range map[string]func(*egress.Rule){"minimal": func(*egress.Rule) {}, "preserve": preserve} {
		s := newSite(t, func(rw http.ResponseWriter, r *http.Request) {
			for k := range r.Header {
				fmt.Fprintln(rw, k)
			}
		}, []string{"ok.test"})
		s.allow("ok.test", "GET", "/**", mode)
		eachDoor(t, func(t *testing.T, d door) {
			text := "GET /x HTTP/1.1\r\nHost: HOST\r\nConnection: close\r\n"
			for i := 0; i < len(overrides); i += 2 {
				text += overrides[i] + ": " + overrides[i+1] + "\r\n"
			}
			got, _ := s.answer(d, "ok.test", "GET", text+"\r\n")
			if got.status != 200 || strings.Contains(got.body, "X") || strings.Contains(got.body, "Forwarded") {
				t.Errorf("%s: %+v", name, got)
			}
			if d.scheme == "https" {
				got := s.do(s.client(d.client+1), "GET", s.url(d, "ok.test", "/x"), "", overrides...)
				if got.status != 200 || strings.Contains(got.body, "X") {
					t.Errorf("%s, HTTP/2: %d %q", name, got.status, got.body)
				}
			}
		})
	}
}

// A server that reads underscores as hyphens must not find a second field beside the
// one that was judged.
func TestBypass24_UnderscoresHideNothingFromTheJudge(t *testing.T) {
	for name, mode := range map[string]func(*egress.Rule){"minimal": func(*egress.Rule) {}, "preserve": preserve} {
		s := newSite(t, func(rw http.ResponseWriter, r *http.Request) {
			for k, v := range r.Header {
				fmt.Fprintln(rw, strings.ToLower(k), v)
			}
		}, []string{"ok.test"})
		s.allow("ok.test", "POST", "/**", mode, maxBody(10))
		eachDoor(t, func(t *testing.T, d door) {
			got, _ := s.answer(d, "ok.test", "POST", "POST /x HTTP/1.1\r\nHost: HOST\r\nConnection: close\r\nContent-Length: 2\r\nContent-Type: a/a\r\n"+
				"Content_Type: b/b\r\nContent_Encoding: gzip\r\nCONTENT_type: c/c\r\nUser_Agent: d\r\nX_Custom: kept\r\n\r\nab")
			want := map[string]int{"content-type [a/a]": 1, "x_custom [kept]": 1, "_": 1}
			if name == "minimal" {
				want["x_custom [kept]"], want["_"] = 0, 0
			}
			for text, n := range want {
				if got.status != 200 || strings.Count(got.body, text) != n {
					t.Errorf("%s: %d %q, want %d of %q", name, got.status, got.body, n, text)
				}
			}
		})
	}
}

func TestBypass19_ConnectionTokensAreParsed(t *testing.T) {
	seen := make(chan string, 4)
	s := rawSite(t, func(c net.Conn, br *bufio.Reader) {
		for h := readRequest(br); h != ""; h = readRequest(br) {
			seen <- h
			fmt.Fprint(c, "HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: X-Theirs\r\nX-Theirs: 1\r\nKeep-Alive: 1\r\nProxy-Authenticate: Basic\r\n\r\nok")
		}
	}, "ok.test")
	s.allow("ok.test", "GET", "/**", preserve)
	eachDoor(t, func(t *testing.T, d door) {
		// "upgrade-insecure" is another token than "upgrade", and hop-by-hop is what Connection names.
		text := "GET /x HTTP/1.1\r\nHost: HOST\r\nConnection: upgrade-insecure, X-Mine ,, close\r\nConnection: x-other\r\nUpgrade: websocket\r\nX-Mine: 1\r\n" +
			"X-Other: 1\r\nKeep-Alive: 1\r\nTE: trailers\r\nProxy-Connection: keep-alive\r\nProxy-Authorization: Basic eDp5\r\nX-Kept: 1\r\n\r\n"
		got, _ := s.answer(d, "ok.test", "GET", text)
		if want := "GET /x HTTP/1.1\r\nHost: " + s.authority(d, "ok.test") + "\r\nX-Kept: 1\r\n\r\n"; got.status != 200 || <-seen != want {
			t.Errorf("%+v", got)
		}
		for _, name := range []string{"X-Theirs", "Keep-Alive", "Proxy-Authenticate"} {
			if got.header.Get(name) != "" {
				t.Errorf("the answer has %s", name)
			}
		}
	})
}
