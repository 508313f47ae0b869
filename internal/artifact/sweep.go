package artifact

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fractalboxdev/sbx/internal/event"
	"github.com/fractalboxdev/sbx/internal/report"
)

// Bounds of what a sweep reads of a dead run.
const (
	maxStarted = 1 << 20  // bytes of the file that says what was started
	maxFold    = 64 << 20 // bytes of requests.jsonl: about two seconds of reading
	maxLine    = 64 << 10 // bytes of one record
)

// Dead is a run whose supervisor died before it could look after the project.
type Dead struct {
	Run       string
	StartedAt time.Time
	Guarded   []byte                         // what the run wrote to GuardedFile
	Aside     func() (io.WriteCloser, error) // makes the file for what is set aside
}

// Sweep finds the runs whose supervisor died, which is certain once their lock
// is free: it has aside look after what the command left, writes each run a receipt
// marked as interrupted, removes its scratch directory and says what it did. A state
// directory that is missing has none. It goes on after a failure and returns all of
// them joined. aside may be nil; its error is part of what is said.
func Sweep(stateDir string, aside func(Dead) (event.Aside, error)) ([]event.Swept, error) {
	state, err := openState(stateDir, false)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("sweeping: %w", err)
	}
	defer state.Close()
	dead, err := findDead(state)
	errs := []error{err}
	var swept []event.Swept
	for _, d := range dead {
		s, err := sweepOne(state, d, aside)
		d.lock.Close()
		if err != nil {
			errs = append(errs, fmt.Errorf("sweeping run %s: %w", d.id, err))
			continue
		}
		swept = append(swept, s)
	}
	return swept, errors.Join(errs...)
}

// deadRun is an active entry without a living supervisor; lock is held by us.
type deadRun struct {
	id   string
	lock *os.File
}

func findDead(state *os.Root) ([]deadRun, error) {
	names, err := activeRuns(state)
	if err != nil || len(names) == 0 {
		return nil, err
	}
	var dead []deadRun
	var errs []error
	err = withStateLock(state, unix.LOCK_EX, func() error {
		for _, id := range names {
			lock, err := takeOver(state, id)
			if err != nil {
				errs = append(errs, err)
			}
			if lock != nil {
				dead = append(dead, deadRun{id, lock})
			}
		}
		return nil
	})
	return dead, errors.Join(append(errs, err)...)
}

func activeRuns(state *os.Root) ([]string, error) {
	dir, err := state.Open(activeDir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("listing active runs: %w", err)
	}
	defer dir.Close()
	names, err := dir.Readdirnames(-1)
	if err != nil {
		return nil, fmt.Errorf("listing active runs: %w", err)
	}
	ids := names[:0]
	for _, name := range names {
		if ValidID(name) {
			ids = append(ids, name)
		}
	}
	return ids, nil
}

// takeOver locks the entry of a dead run; nil means that its supervisor lives
// or has just finished.
func takeOver(state *os.Root, id string) (*os.File, error) {
	f, err := state.Open(filepath.Join(activeDir, id))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("looking at run %s: %w", id, err)
	}
	err = flock(f, unix.LOCK_EX|unix.LOCK_NB)
	if err == nil && stillActive(state, id, f) {
		return f, nil
	}
	f.Close()
	if err != nil && !errors.Is(err, unix.EWOULDBLOCK) {
		return nil, fmt.Errorf("looking at run %s: %w", id, err)
	}
	return nil, nil
}

// stillActive reports whether f is the entry of the run: one that finished
// between our open and our lock has moved it away.
func stillActive(state *os.Root, id string, f *os.File) bool {
	ours, err := f.Stat()
	if err != nil {
		return false
	}
	entry, err := state.Lstat(filepath.Join(activeDir, id))
	return err == nil && os.SameFile(ours, entry)
}

func sweepOne(state *os.Root, d deadRun, aside func(Dead) (event.Aside, error)) (event.Swept, error) {
	receipt, inside := readStarted(d)
	s := event.Swept{Run: d.id, StartedAt: receipt.StartedAt, Cgroups: receipt.Cgroups}
	if err := inside.awaitEnd(); err != nil {
		s.Cgroups, s.Detail = nil, err.Error()
		return s, nil //nolint:nilerr // it is said; the next run looks again, and this one need not wait
	}
	if err := closeRecords(state, d.id, receipt, aside, &s); err != nil {
		return s, err
	}
	scratch := filepath.Join(scratchDir, d.id)
	if _, err := state.Lstat(scratch); err == nil {
		if err := removeTree(state, scratch); err != nil {
			return s, err
		}
		s.Removed = append(s.Removed, filepath.Join(state.Name(), scratch))
	}
	if err := state.Remove(filepath.Join(activeDir, d.id)); err != nil {
		return s, fmt.Errorf("forgetting the run: %w", err)
	}
	return s, nil
}

// readStarted reads what the dead supervisor knew when it began. A half-written
// file leaves only the id.
func readStarted(d deadRun) (event.Receipt, inside) {
	var receipt event.Receipt
	var in inside
	text, err := io.ReadAll(io.LimitReader(d.lock, maxStarted))
	if err != nil || readEntry(text, &receipt) != nil || readEntry(text, &in) != nil {
		receipt, in = event.Receipt{}, inside{}
	}
	receipt.Run = d.id
	return receipt, in
}

// closeRecords folds the denials and writes the receipt, unless there is one.
func closeRecords(state *os.Root, id string, receipt event.Receipt, aside func(Dead) (event.Aside, error), s *event.Swept) error {
	run, err := state.OpenRoot(filepath.Join(runsDir, id))
	if errors.Is(err, fs.ErrNotExist) {
		s.Detail = "its supervisor died before anything was recorded"
		return nil
	}
	if err != nil {
		return err
	}
	defer run.Close()
	if _, err := run.Lstat(ReceiptFile); err == nil {
		s.Detail = "its receipt was complete"
		return nil
	}
	fold, whole, err := foldRequests(run)
	if err != nil {
		return err
	}
	s.Detail = "its supervisor died; the receipt says interrupted"
	lookAfter(run, &receipt, aside, s)
	if whole {
		if err := writeDenials(run, fold.Denials()); err != nil {
			return err
		}
	} else {
		s.Detail += "; requests.jsonl could not be counted again, so denials.jsonl has the rows without their counts"
	}
	now := time.Now().UTC()
	receipt.Interrupted, receipt.FinishedAt = true, now
	receipt.Result = event.Result{Exit: -1, Denials: fold.Total()}
	receipt.Steps = append(receipt.Steps, event.Step{
		Name: "sweep", StartedAt: now, OK: true, Detail: "written by a later run: the supervisor died, so nothing about the revoke was verified",
	})
	return writeReceipt(run, receipt, nil)
}

// lookAfter sets aside what the command left where programs outside would run it.
// What could not be looked at is said, and keeps no other run from starting.
func lookAfter(run *os.Root, receipt *event.Receipt, aside func(Dead) (event.Aside, error), s *event.Swept) {
	guarded, err := readGuarded(run)
	if err == nil && (guarded == nil || aside == nil) {
		return // nothing had run yet, or nothing was writable
	}
	if err == nil {
		receipt.Aside, err = aside(Dead{
			Run: s.Run, StartedAt: receipt.StartedAt, Guarded: guarded, Aside: func() (io.WriteCloser, error) { return makeAside(run) },
		})
		s.SetAside, s.Left = receipt.AsidePaths()
	}
	if err != nil {
		s.Detail += "; what it left for programs outside could not be looked through: " + err.Error()
	}
}

// foldRequests counts the denials of requests.jsonl again. whole is false when
// the file is over maxFold and was left alone. A line that is not a record,
// such as the last one of a supervisor that died while writing, is passed over.
func foldRequests(run *os.Root) (fold report.Fold, whole bool, err error) {
	f, err := run.Open(RequestsFile)
	if errors.Is(err, fs.ErrNotExist) {
		return fold, true, nil
	}
	if err != nil {
		return fold, false, err
	}
	defer f.Close()
	if info, err := f.Stat(); err != nil || info.Size() > maxFold {
		return fold, false, err
	}
	lines := bufio.NewScanner(f)
	lines.Buffer(make([]byte, 0, maxLine), maxLine)
	for lines.Scan() {
		var row struct {
			event.Request
			Event string `json:"event"`
		}
		if json.Unmarshal(lines.Bytes(), &row) == nil && row.Event == "" {
			fold.Add(row.Request)
		}
	}
	if err := lines.Err(); err != nil && !errors.Is(err, bufio.ErrTooLong) {
		return fold, false, fmt.Errorf("reading %s: %w", RequestsFile, err)
	}
	return fold, lines.Err() == nil, nil
}
