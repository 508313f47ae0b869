package host

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"
)

// identifying are the settings of the kernel that decide what a sandbox can rely on.
var identifying = []string{
	"user/max_user_namespaces", "user/max_net_namespaces", "kernel/unprivileged_userns_clone",
	"kernel/apparmor_restrict_unprivileged_userns", "kernel/apparmor_restrict_unprivileged_unconfined",
	"kernel/yama/ptrace_scope", "kernel/unprivileged_bpf_disabled", "kernel/io_uring_disabled", "kernel/keys/maxkeys",
	"kernel/seccomp/actions_avail", "vm/unprivileged_userfaultfd", "dev/tty/legacy_tiocsti", "net/ipv4/ip_unprivileged_port_start",
	"net/ipv6/conf/all/disable_ipv6", "fs/protected_symlinks", "fs/protected_hardlinks",
}

// Identity lists what of this machine a proof of the floor rests on, by name: kernel,
// settings, security modules, namespaces and cgroup mode. It starts nothing and reads
// a few small files; what cannot be read is left out, so that its appearance changes
// the identity as well.
func (h *Host) Identity() map[string]string {
	out := map[string]string{"cgroup": h.cgroupMode(), "kernel": kernelRelease(), "landlock": landlockABI()}
	for _, name := range identifying {
		if value, ok := h.read("/proc/sys/" + name); ok {
			out["sysctl "+strings.ReplaceAll(name, "/", ".")] = value
		}
	}
	for name, path := range map[string]string{
		"security modules": "/sys/kernel/security/lsm", "confinement": "/proc/self/attr/current",
		"user ids": "/proc/self/uid_map", "group ids": "/proc/self/gid_map",
	} {
		if value, ok := h.read(path); ok {
			out[name] = strings.Join(strings.Fields(strings.Trim(value, "\x00")), " ")
		}
	}
	out["seccomp"], out["capabilities"] = h.status("Seccomp"), h.status("CapEff")
	out["user namespace"] = h.userNamespaceDepth()
	if ids := securityModuleIDs(); ids != "" {
		out["security module ids"] = ids
	}
	return out
}

// initialUserNamespace is the inode of the first user namespace on every machine
// (PROC_USER_INIT_INO of linux/proc_ns.h).
const initialUserNamespace = "user:[4026531837]"

// userNamespaceDepth tells the machine's own user namespace from one below it. The
// kernel tells nobody how many lie between (ioctl_nsfs(2)); those that differ in what
// they give show it in their ids and in their own limits, which are told as well.
func (h *Host) userNamespaceDepth() string {
	name, err := os.Readlink(filepath.Join("/", h.opt.Root, "/proc/self/ns/user"))
	switch {
	case err != nil:
		return "unknown"
	case name == initialUserNamespace:
		return "initial"
	}
	return "nested"
}

// securityModuleIDs are those of the kernel's security modules, in order, as it tells
// them also where securityfs is not mounted (lsm_list_modules(2), Linux 6.8); "" on
// older kernels.
func securityModuleIDs() string {
	var ids [64]uint64
	size := uint32(unsafe.Sizeof(ids))
	n, _, errno := unix.Syscall(unix.SYS_LSM_LIST_MODULES, uintptr(unsafe.Pointer(&ids)), uintptr(unsafe.Pointer(&size)), 0)
	if errno != 0 || n > uintptr(len(ids)) {
		return ""
	}
	return strings.Trim(fmt.Sprint(ids[:n]), "[]")
}

func kernelRelease() string {
	var u unix.Utsname
	if unix.Uname(&u) != nil {
		return ""
	}
	return fmt.Sprintf("%s %s %s", unix.ByteSliceToString(u.Release[:]), unix.ByteSliceToString(u.Version[:]), unix.ByteSliceToString(u.Machine[:]))
}

// landlockABI is the version of Landlock (landlock_create_ruleset(2)), or why there is none.
func landlockABI() string {
	abi, _, errno := unix.Syscall(unix.SYS_LANDLOCK_CREATE_RULESET, 0, 0, unix.LANDLOCK_CREATE_RULESET_VERSION)
	if errno != 0 {
		return unix.ErrnoName(errno)
	}
	return fmt.Sprint(abi)
}
