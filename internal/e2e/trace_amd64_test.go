package e2e

import (
	"fmt"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/fractalboxdev/sbx/internal/sbxtest"
)

// TestBypass57_ATracerDoesNotGetRoundTheFilter: the command may trace its own
// processes, and change what they ask of the kernel. The filter has the last word.
func TestBypass57_ATracerDoesNotGetRoundTheFilter(t *testing.T) {
	lab := sbxtest.NewLab(t)
	program := contents(t, compiled(t, "trace.c"))
	attempts := []attempt{
		call("what the filter permits", "ok", unix.SYS_GETPID),
		call("mount", "EPERM", unix.SYS_MOUNT, 0, 0, 0),
		call("a ring", "ENOSYS", unix.SYS_IO_URING_SETUP, 1, 0),
		call("a namespace", "EPERM", unix.SYS_UNSHARE, unix.CLONE_NEWUSER),
		call("clone3", "ENOSYS", unix.SYS_CLONE3, 0, 88),
		call("vsock", "EAFNOSUPPORT", unix.SYS_SOCKET, unix.AF_VSOCK, unix.SOCK_STREAM, 0),
		call("set-user-id", "EPERM", unix.SYS_FCHMOD, 0, 0o4755),
		{"x32", "SIGSYS", strconv.Itoa(x32 | unix.SYS_GETPID)},
	}
	var script strings.Builder
	for _, a := range attempts {
		fmt.Fprintf(&script, "./trace %s || exit\n", a.try)
	}
	everyone(t, func(t *testing.T, who sbxtest.User) {
		lab.Write(who, "trace", program)
		got := shell(t, lab, who, "chmod +x trace; "+script.String())
		succeeded(t, got)
		answered(t, attempts, got.Stdout)
	})
}
