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
	"github.com/fractalboxdev/sbx/internal/secret"
)

// Over plain HTTP a credentialed host gets no secret, and nobody else's either.
func TestBypass36_PlainHTTPGetsNeither(t *testing.T) {
	s := newSite(t, echo, []string{"a.test"}, credential(t, token))
	s.allow("a.test", "GET", "/**", preserve, sends)
	got, rows := s.answer(doors[0], "a.test", "GET", "GET /x?token=evil&a=1 HTTP/1.1\r\nHost: HOST\r\nAuthorization: Bearer own\r\nX-Vendor-Apikey: own\r\nCookie: own\r\nX-Plain: 1\r\n\r\n")
	if got.body != "/x?a=1||X-Plain" || rows[0].Credential != "" {
		t.Errorf("%+v %+v", got, rows)
	}
	if n := s.server.Injected()["test/c"]; n != 0 {
		t.Errorf("injected %d times", n)
	}
}

// A host that breaks off in the middle of the secret gives away no part of it: what was
// read together with the error was not searched to its end.
func TestBypass37_BrokenResponsesReleaseNothingUnsearched(t *testing.T) {
	const clear = "some clear text before it, then: "
	for name, text := range map[string]string{"whole": token, "half": token[:len(token)/2], "base64": basicOf("x", token)[6:30]} {
		s := rawSite(t, func(c net.Conn, br *bufio.Reader) {
			readRequest(br)
			fmt.Fprintf(c, "HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n%s%s", clear, text)
			reset(c)
		}, "a.test", credential(t, token))
		s.allow("a.test", "GET", "/**", sends)
		eachDoor(t, func(t *testing.T, d door) {
			c := d.open(s.world, "a.test", s.ports[d.scheme])
			fmt.Fprintf(c, "GET /x HTTP/1.1\r\nHost: %s\r\n\r\n", s.authority(d, "a.test"))
			b, err := io.ReadAll(c)
			if err == nil && strings.HasPrefix(string(b), "HTTP/1.1 200") {
				t.Errorf("%s: a clean end of %q", name, b)
			}
			if strings.Contains(string(b), text[:6]) || secret.NewTextFinder(token).Has(b) {
				t.Errorf("%s: the client read %q", name, b)
			}
		})
	}
}

// reset ends a connection with an error, after what was written.
func reset(c net.Conn) {
	if t, ok := c.(interface{ NetConn() net.Conn }); ok {
		c = t.NetConn()
	}
	_ = c.(*net.TCPConn).CloseWrite()
}

// On a connection that is not opened, a placeholder is cut before it leaves whole. Over
// plain HTTP every connection to a rule of another kind is opened.
func TestBypass38_PlaceholderOnAnUnopenedConnection(t *testing.T) {
	for name, conn := range tunnelWays {
		w := newWorld(t, credential(t, token, placeholder))
		got := make(chan string, 1)
		port := w.rawOrigin("", func(c net.Conn, br *bufio.Reader) {
			b, _ := io.ReadAll(br)
			got <- string(b)
		})
		w.grant(rule(t, "raw.test", port, "GET", "/", tcp))
		c := conn(w, "raw.test", port)
		for _, part := range []string{"AUTH ", ph[:8], ph[8:], "\r\nmore"} {
			_, _ = io.WriteString(c, part)
		}
		if seen := <-got; strings.Contains(seen, ph) {
			t.Errorf("%s: upstream saw %q", name, seen)
		}
		if rows := w.rows.recorded(2); rows[1].Code != "placeholder-misplaced" {
			t.Errorf("%s: %+v", name, rows)
		}
	}
}

// A route that no rule is bound to gives no placeholder away either.
func TestBypass38_PlaceholderOnAnUnboundRoute(t *testing.T) {
	s := newSite(t, echo, []string{"a.test"}, credential(t, token, placeholder))
	s.grant(s.rules("a.test", "GET", "/bound/**", sends)...)
	eachDoor(t, func(t *testing.T, d door) {
		for host, status := range map[string]int{"a.test": 403, "unlisted.test": 520} {
			got, rows := s.answer(d, host, "GET", "GET /unbound HTTP/1.1\r\nHost: HOST\r\nAuthorization: Bearer "+ph+"\r\n\r\n")
			if got.status != status || len(rows) != 1 || !rows[0].Denied() {
				t.Errorf("%s: %+v %+v", host, got, rows)
			}
		}
	})
	s.noDials("a.test", "unlisted.test")
}

func TestBypass40_NoConnectInsideOfACredentialedHost(t *testing.T) {
	s := newSite(t, echo, []string{"a.test"}, credential(t, token))
	s.allow("a.test", "GET", "/**", sends)
	eachDoor(t, func(t *testing.T, d door) {
		for _, target := range []string{"HOST", "evil.test:443", "a.test:443"} {
			got, rows := s.answer(d, "a.test", "CONNECT", "CONNECT "+target+" HTTP/1.1\r\nHost: "+target+"\r\n\r\n")
			if got.status != 403 && got.status != 421 || len(rows) != 1 {
				t.Errorf("%s: %+v %+v", target, got, rows)
			}
		}
	})
	s.noDials("a.test", "evil.test")
}

// At another scheme, port, path, method or name than its rule's, nothing goes out.
func TestBypass41_CredentialIsBoundToSchemeHostPortMethodAndPath(t *testing.T) {
	names := []string{"a.test", "a.test.evil.test", "sub.a.test"}
	s := newSite(t, echo, names, credential(t, token))
	other := s.origin(echo, false, names...)
	rules := s.rules("a.test", "GET", "/api/**", sends)
	rules = append(rules, s.rules("a.test", "GET", "/open/**")...)
	rules = append(rules, s.rules("a.test", "POST", "/api/**", maxBody(10))...)
	rules = append(rules, s.rules("*.a.test", "GET", "/**")...)
	rules = append(rules, s.rules("a.test.evil.test", "GET", "/**")...)
	s.grant(append(rules, rule(t, "a.test", other, "GET", "/**"))...)
	eachDoor(t, func(t *testing.T, d door) {
		for _, c := range [][3]string{{"a.test", "GET", "/open/x"}, {"a.test", "POST", "/api/x"}, {"sub.a.test", "GET", "/api/x"}, {"a.test.evil.test", "GET", "/api/x"}} {
			got, rows := s.answer(d, c[0], c[1], c[1]+" "+c[2]+" HTTP/1.1\r\nHost: HOST\r\nContent-Length: 0\r\n\r\n")
			if got.status != 200 || got.body != c[2]+"|" || rows[0].Credential != "" {
				t.Errorf("%s: %+v", c, got)
			}
		}
		want := "/api/x|Bearer IT"
		if d.scheme == "http" { // never unencrypted, although the rule names it
			want = "/api/x|"
		}
		if got, _ := s.answer(d, "a.test", "GET", "GET /api/x HTTP/1.1\r\nHost: HOST\r\n\r\n"); got.body != want {
			t.Errorf("%+v, want %q", got, want)
		}
	})
	if got := s.do(s.client(explicit), "GET", urlFor("https", "a.test", other, "/api/x"), ""); got.body != "/api/x|" {
		t.Errorf("another port: %+v", got)
	}
	if n := s.server.Injected()["test/c"]; n != 2 {
		t.Errorf("injected %d times, want once for each door of its rule", n)
	}
}

// A credential opens nothing that was closed without it.
func TestBypass42_CredentialsOpenNothing(t *testing.T) {
	verdicts := map[bool]map[string]string{}
	for _, with := range []bool{false, true} {
		verdicts[with] = map[string]string{}
		var options []option
		change := func(*egress.Rule) {}
		if with {
			options, change = []option{credential(t, token, placeholder)}, sends
		}
		s := newSite(t, func(rw http.ResponseWriter, _ *http.Request) { fmt.Fprint(rw, "fine") }, []string{"a.test"}, options...)
		s.allow("a.test", "GET", "/api/**", change)
		eachDoor(t, func(t *testing.T, d door) {
			for _, c := range [][3]string{
				{"a.test", "GET", "/api/x"},
				{"a.test", "GET", "/other"},
				{"a.test", "POST", "/api/x"},
				{"a.test", "GET", "/api/../x"},
				{"b.test", "GET", "/api/x"},
				{"sub.a.test", "GET", "/api/x"},
				{"a.test.evil.test", "GET", "/api/x"},
			} {
				got, rows := s.answer(d, c[0], c[1], c[1]+" "+c[2]+" HTTP/1.1\r\nHost: HOST\r\nContent-Length: 0\r\n\r\n")
				verdicts[with][d.name+" "+strings.Join(c[:], " ")] = fmt.Sprint(got.status, got.body, rows[0].Verdict, rows[0].Code, rows[0].Rule)
			}
		})
		s.noDials("b.test", "sub.a.test", "a.test.evil.test")
	}
	for name, without := range verdicts[false] {
		if with := verdicts[true][name]; with != without {
			t.Errorf("%s: %q, without a credential %q", name, with, without)
		}
	}
}

// A placeholder is no part of a host's name either, wherever that stands.
func TestBypass39_PlaceholderInAHostName(t *testing.T) {
	name := ph + ".cdn.test"
	s := newSite(t, hello, []string{name}, credential(t, token, placeholder))
	s.allow("*.cdn.test", "GET", "/**")
	eachDoor(t, func(t *testing.T, d door) {
		for _, text := range []string{"GET /x HTTP/1.1\r\nHost: HOST\r\n\r\n", "GET /x HTTP/1.0\r\n\r\n"} {
			got, rows := s.answer(d, name, "GET", text)
			if got.status != 403 {
				t.Errorf("%q: %+v", text, got)
			}
			denied(t, text, rows, egress.CodePlaceholder)
		}
		if d.scheme == "https" {
			c := newRawH2(t, s.tunnelTo(d, name, name, "h2"))
			if got := c.result(c.headers(t, true, ":method", "GET", ":scheme", "https", ":authority", s.authority(d, name), ":path", "/x")); !strings.HasPrefix(got, "403") {
				t.Errorf("HTTP/2: %q", got)
			}
		}
	})
	s.noDials(name)
}
