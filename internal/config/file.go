package config

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"syscall"
)

// maxFile bounds a configuration file, in bytes.
const maxFile = 1 << 20

// ErrUnsafe is a configuration file that somebody else could have written.
var ErrUnsafe = errors.New("not safe to take instructions from")

// readFile reads the file through one descriptor, so that what was checked is
// what is read. A missing file is not found and no error; one that cannot be
// read is an error, since ignoring it could loosen what it restricts.
func readFile(path string, opt Options) (text []byte, found bool, err error) {
	f, err := openRegular(path)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENOTDIR) {
		return nil, false, nil
	}
	if err != nil {
		return nil, false, fmt.Errorf("reading configuration: %w", err)
	}
	defer f.Close()
	if err := checkFile(f, path, opt); err != nil {
		return nil, false, err
	}
	text, err = io.ReadAll(io.LimitReader(f, maxFile+1))
	if err != nil {
		return nil, false, fmt.Errorf("reading configuration: %w", err)
	}
	if len(text) > maxFile {
		return nil, false, &FileError{File: path, What: fmt.Sprintf("the file has over %d bytes", maxFile)}
	}
	return text, true, nil
}

// openRegular opens without waiting for the other end of a pipe.
func openRegular(path string) (*os.File, error) {
	fd, err := syscall.Open(path, syscall.O_RDONLY|syscall.O_CLOEXEC|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, &fs.PathError{Op: "open", Path: path, Err: err}
	}
	return os.NewFile(uintptr(fd), path), nil
}

func checkFile(f *os.File, path string, opt Options) error {
	info, err := f.Stat()
	if err != nil {
		return fmt.Errorf("reading configuration: %w", err)
	}
	stat, ok := info.Sys().(*syscall.Stat_t)
	switch {
	case !ok || !info.Mode().IsRegular():
		return fmt.Errorf("reading configuration: %s is %w: it is no regular file", path, ErrUnsafe)
	case int(stat.Uid) != opt.RootUID && int(stat.Uid) != opt.UID:
		return fmt.Errorf("reading configuration: %s is %w: it belongs to uid %d, and only root's and your own count", path, ErrUnsafe, stat.Uid)
	case info.Mode().Perm()&0o022 != 0:
		return fmt.Errorf("reading configuration: %s is %w: its mode is %#o; chmod go-w mends it", path, ErrUnsafe, info.Mode().Perm())
	}
	return nil
}
