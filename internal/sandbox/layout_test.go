package sandbox

import (
	"encoding/json"
	"flag"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

var update = flag.Bool("update", false, "rewrite golden files")

func exampleFacts() Facts {
	return Facts{
		Top:    []TopEntry{{"bin", "usr/bin"}, {"lib", "usr/lib"}, {"opt", ""}, {"usr", ""}},
		System: []Tool{{"/var/lib/dpkg", "/var/lib/dpkg"}},
		Home:   "/home/ann", HomeReal: "/home/ann", Workdir: "/home/ann/src/app",
		ToolRoots:   []Tool{{"/home/ann/.cargo", "/home/ann/.cargo"}},
		Credentials: []string{"/home/ann/.cargo/credentials.toml"},
		Protected: []Protected{
			{Path: "/home/ann/src/app/.git", Pin: true},
			{Path: "/home/ann/src/app/.git/hooks"},
			{Path: "/home/ann/src/app/.git/config"},
			{Path: "/home/ann/src/app/.husky/_", Private: true},
		},
		Passwd: "root:x:0:0:root:/root:/bin/bash\n", Group: "root:x:0:\n",
		Nsswitch: "passwd: files systemd\nhosts: files resolve [!UNAVAIL=return] dns\n",
	}
}

func exampleRequest() LayoutRequest {
	return LayoutRequest{
		UID: 1000, GID: 1000, User: "ann", Shell: "/bin/bash", Hostname: "sbx", Resolver: "198.18.0.1",
		Bundle: "/run/sbx/bundle.pem", Caches: []Cache{{"/home/ann/.cache/sbx/1/js/npm", "/home/ann/.npm"}},
		Hidden: []string{"/home/ann/src/app/out", "/elsewhere"}, Outbox: "/state/scratch/r1",
		Paths: Paths{Workdir: "/home/ann/src/app", Shown: []Shown{
			{"/srv/link", "/srv/data", ReadOnly},
			{"/home/ann/src/app/docs", "/home/ann/src/app/docs", ReadOnly},
			{"/home/ann/src/app/docs/out", "/home/ann/src/app/docs/out", Writable},
			{"/home/ann/src/app/.env", "/home/ann/src/app/.env", Hidden},
		}},
	}
}

func TestLayoutIsAsReviewed(t *testing.T) {
	got, err := json.MarshalIndent(Layout(exampleFacts(), exampleRequest()), "", "  ")
	if err != nil {
		t.Fatal(err)
	}
	golden := filepath.Join("testdata", "layout.golden.json")
	if *update {
		if err := os.WriteFile(golden, append(got, '\n'), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(golden)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(strings.TrimSpace(string(want)), string(got)); diff != "" {
		t.Errorf("the mount tree changed; if that is meant, run go test -update (-want +got):\n%s", diff)
	}
}

func TestOnlyProjectCachesAndPrivateMemoryAreWritable(t *testing.T) {
	var writable []string
	for _, e := range Layout(exampleFacts(), exampleRequest()) {
		if e.Writable {
			writable = append(writable, e.Target)
		}
	}
	want := []string{"/home/ann/.npm", OutboxPath, "/home/ann/src/app", "/home/ann/src/app/.git", "/home/ann/src/app/docs/out"}
	if diff := cmp.Diff(want, writable); diff != "" {
		t.Error(diff)
	}
	r := exampleRequest()
	r.Paths, r.Caches, r.Outbox = Paths{Workdir: r.Paths.Workdir, ReadOnly: true}, nil, ""
	f := exampleFacts()
	f.Protected = nil // there is nothing to guard
	for _, e := range Layout(f, r) {
		if e.Writable {
			t.Errorf("read-only, yet %s is writable", e.Target)
		}
	}
}

func TestWorkdirThatGivesAwayTooMuchIsRefused(t *testing.T) {
	for workdir, refused := range map[string]bool{
		"/": true, "/home": true, "/home/ann": true, "/home/ann/src": false, "/home/anna": false, "/srv/app": false,
		"/proc": true, "/sys/fs": true, "/dev/shm": true, "/etc": true, "/etc/x": true, "/usr": true, "/usr/src/app": false, "/var": true,
		"/opt": true, "/opt/app": false, "/tmp": true, "/tmp/x": false, "/app": false, "/account": true, "/account/x": false,
	} {
		f := exampleFacts()
		f.Workdir, f.Account = workdir, "/account"
		if err := CheckWorkdir(f, false); (err != nil) != refused {
			t.Errorf("%s: %v, want refused = %v", workdir, err, refused)
		}
	}
	f := exampleFacts()
	f.Workdir = "/home"
	if err := CheckWorkdir(f, true); err != nil {
		t.Errorf("read-only above the home directory: %v", err)
	}
	for _, e := range Layout(f, LayoutRequest{Paths: Paths{Workdir: f.Workdir, ReadOnly: true}}) {
		if e.Kind == Bind && Within(f.Home, e.Source) {
			t.Errorf("read-only above the home directory, yet %s shows", e.Source)
		}
	}
}

func TestToolchainsShowByToolRootWithoutSecrets(t *testing.T) {
	base := t.TempDir()
	home := filepath.Join(base, "home")
	for _, dir := range []string{
		"home/.cargo/bin", "home/.rustup", "home/.nvm/versions/node/v20/bin", "home/bin", "home/.local/bin",
		"home/.local/share/keyrings", "home/go/bin", "home/go/pkg", "home/app/node_modules/.bin", "tools/x/bin", "tools/x/lib", "tools/x/private",
		"home/.ssh", "home/.pulumi/bin", "home/sdk/go/bin", "home/sdk/go/src", "home/.local/share/uv/credentials", "home/.local/share/uv/tools",
	} {
		if err := os.MkdirAll(filepath.Join(base, dir), 0o750); err != nil {
			t.Fatal(err)
		}
	}
	for _, f := range []string{"home/.cargo/secret", "home/.pulumi/credentials.json", "home/sdk/go/go.env"} {
		if err := os.WriteFile(filepath.Join(base, f), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink("secret", filepath.Join(home, ".cargo/credentials.toml")); err != nil {
		t.Fatal(err)
	}
	f := Facts{Home: home, HomeReal: home, Workdir: home + "/app"}
	searchPath := strings.Join([]string{
		"/usr/bin", home + "/.cargo/bin", home + "/.nvm/versions/node/v20/bin", home + "/bin", home + "/.local/bin", home + "/go/bin",
		home + "/app/node_modules/.bin", base + "/tools/x/bin", home + "/.pulumi/bin", home + "/sdk/go/bin", "relative/bin", "", base + "/missing/bin", home, base, "/",
	}, ":")
	tools, secrets := readTools(f, searchPath)
	var got []string
	for _, tool := range tools {
		got = append(got, strings.TrimPrefix(tool.Target, base+"/"))
	}
	want := []string{
		"home/.cargo", "home/.rustup", "home/.nvm/versions/node/v20/bin", "home/bin", "home/.local/bin", "home/.local/share/uv/tools",
		"home/go/bin", "tools/x/bin", "tools/x/lib", "home/.pulumi/bin", "home/sdk/go/bin", "home/sdk/go/src", "home/sdk/go/go.env",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	if !slices.Equal(secrets, []string{home + "/.cargo/secret"}) {
		t.Errorf("hidden: %v", secrets)
	}
}

func TestPrivateHomeNeverCoversTheSystem(t *testing.T) {
	for home, want := range map[string]string{
		"/home/ann": "/home/ann", "/root": "/root", "/": "/home/sbx", "/usr": "/home/sbx", "/etc/": "/home/sbx",
		"/var": "/home/sbx", "/tmp": "/home/sbx", "": "/home/sbx", "relative": "/home/sbx", "/var/www": "/var/www", "/home": "/home/sbx",
	} {
		if got := privateHome(home); got != want {
			t.Errorf("HOME=%q: %s, want %s", home, got, want)
		}
	}
}

func TestEnvironmentIsAnAllowlist(t *testing.T) {
	got := Environment(EnvironmentRequest{
		Caller: []string{
			"TERM=xterm", "LC_ALL=C", "AWS_SECRET_ACCESS_KEY=s", "NPM_TOKEN=t", "SSH_AUTH_SOCK=/x", "HTTPS_PROXY=http://corp",
			"NODE_OPTIONS=--require /x", "LD_PRELOAD=/x.so", "WANTED=yes", "HOME=/evil", "DBUS_SESSION_BUS_ADDRESS=unix:/x",
		},
		Set: map[string]string{"HTTPS_PROXY": "http://inside", "TERM": "dumb"}, Extra: []string{"WANTED", "ABSENT", "GIVEN=1"},
		Home: "/home/ann", User: "ann", Shell: "/bin/sh", Path: []string{"/usr/bin", "/bin"}, Dir: "/w",
	})
	want := []string{
		"GIVEN=1", "HOME=/home/ann", "HTTPS_PROXY=http://inside", "LC_ALL=C", "LOGNAME=ann", "PATH=/usr/bin:/bin", "PWD=/w",
		"SHELL=/bin/sh", "TERM=dumb", "TMPDIR=/tmp", "USER=ann", "WANTED=yes",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

func TestPlanIsLaidOutAsTheInitReadsIt(t *testing.T) {
	s := Spec{
		UID: 1, GID: 2, Workdir: "/w", Argv: []string{"a", ""}, Env: []string{"K=V"},
		Stdio: Stdio{TTY: [3]bool{true, false, true}, Null: [3]bool{false, true, false}, Rows: 3, Cols: 4},
		Probe: Probe{Port: 80, Nonce: strings.Repeat("n", 32)}, WaitChildren: true, Landlock: 7,
		Tree:   []Entry{{Kind: Bind, Target: "/r"}, {Kind: Bind, Target: "/w", Writable: true}, {Kind: Tmpfs, Target: "/tmp"}},
		Limits: ResourceLimits{Files: 5, FileSize: 6, Processes: 7, Data: 8},
	}
	got, err := encodePlan(s, []byte("12345678"), 9)
	if err != nil {
		t.Fatal(err)
	}
	const head = 11*4 + 4 + 16 + 32 + 4*4 + 4*8
	if string(got[head:]) != "/w\x00a\x00\x00K=V\x00/proc\x00/dev\x00/w\x00/tmp\x0012345678" {
		t.Errorf("after the head: %q", got[head:])
	}
	for i, want := range []byte{1, 7, 4, 9, 5, 0, 6, 0, 7, 0, 8, 0} {
		if got := got[head-48+4*i]; got != want {
			t.Errorf("word %d of the head's end is %d, want %d", i, got, want)
		}
	}
	words := []uint32{1, 2, 1 | 2 | 8, 2, 3, 4, 2, 1, 29, 8, 80}
	for i, want := range words {
		if w := uint32(got[4*i]); w != want {
			t.Errorf("word %d is %d, want %d", i, w, want)
		}
	}
	for _, bad := range []Spec{{}, {Argv: []string{"a\x00b"}, Probe: s.Probe}, {Argv: []string{"a"}}} {
		if _, err := encodePlan(bad, []byte("x"), 0); err == nil {
			t.Errorf("a plan was made of %+v", bad)
		}
	}
	if _, err := encodePlan(s, nil, 0); err == nil {
		t.Error("a plan was made without a seccomp filter")
	}
}

func TestHostIDsKeepClearOfSubordinateRanges(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string) string {
		p := filepath.Join(dir, name)
		if err := os.WriteFile(p, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return p
	}
	whole := write("whole", "         0          0 4294967295\n")
	for _, c := range []struct {
		mapped, taken string
		want          uint32
	}{
		{whole, write("none", ""), firstFreeID},
		{whole, write("clash", "ann:1879048192:65536\nbob:1879113728:10\n"), firstFreeID + 65546},
		{write("narrow", "0 100000 65536\n"), dir + "/missing", 65535},
	} {
		if got, err := freeID(c.mapped, c.taken); err != nil || got != c.want {
			t.Errorf("%+v: %d, %v", c, got, err)
		}
	}
	if got, err := freeID(write("one", "0 1000 1\n"), dir+"/missing"); err == nil {
		t.Errorf("with nothing but 0: %d", got)
	}
}
