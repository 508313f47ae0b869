package e2e

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/fractalboxdev/sbx/internal/event"
	"github.com/fractalboxdev/sbx/internal/sbxtest"
)

// The receipt says what was done, and claims only what was checked.
func TestReceipt(t *testing.T) {
	lab := sbxtest.NewLab(t)
	everyone(t, func(t *testing.T, who sbxtest.User) {
		for script, want := range map[string]event.Result{
			"curl -s https://unlisted.test/; exit 3": {Exit: 3, Denials: 1},
			"true":                                   {},
			"kill -KILL $$":                          {Exit: 137, Signal: "killed"},
		} {
			got := shell(t, lab, who, script)
			var r event.Receipt
			if err := json.Unmarshal(got.File(t, "receipt.json"), &r); err != nil {
				t.Fatal(err)
			}
			if r.Result.Exit != want.Exit || r.Result.Denials != want.Denials || r.Interrupted || r.Run != filepath.Base(got.RunDir) ||
				r.Workdir != lab.Project(who) || len(r.Command) != 3 || r.FinishedAt.Before(r.StartedAt) {
				t.Errorf("%q: the receipt is %+v", script, r)
			}
			revoked(t, r)
		}
	})
}

// revoked checks that the run was taken back, step by step.
func revoked(t *testing.T, r event.Receipt) {
	t.Helper()
	var checks []string
	for _, check := range r.Revoke {
		checks = append(checks, check.What)
		if !check.Verified {
			t.Errorf("not verified: %+v", check)
		}
	}
	if got := strings.Join(checks, ", "); got != "pid namespace empty, policy is the floor, listeners closed, certificate authority's key released, lease released, no mounts left" {
		t.Errorf("checked was: %s", got)
	}
	var order []string
	for _, step := range r.Steps {
		order = append(order, step.Name)
		if !step.OK {
			t.Errorf("step %+v is not ok", step)
		}
	}
	if got := strings.Join(order, " "); got != "command floor-list grant stale-revoke ensure prove-floor apply-grant run kill set-aside collect revoke" {
		t.Errorf("the steps were: %s", got)
	}
	for _, a := range r.Applied {
		if !a.Applied && !strings.HasSuffix(a.Name, "limit") {
			t.Errorf("not applied: %+v", a)
		}
	}
}

// outcome is what --json and --outcome write.
type outcome struct {
	Exit      int
	Run       string
	Directory string
	Denials   []event.Denial
	Receipt   event.Receipt
}

func decoded(t *testing.T, text string) outcome {
	t.Helper()
	var o outcome
	if err := json.Unmarshal([]byte(text), &o); err != nil {
		t.Fatalf("reading the outcome: %v in %s", err, text)
	}
	return o
}

// Machines get the outcome where the command cannot write.
func TestOutcomeForMachines(t *testing.T) {
	lab := sbxtest.NewLab(t)
	everyone(t, func(t *testing.T, who sbxtest.User) {
		script := `curl -s https://unlisted.test/; echo '{"Exit": 0}'; exit 3`
		got := shell(t, lab, who, script, "--json")
		o := decoded(t, got.Stdout)
		if got.Exit != 3 || o.Exit != 3 || len(o.Denials) != 1 || o.Run != filepath.Base(got.RunDir) || !strings.Contains(got.Stderr, `{"Exit": 0}`) {
			t.Errorf("exit status %d, outcome %+v, stderr %s", got.Exit, o, got.Stderr)
		}
		revoked(t, o.Receipt)

		path := filepath.Join(lab.Home(who), "outcome.json")
		got = shell(t, lab, who, script, "--outcome", path)
		o = decoded(t, contents(t, path))
		if got.Exit != 3 || o.Exit != 3 || len(o.Denials) != 1 || got.Stdout != "{\"Exit\": 0}\n" || modeOf(t, path) != 0o600 || owner(t, path) != lab.UID(who) {
			t.Errorf("exit status %d, outcome %+v, mode %o", got.Exit, o, modeOf(t, path))
		}
		refused(t, run(t, lab, who, "--outcome", path, "--", "touch", "ran"), path)
		nothingRan(t, lab, who)

		refusal := run(t, lab, who, "--json", "--profile", "nonsense", "--", "true")
		if o := decoded(t, refusal.Stdout); refusal.Exit != 125 || o.Exit != 125 || o.Receipt.Result.Refusal == nil || o.Receipt.Result.Refusal.Code != "unknown-profile" {
			t.Errorf("exit status %d, outcome of the refusal: %s", refusal.Exit, refusal.Stdout)
		}
	})
}

// --artifacts gets the records when everything is dead, and is no way to write
// elsewhere.
func TestArtifacts(t *testing.T) {
	lab := sbxtest.NewLab(t)
	everyone(t, func(t *testing.T, who sbxtest.User) {
		dir := filepath.Join(lab.Home(who), "out")
		got := shell(t, lab, who, "curl -s https://unlisted.test/; echo out", "--artifacts", dir)
		succeeded(t, got)
		kept(t, lab, who, dir)
		says(t, contents(t, dir+"/denials.jsonl"), "unlisted.test")
		says(t, contents(t, dir+"/receipt.json"), `"verified": true`)

		below := filepath.Join(lab.Project(who), "records")
		got = shell(t, lab, who, "ls -A records; echo EVIL >records/receipt.json; rm -rf records; ln -s /etc records; true", "--artifacts", below)
		if got.Exit != 125 {
			kept(t, lab, who, below)
		}

		elsewhere := filepath.Join(lab.Home(who), "elsewhere")
		link := filepath.Join(lab.Home(who), "link")
		for _, err := range []error{os.Mkdir(elsewhere, 0o755), os.Chown(elsewhere, lab.UID(who), -1), os.Symlink(elsewhere, link)} {
			if err != nil {
				t.Fatal(err)
			}
		}
		for _, path := range []string{link, link + "/below"} {
			refused(t, run(t, lab, who, "--artifacts", path, "--", "touch", "ran"), path)
			nothingRan(t, lab, who)
		}
		if entries, err := os.ReadDir(elsewhere); err != nil || len(entries) > 0 {
			t.Errorf("%v; written behind the link: %v", err, entries)
		}
	})
}

// Runs at the same time know nothing of each other.
func TestCase28_RunsDoNotSeeEachOther(t *testing.T) {
	lab := sbxtest.NewLab(t)
	everyone(t, func(t *testing.T, who sbxtest.User) {
		reader, writer := pipe(t)
		first := lab.Command(t, who, "sbx", "exec", "--", "bash", "-c", `echo secret >/tmp/secret; echo secret >~/secret
			/usr/bin/python3 -u -m http.server 8123 >/dev/null 2>&1 & server=$!
			until curl -s -o /dev/null http://127.0.0.1:8123/; do :; done; echo ready; read over; kill $server`)
		stdout := newOutput()
		first.Stdin, first.Stdout, first.Stderr = reader, stdout, newOutput()
		lab.Start(t, first)
		stdout.until(t, "ready\n")
		second := shell(t, lab, who, `curl -sS http://127.0.0.1:8123/ 2>&1; ls /tmp ~; cat /proc/[0-9]*/cmdline | tr '\0' ' '; true`)
		succeeded(t, second)
		if strings.Contains(second.Stdout, "secret") || strings.Contains(second.Stdout, "http.server") || !strings.Contains(second.Stdout, "refused") && !strings.Contains(second.Stdout, "connect") {
			t.Errorf("the second run saw: %s", second.Stdout)
		}
		if _, err := writer.WriteString("over\n"); err != nil {
			t.Fatal(err)
		}
		if exit := sbxtest.Wait(t, first); exit != 0 {
			t.Errorf("exit status %d: %s", exit, first.Stderr)
		}
	})
}

// Many runs may start at once.
func TestEightRunsAtOnce(t *testing.T) {
	lab := sbxtest.NewLab(t)
	lab.Configure(npmRegistry)
	lab.ServeNPM(t, "npm.test", sbxtest.Package{Name: "pkg", Version: "1.0.0"})
	everyone(t, func(t *testing.T, who sbxtest.User) {
		before := len(runs(t, lab, who))
		script := "for i in 1 2 3 4 5 6 7 8; do (\"$SBX\" exec --profile js-install -- bash -c 'curl -sSf https://npm.test/pkg >/dev/null && curl -s https://unlisted.test/ && echo '$i || echo failed $?) & done; wait"
		got := outside(t, lab, who, script)
		for n := range strings.FieldsSeq("1 2 3 4 5 6 7 8") {
			says(t, "\n"+got.Stdout, "\n"+n+"\n")
		}
		if strings.Contains(got.Stdout+got.Stderr, "failed") {
			t.Errorf("stdout %q, stderr %s", got.Stdout, got.Stderr)
		}
		if n := len(runs(t, lab, who)) - before; n != 8 {
			t.Errorf("%d runs are on record, want 8", n)
		}
		tidy(t, lab, who)
	})
}
