package e2e

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
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

// oneTask is a configuration in which one run of the usual class goes on at a time.
const oneTask = "[class.task]\ncap = 1\n"

// held is a run that goes on until it is let go.
type held struct {
	*exec.Cmd
	out, err *output
	end      *os.File
}

// hold starts a run that keeps its slot, and waits until it has it.
func hold(t *testing.T, lab *sbxtest.Lab, who sbxtest.User, flags ...string) *held {
	t.Helper()
	h := begin(t, lab, who, "echo ready; read -r line; true", flags...)
	h.out.until(t, "ready\n")
	return h
}

// begin starts a run with a script.
func begin(t *testing.T, lab *sbxtest.Lab, who sbxtest.User, script string, flags ...string) *held {
	t.Helper()
	cmd := lab.Command(t, who, slices.Concat([]string{"sbx", "exec"}, flags, []string{"--", "bash", "-c", script})...)
	in, end := pipe(t)
	h := &held{cmd, newOutput(), newOutput(), end}
	cmd.Stdin, cmd.Stdout, cmd.Stderr = in, h.out, h.err
	lab.Start(t, cmd)
	return h
}

func (h *held) letGo(t *testing.T) {
	t.Helper()
	if err := h.end.Close(); err != nil {
		t.Fatal(err)
	}
	h.succeeds(t)
}

func (h *held) succeeds(t *testing.T) {
	t.Helper()
	if exit := sbxtest.Wait(t, h.Cmd); exit != 0 {
		t.Errorf("exit status %d, stdout %s, stderr %s", exit, h.out, h.err)
	}
}

// pools is what pool status says.
type pools struct {
	Pools []struct {
		Class             string
		Cap, Busy, Queued int
	}
	Runs []struct {
		Run, Consumer string
		Waiting       bool
	}
}

func poolStatus(t *testing.T, lab *sbxtest.Lab, who sbxtest.User) (p pools) {
	t.Helper()
	got := lab.Run(t, who, "sbx", "pool", "status", "--json")
	succeeded(t, got)
	if err := json.Unmarshal([]byte(got.Stdout), &p); err != nil {
		t.Fatal(err)
	}
	return p
}

// idle fails the test when somebody holds a slot, waits for one, or left a place in a
// queue behind.
func idle(t *testing.T, lab *sbxtest.Lab, who sbxtest.User) {
	t.Helper()
	if p := poolStatus(t, lab, who); len(p.Runs) > 0 {
		t.Errorf("left in the pools: %+v", p.Runs)
	}
	entries, err := os.ReadDir(filepath.Join(lab.StateDir(who), "gates"))
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if !strings.HasPrefix(e.Name(), "slot.") {
			t.Errorf("left: %s", e.Name())
		}
	}
}

func TestVector36_AFullPoolRefusesAtOnceAndLeavesNothing(t *testing.T) {
	lab := sbxtest.NewLab(t)
	lab.Configure(oneTask)
	everyone(t, func(t *testing.T, who sbxtest.User) {
		holder := hold(t, lab, who)
		before, mounts := runs(t, lab, who), lab.Mounts()
		got := run(t, lab, who, "--json", "--", "touch", "ran")
		refused(t, got, "the pool of class task is full: 1 of 1 slots are held", "--queue", "sbx pool status")
		var outcome struct {
			Result event.Result
		}
		if err := json.Unmarshal([]byte(got.Stdout), &outcome); err != nil {
			t.Fatalf("%v in %s", err, got.Stdout)
		}
		r := outcome.Result.Refusal
		if r == nil || r.Kind != event.RefusedAdmission || r.PoolState == nil || *r.PoolState != (event.PoolState{Class: "task", Busy: 1, Cap: 1}) {
			t.Errorf("the refusal is %+v", r)
		}
		if now := runs(t, lab, who); !slices.Equal(now, before) {
			t.Errorf("runs were %q, are %q", before, now)
		}
		if now := lab.Mounts(); !slices.Equal(now, mounts) {
			t.Errorf("mounts were %q, are %q", mounts, now)
		}
		if _, err := os.Stat(filepath.Join(lab.Project(who), "ran")); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("the command ran: %v", err)
		}
		if p := poolStatus(t, lab, who); len(p.Runs) != 1 || p.Runs[0].Waiting {
			t.Errorf("status is %+v", p)
		}
		holder.letGo(t)
		succeeded(t, run(t, lab, who, "--", "true"))
		idle(t, lab, who)
		nobodyRuns(t)
	})
}

func TestVector37_TheEarlierWaiterIsAdmitted(t *testing.T) {
	lab := sbxtest.NewLab(t)
	lab.Configure(oneTask)
	everyone(t, func(t *testing.T, who sbxtest.User) {
		holder := hold(t, lab, who)
		var waiters []*held
		for i, name := range []string{"first", "second", "third"} {
			w := begin(t, lab, who, "echo "+name+" >>order", "--queue")
			w.err.until(t, []string{"next in the queue", "1 ahead in the queue", "2 ahead in the queue"}[i])
			waiters = append(waiters, w)
		}
		refused(t, run(t, lab, who, "--", "true"), "1 of 1 slots are held, 3 runs wait")
		holder.letGo(t)
		for _, w := range waiters {
			w.succeeds(t)
		}
		order, err := os.ReadFile(filepath.Join(lab.Project(who), "order"))
		if err != nil || string(order) != "first\nsecond\nthird\n" {
			t.Errorf("they ran in the order %q, %v", order, err)
		}
		var r event.Receipt
		must(t, json.Unmarshal(run(t, lab, who, "--", "true").File(t, "receipt.json"), &r))
		if a := r.Admission; a == nil || a.Class != "task" || a.Cap != 1 || a.Slot != 0 || a.Ahead != 0 || a.AskedAt.IsZero() || a.AdmittedAt.Before(a.AskedAt) {
			t.Errorf("the receipt says %+v", a)
		}
		idle(t, lab, who)
	})
}

// A waiter that gives up, by itself or by a signal, leaves nothing, and those behind
// it move up.
func TestWaitersGiveUp(t *testing.T) {
	lab := sbxtest.NewLab(t)
	lab.Configure(oneTask)
	everyone(t, func(t *testing.T, who sbxtest.User) {
		holder := hold(t, lab, who)
		refused(t, run(t, lab, who, "--wait", "50ms", "--", "true"), "no slot of class task came free within 50ms", "--wait")
		interrupted, killed := begin(t, lab, who, "true", "--queue"), begin(t, lab, who, "true", "--queue")
		interrupted.err.until(t, "in the queue")
		killed.err.until(t, "in the queue")
		last := begin(t, lab, who, "true", "--queue")
		last.err.until(t, "2 ahead in the queue")
		for w, signal := range map[*held]syscall.Signal{interrupted: syscall.SIGINT, killed: syscall.SIGKILL} {
			if err := w.Process.Signal(signal); err != nil {
				t.Fatal(err)
			}
			_ = sbxtest.Wait(t, w.Cmd)
		}
		says(t, interrupted.err.String(), "stopped after waiting")
		last.err.until(t, "next in the queue")
		holder.letGo(t)
		last.succeeds(t)
		idle(t, lab, who)
		nobodyRuns(t)
	})
}

// Whenever sbx is killed, its slot is free at once, and the next run names it.
func TestBypass78_AKilledRunsSlotIsFreeAtOnce(t *testing.T) {
	lab := sbxtest.NewLab(t)
	lab.Configure(oneTask)
	everyone(t, func(t *testing.T, who sbxtest.User) {
		holder := hold(t, lab, who)
		if err := holder.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		_ = sbxtest.Wait(t, holder.Cmd)
		next := run(t, lab, who, "--", "true")
		succeeded(t, next)
		says(t, next.Stderr, "freed its slot of class task")
		for range 12 {
			cmd := lab.Command(t, who, "sbx", "exec", "--", "sleep", "60")
			lab.Start(t, cmd)
			moment := time.NewTimer(time.Duration(rand.Int64N(int64(60 * time.Millisecond))))
			<-moment.C
			if err := cmd.Process.Kill(); err != nil {
				t.Fatal(err)
			}
			_ = sbxtest.Wait(t, cmd)
			succeeded(t, run(t, lab, who, "--", "true"))
		}
		idle(t, lab, who)
		nobodyRuns(t)
	})
}

// inStore runs statements on the user's store, as the user.
func inStore(t *testing.T, lab *sbxtest.Lab, who sbxtest.User, statements string) {
	t.Helper()
	const script = "import sqlite3, sys; c = sqlite3.connect(sys.argv[1], timeout=20); c.executescript(sys.argv[2]); c.close()"
	succeeded(t, lab.Run(t, who, "/usr/bin/python3", "-c", script, filepath.Join(lab.StateDir(who), "store.db"), statements))
}

// A place in the queue that was changed into another pool's or another run's, or taken
// away, starts nothing; nor does a slot that was lost go unnoticed.
func TestVector35_AChangedTicketStartsNothing(t *testing.T) {
	lab := sbxtest.NewLab(t)
	lab.Configure(oneTask)
	everyone(t, func(t *testing.T, who sbxtest.User) {
		for name, change := range map[string]string{
			"other pool":    "UPDATE tickets SET class = 'lean' WHERE slot IS NULL",
			"other run":     "UPDATE tickets SET run = 'r1' WHERE slot IS NULL",
			"other sandbox": "UPDATE tickets SET sandbox = 'kept' WHERE slot IS NULL",
			"none":          "DELETE FROM tickets WHERE slot IS NULL",
		} {
			holder := hold(t, lab, who)
			waiter := begin(t, lab, who, "touch ran", "--queue", "--outcome", "outcome")
			waiter.err.until(t, "next in the queue")
			inStore(t, lab, who, change)
			holder.letGo(t)
			if exit := sbxtest.Wait(t, waiter.Cmd); exit != 125 {
				t.Errorf("%s: exit status %d", name, exit)
			}
			outcome := filepath.Join(lab.Project(who), "outcome")
			text, err := os.ReadFile(outcome)
			if err != nil || !strings.Contains(string(text), `"ticket-rejected"`) {
				t.Errorf("%s: %s, %v", name, text, err)
			}
			if err := os.Remove(outcome); err != nil {
				t.Error(err)
			}
			if _, err := os.Stat(filepath.Join(lab.Project(who), "ran")); !errors.Is(err, fs.ErrNotExist) {
				t.Errorf("%s: the command ran: %v", name, err)
			}
			inStore(t, lab, who, "DELETE FROM tickets")
		}
		holder := hold(t, lab, who)
		inStore(t, lab, who, "DELETE FROM tickets")
		if err := holder.end.Close(); err != nil {
			t.Fatal(err)
		}
		if exit := sbxtest.Wait(t, holder.Cmd); exit != 125 {
			t.Errorf("exit status %d", exit)
		}
		says(t, holder.err.String(), "the revoke could not be verified: lease released")
	})
}

// Ten installs at once on a machine where two may run all succeed, two at a time and
// in the order in which they asked.
func TestAQueueOfTenInstalls(t *testing.T) {
	lab := sbxtest.NewLab(t)
	lab.ServeNPM(t, "npm.test", sbxtest.Package{Name: "widget", Version: "1.0.0", Files: map[string]string{"index.js": "module.exports = 1\n"}})
	lab.Configure(npmRegistry + "\n[class.task]\ncap = 2\n")
	everyone(t, func(t *testing.T, who sbxtest.User) {
		lab.Write(who, "package.json", `{"name": "root", "version": "1.0.0", "dependencies": {"widget": "1.0.0"}}`)
		succeeded(t, run(t, lab, who, "--profile", "js-install", "--", "npm", "install", "--no-audit"))
		before := runs(t, lab, who)
		var installs []*held
		for i := range 10 {
			dir := fmt.Sprintf("p%d", i)
			succeeded(t, lab.Run(t, who, "bash", "-c", "mkdir "+dir+" && cp package.json package-lock.json "+dir))
			h := &held{Cmd: lab.Command(t, who, "sbx", "exec", "--queue", "-C", dir, "--profile", "js-install", "--", "npm", "ci", "--no-audit"), out: newOutput(), err: newOutput()}
			h.Stdout, h.Stderr = h.out, h.err
			lab.Start(t, h.Cmd)
			installs = append(installs, h)
		}
		for i, h := range installs {
			h.succeeds(t)
			if _, err := os.Stat(filepath.Join(lab.Project(who), fmt.Sprintf("p%d/node_modules/widget/index.js", i))); err != nil {
				t.Error(err)
			}
		}
		inOrder(t, receiptsOf(t, lab, who, before), 2)
		idle(t, lab, who)
	})
}

// receiptsOf are the receipts of the runs that came after others.
func receiptsOf(t *testing.T, lab *sbxtest.Lab, who sbxtest.User, before []string) (all []event.Receipt) {
	t.Helper()
	for _, id := range runs(t, lab, who) {
		if slices.Contains(before, id) {
			continue
		}
		text, err := os.ReadFile(filepath.Join(lab.StateDir(who), "runs", id, "receipt.json"))
		var r event.Receipt
		must(t, err, json.Unmarshal(text, &r))
		all = append(all, r)
	}
	return all
}

// inOrder checks that who asked first was admitted first, and only after enough of the
// others had ended.
func inOrder(t *testing.T, all []event.Receipt, limit int) {
	t.Helper()
	slices.SortFunc(all, func(a, b event.Receipt) int { return a.Admission.AskedAt.Compare(b.Admission.AskedAt) })
	var ended []time.Time // of the commands
	for i, r := range all {
		if i > 0 && r.Admission.AdmittedAt.Before(all[i-1].Admission.AdmittedAt) {
			t.Errorf("%s was admitted before %s, which had asked first", r.Run, all[i-1].Run)
		}
		slices.SortFunc(ended, time.Time.Compare)
		if i >= limit && r.Admission.AdmittedAt.Before(ended[i-limit]) {
			t.Errorf("%s was admitted while %d others ran", r.Run, limit)
		}
		for _, s := range r.Steps {
			if s.Name == "kill" {
				ended = append(ended, s.StartedAt)
			}
		}
	}
}
