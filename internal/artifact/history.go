package artifact

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/fractalboxdev/sbx/internal/event"
)

// History returns the ids of all runs of a state directory, newest first; those that
// are under way are among them. A directory that is missing has none.
func History(stateDir string) ([]string, error) {
	state, err := openState(stateDir, false)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("listing runs: %w", err)
	}
	defer state.Close()
	dir, err := state.Open(runsDir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("listing runs: %w", err)
	}
	defer dir.Close()
	names, err := dir.Readdirnames(-1)
	if err != nil {
		return nil, fmt.Errorf("listing runs: %w", err)
	}
	names = slices.DeleteFunc(names, func(name string) bool { return !ValidID(name) })
	slices.Sort(names) // ids begin with their time
	slices.Reverse(names)
	return names, nil
}

// ErrActive is a run that is under way, that still copies its records, or that no sweep
// has looked at yet.
var ErrActive = errors.New("the run is under way, or was not swept yet")

// Remove removes the records of a run that has ended and was closed.
func Remove(stateDir, id string) error {
	if !ValidID(id) {
		return fmt.Errorf("removing run %q: not a run id", id)
	}
	state, err := openState(stateDir, false)
	if err != nil {
		return fmt.Errorf("removing run %s: %w", id, err)
	}
	defer state.Close()
	err = withStateLock(state, unix.LOCK_EX, func() error { return checkClosed(state, id) })
	if err == nil {
		// Nobody enters a run of this id any more: ids are not used twice.
		err = removeTree(state, filepath.Join(runsDir, id))
	}
	if err != nil {
		return fmt.Errorf("removing run %s: %w", id, err)
	}
	return nil
}

// checkClosed returns ErrActive unless the run was finished or swept, and whoever
// finished it has closed it or ended.
func checkClosed(state *os.Root, id string) error {
	_, err := state.Lstat(filepath.Join(activeDir, id))
	if err == nil {
		return ErrActive
	}
	if !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	f, err := state.Open(filepath.Join(runsDir, id, StartedFile))
	if errors.Is(err, fs.ErrNotExist) {
		return nil // it was swept
	}
	if err != nil {
		return err
	}
	defer f.Close()
	if err = checkLocked(f); err == nil {
		return ErrActive
	}
	if errors.Is(err, ErrEnded) {
		return nil // and nobody opens a run again
	}
	return err
}

// Bounds of what is read of one file of a run's records, in bytes.
const (
	MaxReceipt = 16 << 20 // whoever reads one goes by it: what answers a call can also be shown
	maxDenials = 1 << 30
)

// ReadReceipt returns the receipt of a run, as it was written. It is an os.ErrNotExist
// where there is none.
func ReadReceipt(stateDir, id string) ([]byte, error) {
	return readRecord(stateDir, id, ReceiptFile, MaxReceipt)
}

// ReadDenials returns the denials of a run that has ended. It is an os.ErrNotExist where
// there is no record of them.
func ReadDenials(stateDir, id string) (rows []event.Denial, err error) {
	text, err := readRecord(stateDir, id, DenialsFile, maxDenials)
	if err != nil {
		return nil, err
	}
	for line := range bytes.Lines(text) {
		var row event.Denial
		if err := json.Unmarshal(line, &row); err != nil {
			return nil, fmt.Errorf("reading the denials of run %s: %w", id, err)
		}
		rows = append(rows, row)
	}
	return rows, nil
}

func readRecord(stateDir, id, name string, limit int64) ([]byte, error) {
	if !ValidID(id) {
		return nil, fmt.Errorf("reading %s of run %q: not a run id", name, id)
	}
	text, err := readBounded(stateDir, filepath.Join(runsDir, id, name), limit)
	if err != nil {
		return nil, fmt.Errorf("reading %s of run %s: %w", name, id, err)
	}
	return text, nil
}

func readBounded(stateDir, name string, limit int64) ([]byte, error) {
	state, err := openState(stateDir, false)
	if err != nil {
		return nil, err
	}
	defer state.Close()
	f, err := state.OpenFile(name, os.O_RDONLY|unix.O_NONBLOCK|unix.O_NOFOLLOW, 0)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	if info, err := f.Stat(); err != nil || !info.Mode().IsRegular() {
		return nil, errors.Join(err, errors.New("it is not a regular file"))
	}
	text, err := io.ReadAll(io.LimitReader(f, limit+1))
	if err == nil && int64(len(text)) > limit {
		err = fmt.Errorf("it is larger than %d bytes", limit)
	}
	return text, err
}
