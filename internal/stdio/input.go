package stdio

import (
	"errors"
	"fmt"
	"io"
	"os"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/fractalboxdev/sbx/internal/trap"
)

type inputKind int

const (
	inputNull inputKind = iota // nothing to read
	inputPipe                  // mirrored, so that nothing is taken that was not read
	inputPump                  // copied
	inputFile                  // copied, and what was not read is given back
)

// source feeds the command's stdin.
type source interface {
	start(trap.Trap)
	finish() // the command is dead: stop, and give back what it did not read
}

// Device numbers of /dev/null (null(4)).
const (
	nullMajor = 1
	nullMinor = 3
)

func classify(f *os.File) (inputKind, error) {
	var stat unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &stat); err != nil {
		return 0, fmt.Errorf("looking at stdin: %w", err)
	}
	switch stat.Mode & unix.S_IFMT {
	case unix.S_IFREG:
		return inputFile, nil
	case unix.S_IFSOCK:
		return inputPump, nil
	case unix.S_IFIFO:
		return inputPipe, nil
	case unix.S_IFCHR:
		return classifyDevice(f, stat.Rdev)
	case unix.S_IFDIR:
		return 0, &Refused{FD: "stdin", What: "a directory"}
	}
	return 0, &Refused{FD: "stdin", What: "a block device"}
}

func classifyDevice(f *os.File, rdev uint64) (inputKind, error) {
	if unix.Major(rdev) == nullMajor && unix.Minor(rdev) == nullMinor {
		return inputNull, nil
	}
	// A terminal that the caller did not want to lend (--no-tty): copied.
	if _, err := unix.IoctlGetTermios(int(f.Fd()), unix.TCGETS); err == nil {
		return inputPump, nil
	}
	return 0, &Refused{FD: "stdin", What: "a device"}
}

func sameFile(a, b *os.File) bool {
	ai, aerr := a.Stat()
	bi, berr := b.Stat()
	return aerr == nil && berr == nil && os.SameFile(ai, bi)
}

func duplicate(f *os.File) (*os.File, error) {
	fd, err := unix.FcntlInt(f.Fd(), unix.F_DUPFD_CLOEXEC, 3)
	if err != nil {
		return nil, fmt.Errorf("duplicating %s: %w", f.Name(), err)
	}
	return os.NewFile(uintptr(fd), f.Name()), nil
}

// copied copies the caller's stdin into a pipe.
type copied struct {
	from  *os.File
	to    *os.File // our end of the pipe
	peek  *os.File // its other end, to count what was never read
	file  bool
	begin int64

	mu      sync.Mutex
	sent    int64
	done    bool
	pumping sync.WaitGroup
}

func newCopy(from *os.File, file bool) (source, *os.File, error) {
	r, w, err := os.Pipe()
	if err != nil {
		return nil, nil, fmt.Errorf("making the command's stdin: %w", err)
	}
	in := &copied{from: from, to: w, file: file}
	if file {
		in.begin, err = from.Seek(0, io.SeekCurrent)
		if err == nil {
			in.peek, err = duplicate(r)
		}
		if err != nil {
			return nil, nil, errors.Join(fmt.Errorf("preparing stdin: %w", err), r.Close(), w.Close())
		}
	}
	return in, r, nil
}

func (in *copied) start(t trap.Trap) { in.pumping.Go(func() { defer t.Catch(); in.pump() }) }

// pump copies until the end of the file or of the command. A file is read at
// explicit offsets, so that the caller's own offset stays until finish.
func (in *copied) pump() {
	defer in.close()
	buf := make([]byte, pumpBytes)
	for {
		n, err := in.read(buf)
		if n > 0 {
			// The count comes first: finish subtracts what still lies in the pipe.
			written, werr := in.to.Write(buf[:n])
			in.count(written)
			if werr != nil {
				return
			}
		}
		if err != nil {
			return
		}
	}
}

func (in *copied) read(buf []byte) (int, error) {
	if !in.file {
		return in.from.Read(buf)
	}
	in.mu.Lock()
	at := in.begin + in.sent
	in.mu.Unlock()
	return in.from.ReadAt(buf, at)
}

func (in *copied) count(n int) {
	in.mu.Lock()
	in.sent += int64(n)
	in.mu.Unlock()
}

func (in *copied) close() {
	in.mu.Lock()
	defer in.mu.Unlock()
	if !in.done {
		in.done = true
		_ = in.to.Close()
	}
}

// finish stops the copy; of a file it sets the caller's offset to the first byte
// that the command did not read.
func (in *copied) finish() {
	in.close()
	if in.peek == nil {
		return
	}
	in.pumping.Wait() // reading a file does not block, and the closed pipe ends a write
	if left, err := unread(in.peek); err == nil {
		_, _ = in.from.Seek(in.begin+in.sent-int64(left), io.SeekStart)
	}
	_ = in.peek.Close()
	in.peek = nil
}

// unread is how many bytes still lie in a pipe.
func unread(pipe *os.File) (int, error) { return unix.IoctlGetInt(int(pipe.Fd()), unix.TIOCINQ) }
