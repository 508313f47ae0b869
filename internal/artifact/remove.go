package artifact

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
)

// removeTree removes name and everything beneath it, never through a link. What
// a command left may hold directories that even their owner may not enter:
// those are opened up and the removal is tried once more.
func removeTree(root *os.Root, name string) error {
	err := root.RemoveAll(name)
	if errors.Is(err, fs.ErrPermission) {
		openUp(root, name)
		err = root.RemoveAll(name)
	}
	if err != nil {
		return fmt.Errorf("removing %s: %w", name, err)
	}
	return nil
}

// openUp gives the owner all rights on every directory at and below name. It is
// only called when no process of the run is left, so that a directory cannot
// turn into a link between the look and the change; os.Root keeps even that
// beneath the state directory.
func openUp(root *os.Root, name string) {
	info, err := root.Lstat(name)
	if err != nil || !info.IsDir() {
		return
	}
	if info.Mode().Perm()&0o700 != 0o700 {
		_ = root.Chmod(name, 0o700) // what stays closed makes the removal fail, which is reported
	}
	dir, err := root.Open(name)
	if err != nil {
		return
	}
	defer dir.Close()
	for {
		entries, err := dir.ReadDir(256)
		for _, e := range entries {
			if e.IsDir() {
				openUp(root, filepath.Join(name, e.Name()))
			}
		}
		if err != nil {
			return
		}
	}
}
