package host

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// try is a system call that sbx needs, made in a way that can only fail. EPERM and
// ENOSYS then come from a filter, or from a kernel that does not have it.
type try struct {
	name string
	call func() error
}

func raw(number, a, b, c, d, e uintptr) func() error {
	return func() error {
		if _, _, errno := unix.Syscall6(number, a, b, c, d, e, 0); errno != 0 {
			return errno
		}
		return nil
	}
}

const (
	noFD    = ^uintptr(0)
	noFlags = uintptr(0xffff0000)
)

// needed are the calls of the supervisor and the runner outside of its namespaces.
func needed() []try {
	return []try{
		{"pidfd_open", raw(unix.SYS_PIDFD_OPEN, noFD, 0, 0, 0, 0)},
		{"pidfd_send_signal", raw(unix.SYS_PIDFD_SEND_SIGNAL, noFD, 0, 0, 0, 0)},
		{"memfd_create", raw(unix.SYS_MEMFD_CREATE, 0, noFlags, 0, 0, 0)},
		{"close_range", raw(unix.SYS_CLOSE_RANGE, 0, 0, noFlags, 0, 0)},
		{"eventfd2", raw(unix.SYS_EVENTFD2, 0, noFlags, 0, 0, 0)},
		{"signalfd4", raw(unix.SYS_SIGNALFD4, noFD, 0, 0, noFlags, 0)},
		{"tee", raw(unix.SYS_TEE, noFD, noFD, 1, 0, 0)},
		{"setns", raw(unix.SYS_SETNS, noFD, 0, 0, 0, 0)},
	}
}

// neededInside are those that need the capabilities of a namespace of one's own.
func neededInside() []try {
	return []try{
		{"unshare", raw(unix.SYS_UNSHARE, 0, 0, 0, 0, 0)},
		{"open_tree", raw(unix.SYS_OPEN_TREE, noFD, 0, noFlags, 0, 0)},
		{"mount_setattr", raw(unix.SYS_MOUNT_SETATTR, noFD, 0, noFlags, 0, 0)},
		{"move_mount", raw(unix.SYS_MOVE_MOUNT, noFD, 0, noFD, 0, noFlags)},
		{"pivot_root", raw(unix.SYS_PIVOT_ROOT, 0, 0, 0, 0, 0)},
		{"umount2", raw(unix.SYS_UMOUNT2, 0, 0, 0, 0, 0)},
		{"sethostname", func() error { return unix.Sethostname([]byte("sbx")) }},
	}
}

func refused(tries []try) (names []string) {
	for _, t := range tries {
		if err := t.call(); errors.Is(err, unix.EPERM) || errors.Is(err, unix.ENOSYS) {
			names = append(names, t.name)
		}
	}
	return names
}

func systemCalls(h *Host) answer {
	names := refused(needed())
	child := h.child()
	if child.User == Yes {
		names = append(names, child.Refused...)
	}
	switch {
	case len(names) > 0:
		_, next := h.refusalAdvice()
		return answer{No, "refused: " + strings.Join(names, ", "), next}
	case child.User != Yes || child.Err != "":
		return answer{Unknown, "those for mounts were not tried: " + child.Err, ""}
	}
	return answer{Yes, "none that is needed is refused", ""}
}

// container says in what this process runs, which decides what mends it.
func container(h *Host) answer {
	masked := "nothing lies over /proc"
	if over := h.masked(); len(over) > 0 {
		masked = fmt.Sprintf("over /proc lie %d mounts", len(over))
	}
	r := h.runtime()
	if r == runtimeNone {
		return answer{No, "no sign of one; " + masked, ""}
	}
	if r == runtimeUnknown {
		return answer{Unknown, "perhaps; " + masked, ""}
	}
	return answer{Yes, string(r) + "; " + masked, ""}
}

func apparmor(h *Host) answer {
	label, ok := h.read("/proc/self/attr/apparmor/current")
	restricts, known := h.read("/proc/sys/kernel/apparmor_restrict_unprivileged_userns")
	switch {
	case !ok && !known:
		return answer{No, "not in this kernel, or not to be seen", ""}
	case known && restricts != "0" && !h.apparmorAllows():
		return answer{Yes, "this process is " + orUnknown(label) + ", and unprivileged user namespaces are restricted", appArmorFix}
	}
	return answer{Yes, "this process is " + orUnknown(label), ""}
}

// AppArmorProfile is a profile that lets sbx make user namespaces where Ubuntu restricts
// them (AppArmor 4). It confines nothing: sbx does that itself.
func AppArmorProfile(binary string) string {
	return fmt.Sprintf(`abi <abi/4.0>,
include <tunables/global>

# Names sbx, so that it may make user namespaces, and confines nothing. What sbx runs
# has no capabilities and cannot make any.
profile sbx %q flags=(unconfined) {
  userns,

  include if exists <local/sbx>
}
`, binary)
}

// unixDiag asks the kernel for the unix sockets of this network namespace, as ss(8) does
// (sock_diag(7)).
func unixDiag(*Host) answer {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_SOCK_DIAG)
	if err != nil {
		return answer{stateOf(err), "socket: " + err.Error(), ""}
	}
	defer unix.Close(fd)
	// nlmsghdr and unix_diag_req: a dump of all, with nothing more of each.
	const length = unix.SizeofNlMsghdr + 24
	request := make([]byte, length)
	request[0], request[4], request[6] = length, 20, unix.NLM_F_REQUEST
	request[7] = unix.NLM_F_DUMP >> 8
	request[16] = unix.AF_UNIX
	for i := 20; i < 24; i++ {
		request[i] = 0xff // every state
	}
	if err := unix.Sendto(fd, request, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return answer{Unknown, "asking: " + err.Error(), ""}
	}
	reply := make([]byte, 32<<10)
	n, _, err := unix.Recvfrom(fd, reply, 0)
	switch {
	case err != nil || n < unix.SizeofNlMsghdr:
		return answer{Unknown, fmt.Sprintf("reading: %v", err), ""}
	case reply[4] == unix.NLMSG_ERROR:
		return answer{No, "the kernel has no unix_diag", "sudo modprobe unix_diag"}
	}
	return answer{Yes, "answered", ""}
}

// binfmt lists the interpreters for foreign programs: they run inside as well.
func binfmt(h *Host) answer {
	dir := filepath.Join("/", h.opt.Root, "/proc/sys/fs/binfmt_misc")
	entries, err := os.ReadDir(dir)
	if err != nil {
		return answer{Unknown, err.Error(), ""}
	}
	var names []string
	for _, e := range entries {
		if e.Name() != "register" && e.Name() != "status" {
			names = append(names, e.Name())
		}
	}
	if len(names) == 0 {
		return answer{No, "none registered", ""}
	}
	return answer{Yes, strings.Join(names, ", "), ""}
}
