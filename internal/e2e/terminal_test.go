package e2e

import (
	"bytes"
	"os"
	"strings"
	"testing"

	"github.com/creack/pty"
	"golang.org/x/sys/unix"

	"github.com/fractalboxdev/sbx/internal/sbxtest"
)

// evil has the terminal commands that reach the clipboard, or make a terminal type.
const evil = `\033]52;c;aGk=\007\033[c\033[6n\033[21t\005\033P$qm\033\\\033[5n\033Z\033]11;?\007\302\2336n\2336n`

// What would reach the caller's clipboard or type into the caller's shell does not
// reach the caller's terminal, whichever of the streams is one.
func TestBypass64_TerminalIsFiltered(t *testing.T) {
	lab := sbxtest.NewLab(t)
	everyone(t, func(t *testing.T, who sbxtest.User) {
		script := `printf 'a` + evil + `b\033[31mred\n'; printf 'c` + evil + `d' >&2; exit 5`
		for _, flags := range [][]string{{}, {"--no-tty"}} {
			term := inTerminal(t, lab, who, append(flags, "bash", "-c", script)...)
			term.ends(t, 5)
			term.drained(t)
			if got := term.screen.String(); got != "a6n6nb\x1b[31mred\r\nc6n6nd\x1b[m" {
				t.Errorf("%s: the screen has %q", flags, got)
			}
		}
		term := inTerminal(t, lab, who, "--raw-terminal", "bash", "-c", script)
		term.ends(t, 5)
		term.drained(t)
		says(t, term.screen.String(), "\x1b]52;c;aGk=\a", "\x1b[6n", "\x1b[21t", "\x05")

		// Elsewhere than on a terminal every byte passes, as the log has it anyway.
		got := shell(t, lab, who, script)
		if want := printf(evil); got.Exit != 5 || got.Stdout != "a"+want+"b\x1b[31mred\n" || got.Stderr != "c"+want+"d" {
			t.Errorf("status %d, stdout %q, stderr %q", got.Exit, got.Stdout, got.Stderr)
		}
		if log := got.File(t, "output.log"); !bytes.Contains(log, []byte("\x1b]52;c;aGk=\a")) {
			t.Errorf("the log has %q", log)
		}
	})
}

// printf is what the shell's makes of a format.
func printf(format string) string {
	return strings.NewReplacer(`\033`, "\x1b", `\007`, "\a", `\005`, "\x05", `\302`, "\xc2", `\233`, "\x9b", `\\`, `\`).Replace(format)
}

// drained waits until the screen has all that was written to the terminal.
func (term *terminal) drained(t *testing.T) {
	t.Helper()
	const mark = "<the end>"
	if _, err := term.slave.WriteString(mark); err != nil {
		t.Fatal(err)
	}
	term.screen.until(t, mark)
	term.screen.drop(mark)
}

// typedAhead is how many bytes wait in the terminal for the caller's shell.
func (term *terminal) typedAhead(t *testing.T) int {
	t.Helper()
	n, err := unix.IoctlGetInt(int(term.slave.Fd()), unix.TIOCINQ)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// A program that reads keys one by one may ask where the cursor is, and gets the
// answer. One that comes when the program is gone is not for the caller's shell.
func TestBypass64_AnswersAreTheCommandsOrNobodys(t *testing.T) {
	lab := sbxtest.NewLab(t)
	everyone(t, func(t *testing.T, who sbxtest.User) {
		term := inTerminal(t, lab, who, "bash", "-c", `stty raw -echo; printf '\033[6n'; IFS= read -r -d R answer; printf 'got %s\n' "${answer#?}"; exit 3`)
		term.screen.until(t, "\x1b[6n")
		term.press(t, "\x1b[12;40R")
		term.screen.until(t, "got [12;40")
		term.ends(t, 3)

		// A terminal answers late: sbx asks a last question, and its answer ends the wait.
		term = inTerminal(t, lab, who, "bash", "-c", `stty raw -echo; printf '\033[6n\033[c'; exit 4`)
		term.screen.until(t, "\x1b[6n\x1b[c")
		term.screen.until(t, "\x1b[5n")
		term.press(t, "\x1b[1;1R\x1b[?62c\x1b[0n")
		term.ends(t, 4)
		if n := term.typedAhead(t); n != 0 {
			t.Errorf("%d bytes are left for the caller's shell", n)
		}

		// A terminal that never answers does not keep sbx for long.
		inTerminal(t, lab, who, "bash", "-c", `stty raw -echo; printf '\033[6n'; exit 5`).ends(t, 5)

		// Not more can be asked than the end can wait for.
		term = inTerminal(t, lab, who, "bash", "-c", `stty raw -echo; for i in {1..1000}; do printf '\033[6n'; done; printf over; exit 6`)
		term.screen.until(t, "over")
		term.ends(t, 6)
		if n := strings.Count(term.screen.String(), "\x1b[6n"); n != 8 {
			t.Errorf("%d questions passed, want 8", n)
		}
	})
}

// Whatever modes a command leaves behind are put back, and only those.
func TestCase19_ModesArePutBack(t *testing.T) {
	lab := sbxtest.NewLab(t)
	everyone(t, func(t *testing.T, who sbxtest.User) {
		for script, want := range map[string]string{
			`printf text`: "text",
			`printf '\033[?1049h\033[?1003h\033[?1006h\033[?2004h\033[?25l\033[31m\033(0x'; kill -KILL $$`: "\x1b[?1049h\x1b[?1003h\x1b[?1006h\x1b[?2004h\x1b[?25l\x1b[31m\x1b(0x" +
				"\x1b[?1049l\x1b[?1003l\x1b[?1006l\x1b[?2004l\x1b[?25h\x1b(B\x1b[m",
			`printf '\033[?1049hx\033[?1049l'`: "\x1b[?1049hx\x1b[?1049l",
			`printf 'x\033[?104'`:              "x",
		} {
			for _, flags := range [][]string{{}, {"--no-tty"}} {
				term := inTerminal(t, lab, who, append(flags, "bash", "-c", script)...)
				if exit := sbxtest.Wait(t, term.cmd); exit != 0 && exit != 137 {
					t.Errorf("%q: status %d", script, exit)
				}
				term.drained(t)
				if got := term.screen.String(); got != want {
					t.Errorf("%s %q: the screen has %q, want %q", flags, script, got, want)
				}
			}
		}
	})
}

// What was typed while the command ran and read by nobody is not for the caller's
// shell: it may be an answer.
func TestCase19_InputIsFlushed(t *testing.T) {
	lab := sbxtest.NewLab(t)
	everyone(t, func(t *testing.T, who sbxtest.User) {
		term := inTerminal(t, lab, who, "bash", "-c", `stty -echo; echo rea""dy; while ! [ -e go ]; do sleep 0.05; done; exit 3`)
		term.screen.until(t, "ready\r\n")
		term.press(t, "touch pwned\r")
		lab.Write(who, "go", "")
		term.ends(t, 3)
		if n := term.typedAhead(t); n != 0 {
			t.Errorf("%d bytes are left for the caller's shell", n)
		}
		if err := os.Remove(lab.Project(who) + "/go"); err != nil {
			t.Fatal(err)
		}
	})
}

// In the background sbx reads nothing, is not stopped, and leaves the terminal alone;
// brought to the foreground, it passes the keys on.
func TestCase19_Background(t *testing.T) {
	lab := sbxtest.NewLab(t)
	everyone(t, func(t *testing.T, who sbxtest.User) {
		master, slave, err := pty.Open()
		if err != nil {
			t.Fatal(err)
		}
		cmd := lab.Command(t, who, "bash", "--norc", "--noprofile", "-i")
		cmd.Env = append(cmd.Env, "SBX="+sbxtest.Binary(t), "PS1=% ")
		cmd.Stdin, cmd.Stdout, cmd.Stderr = slave, slave, slave
		cmd.SysProcAttr.Setsid, cmd.SysProcAttr.Setctty = true, true
		term := &terminal{master: master, slave: slave, cmd: cmd, screen: newOutput(), before: modes(t, slave)}
		lab.Start(t, cmd)
		term.show(t)
		term.press(t, `"$SBX" exec -- bash -c 'echo beg""un; read x; echo got $x; exit 9' &`+"\r")
		term.screen.until(t, "begun")
		term.press(t, "jobs; echo sh\"\"ell\r")
		term.screen.until(t, "shell")
		says(t, term.screen.String(), "Running")
		term.press(t, "fg\r")
		term.screen.until(t, "\"$SBX\" exec -- bash -c 'echo beg\"\"un; read x; echo got $x; exit 9'\r\n")
		term.press(t, "it\r")
		term.screen.until(t, "got it\r\n% ")
		term.press(t, "echo status $?; exit\r")
		term.screen.until(t, "status 9")
		term.ends(t, 0)
	})
}
