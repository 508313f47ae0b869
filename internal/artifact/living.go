package artifact

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// ErrEnded is a run that is not running any more.
var ErrEnded = errors.New("the run has ended")

// Supervisor says which process a run belongs to. Its pid means something only in the
// pid namespace and since the boot that it was written in: a state directory may be
// shared with containers and other machines.
type Supervisor struct {
	PID          int           `json:"pid"`
	PIDStarted   uint64        `json:"pid_started"`   // clock ticks since boot: the 22nd field of proc_pid_stat(5)
	PIDNamespace uint64        `json:"pid_namespace"` // inode of /proc/self/ns/pid
	Boot         string        `json:"boot"`          // random/boot_id of proc(5)
	Grace        time.Duration `json:"grace_ns"`      // between the polite signal and SIGKILL
}

// supervisor describes the calling process.
func supervisor(grace time.Duration) Supervisor {
	s := Supervisor{PID: os.Getpid(), Grace: grace}
	s.PIDStarted, _ = startOf(s.PID)
	var ns unix.Stat_t
	if unix.Stat("/proc/self/ns/pid", &ns) == nil {
		s.PIDNamespace = ns.Ino
	}
	if id, err := os.ReadFile("/proc/sys/kernel/random/boot_id"); err == nil {
		s.Boot = strings.TrimSpace(string(id))
	}
	return s
}

// startOf returns when a process started, in clock ticks since boot.
func startOf(pid int) (uint64, error) {
	stat, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return 0, err
	}
	const state, start = 3, 22 // fields, counted from 1; the second may hold anything
	fields := strings.Fields(string(stat[bytes.LastIndexByte(stat, ')')+1:]))
	if len(fields) <= start-state {
		return 0, fmt.Errorf("reading when process %d started", pid)
	}
	return strconv.ParseUint(fields[start-state], 10, 64)
}

// Living is a run whose supervisor lives.
type Living struct {
	Run       string    `json:"run"`
	Consumer  string    `json:"consumer"`
	Position  string    `json:"position"`
	Profiles  []string  `json:"profiles"`
	Command   []string  `json:"command"`
	Workdir   string    `json:"workdir"`
	StartedAt time.Time `json:"started_at"`
	Directory string    `json:"directory"`
	Supervisor
}

// List returns the runs of a state directory whose supervisor lives, oldest first. A
// directory that is missing has none.
func List(stateDir string) ([]Living, error) {
	state, err := openState(stateDir, false)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("listing runs: %w", err)
	}
	defer state.Close()
	names, err := activeRuns(state)
	if err != nil {
		return nil, err
	}
	var runs []Living
	var errs []error
	for _, id := range names {
		run, err := find(state, id)
		switch {
		case err == nil:
			runs = append(runs, run)
		case !errors.Is(err, ErrEnded):
			errs = append(errs, err)
		}
	}
	slices.SortFunc(runs, func(a, b Living) int { return cmp.Or(a.StartedAt.Compare(b.StartedAt), cmp.Compare(a.Run, b.Run)) })
	return runs, errors.Join(errs...)
}

// find looks at one run while none can be entered: a lock tried between an entry's
// making and its own lock would make that run fail.
func find(state *os.Root, id string) (run Living, err error) {
	err = withStateLock(state, unix.LOCK_EX, func() error {
		run, err = readLiving(state, id)
		return err
	})
	if err != nil {
		return run, fmt.Errorf("looking at run %s: %w", id, err)
	}
	return run, nil
}

// readLiving reads what a living supervisor wrote of its run.
func readLiving(state *os.Root, id string) (Living, error) {
	f, err := state.Open(filepath.Join(activeDir, id))
	if errors.Is(err, fs.ErrNotExist) {
		return Living{}, ErrEnded
	}
	if err != nil {
		return Living{}, err
	}
	defer f.Close()
	if err := checkLocked(f); err != nil {
		return Living{}, err
	}
	run := Living{}
	text, err := io.ReadAll(io.LimitReader(f, maxStarted))
	if err != nil {
		return Living{}, err
	}
	// One that is being entered right now has not written it yet.
	if readEntry(text, &run) != nil {
		run = Living{}
	}
	run.Run = id
	return run, nil
}

// readEntry reads what stands in a run's entry: lines of JSON, of which the later ones
// add to the first.
func readEntry(text []byte, into any) error {
	for line := range bytes.Lines(text) {
		if err := json.Unmarshal(line, into); err != nil {
			return err
		}
	}
	return nil
}

// checkLocked returns ErrEnded when nobody holds the entry's lock. The lock is the
// supervisor's alone: it ends with that process, however it ends.
func checkLocked(f *os.File) error {
	err := flock(f, unix.LOCK_SH|unix.LOCK_NB)
	switch {
	case errors.Is(err, unix.EWOULDBLOCK):
		return nil
	case err != nil:
		return err
	}
	_ = unix.Flock(int(f.Fd()), unix.LOCK_UN)
	return ErrEnded
}

// CheckLiving returns nil while the run's supervisor lives, or somebody sweeps what it
// left; ErrEnded otherwise.
func CheckLiving(stateDir, id string) error {
	if !ValidID(id) {
		return fmt.Errorf("looking at run %q: not a run id", id)
	}
	state, err := openState(stateDir, false)
	if err != nil {
		return fmt.Errorf("looking at run %s: %w", id, err)
	}
	defer state.Close()
	_, err = find(state, id)
	return err
}

// CheckSupervisor returns nil while the supervisor of the run lives, ErrEnded afterwards.
// A descriptor of its pid that was opened before is then certain to be the supervisor's:
// the process that has the pid now started when the supervisor did. The lock alone does
// not say so.
func CheckSupervisor(stateDir string, run Living) error {
	if err := CheckLiving(stateDir, run.Run); err != nil {
		return err
	}
	started, err := startOf(run.PID)
	if errors.Is(err, fs.ErrNotExist) || err == nil && started != run.PIDStarted {
		err = ErrEnded // its pid is another's by now
	}
	if err != nil {
		return fmt.Errorf("looking at the supervisor of run %s: %w", run.Run, err)
	}
	return nil
}

// SameProcesses returns an error unless a pid that the run wrote down means the same
// process to the caller.
func (l Living) SameProcesses() error {
	here := supervisor(0)
	switch {
	case l.PID <= 0 || l.PIDStarted == 0:
		return fmt.Errorf("run %s is starting and has not said which process it is", l.Run)
	case l.Boot != here.Boot:
		return fmt.Errorf("run %s belongs to another machine, or to this one before it was started last", l.Run)
	case l.PIDNamespace != here.PIDNamespace:
		return fmt.Errorf("run %s belongs to another container: its process cannot be seen from here", l.Run)
	}
	return nil
}
