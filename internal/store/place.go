package store

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"

	"golang.org/x/sys/unix"
)

// prepare makes sure that nobody but the caller can have written the store or put
// another in its place, and makes directory and file where they are missing.
func prepare(o Options) error {
	if !filepath.IsAbs(o.Dir) {
		return &Error{Kind: ErrForeign, Detail: fmt.Sprintf("the state directory %q is not an absolute path", o.Dir)}
	}
	root, err := os.OpenRoot(o.Dir)
	if errors.Is(err, fs.ErrNotExist) {
		if o.Existing {
			return &Error{Kind: ErrMissing}
		}
		if err := os.MkdirAll(o.Dir, 0o700); err != nil {
			return fmt.Errorf("making the state directory: %w", err)
		}
		root, err = os.OpenRoot(o.Dir)
	}
	if err != nil {
		return fmt.Errorf("opening the state directory: %w", err)
	}
	defer root.Close()
	if err := checkWay(o.Dir); err != nil {
		return err
	}
	info, err := root.Stat(".")
	if err != nil {
		return fmt.Errorf("reading the state directory: %w", err)
	}
	if err := checkOwn(o.Dir, info); err != nil {
		return err
	}
	return prepareFiles(root, o)
}

// prepareFiles looks at each file that SQLite would open. The empty database is made
// without being opened: closing a descriptor of it would release SQLite's locks.
func prepareFiles(root *os.Root, o Options) error {
	for _, name := range []string{File, File + "-wal", File + "-shm", File + "-journal", lockFile} {
		info, err := root.Lstat(name)
		if errors.Is(err, fs.ErrNotExist) {
			if name != File {
				continue
			}
			if o.Existing {
				return &Error{Kind: ErrMissing}
			}
			if err := makeFile(root, name); err != nil {
				return err
			}
			info, err = root.Lstat(name)
		}
		if err != nil {
			return fmt.Errorf("reading %s: %w", name, err)
		}
		if err := checkFile(filepath.Join(o.Dir, name), info); err != nil {
			return err
		}
		if name == File && info.Size() > 0 && info.Size() < leastSize {
			return &Error{Kind: ErrCorrupt, Detail: fmt.Sprintf("it is cut off after %d bytes", info.Size())}
		}
	}
	return nil
}

// leastSize is the smallest page of a database (sqlite.org/fileformat2.html); SQLite
// takes a shorter file for an empty one, and would begin anew.
const leastSize = 512

func makeFile(root *os.Root, name string) error {
	dir, err := root.Open(".")
	if err != nil {
		return fmt.Errorf("opening the state directory: %w", err)
	}
	defer dir.Close()
	err = unix.Mknodat(int(dir.Fd()), name, unix.S_IFREG|0o600, 0)
	if err != nil && !errors.Is(err, fs.ErrExist) {
		return fmt.Errorf("making %s: %w", name, err)
	}
	return nil
}

func checkFile(path string, info fs.FileInfo) error {
	if !info.Mode().IsRegular() {
		return &Error{Kind: ErrForeign, Path: path, Detail: "it is not a regular file"}
	}
	stat, ok := info.Sys().(*syscall.Stat_t)
	if ok && stat.Nlink > 1 {
		return &Error{Kind: ErrForeign, Path: path, Detail: "it has another name as well (a hard link)"}
	}
	return checkOwn(path, info)
}

// checkOwn demands that a path belongs to the caller alone.
func checkOwn(path string, info fs.FileInfo) error {
	stat, ok := info.Sys().(*syscall.Stat_t)
	if !ok || int(stat.Uid) != os.Geteuid() {
		return &Error{Kind: ErrForeign, Path: path, Detail: fmt.Sprintf("it belongs to uid %d, not to %d", stat.Uid, os.Geteuid())}
	}
	if info.Mode().Perm()&0o077 != 0 {
		return &Error{Kind: ErrForeign, Path: path, Detail: fmt.Sprintf("others may enter or change it (mode %#o)", info.Mode().Perm())}
	}
	return nil
}

// checkWay looks at the directories above: whoever can rename in one of them can put
// another store in place of this one. For root they must be root's own; for others it
// is enough that not everybody can.
func checkWay(dir string) error {
	real, err := filepath.EvalSymlinks(dir)
	if err != nil {
		return fmt.Errorf("finding the state directory: %w", err)
	}
	for at := filepath.Dir(real); ; at = filepath.Dir(at) {
		info, err := os.Lstat(at)
		if err != nil {
			return fmt.Errorf("reading %s: %w", at, err)
		}
		if err := checkAncestor(at, info); err != nil || at == "/" {
			return err
		}
	}
}

func checkAncestor(path string, info fs.FileInfo) error {
	if info.Mode().Perm()&0o002 != 0 && info.Mode()&fs.ModeSticky == 0 {
		return &Error{Kind: ErrForeign, Path: path, Detail: "everybody can rename what lies in it"}
	}
	stat, ok := info.Sys().(*syscall.Stat_t)
	if os.Geteuid() == 0 && (!ok || stat.Uid != 0 && stat.Uid != overflowUID) {
		return &Error{Kind: ErrForeign, Path: path, Detail: fmt.Sprintf("it belongs to uid %d, who can rename what lies in it, and you are root", stat.Uid)}
	}
	return nil
}

// overflowUID is whom a file shows whose owner has no number in the caller's user
// namespace (user_namespaces(7)): there, the real root's files do.
const overflowUID = 65534
