package profile_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	sbx "github.com/fractalboxdev/sbx"
	"github.com/fractalboxdev/sbx/internal/egress"
	"github.com/fractalboxdev/sbx/internal/grant"
	"github.com/fractalboxdev/sbx/internal/profile"
)

func builtin(tb testing.TB) profile.Set {
	tb.Helper()
	set, err := profile.Parse(sbx.BuiltinProfiles, "profiles.toml")
	if err != nil {
		tb.Fatal(err)
	}
	return set
}

// endpoints stand in for the machine's: a registry with a base path, one scoped
// registry, and an archive over http.
func endpoints(ecosystem string) ([]grant.Endpoint, error) {
	urls := map[string][]string{
		"npm":    {" https://npm.test/api/npm", "@corp https://corp.test:8443/npm"},
		"yarn":   {" https://yarn.test"},
		"go":     {" https://proxy.test", "checksums https://sums.test"},
		"python": {" https://index.test", "files https://files.test"},
		"debian": {" http://deb.test/debian"},
	}[ecosystem]
	var out []grant.Endpoint
	for _, entry := range urls {
		role, url, _ := strings.Cut(entry, " ")
		req, err := egress.ParseURL(url)
		if err != nil {
			return nil, err
		}
		out = append(out, grant.Endpoint{
			Ecosystem: ecosystem, Role: role, URL: url, Source: "the test",
			Endpoint: egress.Endpoint{Protocol: req.Protocol, Host: req.Host, Port: req.Port, BasePath: strings.TrimRight(req.Path.Raw(), "/")},
		})
	}
	return out, nil
}

// resolve makes the grant of words: names of profiles, and inputs as name=value.
func resolve(tb testing.TB, words ...string) (grant.Grant, error) {
	tb.Helper()
	inputs := map[string]string{}
	var names []string
	for _, word := range words {
		if name, value, ok := strings.Cut(word, "="); ok {
			inputs[name] = value
		} else {
			names = append(names, word)
		}
	}
	return builtin(tb).Resolve(names, inputs, endpoints)
}

func mustResolve(tb testing.TB, words ...string) grant.Grant {
	tb.Helper()
	g, err := resolve(tb, words...)
	if err != nil {
		tb.Fatal(err)
	}
	return g
}

// expect judges requests written "METHOD URL [length=N | body=TEXT]" and compares codes.
func expect(t *testing.T, g grant.Grant, want egress.Code, requests ...string) {
	t.Helper()
	for _, text := range requests {
		words := strings.SplitN(text, " ", 3)
		req, err := egress.ParseURL(words[1])
		if err != nil {
			t.Fatal(err)
		}
		req.Method = words[0]
		d := decide(t, g.Policy(), req, words[2:])
		if d.Code != want {
			t.Errorf("%s: %s, want %s (%s)", text, d.Code, want, d.Reason)
		}
	}
}

func decide(t *testing.T, p *egress.Policy, req egress.Request, rest []string) egress.Decision {
	t.Helper()
	if len(rest) == 0 {
		return p.Decide(req)
	}
	if body, ok := strings.CutPrefix(rest[0], "body="); ok {
		return p.DecideBody(req, []byte(body), "", "application/vnd.git-lfs+json")
	}
	if _, err := fmt.Sscanf(rest[0], "length=%d", &req.BodyLength); err != nil {
		t.Fatal(err)
	}
	return p.Decide(req)
}

func TestVector01_02_03_Refs(t *testing.T) {
	g := mustResolve(t, "public-repo-read", "repo=acme/widget")
	expect(t, g, egress.CodeAllowed,
		"GET https://github.com/acme/widget/info/refs?service=git-upload-pack",
		"GET https://github.com/acme/widget.git/info/refs?service=git-upload-pack",
		"HEAD https://github.com/acme/widget/info/refs?service=git-upload-pack")
	expect(t, g, egress.CodeQuery,
		"GET https://github.com/acme/widget/info/refs?service=git-receive-pack",
		"GET https://github.com/acme/widget/info/refs",
		"GET https://github.com/acme/widget/info/refs?service=git-upload-pack&service=git-receive-pack")
}

func TestVector04_05_UploadPack(t *testing.T) {
	g := mustResolve(t, "public-repo-read", "repo=acme/widget")
	for _, repo := range []string{"acme/widget", "acme/widget.git"} {
		expect(t, g, egress.CodeAllowed,
			"POST https://github.com/"+repo+"/git-upload-pack length=1048576",
			"POST https://github.com/"+repo+"/git-upload-pack length=-1")
		expect(t, g, egress.CodeBodyTooLarge, "POST https://github.com/"+repo+"/git-upload-pack length=1048577")
		expect(t, g, egress.CodePath, "POST https://github.com/"+repo+"/git-receive-pack length=1")
	}
	expect(t, g, egress.CodePathMalformed, "POST https://github.com/acme/widget/git-upload-pack/../git-receive-pack length=1",
		"POST https://github.com/acme/widget//git-receive-pack length=1")
	expect(t, g, egress.CodePath, "POST https://github.com/acme/widget%2fgit-upload-pack length=1")
}

func TestVector06_07_OtherRepositories(t *testing.T) {
	g := mustResolve(t, "public-repo-read", "repo=acme/widget")
	expect(t, g, egress.CodePath,
		"GET https://github.com/acme/widget-evil/info/refs?service=git-upload-pack",
		"GET https://github.com/other/repo/info/refs?service=git-upload-pack",
		"GET https://github.com/other/repo/archive/v1.tar.gz",
		"GET https://codeload.github.com/other/repo/tar.gz/v1",
		"GET https://github.com/acme/widget.git.evil/info/refs?service=git-upload-pack",
		"GET https://github.com/acme/widget")
	expect(t, g, egress.CodeAllowed,
		"GET https://github.com/acme/widget/archive/v1.tar.gz",
		"GET https://codeload.github.com/acme/widget/tar.gz/v1")
}

func TestVector14_LFS(t *testing.T) {
	const url = "POST https://github.com/acme/widget.git/info/lfs/objects/batch "
	without, with := mustResolve(t, "public-repo-read", "repo=acme/widget"), mustResolve(t, "public-repo-read", "repo=acme/widget", "lfs=true")
	expect(t, without, egress.CodePath, url+`body={"operation":"download"}`)
	expect(t, without, egress.CodeHostNotGranted, "GET https://objects.githubusercontent.com/x")
	expect(t, with, egress.CodeBodyAssertion, url+`body={"operation":"upload"}`, url+"body=x=1", url+`body={"operation":"download","operation":"download"}`)
	expect(t, with, egress.CodeAllowed, url+`body={"operation":"download"}`, "GET https://objects.githubusercontent.com/x?y")
	off := mustResolve(t, "public-repo-read", "repo=acme/widget", "lfs=false")
	expect(t, off, egress.CodePath, url+`body={"operation":"download"}`)
}

func TestVector15_16_Spellings(t *testing.T) {
	g := mustResolve(t, "public-repo-read", "repo=acme/widget")
	expect(t, g, egress.CodeHostNotGranted, "GET https://github.com@evil.example/")
	expect(t, g, egress.CodeAllowed, "GET https://GITHUB.com.:443/acme/widget/info/refs?service=git-upload-pack")
	expect(t, g, egress.CodePort, "GET https://github.com:8443/acme/widget/info/refs?service=git-upload-pack")
	expect(t, g, egress.CodeProtocol, "GET http://github.com:443/acme/widget/info/refs?service=git-upload-pack")
}

// TestVector17_18_NPM: nothing is published; the base path bounds the grant; a
// credential goes to the default registry only.
func TestVector17_18_NPM(t *testing.T) {
	g := mustResolve(t, "js-install")
	expect(t, g, egress.CodeMethod, "PUT https://npm.test/api/npm/pkg length=10", "POST https://npm.test/api/npm/-/npm/v1/security/advisories/bulk length=2")
	expect(t, g, egress.CodeAllowed,
		"GET https://npm.test/api/npm/pkg", "GET https://npm.test/api/npm/@types%2fnode", "GET https://npm.test/api/npm/@types/node/-/node-1.0.0.tgz",
		"GET https://corp.test:8443/npm/@corp%2fx", "GET https://yarn.test/pkg")
	expect(t, g, egress.CodePath, "GET https://npm.test/api/pypi/x", "GET https://npm.test/", "GET https://npm.test/api/npm-evil/x", "GET https://corp.test:8443/x")
	expect(t, g, egress.CodePort, "GET https://corp.test/npm/x")
	expect(t, g, egress.CodeHostNotGranted, "GET https://evil.test/x")
	for _, r := range g.Rules() {
		host, _ := r.Host.Exact()
		if wants := host.String() == "npm.test"; (r.Credential != "") != wants {
			t.Errorf("credential %q on %s", r.Credential, host)
		}
		if !r.Registry || r.Internal || r.Allowance() != egress.AllowRegistry {
			t.Errorf("allowance of %s: %d", host, r.Allowance())
		}
	}
	if got := g.SecretVars(); !slices.Equal(got, []string{"NPM_TOKEN"}) {
		t.Errorf("secrets %v", got)
	}
}

func TestVector20_CloudflareAPI(t *testing.T) {
	g := mustResolve(t, "cf-api")
	const base = "https://api.cloudflare.com/client/v4"
	account := base + "/accounts/0123456789abcdef0123456789abcdef"
	expect(t, g, egress.CodeAllowed, "POST "+account+"/workers/scripts/x length=16777216", "GET "+base+"/memberships", "PATCH "+account+"/workers/scripts/x length=262144")
	expect(t, g, egress.CodePath, "POST "+account+"/r2/buckets length=1", "GET "+base+"/zones",
		"GET "+base+"/accounts/0123456789abcdef0123456789abcde/workers/scripts", "GET "+base+"/accounts/0123456789ABCDEF0123456789abcdef/workers/scripts")
	expect(t, g, egress.CodeMethod, "DELETE "+account+"/workers/scripts/x")
	expect(t, g, egress.CodeBodyTooLarge, "PATCH "+account+"/workers/scripts/x length=262145", "PUT "+account+"/workers/scripts/x length=16777217")
	for _, r := range g.Rules() {
		if r.Credential != "cf-api/api-token" {
			t.Errorf("rule %s has credential %q", r.ID, r.Credential)
		}
	}
	if c := g.Credentials()[0]; !c.Required || c.Host.String() != "api.cloudflare.com" || c.Template != "Bearer {secret}" {
		t.Errorf("%+v", c)
	}
}

func TestVector24_DenyFloor(t *testing.T) {
	without, with := mustResolve(t, "public-repo-read", "repo=x/y"), mustResolve(t, "github-api-read", "public-repo-read", "repo=x/y")
	expect(t, without, egress.CodeHostFloor, "GET https://api.github.com/repos/x/y", "GET https://gist.github.com/x")
	expect(t, with, egress.CodeAllowed, "GET https://api.github.com/repos/x/y")
	expect(t, with, egress.CodeMethod, "POST https://api.github.com/graphql length=10")
	expect(t, with, egress.CodeHostFloor, "GET https://gist.github.com/x", "POST https://uploads.github.com/x length=1")
}

// TestVector25_26_46_Refusals: everything that cannot be granted is refused
// before any policy exists, with the nearest name where there is one.
func TestVector25_26_46_Refusals(t *testing.T) {
	for _, c := range []struct {
		words, nearest string
		code           profile.Code
	}{
		{"public-repo-read", "", profile.CodeMissingInput},
		{"js-instal", "js-install", profile.CodeUnknownProfile},
		{"nothing-like-it", "", profile.CodeUnknownProfile},
		{"js-install target=a.test", "", profile.CodeUnknownInput},
		{"public-repo-read repo=a/b repoo=a/b", "repo", profile.CodeUnknownInput},
		{"browser-fetch target=*.x.dev", "", profile.CodeBadInput},
		{"browser-fetch target=https://x.dev", "", profile.CodeBadInput},
		{"browser-fetch target=x.dev:443", "", profile.CodeBadInput},
		{"browser-fetch target=x.dev/y", "", profile.CodeBadInput},
		{"browser-fetch target=x.dev.", "", profile.CodeBadInput},
		{"browser-fetch target=", "", profile.CodeBadInput},
		{"browser-fetch target=a.test,", "", profile.CodeBadInput},
		{"browser-fetch target=localhost", "", profile.CodeBadInput},
		{"browser-fetch target=127.0.0.1", "", profile.CodeBadInput},
		{"browser-fetch target=[::1]", "", profile.CodeBadInput},
		{"browser-fetch target=api.github.com", "", profile.CodeBadInput},
		{"browser-fetch github-api-read target=API.github.com", "", profile.CodeBadInput},
		{"public-repo-read repo=acme", "", profile.CodeBadInput},
		{"public-repo-read repo=acme/widget/x", "", profile.CodeBadInput},
		{"public-repo-read repo=acme/widget.git", "", profile.CodeBadInput},
		{"public-repo-read repo=acme/..", "", profile.CodeBadInput},
		{"public-repo-read repo=acme/*", "", profile.CodeBadInput},
		{"public-repo-read repo=*/*", "", profile.CodeBadInput},
		{"public-repo-read repo=acme/wid%67et", "", profile.CodeBadInput},
		{"public-repo-read repo=acme/widget?x", "", profile.CodeBadInput},
		{"public-repo-read repo=-x/widget", "", profile.CodeBadInput},
		{"public-repo-read repo=acme/widget\n", "", profile.CodeBadInput},
		{"public-repo-read repo=a/b lfs=yes", "", profile.CodeBadInput},
	} {
		_, err := resolve(t, strings.Split(c.words, " ")...)
		refusal, ok := errors.AsType[*profile.Refusal](err)
		if !ok || refusal.Code != c.code || refusal.Nearest != c.nearest {
			t.Errorf("%s: %v (%+v)", c.words, err, refusal)
		}
	}
	_, err := builtin(t).Resolve([]string{"browser-fetch"}, map[string]string{"target": " x.dev"}, endpoints)
	if refusal, ok := errors.AsType[*profile.Refusal](err); !ok || refusal.Code != profile.CodeBadInput {
		t.Errorf("target with a space: %v", err)
	}
}

// TestVector26_TargetPattern: an input's own pattern bounds its values.
func TestVector26_TargetPattern(t *testing.T) {
	text := strings.Replace(minimal, "[[profiles.x-a.rules]]", `
[profiles.x-a.inputs.target]
kind = "host"
summary = "preview"
match = ["*.workers.dev", "*.pages.dev"]
example = "a.workers.dev"

[[profiles.x-a.rules]]
id = "target"
host = "{target}"
methods = ["GET"]
path = "/**"
allow = ["GET https://a.workers.dev/"]

[[profiles.x-a.rules]]`, 1)
	set, err := profile.Parse(text, "x.toml")
	if err != nil {
		t.Fatal(err)
	}
	for target, want := range map[string]bool{"a.workers.dev": true, "b.pages.dev": true, "a.b.workers.dev": false, "evilworkers.dev": false, "workers.dev": false} {
		if _, err := set.Resolve([]string{"x-a"}, map[string]string{"target": target}, nil); (err == nil) != want {
			t.Errorf("%s: %v", target, err)
		}
	}
}

func TestTargets(t *testing.T) {
	none := mustResolve(t, "browser-fetch")
	expect(t, none, egress.CodeHostNotGranted, "GET https://site.test/")
	expect(t, none, egress.CodeAllowed, "GET https://cdn.playwright.dev/builds/x")
	two := mustResolve(t, "browser-fetch", "target=Site.test,other.test")
	expect(t, two, egress.CodeAllowed, "GET https://site.test/", "POST https://other.test/x length=1048576")
	expect(t, two, egress.CodeHostNotGranted, "GET https://www.site.test/", "GET https://test/")
	expect(t, two, egress.CodeMethod, "PUT https://site.test/ length=1")
	_, err := resolve(t, "browser-fetch", "cf-api", "target=api.cloudflare.com")
	if refusal, ok := errors.AsType[*profile.Refusal](err); !ok || refusal.Code != profile.CodeCredentialConflict {
		t.Errorf("a target that has a credential: %v", err)
	}
}

func TestOtherInstallProfiles(t *testing.T) {
	g := mustResolve(t, "go-install", "python-install", "rust-install", "debian-install")
	expect(t, g, egress.CodeAllowed,
		"GET https://proxy.test/github.com/!burnt!sushi/toml/@v/v1.6.0.zip", "GET https://sums.test/lookup/a.test/b@v1.0.0",
		"GET https://index.test/simple/x/", "GET https://files.test/packages/a/b/c.whl",
		"GET https://index.crates.io/se/rd/serde", "GET https://static.crates.io/crates/x", "GET https://crates.io/api/v1/crates/serde/1.0.0/download",
		"GET http://deb.test/debian/pool/main/g/g++/g++_1%3a1.0~rc1-1+b1_amd64.deb")
	expect(t, g, egress.CodePath, "GET https://crates.io/api/v1/me", "GET http://deb.test/other")
	expect(t, g, egress.CodeProtocol, "GET https://deb.test/debian/x", "GET http://proxy.test/x")
	expect(t, g, egress.CodeMethod, "PUT https://crates.io/api/v1/crates/new length=1", "POST https://sums.test/lookup/x length=1")
	if got := g.Ecosystems(); !slices.Equal(got, []string{"debian", "go", "python"}) {
		t.Errorf("ecosystems %v", got)
	}
}

// TestCase67_TheReadThatIsAPost: fetching is a POST, and no spelling of it leads
// to the one that pushes.
func TestCase67_TheReadThatIsAPost(t *testing.T) {
	g := mustResolve(t, "public-repo-read", "repo=acme/widget")
	const repo = "https://github.com/acme/widget"
	expect(t, g, egress.CodeAllowed,
		"GET "+repo+"/info/refs?service=git-upload-pack", "POST "+repo+"/git-upload-pack length=400", "POST "+repo+".git/git-upload-pack length=400",
		"POST "+repo+"/git-upload-pack?x=1 length=400")
	expect(t, g, egress.CodePath, "POST "+repo+"/git-receive-pack length=4", "POST "+repo+"%2fgit-upload-pack length=4", "POST "+repo+"/git-upload-pack/ length=4")
	expect(t, g, egress.CodePathMalformed, "POST https://github.com/acme//widget/git-upload-pack length=4", "POST "+repo+"/git-upload-pack/../git-receive-pack length=4")
	expect(t, g, egress.CodeQuery, "GET "+repo+"/info/refs?service=git-receive-pack", "GET "+repo+"/info/refs")
}
