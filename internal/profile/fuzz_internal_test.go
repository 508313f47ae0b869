package profile

import (
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	sbx "github.com/fractalboxdev/sbx"
	"github.com/fractalboxdev/sbx/internal/egress"
)

// FuzzProfile: no text makes parsing, linting or comparing panic; what has no
// findings loads, and does not differ from itself; what loads allows no more
// with a rule less.
func FuzzProfile(f *testing.F) {
	f.Add(sbx.BuiltinProfiles)
	for name := range strings.SplitSeq("js-install cf-api public-repo-read browser-fetch", " ") {
		f.Add(only(sbx.BuiltinProfiles, []string{name}))
	}
	f.Add("[profiles.x-a]\nversion = 1\nsummary = 's'\n[[profiles.x-a.rules]]\nid = 'r'\nhost = '*.a.test'\nmethods = ['GET']\npath = ['/**', '/{hex32}/']\nallow = ['GET https://b.a.test/']\n")
	f.Add("profiles = { x-a = { rules = [{ max_body = '1GiB', upload_budget = { bytes = 1 } }] } }")
	f.Fuzz(func(t *testing.T, text string) {
		found := Lint(text, "f.toml", false)
		Lint(text, "f.toml", true)
		_, _ = Examples(text, "f.toml") // may be refused, not panic
		set, err := Parse(text, "f.toml")
		if err != nil {
			if len(found) == 0 {
				t.Errorf("no findings, yet %v", err)
			}
			return
		}
		if changes, err := Diff(set, set); err == nil && len(changes) > 0 {
			t.Errorf("it differs from itself: %v", changes)
		}
		for _, name := range set.Names() {
			checkFewer(t, set.profiles[name])
		}
	})
}

// checkFewer judges what each rule is about with every rule, and with one less.
func checkFewer(t *testing.T, p Profile) {
	t.Helper()
	f, err := exampleFilling(&p)
	if err != nil {
		t.Fatalf("a profile that loaded has examples: %v", err)
	}
	var all []egress.Rule
	for _, rule := range p.Rules {
		expanded, err := f.expand(rule)
		if err != nil {
			t.Fatalf("a rule that loaded expands: %v", err)
		}
		all = append(all, expanded...)
	}
	all = all[:min(len(all), 12)]
	whole, err := egress.Compile(all, denyFloor)
	if err != nil {
		t.Fatalf("rules that loaded compile: %v", err)
	}
	for i := range all {
		fewer, err := egress.Compile(slices.Delete(slices.Clone(all), i, i+1), denyFloor)
		if err != nil {
			t.Fatalf("one rule less compiles: %v", err)
		}
		for _, rule := range all {
			req, err := witness(rule)
			if err == nil && fewer.Decide(req).Verdict == egress.Allow && whole.Decide(req).Verdict != egress.Allow {
				t.Errorf("%s is allowed without rule %d only", egress.Describe(req), i)
			}
		}
	}
}

// FuzzRemove: a profile with a rule less allows no request that it did not with it.
func FuzzRemove(f *testing.F) {
	f.Add(uint64(1), uint64(1))
	f.Add(uint64(5), uint64(9))
	f.Fuzz(func(t *testing.T, a, b uint64) { checkRemove(t, world{rand.New(rand.NewPCG(a, b))}) })
}

func TestRemovingARuleAllowsNoMore(t *testing.T) {
	for seed := range uint64(500) {
		checkRemove(t, world{rand.New(rand.NewPCG(seed, 4))})
	}
}

func checkRemove(t *testing.T, w world) {
	t.Helper()
	p, err := consistent(w.profile()).assemble("x-p")
	if err != nil {
		return
	}
	less := p
	i := w.IntN(len(p.Rules))
	less.Rules = slices.Delete(slices.Clone(p.Rules), i, i+1)
	inputs := declared(p, map[string]string{"repo": "o/n", "target": "t.test", "lfs": "true"})
	x, xErr := Set{map[string]Profile{"x-p": p}}.Resolve([]string{"x-p"}, inputs, standIn)
	y, yErr := Set{map[string]Profile{"x-p": less}}.Resolve([]string{"x-p"}, inputs, standIn)
	if xErr != nil || yErr != nil {
		return
	}
	for range 40 {
		req, body := w.request()
		if decideBoth(y, req, body).Verdict == egress.Allow && decideBoth(x, req, body).Verdict != egress.Allow {
			t.Errorf("%s is allowed without rule %s only", egress.Describe(req), p.Rules[i].ID)
		}
	}
}
