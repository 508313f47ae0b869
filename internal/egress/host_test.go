package egress_test

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/fractalboxdev/sbx/internal/egress"
)

func mustHost(tb testing.TB, s string) egress.Host {
	tb.Helper()
	h, err := egress.ParseHost(s)
	if err != nil {
		tb.Fatal(err)
	}
	return h
}

func TestParseHost(t *testing.T) {
	for in, want := range map[string]string{
		"github.com":            "github.com",
		"GitHub.COM":            "github.com",
		"github.com.":           "github.com", // one trailing dot
		"a_b.test":              "a_b.test",
		"_dmarc.x.test":         "_dmarc.x.test",
		"r3---sn-x.test":        "r3---sn-x.test",
		"bücher.test":           "xn--bcher-kva.test",
		"BÜCHER.test":           "xn--bcher-kva.test",
		"xn--bcher-kva.test":    "xn--bcher-kva.test",
		"XN--BCHER-KVA.test":    "xn--bcher-kva.test",
		"faß.test":              "xn--fa-hia.test", // not fass: IDNA2008, as browsers do
		"ｇithub.com":            "github.com",
		"github。com":            "github.com",
		"localhost":             "localhost",
		"127.0.0.1":             "127.0.0.1",
		"1.2.3.4.":              "1.2.3.4",
		"[::1]":                 "::1",
		"::1":                   "::1",
		"2001:DB8::0:1":         "2001:db8::1",
		"[::ffff:127.0.0.1]":    "127.0.0.1", // mapped is unwrapped
		"::ffff:7f00:1":         "127.0.0.1",
		"1.2.3.4.test":          "1.2.3.4.test",
		strings.Repeat("a", 63): strings.Repeat("a", 63),
	} {
		h, err := egress.ParseHost(in)
		if err != nil || h.String() != want {
			t.Errorf("ParseHost(%q) = %q, %v; want %q", in, h, err, want)
		}
	}
}

// Rows of bypasses.md section 3.1 that concern parsing.
func TestBypass05_07_08_12_ParseHostRefuses(t *testing.T) {
	for _, in := range []string{
		"",
		".",
		"github.com..",                // two trailing dots
		"..github.com", ".github.com", // empty labels
		"a..b.test",
		"evil.test\x00.github.com", // NUL
		"evil.test%00.github.com",
		"evil.test .github.com", " x.dev", "x.dev ", "x.dev\n", "x\t.dev",
		"github.com@evil.test", "user:pw@evil.test",
		"[github.com]", "[127.0.0.1]", "[::1", "::1]", "[]", // brackets round names
		"[fe80::1%lo]", "fe80::1%lo", "fe80::1%25lo", // zones
		"2130706433", "0x7f000001", "0x7f.1", "0177.0.0.1", "127.1", "127.0.1", "1.2.3.4.5", "256.1.1.1",
		"127.0.0.01", "0x7f.0.0.0x1", "1.2.3.0x", "test.0", "127.0.0.1:80", // forms of IPv4
		"１２７.１", "127。1", // the same after mapping
		"-rf.test", "x-.test", "a/b.test", "a\\b.test", "a#b.test", "a?b", "a*b.test", "*.test",
		"℀.test", "a\u200d.test", "xn--\u00fc.test", "xn--a.test", "xn--.test", "xn--zzzzzzzzzz-.test",
		strings.Repeat("a", 64) + ".test",
		strings.Repeat("a.", 127) + "aa",
		strings.Repeat("ü", 2000),
		"\xff\xfe.test",
	} {
		if h, err := egress.ParseHost(in); err == nil {
			t.Errorf("ParseHost(%q) = %q; want an error", in, h)
		}
	}
}

func TestParseAuthority(t *testing.T) {
	for in, want := range map[string]string{
		"GITHUB.com.:443":      "github.com 443",
		"github.com":           "github.com 8080",
		"[2001:db8::1]:8443":   "2001:db8::1 8443",
		"[2001:db8::1]":        "2001:db8::1 8080",
		"127.0.0.1:65535":      "127.0.0.1 65535",
		"xn--bcher-kva.test:1": "xn--bcher-kva.test 1",
	} {
		h, port, err := egress.ParseAuthority(in, 8080)
		if got := h.String() + " " + itoa(port); err != nil || got != want {
			t.Errorf("ParseAuthority(%q) = %q, %v; want %q", in, got, err, want)
		}
	}
	for _, in := range []string{
		"", ":", ":80", "good.test:", "good.test:0", "good.test:65536", "good.test:080", "good.test:+80", "good.test:8 0",
		"good.test:443:evil", "good.test@evil.test", "good.test:80@evil.test:80", "::1", "::1:80", "[::1]80", "[::1]:", "[::1",
		"[good.test]:80", "good.test:http", "good.test:４４３",
	} {
		if h, port, err := egress.ParseAuthority(in, 8080); err == nil {
			t.Errorf("ParseAuthority(%q) = %q %d; want an error", in, h, port)
		}
	}
}

func itoa(n uint16) string {
	return strings.TrimPrefix(netip.AddrPortFrom(netip.IPv4Unspecified(), n).String(), "0.0.0.0:")
}

func TestHostIsComparable(t *testing.T) {
	if mustHost(t, "GitHub.com.") != mustHost(t, "github.com") || mustHost(t, "::ffff:1.2.3.4") != mustHost(t, "1.2.3.4") {
		t.Error("one host in two spellings differs")
	}
	if !(egress.Host{}).IsZero() || mustHost(t, "a.test").IsZero() {
		t.Error("IsZero is wrong")
	}
	if _, ok := mustHost(t, "a.test").Addr(); ok {
		t.Error("a name has an address")
	}
	if addr, ok := mustHost(t, "[::1]").Addr(); !ok || addr != netip.IPv6Loopback() {
		t.Error("an address has none")
	}
}

// TestVector26_HostPattern: * is exactly one label, never bare, never the apex.
func TestVector26_HostPattern(t *testing.T) {
	for _, c := range []struct {
		pattern, host string
		want          bool
	}{
		{"*.workers.dev", "a.workers.dev", true},
		{"*.workers.dev", "A.Workers.dev.", true},
		{"*.workers.dev", "a.b.workers.dev", false},
		{"*.workers.dev", "evilworkers.dev", false},
		{"*.workers.dev", "workers.dev", false},
		{"*.workers.dev", "workers.dev.evil.test", false},
		{"github.com", "github.com", true},
		{"github.com", "api.github.com", false},
		{"github.com", "agithub.com", false},
		{"192.0.2.1", "192.0.2.1", true},
		{"192.0.2.1", "::ffff:192.0.2.1", true},
	} {
		pattern, err := egress.ParseHostPattern(c.pattern)
		if err != nil {
			t.Fatal(err)
		}
		if got := pattern.Matches(mustHost(t, c.host)); got != c.want {
			t.Errorf("%s matches %s: %v, want %v", c.pattern, c.host, got, c.want)
		}
	}
	for _, bad := range []string{"", "*", "*.", "**", "*.*", "*.dev", "*.*.dev", "a.*.dev", "a*.x.dev", "*a.x.dev", "*.0.0.1", "*.192.0.2.1", "*.[::1]", "https://x.dev"} {
		if p, err := egress.ParseHostPattern(bad); err == nil {
			t.Errorf("ParseHostPattern(%q) = %s; want an error", bad, p)
		}
	}
	if (egress.HostPattern{}).Matches(egress.Host{}) || (egress.HostPattern{}).Matches(mustHost(t, "a.test")) {
		t.Error("the zero pattern matches")
	}
}

// TestVector15_URL: userinfo is not the host.
func TestVector15_URL(t *testing.T) {
	for in, want := range map[string]string{
		"https://github.com@evil.example/":        "https://evil.example/",
		"https://github.com:443@evil.example:444": "https://evil.example:444/",
		"HTTPS://GITHUB.com.:443/a?b#c":           "https://github.com/a",
		"http://[::1]:8080/x":                     "http://[::1]:8080/x",
		"https://a.test?x=1":                      "https://a.test/",
		"https://a@b@c.test/":                     "https://c.test/",
	} {
		req, err := egress.ParseURL(in)
		if got := egress.Describe(req); err != nil || got != want {
			t.Errorf("ParseURL(%q) = %q, %v; want %q", in, got, err, want)
		}
	}
	for _, in := range []string{"", "github.com", "//github.com/", "ftp://a.test/", "https:/a.test", "tcp://a.test:1", "https://", "https:///x", `https://github.com\@evil.test/`, "https://a.test/ b", "https://a.test:x/", "https://a b.test/"} {
		if req, err := egress.ParseURL(in); err == nil {
			t.Errorf("ParseURL(%q) = %s; want an error", in, egress.Describe(req))
		}
	}
}
