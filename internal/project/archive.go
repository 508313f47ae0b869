package project

import (
	"archive/tar"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Bounds of what one run's archive takes, in bytes.
const (
	maxFile    = 16 << 20
	maxArchive = 64 << 20
	entrySize  = 2 << 10 // what one name costs, besides its own length
)

// Archive is where set-aside files go: one tar file, in which nothing is live. It is
// opened when the first one comes.
type Archive struct {
	Open func() (io.WriteCloser, error)
	Mask func([]byte) []byte // of known secrets; nil for none

	file io.WriteCloser
	tar  *tar.Writer
	size int64
}

// Close ends the archive, if there is one.
func (a *Archive) Close() error {
	if a.tar == nil {
		return nil
	}
	return errors.Join(a.tar.Close(), a.file.Close())
}

// put copies a path of a root, with everything in it, or nothing of it. Names in the
// archive are absolute ones without the leading slash.
func (a *Archive) put(root *os.File, p string, walk func(string, func(string, unix.Stat_t) error) error) error {
	size := int64(0)
	err := walk(p, func(p string, stat unix.Stat_t) error {
		size += entrySize + int64(len(p))
		if stat.Mode&unix.S_IFMT == unix.S_IFREG {
			size += stat.Size
		}
		if stat.Size > maxFile || a.size+size > maxArchive {
			return errTooMuch
		}
		return nil
	})
	if err == nil {
		err = a.start()
	}
	if err != nil {
		return err
	}
	a.size += size
	err = walk(p, func(p string, stat unix.Stat_t) error { return a.add(root, p, stat) })
	if err == nil {
		err = a.tar.Flush()
	}
	return err
}

func (a *Archive) start() (err error) {
	if a.tar != nil {
		return nil
	}
	if a.file, err = a.Open(); err == nil {
		a.tar = tar.NewWriter(a.file)
	}
	return err
}

func (a *Archive) add(root *os.File, p string, stat unix.Stat_t) error {
	h := &tar.Header{
		Name: strings.TrimPrefix(path.Join(root.Name(), p), "/"), Mode: int64(stat.Mode & 0o777),
		ModTime: time.Unix(stat.Mtim.Unix()), Format: tar.FormatPAX,
	}
	var content []byte
	var err error
	switch stat.Mode & unix.S_IFMT {
	case unix.S_IFREG:
		h.Typeflag = tar.TypeReg
		content, err = readWhole(int(root.Fd()), p)
		if a.Mask != nil {
			content = a.Mask(content)
		}
		h.Size = int64(len(content))
	case unix.S_IFDIR:
		h.Typeflag = tar.TypeDir
		h.Name += "/"
	case unix.S_IFLNK:
		h.Typeflag = tar.TypeSymlink
		h.Linkname, err = readLink(int(root.Fd()), p)
	default:
		h.Typeflag = tar.TypeFifo // sockets and whatever else there is: only that it was there
	}
	if err != nil {
		return fmt.Errorf("reading %q: %w", p, err)
	}
	if err := a.tar.WriteHeader(h); err != nil {
		return fmt.Errorf("writing %q into the archive: %w", p, err)
	}
	if _, err := a.tar.Write(content); err != nil {
		return fmt.Errorf("writing %q into the archive: %w", p, err)
	}
	return nil
}

// readWhole reads a regular file; its owner may be without the right to.
func readWhole(root int, p string) ([]byte, error) {
	fd, err := openBeneath(root, p, unix.O_RDONLY|unix.O_NONBLOCK|unix.O_NOCTTY)
	if errors.Is(err, unix.EACCES) {
		if err = allow(root, p, 0o400); err == nil {
			fd, err = openBeneath(root, p, unix.O_RDONLY|unix.O_NONBLOCK|unix.O_NOCTTY)
		}
	}
	if err != nil {
		return nil, err
	}
	f := os.NewFile(uintptr(fd), p)
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, maxFile+1))
	if err == nil && len(text) > maxFile {
		err = errTooMuch
	}
	return text, err
}

// allow adds rights of the owner's to a file or directory, never through a link:
// what the magic link of an O_PATH descriptor leads to is the file itself (proc(5)).
func allow(root int, p string, rights uint32) error {
	fd, err := openBeneath(root, p, unix.O_PATH)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	var stat unix.Stat_t
	if err := unix.Fstat(fd, &stat); err != nil {
		return err
	}
	if stat.Mode&unix.S_IFMT == unix.S_IFLNK {
		return unix.ELOOP
	}
	return unix.Chmod(fmt.Sprintf("/proc/self/fd/%d", fd), stat.Mode&0o7777|rights)
}

func readLink(root int, p string) (string, error) {
	dir, err := openBeneath(root, path.Dir(p), unix.O_PATH|unix.O_DIRECTORY)
	if err != nil {
		return "", err
	}
	defer unix.Close(dir)
	buffer := make([]byte, unix.PathMax)
	n, err := unix.Readlinkat(dir, path.Base(p), buffer)
	if err != nil {
		return "", err
	}
	return string(buffer[:n]), nil
}
