package term

import (
	"bytes"
	"errors"
	"io"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/creack/pty"

	"github.com/fractalboxdev/sbx/internal/event"
	"github.com/fractalboxdev/sbx/internal/report"
)

func noEnv(string) string { return "" }

func envOf(pairs ...string) func(string) string {
	return func(name string) string {
		for _, p := range pairs {
			if k, v, _ := strings.Cut(p, "="); k == name {
				return v
			}
		}
		return ""
	}
}

var evil = event.Denial{
	Host: "evil.test", Method: "GET", Path: "/x", Protocol: "https", Port: 443, Count: 1,
	Code: "host-not-granted", Reason: "host is not granted",
}

func TestDenialLineIsOneASCIILine(t *testing.T) {
	var out bytes.Buffer
	New(&out, noEnv).DenialLine(evil)
	want := "sbx: denied GET https://evil.test/x: host is not granted (host-not-granted); to allow: a rule for GET https://evil.test/x\n"
	if out.String() != want {
		t.Errorf("got %q\nwant %q", out.String(), want)
	}
}

func TestDenialLineNamesTheRequestOnce(t *testing.T) {
	var short, long bytes.Buffer
	d := evil
	New(&short, noEnv).DenialLine(d)
	d.Reason = "GET https://evil.test/x: host is not granted."
	New(&long, noEnv).DenialLine(d)
	if short.String() != long.String() {
		t.Errorf("got %q\nwant %q", long.String(), short.String())
	}
}

func TestCase65_DenialLineNeutralisesHostileText(t *testing.T) {
	var out bytes.Buffer
	d := evil
	d.Host, d.Method, d.Path = "e\x1b]0;x\x07.test", "GE\nT", "/\u202e\r\x9b"
	d.Reason, d.WouldDeny = "a\u2028b.", true
	New(&out, noEnv).DenialLine(d)
	line := out.String()
	if strings.Count(line, "\n") != 1 || !strings.HasPrefix(line, "sbx: would deny ") {
		t.Errorf("not one line: %q", line)
	}
	for _, b := range []byte(strings.TrimSuffix(line, "\n")) {
		if b < ' ' || b > '~' {
			t.Fatalf("byte %#x in %q", b, line)
		}
	}
}

func TestOverflowLine(t *testing.T) {
	var out bytes.Buffer
	New(&out, noEnv).DenialLine(event.Denial{Code: report.CodeOverflow, Reason: "further denials are only counted"})
	if want := "sbx: further denials are only counted\n"; out.String() != want {
		t.Errorf("got %q", out.String())
	}
}

func TestErrorNamesTheNextStep(t *testing.T) {
	var out bytes.Buffer
	p := New(&out, noEnv)
	p.Error(errors.Join(errors.New("opening caf\u00e9\x1b[2J"), errors.New("closing it")), "chmod 700 it")
	p.Error(errors.New("alone"), "")
	want := "sbx: opening caf\u00e9\\x1b[2J; closing it\n  next: chmod 700 it\nsbx: alone\n"
	if out.String() != want {
		t.Errorf("got %q\nwant %q", out.String(), want)
	}
}

func TestEscape(t *testing.T) {
	for in, want := range map[string]string{
		"plain ~":      "plain ~",
		"\x00\x7f\t\n": `\x00\x7f\x09\x0a`,
		"\u202e\u2066": `\u202e\u2066`,
		"\u0085\u200b": `\u0085\u200b`,
		"\xffé�":       `\xffé�`,
		"\U000e0041":   `\U000e0041`,
		"日本":           "日本",
	} {
		if got := Escape(in); got != want {
			t.Errorf("Escape(%q) = %q, want %q", in, got, want)
		}
	}
}

func TestSummaryHasEveryColumn(t *testing.T) {
	var out bytes.Buffer
	d := evil
	d.Count = 3
	tcp := event.Denial{Host: "192.0.2.1", Protocol: "tcp", Port: 22, Count: 1, Code: "host-not-granted", Reason: "host is not granted"}
	s := report.Summarise("r1", "/state/runs/r1", []event.Denial{d, tcp, evil}, 2)
	New(&out, noEnv).Summary(s)
	want := `sbx: 5 requests denied
  HOST       METHOD  PATH  COUNT  REASON
  evil.test  GET     /x    3      host is not granted (host-not-granted)
    to allow: a rule for GET https://evil.test/x
  192.0.2.1  -       -     1      host is not granted (host-not-granted)
    to allow: a rule for tcp://192.0.2.1:22
  and 1 more row, in denials.jsonl
  records: /state/runs/r1
`
	if out.String() != want {
		t.Errorf("got:\n%s\nwant:\n%s", out.String(), want)
	}
}

func TestSummaryIsSilentWithoutDenials(t *testing.T) {
	var out bytes.Buffer
	New(&out, noEnv).Summary(report.Summarise("r1", "/d", nil, 0))
	if out.Len() != 0 {
		t.Errorf("wrote %q", out.String())
	}
}

// onTerminal runs do with a Printer on a pseudo-terminal and returns what a
// person's terminal got.
func onTerminal(t *testing.T, getenv func(string) string, do func(*Printer)) string {
	t.Helper()
	master, slave, err := pty.Open()
	if err != nil {
		t.Fatal(err)
	}
	defer master.Close()
	p := New(slave, getenv)
	do(p)
	if _, err := io.WriteString(slave, "END"); err != nil {
		t.Fatal(err)
	}
	var got bytes.Buffer
	buf := make([]byte, 4096)
	for !strings.HasSuffix(got.String(), "END") {
		n, err := master.Read(buf)
		if err != nil {
			t.Fatal(err)
		}
		got.Write(buf[:n])
	}
	slave.Close()
	return strings.TrimSuffix(got.String(), "END")
}

func TestStylesOnlyWhereWanted(t *testing.T) {
	cases := []struct {
		name   string
		env    func(string) string
		styled bool
	}{
		{"terminal", envOf("TERM=xterm"), true},
		{"NO_COLOR", envOf("TERM=xterm", "NO_COLOR=1"), false},
		{"dumb", envOf("TERM=dumb"), false},
		{"no TERM", noEnv, false},
	}
	for _, c := range cases {
		got := onTerminal(t, c.env, func(p *Printer) { p.DenialLine(evil) })
		if strings.Contains(got, "\x1b") != c.styled {
			t.Errorf("%s: %q", c.name, got)
		}
		if !strings.Contains(got, "denied GET https://evil.test/x") {
			t.Errorf("%s: the text is missing in %q", c.name, got)
		}
	}
}

func TestNothingIsAskedOfTheTerminal(t *testing.T) {
	got := onTerminal(t, envOf("TERM=xterm-256color", "TMUX=/tmp/x,1,0"), func(p *Printer) {
		p.Line("hello")
		p.Table([]string{"A"}, [][]Cell{{{"x", Good}}, {{"y", Bad}}, {{"z", Unsure}}, {{"w", Faint}}})
	})
	for _, query := range []string{"\x1b]", "\x1b[c", "\x1b[6n", "\x1bP"} {
		if strings.Contains(got, query) {
			t.Errorf("terminal query %q in %q", query, got)
		}
	}
}

// manual is a timer that fires when the test says so.
type manual struct {
	fire    func()
	stopped bool
}

func (m *manual) after(_ time.Duration, f func()) func() bool {
	m.fire = f
	return func() bool { m.stopped = true; return true }
}

func TestProgressIsErasedOnATerminal(t *testing.T) {
	var clock manual
	got := onTerminal(t, envOf("TERM=xterm", "NO_COLOR=1"), func(p *Printer) {
		p.after = clock.after
		done := p.Progress("waiting for the lock")
		clock.fire()
		p.Line("in between")
		done()
		done()
	})
	want := "sbx: waiting for the lock ...\r\x1b[Ksbx: in between\r\nsbx: waiting for the lock ...\r\x1b[K"
	if got != want || !clock.stopped {
		t.Errorf("got %q\nwant %q", got, want)
	}
}

func TestProgressOfShortWorkIsSilent(t *testing.T) {
	var clock manual
	var out bytes.Buffer
	p := New(&out, noEnv)
	p.after = clock.after
	p.Progress("short")()
	if out.Len() != 0 || !clock.stopped {
		t.Errorf("wrote %q, stopped %v", out.String(), clock.stopped)
	}
}

func TestStatusReplacesItselfOnATerminal(t *testing.T) {
	got := onTerminal(t, envOf("TERM=xterm", "NO_COLOR=1"), func(p *Printer) {
		p.Status("2 ahead")
		p.Status("1 ahead\x1b[2J")
		p.Line("in between")
		p.Status("")
		p.Status("")
	})
	want := "sbx: 2 ahead\r\x1b[Ksbx: 1 ahead\\x1b[2J\r\x1b[Ksbx: in between\r\nsbx: 1 ahead\\x1b[2J\r\x1b[K"
	if got != want {
		t.Errorf("got %q\nwant %q", got, want)
	}
}

func TestStatusElsewhereIsALineEach(t *testing.T) {
	var out bytes.Buffer
	p := New(&out, noEnv)
	p.Status("2 ahead")
	p.Status("1 ahead")
	p.Status("")
	if want := "sbx: 2 ahead\nsbx: 1 ahead\n"; out.String() != want {
		t.Errorf("got %q", out.String())
	}
}

func TestProgressElsewhereIsOnePlainLine(t *testing.T) {
	var clock manual
	var out bytes.Buffer
	p := New(&out, noEnv)
	p.after = clock.after
	done := p.Progress("waiting")
	clock.fire()
	done()
	if want := "sbx: waiting ...\n"; out.String() != want {
		t.Errorf("got %q", out.String())
	}
}

func TestHeldLinesComeLaterAndAreBounded(t *testing.T) {
	var out bytes.Buffer
	p := New(&out, noEnv)
	p.Hold()
	for range maxHeld + 5 {
		p.Line("x")
	}
	if out.Len() != 0 {
		t.Fatalf("wrote while held: %d bytes", out.Len())
	}
	p.Release()
	if got := strings.Count(out.String(), "\n"); got != maxHeld+1 || !strings.Contains(out.String(), "were dropped") {
		t.Errorf("%d lines after release", got)
	}
	p.Line("after")
	if !strings.HasSuffix(out.String(), "sbx: after\n") {
		t.Error("not released")
	}
}

func TestAFailedWriteIsRemembered(t *testing.T) {
	full, err := os.OpenFile("/dev/full", os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer full.Close()
	p := New(full, noEnv)
	if p.Err() != nil {
		t.Fatal(p.Err())
	}
	p.Line("x")
	if !errors.Is(p.Err(), syscall.ENOSPC) {
		t.Errorf("%v", p.Err())
	}
}

func TestTableAlignsWideText(t *testing.T) {
	var out bytes.Buffer
	New(&out, noEnv).Table([]string{"NAME", "VALUE"}, [][]Cell{Cells("日本", "1"), Cells("a\x1b", "2")})
	want := "NAME   VALUE\n日本   1\na\\x1b  2\n"
	if out.String() != want {
		t.Errorf("got:\n%s", out.String())
	}
}
