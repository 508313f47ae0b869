package e2e

import (
	"io"
	"os"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/creack/pty"
	"golang.org/x/sys/unix"

	"github.com/fractalboxdev/sbx/internal/sbxtest"
)

// terminal is a pty with sbx in the foreground.
type terminal struct {
	master, slave *os.File
	cmd           *exec.Cmd
	screen        *output
	before        unix.Termios
}

// inTerminal starts a command of the sandbox's on a new terminal; leading flags are
// sbx's.
func inTerminal(t *testing.T, lab *sbxtest.Lab, who sbxtest.User, argv ...string) *terminal {
	t.Helper()
	first := slices.IndexFunc(argv, func(word string) bool { return !strings.HasPrefix(word, "-") })
	return onTerminal(t, lab, who, slices.Concat([]string{"exec"}, argv[:first], []string{"--"}, argv[first:])...)
}

// onTerminal starts sbx on a new terminal.
func onTerminal(t *testing.T, lab *sbxtest.Lab, who sbxtest.User, argv ...string) *terminal {
	t.Helper()
	master, slave, err := pty.Open()
	if err != nil {
		t.Fatal(err)
	}
	if err := pty.Setsize(master, &pty.Winsize{Rows: 33, Cols: 77}); err != nil {
		t.Fatal(err)
	}
	term := &terminal{master: master, slave: slave, screen: newOutput()}
	term.before = modes(t, slave)
	term.cmd = lab.Command(t, who, append([]string{"sbx"}, argv...)...)
	term.cmd.Stdin, term.cmd.Stdout, term.cmd.Stderr = slave, slave, slave
	term.cmd.SysProcAttr.Setsid, term.cmd.SysProcAttr.Setctty = true, true
	lab.Start(t, term.cmd)
	term.show(t)
	return term
}

// show copies what is written to the terminal to its screen.
func (term *terminal) show(t *testing.T) {
	t.Helper()
	copied := make(chan struct{})
	go func() { defer close(copied); _, _ = io.Copy(term.screen, term.master) }() // ends with EIO
	t.Cleanup(func() { _ = term.cmd.Process.Kill(); _ = term.slave.Close(); _ = term.master.Close(); <-copied })
}

func modes(t *testing.T, tty *os.File) unix.Termios {
	t.Helper()
	m, err := unix.IoctlGetTermios(int(tty.Fd()), unix.TCGETS)
	if err != nil {
		t.Fatal(err)
	}
	return *m
}

func (term *terminal) press(t *testing.T, keys string) {
	t.Helper()
	if _, err := term.master.WriteString(keys); err != nil {
		t.Fatal(err)
	}
}

// interrupt presses Ctrl-C until the screen has the word: Python may lose one that comes
// between its prompt and its reading.
func (term *terminal) interrupt(t *testing.T, word string) {
	t.Helper()
	again := time.Now()
	eventually(t, 20*time.Second, "Ctrl-C is seen", func() bool {
		if strings.Contains(term.screen.String(), word) {
			return true
		}
		if time.Now().After(again) {
			term.press(t, "\x03")
			again = time.Now().Add(2 * time.Second)
		}
		return false
	})
}

// ends waits for sbx and checks its status and the state of its terminal.
func (term *terminal) ends(t *testing.T, want int) {
	t.Helper()
	if exit := sbxtest.Wait(t, term.cmd); exit != want {
		t.Errorf("exit status %d, want %d; the screen has %q", exit, want, term.screen)
	}
	if now := modes(t, term.slave); now != term.before {
		t.Errorf("the terminal's modes were %+v, are %+v", term.before, now)
	}
}

// The command's terminal is a real one of its own, and follows the caller's.
func TestCase19_Terminal(t *testing.T) {
	lab := sbxtest.NewLab(t)
	everyone(t, func(t *testing.T, who sbxtest.User) {
		term := inTerminal(t, lab, who, "bash", "-c", `tty; [ -t 0 ] && [ -t 1 ] && [ -t 2 ] && stty size; echo over >/dev/tty
			trap 'stty size; exit 4' WINCH; echo rea""dy; while :; do sleep 0.05; done`)
		term.screen.until(t, "ready\r\n")
		says(t, term.screen.String(), "/dev/pts/", "33 77", "over")
		if err := pty.Setsize(term.master, &pty.Winsize{Rows: 44, Cols: 88}); err != nil {
			t.Fatal(err)
		}
		term.screen.until(t, "44 88")
		term.ends(t, 4)

		got := shell(t, lab, who, "tty; [ -t 0 ] || [ -t 1 ] || [ -t 2 ] || echo none; true <>/dev/tty || echo no terminal")
		says(t, got.Stdout, "not a tty\nnone\nno terminal\n")
	})
}

// Ctrl-C is the command's.
func TestCase18_CtrlC(t *testing.T) {
	lab := sbxtest.NewLab(t)
	everyone(t, func(t *testing.T, who sbxtest.User) {
		term := inTerminal(t, lab, who, "bash", "-c", `n=0; trap 'n=$((n+1)); echo caught $n' INT; echo rea""dy; while [ $n -lt 2 ]; do sleep 0.05; echo at $n; done; exit 7`)
		term.screen.until(t, "ready\r\n")
		term.press(t, "\x03")
		term.screen.until(t, "caught 1")
		term.screen.until(t, "at 1") // a shell may lose what comes while its handler runs
		term.press(t, "\x03")
		term.screen.until(t, "caught 2")
		term.ends(t, 7)

		term = inTerminal(t, lab, who, "/usr/bin/python3", "-i", "-q")
		term.screen.until(t, ">>> ")
		term.interrupt(t, "KeyboardInterrupt")
		term.press(t, "print(41+1)\r")
		// Between two prompts the terminal is not in readline's mode, and Ctrl-D would be lost.
		eventually(t, 20*time.Second, "Python asks again", func() bool {
			_, after, found := strings.Cut(term.screen.String(), "42\r\n")
			return found && strings.Contains(after, ">>> ")
		})
		term.press(t, "\x04")
		term.ends(t, 0)

		for key, want := range map[string]int{"\x03": 130, "\x1c": 131} {
			term = inTerminal(t, lab, who, "sh", "-c", `echo rea""dy; exec sleep 1000`) // bash ignores SIGQUIT
			term.screen.until(t, "ready\r\n")
			term.press(t, key)
			term.ends(t, want)
		}
	})
}

// Programs that make a terminal of their own, or change the modes of theirs, can.
func TestCase19_ProgramsWithTerminals(t *testing.T) {
	lab := sbxtest.NewLab(t)
	everyone(t, func(t *testing.T, who sbxtest.User) {
		term := inTerminal(t, lab, who, "node", "-e", "process.stdin.setRawMode(true); console.log('raw', process.stdout.columns); process.stdin.once('data', (b) => { console.log('key ' + b); process.exit(3) })")
		term.screen.until(t, "raw 77")
		term.press(t, "k")
		term.screen.until(t, "key k")
		term.ends(t, 3)
		inTerminal(t, lab, who, "script", "-qec", "test -t 0; exit 4", "/dev/null").ends(t, 4)
		got := run(t, lab, who, "--", "script", "-qec", "tty; exit 5", "/dev/null")
		if got.Exit != 5 || !strings.Contains(got.Stdout, "/dev/pts/") {
			t.Errorf("script without a terminal: status %d, %q, %s", got.Exit, got.Stdout, got.Stderr)
		}
	})
}

// However the command leaves its terminal, the caller's is as before.
func TestCase19_TerminalIsLeftSane(t *testing.T) {
	lab := sbxtest.NewLab(t)
	everyone(t, func(t *testing.T, who sbxtest.User) {
		inTerminal(t, lab, who, "bash", "-c", "stty raw -echo; kill -KILL $$").ends(t, 137)
		inTerminal(t, lab, who, "bash", "-c", "stty raw -echo; exit 3").ends(t, 3)
		term := inTerminal(t, lab, who, "bash", "-c", "stty raw -echo; printf ready; exec sleep 1000")
		term.screen.until(t, "ready")
		if err := term.cmd.Process.Signal(syscall.SIGTERM); err != nil {
			t.Fatal(err)
		}
		term.ends(t, 143)
	})
}

// An interactive shell has job control.
func TestCase19_JobControl(t *testing.T) {
	lab := sbxtest.NewLab(t)
	everyone(t, func(t *testing.T, who sbxtest.User) {
		term := inTerminal(t, lab, who, "bash", "--norc", "--noprofile", "-i")
		term.press(t, "PS1='% '; sleep 500\r")
		term.screen.until(t, "sleep 500\r\n")
		// The shell has to have started it: Ctrl-Z is for the foreground.
		eventuallyRuns(t, "sleep 500")
		term.press(t, "\x1a")
		term.screen.until(t, "Stopped")
		term.press(t, "jobs; kill %1; fg; echo o\"\"ver $?\r")
		term.screen.until(t, "over 143")
		term.press(t, "exit 6\r")
		term.ends(t, 6)
		if strings.Contains(term.screen.String(), "job control") {
			t.Errorf("the screen has %q", term.screen)
		}
	})
}

// TIOCSTI would type into the caller's shell.
func TestCase19_Bypass56_NothingCanBeTyped(t *testing.T) {
	lab := sbxtest.NewLab(t)
	everyone(t, func(t *testing.T, who sbxtest.User) {
		term := inTerminal(t, lab, who, "/usr/bin/python3", "-c", `
import fcntl, termios
for request in (termios.TIOCSTI, 0x100000000 | termios.TIOCSTI, termios.TIOCLINUX):
    try: fcntl.ioctl(0, request, b'\x03'); print('typed')
    except OSError as e: print('refused')`)
		term.ends(t, 0)
		waiting, err := unix.IoctlGetInt(int(term.slave.Fd()), unix.TIOCINQ)
		if err != nil || waiting != 0 || strings.Contains(term.screen.String(), "typed") {
			t.Errorf("%v; %d bytes wait in the terminal; the screen has %q", err, waiting, term.screen)
		}
	})
}

// eventuallyRuns waits until a process with this command line is alive.
func eventuallyRuns(t *testing.T, command string) {
	t.Helper()
	eventually(t, 20*time.Second, command+" runs", func() bool {
		return slices.ContainsFunc(sbxtest.Processes(t), func(p sbxtest.Process) bool { return p.Command == command })
	})
}
