package e2e

import (
	"fmt"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/fractalboxdev/sbx/internal/sbxtest"
)

// probed makes system calls of testdata/probe.c in the sandbox.
func probed(t *testing.T, lab *sbxtest.Lab, who sbxtest.User, probe string, attempts []attempt, flags ...string) {
	t.Helper()
	lab.Write(who, "probe", probe)
	lab.Write(who, "calls", spoken(attempts))
	got := shell(t, lab, who, "chmod +x probe; ./probe <calls", flags...)
	succeeded(t, got)
	answered(t, attempts, got.Stdout)
}

// TestCase25_UnknownCallsAnswerENOSYS: what C libraries fall back from is there, or
// looks like an older kernel's, and so does what no kernel has yet.
func TestCase25_UnknownCallsAnswerENOSYS(t *testing.T) {
	lab := sbxtest.NewLab(t)
	attempts := []attempt{
		call("clone3", "ENOSYS", unix.SYS_CLONE3, "*", 88),
		call("openat2", "ENOSYS", unix.SYS_OPENAT2, unix.AT_FDCWD, `"calls`, "*", 24),
		call("faccessat2", "ok|ENOSYS", unix.SYS_FACCESSAT2, unix.AT_FDCWD, `"calls`, 0, 0),
		call("statx", "ok", unix.SYS_STATX, unix.AT_FDCWD, `"calls`, 0, 0, "*"),
		call("close_range", "ok", unix.SYS_CLOSE_RANGE, 100, 200, 0),
		call("futex_waitv", "EINVAL|ENOSYS", unix.SYS_FUTEX_WAITV, "*", 0, 0, 0, 0),
		call("rseq", "EINVAL|EBUSY|EPERM|ENOSYS", unix.SYS_RSEQ, "*", 0, 0, 0),
		call("pidfd_open", "ok", unix.SYS_PIDFD_OPEN, 1, 0),
		call("epoll_pwait2", "EBADF|ENOSYS", unix.SYS_EPOLL_PWAIT2, -1, "*", 1, 0, 0, 8),
		call("landlock_create_ruleset", "ok|EOPNOTSUPP|ENOSYS", unix.SYS_LANDLOCK_CREATE_RULESET, 0, 0, 1),
		call("landlock_restrict_self", "EBADF|EBADFD|EOPNOTSUPP|ENOSYS", unix.SYS_LANDLOCK_RESTRICT_SELF, -1, 0),
		call("membarrier", "ok", unix.SYS_MEMBARRIER, 0, 0, 0),
		call("memfd_create", "ok", unix.SYS_MEMFD_CREATE, `"x`, 0),
		call("io_setup", "ok", unix.SYS_IO_SETUP, 1, "*"),
	}
	for number := 470; number < 1100; number++ { // later than Linux 6.18
		attempts = append(attempts, call(fmt.Sprint("call ", number), "ENOSYS", number))
	}
	attempts = append(attempts, call("call 9999", "ENOSYS", 9999), call("call -1", "ENOSYS", -1))
	probe := buildProbe(t)
	everyone(t, func(t *testing.T, who sbxtest.User) { probed(t, lab, who, probe, attempts) })
}

// TestBypass59_OnlyTheClassBrowserMakesUserNamespaces: and only those of its own
// sandbox; what they give it power over is still not there.
func TestBypass59_OnlyTheClassBrowserMakesUserNamespaces(t *testing.T) {
	lab := sbxtest.NewLab(t)
	probe := buildProbe(t)
	everyone(t, func(t *testing.T, who sbxtest.User) {
		probed(t, lab, who, probe, namespaceCalls())
		browser := []attempt{
			call("mount namespace", "EPERM", unix.SYS_UNSHARE, unix.CLONE_NEWUSER|unix.CLONE_NEWNS),
			call("uts namespace", "EPERM", unix.SYS_UNSHARE, unix.CLONE_NEWUSER|unix.CLONE_NEWUTS),
			call("cgroup namespace", "EPERM", unix.SYS_UNSHARE, unix.CLONE_NEWUSER|unix.CLONE_NEWCGROUP),
			call("time namespace", "EPERM", unix.SYS_UNSHARE, unix.CLONE_NEWUSER|unix.CLONE_NEWTIME),
			call("mount namespace, high bits", "EPERM", unix.SYS_UNSHARE, aboveInt|unix.CLONE_NEWNS),
			call("clone with a mount namespace", "EPERM", unix.SYS_CLONE, unix.CLONE_NEWUSER|unix.CLONE_NEWNS|int(unix.SIGCHLD), 0, 0, 0, 0),
			call("clone3", "ENOSYS", unix.SYS_CLONE3, "*", 88),
			call("user namespace", "ok", unix.SYS_UNSHARE, unix.CLONE_NEWUSER),
			call("clone with all of a browser's", "ok", unix.SYS_CLONE, unix.CLONE_NEWUSER|unix.CLONE_NEWPID|unix.CLONE_NEWNET|int(unix.SIGCHLD), 0, 0, 0, 0),
			call("setns", "EPERM", unix.SYS_SETNS, "@/proc/self/ns/net", 0),
		}
		probed(t, lab, who, probe, browser, "--profile", "browser-fetch")
	})
}
