package artifact

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
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
func HoldTarget(path string) (*Target, error) {
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
		next, err := enter(dir, part)
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
	fd := int(dir.Fd())
	next, err := openDir(fd, part)
	if errors.Is(err, unix.ENOENT) {
		if err := unix.Mkdirat(fd, part, 0o700); err != nil && !errors.Is(err, unix.EEXIST) {
			return nil, err
		}
		next, err = openDir(fd, part)
	}
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

// CopyTo copies the run's files into the held directory. It must be called
// after Finish, when every process of the run is dead. Files of the same name
// are replaced, links among them too and never what they point to.
func (r *Run) CopyTo(t *Target) error {
	for _, name := range []string{RequestsFile, DenialsFile, OutputFile, ReceiptFile} {
		if err := r.copyFile(t, name); err != nil {
			return fmt.Errorf("copying %s to %s: %w", name, t.path, err)
		}
	}
	return nil
}

func (r *Run) copyFile(t *Target, name string) error {
	src, err := r.root.Open(name)
	if err != nil {
		return err
	}
	defer src.Close()
	fd, temporary := int(t.dir.Fd()), ".sbx-"+r.id+"-"+name
	out, err := unix.Openat(fd, temporary, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return err
	}
	dst := os.NewFile(uintptr(out), temporary)
	_, err = io.Copy(dst, src)
	if err = errors.Join(err, dst.Close()); err == nil {
		err = unix.Renameat(fd, temporary, fd, name)
	}
	if err != nil {
		return errors.Join(err, unix.Unlinkat(fd, temporary, 0))
	}
	return nil
}
