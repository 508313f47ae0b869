package stdio

import (
	"errors"
	"fmt"
	"os"
	"os/signal"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
	"golang.org/x/term"
)

// line is the caller's terminal while the command has one of its own.
type line struct {
	out *passage // what the command's terminal shows there

	mu    sync.Mutex
	saved *term.State // the caller's modes, while they are raw
	asked []question  // what the terminal has still to answer, in its order
	heard answers
	over  chan struct{} // closed when the caller's terminal is left
	quiet chan struct{} // closed when nothing is asked any more and the line is being left
}

// Bounds of what the command may ask the caller's terminal: no more than this many
// answers can be on their way, and the end waits for them no longer than this.
const (
	maxAsked   = 8
	answerWait = 250 * time.Millisecond
)

// lookAgain is how often sbx in the background looks whether it came to the foreground.
const lookAgain = 200 * time.Millisecond

// passage is one way to a terminal of the caller's.
type passage struct {
	to        *os.File
	raw       bool // unfiltered
	filter    filter
	buf       []byte
	alternate atomic.Bool // the command is on the alternate screen
}

func newPassage(to *os.File, raw bool) *passage { return &passage{to: to, raw: raw} }

// filtered returns what of b may reach the terminal, valid until the next call.
func (p *passage) filtered(b []byte) []byte {
	p.buf = p.filter.feed(p.buf[:0], b)
	p.alternate.Store(slices.ContainsFunc(p.filter.changed.modes, func(m int) bool { return m == 47 || m == 1047 || m == 1049 }))
	if p.raw {
		return b
	}
	return p.buf
}

// leave puts back what the command has changed.
func (p *passage) leave() {
	if text := string(p.filter.finish(nil)) + p.filter.changed.undo(); text != "" {
		_, _ = p.to.WriteString(text)
	}
}

// openScreens prepares the ways to the caller's terminals.
func (s *Streams) openScreens(raw bool) {
	if t := s.terminal(); t != nil {
		s.line.out, s.line.over, s.line.quiet = newPassage(t, raw), make(chan struct{}), make(chan struct{})
		s.line.out.filter.ask = s.mayAsk
	}
	for fd := 1; fd <= 2; fd++ {
		if !s.TTY[fd] && term.IsTerminal(int(s.caller[fd].Fd())) {
			s.screen[fd] = newPassage(s.caller[fd], raw)
		}
	}
}

// terminal is where the command's terminal is shown; nil when it has none.
func (s *Streams) terminal() *os.File {
	for _, fd := range []int{1, 2, 0} {
		if s.TTY[fd] {
			return s.caller[fd]
		}
	}
	return nil
}

// AttachPty takes over the master of the command's pty and puts the caller's
// terminal into raw mode where sbx is in its foreground.
func (s *Streams) AttachPty(master *os.File) error {
	// Reading must end with the command, also where a slave stays open elsewhere, so
	// it may not block the thread.
	fd, err := unix.FcntlInt(master.Fd(), unix.F_DUPFD_CLOEXEC, 3)
	if err == nil {
		err = unix.SetNonblock(fd, true)
	}
	_ = master.Close()
	if err != nil {
		return fmt.Errorf("taking over the command's terminal: %w", err)
	}
	s.pty = os.NewFile(uintptr(fd), "pty")
	if !s.TTY[0] || !foreground(s.caller[0]) {
		return nil
	}
	return s.enterRaw()
}

// enterRaw lets the command's own terminal decide what keys mean.
func (s *Streams) enterRaw() error {
	s.line.mu.Lock()
	defer s.line.mu.Unlock()
	select {
	case <-s.line.over:
		return nil
	default:
	}
	if s.line.saved != nil {
		return nil
	}
	state, err := term.MakeRaw(int(s.caller[0].Fd()))
	if err != nil {
		return fmt.Errorf("setting the terminal to raw mode: %w", err)
	}
	s.line.saved = state
	return nil
}

func foreground(f *os.File) bool {
	group, err := unix.IoctlGetInt(int(f.Fd()), unix.TIOCGPGRP)
	return err == nil && group == unix.Getpgrp()
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

// Resize gives the pty the caller's window size.
func (s *Streams) Resize() {
	s.size()
	if s.pty == nil || s.Rows == 0 {
		return
	}
	_ = control(s.pty, func(fd int) error {
		return unix.IoctlSetWinsize(fd, unix.TIOCSWINSZ, &unix.Winsize{Row: s.Rows, Col: s.Cols})
	})
}

// Raw reports whether the command has its terminal in a mode in which another's
// lines would spoil its screen.
func (s *Streams) Raw() bool {
	return s.pty != nil && (s.line.out.alternate.Load() || !s.canonical())
}

// canonical reports whether the command reads its terminal line by line.
func (s *Streams) canonical() bool {
	var t *unix.Termios
	err := control(s.pty, func(fd int) (err error) {
		t, err = unix.IoctlGetTermios(fd, unix.TCGETS)
		return err
	})
	return err != nil || t.Lflag&unix.ICANON != 0
}

// control calls f with the descriptor, which stays non-blocking.
func control(file *os.File, f func(fd int) error) error {
	raw, err := file.SyscallConn()
	if err != nil {
		return err
	}
	var ferr error
	err = raw.Control(func(fd uintptr) { ferr = f(int(fd)) })
	return errors.Join(err, ferr)
}

// InRawMode reports whether the caller's own terminal is in raw mode, so that a
// line must end in CR LF.
func (s *Streams) InRawMode() bool {
	s.line.mu.Lock()
	defer s.line.mu.Unlock()
	return s.line.saved != nil
}

// typed passes keys and the terminal's answers on, until the terminal is left. In the
// background nothing is read: the kernel would stop sbx for it.
func (s *Streams) typed() {
	buf := make([]byte, 4096)
	for s.awaitForeground() {
		n, err := s.caller[0].Read(buf)
		s.hear(buf[:n])
		_, _ = s.pty.Write(buf[:n]) // when the command is dead, what comes is thrown away
		if err != nil || n == 0 {
			return
		}
	}
}

// awaitForeground returns false when the terminal is left.
func (s *Streams) awaitForeground() bool {
	for {
		if foreground(s.caller[0]) {
			if s.InRawMode() {
				return true
			}
			s.Resize()
			return s.enterRaw() == nil && s.InRawMode()
		}
		select {
		case <-s.line.over:
			return false
		case <-time.After(lookAgain):
		}
	}
}

// mayAsk reports whether a question may reach the terminal. The command must be the one
// that gets the answer: it has the keys, and reads them one by one.
func (s *Streams) mayAsk(q question) bool {
	if s.canonical() {
		return false
	}
	s.line.mu.Lock()
	defer s.line.mu.Unlock()
	if s.line.saved == nil || len(s.line.asked) >= maxAsked {
		return false
	}
	s.line.asked = append(s.line.asked, q)
	return true
}

// hear notes the answers among the keys. Terminals answer in order, so that one answer
// settles what was asked before, too.
func (s *Streams) hear(b []byte) {
	s.line.mu.Lock()
	defer s.line.mu.Unlock()
	for _, c := range b {
		q, ok := s.line.heard.next(c)
		if i := slices.Index(s.line.asked, q); ok && i >= 0 {
			s.line.asked = s.line.asked[i+1:]
		}
	}
	select {
	case <-s.line.over:
		if s.line.asked != nil && len(s.line.asked) == 0 {
			s.line.asked = nil
			close(s.line.quiet)
		}
	default:
	}
}

// leave leaves the caller's terminal as it was. What was typed ahead is thrown away:
// answers to what the command asked are not for the caller's shell.
func (s *Streams) leave() {
	s.left.Do(func() {
		for _, p := range append(s.screen[:], s.line.out) {
			if p != nil {
				p.leave()
			}
		}
		if s.pty == nil {
			return
		}
		signal.Ignore(unix.SIGTTOU) // what follows is for the foreground, or does no harm
		s.settle()
		s.line.mu.Lock()
		defer s.line.mu.Unlock()
		terminal := int(s.line.out.to.Fd())
		if s.line.saved == nil && !s.line.out.raw || !foreground(s.line.out.to) {
			return
		}
		_ = unix.IoctlSetInt(terminal, unix.TCFLSH, unix.TCIFLUSH)
		if s.line.saved != nil {
			_ = term.Restore(int(s.caller[0].Fd()), s.line.saved)
		}
	})
}

// settle waits for the answers that are still on their way. A last question of sbx's own
// tells where they end.
func (s *Streams) settle() {
	s.line.mu.Lock()
	close(s.line.over)
	open := s.line.saved != nil && len(s.line.asked) > 0
	if open {
		s.line.asked = append(s.line.asked, askStatus)
		_, _ = s.line.out.to.WriteString("\x1b[5n")
	}
	s.line.mu.Unlock()
	if !open {
		return
	}
	select {
	case <-s.line.quiet:
	case <-time.After(answerWait):
	}
}

// answers finds what a terminal answers among the keys.
type answers struct {
	at   int // bytes of the sequence so far
	head byte
	tail byte // the last byte before the final one
}

// next takes one byte; ok when it completes an answer.
func (a *answers) next(b byte) (q question, ok bool) {
	switch {
	case b == esc:
		*a = answers{at: 1}
		return 0, false
	case a.at == 1 && b == '[':
		a.at = 2
		return 0, false
	case a.at < 2:
		a.at = 0
		return 0, false
	case b >= ' ' && b < '@':
		if a.at == 2 {
			a.head = b
		}
		a.at, a.tail = 3, b
		return 0, false
	}
	defer func() { *a = answers{} }()
	switch q = question(b); q {
	case askDevice, askKeyboard:
		return q, a.head == '?'
	case askMode:
		return q, a.tail == '$'
	case askStatus, askCursor:
		return q, a.at == 3
	}
	return 0, false
}
