package profile

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/fractalboxdev/sbx/internal/egress"
	"github.com/fractalboxdev/sbx/internal/grant"
)

// world draws profiles and requests from a small vocabulary, so that they meet often.
type world struct{ *rand.Rand }

func one[T any](w world, of ...T) T { return of[w.IntN(len(of))] }

func (w world) some(n int) bool { return w.IntN(n) == 0 }

func (w world) path() string {
	var b strings.Builder
	for range w.IntN(4) {
		b.WriteString("/" + one(w, "a", "b", "*", "{hex32}", "{repo}", "{repo}.git", "@s%2fp", "@s%2f*"))
	}
	b.WriteString(one(w, "/**", "/**", "", "/", "/a"))
	if b.Len() == 0 {
		return "/"
	}
	return b.String()
}

func (w world) hosts() stringList {
	hosts := stringList{one(w, "x.test", "a.x.test", "*.x.test", "*.github.com", "api.github.com", "registry:npm", "{target}", "t.test")}
	if w.some(3) {
		hosts = append(hosts, one(w, "b.x.test", "registry:go"))
	}
	return hosts
}

func (w world) rule(i int) ruleDoc {
	d := ruleDoc{
		ID: fmt.Sprintf("r%d", i), Host: w.hosts(), Path: stringList{w.path()}, EncodedSlash: w.some(2), OddPaths: w.some(6),
		Methods: one(w, []string{"GET"}, []string{"GET", "POST"}, []string{"HEAD"}, []string{"POST", "PUT"}, []string{"DELETE", "GET"}),
		MaxBody: one[byteSize](w, 0, 10, 100), Cookies: w.some(6), Redirects: one(w, "", "", "follow"), Allow: []string{"GET /"},
	}
	if w.some(3) {
		d.Path = append(d.Path, w.path())
	}
	if w.some(4) {
		d.Protocol = one(w, stringList{"http"}, stringList{"https", "http"})
	}
	if w.some(5) && len(d.Protocol) < 2 {
		d.Ports = one(w, []uint16{443}, []uint16{8443}, []uint16{443, 8443})
	}
	if w.some(4) {
		d.Query = one(w, map[string]string{"q": "1"}, map[string]string{"q": "2"}, map[string]string{"q": "1", "r": "1"})
	}
	if w.some(4) && d.MaxBody > 0 {
		d.Body.JSON = []jsonDoc{{Pointer: "/op", OneOf: one(w, []string{"r"}, []string{"r", "w"})}}
	}
	if w.some(5) {
		d.When = "lfs"
	}
	if w.some(8) {
		d = ruleDoc{ID: d.ID, Host: stringList{"x.test"}, Ports: []uint16{443}, Allow: d.Allow}
		if d.TLS = one(w, "tunnel", "intercept"); d.TLS == "intercept" {
			d.Protocol = stringList{"tcp"}
		}
	}
	return d
}

func (w world) profile() *profileDoc {
	d := &profileDoc{
		Version: 1, Summary: "s",
		Inputs: map[string]*inputDoc{
			"repo":   {Kind: "repo", Summary: "s", Example: "o/n", Many: w.some(6), Required: w.some(6)},
			"target": {Kind: "host", Summary: "s", Example: "t.test", Many: true, Match: one(w, nil, nil, nil, []string{"*.test"})},
			"lfs":    {Kind: "flag", Summary: "s"},
		},
	}
	for i := range 1 + w.IntN(4) {
		d.Rules = append(d.Rules, w.rule(i))
	}
	return d
}

// consistent makes a definition load: it declares the inputs and overrides that
// are used, and no others.
func consistent(d *profileDoc) *profileDoc {
	all := *d
	all.Inputs, all.Overrides = map[string]*inputDoc{}, nil
	text := fmt.Sprintf("%+v", d.Rules)
	for name, in := range d.Inputs {
		if strings.Contains(text, "{"+name+"}") || strings.Contains(text, "When:"+name) {
			all.Inputs[name] = in
		}
	}
	if strings.Contains(text, "api.github.com") {
		all.Overrides = []string{"api.github.com"}
	}
	all.Rules = slices.Clone(d.Rules)
	for i := range all.Rules {
		r := &all.Rules[i]
		r.EncodedSlash = r.EncodedSlash || strings.Contains(strings.Join(r.Path, ""), "%2f")
		if r.MaxBody == 0 {
			r.Body = bodyDoc{}
		}
	}
	return &all
}

// mutated changes one thing of a definition.
func (w world) mutated(d profileDoc) *profileDoc {
	if len(d.Rules) == 0 {
		d.Rules = []ruleDoc{w.rule(7)}
	}
	d.Rules = slices.Clone(d.Rules)
	r := &d.Rules[w.IntN(len(d.Rules))]
	fresh := w.rule(9)
	fresh.ID = r.ID
	switch w.IntN(12) {
	case 0:
		r.Methods = fresh.Methods
	case 1:
		r.Path = fresh.Path
	case 2:
		r.Host = fresh.Host
	case 3:
		r.MaxBody = fresh.MaxBody
	case 4:
		r.Query = fresh.Query
	case 5:
		r.Body = fresh.Body
	case 6:
		r.EncodedSlash, r.OddPaths = fresh.EncodedSlash, fresh.OddPaths
	case 7:
		d.Rules = append(d.Rules, w.rule(8))
	case 8:
		slices.Reverse(d.Rules)
	case 9:
		d.Rules = slices.Delete(d.Rules, 0, 1)
	case 10:
		r.Cookies, r.Redirects, r.When = fresh.Cookies, fresh.Redirects, fresh.When
	case 11:
		*r = fresh
	}
	return &d
}

// request draws one that the vocabulary may allow.
func (w world) request() (egress.Request, []byte) {
	var b strings.Builder
	for range 1 + w.IntN(4) {
		b.WriteString("/" + one(w, "a", "b", "c", "o/n", "o2/n2", "o/n.git", "base", "@s%2fp", "@s%2fq", "..", "0123456789abcdef0123456789abcdef"))
	}
	b.WriteString(one(w, "", "", "/", "?q=1", "?q=1&r=1", "?q=2", "?q=1&q=2"))
	host := one(w, "x.test", "a.x.test", "b.x.test", "c.x.test", "api.github.com", "gist.github.com", "www.github.com", "registry.test", "t.test", "u.test", "sbx.test")
	req, err := egress.ParseURL(one(w, "https", "https", "http") + "://" + host + one(w, "", "", ":8443") + b.String())
	if err != nil {
		panic(err)
	}
	req.Method = one(w, "GET", "HEAD", "POST", "PUT", "DELETE")
	req.BodyLength = one[int64](w, 0, 0, 5, 12, 60, 101, -1)
	if w.some(8) {
		req.Protocol = egress.ProtocolTCP
	}
	var body []byte
	if req.BodyLength == 12 {
		body = []byte(`{"op": "` + one(w, "r", "w") + `" }`)
	}
	return req, body
}

// checkSound: whatever the second definition allows and the first refuses, or
// treats more freely than the first, is reported. It returns how often that was
// put to the test: requests that both allowed without a widening being reported.
func checkSound(t *testing.T, w world, before, after *profileDoc) (quiet int) {
	t.Helper()
	was, err := consistent(before).assemble("x-p")
	if err != nil {
		return 0
	}
	is, err := consistent(after).assemble("x-p")
	if err != nil {
		return 0
	}
	a, b := Set{map[string]Profile{"x-p": was}}, Set{map[string]Profile{"x-p": is}}
	changes, err := Diff(a, b)
	if err != nil {
		return 0 // one of the two does not compile, so it would not load either
	}
	wider := slices.ContainsFunc(changes, Change.Wider)
	inputs := map[string]string{"target": one(w, "t.test", "u.test")}
	for name, value := range map[string]string{"repo": one(w, "o/n", "o2/n2"), "lfs": one(w, "true", "false")} {
		if !w.some(3) {
			inputs[name] = value
		}
	}
	x, xErr := a.Resolve([]string{"x-p"}, declared(was, inputs), standIn)
	y, yErr := b.Resolve([]string{"x-p"}, declared(is, inputs), standIn)
	refusal, _ := errors.AsType[*Refusal](xErr)
	if yErr != nil || refusal != nil && refusal.Code != CodeMissingInput {
		return 0 // Diff compares what both allow where both can be granted
	}
	rules := y.Rules()
	for range 40 {
		req, body := w.request()
		if w.some(2) && len(rules) > 0 { // one that is about to be allowed
			near, err := witness(one(w, rules...))
			if err == nil {
				near.BodyLength = req.BodyLength
				req = near
				if p, q, err := egress.ParseTarget(near.Path.Raw() + one(w, "", "", "/..", "//a") + "?" + near.Query.Raw()); err == nil {
					req.Path, req.Query = p, q
				}
			}
		}
		old, now := decideBoth(x, req, body), decideBoth(y, req, body)
		if wider || now.Verdict != egress.Allow {
			continue
		}
		if xErr != nil || old.Verdict != egress.Allow || freer(now.Rule, old.Rule) {
			t.Errorf("%s is allowed by %+v, was %+v, %v; changes %v\nbefore %+v\nafter %+v", egress.Describe(req), now.Rule, old, xErr, changes, before, after)
		}
		quiet++
	}
	return quiet
}

func declared(p Profile, inputs map[string]string) map[string]string {
	values := map[string]string{}
	for _, in := range p.Inputs {
		if v, ok := inputs[in.Name]; ok {
			values[in.Name] = v
		}
	}
	return values
}

func decideBoth(g grant.Grant, req egress.Request, body []byte) egress.Decision {
	if d := g.Policy().Decide(req); body == nil || d.Verdict != egress.Allow {
		return d
	}
	return g.Policy().DecideBody(req, body, "", "application/json")
}

func freer(a, b *egress.Rule) bool {
	return a.Cookies && !b.Cookies || a.Redirects != b.Redirects && a.Redirects == egress.RedirectFollow
}

func TestDiffIsSound(t *testing.T) {
	quiet := 0
	for seed := range uint64(3000) {
		w := world{rand.New(rand.NewPCG(seed, 1))}
		before := w.profile()
		after := w.mutated(*before)
		if w.some(5) {
			after = w.profile()
		}
		if quiet += checkSound(t, w, before, after); t.Failed() {
			t.Fatalf("seed %d", seed)
		}
	}
	if quiet < 1000 {
		t.Errorf("only %d allowed requests were judged without a widening: the property is hardly tested", quiet)
	}
	t.Logf("%d requests", quiet)
}

// FuzzDiff is TestDiffIsSound with the fuzzer's seeds.
func FuzzDiff(f *testing.F) {
	f.Add(uint64(1), uint64(2), false)
	f.Add(uint64(7), uint64(3), true)
	f.Fuzz(func(t *testing.T, a, b uint64, unrelated bool) {
		w := world{rand.New(rand.NewPCG(a, b))}
		before := w.profile()
		after := w.mutated(*before)
		for !unrelated && w.some(2) {
			after = w.mutated(*after)
		}
		if unrelated {
			after = w.profile()
		}
		checkSound(t, w, before, after)
	})
}
