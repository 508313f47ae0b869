package egress_test

import (
	"strings"
	"testing"

	"github.com/fractalboxdev/sbx/internal/egress"
)

func mustTarget(tb testing.TB, s string) (egress.Path, egress.Query) {
	tb.Helper()
	p, q, err := egress.ParseTarget(s)
	if err != nil {
		tb.Fatal(err)
	}
	return p, q
}

// TestCase52_TargetBytes: what is sent is what the client wrote.
func TestCase52_TargetBytes(t *testing.T) {
	for _, target := range []string{
		"/", "/@s%2fp", "/@s%2Fp", "/a//b", "/a|b", "/a%7Cb", "/a[1]", "/a;b?x=1;y=2", "/?q=a+b%20c&&=", "/a?", "/a??b=?",
		"/%E2%82%AC", "/\xe2\x82\xac", "/a/../b", "/a/%2e%2e/b", "/a/", "*", "/a%", "/%zz",
	} {
		p, q := mustTarget(t, target)
		if got := egress.Target(p, q); got != target {
			t.Errorf("target %q is sent as %q", target, got)
		}
	}
	for _, target := range []string{"", "a", "http://a.test/", "?x", "**", "*/", "/a b", "/.. /x", "/a\tb", "/a\r\nX: y", "/a\x00", "/a#b", "/a\x7f", "/a?b c"} {
		if p, _, err := egress.ParseTarget(target); err == nil {
			t.Errorf("ParseTarget(%q) = %q; want an error", target, p.Raw())
		}
	}
}

// Dot segments in any spelling, backslashes, encoded NUL, empty segments, and
// what a second decoding would change (bypasses.md section 3.2).
func TestBypass14_15_16_19_OddPaths(t *testing.T) {
	for _, target := range []string{
		"/..", "/../", "/a/..", "/a/../b", "/.", "/./a", "/a/.",
		"/%2e", "/%2e%2e", "/%2E%2e/admin", "/.%2e/", "/a/%2e./b",
		"/%252e%252e/", "/%252e", "/%25%32%65", "/a%252fb", "/@types%252fnode", "/%2525", "/%2500",
		"/..;", "/..;/x", "/..;a=b/x", "/.;/x", "/%2e%2e;x/", "/%2e%2e%3b/x", "/;x/", "/;",
		"/a\\b", "/a/..\\b", "/@types%5cnode", "/%5C..",
		"/a%00", "/%00", "/a%0a", "/a%0d%0ab", "/%1f", "/%7f", "/%09",
		"//", "//a", "/a//b", "/a//", "///", "//evil.test/a",
		"/@types%2f..%2f..%2fadmin", "/a%2f%2fb", "/%2fa", "/a%2f", "/a%2f.", "/%2f", "/a%2f..;",
		"/a%", "/a%2", "/%zz", "/a%u002e", "/%", "/a%%20",
		"/%c0%ae%c0%ae/", "/\xc0\xae/", "/%ff", "/%e0%80%af",
		"/\uff0e\uff0e/x", "/%EF%BC%8E%EF%BC%8E/x", "/\u2024\u2024/x", "/\u2025/x", "/a\uff0f..", "/a\uff3cb", "/..%20/x",
		"*",
	} {
		if p, _ := mustTarget(t, target); p.Odd() == "" {
			t.Errorf("path %q is not odd", target)
		}
	}
}

func TestPlainPaths(t *testing.T) {
	for _, target := range []string{
		"/", "/a", "/a/", "/simple/requests/", "/@types%2fnode", "/@types%2Fnode", "/@types/node/-/node-1.0.0.tgz",
		"/-/npm/v1/security/advisories/bulk", "/pkg/-/pkg-1.0.0.tgz", "/...", "/.well-known/x", "/..a", "/a..", "/.git", "/a.;b",
		"/github.com/!burnt!sushi/toml/@v/v1.6.0.zip", "/golang.org/x/net@v0.1.0", "/lookup/a.test/b@v0.0.0-20200101000000-abcdef",
		"/pool/main/g/g++/g++_1%3a1.0~rc1-1+b1_amd64.deb", "/a:b", "/100%25", "/a%3fb", "/a%23b", "/a%20b", "/%E2%82%AC", "/\u20ac",
		"/a;b", "/a=b&c", "/a,b", "/a|b", "/a[1]", "/%40scope%2fname", "/a%2eb", "/q?x=../../etc", "/a?b=%2e%2e//",
	} {
		if p, _ := mustTarget(t, target); p.Odd() != "" {
			t.Errorf("path %q is odd: %s", target, p.Odd())
		}
	}
}

func TestPathPattern(t *testing.T) {
	for _, c := range []struct {
		pattern string
		slash   bool // encoded_slash
		yes, no []string
	}{
		{"/", false, []string{"/"}, []string{"/a", "/a/"}},
		{"/**", false, []string{"/", "/a", "/a/", "/a/b/c"}, []string{"/@types%2fnode"}},
		{"/**", true, []string{"/@types%2fnode", "/a/@b%2Fc/d"}, []string{"*"}},
		{"/a", false, []string{"/a", "/%61"}, []string{"/a/", "/A", "/ab", "/a/b", "/", "/a;x", "/a%2fb"}},
		{"/a/", false, []string{"/a/"}, []string{"/a", "/a/b"}},
		{"/a/**", false, []string{"/a", "/a/", "/a/b", "/a/b/"}, []string{"/ab", "/b/a", "/a-evil/b"}},
		{"/a/*/c", false, []string{"/a/b/c", "/a/*/c"}, []string{"/a/c", "/a/b/d/c", "/a/b/c/", "/a/b%2fb/c"}},
		{"/*", true, []string{"/@types%2fnode", "/a"}, []string{"/a/b", "/", "/a/"}},
		{"/@types%2f*", true, []string{"/@types%2fnode", "/@types%2Fnode", "/%40types%2fnode"}, []string{"/@typesX%2fnode", "/@types/node", "/@types", "/@types%2fa%2fb", "/@types%2fnode/x"}},
		{"/@types/*", true, []string{"/@types/node"}, []string{"/@types%2fnode"}},
		{"/caf%C3%A9", false, []string{"/caf%c3%a9", "/café"}, []string{"/cafe"}},
		{"/a%2Ab", false, []string{"/a*b"}, []string{"/aXb"}},
		{"/x/{hex32}/y", false, []string{"/x/0123456789abcdef0123456789abcdef/y"}, []string{
			"/x/0123456789abcdef0123456789abcde/y", "/x/0123456789abcdef0123456789abcdef0/y",
			"/x/0123456789ABCDEF0123456789abcdef/y", "/x/{hex32}/y", "/x/*/y",
		}},
	} {
		pattern, err := egress.ParsePathPattern(c.pattern, c.slash)
		if err != nil {
			t.Errorf("ParsePathPattern(%q): %v", c.pattern, err)
			continue
		}
		for _, target := range c.yes {
			if p, _ := mustTarget(t, target); !pattern.Matches(p) {
				t.Errorf("%s does not match %s", c.pattern, target)
			}
		}
		for _, target := range c.no {
			if p, _ := mustTarget(t, target); pattern.Matches(p) {
				t.Errorf("%s matches %s", c.pattern, target)
			}
		}
	}
}

func TestPathPatternErrors(t *testing.T) {
	for _, bad := range []string{
		"", "a", "*", "**", "/a*", "/*a", "/a/**/b", "/***", "/{repo}", "/{repo", "/a}", "/{hex32}x", "/a?b=c", "/a#b", "/a b",
		"/../a", "/a//b", "/%2e%2e", "/a%", "/a%252e", "/a\\b",
	} {
		if p, err := egress.ParsePathPattern(bad, true); err == nil {
			t.Errorf("ParsePathPattern(%q) = %s; want an error", bad, p)
		}
	}
	if p, err := egress.ParsePathPattern("/@types%2f*", false); err == nil {
		t.Errorf("encoded slash without leave: %s", p)
	}
	if p, _ := mustTarget(t, "/"); (egress.PathPattern{}).Matches(p) {
		t.Error("the zero pattern matches")
	}
}

func TestPathPatternUnder(t *testing.T) {
	rest, err := egress.ParsePathPattern("/**", true)
	if err != nil {
		t.Fatal(err)
	}
	for base, yes := range map[string]string{"": "/x", "/": "/x", "/api/npm": "/api/npm/@a%2fb", "/a*b/": "/a*b/x", "/{x}": "/%7Bx%7D"} {
		under, err := rest.Under(base)
		if err != nil {
			t.Fatal(err)
		}
		if p, _ := mustTarget(t, yes); !under.Matches(p) {
			t.Errorf("%s under %q does not match %s", rest, base, yes)
		}
	}
	under, err := rest.Under("/api/npm")
	if err != nil {
		t.Fatal(err)
	}
	for _, no := range []string{"/api", "/api/npm-evil/x", "/x", "/api/npmx", "/api%2fnpm/x"} {
		if p, _ := mustTarget(t, no); under.Matches(p) {
			t.Errorf("%s matches %s", under, no)
		}
	}
	for _, bad := range []string{"api", "/../x", "/a//b", "/a b"} {
		if p, err := rest.Under(bad); err == nil {
			t.Errorf("Under(%q) = %s; want an error", bad, p)
		}
	}
}

// TestVector03_Query: a key has to occur exactly once, whoever reads the query.
func TestVector03_Query(t *testing.T) {
	for query, want := range map[string]bool{
		"service=git-upload-pack":       true,
		"x=1&service=git-upload-pack&y": true,
		"service=git%2Dupload%2dpack":   true,
		"%73ervice=git-upload-pack":     true,
		"":                              false,
		"service":                       false,
		"service=":                      false,
		"service=git-receive-pack":      false,
		"service=git-upload-pack&service=git-upload-pack":        false,
		"service=git-upload-pack&service=git-receive-pack":       false,
		"service=git-receive-pack&service=git-upload-pack":       false,
		"service=git-upload-pack;service=git-receive-pack":       false,
		"x=1;service=git-receive-pack&service=git-upload-pack":   false,
		"service=git-upload-pack&%73ervice=git-receive-pack":     false,
		"service=git-upload-pack&%2573ervice=git-receive-pack":   false,
		"service=git-upload-pack&Service=git-receive-pack":       false,
		"service=git-upload-pack&service[]=git-receive-pack":     false,
		"service=git-upload-pack&service%5B0%5D=x":               false,
		"service=git-upload-pack&+service=git-receive-pack":      false,
		"Service=git-upload-pack":                                false,
		"service=git-upload-packx":                               false,
		"service=git-upload-pack%00":                             false,
		"service=git-upload-pack%":                               false,
		"service=git-upload-pack%20":                             false,
		"service=GIT-UPLOAD-PACK":                                false,
		"service%=git-upload-pack":                               false,
		"service=git-upload-pack&%25252573ervice=git-receive-pa": false,
	} {
		if _, q := mustTarget(t, "/x?"+query); q.Has("service", "git-upload-pack") != want {
			t.Errorf("query %q: %v, want %v", query, !want, want)
		}
	}
}

// PHP puts underscores into names, so another spelling beside the judged one counts.
func TestQueryKeysThatPHPRenames(t *testing.T) {
	for _, other := range []string{"a.b", "a b", "a+b", "a%20b", "a[b", "a%5Bb", "a%00b", "A%2eB", "a_b[]"} {
		query := strings.ReplaceAll(other, " ", "%20")
		if _, q := mustTarget(t, "/x?a_b=1&"+query+"=2"); q.Has("a_b", "1") || !egress.KeyMeans(other, "a_b") {
			t.Errorf("%q is not taken for a_b", other)
		}
	}
	if egress.KeyMeans("a-b", "a_b") || egress.KeyMeans("ab", "a_b") {
		t.Error("other keys are taken for a_b")
	}
}
