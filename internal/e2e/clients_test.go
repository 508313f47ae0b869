package e2e

import (
	"fmt"
	"net/http"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/fractalboxdev/sbx/internal/event"
	"github.com/fractalboxdev/sbx/internal/sbxtest"
)

// client is one run of a package client: what its directory holds, and what it does.
type client struct{ name, files, run string }

// ending is how a client ended.
type ending struct {
	status, millis int
	output         string // of both streams
}

// runClients runs clients one after the other in one sandbox, each in an empty
// directory and below the limit of timeout(1), whose status is 124.
func runClients(t *testing.T, lab *sbxtest.Lab, who sbxtest.User, clients []client, flags ...string) (sbxtest.Result, map[string]ending) {
	t.Helper()
	script := `top=$PWD
attempt() {
	mkdir -p "/tmp/clients/$1" && cd "/tmp/clients/$1" && eval "$2" || echo "$1: cannot prepare"
	local start=$(date +%s%N)
	timeout 60 bash -c "$3" >"$top/$1.log" 2>&1 </dev/null
	echo "$1 $? $((($(date +%s%N) - start) / 1000000))"
}
`
	for _, c := range clients {
		script += fmt.Sprintf("attempt %s %s %s\n", c.name, quoted(c.files), quoted(c.run))
	}
	cmd := lab.Command(t, who, slices.Concat([]string{"sbx", "exec"}, flags, []string{"--", "bash", "-c", script})...)
	withPath(cmd, sbxtest.Clients(t))
	got := within(t, 2*time.Minute, lab, who, cmd)
	succeeded(t, got)
	ends := map[string]ending{}
	for line := range strings.Lines(got.Stdout) {
		var name string
		var end ending
		if _, err := fmt.Sscan(line, &name, &end.status, &end.millis); err != nil {
			t.Fatalf("%v in %q", err, line)
		}
		end.output = contents(t, filepath.Join(lab.Project(who), name+".log"))
		ends[name] = end
		t.Logf("%-20s status %3d after %5d ms", name, end.status, end.millis)
	}
	return got, ends
}

func quoted(s string) string { return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'" }

// withPath puts a directory before the command's search path.
func withPath(cmd *exec.Cmd, dir string) {
	for i, v := range cmd.Env {
		if path, found := strings.CutPrefix(v, "PATH="); found {
			cmd.Env[i] = "PATH=" + dir + ":" + path
		}
	}
}

// finally fails the test unless each client failed by itself, after asking once
// for what was refused (some ask twice, at once); want is a part of its path.
func finally(t *testing.T, got sbxtest.Result, ends map[string]ending, want map[string]string, twice ...string) {
	t.Helper()
	rows := got.Denials(t)
	for name, path := range want {
		end, ran := ends[name]
		if !ran || end.status == 0 || end.status >= 123 && end.status <= 127 {
			t.Errorf("%s ended with %+v, want a failure of its own", name, end)
		}
		i := slices.IndexFunc(rows, func(d event.Denial) bool { return strings.Contains(d.Path, path) })
		if i < 0 {
			t.Errorf("%s: no row with %s; it said: %s", name, path, end.output)
			continue
		}
		says(t, got.Stderr, "sbx: denied "+rows[i].Method+" "+rows[i].Protocol+"://"+rows[i].Host)
		if n := rows[i].Count; n != 1 && (n != 2 || !slices.Contains(twice, name)) {
			t.Errorf("%s asked %d times for %s; it said: %s", name, n, path, end.output)
		}
	}
}

// javascript is an installation of one package by each client.
func javascript(prefix, dependency string) []client {
	var out []client
	for _, name := range []string{"npm", "pnpm", "pnpm10", "yarn", "yarnberry", "bun"} {
		package_ := strings.ReplaceAll(dependency, "NAME", name)
		out = append(out, client{
			prefix + name,
			`echo '{"name": "root", "version": "1.0.0", "license": "MIT", "dependencies": {"` + package_ + `": "1.0.0"}}' >package.json`,
			name + " install",
		})
	}
	return out
}

const aptFetch = `mkdir -p state/lists/partial cache/archives/partial; apt-get -q -o Dir::State="$PWD/state" -o Dir::State::status=/var/lib/dpkg/status \
	-o Dir::Cache="$PWD/cache" -o Dir::Log=/dev/null -o Debug::NoLocking=1 -o Acquire::Languages=none update`

func cargoProject(dependency string) string {
	return `mkdir src; touch src/lib.rs; printf '[package]\nname = "root"\nversion = "1.0.0"\nedition = "2021"\n[dependencies]\n` + dependency + ` = "1"\n' >Cargo.toml`
}

func goProject(module string) string {
	return `printf 'module root.test/m\ngo 1.21\nrequire ` + module + ` v1.0.0\n' >go.mod`
}

// others are clients of other ecosystems, which ask for of-NAME.
var others = []client{
	{"go", goProject("of-go.test/m"), "go mod download"},
	{"pip", "true", "/usr/bin/python3 -m pip download --no-deps of-pip"},
	{"cargo", cargoProject("of-cargo"), "/usr/bin/cargo fetch"},
	{"git", "true", "git clone https://github.com/other/of-git"},
	{"curl", "true", "curl -sSf https://unlisted.test/of-curl"},
	{"apt", "true", aptFetch + " --error-on=any"},
}

// Without a profile every client asks where it always does, and takes the first
// refusal for an answer.
func TestCase64_ClientsStopAtARefusal(t *testing.T) {
	lab := sbxtest.NewLab(t)
	want := map[string]string{
		"npm": "of-npm", "pnpm": "of-pnpm", "pnpm10": "of-pnpm10", "yarn": "of-yarn", "yarnberry": "of-yarnberry", "bun": "of-bun",
		"go": "/of-go.test/m/@v/v1.0.0.mod", "pip": "/of-pip/", "cargo": "/config.json", "git": "/other/of-git/info/refs",
		"curl": "/of-curl", "apt": "InRelease",
	}
	everyone(t, func(t *testing.T, who sbxtest.User) {
		before := watching(lab)
		got, ends := runClients(t, lab, who, append(javascript("", "of-NAME"), others...))
		finally(t, got, ends, want)
		before.nothingLeft(t)
	})
}

// everything grants all ecosystems from servers of the lab.
const everything = `[registries]
npm = ["https://npm.test/", "@acme=https://acme.test/npm/"]
yarn = ["https://npm.test/", "@acme=https://acme.test/npm/"]
go = ["https://go.test"]
python = ["https://py.test/simple"]
debian = ["http://deb.test/debian"]
`

func withProfiles(names string, more ...string) []string {
	var flags []string
	for name := range strings.FieldsSeq(names) {
		flags = append(flags, "--profile", name)
	}
	return append(flags, more...)
}

// Where the index is granted and the files are not, and where something is
// written, clients stop as soon.
func TestCase64_ClientsStopAtARefusedFile(t *testing.T) {
	lab := sbxtest.NewLab(t)
	lab.Configure(everything)
	lab.WriteEtc("apt/sources.list", "deb [trusted=yes] http://deb.test/debian stable main\n")
	clients, want := javascript("", "of-NAME"), map[string]string{}
	var packages []sbxtest.Package
	for _, c := range clients {
		packages = append(packages, sbxtest.Package{Name: "of-" + c.name, Version: "1.0.0", Elsewhere: "cdn.test"})
		want[c.name] = "/of-" + c.name + "/-/of-" + c.name + "-1.0.0.tgz"
	}
	npm := lab.ServeNPM(t, "npm.test", packages...)
	lab.ServePython(t, "py.test", "files.test", "of-pip")
	lab.ServeCrates(t, "index.crates.io", "dl.test", "of-cargo")
	elsewhere := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		http.Redirect(w, r, "https://storage.test"+r.URL.Path, http.StatusFound)
	})
	lab.Serve("go.test", elsewhere)
	lab.Serve("deb.test", elsewhere)
	want["go"], want["pip"], want["cargo"], want["git"], want["apt"] = "/of-go.test/m/@v/v1.0.0.mod", "/packages/of_pip-1.0", "/crates/of-cargo/1.0.0/download", "/other/of-git/info/refs", "InRelease"
	for name, run := range publishing {
		files := `echo '{"name": "mine-` + name + `", "version": "1.0.0", "license": "MIT"}' >package.json
			echo '//npm.test/:_authToken=x' >.npmrc; echo 'npmAuthToken: x' >.yarnrc.yml`
		clients = append(clients, client{"publish-" + name, files, run})
		want["publish-"+name] = "/mine-" + name
	}
	flags := withProfiles("js-install go-install python-install rust-install debian-install public-repo-read", "--input", "repo=acme/widget", "--no-cache")
	everyone(t, func(t *testing.T, who sbxtest.User) {
		since := len(npm.Requests())
		got, ends := runClients(t, lab, who, append(clients, slices.DeleteFunc(slices.Clone(others), func(c client) bool { return c.name == "curl" })...), flags...)
		finally(t, got, ends, want, "go") // go tries again with what GOAUTH gives it, after any 4xx
		for _, r := range npm.Requests()[since:] {
			if r.Method != "GET" {
				t.Errorf("the registry got %s %s", r.Method, r.Target)
			}
		}
	})
}

// publishing is how each client writes to the registry. Nobody sets P: plain commands
// of the floor list would need approval, and these have to reach the proxy.
var publishing = map[string]string{
	"npm":       "npm ${P:-publish}",
	"pnpm":      "pnpm ${P:-publish} --no-git-checks",
	"pnpm10":    "pnpm10 ${P:-publish} --no-git-checks",
	"yarn":      "yarn ${P:-publish} --non-interactive --new-version 1.0.1",
	"yarnberry": "yarnberry install && yarnberry npm ${P:-publish}",
	"bun":       "bun ${P:-publish}",
}

// Every client installs scoped packages from the registry of their scope, and
// the rest from the default one.
func TestCase55_ScopedPackagesWithEveryClient(t *testing.T) {
	lab := sbxtest.NewLab(t)
	lab.Configure(everything)
	npm := lab.ServeNPM(t, "npm.test", sbxtest.Package{Name: "pkg", Version: "1.0.0"})
	acme := lab.ServeNPMBelow(t, "acme.test", "/npm", sbxtest.Package{Name: "@acme/widget", Version: "1.0.0", Dependencies: map[string]string{"pkg": "^1.0.0"}})
	lab.ServePython(t, "py.test", "files.test", "snake")
	crates, files := lab.ServeCrates(t, "index.crates.io", "static.crates.io", "crab-crate")
	lab.Configure(everything + "[file_hosts]\npython = [\"https://files.test\"]\n")
	clients := javascript("", "@acme/widget")
	clients = append(clients,
		client{"pip", "true", "/usr/bin/python3 -m pip install --target t snake && grep NAME t/snake.py"},
		client{"cargo", cargoProject("crab-crate"), "/usr/bin/cargo fetch && ls ~/.cargo/registry/src/*/crab-crate-1.0.0/src/lib.rs"})
	everyone(t, func(t *testing.T, who sbxtest.User) {
		before := map[*sbxtest.Server]int{npm: len(npm.Requests()), acme: len(acme.Requests()), crates: len(crates.Requests()), files: len(files.Requests())}
		got, ends := runClients(t, lab, who, clients, withProfiles("js-install python-install rust-install", "--no-cache")...)
		noDenials(t, got)
		for _, c := range clients {
			if ends[c.name].status != 0 {
				t.Errorf("%s: status %d: %s", c.name, ends[c.name].status, ends[c.name].output)
			}
		}
		for server, since := range before {
			if len(server.Requests()) == since {
				t.Errorf("%s was not asked", server.Name)
			}
		}
	})
}
