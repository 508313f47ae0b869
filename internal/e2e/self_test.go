package e2e

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/fractalboxdev/sbx/internal/sbxtest"
)

// A binary that is gone from its place when the sandbox is made is named as that, and not
// taken for a chroot: nothing runs.
func TestABinaryThatWasReplacedIsNamed(t *testing.T) {
	lab := sbxtest.NewLab(t)
	everyone(t, func(t *testing.T, who sbxtest.User) {
		for _, then := range []string{"true", `cp "$SBX" copy`} {
			got := outside(t, lab, who, `cp "$SBX" copy; exec 9<copy; rm copy; `+then+`; /proc/self/fd/9 exec -- touch ran`)
			refused(t, got, "copy was deleted or replaced while it ran", "make the call again")
			if strings.Contains(got.Stderr, "chroot") {
				t.Errorf("%s: %s", then, got.Stderr)
			}
			if _, err := os.Stat(filepath.Join(lab.Project(who), "ran")); err == nil {
				t.Errorf("%s: the command ran", then)
			}
			must(t, os.RemoveAll(filepath.Join(lab.Project(who), "copy")))
		}
	})
}

// programAttempts would change the program that the caller runs next, through the one
// that the sandbox's first process is. PROGRAM is another path of it.
var programAttempts = []attempt{
	{"to write it", "EROFS|EACCES|ETXTBSY", `open(program, 'r+b')`},
	{"to truncate it", "EROFS|EACCES|ETXTBSY", `os.truncate(program, 0)`},
	{"to write it by the link of a process", "EROFS|EACCES|ETXTBSY", `open('/proc/%d/exe' % running(), 'r+b')`},
	{"to write it by a descriptor, when no process runs it", "EROFS|EACCES|ETXTBSY", `open('/proc/self/fd/%d' % ended(), 'r+b')`},
	{"to write it by the init's link", "EACCES", `open('/proc/1/exe', 'r+b')`},
	{"to write it as the init's file", "EACCES", `os.listdir('/proc/1/map_files')`},
	{"to change its mode", "EROFS|EPERM", `os.chmod(program, 0o777)`},
	{"to remove it", "EROFS|EBUSY|EACCES", `os.unlink(program)`},
	{"to rename it", "EROFS|EBUSY|EACCES", `os.rename(program, program + 'x')`},
	{"to put another in its place", "EROFS|EBUSY|EACCES|EXDEV", `os.replace('other', program)`},
	{"to link to it", "EXDEV", `os.link(program, 'link')`},
	{"to move its directory", "EROFS|EBUSY|EACCES", `os.rename(os.path.dirname(program), os.path.dirname(program) + 'x')`},
	{"to mount over it", "EPERM", `mount('other', program)`},
}

const programHelpers = `
import ctypes, errno, os, subprocess, sys
libc = ctypes.CDLL(None, use_errno=True)
program = sys.argv[1]
started = []


def running():
    """A process that runs the program and waits for its input."""
    started.append(subprocess.Popen([program, 'explain', '--body', '/dev/stdin', 'POST', 'https://x.test/'], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL))
    while os.readlink('/proc/%d/exe' % started[-1].pid) != program: pass
    return started[-1].pid


def ended():
    """A descriptor of the program that a process ran."""
    fd = os.open('/proc/%d/exe' % running(), os.O_PATH)
    for p in started: p.kill(); p.wait()
    return fd


def mount(source, target):
    if libc.mount(source.encode(), target.encode(), None, 4096, None) != 0: raise OSError(ctypes.get_errno(), 'mount')


for line in sys.stdin:
    try: r = eval(line)
    except OSError as e: r = errno.errorcode[e.errno]
    print('ok' if r is None else r, flush=True)
`

// TestBypass53_TheProgramCannotBeReplaced: neither where the sandbox's first process
// lies, nor where the caller started it, should that be in the project.
func TestBypass53_TheProgramCannotBeReplaced(t *testing.T) {
	lab := sbxtest.NewLab(t)
	everyone(t, func(t *testing.T, who sbxtest.User) {
		lab.Write(who, "attack.py", programHelpers)
		lab.Write(who, "other", "#!/bin/sh\n")
		own := lab.Write(who, "out/bin/sbx", contents(t, sbxtest.Binary(t)))
		if err := os.Chmod(own, 0o755); err != nil {
			t.Fatal(err)
		}
		for name, c := range map[string]struct{ started, attacked string }{
			"in the sandbox": {sbxtest.Binary(t), "/run/sbx/init"},
			"in the project": {own, own},
		} {
			t.Run(name, func(t *testing.T) {
				before := contents(t, c.started)
				cmd := lab.Command(t, who, c.started, "exec", "--", "/usr/bin/python3", "attack.py", c.attacked)
				cmd.Stdin = strings.NewReader(spoken(programAttempts))
				got := lab.RunCommand(t, who, cmd)
				succeeded(t, got)
				answered(t, programAttempts, got.Stdout)
				if contents(t, c.started) != before || modeOf(t, c.started) != 0o755 {
					t.Error("the program changed")
				}
			})
		}
		if left, err := filepath.Glob(lab.Project(who) + "/out*"); err != nil || len(left) != 1 {
			t.Errorf("%v, %v", left, err)
		}
	})
}
