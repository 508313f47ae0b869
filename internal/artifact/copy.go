package artifact

import (
	"bytes"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// Target is a directory chosen with --artifacts, held open by descriptor from
// before the command runs, so that nothing the command does to the path can
// lead the copy elsewhere.
type Target struct {
	path string
	dir  *os.File
}

// HoldTarget opens the directory, making what is missing with mode 0700. No
// component that the caller named may be a symbolic link: one planted by an
// earlier run would lead sbx to write where it points.
func HoldTarget(path string) (*Target, error) { return walk(path, enter) }

// walk opens the path one component at a time.
func walk(path string, step func(*os.File, string) (*os.File, error)) (*Target, error) {
	clean := filepath.Clean(path)
	start, rest := ".", clean
	if filepath.IsAbs(clean) {
		start, rest = "/", strings.TrimPrefix(clean, "/")
	}
	dir, err := openDir(unix.AT_FDCWD, start)
	if err != nil {
		return nil, fmt.Errorf("opening %s: %w", start, err)
	}
	for part := range strings.SplitSeq(rest, "/") {
		if part == "" || part == "." {
			continue
		}
		next, err := step(dir, part)
		dir.Close()
		if err != nil {
			return nil, fmt.Errorf("opening artifacts directory %s at %q: %w", path, part, err)
		}
		dir = next
	}
	return &Target{path: path, dir: dir}, nil
}

// enter opens the child directory, making it if it is missing.
func enter(dir *os.File, part string) (*os.File, error) {
	next, err := openChild(dir, part)
	if !errors.Is(err, unix.ENOENT) {
		return next, err
	}
	if err := unix.Mkdirat(int(dir.Fd()), part, 0o700); err != nil && !errors.Is(err, unix.EEXIST) {
		return nil, err
	}
	return openChild(dir, part)
}

// openChild opens an existing child directory.
func openChild(dir *os.File, part string) (*os.File, error) {
	next, err := openDir(int(dir.Fd()), part)
	if errors.Is(err, unix.ENOTDIR) || errors.Is(err, unix.ELOOP) {
		return nil, fmt.Errorf("%w: it is a symbolic link or no directory; name the real path", fs.ErrInvalid)
	}
	return next, err
}

func openDir(at int, name string) (*os.File, error) {
	fd, err := unix.Openat(at, name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(fd), name), nil
}

// Path returns the path as it was given.
func (t *Target) Path() string { return t.path }

// Close releases the directory.
func (t *Target) Close() error { return t.dir.Close() }

// Verify returns an error unless the path still leads to the held directory,
// without symbolic links. What a command could move away or put in its place would
// be taken for the run's own records by whoever reads the path.
func (t *Target) Verify() error {
	again, err := walk(t.path, openChild)
	if err != nil {
		return fmt.Errorf("finding %s again: %w", t.path, err)
	}
	defer again.Close()
	held, err := t.dir.Stat()
	if err != nil {
		return fmt.Errorf("looking at %s: %w", t.path, err)
	}
	found, err := again.dir.Stat()
	if err != nil {
		return fmt.Errorf("looking at %s: %w", t.path, err)
	}
	if !os.SameFile(held, found) {
		return fmt.Errorf("finding %s again: another directory was put in its place", t.path)
	}
	return nil
}

// Write makes or replaces one file of the held directory and verifies that the
// path leads to it. Links are replaced, never followed.
func (t *Target) Write(name string, content []byte) error {
	if err := t.replace(name, bytes.NewReader(content)); err != nil {
		return fmt.Errorf("writing %s into %s: %w", name, t.path, err)
	}
	return t.Verify()
}

// Has reports whether the held directory has an entry of that name.
func (t *Target) Has(name string) (bool, error) {
	var stat unix.Stat_t
	err := unix.Fstatat(int(t.dir.Fd()), name, &stat, unix.AT_SYMLINK_NOFOLLOW)
	if errors.Is(err, unix.ENOENT) {
		return false, nil
	}
	return err == nil, err
}

// CopyTo copies the run's files into the held directory. It must be called
// after Finish, when every process of the run is dead. Files of the same name
// are replaced, links among them too and never what they point to. It ends with Verify.
func (r *Run) CopyTo(t *Target) error {
	for _, name := range []string{RequestsFile, DenialsFile, OutputFile, AsideFile, ReceiptFile} {
		err := r.copyFile(t, name, name)
		if errors.Is(err, fs.ErrNotExist) && name == AsideFile {
			continue // nothing was set aside
		}
		if err != nil {
			return fmt.Errorf("copying %s to %s: %w", name, t.path, err)
		}
	}
	if err := r.copyTree(t, FilesDir); err != nil {
		return fmt.Errorf("copying %s to %s: %w", FilesDir, t.path, err)
	}
	return t.Verify()
}

// CopyEarlier copies the files of a run that has ended.
func CopyEarlier(stateDir, id string, t *Target) error {
	if !ValidID(id) {
		return fmt.Errorf("copying the records of run %q: not a run id", id)
	}
	state, err := openState(stateDir, false)
	if err != nil {
		return fmt.Errorf("copying the records of run %s: %w", id, err)
	}
	defer state.Close()
	r := &Run{}
	if r.root, err = state.OpenRoot(filepath.Join(runsDir, id)); err != nil {
		return fmt.Errorf("copying the records of run %s: %w", id, err)
	}
	defer r.root.Close()
	return r.CopyTo(t)
}

// copyFile copies a file of the run's directory, by its path there.
func (r *Run) copyFile(t *Target, from, name string) error {
	src, err := r.root.Open(from)
	if err != nil {
		return err
	}
	defer src.Close()
	return t.replace(name, src)
}

// copyTree copies a directory of the run's, if there is one. Directories of that name
// are entered, links never.
func (r *Run) copyTree(t *Target, from string) error {
	list, err := r.list(from)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	dir, err := enter(t.dir, path.Base(from))
	if err != nil {
		return err
	}
	below := &Target{path: filepath.Join(t.path, path.Base(from)), dir: dir}
	defer below.Close()
	for _, e := range list {
		if e.IsDir() {
			err = r.copyTree(below, path.Join(from, e.Name()))
		} else {
			err = r.copyFile(below, path.Join(from, e.Name()), e.Name())
		}
		if err != nil {
			return fmt.Errorf("%s: %w", e.Name(), err)
		}
	}
	return nil
}

// list reads a directory of the run's. Its names are bytes: package fs takes text only.
func (r *Run) list(name string) ([]fs.DirEntry, error) {
	dir, err := r.root.Open(name)
	if err != nil {
		return nil, err
	}
	defer dir.Close()
	return dir.ReadDir(-1)
}

// replace writes a new file and renames it over the name.
func (t *Target) replace(name string, from io.Reader) error {
	fd, temporary := int(t.dir.Fd()), ".sbx-"+rand.Text()
	out, err := unix.Openat(fd, temporary, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return err
	}
	dst := os.NewFile(uintptr(out), temporary)
	_, err = io.Copy(dst, from)
	if err = errors.Join(err, dst.Close()); err == nil {
		err = unix.Renameat(fd, temporary, fd, name)
	}
	if err != nil {
		return errors.Join(err, unix.Unlinkat(fd, temporary, 0))
	}
	return nil
}
