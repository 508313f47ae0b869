package artifact

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/fractalboxdev/sbx/internal/event"
)

func enterRun(t *testing.T, state string, age time.Duration) *Run {
	t.Helper()
	now := time.Now()
	r, err := Open(Options{StateDir: state, RunID: NewID(now), Grace: 3 * time.Second, Started: event.Receipt{
		Consumer: "ann", Command: []string{"make", "test"}, Profiles: []string{"js-install"}, StartedAt: now.Add(-age).UTC(),
	}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(r.Close)
	return r
}

func TestOnlyLivingRunsAreListed(t *testing.T) {
	state := filepath.Join(t.TempDir(), "state")
	if runs, err := List(state); err != nil || len(runs) != 0 {
		t.Errorf("without a directory: %v, %v", runs, err)
	}
	young, old := enterRun(t, state, time.Minute), enterRun(t, state, time.Hour)
	if err := os.WriteFile(filepath.Join(state, activeDir, "20200101t000000-dead"), []byte(`{"pid":1}`), 0o600); err != nil {
		t.Fatal(err)
	}
	runs, err := List(state)
	if err != nil || len(runs) != 2 || runs[0].Run != old.ID() || runs[1].Run != young.ID() {
		t.Fatalf("%v, listed %+v", err, runs)
	}
	r := runs[0]
	if r.Consumer != "ann" || strings.Join(r.Command, " ") != "make test" || r.Profiles[0] != "js-install" || r.PID != os.Getpid() || r.Grace != 3*time.Second || r.Directory != old.Dir() {
		t.Errorf("listed %+v", r)
	}
	if err := r.SameProcesses(); err != nil {
		t.Error(err)
	}
	if err := CheckSupervisor(state, r); err != nil {
		t.Error(err)
	}
	other := r
	if other.PIDStarted++; !errors.Is(CheckSupervisor(state, other), ErrEnded) {
		t.Error("a process that started at another time is taken for the supervisor")
	}
	if err := old.Finish(event.Receipt{}); err != nil {
		t.Fatal(err)
	}
	for _, id := range []string{old.ID(), "20200101t000000-dead", "20200101t000000-none"} {
		if err := CheckSupervisor(state, Living{Run: id, Supervisor: r.Supervisor}); !errors.Is(err, ErrEnded) {
			t.Errorf("%s: %v, want that it has ended", id, err)
		}
	}
	if err := CheckSupervisor(state, Living{Run: "../x", Supervisor: r.Supervisor}); err == nil || errors.Is(err, ErrEnded) {
		t.Errorf("a path for an id: %v", err)
	}
	if runs, err := List(state); err != nil || len(runs) != 1 {
		t.Errorf("%v, left are %+v", err, runs)
	}
	// To list is not to sweep, nor in the way of one.
	if swept, err := Sweep(state, nil); err != nil || len(swept) != 1 || swept[0].Run != "20200101t000000-dead" {
		t.Errorf("%v, swept %+v", err, swept)
	}
}

// A run that has just been entered has not said anything yet, and may not be hit.
func TestRunThatSaysNothingYet(t *testing.T) {
	state := filepath.Join(t.TempDir(), "state")
	r := enterRun(t, state, 0)
	if err := os.Truncate(filepath.Join(state, activeDir, r.ID()), 0); err != nil {
		t.Fatal(err)
	}
	runs, err := List(state)
	if err != nil || len(runs) != 1 || runs[0].Run != r.ID() || runs[0].PID != 0 {
		t.Fatalf("%v, listed %+v", err, runs)
	}
	if err := runs[0].SameProcesses(); err == nil {
		t.Error("a pid that was not said may be used")
	}
}

func TestPIDOfAnotherPlaceIsRefused(t *testing.T) {
	here := Living{Run: "r", Supervisor: supervisor(0)}
	if err := here.SameProcesses(); err != nil {
		t.Fatal(err)
	}
	container, machine, none := here, here, here
	container.PIDNamespace++
	machine.Boot = "00000000-0000-0000-0000-000000000000"
	none.PID = -1
	for want, run := range map[string]Living{"another container": container, "another machine": machine, "is starting": none} {
		if err := run.SameProcesses(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
}

// Who finds a run dead looks at what its command left when the last process is gone.
func TestBypass46_SweepAwaitsTheEndOfWhatIsInside(t *testing.T) {
	state := filepath.Join(t.TempDir(), "state")
	r := enterRun(t, state, 0)
	first := exec.CommandContext(t.Context(), "cat") // ends with its input
	input, err := first.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := first.Start(); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(r.Begun(first.Process.Pid), r.Keep(GuardedFile, []byte("x"))); err != nil {
		t.Fatal(err)
	}
	if runs, err := List(state); err != nil || len(runs) != 1 || runs[0].PID != os.Getpid() {
		t.Errorf("%v, listed %+v", err, runs)
	}
	r.Close() // as if its supervisor had died
	swept := make(chan error)
	ended := atomic.Bool{}
	go func() {
		_, err := Sweep(state, func(Dead) (event.Aside, error) {
			if stat, err := os.ReadFile("/proc/" + strconv.Itoa(first.Process.Pid) + "/stat"); err != nil || !strings.Contains(string(stat), ") Z ") || !ended.Load() {
				t.Errorf("%v: it was looked at while a process lived: %s", err, stat)
			}
			return event.Aside{}, nil
		})
		swept <- err
	}()
	ended.Store(true)
	if err := input.Close(); err != nil { // the process is collected afterwards only
		t.Fatal(err)
	}
	if err := <-swept; err != nil {
		t.Error(err)
	}
	if err := first.Wait(); err != nil {
		t.Error(err)
	}
}

func TestSweepDoesNotAwaitAnother(t *testing.T) {
	for name, change := range map[string]func(*inside){
		"process":   func(i *inside) { i.InitStarted++ },
		"container": func(i *inside) { i.PIDNamespace++ },
		"boot":      func(i *inside) { i.Boot = "" },
		"none":      func(i *inside) { i.Init = 0 },
	} {
		t.Run(name, func(t *testing.T) {
			here := supervisor(0)
			i := inside{Supervisor: here, Init: here.PID, InitStarted: here.PIDStarted}
			change(&i)
			if err := i.awaitEnd(); err != nil {
				t.Error(err)
			}
		})
	}
}
