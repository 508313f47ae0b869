// Package stdio stands between the caller's first three descriptors and the
// command's: the command only ever gets pipes that sbx made, a private pty, or an
// anonymous pipe of the caller's on stdin.
package stdio

import (
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"
	"golang.org/x/term"
)

// pipeFS is the magic number of anonymous pipes (statfs(2)).
const pipeFS = 0x50495045

// pumpBytes is the size of one copy.
const pumpBytes = 64 << 10

// TTY says whether the command gets a private terminal.
type TTY int

// TTYAuto gives one where the caller has one.
const (
	TTYAuto TTY = iota
	TTYNever
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

	caller [3]*os.File
	child  [3]*os.File // what the command gets, until Sent
	out    [3]*os.File // our read ends of stdout and stderr
	in     *input      // a pumped stdin, or nil
	pty    *os.File
	saved  *term.State
	log    io.Writer
	logMu  sync.Mutex
	pumps  sync.WaitGroup
	failed atomic.Pointer[error]
	once   sync.Once
}

// Open decides what the command gets for the caller's descriptors and makes the
// pipes. owner, if not nil, is the host uid and gid of the command, so that it can
// open /dev/stdout again.
func Open(stdin, stdout, stderr *os.File, mode TTY, owner *[2]int) (*Streams, error) {
	s := &Streams{caller: [3]*os.File{stdin, stdout, stderr}}
	for fd, f := range s.caller {
		s.TTY[fd] = mode == TTYAuto && term.IsTerminal(int(f.Fd()))
	}
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
	case inputPass:
		s.child[0], err = duplicate(s.caller[0])
	case inputPump, inputFile:
		s.in, s.child[0], err = newInput(s.caller[0], kind == inputFile)
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

func (s *Streams) size() {
	for fd, f := range s.caller {
		if s.TTY[fd] {
			if w, err := unix.IoctlGetWinsize(int(f.Fd()), unix.TIOCGWINSZ); err == nil {
				s.Rows, s.Cols = w.Row, w.Col
				return
			}
		}
	}
}

// HasTTY reports whether the command has the private pty.
func (s *Streams) HasTTY() bool { return s.TTY[0] || s.TTY[1] || s.TTY[2] }

// Pipes returns what the command gets, nil where it opens its own, and which of
// the three are set.
func (s *Streams) Pipes() (files []*os.File, set [3]bool) {
	for fd, f := range s.child {
		if f != nil {
			files, set[fd] = append(files, f), true
		}
	}
	return files, set
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

// AttachPty takes over the master of the command's pty and puts the caller's
// terminal into raw mode where sbx is in its foreground.
func (s *Streams) AttachPty(master *os.File) error {
	s.pty = master
	if !s.TTY[0] || !foreground(s.caller[0]) {
		return nil
	}
	state, err := term.MakeRaw(int(s.caller[0].Fd()))
	if err != nil {
		return fmt.Errorf("setting the terminal to raw mode: %w", err)
	}
	s.saved = state
	return nil
}

func foreground(f *os.File) bool {
	group, err := unix.IoctlGetInt(int(f.Fd()), unix.TIOCGPGRP)
	return err == nil && group == unix.Getpgrp()
}

// Resize gives the pty the caller's window size.
func (s *Streams) Resize() {
	s.size()
	if s.pty == nil || s.Rows == 0 {
		return
	}
	_ = unix.IoctlSetWinsize(int(s.pty.Fd()), unix.TIOCSWINSZ, &unix.Winsize{Row: s.Rows, Col: s.Cols})
}

// Raw reports whether the command has its terminal in a mode in which another's
// lines would spoil its screen.
func (s *Streams) Raw() bool {
	if s.pty == nil {
		return false
	}
	t, err := unix.IoctlGetTermios(int(s.pty.Fd()), unix.TCGETS)
	return err == nil && t.Lflag&unix.ICANON == 0
}

// InRawMode reports whether the caller's own terminal is in raw mode, so that a
// line must end in CR LF.
func (s *Streams) InRawMode() bool { return s.saved != nil }

// Start begins to copy in both directions. Everything that the command writes also
// goes to log.
func (s *Streams) Start(log io.Writer) {
	s.log = log
	for fd := 1; fd <= 2; fd++ {
		if s.out[fd] != nil {
			s.pumps.Add(1)
			go s.pump(s.out[fd], s.caller[fd])
		}
	}
	if s.pty != nil {
		s.pumps.Add(1)
		go s.pump(s.pty, s.terminal())
		if s.TTY[0] {
			go func() { _, _ = io.Copy(s.pty, s.caller[0]) }()
		}
	}
	if s.in != nil {
		s.in.pumping.Add(1)
		go s.in.pump()
	}
}

func (s *Streams) terminal() *os.File {
	for _, fd := range []int{1, 2, 0} {
		if s.TTY[fd] {
			return s.caller[fd]
		}
	}
	return s.caller[2]
}

// pump copies until the last writer is gone. When the caller's reader is gone the
// command's pipe is closed too, so that it sees what it would see outside.
func (s *Streams) pump(from, to *os.File) {
	defer s.pumps.Done()
	defer from.Close()
	buf := make([]byte, pumpBytes)
	for {
		n, err := from.Read(buf)
		if n > 0 {
			if _, werr := to.Write(buf[:n]); werr != nil {
				s.fail(werr)
				return
			}
			if lerr := s.record(buf[:n]); lerr != nil {
				s.fail(lerr)
				return
			}
		}
		if err != nil {
			return // EOF, or EIO from a pty whose last slave is closed
		}
	}
}

func (s *Streams) record(b []byte) error {
	s.logMu.Lock()
	defer s.logMu.Unlock()
	if s.log == nil {
		return nil
	}
	_, err := s.log.Write(b)
	return err
}

// fail keeps the first failure of a stream. A reader that went away is none.
func (s *Streams) fail(err error) {
	if !errors.Is(err, unix.EPIPE) {
		s.failed.CompareAndSwap(nil, &err)
	}
}

// Finish waits for everything that the command wrote, restores the terminal and
// sets the offset of a file on stdin back to what was really read. The command
// must be dead. It returns the first failure of an output stream.
func (s *Streams) Finish() error {
	s.pumps.Wait()
	s.restore()
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
	s.restore()
}

func (s *Streams) restore() {
	s.once.Do(func() {
		if s.saved == nil {
			return
		}
		fd := int(s.caller[0].Fd())
		_ = unix.IoctlSetInt(fd, unix.TCFLSH, unix.TCIFLUSH)
		_ = term.Restore(fd, s.saved)
		_, _ = s.terminal().WriteString(saneTerminal)
	})
}

// saneTerminal leaves the alternate screen, mouse reporting and bracketed paste,
// shows the cursor and resets colours (xterm control sequences).
const saneTerminal = "\x1b[?1049l\x1b[?1000l\x1b[?1002l\x1b[?1003l\x1b[?1006l\x1b[?2004l\x1b[?25h\x1b[m"
