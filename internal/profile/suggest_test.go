package profile_test

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/fractalboxdev/sbx/internal/egress"
	"github.com/fractalboxdev/sbx/internal/profile"
)

func mustSuggest(t *testing.T, seen ...profile.Seen) string {
	t.Helper()
	text, err := profile.Suggest("x-draft", seen)
	if err != nil {
		t.Fatalf("%v\n%+v", err, seen)
	}
	return text
}

func denied(code egress.Code, method, url string) profile.Seen {
	protocol, rest, _ := strings.Cut(url, "://")
	host, path, _ := strings.Cut(rest, "/")
	return profile.Seen{Protocol: protocol, Host: host, Method: method, Path: "/" + path, Code: string(code), Count: 1}
}

// TestCase65_SuggestedGrantsMakeTheNextRunClean: with the draft, every request
// that it is made of passes.
func TestCase65_SuggestedGrantsMakeTheNextRunClean(t *testing.T) {
	seen := []profile.Seen{
		denied(egress.CodeHostNotGranted, "GET", "https://api.test/v1/items"),
		denied(egress.CodePath, "GET", "https://api.test/@types%2fnode"),
		denied(egress.CodeMethod, "POST", "https://api.test/v1/items"),
		denied(egress.CodeRedirect, "GET", "https://cdn.test/blob/1*{x}"),
		denied(egress.CodeProtocol, "HEAD", "http://api.test/v1/"),
		denied(egress.CodeHostNotGranted, "DELETE", "https://api.test/v1/items/%22q%22"),
	}
	seen = append(seen, seen[0])
	port := denied(egress.CodePort, "GET", "https://api.test/")
	port.Port = 8443
	text := mustSuggest(t, append(seen, port)...)
	set := mustParse(t, text)
	g, err := set.Resolve([]string{"x-draft"}, nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	expect(t, g, egress.CodeAllowed,
		"GET https://api.test/v1/items", "GET https://api.test/v1/items?any=1", "GET https://api.test/@types%2Fnode", "POST https://api.test/v1/items length=5",
		"GET https://cdn.test/blob/1%2a%7bx%7d", "HEAD http://api.test/v1/", "DELETE https://api.test/v1/items/%22q%22", "GET https://api.test:8443/")
	expect(t, g, egress.CodePath, "GET https://api.test/v1/items/2", "GET https://api.test/v1", "GET https://cdn.test/blob/1", "GET https://api.test/")
	expect(t, g, egress.CodeMethod, "PUT https://api.test/v1/items length=5", "GET http://api.test/v1/", "POST https://cdn.test/blob/1 length=5")
	if !strings.Contains(text, "drafted from 8 denied requests") {
		t.Error(text)
	}
}

// TestCase65_SuggestLeavesOut: what a rule would grant too widely, or cannot
// grant, is a comment with the reason.
func TestCase65_SuggestLeavesOut(t *testing.T) {
	for _, c := range []struct {
		seen profile.Seen
		want string
	}{
		{denied(egress.CodeHostNotGranted, "GET", "https://192.0.2.1/x"), "raw IP address"},
		{denied(egress.CodeHostNotGranted, "GET", "https://user:pw@a.test/x"), "the host is malformed"},
		{denied(egress.CodeHostNotGranted, "GET", "https://a.test/x?token=t"), "a query, which may hold credentials"},
		{denied(egress.CodeHostNotGranted, "GET", "https://a.test/%2e%2e/x"), "the path is refused: it has a dot segment"},
		{denied(egress.CodeHostNotGranted, "GET", "https://a.test//x"), "empty segment"},
		{denied(egress.CodeHostNotGranted, "GET", "https://a.test/"+strings.Repeat("x", 500)), "may have been cut"},
		{denied(egress.CodeHostNotGranted, "get", "https://a.test/x"), "the method is not known"},
		{denied(egress.CodeHostNotGranted, "CONNECT", "https://a.test/x"), "the method is not known"},
		{denied(egress.CodeHostNotGranted, "", "tcp://a.test/"), "only https and http"},
		{denied(egress.CodeHostFloor, "GET", "https://gist.github.com/x"), "deny floor"},
		{denied(egress.CodePath, "GET", "https://api.github.com/x"), "deny floor"},
		{denied(egress.CodeQuery, "GET", "https://github.com/a/b/info/refs"), "queries are not recorded"},
		{denied(egress.CodeBodyTooLarge, "POST", "https://a.test/x"), "the body that was refused"},
		{denied(egress.CodeNameNotGranted, "", "dns://a.test/"), "only looked up"},
		{denied(egress.CodeUpgrade, "GET", "https://a.test/x"), "WebSocket"},
		{denied(egress.CodeNotTLS, "", "tcp://a.test/"), "cannot be intercepted"},
		{denied(egress.CodeUDP, "", "udp://a.test/"), "no rule grants it"},
		{denied("allowed", "GET", "https://a.test/"), "no rule grants it"},
	} {
		text := mustSuggest(t, c.seen)
		if !strings.Contains(text, c.want) || !strings.Contains(text, "# left out: ") || strings.Contains(text, "\n[") {
			t.Errorf("%+v: %s", c.seen, text)
		}
	}
	if _, err := profile.Suggest("draft", nil); err == nil {
		t.Error("a name without x- is taken")
	}
	if _, err := profile.Suggest("x-\n[profiles.y]", nil); err == nil {
		t.Error("a hostile name is taken")
	}
}

// hostile are texts that would break out of TOML, comments or rules.
var hostile = []string{
	"\"]\nmethods = [\"PUT\"]", "\n[profiles.x-evil]\nversion = 1", `\`, `"""`, "'''", "# x", "*", "**", "*.a.test", "{repo}", "{hex32}",
	"registry:npm", "\x00", "\u202e", "\xff", "a\r\nb", "%2a", "%", "%2f", "..", "?k=v", "/**", "api.github.com", "GET\tPUT", "\\u0022", "\u200b",
}

// checkDraft: the draft parses, has one profile, no findings, and allows exactly
// the shapes that it was made of.
func checkDraft(t *testing.T, seen []profile.Seen, probes []egress.Request) {
	t.Helper()
	text := mustSuggest(t, seen...)
	if !strings.Contains(text, "\n[profiles.x-draft]\n") {
		for line := range strings.Lines(text) {
			if !strings.HasPrefix(line, "#") {
				t.Fatalf("nothing is drafted, yet there is %q", line)
			}
		}
		return
	}
	set := mustParse(t, text)
	if names := set.Names(); len(names) != 1 || names[0] != "x-draft" {
		t.Fatalf("profiles %q in\n%s", names, text)
	}
	g, err := set.Resolve(set.Names(), nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, req := range probes {
		if d := g.Policy().Decide(req); d.Verdict == egress.Allow && !wasSeen(seen, req) {
			t.Errorf("%s %v is allowed by %s, and was not seen in %+v\n%s", egress.Describe(req), req, d.Rule.ID, seen, text)
		}
	}
}

// wasSeen compares decoded segments, the way paths are judged.
func wasSeen(seen []profile.Seen, req egress.Request) bool {
	for _, s := range seen {
		host, err := egress.ParseHost(s.Host)
		port := s.Port
		if port == 0 {
			port = req.Protocol.DefaultPort()
		}
		method := s.Method == req.Method || s.Method == "GET" && req.Method == "HEAD"
		if err != nil || host != req.Host || s.Protocol != req.Protocol.String() || port != req.Port || !method {
			continue
		}
		literal, err := egress.ParsePathPattern(strings.NewReplacer("*", "%2a", "{", "%7b", "}", "%7d").Replace(s.Path), true)
		if err == nil && literal.Matches(req.Path) {
			return true
		}
	}
	return false
}

func randomSeen(r *rand.Rand) profile.Seen {
	text := func(plain ...string) string {
		if r.IntN(4) > 0 {
			return plain[r.IntN(len(plain))]
		}
		return hostile[r.IntN(len(hostile))]
	}
	path := ""
	for range 1 + r.IntN(3) {
		path += "/" + text("a", "b", "@s%2fp", "x.y")
	}
	return profile.Seen{
		Protocol: text("https", "https", "http"), Host: text("a.test", "b.test", "A.test."), Method: text("GET", "POST", "HEAD", "PUT"),
		Path: path + []string{"", "/"}[r.IntN(2)], Port: []uint16{0, 0, 443, 80, 8443}[r.IntN(5)],
		Code: text("host-not-granted", "path-not-granted", "method-not-granted"), Rule: text("p/r"), Count: r.IntN(3),
	}
}

func randomProbe(r *rand.Rand) (egress.Request, error) {
	s := randomSeen(r)
	port := ""
	if s.Port != 0 {
		port = fmt.Sprintf(":%d", s.Port)
	}
	req, err := egress.ParseURL(s.Protocol + "://" + s.Host + port + s.Path)
	req.Method, req.BodyLength = s.Method, int64(r.IntN(3))
	return req, err
}

func checkRandomDraft(t *testing.T, r *rand.Rand) {
	seen := make([]profile.Seen, 1+r.IntN(6))
	for i := range seen {
		seen[i] = randomSeen(r)
	}
	var probes []egress.Request
	for range 60 {
		if req, err := randomProbe(r); err == nil {
			probes = append(probes, req)
		}
	}
	checkDraft(t, seen, probes)
}

// TestSuggestIsNeverWider: random rows, hostile ones among them.
func TestSuggestIsNeverWider(t *testing.T) {
	for seed := range uint64(400) {
		checkRandomDraft(t, rand.New(rand.NewPCG(seed, 2)))
	}
}

// FuzzSuggest: no text in a record breaks out of the draft or widens it.
func FuzzSuggest(f *testing.F) {
	for i, text := range hostile {
		f.Add("https", "a.test", "GET", "/"+text, uint64(i))
		f.Add("https", text, "GET", "/a", uint64(i))
		f.Add("https", "a.test", text, "/a", uint64(i))
	}
	f.Fuzz(func(t *testing.T, protocol, host, method, path string, seed uint64) {
		row := profile.Seen{Protocol: protocol, Host: host, Method: method, Path: path, Code: "host-not-granted", Count: 1}
		r := rand.New(rand.NewPCG(seed, 3))
		probes := make([]egress.Request, 0, 20)
		for range 20 {
			if req, err := randomProbe(r); err == nil {
				probes = append(probes, req)
			}
		}
		checkDraft(t, []profile.Seen{row, randomSeen(r)}, probes)
	})
}

func TestSuggestIsBounded(t *testing.T) {
	var seen []profile.Seen
	for i := range 10000 {
		seen = append(seen, denied(egress.CodePath, "GET", fmt.Sprintf("https://a.test/%d", i)))
	}
	text := mustSuggest(t, seen...)
	if n := strings.Count(text, "GET https://a.test/"); n > 1000 || len(text) > 1<<20 || !strings.Contains(text, "# and 9500 more are left out\n") {
		t.Errorf("%d requests, %d bytes", n, len(text))
	}
}
