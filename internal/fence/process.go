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
	fields, err := statOf(pid)
	if err != nil {
		return 0, err
	}
	return strconv.Atoi(string(fields[1]))
}

// stopped reports whether a process stands still: stopped by a signal, or traced.
func stopped(pid int) bool {
	fields, err := statOf(pid)
	return err == nil && (fields[0][0] == 'T' || fields[0][0] == 't')
}

// statOf returns the fields of proc_pid_stat(5) from the third on: the second may hold
// anything.
func statOf(pid int) ([][]byte, error) {
	stat, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return nil, err
	}
	fields := bytes.Fields(stat[bytes.LastIndexByte(stat, ')')+1:])
	if len(fields) < 2 {
		return nil, fmt.Errorf("reading the state of process %d", pid)
	}
	return fields, nil
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

// kill ends the process; one that is gone already is as good.
func (p *process) kill() error {
	if err := unix.PidfdSendSignal(p.fd, unix.SIGKILL, nil, 0); err != nil && !errors.Is(err, unix.ESRCH) {
		return fmt.Errorf("killing a process: %w", err)
	}
	return nil
}

func (p *process) close() { _ = unix.Close(p.fd) }

// ended returns a channel that is closed when the process has ended, or when that
// cannot be waited for any more.
func (p *process) ended() <-chan struct{} {
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = p.await(context.Background())
	}()
	return done
}

// retried repeats a call that a signal interrupted.
func retried(call func() error) error {
	for {
		if err := call(); !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}
