package egress_test

import (
	"strings"
	"testing"

	"github.com/fractalboxdev/sbx/internal/egress"
)

// FuzzParseHost: normalising twice changes nothing, and what is accepted is
// spelt in letters that no parser reads differently.
func FuzzParseHost(f *testing.F) {
	for _, seed := range []string{"github.com.", "bücher.test", "xn--bcher-kva.test", "[::ffff:1.2.3.4]", "0x7f.1", "a_b.test", "１２７。1", "evil\x00.test", "a..b", "ª.test"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, s string) {
		h, err := egress.ParseHost(s)
		if err != nil {
			if !h.IsZero() {
				t.Errorf("ParseHost(%q) returns %q beside an error", s, h)
			}
			return
		}
		again, err := egress.ParseHost(h.String())
		if err != nil || again != h {
			t.Errorf("ParseHost(%q) = %q, again %q, %v", s, h, again, err)
		}
		if bracketed, err := egress.ParseHost(h.InURL()); err != nil || bracketed != h {
			t.Errorf("ParseHost(%q) = %q, %v", h.InURL(), bracketed, err)
		}
		if _, isAddr := h.Addr(); !isAddr && strings.Trim(h.String(), "abcdefghijklmnopqrstuvwxyz0123456789-_.") != "" {
			t.Errorf("ParseHost(%q) = %q", s, h)
		}
	})
}

// FuzzParseTarget: the bytes come back, and a path that is not odd has no dot
// segment however often it is decoded.
func FuzzParseTarget(f *testing.F) {
	for _, seed := range []string{"/", "/a/%2e%2e/b", "/@types%2fnode?x=1", "/..;/x", "/a%252e", "/a\\b", "*", "/a//b/", "/%c0%ae"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, target string) {
		p, q, err := egress.ParseTarget(target)
		if err != nil {
			return
		}
		if got := egress.Target(p, q); got != target {
			t.Errorf("target %q is sent as %q", target, got)
		}
		if p.Odd() != "" {
			return
		}
		decoded := p.Raw()
		for range 4 {
			decoded = decodeLoosely(decoded)
			for segment := range strings.SplitSeq(strings.ReplaceAll(decoded, `\`, "/"), "/") {
				bare, _, _ := strings.Cut(segment, ";")
				if bare == "." || bare == ".." {
					t.Fatalf("path %q is not odd, yet decodes to %q", p.Raw(), decoded)
				}
			}
		}
	})
}

// decodeLoosely decodes what it can, as lenient origins do.
func decodeLoosely(s string) string {
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		if s[i] == '%' && i+2 < len(s) {
			hi, lo := strings.IndexByte("0123456789abcdef", s[i+1]|0x20), strings.IndexByte("0123456789abcdef", s[i+2]|0x20)
			if hi >= 0 && lo >= 0 {
				b.WriteByte(byte(hi<<4 | lo))
				i += 2
				continue
			}
		}
		b.WriteByte(s[i])
	}
	return b.String()
}

// FuzzDecide: a policy never panics, removing a rule never allows more, and
// everything that is allowed is allowed by a rule about that host and port.
func FuzzDecide(f *testing.F) {
	f.Add("GET", "https://a.test/x", "a.test", "/**", "/x/*", int64(0))
	f.Add("POST", "http://b.a.test:81/@a%2fb?service=read", "*.a.test", "/@a%2f*", "/**", int64(5))
	f.Add("HEAD", "https://floor.test/..", "floor.test", "/", "/{hex32}", int64(-1))
	f.Fuzz(func(t *testing.T, method, url, host, path1, path2 string, length int64) {
		req, err := egress.ParseURL(url)
		if err != nil {
			return
		}
		req.Method, req.BodyLength = method, length
		var rules []egress.Rule
		for i, text := range []string{path1, path2} {
			pattern, err := egress.ParsePathPattern(text, i == 0)
			hosts, hostErr := egress.ParseHostPattern(host)
			if err != nil || hostErr != nil {
				return
			}
			rules = append(rules, egress.Rule{ID: "p/" + text, Protocol: egress.ProtocolHTTPS, Host: hosts, Methods: []string{"GET", "POST"}, Path: pattern, MaxBody: 10})
		}
		floor := []egress.Host{mustHost(t, "floor.test")}
		all := mustCompile(t, floor, rules...).Decide(req)
		if all.Verdict == egress.Allow && (!all.Rule.Host.Matches(req.Host) || req.Port != 443 || req.Path.Odd() != "" || req.Host == floor[0]) {
			t.Errorf("%s %s is allowed by %+v", method, url, all.Rule)
		}
		if all.Verdict == egress.Deny && (all.Reason == "" || all.Code == "") {
			t.Errorf("%s %s is denied without reason: %+v", method, url, all)
		}
		for i := range rules {
			fewer := mustCompile(t, floor, rules[i]).Decide(req)
			if fewer.Verdict == egress.Allow && all.Verdict == egress.Deny {
				t.Errorf("%s %s: one rule allows what both deny", method, url)
			}
		}
	})
}

// FuzzJudgeBody: bodies of hostile bytes are judged without panic, and a JSON
// body that passes holds the asserted text.
func FuzzJudgeBody(f *testing.F) {
	f.Add([]byte(`{"operation":"download"}`), "", lfsType, false)
	f.Add([]byte(`{"operation":"download","operation":"upload"}`), "", lfsType, false)
	f.Add([]byte(pkt("command=fetch", "flush")), "", gitType, true)
	f.Add([]byte("0032want"), "gzip", gitType, true)
	f.Fuzz(func(t *testing.T, body []byte, encoding, kind string, git bool) {
		r := egress.Rule{MaxBody: 1 << 16, Body: egress.BodyRule{Git: egress.GitUploadPack}}
		if !git {
			r.Body = egress.BodyRule{JSON: []egress.JSONAssertion{{Pointer: "/operation", OneOf: []string{"download"}}}}
		}
		code, why := r.JudgeBody(body, encoding, kind)
		if (code == egress.CodeAllowed) != (why == "") {
			t.Errorf("%s %q", code, why)
		}
		if code == egress.CodeAllowed && !git && encoding == "" && strings.Contains(string(body), "upload") && !strings.Contains(string(body), "ownload") && !strings.Contains(string(body), `\u`) {
			t.Errorf("allowed: %q", body)
		}
	})
}
