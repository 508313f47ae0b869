package proxy_test

import (
	"bufio"
	"compress/gzip"
	"encoding/base64"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"testing"

	"github.com/fractalboxdev/sbx/internal/egress"
	"github.com/fractalboxdev/sbx/internal/proxy"
	"github.com/fractalboxdev/sbx/internal/secret"
)

const (
	token = "hunter22/+&secret=="
	ph    = "sbxplaceholder7q2w4e"
)

// credential is a bearer token for a.test, as test/c; change makes it another.
func credential(t testing.TB, text string, change ...func(*proxy.Credential)) option {
	t.Helper()
	v, err := secret.Parse(text)
	if err != nil {
		t.Fatal(err)
	}
	c := proxy.Credential{
		Secret: "TOKEN", Value: v, Hosts: []egress.Host{host(t, "a.test")}, Header: "Authorization", Template: "Bearer {secret}",
	}
	for _, f := range change {
		f(&c)
	}
	return func(cfg *proxy.Config) { cfg.Credentials = map[string]proxy.Credential{"test/c": c} }
}

func host(t testing.TB, name string) egress.Host {
	t.Helper()
	h, err := egress.ParseHost(name)
	if err != nil {
		t.Fatal(err)
	}
	return h
}

func sends(r *egress.Rule)            { r.Credential = "test/c" }
func required(c *proxy.Credential)    { c.Required = true }
func placeholder(c *proxy.Credential) { c.Placeholder = ph }
func basic(c *proxy.Credential)       { c.Basic, c.Username, c.Template = true, "x", "Basic {secret}" }
func inQuery(c *proxy.Credential)     { c.Header, c.Template, c.QueryKey = "", "", "apikey" }

func basicOf(user, password string) string {
	return "Basic " + base64.StdEncoding.EncodeToString([]byte(user+":"+password))
}

// echo answers with what it saw but the secret: target, authorization, and names.
func echo(w http.ResponseWriter, r *http.Request) {
	seen := func(s string) string {
		return strings.ReplaceAll(strings.ReplaceAll(s, url.QueryEscape(token), "IT"), token, "IT")
	}
	auth := r.Header.Get("Authorization")
	if user, password, ok := r.BasicAuth(); ok {
		auth = "basic " + user + ":" + password
	}
	fmt.Fprintf(w, "%s|%s", seen(strings.ReplaceAll(r.RequestURI, strings.ReplaceAll(url.QueryEscape(token), "+", "%20"), "IT")), seen(auth))
	for name := range r.Header {
		if name != "Accept-Encoding" && name != "User-Agent" && name != "Authorization" && name != "Content-Length" {
			fmt.Fprintf(w, "|%s", name)
		}
	}
}

func TestCredentialIsInjected(t *testing.T) {
	for name, how := range ways {
		w := newWorld(t, credential(t, token))
		port := w.origin(echo, false, "a.test", "b.test")
		w.grant(rule(t, "a.test", port, "GET", "/with/**", sends), rule(t, "a.test", port, "GET", "/without/**"), rule(t, "b.test", port, "GET", "/**"))
		for at, want := range map[string]string{
			urlFor("https", "a.test", port, "/with/x"):    "/with/x|Bearer IT",
			urlFor("https", "a.test", port, "/without/x"): "/without/x|",
			urlFor("https", "b.test", port, "/x"):         "/x|",
		} {
			if got := w.do(w.client(how), "GET", at, "", "Authorization", "Bearer own"); got.body != want || got.err != nil {
				t.Errorf("%s %s: %d %q %v, want %q", name, at, got.status, got.body, got.err, want)
			}
		}
		if n := w.server.Injected()["test/c"]; n != 1 {
			t.Errorf("%s: injected %d times", name, n)
		}
		named := 0
		for _, row := range w.rows.all() {
			if row.Credential == "TOKEN" {
				named++
			}
		}
		if named != 1 {
			t.Errorf("%s: %d rows name the secret: %+v", name, named, w.rows.all())
		}
	}
}

func TestCredentialSlots(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*proxy.Credential)
		want   string
	}{
		"basic": {basic, "/x?a=1|basic x:IT|X-Widget"}, "query": {inQuery, "/x?a=1&apikey=IT||X-Widget"},
		"header": {func(c *proxy.Credential) { c.Header, c.Template = "X-Widget", "{secret}" }, "/x?a=1||X-Widget"},
	} {
		w := newWorld(t, credential(t, token, c.change))
		port := w.origin(echo, false, "a.test")
		w.grant(rule(t, "a.test", port, "GET", "/**", sends, preserve))
		for way, how := range ways {
			got := w.do(w.client(how), "GET", urlFor("https", "a.test", port, "/x?a=1&apikey=own"), "", "X-Widget", "own")
			if got.body != c.want {
				t.Errorf("%s %s: %q, want %q", name, way, got.body, c.want)
			}
		}
	}
}

// A followed redirect takes the credential of each hop's own rule.
func TestVector22_CredentialDoesNotTravel(t *testing.T) {
	for _, status := range []int{302, 307} {
		w := newWorld(t, credential(t, token))
		port := w.origin(func(rw http.ResponseWriter, r *http.Request) {
			if target, ok := strings.CutPrefix(r.URL.Path, "/go/"); ok {
				if r.Header.Get("Authorization") != "Bearer "+token {
					rw.WriteHeader(401)
					return
				}
				http.Redirect(rw, r, "https://"+target+fmt.Sprintf("/end?X-Amz-Signature=abc&token=%d", status), status)
				return
			}
			echo(rw, r)
		}, false, "a.test", "b.test")
		w.grant(rule(t, "a.test", port, "GET", "/**", sends, follow), rule(t, "b.test", port, "GET", "/**"))
		got := w.do(w.client(transparent), "GET", urlFor("https", "a.test", port, fmt.Sprintf("/go/b.test:%d", port)), "", "X-Api-Key", "own", "Cookie", "own")
		if want := fmt.Sprintf("/end?X-Amz-Signature=abc&token=%d|", status); got.body != want {
			t.Errorf("%d: %d %q %v, want %q", status, got.status, got.body, got.err, want)
		}
		if got := w.do(w.client(transparent), "GET", urlFor("https", "a.test", port, fmt.Sprintf("/go/a.test:%d", port)), ""); got.body != "/end|Bearer IT" {
			t.Errorf("%d, same host: %d %q", status, got.status, got.body)
		}
	}
}

// What the command adds of its own to say who asks never reaches the host beside
// the secret, however it spells it.
func TestBypass36_ForeignCredentialsAreRemoved(t *testing.T) {
	own := []string{
		"Authorization", "Bearer evil", "Proxy-Authorization", "Basic ZXZpbA==", "Cookie", "session=evil", "X-Api-Key", "evil", "X-Auth-Token", "evil",
		"Private-Token", "evil", "X-Widget-Session", "evil", "X-Vendor-Apikey", "evil", "X-Secret", "evil", "X-Signature", "evil", "X-Odd", "Bearer evil",
		"X-Csrf-Token", "evil", "Dpop", "evil", "X-Amz-Security-Token", "evil", "Access-Key-Id", "evil", "X-Goog-Api-Key", "evil", "Impersonate-Jwt", "evil",
	}
	for name, how := range ways {
		w := newWorld(t, credential(t, token))
		port := w.origin(echo, false, "a.test")
		w.grant(
			rule(t, "a.test", port, "GET", "/p/**", sends, preserve), rule(t, "a.test", port, "GET", "/m/**", sends),
			rule(t, "a.test", port, "GET", "/other/**", preserve, func(r *egress.Rule) { r.Cookies = true }),
		)
		query := "?a=1&access_token=evil&API_KEY=evil&b=2;token=evil&ke%79=evil&sig=evil&X-Amz-Signature=evil&auth[]=evil&c"
		for path, want := range map[string]string{
			"/p/x": "/p/x?a=1&b=2&c|Bearer IT|X-Plain", "/m/x": "/m/x?a=1&b=2&c|Bearer IT", "/other/x": "/other/x?a=1&b=2&c||X-Plain",
		} {
			got := w.do(w.client(how), "GET", urlFor("https", "a.test", port, path+query), "", append(own, "X-Plain", "kept")...)
			if got.body != want {
				t.Errorf("%s %s: %d %q %v, want %q", name, path, got.status, got.body, got.err, want)
			}
		}
		// Nothing of it: the bytes stay.
		odd := "/p/x?&&a=%7e;;b&=&"
		if got := w.do(w.client(how), "GET", urlFor("https", "a.test", port, odd), ""); got.body != odd+"|Bearer IT" {
			t.Errorf("%s: %q", name, got.body)
		}
	}
}

// What a rule demands of the query is the grant's own.
func TestQueryThatTheRuleNamesStays(t *testing.T) {
	w := newWorld(t, credential(t, token))
	port := w.origin(echo, false, "a.test")
	w.grant(rule(t, "a.test", port, "GET", "/**", sends, func(r *egress.Rule) { r.Query = []egress.QueryMatch{{Key: "key", Value: "public"}} }))
	if got := w.do(w.client(transparent), "GET", urlFor("https", "a.test", port, "/x?key=public&token=t"), ""); got.body != "/x?key=public|Bearer IT" {
		t.Errorf("%d %q", got.status, got.body)
	}
}

func TestVector21_RequiredSecretIsMissing(t *testing.T) {
	for name, options := range map[string][]option{"unset": {credential(t, "", required)}, "unknown": nil} {
		w := newWorld(t, options...)
		port := w.origin(echo, false, "a.test")
		w.grant(rule(t, "a.test", port, "GET,POST", "/**", sends, maxBody(100)))
		for way, how := range ways {
			w.rows.clear()
			got := w.do(w.client(how), "POST", urlFor("https", "a.test", port, "/x"), "body")
			rows := w.rows.all()
			if got.status != 403 || got.body != "sbx: credential-missing\n" || len(rows) != 1 || rows[0].Verdict != "deny" {
				t.Errorf("%s %s: %d %q %+v", name, way, got.status, got.body, rows)
			}
			if name == "unset" && !strings.Contains(rows[0].Reason, "the secret TOKEN is not set") {
				t.Errorf("reason %q", rows[0].Reason)
			}
		}
		if w.dials.count("a.test") != 0 {
			t.Error("dialled")
		}
	}
	w := newWorld(t, credential(t, ""))
	port := w.origin(echo, false, "a.test")
	w.grant(rule(t, "a.test", port, "GET", "/**", sends))
	if got := w.do(w.client(transparent), "GET", urlFor("https", "a.test", port, "/x"), "", "Authorization", "Bearer own"); got.body != "/x|" {
		t.Errorf("optional: %d %q", got.status, got.body)
	}
}

// Every way in which clients send what they take for a token ends as the slot.
func TestCase71_PlaceholderIsSwapped(t *testing.T) {
	for name, change := range map[string]func(*proxy.Credential){"bearer": func(*proxy.Credential) {}, "basic": basic} {
		w := newWorld(t, credential(t, token, placeholder, change))
		port := w.origin(echo, false, "a.test")
		w.grant(rule(t, "a.test", port, "GET", "/**", sends))
		want := map[string]string{"bearer": "/x|Bearer IT", "basic": "/x|basic x:IT"}[name]
		for _, sent := range []string{"", "Bearer " + ph, "bearer " + ph, "token " + ph, ph, basicOf("x", ph), basicOf("", ph), basicOf(ph, ""), strings.TrimRight(basicOf("git", ph), "=")} {
			for way, how := range ways {
				got := w.do(w.client(how), "GET", urlFor("https", "a.test", port, "/x"), "", "Authorization", sent)
				if got.body != want {
					t.Errorf("%s %s %q: %d %q %v", name, way, sent, got.status, got.body, got.err)
				}
			}
		}
	}
	w := newWorld(t, credential(t, token, placeholder, inQuery))
	port := w.origin(echo, false, "a.test")
	w.grant(rule(t, "a.test", port, "GET", "/**", sends))
	if got := w.do(w.client(transparent), "GET", urlFor("https", "a.test", port, "/x?apikey="+ph+"&a=1"), ""); got.body != "/x?apikey=IT&a=1|" {
		t.Errorf("query: %d %q", got.status, got.body)
	}
}

// misplaced are requests that carry the placeholder where no secret belongs: path
// and a header.
var misplaced = map[string][2]string{
	"header":            {"/x", "X-Other: " + ph},
	"header name":       {"/x", "X-" + ph + ": 1"},
	"cookie":            {"/x", "Cookie: t=" + ph},
	"user agent":        {"/x", "User-Agent: a-" + ph + "-b"},
	"accept":            {"/x", "Accept: " + ph},
	"hop by hop":        {"/x", "Connection: keep-alive, " + ph},
	"inside of bearer":  {"/x", "Authorization: Bearer x" + ph},
	"as a list":         {"/x", "Authorization: Bearer " + ph + ", Basic x"},
	"digest":            {"/x", "Authorization: Digest response=" + ph},
	"user and password": {"/x", "Authorization: " + basicOf(ph, ph)},
	"user of another":   {"/x", "Authorization: " + basicOf(ph, "other")},
	"base64 2":          {"/x", "X-Data: " + base64.StdEncoding.EncodeToString([]byte("ab"+ph+"c"))},
	"base64 1":          {"/x", "X-Data: " + base64.RawURLEncoding.EncodeToString([]byte("a"+ph))},
	"hex":               {"/x", fmt.Sprintf("X-Data: %x", ph)},
	"path":              {"/x/" + ph, ""},
	"path encoded":      {"/x/" + strings.Replace(ph, "s", "%73", 1), ""},
	"path base64":       {"/x/" + base64.RawURLEncoding.EncodeToString([]byte(ph)), ""},
	"query":             {"/x?a=" + ph, ""},
	"query key":         {"/x?" + ph + "=a", ""},
	"query encoded":     {"/x?a=" + strings.Replace(ph, "b", "%62", 1), ""},
	"query twice":       {"/x?a=" + strings.Replace(ph, "b", "%2562", 1), ""},
	"query base64":      {"/x?a=" + url.QueryEscape(base64.StdEncoding.EncodeToString([]byte("x:"+ph))), ""},
}

func TestBypass39_MisplacedPlaceholderIsRefused(t *testing.T) {
	s := newSite(t, echo, []string{"a.test", "b.test"}, credential(t, token, placeholder))
	s.grant(append(append(s.rules("a.test", "GET", "/without", preserve), s.rules("b.test", "GET", "/**", preserve)...),
		append(s.rules("a.test", "GET", "/x/**", sends), s.rules("a.test", "GET", "/x", sends, preserve)...)...)...)
	eachDoor(t, func(t *testing.T, d door) {
		try := func(name, host, path, header string) {
			t.Helper()
			if header != "" {
				header += "\r\n"
			}
			got, rows := s.answer(d, host, "GET", "GET "+path+" HTTP/1.1\r\nHost: HOST\r\n"+header+"\r\n")
			if got.status != 403 || !strings.HasPrefix(got.body, "sbx: placeholder-misplaced") {
				t.Errorf("%s to %s: %+v", name, host, got)
			}
			denied(t, name+" to "+host, rows, egress.CodePlaceholder)
		}
		for name, m := range misplaced {
			try(name, "a.test", m[0], m[1])
			try(name, "b.test", m[0], m[1])
		}
		for _, fine := range []string{"Authorization: Bearer " + ph, "Authorization: " + basicOf("x", ph)} {
			try("slot of another host", "b.test", "/x", fine)
			try("slot of another rule", "a.test", "/without", fine)
			try("slot twice", "a.test", "/x", fine+"\r\n"+fine)
			if d.scheme == "http" { // no secret goes out unencrypted, so no slot is there either
				try("slot over plain HTTP", "a.test", "/x", fine)
			}
		}
	})
	s.noDials("a.test", "b.test")
}

func TestNoWebSocketWithACredential(t *testing.T) {
	w := newWorld(t, credential(t, token))
	port := w.origin(echo, false, "a.test")
	socket := func(r *egress.Rule) { r.WebSocket = true }
	w.grant(rule(t, "a.test", port, "GET", "/x", sends), rule(t, "a.test", port, "GET", "/s", socket))
	c := w.rawTLS("a.test", "a.test", port)
	fmt.Fprintf(c, "GET /s HTTP/1.1\r\nHost: a.test:%d\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n", port)
	if got := readAnswer(bufio.NewReader(c), "GET"); got.status != 403 || !strings.Contains(got.body, "upgrade-not-granted") {
		t.Errorf("%d %q", got.status, got.body)
	}
}

// leaks are the ways in which a host says what it was sent.
var leaks = map[string]http.HandlerFunc{
	"body": func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprint(w, "you sent ", r.Header.Get("Authorization"))
	},
	"base64": func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, basicOf("x", token)) },
	"error page": func(w http.ResponseWriter, r *http.Request) {
		http.Error(w, url.QueryEscape(r.Header.Get("Authorization")), 500)
	},
	"location": func(w http.ResponseWriter, r *http.Request) {
		http.Redirect(w, r, "/next?t="+url.QueryEscape(token), http.StatusFound)
	},
	"set-cookie": func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Set-Cookie", "t="+fmt.Sprintf("%x", token))
	},
	"name": func(w http.ResponseWriter, _ *http.Request) { w.Header().Set("X-"+fmt.Sprintf("%x", token), "1") },
	"gzip": func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Encoding", "gzip")
		z := gzip.NewWriter(w)
		fmt.Fprint(z, strings.Repeat("some text ", 1000)+token)
		_ = z.Close()
	},
	"pieces": func(w http.ResponseWriter, _ *http.Request) {
		for _, c := range []byte("here: " + token) {
			_, _ = w.Write([]byte{c})
			w.(http.Flusher).Flush()
		}
	},
	"trailer": func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Trailer", "X-T")
		fmt.Fprint(w, "body")
		w.Header().Set("X-T", token)
	},
	"unknown coding": func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Encoding", "compress")
		fmt.Fprint(w, "who knows")
	},
}

func TestCase74_ResponsesThatHoldTheSecretAreCut(t *testing.T) {
	for name, leak := range leaks {
		w := newWorld(t, credential(t, token))
		port := w.origin(leak, false, "a.test")
		w.grant(rule(t, "a.test", port, "GET", "/x", sends, preserve), rule(t, "a.test", port, "GET", "/later", preserve))
		find := secret.NewTextFinder(token)
		for way, how := range ways {
			w.rows.clear()
			got := w.do(w.client(how), "GET", urlFor("https", "a.test", port, "/x"), "")
			if got.status == 200 && got.err == nil || got.err == nil && got.status != 403 {
				t.Errorf("%s %s: %d %q", name, way, got.status, got.body)
			}
			for header, values := range got.header {
				if find.HasText(header) || find.HasText(strings.Join(values, " ")) {
					t.Errorf("%s %s: header %s", name, way, header)
				}
			}
			if find.HasText(got.body) || strings.Contains(got.body, token[:6]) {
				t.Errorf("%s %s: body %q", name, way, got.body)
			}
			rows := w.rows.recorded(2)
			if rows[1].Code != "credential-echoed" || rows[1].ID != rows[0].ID || find.HasText(rows[1].Reason) {
				t.Errorf("%s %s: %+v", name, way, rows)
			}
			// What was sent with it may show up elsewhere on that host.
			if name == "gzip" || name == "base64" {
				if got := w.do(w.client(how), "GET", urlFor("https", "a.test", port, "/later"), ""); got.err == nil || find.HasText(got.body) {
					t.Errorf("%s %s later: %d %q", name, way, got.status, got.body)
				}
			}
		}
	}
}

// What has no secret comes as it is, with its length and coding.
func TestSearchedResponsesAreUnchanged(t *testing.T) {
	text := strings.Repeat("hunter22 is not all of it\n", 5000)
	w := newWorld(t, credential(t, token))
	port := w.origin(func(rw http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/gzip" {
			rw.Header().Set("Content-Encoding", "gzip")
			z := gzip.NewWriter(rw)
			_, _ = io.WriteString(z, text)
			_ = z.Close()
			return
		}
		rw.Header().Set("Content-Length", fmt.Sprint(len(text)))
		_, _ = io.WriteString(rw, text)
	}, false, "a.test")
	w.grant(rule(t, "a.test", port, "GET", "/**", sends))
	for name, how := range ways {
		got := w.do(w.client(how), "GET", urlFor("https", "a.test", port, "/x"), "")
		if got.body != text || got.header.Get("Content-Length") != fmt.Sprint(len(text)) {
			t.Errorf("%s: %d bytes, %v", name, len(got.body), got.err)
		}
		got = w.do(w.client(how), "GET", urlFor("https", "a.test", port, "/gzip"), "", "Accept-Encoding", "gzip")
		z, err := gzip.NewReader(strings.NewReader(got.body))
		if err != nil {
			t.Fatalf("%s: %v %v", name, err, got.err)
		}
		if plain, err := io.ReadAll(z); string(plain) != text || err != nil || got.header.Get("Content-Encoding") != "gzip" {
			t.Errorf("%s: %d bytes, %v", name, len(plain), err)
		}
		if got = w.do(w.client(how), "HEAD", urlFor("https", "a.test", port, "/x"), ""); got.status != 200 || got.header.Get("Content-Length") != fmt.Sprint(len(text)) {
			t.Errorf("%s HEAD: %d %v", name, got.status, got.header)
		}
	}
}

// Case72: a presigned URL of another host gets nothing, and its exact query.
func TestCase72_PresignedURLsGetNothing(t *testing.T) {
	const signed = "/f?X-Amz-Signature=abc&X-Amz-Credential=k%2Fs&token=own"
	w := newWorld(t, credential(t, token, placeholder))
	port := w.origin(func(rw http.ResponseWriter, r *http.Request) {
		extra := r.Header.Get("Authorization") != "" || r.Header.Get("Cookie") != "" || r.Header.Get("X-Api-Key") != ""
		switch {
		case strings.HasPrefix(r.Host, "a.test"):
			http.Redirect(rw, r, "https://s3.test"+r.Host[len("a.test"):]+signed, http.StatusFound)
		case extra || r.RequestURI != signed:
			http.Error(rw, "Only one auth mechanism allowed: "+r.RequestURI, 400)
		}
	}, false, "a.test", "s3.test")
	for _, mode := range []func(*egress.Rule){follow, func(*egress.Rule) {}} {
		w.grant(rule(t, "a.test", port, "GET", "/**", sends, preserve, mode), rule(t, "s3.test", port, "GET", "/**", preserve))
		for name, how := range ways {
			c := w.client(how)
			c.CheckRedirect = func(*http.Request, []*http.Request) error { return nil }
			if got := w.do(c, "GET", urlFor("https", "a.test", port, "/f"), "", "Authorization", "Bearer "+ph, "Cookie", "a=b"); got.status != 200 {
				t.Errorf("%s: %d %q %v", name, got.status, got.body, got.err)
			}
		}
	}
	if n := w.server.Injected()["test/c"]; n != 8 {
		t.Errorf("injected %d times", n)
	}
}
