package sandbox

import (
	"errors"
	"slices"

	"golang.org/x/sys/unix"
)

// LandlockABI returns the version of Landlock that this kernel has (landlock(7)), or
// why there is none.
func LandlockABI() (int, error) {
	abi, _, errno := unix.Syscall(unix.SYS_LANDLOCK_CREATE_RULESET, 0, 0, unix.LANDLOCK_CREATE_RULESET_VERSION)
	switch {
	case errno == unix.ENOSYS:
		return 0, errors.New("the kernel was built without it, or a filter around sbx hides it")
	case errno == unix.EOPNOTSUPP:
		return 0, errors.New("it is not among the kernel's security modules (lsm= at its start)")
	case errno != 0:
		return 0, errno
	case abi < leastLandlock:
		return 0, errors.New("this kernel's version 1 forbids every move between directories")
	}
	return int(abi), nil
}

// leastLandlock is the first ABI that can permit moves between directories.
const leastLandlock = 2

// LandlockScope is the first ABI that keeps signals and abstract sockets apart.
const LandlockScope = 6

// writable are the paths below which the command may change anything: the writable
// entries of the tree, and what is always there. The kernel's own files are read-only
// by their mounts, or the command's to write, as its own /proc/self/oom_score_adj.
func writable(tree []Entry) []string {
	out := []string{"/proc", "/dev"}
	for _, e := range tree {
		if (e.Kind == Tmpfs || e.Kind == Bind && e.Writable) && !slices.Contains(out, e.Target) {
			out = append(out, e.Target)
		}
	}
	return out
}
