// Package stdio stands between the caller's first three descriptors and the
// command's: the command only ever gets pipes that sbx made, or a private pty. It
// could open any other again for writing (proc_pid_fd(5)), a shell's script on
// stdin for one.
package stdio

import (
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
	"golang.org/x/term"

	"github.com/fractalboxdev/sbx/internal/trap"
)

// pumpBytes is the size of one copy.
const pumpBytes = 64 << 10

// TTY says whether the command gets a private terminal.
type TTY int

// TTYAuto gives one where the caller has one. Unfiltered can be added: what the command
// writes then reaches the caller's terminal as it is.
const (
	TTYAuto    TTY = 0
	TTYNever   TTY = 1
	Unfiltered TTY = 2
)

// Refused says that one of the caller's descriptors cannot be passed on.
type Refused struct{ FD, What string }

// Error names the descriptor and what it is.
func (r *Refused) Error() string {
	return r.FD + " is " + r.What + ": the command could reach the host through it"
}

// Streams are the three streams of one command.
type Streams struct {
	TTY, Null  [3]bool
	Rows, Cols uint16
	// Trap is told of faults of the goroutines that Start begins; set it before.
	Trap trap.Trap

	caller [3]*os.File
	child  [3]*os.File // what the command gets, until Sent
	out    [3]*os.File // our read ends of stdout and stderr
	in     source      // what feeds the command's stdin, or nil
	pty    *os.File
	line   line        // the caller's terminal, where the command has one
	screen [3]*passage // to what of the caller's outputs is a terminal
	log    func(fd int) io.Writer
	logMu  sync.Mutex
	pumps  sync.WaitGroup
	failed atomic.Pointer[error]
	left   sync.Once
}

// Open decides what the command gets for the caller's descriptors and makes the
// pipes. owner, if not nil, is the host uid and gid of the command, so that it can
// open /dev/stdout again.
func Open(stdin, stdout, stderr *os.File, mode TTY, owner *[2]int) (*Streams, error) {
	s := &Streams{caller: [3]*os.File{stdin, stdout, stderr}}
	for fd, f := range s.caller {
		s.TTY[fd] = mode&TTYNever == 0 && term.IsTerminal(int(f.Fd()))
	}
	s.openScreens(mode&Unfiltered != 0)
	err := errors.Join(s.openInput(), s.openOutputs())
	if err == nil && owner != nil {
		err = s.give(owner)
	}
	if err != nil {
		s.Close()
		return nil, err
	}
	s.size()
	return s, nil
}

func (s *Streams) openInput() error {
	if s.TTY[0] {
		return nil
	}
	kind, err := classify(s.caller[0])
	if err != nil {
		return err
	}
	switch kind {
	case inputNull:
		s.Null[0] = true
	case inputPipe:
		s.in, s.child[0], err = newTee(s.caller[0])
	case inputPump, inputFile:
		s.in, s.child[0], err = newCopy(s.caller[0], kind == inputFile)
	}
	if err == nil && s.child[0] != nil {
		// A command that opened its own input for writing would wait there for itself
		// as soon as the pipe is full.
		if err = s.child[0].Chmod(0o400); err != nil {
			err = fmt.Errorf("making the command's stdin read-only: %w", err)
		}
	}
	return err
}

// openOutputs makes one pipe for both where both of the caller's are the same
// file, so that the order of what is written stays.
func (s *Streams) openOutputs() error {
	for fd := 1; fd <= 2; fd++ {
		if s.TTY[fd] {
			continue
		}
		if fd == 2 && s.child[1] != nil && sameFile(s.caller[1], s.caller[2]) {
			var err error
			s.child[2], err = duplicate(s.child[1])
			return err
		}
		r, w, err := os.Pipe()
		if err != nil {
			return fmt.Errorf("making the command's pipes: %w", err)
		}
		s.out[fd], s.child[fd] = r, w
	}
	return nil
}

// give makes the pipes the command's own: as root it runs as somebody else.
func (s *Streams) give(owner *[2]int) error {
	for _, f := range s.child {
		if f == nil {
			continue
		}
		if err := f.Chown(owner[0], owner[1]); err != nil {
			return fmt.Errorf("giving the command its pipes: %w", err)
		}
	}
	return nil
}

// Pipes returns what the command gets, in the order of the descriptors, without
// those that are a terminal or null.
func (s *Streams) Pipes() (files []*os.File) {
	for _, f := range s.child {
		if f != nil {
			files = append(files, f)
		}
	}
	return files
}

// Sent closes this process's copies of the command's ends.
func (s *Streams) Sent() {
	for fd, f := range s.child {
		if f != nil {
			_ = f.Close()
			s.child[fd] = nil
		}
	}
}

// Start begins to copy in both directions. Everything that the command writes also
// goes to the log of its stream, 1 or 2; what it writes to a terminal, or to both as
// one, goes to that of 1. A nil log keeps nothing.
func (s *Streams) Start(log func(fd int) io.Writer) {
	s.log = log
	for fd := 1; fd <= 2; fd++ {
		if s.out[fd] != nil {
			s.pumps.Add(1)
			s.Trap.Go(func() { s.pump(fd, s.out[fd], s.caller[fd], s.screen[fd]) })
		}
	}
	if s.pty != nil {
		s.pumps.Add(1)
		s.Trap.Go(func() { s.pump(1, s.pty, s.line.out.to, s.line.out) })
		if s.TTY[0] {
			s.Trap.Go(s.typed)
		}
	}
	if s.in != nil {
		s.in.start(s.Trap)
	}
}

// pump copies until the last writer is gone, or Finish says that whoever still
// holds the other end is not the command. When the caller's reader is gone the
// command's pipe is closed too, so that it sees what it would see outside.
func (s *Streams) pump(fd int, from, to *os.File, through *passage) {
	defer s.pumps.Done()
	defer from.Close()
	var log io.Writer
	if s.log != nil {
		log = s.log(fd)
	}
	buf := make([]byte, pumpBytes)
	read := from.Read
	for {
		n, err := read(buf)
		if n > 0 && !s.passOn(to, log, through, buf[:n]) {
			return
		}
		if errors.Is(err, os.ErrDeadlineExceeded) {
			read = func(b []byte) (int, error) { return readReady(from, b) }
			continue
		}
		if err != nil {
			return // EOF, or EIO from a pty whose last slave is closed
		}
	}
}

// passOn gives the caller what the command wrote, and the log all of it.
func (s *Streams) passOn(to *os.File, log io.Writer, through *passage, b []byte) bool {
	err := s.record(log, b)
	if through != nil {
		b = through.filtered(b)
	}
	if len(b) > 0 {
		_, werr := to.Write(b)
		err = errors.Join(werr, err)
	}
	if err != nil {
		s.fail(err)
	}
	return err == nil
}

// readReady reads what lies there and never waits.
func readReady(from *os.File, b []byte) (n int, err error) {
	err = control(from, func(fd int) (err error) {
		n, err = unix.Read(fd, b)
		return err
	})
	if n <= 0 && err == nil {
		err = io.EOF
	}
	return max(n, 0), err
}

func (s *Streams) record(log io.Writer, b []byte) error {
	if log == nil {
		return nil
	}
	s.logMu.Lock()
	defer s.logMu.Unlock()
	_, err := log.Write(b)
	return err
}

// fail keeps the first failure of a stream. A reader that went away is none.
func (s *Streams) fail(err error) {
	if !errors.Is(err, unix.EPIPE) {
		s.failed.CompareAndSwap(nil, &err)
	}
}

// Finish passes on everything that the command wrote, restores the terminal and
// gives back what of stdin was not read. The command must be dead: what it had
// written lies in the pipes already, and nobody else's writing is waited for. It
// returns the first failure of an output stream.
func (s *Streams) Finish() error {
	s.Sent() // where the command never started
	for _, f := range append(s.out[1:], s.pty) {
		if f != nil {
			_ = f.SetReadDeadline(time.Unix(1, 0))
		}
	}
	s.pumps.Wait()
	s.leave()
	if s.in != nil {
		s.in.finish()
	}
	if err := s.failed.Load(); err != nil {
		return fmt.Errorf("passing on the command's output: %w", *err)
	}
	return nil
}

// Close gives up everything that is still open and restores the terminal.
func (s *Streams) Close() {
	s.Sent()
	for _, f := range s.out {
		if f != nil {
			_ = f.Close()
		}
	}
	if s.in != nil {
		s.in.finish()
	}
	s.leave()
}
