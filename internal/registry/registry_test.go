package registry_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/fractalboxdev/sbx/internal/registry"
)

const definitions = "usr/lib/node_modules/npm/node_modules/@npmcli/config/lib/definitions/definitions.js"

// world is a root directory with some files, and options that read it.
type world struct {
	root string
	opts registry.Options
}

// newWorld lays files, given as path and content in turn, below a new root.
func newWorld(tb testing.TB, files ...string) *world {
	tb.Helper()
	w := &world{root: tb.TempDir()}
	w.opts = registry.Options{
		Root: w.root, Home: "/home/u", UserID: os.Getuid(), Env: map[string]string{"PATH": "bin::/usr/bin:/opt/bin"},
	}
	for i := 0; i < len(files); i += 2 {
		w.write(tb, files[i], files[i+1])
	}
	return w
}

func (w *world) write(tb testing.TB, path, content string) {
	tb.Helper()
	full := filepath.Join(w.root, path)
	if err := os.MkdirAll(filepath.Dir(full), 0o755); err != nil {
		tb.Fatal(err)
	}
	if err := os.WriteFile(full, []byte(content), 0o644); err != nil {
		tb.Fatal(err)
	}
}

func (w *world) link(tb testing.TB, target, path string) {
	tb.Helper()
	full := filepath.Join(w.root, path)
	if err := os.MkdirAll(filepath.Dir(full), 0o755); err != nil {
		tb.Fatal(err)
	}
	if err := os.Symlink(target, full); err != nil {
		tb.Fatal(err)
	}
}

// endpoints returns "role URL (source)" of each endpoint.
func (w *world) endpoints(tb testing.TB, ecosystem string) []string {
	tb.Helper()
	found, err := registry.New(w.opts).Endpoints(ecosystem)
	if err != nil {
		tb.Fatal(err)
	}
	var out []string
	for _, e := range found {
		if e.Ecosystem != ecosystem {
			tb.Errorf("ecosystem %s", e.Ecosystem)
		}
		out = append(out, strings.TrimSpace(fmt.Sprintf("%s %s (%s)", e.Role, e.URL, e.Source)))
	}
	return out
}

// env returns the client's variables as NAME=value.
func (w *world) env(tb testing.TB, ecosystem string) []string {
	tb.Helper()
	vars, err := registry.New(w.opts).ClientEnv(ecosystem)
	if err != nil {
		tb.Fatal(err)
	}
	var out []string
	for _, v := range vars {
		out = append(out, v.Name+"="+v.Value)
	}
	return out
}

func (w *world) want(t *testing.T, ecosystem string, want ...string) {
	t.Helper()
	if diff := cmp.Diff(want, w.endpoints(t, ecosystem)); diff != "" {
		t.Errorf("%s: %s", ecosystem, diff)
	}
}

func (w *world) wantError(t *testing.T, ecosystem string, target error, words ...string) {
	t.Helper()
	found, err := registry.New(w.opts).Endpoints(ecosystem)
	if err == nil || target != nil && !errors.Is(err, target) {
		t.Errorf("%s: %v, %v", ecosystem, found, err)
		return
	}
	for _, word := range words {
		if !strings.Contains(err.Error(), word) {
			t.Errorf("%s: %v lacks %q", ecosystem, err, word)
		}
	}
	if strings.Contains(err.Error(), "hunter2") {
		t.Errorf("the error shows a password: %v", err)
	}
}

func TestNPMUserFile(t *testing.T) {
	w := newWorld(
		t, "home/u/.npmrc", "; comment\n# comment\nfund=false\n\n//npm.test/:_authToken=${NPM_TOKEN}\nregistry = \"https://u:hunter2@npm.test/api/npm/\"\r\n"+
			"@corp:registry=https://corp.test:8443/npm ; theirs\n@other:registry='https://other.test'\n[section]\nregistry=https://evil.test/\n",
		"etc/npmrc", "registry=https://global.test\n@corp:registry=https://global.test\n@third:registry=https://third.test\n",
	)
	w.want(t, "npm",
		"https://npm.test/api/npm (~/.npmrc line 6)",
		"@corp https://corp.test:8443/npm (~/.npmrc line 7)",
		"@other https://other.test (~/.npmrc line 8)",
		"@third https://third.test (/etc/npmrc line 3)")
	want := []string{"npm_config_registry=https://npm.test/api/npm/", "pnpm_config_registry=https://npm.test/api/npm/"}
	if diff := cmp.Diff(want, w.env(t, "npm")); diff != "" {
		t.Error(diff)
	}
	files, err := registry.New(w.opts).ClientFiles("npm")
	if err != nil {
		t.Fatal(err)
	}
	wantFiles := []registry.File{{Path: ".npmrc", Content: "@corp:registry=https://corp.test:8443/npm/\n@other:registry=https://other.test/\n@third:registry=https://third.test/\n"}}
	if diff := cmp.Diff(wantFiles, files); diff != "" {
		t.Error(diff)
	}
}

func TestNPMGlobalFiles(t *testing.T) {
	w := newWorld(t, "opt/node/bin/node", "", "opt/node/etc/npmrc", "registry=https://prefix.test", "etc/npmrc", "registry=https://etc.test",
		"usr/lib/node_modules/npm/npmrc", "registry=https://builtin.test", "home/u/global/etc/npmrc", "registry=https://own.test", "elsewhere", "registry=https://elsewhere.test")
	w.link(t, "/opt/node/bin/node", "usr/bin/node")
	w.want(t, "npm", "https://prefix.test (/opt/node/etc/npmrc line 1)")
	w.write(t, "home/u/.npmrc", "prefix=~/global")
	w.want(t, "npm", "https://own.test (~/global/etc/npmrc line 1)")
	w.write(t, "home/u/.npmrc", "prefix=${HOME}/global")
	w.want(t, "npm", "https://own.test (~/global/etc/npmrc line 1)")
	w.write(t, "home/u/.npmrc", "globalconfig=/elsewhere")
	w.want(t, "npm", "https://elsewhere.test (/elsewhere line 1)")
	w.write(t, "home/u/.npmrc", "prefix=${PWD}/x")
	w.want(t, "npm", "https://prefix.test (/opt/node/etc/npmrc line 1)")
	w.write(t, "opt/node/etc/npmrc", "")
	w.want(t, "npm", "https://etc.test (/etc/npmrc line 1)")
	w.write(t, "etc/npmrc", "")
	w.want(t, "npm", "https://builtin.test (/usr/lib/node_modules/npm/npmrc line 1)")
}

func TestNPMDefault(t *testing.T) {
	for path, source := range map[string]string{
		definitions: "  proxy: new Definition('proxy', {\n    default: null,\n  registry: new Definition('registry', {\n    default: 'https://default.test/',\n    type: url,\n",
		"usr/lib/node_modules/npm/lib/utils/config/definitions.js": "define('registry', {\n  default: 'https://default.test/',\n",
		"usr/lib/node_modules/npm/lib/config/defaults.js":          "  defaults = {\n    registry: 'https://default.test/',\n",
		"opt/lib/npm/lib/config/defaults.js":                       "  defaults = {\n    registry: 'https://default.test/',\n",
	} {
		w := newWorld(t, path, source, "opt/lib/npm/bin/npm-cli.js", "")
		w.link(t, "../lib/npm/bin/npm-cli.js", "opt/bin/npm")
		w.want(t, "npm", "https://default.test (npm's built-in default in /"+path+")")
	}
	for _, source := range []string{"", "'registry', {\n type: url", "'registry', {\n default: 'ftp://x.test/'", "'registry', {\n default: `https://x.test/`", "'registry', {\n default: 'https://"} {
		w := newWorld(t, definitions, source)
		w.wantError(t, "npm", registry.ErrUnknown, "operator configuration")
	}
}

// Only when no file tells it is the client asked, and its answer is read as
// strictly as a file's.
func TestAskDefault(t *testing.T) {
	w := newWorld(t)
	asked := 0
	answer := []string{"https://asked.test/"}
	var failure error
	w.opts.AskDefault = func(_ context.Context, ecosystem string) ([]string, error) {
		asked++
		if ecosystem != "npm" {
			t.Errorf("asked for %s", ecosystem)
		}
		return answer, failure
	}
	w.want(t, "npm", "https://asked.test (npm's own answer)")
	r := registry.New(w.opts)
	for range 2 {
		if _, err := r.Endpoints("npm"); err != nil {
			t.Fatal(err)
		}
	}
	if asked != 2 {
		t.Errorf("asked %d times", asked)
	}
	failure = errors.New("no npm here")
	w.wantError(t, "npm", registry.ErrUnknown, "no npm here")
	answer, failure = []string{"file:///etc/passwd"}, nil
	w.wantError(t, "npm", nil)
	answer = nil
	w.wantError(t, "npm", registry.ErrUnknown)
	w.write(t, "home/u/.npmrc", "registry=https://npm.test")
	asked = 0
	w.want(t, "npm", "https://npm.test (~/.npmrc line 1)")
	if asked != 0 {
		t.Error("the client was asked although a file tells")
	}
}

func TestOperatorWins(t *testing.T) {
	w := newWorld(t, "home/u/.npmrc", "registry=https://npm.test\n@a:registry=https://a.test")
	w.opts.Operator = map[string][]string{
		"npm": {"https://mirror.test/npm", "@b=https://b.test"}, "go": {"https://mirror.test/go", "checksums=https://sums.test"},
		"debian": {"http://mirror.test/debian"}, "python": {"https://mirror.test/pypi", "files=https://files.test"}, "yarn": {"https://mirror.test/npm"},
	}
	const source = " (operator configuration)"
	w.want(t, "npm", "https://mirror.test/npm"+source, "@b https://b.test"+source)
	w.want(t, "go", "https://mirror.test/go"+source, "checksums https://sums.test"+source)
	w.want(t, "debian", "http://mirror.test/debian"+source)
	w.want(t, "python", "https://mirror.test/pypi"+source, "files https://files.test"+source)
	w.want(t, "yarn", "https://mirror.test/npm"+source)
	if diff := cmp.Diff([]string{"GOPROXY=https://mirror.test/go"}, w.env(t, "go")); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff([]string{"PIP_INDEX_URL=https://mirror.test/pypi/simple/", "UV_DEFAULT_INDEX=https://mirror.test/pypi/simple/"}, w.env(t, "python")); diff != "" {
		t.Error(diff)
	}
	for entry, index := range map[string]string{
		"https://mirror.test/pypi/simple": "https://mirror.test/pypi/simple/", "https://mirror.test/pypi/simple/": "https://mirror.test/pypi/simple/",
		"https://mirror.test/pypi/+simple/": "https://mirror.test/pypi/+simple/", "https://mirror.test/pypi/": "https://mirror.test/pypi/simple/",
	} {
		w.opts.Operator["python"] = []string{"files=https://files.test/simple", entry}
		w.want(t, "python", "https://mirror.test/pypi"+source, "files https://files.test/simple"+source)
		if diff := cmp.Diff([]string{"PIP_INDEX_URL=" + index, "UV_DEFAULT_INDEX=" + index}, w.env(t, "python")); diff != "" {
			t.Errorf("%s: %s", entry, diff)
		}
	}
	w.write(t, pipIndex, "PyPI = PackageIndex(\"https://index.test/\", file_storage_domain=\"files.test\")")
	w.opts.Operator["python"] = []string{"https://index.test/simple"}
	w.want(t, "python", "https://index.test"+source, "files https://files.test (pip's built-in default in /"+pipIndex+")")
	w.opts.Operator["python"] = []string{"files=https://mirror.test/files"}
	w.want(t, "python", "https://index.test (pip's built-in default in /"+pipIndex+")", "files https://mirror.test/files"+source)
	w.opts.Operator["npm"] = []string{"@a=https://mirror.test/a"}
	w.want(t, "npm", "https://npm.test (~/.npmrc line 1)", "@a https://mirror.test/a"+source)
	w.opts.Operator["npm"] = []string{"https://mirror.test/?x"}
	w.wantError(t, "npm", nil, "operator configuration")
}

// Client variables count only if operator configuration says so.
func TestClientVariables(t *testing.T) {
	w := newWorld(t, "home/u/.npmrc", "registry=https://npm.test", "usr/local/go/go.env", "GOPROXY=https://go.test\nGOSUMDB=off\n",
		"etc/pip.conf", "[global]\nindex-url=https://pip.test/simple")
	w.opts.Env["npm_config_registry"] = "https://env.test"
	w.opts.Env["GOPROXY"] = "https://env.test"
	w.opts.Env["PIP_INDEX_URL"] = "https://env.test/simple"
	w.want(t, "npm", "https://npm.test (~/.npmrc line 1)")
	w.want(t, "go", "https://go.test (/usr/local/go/go.env line 1)")
	w.want(t, "python", "https://pip.test (/etc/pip.conf line 2)")
	w.opts.ClientEnvAllowed = true
	w.want(t, "npm", "https://env.test (the variable npm_config_registry)")
	w.want(t, "go", "https://env.test (the variable GOPROXY)")
	w.want(t, "python", "https://env.test (the variable PIP_INDEX_URL)")
}

func TestYarn(t *testing.T) {
	w := newWorld(t, "home/u/.npmrc", "registry=https://npm.test")
	w.want(t, "yarn", "https://npm.test (~/.npmrc line 1, as for npm)")
	if diff := cmp.Diff([]string{"YARN_NPM_REGISTRY_SERVER=https://npm.test"}, w.env(t, "yarn")); diff != "" {
		t.Error(diff)
	}
	w.write(t, "usr/share/yarn/lib/cli.js", "var YARN_REGISTRY = exports.YARN_REGISTRY = 'https://yarn.test';\n"+strings.Repeat(" ", 6<<20))
	w.want(t, "yarn", "https://yarn.test (yarn's built-in default in /usr/share/yarn/lib/cli.js)")
	w.write(t, "home/u/.yarnrc", "# x\nlastUpdateCheck 1\nregistry \"https://classic.test\"\n\"@s:registry\" \"https://s.test\"\n")
	w.want(t, "yarn", "https://classic.test (~/.yarnrc line 3)", "@s https://s.test (~/.yarnrc line 4)")
	w.write(t, "home/u/.yarnrc.yml", "enableTelemetry: false\nnpmRegistryServer: \"https://u:hunter2@modern.test/npm\"\nnpmScopes:\n  corp:\n    npmRegistryServer: https://corp.test\n    npmAuthToken: x\nnpmRegistries:\n  a:\n    npmRegistryServer: https://evil.test\n")
	w.want(t, "yarn", "https://modern.test/npm (~/.yarnrc.yml line 2)", "@corp https://corp.test (~/.yarnrc.yml line 5)")
	want := []string{"YARN_NPM_REGISTRY_SERVER=https://modern.test/npm", "YARN_REGISTRY=https://modern.test/npm"}
	if diff := cmp.Diff(want, w.env(t, "yarn")); diff != "" {
		t.Error(diff)
	}
	files, err := registry.New(w.opts).ClientFiles("yarn")
	if err != nil || len(files) != 1 || files[0].Content != "npmScopes:\n  \"corp\":\n    npmRegistryServer: \"https://corp.test\"\n" {
		t.Errorf("%v, %v", files, err)
	}
	w.write(t, "home/u/.yarnrc.yml", "npmRegistryServer: \"${REGISTRY}\"\n")
	w.wantError(t, "yarn", nil, "~/.yarnrc.yml line 1", "variables")
}

func TestGo(t *testing.T) {
	w := newWorld(t, "usr/lib/go-9/go.env", "# comment\nGOPROXY=https://root.test,direct\nGOSUMDB=sums.test\nGOTOOLCHAIN=auto\n", "usr/lib/go-9/bin/go", "")
	w.link(t, "../lib/go-9/bin/go", "usr/bin/go")
	w.want(t, "go", "https://root.test (/usr/lib/go-9/go.env line 2)", "checksums https://sums.test (/usr/lib/go-9/go.env line 3)")
	if diff := cmp.Diff([]string{"GOPROXY=https://root.test,direct", "GOSUMDB=sums.test"}, w.env(t, "go")); diff != "" {
		t.Error(diff)
	}
	w.write(t, "home/u/.config/go/env", "GOPRIVATE=*.corp.test\nGOPROXY=https://u:hunter2@one.test/go|https://two.test,file:///srv,direct\n")
	w.want(t, "go", "https://one.test/go (~/.config/go/env line 2)", "https://two.test (~/.config/go/env line 2)", "checksums https://sums.test (/usr/lib/go-9/go.env line 3)")
	want := []string{"GOPROXY=https://one.test/go|https://two.test,file:///srv,direct", "GOSUMDB=sums.test", "GOPRIVATE=*.corp.test"}
	if diff := cmp.Diff(want, w.env(t, "go")); diff != "" {
		t.Error(diff)
	}
	w.opts.Env["XDG_CONFIG_HOME"] = "/home/u/xdg"
	w.write(t, "home/u/xdg/go/env", "GOPROXY=https://xdg.test\nGOSUMDB=key.test+abc+def https://u:hunter2@mirror.test/sumdb\n")
	w.want(t, "go", "https://xdg.test (~/xdg/go/env line 1)", "checksums https://mirror.test/sumdb (~/xdg/go/env line 2)")
	w.write(t, "home/u/xdg/go/env", "GOPROXY=direct\nGOSUMDB=off\n")
	w.wantError(t, "go", registry.ErrUnknown)
	w.write(t, "home/u/xdg/go/env", "GOPROXY=https://a b.test\n")
	w.wantError(t, "go", nil, "~/xdg/go/env line 1")
	newWorld(t).wantError(t, "go", registry.ErrUnknown)
}

const pipIndex = "usr/lib/python3/dist-packages/pip/_internal/models/index.py"

func TestPython(t *testing.T) {
	w := newWorld(t, pipIndex, "class PackageIndex:\n    pass\n\n\nPyPI = PackageIndex(\"https://index.test/\", file_storage_domain=\"files.test\")\nTestPyPI = PackageIndex(\n    \"https://t.test/\", file_storage_domain=\"tf.test\"\n)\n")
	source := " (pip's built-in default in /" + pipIndex + ")"
	w.want(t, "python", "https://index.test"+source, "files https://files.test"+source)
	if diff := cmp.Diff([]string{"PIP_INDEX_URL=https://index.test/simple/", "UV_DEFAULT_INDEX=https://index.test/simple/"}, w.env(t, "python")); diff != "" {
		t.Error(diff)
	}
	w.write(t, "etc/pip.conf", "[global]\ncert = /x\nindex_url: https://u:hunter2@corp.test/api/pypi/simple/\nextra-index-url =\n    https://x1.test/simple\n    # comment\n    https://x2.test/+simple/\ntimeout = 1\n    https://evil.test\n[list]\nindex-url=https://evil.test\n")
	w.want(t, "python", "https://corp.test/api/pypi (/etc/pip.conf line 3)", "https://x1.test (/etc/pip.conf line 5)", "https://x2.test (/etc/pip.conf line 7)")
	want := []string{
		"PIP_INDEX_URL=https://corp.test/api/pypi/simple/", "UV_DEFAULT_INDEX=https://corp.test/api/pypi/simple/",
		"PIP_EXTRA_INDEX_URL=https://x1.test/simple https://x2.test/+simple/", "UV_INDEX=https://x1.test/simple https://x2.test/+simple/",
	}
	if diff := cmp.Diff(want, w.env(t, "python")); diff != "" {
		t.Error(diff)
	}
	w.write(t, "home/u/.config/pip/pip.conf", "[global]\nindex-url = https://global.test/simple\n[install]\nindex-url = https://index.test/simple\nextra-index-url = https://x3.test/simple\n")
	w.want(t, "python", "https://index.test (~/.config/pip/pip.conf line 4)", "https://x3.test (~/.config/pip/pip.conf line 5)", "files https://files.test"+source)
	newWorld(t).wantError(t, "python", registry.ErrUnknown)
}

func TestDebian(t *testing.T) {
	w := newWorld(
		t, "etc/apt/sources.list", "# deb http://commented.test/debian x main\ndeb http://deb.test/debian/ stable main # rest\n"+
			"deb [arch=amd64 signed-by=/x] https://u:hunter2@secure.test/debian stable main\ndeb-src\thttp://deb.test/debian stable main\ndeb cdrom:[x]/ stable main\ndeb file:/srv stable main\nrpm http://rpm.test x\n",
		"etc/apt/sources.list.d/a.sources", "Types: deb\nURIs: http://a.test/debian\n  http://b.test:8080/debian\n# URIs: http://commented.test\nSuites: x\n\nTypes: deb\nEnabled: no\nURIs: http://disabled.test\n\nuris: https://c.test/\nEnabled: yes",
		"etc/apt/sources.list.d/b.list", "deb http://list.test/x ./\n",
		"etc/apt/sources.list.d/c.list.disabled", "deb http://disabled.test/x ./\n",
	)
	w.want(t, "debian",
		"http://deb.test/debian (/etc/apt/sources.list line 2)",
		"https://secure.test/debian (/etc/apt/sources.list line 3)",
		"http://a.test/debian (/etc/apt/sources.list.d/a.sources line 2)",
		"http://b.test:8080/debian (/etc/apt/sources.list.d/a.sources line 3)",
		"https://c.test (/etc/apt/sources.list.d/a.sources line 11)",
		"http://list.test/x (/etc/apt/sources.list.d/b.list line 1)")
	newWorld(t).wantError(t, "debian", registry.ErrUnknown)
}

func TestUnknownEcosystem(t *testing.T) {
	newWorld(t).wantError(t, "cobol", registry.ErrUnknown, "npm")
}

// An endpoint that could be read in two ways is an error that names the line and
// never shows what stands there.
func TestHostileURLs(t *testing.T) {
	for _, url := range []string{
		"npm.test", "//npm.test", "ftp://npm.test", "https://", "https://npm.test/?x=1", `"https://npm.test/#x"`, "https://npm.test/?",
		"https://npm.test/../x", "https://npm.test/%2e%2e/x", "https://npm.test//x", `https://npm.test\@evil.test`, "https://npm.test/a b",
		"https://0x7f.1/", "https://npm..test/", "https://[npm.test]/", "https://npm.test:0/", "https://npm.test:99999/", "https://npm.test\x00.evil.test/",
		"https://u:hunter2@[::1", "https://${HOST}/", "https://u:hunter2@$HOST/", "javascript:alert(1)", "https:npm.test", "https://*.npm.test",
	} {
		w := newWorld(t, "home/u/.npmrc", "registry="+url+"\n")
		w.wantError(t, "npm", nil, "~/.npmrc line 1")
	}
}

// FuzzFiles: whatever stands in the clients' files, nothing panics, and every
// endpoint has an exact host and no userinfo.
func FuzzFiles(f *testing.F) {
	f.Add("registry=https://npm.test\n@a:registry=https://a.test/x/")
	f.Add("npmRegistryServer: https://x.test\nnpmScopes:\n  a:\n    npmRegistryServer: https://b.test")
	f.Add("GOPROXY=https://u:p@one.test,direct\nGOSUMDB=a+b https://c.test")
	f.Add("[global]\nindex-url = https://p.test/simple\nextra-index-url =\n  https://q.test")
	f.Add("deb [a=b] http://d.test/x y z\nURIs: http://e.test\n f\n\nEnabled: no")
	f.Add("PyPI = PackageIndex(\"https://i.test/\", file_storage_domain=\"f.test\")")
	w := newWorld(f)
	f.Fuzz(func(t *testing.T, text string) {
		for _, path := range []string{"home/u/.npmrc", "home/u/.yarnrc.yml", "home/u/.config/go/env", "etc/pip.conf", "etc/apt/sources.list", "etc/apt/sources.list.d/x.sources", pipIndex, definitions} {
			w.write(t, path, text)
		}
		r := registry.New(w.opts)
		for _, ecosystem := range registry.Ecosystems {
			found, err := r.Endpoints(ecosystem)
			if err == nil && len(found) == 0 {
				t.Errorf("%s: neither endpoints nor an error", ecosystem)
			}
			for _, e := range found {
				if e.Endpoint.Host.IsZero() || e.Endpoint.Port == 0 || strings.ContainsAny(e.URL, "@?# \n") && !strings.Contains(e.Endpoint.BasePath, "@") {
					t.Errorf("%s: %+v", ecosystem, e)
				}
			}
		}
	})
}
