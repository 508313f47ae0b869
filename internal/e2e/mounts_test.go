package e2e

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fractalboxdev/sbx/internal/sbxtest"
)

// unmounting takes the place of a process of the sandbox that has all capabilities in one
// of its user namespaces, as if every other wall had fallen, and tries to change mounts.
const unmounting = `
import ctypes, errno, fcntl, os, sys
pid, parents, paths = sys.argv[1], int(sys.argv[2]), sys.argv[3:]
NS_GET_PARENT, MNT_DETACH, MS_REMOUNT, MS_BIND = 0xb702, 2, 32, 4096
libc = ctypes.CDLL(None, use_errno=True)
user, mounts = os.open(f"/proc/{pid}/ns/user", os.O_RDONLY), os.open(f"/proc/{pid}/ns/mnt", os.O_RDONLY)
for _ in range(parents):
    user = fcntl.ioctl(user, NS_GET_PARENT)
def done(result):
    return "ok" if result == 0 else errno.errorcode[ctypes.get_errno()]
for fd in user, mounts:
    if libc.setns(fd, 0):
        sys.exit(print("not even entered:", done(-1)))
os.chdir("/")
for path in paths:
    name = path.encode()
    print(path, "remount", done(libc.mount(None, name, None, MS_REMOUNT | MS_BIND, None)))
    print(path, "umount", done(libc.umount2(name, MNT_DETACH)))
`

// Mounts stay as they are also where the command had every capability: the kernel has
// locked them.
func TestMountsAreLocked(t *testing.T) {
	lab := sbxtest.NewLab(t)
	everyone(t, func(t *testing.T, who sbxtest.User) {
		lab.Write(who, ".envrc", "kept\n")
		b := inBackground(t, lab, who, nil, "echo ready; exec sleep 777")
		pid := ""
		eventually(t, 20*time.Second, "the command sleeps", func() bool {
			for _, p := range sbxtest.Processes(t) {
				if p.Command == "sleep 777" {
					pid = strconv.Itoa(p.PID)
				}
			}
			return pid != ""
		})
		project := lab.Project(who)
		for _, parents := range []string{"0", "1"} {
			args := []string{
				"-c", unmounting, pid, parents, "/", "/usr", "/etc", "/proc/cmdline", "/proc/sys", "/run/sbx", "/run/sbx/init",
				lab.Home(who), project, filepath.Join(project, ".envrc"),
			}
			text, err := exec.CommandContext(t.Context(), "/usr/bin/python3", args...).CombinedOutput()
			if err != nil {
				t.Fatalf("%v: %s", err, text)
			}
			for line := range strings.Lines(string(text)) {
				// The project is writable as it is, and what covers a file of /proc is /dev/null.
				asItWas := slices.Contains([]string{project + " remount ok\n", "/proc/cmdline remount ok\n"}, line)
				if strings.HasSuffix(line, " ok\n") && !asItWas {
					t.Errorf("in user namespace %s from the command's up: %s", parents, line)
				}
			}
		}
		succeeded(t, lab.Run(t, who, "sbx", "kill", b.id))
		b.ends(t, lab, who)
	})
}

// What the host mounts while a command runs does not show in what it was shown.
func TestLaterMountsOfTheHostDoNotShow(t *testing.T) {
	lab := sbxtest.NewLab(t)
	everyone(t, func(t *testing.T, who sbxtest.User) {
		later := filepath.Join(lab.Project(who), "later")
		lab.Write(who, "later/before", "")
		host := func(do func() error) { t.Helper(); lab.Within(t, do) }
		project := lab.Project(who)
		host(func() error { return unix.Mount(project, project, "", unix.MS_BIND, "") })
		defer host(func() error { return unix.Unmount(project, unix.MNT_DETACH) })
		host(func() error { return unix.Mount("", project, "", unix.MS_SHARED, "") })
		script := `until [ -e go ]; do sleep 0.02; done; ls later; grep -c later /proc/self/mountinfo`
		b := inBackground(t, lab, who, nil, "echo ready; "+script)
		host(func() error { return unix.Mount("later", later, "tmpfs", 0, "") })
		host(func() error { return os.WriteFile(filepath.Join(project, "go"), nil, 0o600) })
		b.stdout.until(t, "\n0\n")
		b.ends(t, lab, who)
		if out := b.stdout.String(); out != "ready\nbefore\n0\n" {
			t.Errorf("the command saw %q", out)
		}
		host(func() error { return unix.Unmount(later, 0) })
	})
}
