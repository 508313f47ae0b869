package egress_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/fractalboxdev/sbx/internal/egress"
)

func mustPattern(tb testing.TB, s string) egress.HostPattern {
	tb.Helper()
	p, err := egress.ParseHostPattern(s)
	if err != nil {
		tb.Fatal(err)
	}
	return p
}

func mustPath(tb testing.TB, s string, encodedSlash bool) egress.PathPattern {
	tb.Helper()
	p, err := egress.ParsePathPattern(s, encodedSlash)
	if err != nil {
		tb.Fatal(err)
	}
	return p
}

func mustCompile(tb testing.TB, floor []egress.Host, rules ...egress.Rule) *egress.Policy {
	tb.Helper()
	p, err := egress.Compile(rules, floor)
	if err != nil {
		tb.Fatal(err)
	}
	return p
}

// rule is an https rule for GET on every path of a host.
func rule(tb testing.TB, id, host string) egress.Rule {
	tb.Helper()
	return egress.Rule{
		ID: id, Protocol: egress.ProtocolHTTPS, Host: mustPattern(tb, host),
		Methods: []string{"GET"}, Path: mustPath(tb, "/**", false),
	}
}

func request(tb testing.TB, method, url string, length int64) egress.Request {
	tb.Helper()
	req, err := egress.ParseURL(url)
	if err != nil {
		tb.Fatal(err)
	}
	req.Method, req.BodyLength = method, length
	return req
}

func TestNilPolicyDeniesAtTheGate(t *testing.T) {
	var p *egress.Policy
	got := p.Decide(request(t, "GET", "https://a.test/", 0))
	want := egress.Decision{Code: egress.CodeHostNotGranted, Reason: "GET https://a.test/: host is not granted: no profile is in force"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	if p.GrantsHost(mustHost(t, "a.test")) {
		t.Error("the nil policy grants a host")
	}
	empty := mustCompile(t, nil)
	if d := empty.Decide(egress.Request{}); d.Verdict != egress.Deny || d.Stage != egress.StageGate {
		t.Errorf("the zero request: %+v", d)
	}
}

// TestDecideOrder walks one request through protocol, port, method, path, query
// and body: the first check that fails names the code.
func TestDecideOrder(t *testing.T) {
	r := rule(t, "p/r", "a.test")
	r.Methods = []string{"GET", "POST"}
	r.Path = mustPath(t, "/x/**", false)
	r.Query = []egress.QueryMatch{{Key: "k", Value: "v"}}
	r.MaxBody = 10
	p := mustCompile(t, []egress.Host{mustHost(t, "floor.test")}, r, rule(t, "p/f", "*.test.example"), rule(t, "p/g", "floor.test"))
	for _, c := range []struct {
		method, url string
		length      int64
		code        egress.Code
		reason      string
	}{
		{"GET", "https://floor.test/", 0, egress.CodeHostFloor, "GET https://floor.test/: host is on the deny floor"},
		{"GET", "https://b.test/x", 0, egress.CodeHostNotGranted, "GET https://b.test/x: host is not granted by p"},
		{"PUT", "http://a.test:1/y", 0, egress.CodeProtocol, "PUT http://a.test:1/y: http is not granted, p/r grants https"},
		{"PUT", "https://a.test:1/y", 0, egress.CodePort, "PUT https://a.test:1/y: port 1 is not granted, p/r grants 443"},
		{"PUT", "https://a.test/../y", 0, egress.CodeMethod, "PUT https://a.test/../y: method is not granted, p/r grants GET, POST"},
		{"get", "https://a.test/x?k=v", 0, egress.CodeMethod, "get https://a.test/x: method is not granted, p/r grants GET, POST"},
		{"GET", "https://a.test/x/../y", 0, egress.CodePathMalformed, "GET https://a.test/x/../y: path is refused: it has a dot segment"},
		{"GET", "https://a.test/y", 99, egress.CodePath, "GET https://a.test/y: path is not granted, p/r grants /x/**"},
		{"GET", "https://a.test/x/y?k=w", 99, egress.CodeQuery, "GET https://a.test/x/y: query is not granted, p/r wants exactly one k=v"},
		{"GET", "https://a.test/x/y?k=v", 1, egress.CodeBodyNotGranted, "GET https://a.test/x/y: a body is not granted by p/r"},
		{"GET", "https://a.test/x/y?k=v", -1, egress.CodeBodyNotGranted, "GET https://a.test/x/y: a body is not granted by p/r"},
		{"POST", "https://a.test/x/y?k=v", 11, egress.CodeBodyTooLarge, "POST https://a.test/x/y: body is too large, p/r grants 10 bytes"},
		{"POST", "https://a.test/x/y?k=v", 10, egress.CodeAllowed, ""},
		{"POST", "https://a.test/x/y?k=v", -1, egress.CodeAllowed, ""},
		{"HEAD", "https://a.test/x?k=v", 0, egress.CodeAllowed, ""},
		{"GET", "https://b.test.example/", 0, egress.CodeAllowed, ""},
	} {
		d := p.Decide(request(t, c.method, c.url, c.length))
		if d.Code != c.code || d.Reason != c.reason || (d.Verdict == egress.Allow) != (c.code == egress.CodeAllowed) {
			t.Errorf("%s %s: %s %q", c.method, c.url, d.Code, d.Reason)
		}
		if (d.Rule != nil) != (d.Verdict == egress.Allow) {
			t.Errorf("%s %s: rule %v", c.method, c.url, d.Rule)
		}
		handler := c.code != egress.CodeHostFloor && c.code != egress.CodeHostNotGranted
		if (d.Stage == egress.StageHandler) != handler {
			t.Errorf("%s %s: stage %d", c.method, c.url, d.Stage)
		}
		if d.Verdict == egress.Deny && handler && d.Nearest != "p/r" {
			t.Errorf("%s %s: nearest %q", c.method, c.url, d.Nearest)
		}
	}
}

func TestNearestIsTheRuleThatWentAlongFarthest(t *testing.T) {
	get, post := rule(t, "p/get", "a.test"), rule(t, "p/post", "a.test")
	post.Methods, post.Path = []string{"POST"}, mustPath(t, "/api/**", false)
	p := mustCompile(t, nil, get, post)
	if d := p.Decide(request(t, "POST", "https://a.test/x", 0)); d.Nearest != "p/post" || d.Code != egress.CodePath {
		t.Errorf("%+v", d)
	}
}

// The union holds: what one rule refuses another may allow, in any order.
func TestUnionOfRules(t *testing.T) {
	small, large := rule(t, "a/small", "a.test"), rule(t, "b/large", "a.test")
	for _, r := range []*egress.Rule{&small, &large} {
		r.Methods = []string{"POST"}
	}
	small.MaxBody, large.MaxBody = 10, 1000
	asserting := rule(t, "c/json", "a.test")
	asserting.Methods, asserting.MaxBody = []string{"POST"}, 5000
	asserting.Body.JSON = []egress.JSONAssertion{{Pointer: "/op", OneOf: []string{"read"}}}
	other := asserting
	other.ID, other.Body.JSON = "d/json", []egress.JSONAssertion{{Pointer: "/op", OneOf: []string{"list"}}}
	for _, rules := range [][]egress.Rule{{small, large, asserting, other}, {other, asserting, large, small}} {
		p := mustCompile(t, nil, rules...)
		if d := p.Decide(request(t, "POST", "https://a.test/", 500)); d.Rule == nil || d.Rule.ID != "b/large" {
			t.Errorf("500 bytes: %+v", d)
		}
		if d := p.Decide(request(t, "POST", "https://a.test/", 2000)); d.Rule == nil || !d.Rule.Body.Asserts() {
			t.Errorf("2000 bytes: %+v", d)
		}
	}
	p := mustCompile(t, nil, asserting, other)
	for body, want := range map[string]string{`{"op":"read"}`: "c/json", `{"op":"list"}`: "d/json", `{"op":"write"}`: ""} {
		d := p.DecideBody(request(t, "POST", "https://a.test/", -1), []byte(body), "", "application/json")
		if got := ruleID(d); got != want {
			t.Errorf("%s: allowed by %q, want %q (%s)", body, got, want, d.Reason)
		}
	}
}

func ruleID(d egress.Decision) string {
	if d.Rule == nil {
		return ""
	}
	return d.Rule.ID
}

// TestDenyFloor: no wildcard and no second profile reaches a host of the floor.
func TestDenyFloor(t *testing.T) {
	floor := []egress.Host{mustHost(t, "api.x.test"), mustHost(t, "gist.x.test")}
	wild, plain, over := rule(t, "w/r", "*.x.test"), rule(t, "q/r", "api.x.test"), rule(t, "o/r", "api.x.test")
	plain.Methods = []string{"POST"}
	over.OverridesFloor = true
	p := mustCompile(t, floor, wild, plain)
	for _, url := range []string{"https://api.x.test/", "https://gist.x.test/", "https://API.x.test.:443/"} {
		if d := p.Decide(request(t, "GET", url, 0)); d.Code != egress.CodeHostFloor || d.Stage != egress.StageGate {
			t.Errorf("%s: %+v", url, d)
		}
	}
	if p.GrantsHost(floor[0]) || !p.GrantsHost(mustHost(t, "www.x.test")) {
		t.Error("GrantsHost is wrong about the floor")
	}
	p = mustCompile(t, floor, wild, plain, over)
	for method, want := range map[string]egress.Code{"GET": egress.CodeAllowed, "POST": egress.CodeMethod} {
		if d := p.Decide(request(t, method, "https://api.x.test/", 0)); d.Code != want {
			t.Errorf("%s: %+v", method, d)
		}
	}
	if d := p.Decide(request(t, "GET", "https://gist.x.test/", 0)); d.Code != egress.CodeHostFloor {
		t.Errorf("the other host of the floor: %+v", d)
	}
	wild.OverridesFloor = true
	if _, err := egress.Compile([]egress.Rule{wild}, floor); err == nil {
		t.Error("a wildcard overrides the floor")
	}
}

// TestBypass22_Prefix: a prefix matches on segment edges only.
func TestBypass22_Prefix(t *testing.T) {
	r := rule(t, "p/r", "a.test")
	r.Path = mustPath(t, "/repos/myorg/**", false)
	p := mustCompile(t, nil, r)
	for url, want := range map[string]egress.Code{
		"https://a.test/repos/myorg/x":          egress.CodeAllowed,
		"https://a.test/repos/myorg-evil/x":     egress.CodePath,
		"https://a.test/repos/myorg%2fx":        egress.CodePath,
		"https://a.test/repos/myorg/../other":   egress.CodePathMalformed,
		"https://a.test/repos/myorg/%2e%2e/o":   egress.CodePathMalformed,
		"https://a.test/repos/myorg/..;/o":      egress.CodePathMalformed,
		"https://a.test/repos/myorg/%252e%252e": egress.CodePathMalformed,
		"https://a.test/repos%5cmyorg/x":        egress.CodePathMalformed,
		"https://a.test//repos/myorg/x":         egress.CodePathMalformed,
	} {
		if d := p.Decide(request(t, "GET", url, 0)); d.Code != want {
			t.Errorf("%s: %s, want %s", url, d.Code, want)
		}
	}
	r.OddPaths = true
	p = mustCompile(t, nil, r)
	if d := p.Decide(request(t, "GET", "https://a.test/repos/myorg//x", 0)); d.Verdict != egress.Allow {
		t.Errorf("a rule that opts in: %+v", d)
	}
}

// TestCase55_EncodedSlash: %2F is part of its segment, and only where a rule says so.
func TestCase55_EncodedSlash(t *testing.T) {
	r := rule(t, "p/r", "a.test")
	without := mustCompile(t, nil, r)
	r.Path, r.EncodedSlash = mustPath(t, "/**", true), true
	with := mustCompile(t, nil, r)
	if d := without.Decide(request(t, "GET", "https://a.test/@types%2fnode", 0)); d.Code != egress.CodePath {
		t.Errorf("without encoded_slash: %+v", d)
	}
	if d := with.Decide(request(t, "GET", "https://a.test/@types%2fnode", 0)); d.Verdict != egress.Allow {
		t.Errorf("with encoded_slash: %+v", d)
	}
	for _, path := range []string{"/@types%252fnode", "/@types%2f..%2f..%2fadmin", "/@types%5cnode", "/%2e%2e/admin", "/@types%2f"} {
		if d := with.Decide(request(t, "GET", "https://a.test"+path, 0)); d.Code != egress.CodePathMalformed {
			t.Errorf("%s: %+v", path, d)
		}
	}
}

// A connection that is relayed unseen is only what tcp and tunnel rules grant, and
// those grant nothing that was decrypted.
func TestOpaqueRules(t *testing.T) {
	ssh := egress.Rule{ID: "p/ssh", Protocol: egress.ProtocolTCP, Host: mustPattern(t, "git.test"), Ports: []uint16{22}}
	tunnel := egress.Rule{ID: "p/tunnel", Protocol: egress.ProtocolHTTPS, Host: mustPattern(t, "pinned.test"), Tunnel: true}
	p := mustCompile(t, nil, ssh, tunnel, rule(t, "p/web", "web.test"))
	for _, c := range []struct {
		protocol egress.Protocol
		host     string
		port     uint16
		want     egress.Code
	}{
		{egress.ProtocolTCP, "git.test", 22, egress.CodeAllowed},
		{egress.ProtocolTCP, "git.test", 23, egress.CodePort},
		{egress.ProtocolTCP, "pinned.test", 443, egress.CodeAllowed},
		{egress.ProtocolTCP, "pinned.test", 8443, egress.CodePort},
		{egress.ProtocolTCP, "web.test", 443, egress.CodeProtocol},
		{egress.ProtocolTCP, "evil.test", 443, egress.CodeHostNotGranted},
		{egress.ProtocolHTTPS, "pinned.test", 443, egress.CodeProtocol},
		{egress.ProtocolHTTP, "git.test", 22, egress.CodeProtocol},
		{egress.ProtocolNone, "git.test", 22, egress.CodeProtocol},
	} {
		path, query := mustTarget(t, "/")
		d := p.Decide(egress.Request{Protocol: c.protocol, Host: mustHost(t, c.host), Port: c.port, Method: "GET", Path: path, Query: query})
		if d.Code != c.want {
			t.Errorf("%s %s:%d: %s, want %s", c.protocol, c.host, c.port, d.Code, c.want)
		}
	}
}

func TestCompileErrors(t *testing.T) {
	for name, change := range map[string]func(*egress.Rule){
		"no id":              func(r *egress.Rule) { r.ID = "" },
		"no host":            func(r *egress.Rule) { r.Host = egress.HostPattern{} },
		"no protocol":        func(r *egress.Rule) { r.Protocol = egress.ProtocolNone },
		"no methods":         func(r *egress.Rule) { r.Methods = nil },
		"lower-case method":  func(r *egress.Rule) { r.Methods = []string{"get"} },
		"CONNECT":            func(r *egress.Rule) { r.Methods = []string{"CONNECT"} },
		"any method":         func(r *egress.Rule) { r.Methods = []string{"*"} },
		"no path":            func(r *egress.Rule) { r.Path = egress.PathPattern{} },
		"negative cap":       func(r *egress.Rule) { r.MaxBody = -1 },
		"port 0":             func(r *egress.Rule) { r.Ports = []uint16{443, 0} },
		"tcp without ports":  func(r *egress.Rule) { *r = egress.Rule{ID: "x", Protocol: egress.ProtocolTCP, Host: r.Host} },
		"tcp with a path":    func(r *egress.Rule) { r.Protocol, r.Ports, r.Methods = egress.ProtocolTCP, []uint16{1}, nil },
		"tunnel over http":   func(r *egress.Rule) { r.Protocol, r.Tunnel = egress.ProtocolHTTP, true },
		"tunnel with method": func(r *egress.Rule) { r.Tunnel = true },
	} {
		r := rule(t, "p/r", "a.test")
		change(&r)
		if _, err := egress.Compile([]egress.Rule{r}, nil); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}

// Rules are copied: what the caller changes later changes no policy.
func TestCompileCopiesRules(t *testing.T) {
	rules := []egress.Rule{rule(t, "p/r", "a.test")}
	p := mustCompile(t, nil, rules...)
	rules[0].Methods[0] = "PUT"
	if d := p.Decide(request(t, "GET", "https://a.test/", 0)); d.Verdict != egress.Allow {
		t.Errorf("%+v", d)
	}
}

func TestReasonsAreCleanAndBounded(t *testing.T) {
	p := mustCompile(t, nil, rule(t, "p/r", "a.test"))
	path, query := mustTarget(t, "/\xff\x80"+strings.Repeat("x", 5000)+"?secret=1")
	d := p.Decide(egress.Request{Protocol: egress.ProtocolHTTPS, Host: mustHost(t, "a.test"), Port: 443, Method: "PO\x1b[31mST", Path: path, Query: query})
	if len(d.Reason) > 800 || strings.Contains(d.Reason, "secret") || strings.Contains(d.Reason, "\x1b") || strings.Contains(d.Reason, "\xff") {
		t.Errorf("reason of %d bytes: %q", len(d.Reason), d.Reason)
	}
	if got := egress.CleanPath(strings.Repeat("\n", 500)); len(got) > 512 || strings.Contains(got, "\n") {
		t.Errorf("%d bytes: %q", len(got), got)
	}
}

// big has 200 rules on 100 hosts, with the asked host among them.
func big(tb testing.TB) *egress.Policy {
	tb.Helper()
	var rules []egress.Rule
	for i := range 100 {
		get := rule(tb, fmt.Sprintf("p/get%d", i), fmt.Sprintf("h%d.test", i))
		get.Path = mustPath(tb, "/api/*/items/**", false)
		post := get
		post.ID, post.Methods, post.MaxBody = fmt.Sprintf("p/post%d", i), []string{"POST"}, 1000
		post.Query = []egress.QueryMatch{{Key: "service", Value: "read"}}
		rules = append(rules, get, post)
	}
	return mustCompile(tb, []egress.Host{mustHost(tb, "floor.test")}, rules...)
}

func TestDecideAllocatesNothingOnTheAllowPath(t *testing.T) {
	p := big(t)
	get, post := request(t, "GET", "https://h57.test/api/v1/items/a/b", 0), request(t, "POST", "https://h57.test/api/v1/items?service=read", 10)
	if n := testing.AllocsPerRun(100, func() { p.Decide(get); p.Decide(post) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

func BenchmarkDecideAllow(b *testing.B) {
	p, req := big(b), request(b, "POST", "https://h57.test/api/v1/items/a?service=read", 10)
	b.ReportAllocs()
	for b.Loop() {
		if d := p.Decide(req); d.Verdict != egress.Allow {
			b.Fatal(d.Reason)
		}
	}
}

func BenchmarkDecideDeny(b *testing.B) {
	p, req := big(b), request(b, "GET", "https://evil.test/x", 0)
	b.ReportAllocs()
	for b.Loop() {
		if d := p.Decide(req); d.Verdict == egress.Allow {
			b.Fatal("allowed")
		}
	}
}
