package stdio

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/fractalboxdev/sbx/internal/trap"
)

// teed mirrors the caller's pipe into one of sbx's own. Bytes are taken from the
// caller's only when the command has read them, so that a loop around sbx keeps the
// lines that the command did not want.
type teed struct {
	from    int // the caller's pipe
	to      int // our end of the command's, which holds one buffer
	peek    *os.File
	wake    int // an eventfd: the command is dead
	pending int // bytes mirrored and not yet taken
	pumping sync.WaitGroup
	once    sync.Once
}

// pageBytes is the size of the command's pipe: with a single buffer it is writable
// exactly when everything in it was read (pipe(7)).
const pageBytes = 4096

func newTee(from *os.File) (source, *os.File, error) {
	var ends [2]int
	if err := unix.Pipe2(ends[:], unix.O_CLOEXEC); err != nil {
		return nil, nil, fmt.Errorf("making the command's stdin: %w", err)
	}
	r, t := os.NewFile(uintptr(ends[0]), "stdin"), &teed{from: int(from.Fd()), to: ends[1]}
	_, err := unix.FcntlInt(uintptr(t.to), unix.F_SETPIPE_SZ, pageBytes)
	if err == nil {
		t.wake, err = unix.Eventfd(0, unix.EFD_CLOEXEC)
	}
	if err == nil {
		t.peek, err = duplicate(r)
	}
	if err != nil {
		return nil, nil, errors.Join(fmt.Errorf("making the command's stdin: %w", err), r.Close(), unix.Close(t.to))
	}
	return t, r, nil
}

func (t *teed) start(catch trap.Trap) { t.pumping.Go(func() { defer catch.Catch(); t.pump() }) }

func (t *teed) pump() {
	for t.waitFor(t.to, unix.POLLOUT) {
		t.take(t.pending)
		t.pending = 0
		if !t.waitFor(t.from, unix.POLLIN) {
			return
		}
		n, err := unix.Tee(t.from, t.to, pageBytes, unix.SPLICE_F_NONBLOCK)
		if errors.Is(err, unix.EAGAIN) || errors.Is(err, unix.EINTR) {
			continue // somebody else read it first
		}
		if err != nil || n == 0 {
			_ = unix.Close(t.to) // the end of what there is to read
			t.to = -1
			return
		}
		t.pending = int(n)
	}
}

// waitFor returns false when the command is dead.
func (t *teed) waitFor(fd int, events int16) bool {
	fds := []unix.PollFd{{Fd: int32(fd), Events: events}, {Fd: int32(t.wake), Events: unix.POLLIN}} //nolint:gosec // descriptors
	for {
		_, err := unix.Poll(fds, -1)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		return err == nil && fds[1].Revents == 0
	}
}

// take removes n bytes from the caller's pipe.
func (t *teed) take(n int) {
	buf := make([]byte, pageBytes)
	for n > 0 {
		ready := []unix.PollFd{{Fd: int32(t.from), Events: unix.POLLIN}} //nolint:gosec // a descriptor
		if _, err := unix.Poll(ready, 0); err != nil || ready[0].Revents&unix.POLLIN == 0 {
			return // somebody else took them
		}
		got, err := unix.Read(t.from, buf[:min(n, len(buf))])
		if err != nil || got <= 0 {
			return
		}
		n -= got
	}
}

// finish takes what the command read of the last bytes and leaves the rest.
func (t *teed) finish() {
	t.once.Do(func() {
		_, _ = unix.Write(t.wake, binary.NativeEndian.AppendUint64(nil, 1))
		t.pumping.Wait()
		if left, err := unread(t.peek); err == nil {
			t.take(t.pending - left)
		}
		_ = t.peek.Close()
		if t.to >= 0 {
			_ = unix.Close(t.to)
		}
		_ = unix.Close(t.wake)
	})
}
