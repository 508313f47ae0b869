package grant_test

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"

	"github.com/fractalboxdev/sbx/internal/egress"
	"github.com/fractalboxdev/sbx/internal/grant"
)

func spec(t *testing.T) grant.Spec {
	t.Helper()
	host, err := egress.ParseHost("registry.test")
	if err != nil {
		t.Fatal(err)
	}
	path, err := egress.ParsePathPattern("/**", true)
	if err != nil {
		t.Fatal(err)
	}
	return grant.Spec{
		Profiles: []grant.ProfileRef{{Name: "js-install", Version: 1, Digest: "x"}},
		Rules: []egress.Rule{{
			ID: "js-install/registry", Protocol: egress.ProtocolHTTPS, Host: egress.ExactHost(host), Ports: []uint16{443},
			Methods: []string{"GET"}, Path: path, EncodedSlash: true, Registry: true,
		}},
		Endpoints: []grant.Endpoint{{
			Ecosystem: "npm", URL: "https://registry.test", Source: "~/.npmrc line 3",
			Endpoint: egress.Endpoint{Protocol: egress.ProtocolHTTPS, Host: host, Port: 443},
		}},
		Credentials: []grant.Credential{{Name: "js-install/t", Env: "NPM_TOKEN", Registry: "npm", Header: "Authorization", Template: "Bearer {secret}"}},
		Env:         []grant.EnvVar{{Name: "A", Value: "1"}},
		Caches:      []grant.Cache{{Profile: "js-install", Name: "npm", Path: ".npm"}},
	}
}

func get(t *testing.T, g grant.Grant, url string) egress.Decision {
	t.Helper()
	req, err := egress.ParseURL(url)
	if err != nil {
		t.Fatal(err)
	}
	req.Method = "GET"
	return g.Policy().Decide(req)
}

func TestZeroGrantAllowsNothing(t *testing.T) {
	var g grant.Grant
	if d := get(t, g, "https://registry.test/x"); d.Verdict != egress.Deny || d.Stage != egress.StageGate {
		t.Errorf("%+v", d)
	}
	if !g.IsZero() || len(g.Digest()) != 64 || len(g.Rules()) != 0 {
		t.Errorf("zero grant: %v %q", g.IsZero(), g.Digest())
	}
	empty, err := grant.New(grant.Spec{})
	if err != nil {
		t.Fatal(err)
	}
	if d := get(t, empty, "https://registry.test/x"); d.Verdict != egress.Deny || empty.Digest() != g.Digest() {
		t.Errorf("%+v", d)
	}
}

// A grant never changes: neither through the spec it came from nor through what it returns.
func TestGrantIsImmutable(t *testing.T) {
	s := spec(t)
	g, err := grant.New(s)
	if err != nil {
		t.Fatal(err)
	}
	before := g.Digest()
	s.Rules[0].Methods[0] = "PUT"
	s.Endpoints[0].URL = "https://evil.test"
	g.Rules()[0].Methods[0] = "PUT"
	g.Spec().Rules[0].Ports[0] = 1
	g.Env()[0].Value = "2"
	if d := get(t, g, "https://registry.test/@a%2fb"); d.Verdict != egress.Allow {
		t.Errorf("%+v", d)
	}
	again, err := grant.New(g.Spec())
	if err != nil || again.Digest() != before || g.Digest() != before {
		t.Errorf("digest %s, then %s, %v", before, again.Digest(), err)
	}
	if got := g.SecretVars(); !slices.Equal(got, []string{"NPM_TOKEN"}) {
		t.Errorf("secrets %v", got)
	}
	if got := g.Ecosystems(); !slices.Equal(got, []string{"npm"}) {
		t.Errorf("ecosystems %v", got)
	}
}

// TestDigest: what changes a request or the set-up changes the digest, where an
// endpoint was learnt does not.
func TestDigest(t *testing.T) {
	base, err := grant.New(spec(t))
	if err != nil {
		t.Fatal(err)
	}
	for name, change := range map[string]func(*grant.Spec){
		"method":        func(s *grant.Spec) { s.Rules[0].Methods[0] = "PUT" },
		"port":          func(s *grant.Spec) { s.Rules[0].Ports[0] = 444 },
		"encoded slash": func(s *grant.Spec) { s.Rules[0].EncodedSlash = false },
		"odd paths":     func(s *grant.Spec) { s.Rules[0].OddPaths = true },
		"body cap":      func(s *grant.Spec) { s.Rules[0].MaxBody = 1 },
		"redirects":     func(s *grant.Spec) { s.Rules[0].Redirects = egress.RedirectFollow },
		"headers":       func(s *grant.Spec) { s.Rules[0].Headers = egress.HeadersPreserve },
		"internal":      func(s *grant.Spec) { s.Rules[0].Internal = true },
		"floor":         func(s *grant.Spec) { s.Rules[0].OverridesFloor = true },
		"endpoint":      func(s *grant.Spec) { s.Endpoints[0].URL += "/x" },
		"role":          func(s *grant.Spec) { s.Endpoints[0].Role = "@a" },
		"secret":        func(s *grant.Spec) { s.Credentials[0].Env = "T" },
		"variable":      func(s *grant.Spec) { s.Env[0].Value = "2" },
		"cache":         func(s *grant.Spec) { s.Caches = nil },
		"profile":       func(s *grant.Spec) { s.Profiles[0].Version = 2 },
		"input":         func(s *grant.Spec) { s.Inputs = []grant.Input{{Profile: "p", Name: "n", Value: "v"}} },
	} {
		s := spec(t)
		change(&s)
		changed, err := grant.New(s)
		if err != nil {
			t.Errorf("%s: %v", name, err)
		} else if changed.Digest() == base.Digest() {
			t.Errorf("%s: the same digest", name)
		}
	}
	s := spec(t)
	s.Endpoints[0].Source = "elsewhere"
	moved, err := grant.New(s)
	if err != nil || moved.Digest() != base.Digest() {
		t.Errorf("another source: %v, another digest", err)
	}
}

func TestGrantPrints(t *testing.T) {
	g, err := grant.New(spec(t))
	if err != nil {
		t.Fatal(err)
	}
	text, err := json.Marshal(g)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		`"digest":"` + g.Digest(), `"id":"js-install/registry"`, `"protocol":"https"`, `"host":"registry.test"`, `"path":"/**"`,
		`"headers":"minimal"`, `"redirects":"pass"`, `"source":"~/.npmrc line 3"`,
	} {
		if !strings.Contains(string(text), want) {
			t.Errorf("%s lacks %s", text, want)
		}
	}
}

func TestNewRefusesWhatDoesNotCompile(t *testing.T) {
	s := spec(t)
	s.Rules[0].Methods = nil
	if _, err := grant.New(s); err == nil || !strings.Contains(err.Error(), "js-install/registry") {
		t.Errorf("%v", err)
	}
}

func TestClientDefaults(t *testing.T) {
	seen := map[string]bool{}
	for _, v := range grant.ClientDefaults() {
		if seen[v.Name] || v.Value == "" {
			t.Errorf("%+v", v)
		}
		seen[v.Name] = true
	}
	for _, name := range []string{"npm_config_fetch_retries", "CARGO_NET_RETRY", "PIP_RETRIES", "YARN_HTTP_RETRY", "UV_HTTP_RETRIES", "BUN_CONFIG_HTTP_RETRY_COUNT"} {
		if !seen[name] {
			t.Errorf("%s is missing", name)
		}
	}
}

// A placeholder that a connection could carry unread to its host would be sent there.
func TestBypass38_PlaceholdersNeedInterception(t *testing.T) {
	build := func(placeholder string, change func(*egress.Rule)) error {
		s := spec(t)
		host, _ := s.Rules[0].Host.Exact()
		s.Rules[0].Credential = "js-install/c"
		s.Credentials = []grant.Credential{{Profile: "js-install", Name: "js-install/c", Env: "T", Host: host, Header: "Authorization", Template: "{secret}", Placeholder: placeholder}}
		unseen := egress.Rule{ID: "other/unseen", Protocol: egress.ProtocolTCP, Host: egress.ExactHost(host), Ports: []uint16{22}}
		change(&unseen)
		s.Rules = append(s.Rules, unseen)
		_, err := grant.New(s)
		return err
	}
	tunnel := func(r *egress.Rule) { r.Protocol, r.Tunnel, r.Ports = egress.ProtocolHTTPS, true, []uint16{443} }
	wild := func(r *egress.Rule) { r.Host = pattern(t, "*.some.test") }
	elsewhere := func(r *egress.Rule) { r.Host = pattern(t, "elsewhere.test") }
	for name, change := range map[string]func(*egress.Rule){"tcp on another port": func(*egress.Rule) {}, "tunnel": tunnel} {
		err := build("T", change)
		if err == nil || !strings.Contains(err.Error(), "placeholder") || !strings.Contains(err.Error(), "other/unseen") {
			t.Errorf("%s: %v", name, err)
		}
		if err := build("", change); err != nil {
			t.Errorf("%s, without a placeholder: %v", name, err)
		}
	}
	for name, change := range map[string]func(*egress.Rule){"wildcard beside": wild, "another host": elsewhere} {
		if err := build("T", change); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func pattern(t *testing.T, text string) egress.HostPattern {
	t.Helper()
	p, err := egress.ParseHostPattern(text)
	if err != nil {
		t.Fatal(err)
	}
	return p
}
