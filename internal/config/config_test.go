package config

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func write(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "config.toml")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestUserFileWinsSettingBySetting(t *testing.T) {
	system := write(t, `
timeout = "30m"
grace = "2s"
default_class = "lean"
queue = true
ceiling = 20
wait = "90s"
[registries]
npm = ["https://npm.corp.test/a"]
go = ["https://go.corp.test"]
[class.task]
memory = "4g"
files = 1024
`)
	user := write(t, `grace = "3s"
env.allow = ["MY_VAR", "_x9"]
state_dir = "/var/tmp/sbx/"
client_env = true
[registries]
python = ["https://py.corp.test"]
"npm" = [ # several lines
  "https://npm.home.test/b", "@acme=https://npm.acme.test",
]
[file_hosts]
python = ["https://files.corp.test"]
[checksums]
go = []
[class.task]
memory = "2GiB"
cpu = 1.5
[class.browser]
time = "10m"
cap = 2
require = ["time", "memory"]
processes = 0
`)
	c, err := Load(Options{SystemFile: system, UserFile: user, UID: os.Getuid()})
	if err != nil {
		t.Fatal(err)
	}
	want := []Row{
		{"advisory", `""`, SourceDefault},
		{"allowed_signers", `""`, SourceDefault},
		{"ceiling", "20", system + ":6"},
		{"checksums.go", `[]`, user + ":13"},
		{"class.agent.cap", "6", SourceDefault},
		{"class.agent.processes", "8192", SourceDefault},
		{"class.browser.cap", "2", user + ":19"},
		{"class.browser.processes", "0", user + ":21"},
		{"class.browser.require", `["time", "memory"]`, user + ":20"},
		{"class.browser.time", `"10m0s"`, user + ":18"},
		{"class.lean.cap", "6", SourceDefault},
		{"class.lean.processes", "8192", SourceDefault},
		{"class.task.cap", "6", SourceDefault},
		{"class.task.cpu", "1.5", user + ":16"},
		{"class.task.files", "1024", system + ":13"},
		{"class.task.memory", `"2GiB"`, user + ":15"},
		{"class.task.processes", "8192", SourceDefault},
		{"client_env", "true", user + ":4"},
		{"default_class", `"lean"`, system + ":4"},
		{"env.allow", `["MY_VAR", "_x9"]`, user + ":2"},
		{"fail_on_denial", "false", SourceDefault},
		{"file_hosts.python", `["https://files.corp.test"]`, user + ":11"},
		{"grace", `"3s"`, user + ":1"},
		{"queue", "true", system + ":5"},
		{"quiet", "false", SourceDefault},
		{"registries.go", `["https://go.corp.test"]`, system + ":10"},
		{"registries.npm", `["https://npm.home.test/b", "@acme=https://npm.acme.test"]`, user + ":7"},
		{"registries.python", `["https://py.corp.test"]`, user + ":6"},
		{"require_canary", "false", SourceDefault},
		{"state_dir", `"/var/tmp/sbx"`, user + ":3"},
		{"summary", "true", SourceDefault},
		{"timeout", `"30m0s"`, system + ":2"},
		{"wait", `"1m30s"`, system + ":7"},
	}
	if diff := cmp.Diff(want, c.Explain()); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if c.Grace.V != 3*time.Second || !c.ClientEnv.V {
		t.Errorf("%+v", c)
	}
	if diff := cmp.Diff([]string{system, user}, c.Files); diff != "" {
		t.Error(diff)
	}
}

func TestNoFilesGiveDefaults(t *testing.T) {
	c, err := Load(Options{SystemFile: filepath.Join(t.TempDir(), "a"), UserFile: "", UID: os.Getuid()})
	if err != nil {
		t.Fatal(err)
	}
	if c.Grace.V != DefaultGrace || !c.Summary.V || c.Timeout.V != 0 || len(c.Files) != 0 {
		t.Errorf("%+v", c)
	}
}

func TestFaultsNameFileLineAndNearestName(t *testing.T) {
	cases := map[string]struct {
		text, want string
	}{
		"misspelt key":       {"quiet = true\ngrase = \"1s\"\n", ":2: there is no setting \"grase\" (did you mean grace?)"},
		"misspelt table":     {"[registry]\nnpm = []\n", ":1: there is no setting \"registry\" (did you mean registries?)"},
		"misspelt in env":    {"[env]\nalow = []\n", ":2: there is no setting \"env.alow\" (did you mean allow?)"},
		"like nothing":       {"zzzzzzzz = 1\n", ":1: there is no setting \"zzzzzzzz\""},
		"misspelt ecosystem": {"\n[registries]\nnmp = [\"https://a.test\"]\n", ":3: registries has no entry \"nmp\" (did you mean npm?)"},
		"unknown ecosystem":  {"[checksums]\npython = []\n", ":2: checksums has no entry \"python\" (known: go)"},
		"no duration":        {"timeout = \"5\"\n", ":1: timeout = \"5\" is no duration such as \"90s\" or \"30m\""},
		"negative":           {"grace = \"-1s\"\n", ":1: grace = \"-1s\" is no duration such as \"90s\" or \"30m\""},
		"relative state":     {"state_dir = \"x\"\n", ":1: state_dir = \"x\" is not an absolute path"},
		"bad variable":       {"env.allow = [\"A=B\"]\n", ":1: env.allow has \"A=B\", which is no name of a variable"},
		"no URL":             {"[registries]\nnpm = [\"npm.test\"]\n", ":2: registries.npm: \"npm.test\" is no http or https URL"},
		"scope of go":        {"[registries]\ngo = [\"@a=https://go.test\"]\n", ":2: registries.go: a URL cannot be parsed"},
		"query":              {"[registries]\nnpm = [\"https://npm.test/?x\"]\n", ":2: registries.npm: the URL of npm.test has a query or fragment; a base URL has none"},
		"no host":            {"[registries]\nnpm = [\"https:///x\"]\n", ":2: registries.npm: \"https:///x\" has no host"},
		"misspelt class":     {"[class.brwoser]\ncap = 1\n", ":1: class: there is no \"brwoser\" (did you mean browser?)"},
		"unknown class":      {"default_class = \"heavyweight\"\n", ":1: default_class: there is no \"heavyweight\" (known: agent, browser, lean, task)"},
		"misspelt limit":     {"[class.task]\nmemroy = \"1g\"\n", ":2: there is no setting \"class.task.memroy\" (did you mean memory?)"},
		"misspelt require":   {"[class.task]\nrequire = [\"dsik\"]\n", ":2: class.task.require: require: there is no \"dsik\" (did you mean disk?)"},
		"no size":            {"[class.task]\nmemory = \"much\"\n", ":2: class.task.memory: \"much\" is no size such as \"512MiB\" or \"2GiB\""},
		"no processes":       {"[class.lean]\nprocesses = -1\n", ":2: class.lean.processes: -1 is no number from 1, or 0 for no bound"},
		"no processors":      {"[class.lean]\ncpu = 0.001\n", ":2: class.lean.cpu: 0.001 is no number of processors such as 2 or 0.5"},
		"no time":            {"[class.lean]\ntime = \"ten\"\n", ":2: class.lean.time: \"ten\" is no duration such as \"90s\" or \"30m\""},
		"twice":              {"quiet = true\nquiet = false\n", ":2: "},
		"syntax":             {"quiet = true\n= 1\n", ":2: "},
	}
	for name, c := range cases {
		path := write(t, c.text)
		_, err := Load(Options{UserFile: path, UID: os.Getuid()})
		if _, ok := errors.AsType[*FileError](err); !ok || !strings.HasPrefix(err.Error(), "reading "+path+c.want) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestFilesWithoutTheirIndexAreRefused(t *testing.T) {
	path := write(t, "[checksums]\ngo = [\"https://sums.test\"]\n")
	_, err := Load(Options{UserFile: path, UID: os.Getuid()})
	if want := path + ":2 sets checksums.go, which needs registries.go as well"; err == nil || !strings.HasSuffix(err.Error(), want) {
		t.Errorf("%v", err)
	}
}

func TestCapsShareTheCeiling(t *testing.T) {
	for text, want := range map[string]string{
		"":                                    "64 64 64 64",
		"ceiling = 10":                        "2 2 2 2",
		"ceiling = 10\n[class.task]\ncap = 4": "2 2 2 4",
		"[class.task]\ncap = 250":             "2 2 2 250",
		"ceiling = 4":                         "1 1 1 1",
		"ceiling = 10\n[class.task]\ncap = 8": "the cap of class",
		"[class.task]\ncap = 300":             "the cap of class",
		"ceiling = 100001":                    "is more than 100000",
		"ceiling = 3":                         "less than one run of each class",
		"[class.lean]\ncap = 0":               "class.lean.cap is 0",
		"ceiling = 9\n" + capsOf(2, 2, 2, 3):  "2 2 2 3",
		"ceiling = 9\n" + capsOf(2, 2, 2, 4):  "are 10 together, and the ceiling is 9",
		"ceiling = 9\n[class.lean]\ncap = 9223372036854775807": "the cap of class",
		capsOf(1<<63-1, 1<<63-1, 1<<63-1, 1<<63-1):             "the cap of class",
	} {
		c, err := Load(Options{UserFile: write(t, text), UID: os.Getuid()})
		got := fmt.Sprint(err)
		if err == nil {
			caps := c.Caps()
			got = fmt.Sprint(caps["agent"], caps["browser"], caps["lean"], caps["task"])
		}
		if !strings.Contains(got, want) {
			t.Errorf("%q: %s, want %s", text, got, want)
		}
	}
}

func capsOf(agent, browser, lean, task int) string {
	return fmt.Sprintf("class.agent.cap = %d\nclass.browser.cap = %d\nclass.lean.cap = %d\nclass.task.cap = %d\n", agent, browser, lean, task)
}

func TestTheDocumentedExampleLoads(t *testing.T) {
	text, err := os.ReadFile("../../docs/config.md")
	if err != nil {
		t.Fatal(err)
	}
	var example strings.Builder
	for line := range strings.Lines(string(text)) {
		if code, ok := strings.CutPrefix(line, "    "); ok {
			example.WriteString(code)
		}
	}
	c, err := Load(Options{UserFile: write(t, example.String()), UID: os.Getuid()})
	if err != nil {
		t.Fatal(err)
	}
	if c.StateDir.V != "/srv/sbx" || len(c.Registries) != 4 {
		t.Errorf("%+v", c)
	}
	for _, key := range keysOf(reflect.TypeFor[file]()) {
		if !strings.Contains(example.String(), key) {
			t.Errorf("%s is not documented", key)
		}
	}
}

func TestWrongTypeIsAnError(t *testing.T) {
	_, err := Load(Options{UserFile: write(t, "quiet = \"yes\"\n"), UID: os.Getuid()})
	if _, ok := errors.AsType[*FileError](err); !ok {
		t.Errorf("%v", err)
	}
}

func TestPasswordsInURLsAreRefusedAndNotRepeated(t *testing.T) {
	_, err := Load(Options{UserFile: write(t, "[registries]\nnpm = [\"https://me:hunter2@npm.test/\"]\n"), UID: os.Getuid()})
	if err == nil || strings.Contains(err.Error(), "hunter2") {
		t.Errorf("%v", err)
	}
}

func TestFilesOfOthersAreRefused(t *testing.T) {
	writable := write(t, "quiet = true\n")
	if err := os.Chmod(writable, 0o666); err != nil {
		t.Fatal(err)
	}
	group := write(t, "quiet = true\n")
	if err := os.Chmod(group, 0o660); err != nil {
		t.Fatal(err)
	}
	cases := map[string]Options{
		"writable by all":   {UserFile: writable, UID: os.Getuid()},
		"writable by group": {SystemFile: group, UID: os.Getuid()},
		"a directory":       {UserFile: t.TempDir(), UID: os.Getuid()},
	}
	if os.Getuid() == 0 {
		foreign := write(t, "quiet = true\n")
		if err := os.Chown(foreign, 12345, 12345); err != nil {
			t.Fatal(err)
		}
		cases["foreign"] = Options{UserFile: foreign, UID: 0}
		if _, err := Load(Options{UserFile: foreign, UID: 12345}); err != nil {
			t.Errorf("the caller's own file: %v", err)
		}
	}
	for name, opt := range cases {
		if _, err := Load(opt); !errors.Is(err, ErrUnsafe) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestUnreadableFileIsAnError(t *testing.T) {
	loop := filepath.Join(t.TempDir(), "config.toml")
	if err := os.Symlink(loop, loop); err != nil {
		t.Fatal(err)
	}
	if _, err := Load(Options{UserFile: loop, UID: os.Getuid()}); err == nil {
		t.Error("a file that cannot be read was passed over")
	}
}

func TestUserFilePath(t *testing.T) {
	for want, env := range map[string]map[string]string{
		"/x/sbx/config.toml":         {"XDG_CONFIG_HOME": "/x", "HOME": "/h"},
		"/h/.config/sbx/config.toml": {"XDG_CONFIG_HOME": "rel", "HOME": "/h"},
		"":                           {"HOME": ""},
	} {
		if got := UserFile(func(k string) string { return env[k] }); got != want {
			t.Errorf("%v: %q", env, got)
		}
	}
}
