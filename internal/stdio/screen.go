package stdio

import (
	"io"
	"os"

	"golang.org/x/term"
)

// Screen writes what an earlier command wrote, filtered as a command's own output where
// to is a terminal, unless raw. Close puts the terminal back.
type Screen struct {
	to      *os.File
	passage *passage // nil: not a terminal
}

// NewScreen makes the way to one of the caller's outputs.
func NewScreen(to *os.File, raw bool) *Screen {
	s := &Screen{to: to}
	if term.IsTerminal(int(to.Fd())) {
		s.passage = newPassage(to, raw)
	}
	return s
}

// Write passes on what may be passed on, and counts all of it.
func (s *Screen) Write(p []byte) (int, error) {
	b := p
	if s.passage != nil {
		b = s.passage.filtered(p)
	}
	if _, err := s.to.Write(b); err != nil {
		return 0, err
	}
	return len(p), nil
}

// Close leaves the terminal as it was.
func (s *Screen) Close() error {
	if s.passage != nil {
		s.passage.leave()
	}
	return nil
}

var _ io.WriteCloser = (*Screen)(nil)
