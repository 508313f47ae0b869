package store

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"

	"golang.org/x/sys/unix"
)

// prepare makes sure that nobody but the caller can have written the store or put
// another in its place, and makes directory and file where they are missing. It returns
// the directory's path without symbolic links, which somebody else could turn.
func prepare(o Options) (real string, err error) {
	if !filepath.IsAbs(o.Dir) {
		return o.Dir, &Error{Kind: ErrForeign, Detail: fmt.Sprintf("the state directory %q is not an absolute path", o.Dir)}
	}
	if real, err = resolve(o); err != nil {
		return o.Dir, err
	}
	root, err := os.OpenRoot(real)
	if err != nil {
		return real, fmt.Errorf("opening the state directory: %w", err)
	}
	defer root.Close()
	if err := checkWay(real); err != nil {
		return real, err
	}
	info, err := root.Stat(".")
	if err != nil {
		return real, fmt.Errorf("reading the state directory: %w", err)
	}
	if err := checkOwn(real, info); err != nil {
		return real, err
	}
	return real, prepareFiles(root, o)
}

func resolve(o Options) (string, error) {
	real, err := filepath.EvalSymlinks(o.Dir)
	if errors.Is(err, fs.ErrNotExist) && !o.Existing {
		if err := os.MkdirAll(o.Dir, 0o700); err != nil {
			return "", fmt.Errorf("making the state directory: %w", err)
		}
		real, err = filepath.EvalSymlinks(o.Dir)
	}
	if errors.Is(err, fs.ErrNotExist) && o.Existing {
		return "", &Error{Kind: ErrMissing}
	}
	if err != nil {
		return "", fmt.Errorf("finding the state directory: %w", err)
	}
	return real, nil
}

// prepareFiles looks at each file that SQLite would open. The empty database is made
// without being opened: closing a descriptor of it would release SQLite's locks.
func prepareFiles(root *os.Root, o Options) error {
	for _, name := range []string{File, File + "-wal", File + "-shm", File + "-journal", lockFile, turnFile} {
		info, err := root.Lstat(name)
		if errors.Is(err, fs.ErrNotExist) {
			if name != File {
				continue
			}
			if o.Existing {
				return &Error{Kind: ErrMissing}
			}
			if err := errors.Join(makeFile(root, beginsFile), makeFile(root, name)); err != nil {
				return err
			}
			info, err = root.Lstat(name)
		}
		if err != nil {
			return fmt.Errorf("reading %s: %w", name, err)
		}
		if err := checkFile(filepath.Join(root.Name(), name), info); err != nil {
			return err
		}
		if name != File || info.Size() >= leastSize {
			continue
		}
		if err := checkShort(root, info.Size()); err != nil {
			return err
		}
	}
	return nil
}

// leastSize is the smallest page of a database (sqlite.org/fileformat2.html); SQLite
// takes a shorter file for an empty one, and would begin anew.
const leastSize = 512

// beginsFile is there from before an empty database is made until its schema is: only
// such a one may be empty beside what an earlier store has left.
const beginsFile = "store.new"

// runsDir is where package artifact keeps the records of runs.
const runsDir = "runs"

// checkShort looks at a database that has no page. An empty one is a store that
// begins, or that began when its sbx was killed, unless it was emptied.
func checkShort(root *os.Root, size int64) error {
	if size > 0 {
		return &Error{Kind: ErrCorrupt, Detail: fmt.Sprintf("it is cut off after %d bytes", size)}
	}
	trace, err := traceOfStore(root)
	if err != nil || trace == "" {
		return err
	}
	_, err = root.Lstat(beginsFile)
	if !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	// Another process may have gone on since: it writes its first page before any of these.
	if info, err := root.Lstat(File); err != nil || info.Size() > 0 {
		return err
	}
	return &Error{Kind: ErrCorrupt, Detail: fmt.Sprintf("it is empty, and %s beside it shows that it was in use", trace)}
}

// traceOfStore names something that only a store in use leaves, "" for nothing. A journal
// (File-journal) is none: one that is just being made has it.
func traceOfStore(root *os.Root) (string, error) {
	for _, name := range []string{File + "-wal", File + "-shm", turnFile, gatesDir, runsDir} {
		_, err := root.Lstat(name)
		if err == nil && name == runsDir {
			err = hasEntry(root, name)
		}
		if err == nil {
			return name, nil
		}
		if !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, io.EOF) {
			return "", fmt.Errorf("looking at %s: %w", name, err)
		}
	}
	return "", nil
}

// hasEntry returns io.EOF for an empty directory.
func hasEntry(root *os.Root, name string) error {
	dir, err := root.Open(name)
	if err != nil {
		return err
	}
	defer dir.Close()
	_, err = dir.Readdirnames(1)
	return err
}

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
	for at := filepath.Dir(dir); ; at = filepath.Dir(at) {
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
