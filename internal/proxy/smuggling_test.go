package proxy_test

import (
	"bufio"
	"fmt"
	"net"
	"net/http"
	"strings"
	"testing"

	"github.com/fractalboxdev/sbx/internal/egress"
)

// smuggled is a request that must never be seen upstream.
const smuggled = "GET /smuggled HTTP/1.1\r\nHost: ok.test\r\n\r\n"

// TestBypass17_Smuggling sends messages whose end can be read in two ways.
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
	for name, c := range corpus {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			port := w.rawOrigin("", func(conn net.Conn, br *bufio.Reader) {
				for {
					h := readRequest(br)
					if h == "" {
						return
					}
					if strings.Contains(h, "smuggled") {
						t.Errorf("upstream saw %q", h)
					}
				}
			})
			w.grant(rule(t, "ok.test", port, "GET,POST", "/**", plainHTTP, maxBody(2<<20)))
			text := strings.ReplaceAll(c.text, "PORT", fmt.Sprint(port))
			got := exchangeRaw(t, w.raw("ok.test", port), text)
			if want := "HTTP/1.1 " + c.status + " "; c.status != "" && !strings.HasPrefix(got, want) || c.status == "" && got != "" {
				t.Errorf("got %.200q, want %q", got, want)
			}
			if c.status != "" && strings.Count(got, "HTTP/1.1") != 1 {
				t.Errorf("more than one answer: %.300q", got)
			}
			denied := 0
			for _, row := range w.rows.recorded(1) {
				if row.Denied() {
					denied++
				}
			}
			if denied != 1 {
				t.Errorf("rows: %+v", w.rows.all())
			}
		})
	}
}

func TestBypass21_EachRequestIsJudged(t *testing.T) {
	w := newWorld(t)
	port := w.origin(hello, true)
	w.grant(rule(t, "ok.test", port, "GET,POST", "/ok/**", plainHTTP, maxBody(100)))
	host := fmt.Sprintf("Host: ok.test:%d\r\n\r\n", port)
	pipelined := "GET /ok/1 HTTP/1.1\r\n" + host + "GET /ok/2 HTTP/1.1\r\n" + host + "GET /no HTTP/1.1\r\n" + host + "GET /ok/4 HTTP/1.1\r\n" + host
	got := exchangeRaw(t, w.raw("ok.test", port), pipelined)
	for _, want := range []string{"GET /ok/1", "GET /ok/2", "403 sbx path-not-granted"} {
		if !strings.Contains(got, want) {
			t.Errorf("%q is missing in %q", want, got)
		}
	}
	if strings.Contains(got, "/ok/4") {
		t.Errorf("the connection went on after a refusal: %q", got)
	}
	if n := len(w.rows.all()); n != 3 {
		t.Errorf("%d records for three requests", n)
	}
	old := "GET /ok/1 HTTP/1.0\r\nConnection: keep-alive\r\n" + host + "GET /ok/2 HTTP/1.0\r\n" + host
	got = exchangeRaw(t, w.raw("ok.test", port), old)
	if !strings.Contains(got, "GET /ok/1") || strings.Contains(got, "/ok/2") || !strings.Contains(got, "Connection: close") {
		t.Errorf("HTTP/1.0: %q", got)
	}
}

func TestBypass18_UpgradeIsStripped(t *testing.T) {
	w := newWorld(t)
	seen := make(chan string, 4)
	port := w.rawOrigin("", func(c net.Conn, br *bufio.Reader) {
		for h := readRequest(br); h != ""; h = readRequest(br) {
			seen <- h
			fmt.Fprint(c, "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
		}
	})
	w.grant(rule(t, "ok.test", port, "GET", "/**", plainHTTP, preserve))
	text := "GET /x HTTP/1.1\r\nHost: ok.test:%d\r\nConnection: Upgrade, HTTP2-Settings, x-hop\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABkAARAAAAAAAIAAAAA\r\nX-Hop: 1\r\nX-Kept: 1\r\n\r\n"
	c := w.raw("ok.test", port)
	fmt.Fprintf(c, text, port)
	if got := readAnswer(bufio.NewReader(c), "GET"); got.err != nil {
		t.Fatal(got.err)
	}
	want := fmt.Sprintf("GET /x HTTP/1.1\r\nHost: ok.test:%d\r\nX-Kept: 1\r\n\r\n", port)
	if got := <-seen; got != want {
		t.Errorf("upstream saw %q, want %q", got, want)
	}
}

func TestBypass18_WebSocketNeedsAGrant(t *testing.T) {
	w := newWorld(t)
	port := w.origin(hello, true)
	w.grant(rule(t, "ok.test", port, "GET", "/**", plainHTTP))
	text := fmt.Sprintf("GET /x HTTP/1.1\r\nHost: ok.test:%d\r\nConnection: keep-alive, Upgrade\r\nUpgrade: WebSocket\r\n\r\n", port)
	got := exchangeRaw(t, w.raw("ok.test", port), text)
	if !strings.HasPrefix(got, "HTTP/1.1 403 sbx upgrade-not-granted\r\n") {
		t.Errorf("%q", got)
	}
	if row := w.rows.recorded(1)[0]; row.Code != string(egress.CodeUpgrade) {
		t.Errorf("%+v", row)
	}
}

func TestBypass24_OverrideHeadersAreDropped(t *testing.T) {
	for name, mode := range map[string]func(*egress.Rule){"minimal": func(*egress.Rule) {}, "preserve": preserve} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			port := w.origin(func(rw http.ResponseWriter, r *http.Request) {
				for k := range r.Header {
					fmt.Fprintln(rw, k)
				}
			}, false, "ok.test")
			w.grant(rule(t, "ok.test", port, "GET", "/**", mode))
			for _, how := range []way{transparent, transparentH2} {
				got := w.do(w.client(how), "GET", urlFor("https", "ok.test", port, "/x"), "",
					"X-HTTP-Method-Override", "POST", "X-Original-URL", "/admin", "X-Rewrite-URL", "/admin", "X-Method-Override", "POST")
				if got.status != 200 || strings.Contains(got.body, "X-") {
					t.Errorf("%d %q", got.status, got.body)
				}
			}
		})
	}
}

func TestBypass19_ConnectionTokensAreParsed(t *testing.T) {
	w := newWorld(t)
	port := w.origin(hello, true)
	w.grant(rule(t, "ok.test", port, "GET", "/**", plainHTTP))
	// "upgrade-insecure" is another token than "upgrade".
	text := fmt.Sprintf("GET /x HTTP/1.1\r\nHost: ok.test:%d\r\nConnection: upgrade-insecure, close\r\nUpgrade: websocket\r\n\r\n", port)
	if got := exchangeRaw(t, w.raw("ok.test", port), text); !strings.HasPrefix(got, "HTTP/1.1 200 ") {
		t.Errorf("%q", got)
	}
}
