package e2e

import (
	"encoding/json"
	"net/http"
	"strings"
	"testing"

	"github.com/fractalboxdev/sbx/internal/event"
	"github.com/fractalboxdev/sbx/internal/sbxtest"
)

// rolled runs a script under a run name and returns its receipt.
func rolled(t *testing.T, lab *sbxtest.Lab, who sbxtest.User, script string, flags ...string) (sbxtest.Result, event.Receipt) {
	t.Helper()
	got := shell(t, lab, who, script, append([]string{"--run-name", "nightly"}, flags...)...)
	var r event.Receipt
	if err := json.Unmarshal(got.File(t, "receipt.json"), &r); err != nil {
		t.Fatal(err)
	}
	return got, r
}

// A grant comes to be enforced by a report window without news and a person's word, and
// whatever it is at is said on every run.
func TestRolloutGraduatesAfterAQuietWindow(t *testing.T) {
	lab := sbxtest.NewLab(t)
	lab.Serve("unlisted.test", http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("answer\n")) }))
	everyone(t, func(t *testing.T, who sbxtest.User) {
		const ask = "curl -s http://unlisted.test/a; true"
		got, r := rolled(t, lab, who, ask)
		printed(t, got, "")
		if r.Position != "enforce" || r.Rollout != nil {
			t.Fatalf("without a rollout: %s %+v", r.Position, r.Rollout)
		}
		host(t, lab, who, 0, "sbx", "rollout", "start", "nightly", "--kind", "lean", "--yes")
		got, r = rolled(t, lab, who, ask)
		printed(t, got, "answer\n")
		says(t, got.Stderr, "WARNING: position report", "(rollout nightly, since", "moved down from enforce")
		if o := r.Rollout; r.Position != "report" || o == nil || o.Position != "report" || o.From != "enforce" || o.News != 1 || o.WindowEnds.Sub(r.StartedAt).Hours() < 23 {
			t.Fatalf("%s %+v", r.Position, o)
		}
		if _, r = rolled(t, lab, who, ask); r.Rollout.News != 0 {
			t.Errorf("a known row is news: %+v", r.Rollout)
		}
		if got, r = rolled(t, lab, who, ask, "--position", "enforce"); got.Stdout != "" || r.Position != "enforce" || r.Rollout.Position != "report" {
			t.Errorf("%q at %s, %+v", got.Stdout, r.Position, r.Rollout)
		}
		says(t, host(t, lab, who, 0, "sbx", "rollout", "confirm", "nightly", "--yes"), "unlisted.test")
		refusedStep(t, lab, who, "report window without news")
		age(t, lab, who)
		if _, r = rolled(t, lab, who, "curl -s http://unlisted.test/b; true"); r.Rollout.News != 1 {
			t.Errorf("%+v", r.Rollout)
		}
		refusedStep(t, lab, who, "report window without news", "confirmation")
		host(t, lab, who, 0, "sbx", "rollout", "confirm", "nightly", "--yes")
		age(t, lab, who)
		refusedStep(t, lab, who, "a run in the report window")
		if _, r = rolled(t, lab, who, ask); r.Rollout.News != 0 {
			t.Errorf("a known row is news: %+v", r.Rollout)
		}
		host(t, lab, who, 0, "sbx", "rollout", "graduate", "nightly")
		got, r = rolled(t, lab, who, ask)
		printed(t, got, "")
		if r.Position != "enforce" || r.Rollout == nil || r.Rollout.Position != "enforce" || strings.Contains(got.Stderr, "WARNING") {
			t.Errorf("%s %+v %s", r.Position, r.Rollout, got.Stderr)
		}
		host(t, lab, who, 0, "sbx", "rollout", "revert", "nightly")
	})
}

func refusedStep(t *testing.T, lab *sbxtest.Lab, who sbxtest.User, words ...string) {
	t.Helper()
	refused(t, lab.Run(t, who, "sbx", "rollout", "graduate", "nightly"), words...)
}

// age lets two days pass for the rollout.
func age(t *testing.T, lab *sbxtest.Lab, who sbxtest.User) {
	t.Helper()
	host(t, lab, who, 0, "/usr/bin/python3", "-c", `
import json, sqlite3, sys, datetime
db = sqlite3.connect(sys.argv[1], timeout=10)
r = json.loads(db.execute("SELECT record FROM rollouts WHERE name = 'nightly'").fetchone()[0])
opened = datetime.datetime.fromisoformat(r["window_opened"][:19]) - datetime.timedelta(days=2)
r["window_opened"] = opened.isoformat() + "Z"
db.execute("UPDATE rollouts SET record = ? WHERE name = 'nightly'", (json.dumps(r),))
db.commit()`, storeOf(lab, who))
}

// storeOf is the user's store as a process of the lab sees it.
func storeOf(lab *sbxtest.Lab, who sbxtest.User) string {
	if who == sbxtest.AsRoot {
		return "/var/lib/sbx/store.db"
	}
	return lab.StateDir(who) + "/store.db"
}

// What a run that was killed would have been denied is not known: it is in the way of
// graduating, and when the next run has swept it the window begins anew.
func TestRolloutKnowsOfKilledRuns(t *testing.T) {
	lab := sbxtest.NewLab(t)
	everyone(t, func(t *testing.T, who sbxtest.User) {
		host(t, lab, who, 0, "sbx", "rollout", "start", "nightly", "--kind", "lean", "--yes")
		rolled(t, lab, who, "true")
		host(t, lab, who, 0, "sbx", "rollout", "confirm", "nightly", "--yes")
		age(t, lab, who)
		cmd := lab.Command(t, who, "sbx", "exec", "--run-name", "nightly", "--", "sh", "-c", "echo ready; sleep 777")
		stdout := newOutput()
		cmd.Stdout, cmd.Stderr = stdout, newOutput()
		mounts := lab.Mounts()
		lab.Start(t, cmd)
		stdout.until(t, "ready\n")
		refusedStep(t, lab, who, "has not ended")
		killed(t, lab, cmd, cmd.Process.Pid, mounts)
		refusedStep(t, lab, who, "has not ended", "the next run sweeps it")
		succeeded(t, run(t, lab, who, "--", "true"))
		refusedStep(t, lab, who, "report window without news")
		says(t, host(t, lab, who, 0, "sbx", "rollout", "status", "nightly"), "opened", "by a run that was killed")
		host(t, lab, who, 0, "sbx", "rollout", "revert", "nightly")
	})
}

// A run that stands as under way when nothing of it is left, as where it was swept by
// somebody who could not tell its rollout, is not in the way for good.
func TestRolloutHearsOfRunsThatAreGone(t *testing.T) {
	lab := sbxtest.NewLab(t)
	everyone(t, func(t *testing.T, who sbxtest.User) {
		begin := func() (id string, end func()) {
			cmd := lab.Command(t, who, "sbx", "exec", "--run-name", "nightly", "--", "sh", "-c", "echo ready; read x")
			stdin, err := cmd.StdinPipe()
			if err != nil {
				t.Fatal(err)
			}
			stdout := newOutput()
			cmd.Stdout, cmd.Stderr = stdout, newOutput()
			lab.Start(t, cmd)
			stdout.until(t, "ready\n")
			id = strings.TrimSpace(host(t, lab, who, 0, "sh", "-c", sbxtest.Binary(t)+" ps --json | sed -n 's/.*\"run\": \"\\(.*\\)\".*/\\1/p'"))
			return id, func() { _ = stdin.Close(); sbxtest.Wait(t, cmd) }
		}
		gone := func() {
			id, end := begin()
			host(t, lab, who, 0, "sbx", "kill", "--force", id)
			end()
			refusedStep(t, lab, who, id+" has not ended", "the next run sweeps it")
			says(t, host(t, lab, who, 0, "sbx", "state", "check"), "run "+id+" is gone and its rollout still waits for it")
		}
		heard := func() {
			refusedStep(t, lab, who, "it lacks a report window without news")
			says(t, host(t, lab, who, 0, "sbx", "rollout", "status", "nightly"), "by a run that was killed or could not tell its rows")
			if got := host(t, lab, who, 0, "sbx", "state", "check"); strings.Contains(got, "waits for it") {
				t.Errorf("still noted: %s", got)
			}
		}
		host(t, lab, who, 0, "sbx", "rollout", "start", "nightly", "--kind", "lean", "--yes")
		rolled(t, lab, who, "true")
		gone()
		succeeded(t, run(t, lab, who, "--", "true"))
		heard()
		gone()
		host(t, lab, who, 0, "sbx", "state", "migrate")
		heard()

		// One that lives is left alone, and is none of a rollout that begins anew.
		id, end := begin()
		succeeded(t, run(t, lab, who, "--", "true"))
		host(t, lab, who, 0, "sbx", "state", "migrate")
		refusedStep(t, lab, who, id+" has not ended")
		host(t, lab, who, 0, "sbx", "rollout", "start", "nightly", "--kind", "lean", "--yes")
		refusedStep(t, lab, who, "it lacks a run under report")
		end()
		refusedStep(t, lab, who, "it lacks a run under report")
		host(t, lab, who, 0, "sbx", "rollout", "revert", "nightly")
	})
}

// A row that comes while a person looks at the others is not confirmed with them.
func TestRolloutConfirmsOnlyWhatWasShown(t *testing.T) {
	lab := sbxtest.NewLab(t)
	everyone(t, func(t *testing.T, who sbxtest.User) {
		confirmed := func() string {
			return host(t, lab, who, 0, "sh", "-c", sbxtest.Binary(t)+" rollout status nightly | sed -n 's/^confirmed *//p'")
		}
		host(t, lab, who, 0, "sbx", "rollout", "start", "nightly", "--kind", "lean", "--yes")
		rolled(t, lab, who, "curl -s http://seen.test/; true")
		term := onTerminal(t, lab, who, "rollout", "confirm", "nightly")
		term.screen.until(t, "type yes: ")
		says(t, term.screen.String(), "seen.test")
		rolled(t, lab, who, "curl -s http://unseen.test/; true")
		term.press(t, "yes\r")
		term.ends(t, 125)
		term.screen.until(t, "is not what was shown any more")
		if got := confirmed(); got != "-\n" {
			t.Errorf("confirmed: %s", got)
		}
		term = onTerminal(t, lab, who, "rollout", "confirm", "nightly")
		term.screen.until(t, "type yes: ")
		says(t, term.screen.String(), "seen.test", "unseen.test")
		term.press(t, "yes\r")
		term.ends(t, 0)
		if got := confirmed(); got == "-\n" {
			t.Error("it was looked at, and is not confirmed")
		}
		host(t, lab, who, 0, "sbx", "rollout", "revert", "nightly")
	})
}
