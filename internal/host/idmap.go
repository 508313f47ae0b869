package host

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// tryIdmap maps a copy of the working directory's mount through the child's
// user namespace, as a run started by root does. Nothing is attached anywhere.
func tryIdmap(pid int) (State, string) {
	if os.Geteuid() != 0 {
		return Unknown, ""
	}
	userns, err := os.Open(fmt.Sprintf("/proc/%d/ns/user", pid))
	if err != nil {
		return Unknown, err.Error()
	}
	defer userns.Close()
	tree, err := unix.OpenTree(unix.AT_FDCWD, ".", unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC)
	if err != nil {
		return stateOf(err), "open_tree: " + err.Error()
	}
	defer unix.Close(tree)
	attr := unix.MountAttr{Attr_set: unix.MOUNT_ATTR_IDMAP, Userns_fd: uint64(userns.Fd())}
	if err := unix.MountSetattr(tree, "", unix.AT_EMPTY_PATH, &attr); err != nil {
		return stateOf(err), "mount_setattr: " + err.Error()
	}
	return Yes, ""
}

// stateOf tells "the kernel or file system cannot" from "we may not ask".
func stateOf(err error) State {
	if errors.Is(err, unix.ENOSYS) || errors.Is(err, unix.EINVAL) {
		return No
	}
	return Unknown
}

func idmapped(h *Host) answer {
	if os.Geteuid() != 0 {
		return answer{Yes, "not needed by an ordinary user", ""}
	}
	r := h.child()
	if r.Idmap == "" {
		return answer{Unknown, "not tried: " + r.Err, ""}
	}
	return answer{
		r.Idmap, "the working directory's file system: " + orTried(r.IdmapErr),
		"start sbx as the user who owns the directory, or use one on ext4, xfs, btrfs or tmpfs",
	}
}

func orTried(s string) string {
	if s == "" {
		return "tried"
	}
	return s
}
