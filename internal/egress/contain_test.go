package egress_test

import (
	"testing"

	"github.com/fractalboxdev/sbx/internal/egress"
)

// TestBypass22_Within: containment goes by whole segments, as matching does.
func TestBypass22_Within(t *testing.T) {
	const hex = "0123456789abcdef0123456789abcdef"
	for _, c := range []struct {
		p, q     string
		pe, qe   bool
		in, over bool
	}{
		{"/repos/my", "/repos/my", false, false, true, true},
		{"/repos/my-evil", "/repos/my/**", false, false, false, false},
		{"/repos/my/x", "/repos/my/**", false, false, true, true},
		{"/repos/my", "/repos/my/**", false, false, true, true},
		{"/repos/my/", "/repos/my", false, false, false, false},
		{"/repos/**", "/repos/*/**", false, false, false, true},
		{"/repos/*/x", "/repos/**", false, false, true, true},
		{"/**", "/", false, false, false, true},
		{"/", "/**", false, false, true, true},
		{"/a/*", "/a/{hex32}", false, false, false, true},
		{"/a/{hex32}", "/a/*", false, false, true, true},
		{"/a/" + hex, "/a/{hex32}", false, false, true, true},
		{"/a/" + hex + "0", "/a/{hex32}", false, false, false, false},
		{"/@a%2fb", "/*", true, true, true, true},
		{"/@a%2fb", "/*", true, false, false, true},
		{"/*", "/*", true, false, false, true},
		{"/a", "/*", true, false, true, true},
		{"/@a%2f*", "/@a/*", true, true, false, false},
		{"/*", "/@a%2f*", true, true, false, true},
		{"/a%2Fb", "/a%2fb", true, true, true, true},
		{"/%61", "/a", false, false, true, true},
	} {
		p, q := mustPath(t, c.p, c.pe), mustPath(t, c.q, c.qe)
		if got := p.Within(q); got != c.in {
			t.Errorf("%s within %s: %v", c.p, c.q, got)
		}
		if got := p.Overlaps(q); got != c.over {
			t.Errorf("%s overlaps %s: %v", c.p, c.q, got)
		}
	}
}

func TestHostWithin(t *testing.T) {
	for _, c := range []struct {
		p, q string
		in   bool
	}{
		{"a.x.test", "*.x.test", true},
		{"x.test", "*.x.test", false},
		{"a.b.x.test", "*.x.test", false},
		{"*.x.test", "*.x.test", true},
		{"*.x.test", "a.x.test", false},
		{"A.x.test.", "a.x.test", true},
	} {
		p, q := mustPattern(t, c.p), mustPattern(t, c.q)
		if got := p.Within(q); got != c.in {
			t.Errorf("%s within %s: %v", c.p, c.q, got)
		}
		if !p.Matches(p.Witness()) {
			t.Errorf("%s does not match its witness %s", c.p, p.Witness())
		}
	}
}

// FuzzWithin: what a contained pattern matches, the containing one matches; a
// path that both match is an overlap; a pattern matches its witness; a pattern
// written and read again is the same.
func FuzzWithin(f *testing.F) {
	f.Add("/a/**", "/a/*/b", "/a/x/b", true, false)
	f.Add("/@a%2fb", "/*", "/@a%2fb", true, true)
	f.Add("/a/{hex32}/", "/a/*/", "/a/0123456789abcdef0123456789abcdef/", false, false)
	f.Add("/", "/**", "/", false, false)
	f.Fuzz(func(t *testing.T, a, b, target string, ae, be bool) {
		p, err := egress.ParsePathPattern(a, ae)
		if err != nil {
			return
		}
		if again, err := egress.ParsePathPattern(p.String(), ae); err != nil || !again.Within(p) || !p.Within(again) {
			t.Errorf("%q read again differs: %v", a, err)
		}
		witness, _, err := egress.ParseTarget(p.Witness())
		if err != nil || !p.Matches(witness) || witness.Odd() != "" {
			t.Errorf("%q does not match its witness %q: %v", a, p.Witness(), err)
		}
		q, err := egress.ParsePathPattern(b, be)
		path, _, targetErr := egress.ParseTarget(target)
		if err != nil || targetErr != nil {
			return
		}
		if p.Within(q) && p.Matches(path) && !q.Matches(path) {
			t.Errorf("%q is within %q, yet only it matches %q", a, b, target)
		}
		if p.Matches(path) && q.Matches(path) && !p.Overlaps(q) {
			t.Errorf("%q and %q both match %q, yet do not overlap", a, b, target)
		}
		if p.Within(q) && !q.Matches(witness) {
			t.Errorf("%q is within %q, which does not match %q", a, b, p.Witness())
		}
	})
}

// A rule without a path grants none below a base path either: not the base path itself.
func TestNoPathUnderABasePath(t *testing.T) {
	under, err := egress.PathPattern{}.Under("/base")
	if err != nil || under.String() != "" {
		t.Errorf("%q, %v", under, err)
	}
	rule := egress.Rule{ID: "p/r", Protocol: egress.ProtocolHTTPS, Host: mustPattern(t, "a.test"), Methods: []string{"GET"}, Path: under}
	if _, err := egress.Compile([]egress.Rule{rule}, nil); err == nil {
		t.Error("it compiles")
	}
}
