package artifact

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path/filepath"
	"slices"

	"golang.org/x/sys/unix"
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

// ErrActive is a run that is under way, or that no sweep has looked at yet.
var ErrActive = errors.New("the run is under way, or was not swept yet")

// Remove removes the records of a run that has ended.
func Remove(stateDir, id string) error {
	if !ValidID(id) {
		return fmt.Errorf("removing run %q: not a run id", id)
	}
	state, err := openState(stateDir, false)
	if err != nil {
		return fmt.Errorf("removing run %s: %w", id, err)
	}
	defer state.Close()
	err = withStateLock(state, unix.LOCK_EX, func() error {
		_, err := state.Lstat(filepath.Join(activeDir, id))
		if err == nil {
			return ErrActive
		}
		if !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		return nil
	})
	if err == nil {
		// Nobody enters a run of this id any more: ids are not used twice.
		err = removeTree(state, filepath.Join(runsDir, id))
	}
	if err != nil {
		return fmt.Errorf("removing run %s: %w", id, err)
	}
	return nil
}

// maxReceipt bounds what is read of a receipt, in bytes.
const maxReceipt = 16 << 20

// ReadReceipt returns the receipt of a run, as it was written. It is an os.ErrNotExist
// where there is none.
func ReadReceipt(stateDir, id string) ([]byte, error) {
	if !ValidID(id) {
		return nil, fmt.Errorf("reading the receipt of run %q: not a run id", id)
	}
	state, err := openState(stateDir, false)
	if err != nil {
		return nil, fmt.Errorf("reading the receipt of run %s: %w", id, err)
	}
	defer state.Close()
	f, err := state.Open(filepath.Join(runsDir, id, ReceiptFile))
	if err != nil {
		return nil, fmt.Errorf("reading the receipt of run %s: %w", id, err)
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, maxReceipt+1))
	if err == nil && len(text) > maxReceipt {
		err = fmt.Errorf("it is larger than %d bytes", maxReceipt)
	}
	if err != nil {
		return nil, fmt.Errorf("reading the receipt of run %s: %w", id, err)
	}
	return text, nil
}
