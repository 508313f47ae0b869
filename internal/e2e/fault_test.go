package e2e

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/fractalboxdev/sbx/internal/event"
	"github.com/fractalboxdev/sbx/internal/sbxtest"
)

// faultRow is one thing that goes wrong in one run, and what has to come of it.
type faultRow struct {
	point, mode string   // of SBX_BREAK=fault:POINT:MODE (internal/fence/broken.go)
	flags       []string // of sbx exec, beside key and attestation
	script      string   // of the command; "" for the usual one
	// during is called once sbx stands still at its point, or for another mode than stop
	// once the command has said that it runs; after, when sbx has ended.
	before, during, after func(*testing.T, *faultRun)
	hold                  bool     // the command goes on until it is ended
	only                  []string // of the test's own user: "root"; of the command's: "user"
	loose                 bool     // what is unverified depends on the moment

	exit       int
	kind       event.RefusalKind // "": sandbox-unavailable
	code       string            // a last * stands for anything
	steps      []string          // the refusal names one of them; none: there is no refusal
	unverified []string          // checks of the revoke; every other is verified
	untaken    bool              // the outcome has no revoke: the step was given up
	silent     bool              // sbx was killed: there is no outcome

	spent       bool
	unsure      bool   // spent or not: it depends on the moment
	key         string // what the store has of the call: "", begun, launched or finished, or several with |
	receipted   bool   // the receipt was written, and not noted under the key
	interrupted bool   // the next run writes the receipt
	swept       bool   // the next run says so
	recorded    bool   // there is a directory with a receipt in the end
	ran         []int  // how often the command may have run
	storeless   bool   // the store was destroyed, so nothing is asked of it
}

// faultRun is a row for one user, with a state directory of its own.
type faultRun struct {
	faultRow
	who   sbxtest.User
	lab   *sbxtest.Lab
	name  string // also of the variable ROW inside
	state string // XDG_STATE_HOME

	ended          *event.Result // of the receipt, if that says that the command ended
	cmd            *exec.Cmd
	stdout, stderr *output
	exit           int
}

func (r *faultRun) String() string {
	return r.who.String() + "/" + r.name + "/" + r.point + ":" + r.mode
}

// usual runs until it is ended where the row is called a run's, and leaves something
// running that only the kill ends.
const usual = `#!/bin/sh
echo ran >> ran-$ROW
echo said
setsid sleep 777 &
[ -z "$HOLD" ] || exec sleep 777
`

// faultLab is a lab in which both users have an attestation for ./git push, and a state
// directory to begin each row with.
type faultLab struct {
	*sbxtest.Lab
	t      *testing.T
	broken string
	runs   []*faultRun
}

func newFaultLab(t *testing.T, rows []faultRow) *faultLab {
	t.Helper()
	l := &faultLab{Lab: sbxtest.NewLab(t), t: t, broken: sbxtest.BrokenBinary(t)}
	for _, who := range sbxtest.Everyone() {
		reviewer(t, l.Lab, who)
		l.Configure("") // each has a file of his own
		l.host(who, "template", "sh", "-ec", `mkdir -p ../.config/sbx; echo "allowed_signers = \"$HOME/signers\"" > ../.config/sbx/config.toml`)
		l.Write(who, "git", usual)
		l.host(who, "template", "sbx", "approve", "--key", "../key", "--yes", "-o", "a.json", "--", "./git", "push")
		for i, row := range rows {
			if slices.Contains(row.only, "root") && os.Geteuid() != 0 || slices.Contains(row.only, "user") && who == sbxtest.AsRoot {
				continue
			}
			name := fmt.Sprintf("row%d", i)
			l.runs = append(l.runs, &faultRun{faultRow: row, who: who, lab: l.Lab, name: name, state: l.stateOf(who, name), stdout: newOutput(), stderr: newOutput()})
		}
	}
	return l
}

func (l *faultLab) stateOf(who sbxtest.User, name string) string {
	return filepath.Join(l.Home(who), "states", name)
}

// host runs a command outside, on the state directory of that name.
func (l *faultLab) host(who sbxtest.User, state string, argv ...string) string {
	l.t.Helper()
	cmd := l.Command(l.t, who, argv...)
	cmd.Env = append(cmd.Env, "XDG_STATE_HOME="+l.stateOf(who, state))
	got := l.RunCommand(l.t, who, cmd)
	succeeded(l.t, got)
	return got.Stdout
}

// lay copies the template for each run.
func (l *faultLab) lay(runs []*faultRun) {
	l.t.Helper()
	for _, who := range sbxtest.Everyone() {
		var script strings.Builder
		for _, r := range runs {
			if r.who == who {
				fmt.Fprintf(&script, "mkdir -p -m 700 ../states/%[1]s && cp -r ../states/template/sbx ../states/%[1]s/\n", r.name)
			}
		}
		if script.Len() > 0 {
			l.host(who, "template", "sh", "-ec", script.String())
		}
	}
}

// call is the command line of a row, the same each time.
func (r *faultRun) call() []string {
	script := []string{"./git", "push"}
	flags := []string{"--attestation", "a.json", "--accept-replay"}
	if r.script != "" {
		script, flags = []string{"bash", "-c", r.script}, nil
	}
	hold := ""
	if r.hold {
		hold = "1"
	}
	return slices.Concat([]string{"exec", "--quiet", "--json", "--grace", "1s", "--key", "k", "--env", "ROW=" + r.name, "--env", "HOLD=" + hold}, flags, r.flags, []string{"--"}, script)
}

func (l *faultLab) start(r *faultRun, argv []string, env ...string) {
	l.t.Helper()
	r.cmd = l.Command(l.t, r.who, argv...)
	r.cmd.Env = append(append(r.cmd.Env, "XDG_STATE_HOME="+r.state), env...)
	r.stdout, r.stderr = newOutput(), newOutput()
	r.cmd.Stdout, r.cmd.Stderr = r.stdout, r.stderr
	l.Start(l.t, r.cmd)
}

// fail runs the rows with their faults, all at once.
func (l *faultLab) fail(runs []*faultRun) {
	l.t.Helper()
	l.lay(runs)
	for _, r := range runs {
		l.start(r, append([]string{l.broken}, r.call()...), "SBX_BREAK=fault:"+r.point+":"+r.mode)
	}
	for _, r := range runs {
		if r.during != nil {
			r.during(l.t, r)
		}
	}
	for _, r := range runs {
		r.exit = sbxtest.Wait(l.t, r.cmd)
		if r.after != nil {
			r.after(l.t, r)
		}
	}
}

// standing waits until sbx stands still at its point.
func (r *faultRun) standing(t *testing.T) { t.Helper(); standing(t, r.cmd) }

func standing(t *testing.T, cmd *exec.Cmd) {
	t.Helper()
	eventually(t, 20*time.Second, "sbx stands still", func() bool {
		stat, _ := os.ReadFile(fmt.Sprintf("/proc/%d/stat", cmd.Process.Pid))
		_, rest, _ := bytes.Cut(stat, []byte(") "))
		return bytes.HasPrefix(rest, []byte("T"))
	})
}

// active waits until the run's records are open.
func (r *faultRun) active(t *testing.T) {
	t.Helper()
	eventually(t, 20*time.Second, r.String()+" is active", func() bool {
		entries, err := os.ReadDir(filepath.Join(r.state, "sbx/active"))
		return err == nil && len(entries) > 0
	})
}

// goOn lets sbx go on from where it stands.
func (r *faultRun) goOn(t *testing.T) {
	t.Helper()
	if err := r.cmd.Process.Signal(syscall.SIGCONT); err != nil {
		t.Errorf("%s: %v", r, err)
	}
}

// outcomeHeld compares what sbx said with the row.
func (r *faultRun) outcomeHeld(t *testing.T) {
	t.Helper()
	if r.exit != r.faultRow.exit {
		t.Errorf("%s: exit status %d, want %d\n%s%s", r, r.exit, r.faultRow.exit, r.stdout, r.stderr)
		return
	}
	if r.silent {
		return
	}
	var o outcome
	if err := json.Unmarshal([]byte(r.stdout.String()), &o); err != nil {
		t.Errorf("%s: reading the outcome: %v in %s%s", r, err, r.stdout, r.stderr)
		return
	}
	refusal := o.Receipt.Result.Refusal
	switch {
	case len(r.steps) == 0 && refusal != nil, len(r.steps) > 0 && refusal == nil:
		t.Errorf("%s: the refusal is %+v", r, refusal)
	case refusal != nil:
		if refusal.Kind != cmp.Or(r.kind, event.RefusedSandbox) || !like(r.code, refusal.Code) || !slices.Contains(r.steps, refusal.Step) || refusal.Name != o.Run || refusal.Next == "" || !strings.Contains(r.stderr.String(), "sbx: ") {
			t.Errorf("%s: the refusal is %+v of run %s, want code %q at one of %q\n%s", r, refusal, o.Run, r.code, r.steps, r.stderr)
		}
	}
	r.teardownHeld(t, o.Receipt)
}

// teardownHeld: kill comes before revoke, neither is left out, and what is unverified is
// what failed.
func (r *faultRun) teardownHeld(t *testing.T, receipt event.Receipt) {
	t.Helper()
	at := map[string]int{}
	for i, s := range receipt.Steps {
		at[s.Name] = i + 1
	}
	switch {
	case r.untaken && (at["kill"] == 0 || at["revoke"] > 0):
		t.Errorf("%s: given up, its steps are %+v", r, receipt.Steps)
	case !r.untaken && (at["kill"] == 0 || at["revoke"] < at["kill"]):
		t.Errorf("%s: its steps are %+v", r, receipt.Steps)
	}
	var unverified []string
	for _, c := range receipt.Revoke {
		if c.Verified {
			continue
		}
		unverified = append(unverified, c.What)
		if loud := strings.Contains(r.stderr.String(), c.What+": "+c.Detail); !loud && !r.untaken && r.code != "step-hangs" {
			t.Errorf("%s: nothing is said of %q: %s", r, c.What, r.stderr)
		}
	}
	if !r.loose && !slices.Equal(unverified, r.unverified) {
		t.Errorf("%s: unverified are %q, want %q", r, unverified, r.unverified)
	}
}

// remembered is what a store has of a row.
type remembered struct {
	Spent   int
	Calls   []string
	Tickets int
}

// memories reads the stores of all runs of a user.
func (l *faultLab) memories(runs []*faultRun) map[string]remembered {
	l.t.Helper()
	const script = `
import json, sqlite3, sys
out = {}
for path in sys.argv[1:]:
    c = sqlite3.connect("file:" + path + "/sbx/store.db?mode=ro", uri=True, timeout=10)
    out[path] = {"Spent": c.execute("SELECT count(*) FROM spent").fetchone()[0], "Tickets": c.execute("SELECT count(*) FROM tickets").fetchone()[0],
        "Calls": [("finished" if f else "launched" if l else "begun") for l, f in c.execute("SELECT launched_at, finished_at FROM calls")]}
print(json.dumps(out))`
	all := map[string]remembered{}
	for _, who := range sbxtest.Everyone() {
		args := []string{"/usr/bin/python3", "-c", script}
		for _, r := range runs {
			if r.who == who && !r.storeless {
				args = append(args, r.state)
			}
		}
		if err := json.Unmarshal([]byte(l.host(who, "template", args...)), &all); err != nil {
			l.t.Fatal(err)
		}
	}
	return all
}

// like reports whether a code is the wanted one.
func like(want, code string) bool {
	start, any := strings.CutSuffix(want, "*")
	return code == want || any && strings.HasPrefix(code, start)
}

func (r *faultRun) storeHeld(t *testing.T, m remembered) {
	t.Helper()
	if r.storeless {
		return
	}
	if (m.Spent > 0) != r.spent && !r.unsure {
		t.Errorf("%s: %d attestations are spent, want spent: %v", r, m.Spent, r.spent)
	}
	key := strings.Join(m.Calls, " ")
	if !slices.Contains(strings.Split(r.key, "|"), key) {
		t.Errorf("%s: the call under the key is %q, want %q", r, key, r.key)
	}
	r.key = key
	ran, _ := os.ReadFile(filepath.Join(r.lab.Project(r.who), "ran-"+r.name))
	n := strings.Count(string(ran), "ran\n")
	if !slices.Contains(r.ran, n) || n > 0 && m.Spent == 0 && r.script == "" {
		t.Errorf("%s: the command ran %d times, want one of %v; %d attestations are spent", r, n, r.ran, m.Spent)
	}
}

// tidyUp lets the next run look after each row, and nothing is left after it.
func (l *faultLab) tidyUp(runs []*faultRun) {
	l.t.Helper()
	for _, r := range runs {
		l.start(r, []string{"sbx", "exec", "--", "true"})
	}
	for _, r := range runs {
		if exit := sbxtest.Wait(l.t, r.cmd); exit != 0 {
			l.t.Errorf("%s: the run afterwards: exit status %d, %s", r, exit, r.stderr)
		}
		if swept := strings.Contains(r.stderr.String(), "swept run"); swept != r.swept && !r.storeless && !r.loose {
			l.t.Errorf("%s: swept by the next run: %v, want %v: %s", r, swept, r.swept, r.stderr)
		}
	}
	left := l.memories(runs)
	for _, r := range runs {
		if n := left[r.state].Tickets; n > 0 {
			l.t.Errorf("%s: %d tickets are left", r, n)
		}
		r.directoriesHeld(l.t)
	}
}

// directoriesHeld: no entry of an active run, no scratch, nobody in a queue, and the
// receipt of the run, if it had begun to record.
func (r *faultRun) directoriesHeld(t *testing.T) {
	t.Helper()
	r.lab.Within(t, func() error {
		for _, pattern := range []string{"active/*", "scratch/*", "gates/wait.*"} {
			if left, _ := filepath.Glob(filepath.Join(r.state, "sbx", pattern)); len(left) > 0 {
				t.Errorf("%s: left: %v", r, left)
			}
		}
		dirs, _ := filepath.Glob(filepath.Join(r.state, "sbx/runs/*"))
		recorded, interrupted := 0, 0
		for _, dir := range dirs {
			var receipt event.Receipt
			text, err := os.ReadFile(filepath.Join(dir, "receipt.json"))
			if err != nil || json.Unmarshal(text, &receipt) != nil {
				t.Errorf("%s: the receipt of %s: %v %s", r, dir, err, text)
			}
			recorded++
			if receipt.Interrupted {
				interrupted++
			}
			if receipt.Result.Ended && len(receipt.Command) > 1 { // that of the tidying is "true"
				r.ended = &receipt.Result
			}
		}
		// The run that tidied up is one of them.
		if r.receipted && r.ended == nil {
			t.Errorf("%s: no receipt says that its command ended", r)
		}
		if !r.storeless && !r.loose && ((recorded > 1) != r.recorded || (interrupted == 1) != r.interrupted) {
			t.Errorf("%s: %d runs are recorded, %d interrupted, want its own: %v, interrupted: %v", r, recorded, interrupted, r.recorded, r.interrupted)
		}
		return nil
	})
}

// machine is what is left of nothing: the lab's mounts and listeners.
func (l *faultLab) machine() []string {
	l.t.Helper()
	all := l.Mounts()
	l.Within(l.t, func() error {
		for _, table := range []string{"tcp", "tcp6", "unix"} {
			text, err := os.ReadFile("/proc/thread-self/net/" + table)
			if err != nil {
				return err
			}
			for line := range strings.Lines(string(text)) {
				const listening, abstract = " 0A ", "@"
				if strings.Contains(line, listening) || strings.Contains(line, abstract) {
					all = append(all, strings.TrimSpace(line))
				}
			}
		}
		return nil
	})
	return all
}

// hold goes through the rows, some at a time.
func (l *faultLab) hold(size int) {
	l.t.Helper()
	slices.SortStableFunc(l.runs, func(a, b *faultRun) int { return cmp.Compare(a.mode, b.mode) }) // those that hang wait together
	for runs := range slices.Chunk(l.runs, size) {
		for _, r := range runs {
			if r.before != nil {
				r.before(l.t, r)
			}
		}
		before := l.machine()
		l.fail(runs)
		nobodyRuns(l.t)
		if now := l.machine(); !slices.Equal(now, before) {
			l.t.Errorf("of the machine there was %q, is %q", before, now)
		}
		memories := l.memories(runs)
		var ids []string
		for _, r := range runs {
			r.outcomeHeld(l.t)
			r.storeHeld(l.t, memories[r.state])
			dirs, _ := filepath.Glob(filepath.Join(r.state, "sbx/runs/*"))
			for _, dir := range dirs {
				ids = append(ids, filepath.Base(dir))
			}
		}
		l.tidyUp(runs)
		nothingNamed(l.t, ids)
		l.again(runs)
	}
}

// again makes the same calls once more: what was never begun runs, what finished is
// answered, also from a receipt that was not noted under the key, and what may have done
// its work is not done again.
func (l *faultLab) again(runs []*faultRun) {
	l.t.Helper()
	runs = slices.DeleteFunc(slices.Clone(runs), func(r *faultRun) bool {
		return r.storeless || r.script != "" || r.hold && r.key != "launched"
	})
	for _, r := range runs {
		l.start(r, append([]string{"sbx"}, r.call()...))
	}
	for _, r := range runs {
		exit := sbxtest.Wait(l.t, r.cmd)
		var o outcome
		if err := json.Unmarshal([]byte(r.stdout.String()), &o); err != nil {
			l.t.Errorf("%s: the same call again: %v in %s%s", r, err, r.stdout, r.stderr)
			continue
		}
		switch refusal := o.Receipt.Result.Refusal; {
		case r.key == "finished" && (!o.Receipt.Deduped || exit != r.faultRow.exit):
			l.t.Errorf("%s: the same call again: exit status %d, deduped %v, %+v", r, exit, o.Receipt.Deduped, refusal)
		case r.key == "launched" && r.ended != nil && (!o.Receipt.Deduped || exit != r.ended.Exit):
			l.t.Errorf("%s: the same call again: exit status %d, want %d; deduped %v, %+v", r, exit, r.ended.Exit, o.Receipt.Deduped, refusal)
		case r.key == "launched" && r.ended == nil && (refusal == nil || refusal.Code != "outcome-unknown"):
			l.t.Errorf("%s: the same call again: exit status %d, %+v", r, exit, refusal)
		case (r.key == "" || r.key == "begun") && (exit != 0 || o.Receipt.Deduped):
			l.t.Errorf("%s: the same call again: exit status %d, deduped %v, %+v", r, exit, o.Receipt.Deduped, refusal)
		}
	}
}
