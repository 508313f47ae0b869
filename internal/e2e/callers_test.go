package e2e

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/fractalboxdev/sbx/internal/sbxtest"
)

// The caller's shell reads its script from the pipe that sbx has on standard
// input: what the command writes or takes there is the command's own.
func TestScriptOnStdinCannotBeChanged(t *testing.T) {
	lab := sbxtest.NewLab(t)
	everyone(t, func(t *testing.T, who sbxtest.User) {
		// The command may make its own pipe writable again; whoever writes when it is full waits.
		for name, evil := range map[string]string{
			"write":        `timeout 0.2 bash -c "echo touch pwned >/proc/self/fd/0"; timeout 0.2 bash -c "echo touch pwned >>/dev/stdin"`,
			"read, write":  `head -c 4000 >/dev/null; echo touch pwned >/proc/self/fd/0`,
			"not to wait":  `/usr/bin/python3 -c "import os; os.write(os.open(\"/proc/self/fd/0\", os.O_RDWR | os.O_NONBLOCK), b\"touch pwned\n\" * 100)"`,
			"fill":         `chmod 600 /proc/self/fd/0; timeout 0.2 cat /dev/zero >/proc/self/fd/0`,
			"writable":     `chmod 600 /proc/self/fd/0; timeout 0.2 bash -c "echo touch pwned >/proc/self/fd/0"`,
			"by its child": `(setsid bash -c "sleep 0.05; echo touch pwned >/proc/self/fd/0" &)`,
		} {
			t.Run(name, func(t *testing.T) {
				// A here-document of this size is a pipe; cat makes sure of it.
				got := outside(t, lab, who, "cat <<'S' | bash\n\"$SBX\" exec -- bash -c '"+evil+"; true' 2>/dev/null\necho next\n\"$SBX\" exec -- bash -c 'exit 4'\necho last $?\nS\n"+
					"test -e pwned && echo pwned; true")
				want := "next\nlast 4\n"
				if name == "read, write" {
					want = "" // the command has taken the rest of the script
				}
				printed(t, got, want)
			})
		}
	})
}

// A command that writes to its own input does not wait for itself.
func TestOwnInputIsNotWritable(t *testing.T) {
	lab := sbxtest.NewLab(t)
	everyone(t, func(t *testing.T, who sbxtest.User) {
		lab.Write(who, "../in", "file\n")
		for script, want := range map[string]string{
			`echo pipe | "$SBX" exec -- bash -c 'cat /dev/zero >/dev/stdin; cat </dev/fd/0; cat /dev/stdin'`: "pipe\n",
			`"$SBX" exec -- bash -c 'cat /dev/zero >/dev/stdin; cat /proc/self/fd/0' <../in`:                 "file\n",
		} {
			got := outside(t, lab, who, script)
			printed(t, got, want)
			says(t, got.Stderr, "Permission denied")
		}
	})
}

// A loop over a pipe keeps the lines that the command did not read.
func TestCase20_LoopOverAPipeKeepsItsLines(t *testing.T) {
	lab := sbxtest.NewLab(t)
	everyone(t, func(t *testing.T, who sbxtest.User) {
		for script, want := range map[string]string{
			`seq 4 | while read n; do "$SBX" exec -- true; echo $n; done`:                           "1\n2\n3\n4\n",
			`seq 4 | while read n; do "$SBX" exec -- bash -c 'read m; echo '$n' $m'; done`:          "1 2\n3 4\n",
			`seq 4 | while read n; do "$SBX" exec -- bash -c 'exec 0<&-; echo '$n; done`:            "1\n2\n3\n4\n",
			`seq 4 | while read n; do "$SBX" exec -- head -n 0 </dev/null; echo $n; done`:           "1\n2\n3\n4\n",
			`seq 100000 | (while read n; do "$SBX" exec -- true; [ $n = 3 ] && break; done; wc -l)`: "99997\n",
		} {
			t.Run(script, func(t *testing.T) { printed(t, outside(t, lab, who, script), want) })
		}
	})
}

// Arguments are bytes.
func TestArgumentsArriveByteForByte(t *testing.T) {
	lab := sbxtest.NewLab(t)
	everyone(t, func(t *testing.T, who sbxtest.User) {
		every := make([]byte, 0, 255)
		for b := 1; b < 256; b++ {
			every = append(every, byte(b))
		}
		for _, argument := range []string{string(every), "\xff\xfe", "", "a\nb", "--", "-x", "é\xc3", strings.Repeat("\x80", 100_000)} {
			got := run(t, lab, who, "--", "printf", "%s", argument)
			if got.Exit != 0 || got.Stdout != argument {
				t.Errorf("exit status %d: argument %.99q arrived as %.99q: %s", got.Exit, argument, got.Stdout, got.Stderr)
			}
		}
		printed(t, run(t, lab, who, "--env", "BYTES=\xff\xfe=\x01", "--", "sh", "-c", `printf %s "$BYTES"`), "\xff\xfe=\x01")
	})
}

// What the command may write is not what sbx obeys or keeps its records in.
func TestConfigurationAndRecordsAreOutsideTheWorkingDirectory(t *testing.T) {
	lab := sbxtest.NewLab(t)
	everyone(t, func(t *testing.T, who sbxtest.User) {
		home := lab.Home(who)
		inHome(t, lab, who, ".config/sbx/config.toml", "")
		refused(t, run(t, lab, who, "-C", home+"/.config", "--", "touch", "ran"), home+"/.config", "configuration")
		refused(t, run(t, lab, who, "-C", home+"/.config/sbx", "--", "touch", "ran"), "configuration")

		inHome(t, lab, who, ".moved/sbx/x", "")
		link := filepath.Join(home, "into")
		if err := os.Symlink(lab.Project(who), link); err != nil {
			t.Fatal(err)
		}
		for _, state := range []string{lab.Project(who), lab.Project(who) + "/below", link, link + "/below/it", home + "/project/../into"} {
			cmd := lab.Command(t, who, "sbx", "exec", "--", "touch", "ran")
			cmd.Env = append(cmd.Env, "XDG_STATE_HOME="+state)
			refused(t, lab.RunCommand(t, who, cmd), "state directory")
			nothingRan(t, lab, who)
		}
		if err := os.Remove(filepath.Join(home, ".config/sbx/config.toml")); err != nil {
			t.Fatal(err)
		}
	})
}

// A file of root's that the command could rewrite would run as root.
func TestSetuidFileInRootsProjectIsRefused(t *testing.T) {
	lab := sbxtest.NewLab(t)
	everyone(t, func(t *testing.T, who sbxtest.User) {
		for _, mode := range []os.FileMode{os.ModeSetuid, os.ModeSetgid} {
			file := lab.Write(who, "deep/below/tool", "#!/bin/sh\n")
			if err := os.Chmod(file, 0o755|mode); err != nil {
				t.Fatal(err)
			}
			got := run(t, lab, who, "--", "sh", "-c", "echo EVIL >>deep/below/tool; touch ran")
			if who == sbxtest.AsRoot {
				refused(t, got, file)
				nothingRan(t, lab, who)
			} else {
				succeeded(t, got)
				// The kernel takes the bits from a file that is written to.
				if info, err := os.Stat(file); err != nil || info.Mode()&mode != 0 {
					t.Errorf("%v; the mode is %s", err, info.Mode())
				}
			}
			if err := os.RemoveAll(filepath.Join(lab.Project(who), "deep")); err != nil {
				t.Fatal(err)
			}
		}
	})
}

// exchanging makes a repository of a submodule after its run has looked for
// those, so that nothing holds it in place, and swaps it for links that lead out
// until it is told to end.
const exchanging = `
import ctypes, os, sys
home = sys.argv[1]
libc = ctypes.CDLL(None)
def swap(a, b): return libc.renameat2(-100, a, -100, b, 2) == 0
os.makedirs('.git/modules/lib/hooks'); os.makedirs('.git/worktrees/w'); os.makedirs('late')
for name in ('.git/modules/lib/config', '.git/worktrees/w/gitdir', '.git/worktrees/w/commondir'):
    open(name, 'w').write('x')
open('late/.git', 'w').write('gitdir: ../.git/modules/lib')
open('.gitmodules', 'w').write('[submodule "late"]\n\tpath = late\n\turl = ../lib\n')
os.symlink(home + '/victim', '.git/link'); os.symlink(home + '/victim/w', '.git/worktrees/link'); os.symlink(home + '/victim', 'late-link')
print('ready', flush=True)
swaps = 0
while not os.path.exists('over'):
    swaps += swap(b'.git/modules', b'.git/link') + swap(b'late', b'late-link') + swap(b'.git/worktrees/w', b'.git/worktrees/link')
print('swapped' if swaps > 100 else 'not swapped', flush=True)
`

// TestBypass47_ExchangedModulesLeadNowhere has one run exchange what git's
// directories are for links that lead out while others start in the same project:
// whatever sbx makes, protects or sets aside stays in the project.
func TestBypass47_ExchangedModulesLeadNowhere(t *testing.T) {
	const tries = 30
	lab := sbxtest.NewLab(t)
	everyone(t, func(t *testing.T, who sbxtest.User) {
		home := lab.Home(who)
		succeeded(t, outside(t, lab, who, "git init -q . && mkdir -p "+home+"/victim/lib "+home+"/victim/w && echo kept | tee "+home+"/victim/lib/HEAD >"+home+"/victim/w/HEAD"))
		before := tree(t, home+"/victim")
		racer := lab.Command(t, who, "sbx", "exec", "--", "/usr/bin/python3", "-c", exchanging, home)
		stdout := newOutput()
		racer.Stdout, racer.Stderr = stdout, newOutput()
		lab.Start(t, racer)
		stdout.until(t, "ready\n")
		for range tries {
			got := shell(t, lab, who, "for d in .git/modules/lib .git/link/lib late .git/worktrees/w; do mkdir -p $d/hooks; echo EVIL >$d/hooks/x; echo EVIL >$d/config; echo EVIL >$d/commondir; done 2>/dev/null; true")
			if got.Exit != 0 && got.Exit != 125 {
				t.Errorf("exit status %d: %s", got.Exit, got.Stderr)
			}
		}
		lab.Write(who, "over", "")
		if exit := sbxtest.Wait(t, racer); exit != 0 && exit != 125 {
			t.Errorf("exit status %d: %s", exit, racer.Stderr)
		}
		says(t, stdout.String(), "\nswapped\n")
		same(t, before, tree(t, home+"/victim"))
	})
}

// keeper waits at a socket in the project for somebody to park descriptors with it,
// until the file dead is there.
const keeper = `
import os, socket
s = socket.socket(socket.AF_UNIX); s.bind('parked'); s.listen(); s.settimeout(0.05); print('ready', flush=True)
while not os.path.exists('dead'):
    try: s.accept(); print('parked', flush=True)
    except TimeoutError: pass
`

const parker = `
import array, socket
s = socket.socket(socket.AF_UNIX); s.connect('parked')
s.sendmsg([b'x'], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array('i', [0, 1, 2]))])
print('sent', flush=True)
`

// A run cannot park its descriptors with another one, which would outlive it with the
// caller's output in hand: a socket of another sandbox is as far away as the host's.
func TestParkedDescriptors(t *testing.T) {
	lab := sbxtest.NewLab(t)
	everyone(t, func(t *testing.T, who sbxtest.User) {
		first := lab.Command(t, who, "sbx", "exec", "--", "/usr/bin/python3", "-c", keeper)
		stdout := newOutput()
		first.Stdout, first.Stderr = stdout, newOutput()
		lab.Start(t, first)
		stdout.until(t, "ready\n")
		second := run(t, lab, who, "--", "/usr/bin/python3", "-c", parker)
		if second.Exit != 1 || second.Stdout != "" || !strings.Contains(second.Stderr, "PermissionError") {
			t.Errorf("exit status %d, %q: %s", second.Exit, second.Stdout, second.Stderr)
		}
		lab.Write(who, "dead", "")
		if exit := sbxtest.Wait(t, first); exit != 0 || stdout.String() != "ready\n" {
			t.Errorf("exit status %d, %q: %s", exit, stdout, first.Stderr)
		}
		for _, name := range []string{"dead", "parked"} {
			if err := os.Remove(filepath.Join(lab.Project(who), name)); err != nil {
				t.Fatal(err)
			}
		}
	})
}

// A command that stops itself, and all that it started, is ended in time as well.
func TestTimeoutWithAStoppedCommand(t *testing.T) {
	lab := sbxtest.NewLab(t)
	everyone(t, func(t *testing.T, who sbxtest.User) {
		script := "sleep 777 & (setsid sh -c 'kill -STOP $$' &); trap : TERM; kill -STOP 0"
		got := within(t, 20*time.Second, lab, who, lab.Command(t, who, "sbx", "exec", "--timeout", "500ms", "--grace", "200ms", "--", "bash", "-c", script))
		if got.Exit != 124 {
			t.Errorf("exit status %d, want 124: %s", got.Exit, got.Stderr)
		}
		nobodyRuns(t)
	})
}

// A runner that stands still keeps neither the time limit nor the teardown from
// what they have to do.
func TestTimeoutWithAStoppedRunner(t *testing.T) {
	lab := sbxtest.NewLab(t)
	everyone(t, func(t *testing.T, who sbxtest.User) {
		cmd := lab.Command(t, who, "sbx", "exec", "--timeout", "1s", "--grace", "100ms", "--", "bash", "-c", lingering)
		stdout := newOutput()
		cmd.Stdout, cmd.Stderr = stdout, newOutput()
		lab.Start(t, cmd)
		stdout.until(t, "ready\n")
		runner := slices.DeleteFunc(sbxtest.Processes(t), func(p sbxtest.Process) bool { return p.PID == cmd.Process.Pid })[0]
		if err := syscall.Kill(runner.PID, syscall.SIGSTOP); err != nil {
			t.Fatal(err)
		}
		timer := time.AfterFunc(30*time.Second, func() { _ = cmd.Process.Kill() })
		defer timer.Stop()
		if exit := sbxtest.Wait(t, cmd); exit != 124 {
			t.Errorf("exit status %d, want 124: %s", exit, cmd.Stderr)
		}
		says(t, cmd.Stderr.(*output).String(), "ended after 1s")
		nobodyRuns(t)
	})
}
