package store

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"
)

// gatesDir holds the gates. A gate is a named pipe which its holder keeps open and
// locked: the lock tells at any time, from any pid namespace, whether the holder lives
// (fcntl(2), open file description locks), and the pipe's hang-up wakes who
// waits for its end (poll(2)). Neither survives the holder, however it ends; the kernel
// releases the lock before it reports the hang-up.
const gatesDir = "gates"

func slotName(class string, slot int) string { return "slot." + class + "." + strconv.Itoa(slot) }
func waitName(run string) string             { return "wait." + run }

type gate struct{ fd int }

func wholeFile(kind int16) *unix.Flock_t {
	return &unix.Flock_t{Type: kind, Whence: 0, Start: 0, Len: 0}
}

// hold makes the gate where it is missing and takes it; nil means that another process
// has it. Only one transaction at a time does this.
func (s *Store) hold(name string) (*gate, error) {
	fd, err := s.openGate(name, unix.O_RDWR)
	if errors.Is(err, fs.ErrNotExist) {
		if err = s.makeGate(name); err == nil {
			fd, err = s.openGate(name, unix.O_RDWR)
		}
	}
	if err != nil {
		return nil, s.explain("taking a slot", err)
	}
	err = unix.FcntlFlock(uintptr(fd), unix.F_OFD_SETLK, wholeFile(unix.F_WRLCK))
	if err == nil {
		return &gate{fd}, nil
	}
	_ = unix.Close(fd)
	if errors.Is(err, unix.EAGAIN) || errors.Is(err, unix.EACCES) {
		return nil, nil //nolint:nilnil // somebody else has it
	}
	return nil, s.explain("taking a slot", fmt.Errorf("locking %s: %w", name, err))
}

func (g *gate) unlock() error {
	if err := unix.FcntlFlock(uintptr(g.fd), unix.F_OFD_SETLK, wholeFile(unix.F_UNLCK)); err != nil {
		return fmt.Errorf("unlocking a slot: %w", err)
	}
	return nil
}

func (g *gate) close() error {
	if err := unix.Close(g.fd); err != nil {
		return fmt.Errorf("closing a slot: %w", err)
	}
	return nil
}

// held asks whether a living process has the gate.
func (s *Store) held(name string) (bool, error) {
	fd, err := s.openGate(name, unix.O_RDONLY)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, s.explain("looking at a slot", err)
	}
	defer unix.Close(fd)
	held, err := lockedByOther(fd)
	if err != nil {
		return false, s.explain("looking at a slot", fmt.Errorf("asking for the lock of %s: %w", name, err))
	}
	return held, nil
}

// lockedByOther asks for a lock without taking it.
func lockedByOther(fd int) (bool, error) {
	lock := wholeFile(unix.F_WRLCK)
	err := unix.FcntlFlock(uintptr(fd), unix.F_OFD_GETLK, lock)
	return lock.Type != unix.F_UNLCK, err
}

// watch opens the gates for their holders' end; nil means that one has ended already.
// The order matters: what is open before the lock is looked at reports every later end.
func (s *Store) watch(names []string) (*Watch, error) {
	w := &Watch{}
	for _, name := range names {
		fd, err := s.openGate(name, unix.O_RDONLY)
		held := false
		if err == nil {
			w.fds = append(w.fds, unix.PollFd{Fd: int32(fd), Events: unix.POLLIN}) //nolint:gosec // a descriptor
			held, err = lockedByOther(fd)
		}
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			w.close()
			return nil, s.explain("watching a slot", err)
		}
		if !held {
			w.close()
			return nil, nil //nolint:nilnil // there is nothing to wait for
		}
	}
	return w, nil
}

// openGate opens a gate that is the caller's own named pipe, without waiting.
func (s *Store) openGate(name string, mode int) (int, error) {
	path := filepath.Join(s.dir, gatesDir, name)
	fd, err := unix.Open(path, mode|unix.O_NONBLOCK|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return -1, &fs.PathError{Op: "open", Path: path, Err: err}
	}
	var stat unix.Stat_t
	err = unix.Fstat(fd, &stat)
	if err == nil && (stat.Mode&unix.S_IFMT != unix.S_IFIFO || int(stat.Uid) != os.Geteuid()) {
		err = &Error{Kind: ErrForeign, Path: path, Detail: "it is not a named pipe of yours"}
	}
	if err != nil {
		return -1, errors.Join(err, unix.Close(fd))
	}
	return fd, nil
}

func (s *Store) makeGate(name string) error {
	dir := filepath.Join(s.dir, gatesDir)
	if err := os.Mkdir(dir, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return fmt.Errorf("making %s: %w", dir, err)
	}
	info, err := os.Lstat(dir)
	if err != nil {
		return fmt.Errorf("reading %s: %w", dir, err)
	}
	if !info.IsDir() {
		return &Error{Kind: ErrForeign, Path: dir, Detail: "it is not a directory"}
	}
	if err := checkOwn(dir, info); err != nil {
		return err
	}
	path := filepath.Join(dir, name)
	if err := unix.Mkfifo(path, 0o600); err != nil && !errors.Is(err, syscall.EEXIST) {
		return fmt.Errorf("making the named pipe %s: %w", path, err)
	}
	return nil
}

func (s *Store) removeGate(name string) error {
	err := os.Remove(filepath.Join(s.dir, gatesDir, name))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return s.explain("leaving the queue", err)
	}
	return nil
}
