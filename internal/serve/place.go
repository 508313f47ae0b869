package serve

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"

	"github.com/fractalboxdev/sbx/internal/links"
)

// place returns a directory without links, made where it was missing, once nobody but
// root and the caller can put another in its place: whoever could would answer in the
// name of this server. Every directory and link on the way is looked at. rootUID is the
// uid that root's files show.
func place(dir string, rootUID int) (string, error) {
	abs, err := filepath.Abs(dir)
	if err != nil {
		return "", fmt.Errorf("finding %s: %w", dir, err)
	}
	real, err := links.Follow(abs, func(at string) (link bool, err error) {
		info, err := os.Lstat(at)
		if errors.Is(err, fs.ErrNotExist) {
			if err = os.Mkdir(at, 0o700); err == nil {
				info, err = os.Lstat(at)
			}
		}
		if err != nil {
			return false, fmt.Errorf("finding the socket's directory: %w", err)
		}
		if err := own(at, info, rootUID); err != nil {
			return false, err
		}
		switch {
		case info.IsDir():
			return false, nil
		case info.Mode()&fs.ModeSymlink == 0:
			return false, fmt.Errorf("%s is not a directory", at)
		}
		return true, nil
	}, os.Readlink)
	if errors.Is(err, links.ErrUnfollowed) {
		err = fmt.Errorf("finding %s: %w", dir, err)
	}
	return real, err
}

// own demands that a directory or link belongs to root or the caller and that nobody
// else can write it. In a directory with the sticky bit nobody else can replace what is
// not theirs.
func own(path string, info fs.FileInfo, rootUID int) error {
	stat, ok := info.Sys().(*syscall.Stat_t)
	if !ok || int(stat.Uid) != rootUID && int(stat.Uid) != os.Geteuid() {
		return fmt.Errorf("%s belongs neither to root nor to you", path)
	}
	if info.IsDir() && info.Mode()&fs.ModeSticky == 0 && info.Mode().Perm()&0o022 != 0 {
		return fmt.Errorf("others can write %s (mode %#o); chmod go-w mends it", path, info.Mode().Perm())
	}
	return nil
}

// alone demands that a directory is the caller's and that nobody else can write it.
func alone(path string) error {
	info, err := os.Lstat(path)
	if err != nil {
		return fmt.Errorf("looking at the socket's directory: %w", err)
	}
	if stat, ok := info.Sys().(*syscall.Stat_t); !ok || int(stat.Uid) != os.Geteuid() || info.Mode().Perm()&0o022 != 0 {
		return fmt.Errorf("%s has to be yours, and others must not write it", path)
	}
	return nil
}
