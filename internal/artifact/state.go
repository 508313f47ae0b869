// Package artifact keeps one directory per run: the records while anything
// runs, the receipt afterwards, and the sweep of runs whose supervisor died.
package artifact

import (
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// The layout of a state directory. active/ID is locked by the run's supervisor
// for as long as it lives, which is how a sweep tells the dead from the living.
const (
	runsDir    = "runs"
	activeDir  = "active"
	scratchDir = "scratch"
	lockFile   = "lock"
)

// ErrForeign is a state directory that somebody else owns or may write.
var ErrForeign = errors.New("not safe to keep records in")

// DefaultStateDir returns $XDG_STATE_HOME/sbx, else /var/lib/sbx for uid 0 where it
// may write there (root of a user namespace may not), else $HOME/.local/state/sbx. Relative values are ignored, as the XDG base
// directory specification says.
func DefaultStateDir(getenv func(string) string, euid int) (string, error) {
	return defaultStateDir(getenv, euid == 0 && unix.Access("/var/lib", unix.W_OK) == nil)
}

func defaultStateDir(getenv func(string) string, ofSystem bool) (string, error) {
	if dir := getenv("XDG_STATE_HOME"); filepath.IsAbs(dir) {
		return filepath.Join(dir, "sbx"), nil
	}
	if ofSystem {
		return "/var/lib/sbx", nil
	}
	if home := getenv("HOME"); filepath.IsAbs(home) {
		return filepath.Join(home, ".local", "state", "sbx"), nil
	}
	return "", errors.New("choosing the state directory: neither XDG_STATE_HOME nor HOME is an absolute path")
}

// NewID makes a run id: the UTC time in milliseconds and 32 random bits, so that ids
// sort by age and two supervisors never take the same one.
func NewID(now time.Time) string {
	var b [4]byte
	rand.Read(b[:]) // never fails: crypto/rand ends the process instead
	at := now.UTC()
	return fmt.Sprintf("%s%03d-", at.Format("20060102t150405"), at.Nanosecond()/1_000_000) + hex.EncodeToString(b[:])
}

// ValidID reports whether id may name a run: 1 to 64 of a-z, 0-9 and inner hyphens.
func ValidID(id string) bool {
	if id == "" || len(id) > 64 || id[0] == '-' || id[len(id)-1] == '-' {
		return false
	}
	for _, c := range []byte(id) {
		if c != '-' && (c < 'a' || c > 'z') && (c < '0' || c > '9') {
			return false
		}
	}
	return true
}

// Check tells whether records could be kept in the state directory, without
// making anything. One that is missing is fine: Open makes it.
func Check(dir string) error {
	state, err := openState(dir, false)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	return state.Close()
}

// openState opens the state directory, making it and its parts when create is
// set, and refuses it unless it belongs to the caller alone.
func openState(dir string, create bool) (*os.Root, error) {
	if !filepath.IsAbs(dir) {
		return nil, fmt.Errorf("opening state directory %q: the path is not absolute", dir)
	}
	root, err := os.OpenRoot(dir)
	if errors.Is(err, fs.ErrNotExist) && create {
		if err = os.MkdirAll(dir, 0o700); err != nil {
			return nil, fmt.Errorf("making state directory: %w", err)
		}
		root, err = os.OpenRoot(dir)
	}
	if err != nil {
		return nil, fmt.Errorf("opening state directory: %w", err)
	}
	if err := checkState(root, dir, create); err != nil {
		root.Close()
		return nil, err
	}
	return root, nil
}

func checkState(root *os.Root, dir string, create bool) error {
	info, err := root.Stat(".")
	if err != nil {
		return fmt.Errorf("reading state directory %s: %w", dir, err)
	}
	if err := checkOwn(info, dir); err != nil {
		return err
	}
	for _, part := range []string{runsDir, activeDir, scratchDir} {
		if err := checkPart(root, dir, part, create); err != nil {
			return err
		}
	}
	return nil
}

func checkPart(root *os.Root, dir, part string, create bool) error {
	info, err := root.Lstat(part)
	if errors.Is(err, fs.ErrNotExist) {
		if !create {
			return nil
		}
		if err = root.Mkdir(part, 0o700); err == nil {
			return nil
		}
		if !errors.Is(err, fs.ErrExist) {
			return fmt.Errorf("making %s: %w", filepath.Join(dir, part), err)
		}
		info, err = root.Lstat(part) // another run made it just now
	}
	if err != nil {
		return fmt.Errorf("reading %s: %w", filepath.Join(dir, part), err)
	}
	return checkOwn(info, filepath.Join(dir, part))
}

// checkOwn refuses anything but a directory of the effective user that nobody
// else may even read: records name what a command asked for.
func checkOwn(info fs.FileInfo, path string) error {
	stat, ok := info.Sys().(*syscall.Stat_t)
	switch {
	case !ok || !info.IsDir():
		return fmt.Errorf("%s is %w: it is not a directory", path, ErrForeign)
	case int(stat.Uid) != os.Geteuid():
		return fmt.Errorf("%s is %w: it belongs to uid %d, not to %d", path, ErrForeign, stat.Uid, os.Geteuid())
	case info.Mode().Perm()&0o077 != 0:
		return fmt.Errorf("%s is %w: its mode is %#o; chmod 700 mends it", path, ErrForeign, info.Mode().Perm())
	}
	return nil
}

// withStateLock runs do while holding the state directory's own lock: shared
// for a run that is being entered, exclusive for a sweep that looks for dead
// ones, so that a run is never seen between its creation and its lock.
func withStateLock(root *os.Root, how int, do func() error) error {
	f, err := root.OpenFile(lockFile, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return fmt.Errorf("opening the state lock: %w", err)
	}
	defer f.Close()
	if err := flock(f, how); err != nil {
		return fmt.Errorf("taking the state lock: %w", err)
	}
	return do()
}

// flock locks the open file, trying again when a signal interrupts.
func flock(f *os.File, how int) error {
	for {
		if err := unix.Flock(int(f.Fd()), how); !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}
