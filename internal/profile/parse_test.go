package profile_test

import (
	"errors"
	"strings"
	"testing"

	sbx "github.com/fractalboxdev/sbx"
	"github.com/fractalboxdev/sbx/internal/grant"
	"github.com/fractalboxdev/sbx/internal/profile"
)

const minimal = `
[profiles.x-a]
version = 1
summary = "one"

[[profiles.x-a.rules]]
id = "r"
host = "a.test"
methods = ["GET", "POST"]
path = "/x/**"
max_body = 100
allow = ["GET /x/y", "POST https://a.test/x length=100"]
deny = ["GET /z", "POST /x length=101"]
`

// TestBuiltinProfiles: the table of semantics.md section 4 is complete, and every
// rule shows what it refuses as well as what it allows.
func TestBuiltinProfiles(t *testing.T) {
	set := builtin(t)
	want := "browser-fetch cf-api debian-install github-api-read go-install js-install public-repo-read python-install rust-install"
	if got := strings.Join(set.Names(), " "); got != want {
		t.Errorf("profiles %s", got)
	}
	for _, name := range set.Names() {
		p, err := set.Get(name)
		if err != nil {
			t.Fatal(err)
		}
		for _, r := range p.Rules {
			if len(r.Allow) == 0 || len(r.Deny) == 0 {
				t.Errorf("%s/%s lacks examples", name, r.ID)
			}
		}
		if len(p.Digest) != 64 || p.Version < 1 {
			t.Errorf("%s: digest %q, version %d", name, p.Digest, p.Version)
		}
	}
}

// TestBypass63_UnknownKeys: a misspelt key is an error with file, line and the
// nearest name.
func TestBypass63_UnknownKeys(t *testing.T) {
	for _, c := range []struct{ old, new, want string }{
		{"max_body", "max_bdoy", `x.toml:11: unknown key profiles.x-a.rules.max_bdoy (did you mean max_body?)`},
		{"version = 1", "version = 1\nenvs = 1", `x.toml:4: unknown key profiles.x-a.envs (did you mean env?)`},
		{"[profiles.x-a]", "[profile.x-a]\n[profiles.x-a]", `x.toml:2: unknown key profile (did you mean profiles?)`},
		{"max_body = 100", `body = { jsn = [], git = "" }`, `x.toml:11: unknown key profiles.x-a.rules.body.jsn (did you mean json?)`},
		{"version = 1", "version = 1\ninputs.q.kidn = 'repo'", `x.toml:4: unknown key profiles.x-a.inputs.q.kidn (did you mean kind?)`},
		{"version = 1", "version = 1\ncompletely_other = 2", `x.toml:4: unknown key profiles.x-a.completely_other`},
	} {
		_, err := profile.Parse(strings.Replace(minimal, c.old, c.new, 1), "x.toml")
		if err == nil || err.Error() != c.want {
			t.Errorf("%s: %v\nwant %s", c.new, err, c.want)
		}
	}
}

func TestParseErrors(t *testing.T) {
	if _, err := profile.Parse(minimal, "x.toml"); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ old, new, want string }{
		{"version = 1", "version = ", "x.toml:3: "},
		{"version = 1", "version = 0", "version from 1"},
		{"version = 1", "version = '1'", "x.toml"},
		{`summary = "one"`, "", "summary"},
		{"x-a", "X-A", "lower-case"},
		{`id = "r"`, `id = "R r"`, "an id has"},
		{`host = "a.test"`, ``, "host is missing"},
		{`host = "a.test"`, `host = "*"`, "bare *"},
		{`host = "a.test"`, `host = "*.test"`, "two labels"},
		{`host = "a.test"`, `host = "https://a.test"`, "host"},
		{`host = "a.test"`, `host = "a.test@b.test"`, "host"},
		{`host = "a.test"`, `host = "{nothing}"`, "not declared"},
		{`host = "a.test"`, `host = "x{t}.test"`, "not declared"},
		{`host = "a.test"`, `host = "api.github.com"`, "deny floor"},
		{`host = "a.test"`, `host = 7`, "list of strings"},
		{`methods = ["GET", "POST"]`, `methods = []`, "methods"},
		{`methods = ["GET", "POST"]`, `methods = ["get"]`, `method "get"`},
		{`methods = ["GET", "POST"]`, `methods = ["*"]`, `method "*"`},
		{`path = "/x/**"`, ``, "path"},
		{`path = "/x/**"`, `path = "/x*"`, "whole segments"},
		{`path = "/x/**"`, `path = "/x/{repo}"`, "not declared"},
		{`max_body = 100`, `max_body = -1`, "negative"},
		{`max_body = 100`, `max_body = "1 MB"`, "KiB"},
		{`max_body = 100`, `max_body = "xMiB"`, "not a number"},
		{`max_body = 100`, ``, "fails"}, // a POST without max_body has a cap of 0
		{`max_body = 100`, `max_body = 100` + "\nprotocol = 'ftp'", "protocol"},
		{`max_body = 100`, `max_body = 100` + "\nprotocol = ['tcp', 'https']", "tcp stands alone"},
		{`max_body = 100`, `max_body = 100` + "\nports = [0]", "ports"},
		{`max_body = 100`, `max_body = 100` + "\nports = [70000]", "x.toml"},
		{`max_body = 100`, `max_body = 100` + "\ntls = 'tunnel'", "not intercepted"},
		{`max_body = 100`, `max_body = 100` + "\ntls = 'none'", "tunnel"},
		{`max_body = 100`, `max_body = 100` + "\nheaders = 'all'", "preserve"},
		{`max_body = 100`, `max_body = 100` + "\nredirects = 'yes'", "follow"},
		{`max_body = 100`, `max_body = 100` + "\ncredential = 'none-such'", "not declared"},
		{`max_body = 100`, `max_body = 100` + "\nwhen = 'lfs'", "not declared"},
		{`max_body = 100`, `max_body = 100` + "\nbody = { git = 'receive-pack' }", "upload-pack"},
		{`max_body = 100`, `max_body = "17MiB"` + "\nbody = { git = 'upload-pack' }", "16 MiB"},
		{`max_body = 100`, `max_body = 100` + "\nbody = { json = [{ pointer = 'x', equals = 'y' }] }", "pointer"},
		{`max_body = 100`, `max_body = 100` + "\nbody = { json = [{ pointer = '/x' }] }", "equals"},
		{`max_body = 100`, `max_body = 100` + "\nquery = { '' = 'x' }", "query"},
		{`"GET /x/y", `, `"GET /z", `, `example "GET /z" in allow fails`},
		{`"GET /z", `, `"GET /x/z", `, `example "GET /x/z" in deny fails`},
		{`"GET /z", `, `"GET", `, "METHOD and URL"},
		{`"GET /z", `, `"GET /z later", `, "length=BYTES"},
		{`allow = ["GET /x/y", "POST https://a.test/x length=100"]`, ``, "allow is missing"},
		{`version = 1`, "version = 1\noverrides = ['api.github.com']", "no rule"},
		{`version = 1`, "version = 1\noverrides = ['a.test']", "not on the deny floor"},
		{`version = 1`, "version = 1\nenv = { 'A B' = 'x' }", "malformed"},
		{`version = 1`, "version = 1\nenv = { A = \"x\\ny\" }", "malformed"},
		{`version = 1`, "version = 1\ncaches = [{ name = 'a', path = '../x' }]", "below HOME"},
		{`version = 1`, "version = 1\ncaches = [{ name = 'a', path = '/etc' }]", "below HOME"},
		{`version = 1`, "version = 1\ncaches = [{ name = 'a', path = 'a' }, { name = 'a', path = 'b' }]", "name of its own"},
		{`version = 1`, "version = 1\ninputs.q = { kind = 'any', summary = 's' }", "kind"},
		{`version = 1`, "version = 1\ninputs.q = { kind = 'repo', summary = 's', example = 'a/b' }", "not used"},
		{`version = 1`, "version = 1\ninputs.q = { kind = 'repo', summary = 's', example = 'a' }", "example"},
		{`version = 1`, "version = 1\ninputs.q = { kind = 'flag', summary = 's', required = true }", "flag"},
		{`version = 1`, "version = 1\ncredentials.c = { env = 'T', host = 'a.test', header = 'Authorization', template = 'Bearer' }", "{secret}"},
		{`version = 1`, "version = 1\ncredentials.c = { env = 'T', host = '*.x.test', header = 'Authorization', template = '{secret}' }", "host"},
		{`version = 1`, "version = 1\ncredentials.c = { env = 'T T', host = 'a.test', header = 'A', template = '{secret}' }", "env"},
	} {
		_, err := profile.Parse(strings.Replace(minimal, c.old, c.new, 1), "x.toml")
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v\nwant %s", c.new, err, c.want)
		}
		if _, ok := errors.AsType[*profile.ParseError](err); err != nil && !ok {
			t.Errorf("%s: %T", c.new, err)
		}
	}
}

// A credential is bound to the host that its descriptor names, over TLS.
func TestCredentialsAreBound(t *testing.T) {
	const credential = "version = 1\ncredentials.c = { env = 'T', host = 'HOST', header = 'Authorization', template = 'Bearer {secret}' }"
	for host, ok := range map[string]bool{"a.test": true, "b.test": false, "registry:npm": false} {
		text := strings.Replace(minimal, "version = 1", strings.Replace(credential, "HOST", host, 1), 1)
		text = strings.Replace(text, "max_body", "credential = 'c'\nmax_body", 1)
		if _, err := profile.Parse(text, "x.toml"); (err == nil) != ok {
			t.Errorf("%s: %v", host, err)
		}
		if _, err := profile.Parse(strings.Replace(text, "max_body", "protocol = ['http', 'https']\nmax_body", 1), "x.toml"); err == nil {
			t.Errorf("%s: a credential may go over http", host)
		}
	}
}

func TestResolveWithoutProfilesAllowsNothing(t *testing.T) {
	g, err := builtin(t).Resolve(nil, nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	expect(t, g, "host-not-granted", "GET https://github.com/")
}

// A registry that cannot be resolved, or over a scheme that its rule forbids, is
// a refusal, never an empty grant.
func TestEndpointRefusals(t *testing.T) {
	http := func(ecosystem string) ([]grant.Endpoint, error) {
		found, err := endpoints("debian")
		return found, err
	}
	for name, source := range map[string]profile.EndpointSource{
		"nil":     nil,
		"error":   func(string) ([]grant.Endpoint, error) { return nil, errors.New("no client") },
		"empty":   func(string) ([]grant.Endpoint, error) { return nil, nil },
		"no host": func(string) ([]grant.Endpoint, error) { return make([]grant.Endpoint, 1), nil },
		"http":    http,
	} {
		_, err := builtin(t).Resolve([]string{"js-install"}, nil, source)
		if _, ok := errors.AsType[*profile.Refusal](err); !ok {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := builtin(t).Resolve([]string{"debian-install"}, nil, http); err != nil {
		t.Error(err)
	}
}

func TestDigestIgnoresLayoutOnly(t *testing.T) {
	digest := func(text string) string {
		set, err := profile.Parse(text, "x.toml")
		if err != nil {
			t.Fatal(err)
		}
		p, err := set.Get("x-a")
		if err != nil {
			t.Fatal(err)
		}
		return p.Digest
	}
	base := digest(minimal)
	if digest("# comment\n"+minimal) != base {
		t.Error("a comment changes the digest")
	}
	if digest(strings.Replace(minimal, "max_body = 100", "max_body = 100\ncookies = true", 1)) == base {
		t.Error("another path has the same digest")
	}
}

// FuzzParse: no text makes the parser panic, and whatever it accepts resolves or
// is refused with a typed error.
func FuzzParse(f *testing.F) {
	f.Add(minimal)
	f.Add(sbx.BuiltinProfiles)
	f.Add("[profiles]\nx = 1")
	f.Add("profiles.a.rules = [{}]")
	f.Fuzz(func(t *testing.T, text string) {
		set, err := profile.Parse(text, "f.toml")
		if err != nil {
			return
		}
		for _, name := range set.Names() {
			_, err := set.Resolve([]string{name}, nil, endpoints)
			if _, ok := errors.AsType[*profile.Refusal](err); err != nil && !ok {
				t.Errorf("%s: %T %v", name, err, err)
			}
		}
	})
}
