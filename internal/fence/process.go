package fence

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"time"

	"golang.org/x/sys/unix"
)

// process is a process held by descriptor, so that its pid cannot come to mean
// another one (pidfd_open(2)).
type process struct{ fd int }

// openProcess opens a process whose parent must be the given one.
func openProcess(pid, parent int) (*process, error) {
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return nil, fmt.Errorf("watching process %d: %w", pid, err)
	}
	got, err := parentOf(pid)
	if err == nil && got != parent {
		err = fmt.Errorf("its parent is %d, not %d", got, parent)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("watching process %d: %w", pid, err), unix.Close(fd))
	}
	return &process{fd: fd}, nil
}

// parentOf reads the fourth field of proc_pid_stat(5).
func parentOf(pid int) (int, error) {
	stat, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return 0, err
	}
	_, rest, ok := bytes.Cut(stat[bytes.LastIndexByte(stat, ')')+1:], []byte(" "))
	fields := bytes.Fields(rest)
	if !ok || len(fields) < 2 {
		return 0, errors.New("reading its parent")
	}
	return strconv.Atoi(string(fields[1]))
}

// await returns nil once the process has ended.
func (p *process) await(ctx context.Context) error {
	limit := -1
	if until, ok := ctx.Deadline(); ok {
		limit = int(max(0, time.Until(until).Milliseconds()))
	}
	poll := []unix.PollFd{{Fd: int32(p.fd), Events: unix.POLLIN}} //nolint:gosec // a descriptor
	var n int
	err := retried(func() (err error) {
		n, err = unix.Poll(poll, limit)
		return err
	})
	switch {
	case err != nil:
		return fmt.Errorf("waiting for a process: %w", err)
	case n == 0:
		return errors.New("waiting for a process: it did not end in time")
	}
	return nil
}

// retried repeats a call that a signal interrupted.
func retried(call func() error) error {
	for {
		if err := call(); !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}
