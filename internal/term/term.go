// Package term is the only writer of styled output. Its rules:
//
//   - What sbx says goes to stderr, one line a thought, beginning with "sbx: ",
//     no capital, no period. What a person asked for (a list, JSON) goes to stdout.
//   - Styles and cursor movement only on a terminal; NO_COLOR and TERM=dumb are
//     honoured; no meaning in color alone.
//   - Text of the sandbox and of files is escaped: nothing it holds moves the
//     cursor, ends the line or turns the reading direction.
//   - Nothing is asked of the terminal, and nothing happens before the first write.
package term

import (
	"io"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/charmbracelet/lipgloss"
	"github.com/muesli/termenv"
	xterm "golang.org/x/term"

	"github.com/fractalboxdev/sbx/internal/event"
	"github.com/fractalboxdev/sbx/internal/report"
)

// maxHeld is how many lines a held Printer keeps before it only counts them.
const maxHeld = 1000

// progressAfter is how long something takes before a person is told.
const progressAfter = time.Second

// Printer writes lines for people. Its methods are safe for concurrent use. A
// write that fails is lost; Err tells.
type Printer struct {
	w      io.Writer
	getenv func(string) string
	after  func(time.Duration, func()) (stop func() bool)

	detect sync.Once
	cursor bool // a terminal that can be moved about on
	styles styles

	mu       sync.Mutex
	progress string // the line being shown, "" for none
	err      error  // of the first write that failed
	holding  bool
	held     []string
	dropped  int
	mask     func(string) string // nil: nothing to take out
}

type styles struct{ bold, faint, good, bad, unsure lipgloss.Style }

// New makes a Printer. getenv is asked for NO_COLOR and TERM at the first write.
func New(w io.Writer, getenv func(string) string) *Printer {
	return &Printer{w: w, getenv: getenv, after: func(d time.Duration, f func()) func() bool {
		return time.AfterFunc(d, f).Stop
	}}
}

// look finds out, once, what the writer is.
func (p *Printer) look() {
	p.detect.Do(func() {
		profile := termenv.Ascii
		if f, ok := p.w.(*os.File); ok && xterm.IsTerminal(int(f.Fd())) {
			p.cursor = p.getenv("TERM") != "dumb" && p.getenv("TERM") != ""
		}
		if p.cursor && p.getenv("NO_COLOR") == "" {
			profile = termenv.ANSI
		}
		r := lipgloss.NewRenderer(p.w)
		r.SetColorProfile(profile) // else lipgloss looks for it in the environment of the process
		p.styles = styles{
			bold:   r.NewStyle().Bold(true),
			faint:  r.NewStyle().Faint(true),
			good:   r.NewStyle().Foreground(lipgloss.Color("2")),
			bad:    r.NewStyle().Foreground(lipgloss.Color("1")),
			unsure: r.NewStyle().Foreground(lipgloss.Color("3")),
		}
	})
}

// Line writes "sbx: " and the text, escaped.
func (p *Printer) Line(text string) {
	p.look()
	p.write(p.styles.bold.Render("sbx:") + " " + Escape(text) + "\n")
}

// Error writes what failed and, if there is one, the next step.
func (p *Printer) Error(err error, next string) {
	p.look()
	out := p.styles.bad.Render("sbx:") + " " + Escape(oneLine(err.Error())) + "\n"
	if next != "" {
		out += "  " + p.styles.bold.Render("next:") + " " + Escape(next) + "\n"
	}
	p.write(out)
}

// DenialLine writes one ASCII line about a denial that is new.
func (p *Printer) DenialLine(d event.Denial) {
	p.look()
	p.write(p.styles.bad.Render("sbx:") + " " + denialText(d) + "\n")
}

func denialText(d event.Denial) string {
	if d.Host == "" && d.Method == "" && d.Code == report.CodeOverflow {
		return ascii(d.Reason)
	}
	word := "denied"
	if d.WouldDeny {
		word = "would deny"
	}
	asked := strings.TrimSpace(d.Method + " " + report.Target(d))
	return ascii(word + " " + asked + ": " + report.Why(d) + " (" + d.Code + "); to allow: " + report.Suggest(d))
}

// maxDenialLine is in bytes: a path twice, a reason, and what stands between.
const maxDenialLine = 4096

func ascii(s string) string { return report.Text(s, maxDenialLine) }

// Raw writes text that the program made itself, as JSON, without escaping.
func (p *Printer) Raw(text string) {
	p.look()
	p.write(text)
}

// Hold keeps lines back while the command has the terminal to itself (raw mode,
// alternate screen); Release writes them. The first thousand are kept, the rest
// is counted.
func (p *Printer) Hold() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.clear()
	p.holding = true
}

// Release ends Hold.
func (p *Printer) Release() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.holding = false
	out := strings.Join(p.held, "")
	if p.dropped > 0 {
		out += "sbx: more lines than could be held back were dropped; the run's directory has the denials\n"
	}
	p.held, p.dropped = nil, 0
	if out != "" {
		p.put(out)
	}
}

// Err returns the error of the first write that failed.
func (p *Printer) Err() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.err
}

// put writes at once. The caller holds the lock.
func (p *Printer) put(text string) {
	if _, err := io.WriteString(p.w, text); err != nil && p.err == nil {
		p.err = err
	}
}

// Mask makes everything that is written from now on go through f: it takes the
// secrets of a run out.
func (p *Printer) Mask(f func(string) string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.mask = f
}

// write puts the text out with one write, around the progress line.
func (p *Printer) write(text string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.mask != nil {
		text = p.mask(text)
	}
	switch {
	case p.holding && len(p.held) >= maxHeld:
		p.dropped++
	case p.holding:
		p.held = append(p.held, text)
	case p.progress != "" && p.cursor:
		p.put(eraseLine + text + p.progress)
	default:
		p.put(text)
	}
}

// Interactive reports whether a person can be asked on a file.
func Interactive(f *os.File) bool { return xterm.IsTerminal(int(f.Fd())) }
