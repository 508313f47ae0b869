package profile_test

import (
	"fmt"
	"strings"
	"testing"

	sbx "github.com/fractalboxdev/sbx"
	"github.com/fractalboxdev/sbx/internal/profile"
)

func mustParse(t *testing.T, text string) profile.Set {
	t.Helper()
	set, err := profile.Parse(text, "x.toml")
	if err != nil {
		t.Fatal(err)
	}
	return set
}

func changes(t *testing.T, before, after string) string {
	t.Helper()
	found, err := profile.Diff(mustParse(t, before), mustParse(t, after))
	if err != nil {
		t.Fatal(err)
	}
	var b strings.Builder
	for _, c := range found {
		fmt.Fprintf(&b, "%s %s %s %s %s\n", c.Kind, c.Rule, strings.Join(c.Methods, ","), c.Target, c.Text)
	}
	return b.String()
}

// TestDiffSaysWhatChanged: each kind of change is named in words, from both sides.
func TestDiffSaysWhatChanged(t *testing.T) {
	for _, c := range []struct{ old, new, wider, narrower string }{
		{`"GET", "POST"`, `"GET", "POST", "PUT"`, "possible r PUT https://a.test/x/** with a body of up to 100 bytes", "impossible r PUT https://a.test/x/**"},
		{`"/x/**"`, `["/x/**", "/y"]`, "possible r POST https://a.test/y with a body of up to 100 bytes", "impossible r GET https://a.test/y"},
		{`"/x/**"`, `["/x/**", "/y/*"]`, "possible r GET https://a.test/y/*", "impossible r GET https://a.test/y/*"},
		{`host = "a.test"`, `host = ["a.test", "b.test"]`, "possible r GET https://b.test/x/**", "impossible r GET https://b.test/x/**"},
		{`max_body = 100`, `max_body = 200`, "possible r POST https://a.test/x/** now a body of up to 200 bytes rather than 100", "impossible r POST https://a.test/x/** no longer a body of up to 200 bytes"},
		{`path = `, "query = {}\npath = ", "", ""},
		{`max_body = 100`, "max_body = 100\ncookies = true", "possible r GET,POST https://a.test/x/** now cookies", "impossible r GET,POST https://a.test/x/** no longer cookies"},
		{`max_body = 100`, "max_body = 100\nheaders = 'preserve'", "now all headers (preserve)", "no longer all headers"},
		{`max_body = 100`, "max_body = 100\ninternal = true", "now internal addresses", "no longer internal addresses"},
		{`max_body = 100`, "max_body = 100\nwebsocket = true", "now WebSocket", "no longer WebSocket"},
		{`max_body = 100`, "max_body = 100\nredirects = 'follow'", "now redirects that the proxy follows", "no longer redirects"},
		{`max_body = 100`, "max_body = 100\nodd_paths = true", "now paths with dot and empty segments", "no longer paths with dot"},
		{`max_body = 100`, "max_body = 100\nports = [443, 8443]", "possible r GET https://a.test:8443/x/**", "impossible r GET https://a.test:8443/x/**"},
		{`max_body = 100`, "max_body = 100\nprotocol = ['https', 'http']", "possible r GET http://a.test/x/**", "impossible r GET http://a.test/x/**"},
		{`summary = "one"`, `summary = "two"`, "", ""},
		{`version = 1`, `version = 2`, "", ""},
	} {
		after := strings.Replace(strings.Replace(minimal, c.old, c.new, 1), "length=101", "length=201", 1)
		check := func(got, want string, wider bool) {
			if !strings.Contains(got, want) || want == "" && (strings.Contains(got, "possible") || strings.Contains(got, "maybe")) {
				t.Errorf("%s: %q is missing in\n%s", c.new, want, got)
			}
			if !wider && (strings.Contains(got, "\npossible") || strings.HasPrefix(got, "possible") || strings.Contains(got, "maybe")) {
				t.Errorf("%s: taken back, yet wider:\n%s", c.new, got)
			}
		}
		check(changes(t, minimal, after), c.wider, c.wider != "")
		check(changes(t, after, minimal), c.narrower, false)
	}
}

const restricted = `
[profiles.x-r]
version = 1
summary = "one"
[profiles.x-r.inputs.target]
kind = "host"
summary = "t"
required = true
match = ["*.t.test"]
example = "a.t.test"
[profiles.x-r.credentials.token]
env = "TOKEN"
host = "api.test"
header = "Authorization"
template = "Bearer {secret}"
required = true
[[profiles.x-r.rules]]
id = "api"
host = "api.test"
methods = ["POST"]
path = "/v1/**"
query = { key = "a" }
max_body = 100
body = { json = [{ pointer = "/op", equals = "read" }] }
upload_budget = { bytes = 1000, requests = 5 }
credential = "token"
allow = ['POST /v1/x?key=a body={"op":"read"}']
deny = ["GET /v1/x"]
[[profiles.x-r.rules]]
id = "target"
host = "{target}"
methods = ["GET"]
path = "/**"
credential = "never"
allow = ["GET /"]
deny = ["POST /"]
`

// TestDiffOfRestrictions: every restriction that is lifted is a widening, and
// none is when it is put back.
func TestDiffOfRestrictions(t *testing.T) {
	for _, c := range []struct{ old, new, want string }{
		{`query = { key = "a" }`, "", "a query without key=a"},
		{`query = { key = "a" }`, `query = { kez = "a" }`, ""},
		{`body = { json = [{ pointer = "/op", equals = "read" }] }`, "", "bodies in which /op is not read"},
		{`equals = "read"`, `one_of = ["read", "list"]`, "bodies in which /op is not read"},
		{`bytes = 1000, `, ``, "another upload budget"},
		{`requests = 5`, `requests = 6`, "another upload budget"},
		{"required = true\n[[", "required = false\n[[", "without the secret TOKEN"},
		{`env = "TOKEN"`, `env = "ROOT_TOKEN"`, "the secret ROOT_TOKEN in the header Authorization as Bearer {secret}"},
		{`header = "Authorization"`, `header = "X-Token"`, "the secret TOKEN in the header X-Token"},
		{`credential = "never"`, "", "now credentials of other profiles"},
		{"required = true\nmatch", "required = false\nmatch", "the profile can be used without the input target"},
		{`["*.t.test"]`, `["*.t.test", "*.u.test"]`, "the input target may be hosts that do not match *.t.test"},
		{`match = ["*.t.test"]`, "", "the input target may be hosts that do not match *.t.test"},
		{`required = true` + "\nmatch", "required = true\nmany = true\nmatch", "the input target may have several values"},
		{`required = true` + "\nmatch", "required = true\nenv = 'T'\nmatch", "the variable T may give the input target"},
		{`host = "{target}"`, `host = ["{target}", "a.t.test"]`, "possible target GET https://a.t.test/**"},
		{`id = "api"`, `id = "other"`, "another upload budget"},
	} {
		after := strings.Replace(restricted, c.old, c.new, 1)
		if strings.Contains(c.new, "kez") {
			after = strings.Replace(after, "?key=a", "?kez=a", 1)
		}
		if got := changes(t, restricted, after); !strings.Contains(got, c.want) || !strings.Contains(got, "possible") && !strings.Contains(got, "maybe") {
			t.Errorf("%s: %q is missing in\n%s", c.new, c.want, got)
		}
	}
	if got := changes(t, strings.Replace(restricted, `host = "{target}"`, `host = ["{target}", "a.t.test"]`, 1), restricted); strings.Contains(got, "maybe") {
		t.Errorf("a host less is wider:\n%s", got)
	}
}

// A literal host is not what an input stands for, in neither direction.
func TestDiffKnowsInputsFromNames(t *testing.T) {
	literal := strings.NewReplacer(`host = "{target}"`, `host = "a.t.test"`).Replace(restricted)
	literal = literal[:strings.Index(literal, "[profiles.x-r.inputs")] + literal[strings.Index(literal, "[profiles.x-r.credentials"):]
	if got := changes(t, literal, restricted); !strings.Contains(got, "possible target GET https://{target}/**") {
		t.Error(got)
	}
	if got := changes(t, restricted, literal); !strings.Contains(got, "possible target GET https://a.t.test/**") {
		t.Error(got)
	}
}

// Rules in another order may treat a request differently.
func TestDiffOfOrder(t *testing.T) {
	rule := minimal[strings.Index(minimal, "[[profiles"):]
	second := strings.NewReplacer(`id = "r"`, `id = "s"`, "max_body = 100", "max_body = 100\ncookies = true").Replace(rule)
	head := minimal[:strings.Index(minimal, "[[profiles")]
	if got := changes(t, head+rule+second, head+second+rule); !strings.Contains(got, "maybe s GET,POST https://a.test/x/** rule s is asked before rule r") {
		t.Error(got)
	}
	if got := changes(t, head+rule+second, head+rule+second); got != "" {
		t.Errorf("the same file: %s", got)
	}
}

func TestDiffOfSets(t *testing.T) {
	other := strings.ReplaceAll(minimal, "x-a", "x-b")
	if got := changes(t, minimal, other); got != "note    the profile was called x-a\nnote    the version is still 1\n" {
		t.Errorf("renamed: %s", got)
	}
	if got := changes(t, minimal, minimal+other); !strings.Contains(got, "possible r GET https://a.test/x/**") || !strings.Contains(got, "the profile is new") {
		t.Errorf("another profile: %s", got)
	}
	if got := changes(t, minimal+other, minimal); strings.Contains(got, "maybe") || !strings.Contains(got, "impossible r GET") || !strings.Contains(got, "the profile is gone") {
		t.Errorf("a profile less: %s", got)
	}
	if got := changes(t, sbx.BuiltinProfiles, sbx.BuiltinProfiles); got != "" {
		t.Errorf("the built-in profiles with themselves: %s", got)
	}
}

// Percent-encoding and upper case cannot make one request look like another.
func TestDiffComparesNormalisedForms(t *testing.T) {
	same := strings.NewReplacer(`host = "a.test"`, `host = "A.test."`, `"/x/**"`, `"/%78/**"`).Replace(minimal)
	if got := changes(t, minimal, same); got != "note    the version is still 1\n" {
		t.Error(got)
	}
}

// A registry rule that forgets its path does not load, whatever its examples.
func TestRegistryRuleWithoutPath(t *testing.T) {
	text := strings.NewReplacer(`host = "a.test"`, `host = "registry:npm"`, `path = "/x/**"`, "", `"GET /x/y", "POST https://a.test/x length=100"`, `"GET https://registry.test/base"`).Replace(minimal)
	if _, err := profile.Parse(text, "x.toml"); err == nil || !strings.Contains(err.Error(), "needs methods and a path") {
		t.Errorf("%v", err)
	}
}
