package sbxtest

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
)

// copyTree copies from to the directory to: files, directories and links with
// their modes, and with their owners when root does it. What may not be read
// is left out; sockets and devices are.
func copyTree(from, to string) error {
	return filepath.WalkDir(from, func(path string, entry fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrPermission) {
			return nil
		}
		if err != nil {
			return err
		}
		relative, err := filepath.Rel(from, path)
		if err != nil {
			return err
		}
		err = copyEntry(path, filepath.Join(to, relative), entry)
		if errors.Is(err, fs.ErrPermission) {
			return nil
		}
		return err
	})
}

func copyEntry(from, to string, entry fs.DirEntry) error {
	info, err := entry.Info()
	if err != nil {
		return err
	}
	kind, perm := info.Mode().Type(), info.Mode().Perm()
	switch {
	case kind == fs.ModeDir:
		err = os.MkdirAll(to, perm|0o700)
	case kind == fs.ModeSymlink:
		err = copyLink(from, to)
	case kind.IsRegular():
		err = copyFile(from, to, perm)
	default:
		return nil
	}
	if err != nil {
		return err
	}
	return copyOwner(to, info)
}

func copyLink(from, to string) error {
	target, err := os.Readlink(from)
	if err != nil {
		return err
	}
	return os.Symlink(target, to)
}

func copyFile(from, to string, perm fs.FileMode) error {
	data, err := os.ReadFile(from)
	if err != nil {
		return err
	}
	if err := os.WriteFile(to, data, perm|0o200); err != nil {
		return err
	}
	return os.Chmod(to, perm)
}

func copyOwner(to string, info fs.FileInfo) error {
	stat, ok := info.Sys().(*syscall.Stat_t)
	if !ok || os.Geteuid() != 0 {
		return nil
	}
	if err := os.Lchown(to, int(stat.Uid), int(stat.Gid)); err != nil {
		return fmt.Errorf("giving %s to its owner: %w", to, err)
	}
	return nil
}
