package e2e

import (
	"crypto/sha256"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/fractalboxdev/sbx/internal/event"
	"github.com/fractalboxdev/sbx/internal/sbxtest"
)

// tree describes all below dir: names, kinds, permissions and contents.
func tree(t *testing.T, dir string) map[string]string {
	t.Helper()
	all := map[string]string{}
	err := filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name, err := filepath.Rel(dir, path)
		if err != nil {
			return err
		}
		all[name], err = describe(path, entry)
		return err
	})
	if err != nil {
		t.Fatalf("reading the tree %s: %v", dir, err)
	}
	return all
}

func describe(path string, entry fs.DirEntry) (string, error) {
	info, err := entry.Info()
	if err != nil {
		return "", err
	}
	switch {
	case info.Mode().IsRegular():
		data, err := os.ReadFile(path)
		return fmt.Sprintf("%s %x", info.Mode(), sha256.Sum256(data)), err
	case info.Mode().Type() == fs.ModeSymlink:
		target, err := os.Readlink(path)
		return "-> " + target, err
	}
	return info.Mode().String(), nil
}

// same fails the test when two trees differ, naming up to ten places.
func same(t *testing.T, want, got map[string]string) {
	t.Helper()
	var differ []string
	for name, is := range want {
		if got[name] != is {
			differ = append(differ, fmt.Sprintf("%s: want %q, got %q", name, is, got[name]))
		}
	}
	for name, is := range got {
		if _, known := want[name]; !known {
			differ = append(differ, fmt.Sprintf("%s: new, %q", name, is))
		}
	}
	if len(differ) > 0 {
		t.Errorf("%d places differ:\n%s", len(differ), strings.Join(differ[:min(10, len(differ))], "\n"))
	}
}

// npmCI is a command that installs the project of testdata/npm, with nothing
// but the machine's own defaults.
func npmCI(t *testing.T, lab *sbxtest.Lab, who sbxtest.User, argv ...string) sbxtest.Result {
	t.Helper()
	lab.CopyIn(who, "testdata/npm")
	cmd := lab.Command(t, who, append(argv, "npm", "ci")...)
	cmd.Env = append(cmd.Env, "npm_config_globalconfig=/dev/null", "npm_config_audit=false", "npm_config_fund=false",
		"npm_config_update_notifier=false", "npm_config_fetch_retries=0")
	if argv == nil { // outside, node has to be told to trust what the machine trusts
		cmd.Env = append(cmd.Env, "NODE_EXTRA_CA_CERTS=/etc/ssl/certs/ca-certificates.crt")
	}
	return lab.RunCommand(t, who, cmd)
}

// A large install in the sandbox gives the very tree that it gives outside.
func TestNPMInstallsTheSameTreeAsBare(t *testing.T) {
	lab := sbxtest.NewLab(t, sbxtest.RealNetwork())
	bare := sbxtest.NewLab(t, sbxtest.RealNetwork())
	first := sbxtest.Everyone()[0]
	succeeded(t, npmCI(t, bare, first))
	want := tree(t, bare.Project(first))
	if n := packages(want); n <= 500 {
		t.Fatalf("the project has %d packages, too few to be a trial", n)
	}
	everyone(t, func(t *testing.T, who sbxtest.User) {
		got := npmCI(t, lab, who, "sbx", "exec", "--profile", "js-install", "--")
		succeeded(t, got)
		same(t, want, tree(t, lab.Project(who)))
		noDenials(t, got)
		allowed(t, got, 500)
		foreign(t, lab, who)
	})
}

// packages counts the package.json files directly below a node_modules.
func packages(tree map[string]string) int {
	n := 0
	for name := range tree {
		dir, file := filepath.Split(name)
		parent := filepath.Dir(filepath.Clean(dir))
		if strings.HasPrefix(filepath.Base(parent), "@") {
			parent = filepath.Dir(parent)
		}
		if file == "package.json" && filepath.Base(parent) == "node_modules" {
			n++
		}
	}
	return n
}

// allowed fails the test unless at least so many requests are on record, all
// of them allowed by a rule.
func allowed(t *testing.T, got sbxtest.Result, least int) {
	t.Helper()
	rows := got.Requests(t)
	if len(rows) < least {
		t.Errorf("%d requests are recorded, want at least %d", len(rows), least)
	}
	for _, r := range rows {
		if r.Verdict != "allow" || r.Rule == "" {
			t.Errorf("request %+v, want one that a rule allowed", r)
		}
	}
}

// foreign fails the test when something in the project is not the user's own.
func foreign(t *testing.T, lab *sbxtest.Lab, who sbxtest.User) {
	t.Helper()
	err := filepath.WalkDir(lab.Project(who), func(path string, _ fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if uid := owner(t, path); uid != lab.UID(who) {
			return fmt.Errorf("%s belongs to %d, want %d", path, uid, lab.UID(who))
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
}

// go mod download fetches a module's dependencies through the sandbox.
func TestGoModDownload(t *testing.T) {
	lab := sbxtest.NewLab(t, sbxtest.RealNetwork())
	root, err := sbxtest.Root()
	if err != nil {
		t.Fatal(err)
	}
	everyone(t, func(t *testing.T, who sbxtest.User) {
		for _, name := range []string{"go.mod", "go.sum"} {
			text, err := os.ReadFile(filepath.Join(root, name))
			if err != nil {
				t.Fatal(err)
			}
			lab.Write(who, name, string(text))
		}
		got := shell(t, lab, who, "go mod download -json && go mod verify",
			"--profile", "go-install", "--env", "GOMODCACHE="+filepath.Join(lab.Project(who), "modules"), "--env", "GOFLAGS=-modcacherw")
		succeeded(t, got)
		says(t, got.Stdout, "all modules verified")
		if n := strings.Count(got.Stdout, `"Zip":`); n <= 50 {
			t.Errorf("%d modules were downloaded, want more than 50", n)
		}
		noDenials(t, got)
		allowed(t, got, 100)
		foreign(t, lab, who)
		kept := run(t, lab, who, "--profile", "go-install", "--", "go", "env", "GOMODCACHE")
		succeeded(t, kept)
	})
}

// apt updates its lists and fetches a package, into a directory of the project.
func TestAptFetchesIntoAPrivateDirectory(t *testing.T) {
	lab := sbxtest.NewLab(t, sbxtest.RealNetwork())
	everyone(t, func(t *testing.T, who sbxtest.User) {
		got := shell(t, lab, who, `set -e
			mkdir -p state/lists/partial cache/archives/partial
			apt() { apt-get -q -o Dir::State="$PWD/state" -o Dir::State::status=/var/lib/dpkg/status -o Dir::Cache="$PWD/cache" \
				-o Dir::Log=/dev/null -o Debug::NoLocking=1 -o Acquire::Languages=none "$@"; }
			apt update
			apt download hello
			dpkg-deb --fsys-tarfile hello_*.deb | tar -x ./usr/bin/hello
			./usr/bin/hello`, "--profile", "debian-install")
		succeeded(t, got)
		says(t, got.Stdout, "Hello, world!")
		noDenials(t, got)
		allowed(t, got, 2)
		foreign(t, lab, who)
	})
}

// Clones of the granted repository work; writing and other repositories are refused.
func TestCase67_ReadOnlyGit(t *testing.T) {
	lab := sbxtest.NewLab(t)
	host := lab.ServeGit(t, "github.com", "acme/widget", map[string]string{"README": "widget\n", "src/main.c": "int x;\n"})
	flags := []string{"--profile", "public-repo-read", "--input", "repo=acme/widget"}
	everyone(t, func(t *testing.T, who sbxtest.User) {
		before := watching(lab)
		got := shell(t, lab, who, `set -e
			git clone -q https://github.com/acme/widget
			git clone -q --depth 1 https://github.com/acme/widget.git shallow
			git -C widget fetch -q && git ls-remote https://github.com/acme/widget.git main
			cat widget/README shallow/src/main.c`, flags...)
		succeeded(t, got)
		says(t, got.Stdout, "widget\nint x;\n", "refs/heads/main")
		noDenials(t, got)
		onlyTo(t, before, host)
		foreign(t, lab, who)

		reached := len(host.Requests())
		push := shell(t, lab, who, `cd widget && git -c user.name=x -c user.email=x@git.test commit -q --allow-empty -m x && git ${P:-push} origin main`, flags...)
		gitRefused(t, push, "/acme/widget/info/refs")
		other := shell(t, lab, who, "git clone https://github.com/other/thing", flags...)
		gitRefused(t, other, "/other/thing/info/refs")
		if n := len(host.Requests()); n != reached {
			t.Errorf("%d refused requests reached the server", n-reached)
		}
		for _, path := range []string{"acme/widget/git-receive-pack", "acme/widget.git/git-receive-pack", "acme/widget/git-upload-pack/../git-receive-pack"} {
			post := shell(t, lab, who, "curl -sS --path-as-is -o /dev/null -w '%{http_code}' -d x https://github.com/"+path, flags...)
			printed(t, post, "403")
		}
		if n := len(host.Requests()); n != reached {
			t.Errorf("%d refused POSTs reached the server", n-reached)
		}
	})
}

// gitRefused fails the test unless git ended with its own readable error and
// one row names the path.
func gitRefused(t *testing.T, got sbxtest.Result, path string) {
	t.Helper()
	if got.Exit != 128 {
		t.Errorf("exit status %d, want git's 128: %s", got.Exit, got.Stderr)
	}
	says(t, got.Stderr, "fatal: unable to access", "403")
	if row := onlyDenial(t, got); row.Path != path || row.Source != event.SourceHandler {
		t.Errorf("row is %+v, want one of the handler for %s", row, path)
	}
}
