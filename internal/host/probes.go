package host

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// probe is one question.
type probe struct {
	name string
	need func() Need
	cost string
	run  func(*Host) answer
}

func always(n Need) func() Need { return func() Need { return n } }

// requiredForRoot is for facts that matter only to uid 0.
func requiredForRoot() Need {
	if os.Geteuid() == 0 {
		return Required
	}
	return Info
}

// probes are all questions, in the order in which a person mends things.
var probes = [...]probe{
	{"user namespaces", always(Required), "no command can be run", userNamespace},
	{"capabilities", requiredForRoot, "uid 0 cannot set up a sandbox", capabilities},
	{"network namespace", always(Required), "no command can be run", networkNamespace},
	{"nft redirect", always(Required), "no command can be run: traffic cannot be led to the proxy", nftRedirect},
	{"new procfs", always(Required), "no command can be run: the host's /proc is never shown inside", procMount},
	{"seccomp filter", always(Required), "no command can be run", seccompFilter},
	{"libseccomp", always(Required), "no command can be run: this binary cannot make a filter", libseccomp},
	{"system calls", always(Required), "no command can be run", systemCalls},
	{"no_new_privs", always(Required), "no command can be run", noNewPrivs},
	{"idmapped mounts", requiredForRoot, "started as root, a command cannot have files on disk that belong to the caller", idmapped},
	{"pseudo-terminals", always(Better), "interactive commands get no terminal", devpts},
	{"landlock", always(Better), "one wall less around what a command may change, and whom it may signal", landlock},
	{"overlayfs", always(Better), "kept sandboxes copy where they could layer", overlay},
	{"unix_diag", always(Info), "", unixDiag},
	{"cgroup version", always(Info), "", cgroup},
	{"container", always(Info), "", container},
	{"AppArmor", always(Info), "", apparmor},
	{"security modules", always(Info), "", securityModules},
	{"vsock", always(Info), "", vsock},
	{"foreign programs", always(Info), "", binfmt},
	{"kernel", always(Info), "", kernel},
}

func userNamespace(h *Host) answer {
	child := h.child()
	if child.User == Yes {
		return answer{Yes, "made one", ""}
	}
	why, next := h.UserNamespaceAdvice()
	if child.User == No {
		return answer{No, child.Err + "; " + why, next}
	}
	if limit, ok := h.read("/proc/sys/user/max_user_namespaces"); ok && limit == "0" {
		return answer{No, why, next}
	}
	return answer{Unknown, child.Err, next}
}

// status returns a field of /proc/self/status.
func (h *Host) status(field string) string {
	text, _ := h.read("/proc/self/status")
	for line := range strings.Lines(text) {
		if value, ok := strings.CutPrefix(line, field+":"); ok {
			return strings.TrimSpace(value)
		}
	}
	return ""
}

// rootCapabilities are what uid 0 needs to make a sandbox, by bit (linux/capability.h).
// Found by leaving out each.
var rootCapabilities = [...]struct {
	bit  uint
	name string
}{
	{unix.CAP_SYS_ADMIN, "CAP_SYS_ADMIN"},
	{unix.CAP_NET_ADMIN, "CAP_NET_ADMIN"},
	{unix.CAP_SYS_PTRACE, "CAP_SYS_PTRACE"},
	{unix.CAP_SYS_CHROOT, "CAP_SYS_CHROOT"},
	{unix.CAP_NET_BIND_SERVICE, "CAP_NET_BIND_SERVICE"},
	{unix.CAP_SETUID, "CAP_SETUID"},
	{unix.CAP_SETGID, "CAP_SETGID"},
	{unix.CAP_CHOWN, "CAP_CHOWN"},
	{unix.CAP_DAC_OVERRIDE, "CAP_DAC_OVERRIDE"},
}

// missingCapabilities returns the names of those that this process does not have.
func missingCapabilities() (missing []string) {
	var data [2]unix.CapUserData
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	if unix.Capget(&header, &data[0]) != nil {
		return nil // what is missing shows when it is used
	}
	bits := uint64(data[0].Effective) | uint64(data[1].Effective)<<32
	for _, c := range rootCapabilities {
		if bits&(1<<c.bit) == 0 {
			missing = append(missing, c.name)
		}
	}
	return missing
}

func capabilities(h *Host) answer {
	if os.Geteuid() != 0 {
		return answer{Yes, "not needed by an ordinary user", ""}
	}
	if h.onlyOwnID() {
		return answer{Yes, "not needed by the root of a user namespace that has no other id", ""}
	}
	if missing, next := h.RootAdvice(); len(missing) > 0 {
		return answer{No, "uid 0 without " + strings.Join(missing, ", "), next}
	}
	return answer{Yes, "all that are needed", ""}
}

// onlyOwnID reports whether this user namespace has no id but the caller's.
func (h *Host) onlyOwnID() bool {
	text, _ := h.read("/proc/self/uid_map")
	fields := strings.Fields(text)
	return len(fields) == 3 && fields[2] == "1"
}

func networkNamespace(h *Host) answer {
	return h.child().answer(func(r insideResult) (State, string) { return r.Network, "" },
		"a kernel with CONFIG_NET_NS; in a container, let it make network namespaces")
}

func nftRedirect(h *Host) answer {
	return h.child().answer(func(r insideResult) (State, string) { return r.NFT, r.NFTErr },
		nftFix)
}

const nftFix = "sudo modprobe -a nf_tables nft_chain_nat nft_redir nft_reject_inet"

func procMount(h *Host) answer {
	why, next := h.procAdvice()
	a := h.child().answer(func(r insideResult) (State, string) { return r.Proc, r.ProcErr }, next)
	if a.state == No {
		a.detail += ": " + why
	}
	return a
}

func overlay(h *Host) answer {
	return h.child().answer(func(r insideResult) (State, string) { return r.Overlay, r.OverlayErr },
		"sudo modprobe overlay; a user needs Linux 5.11 or newer")
}

func seccompFilter(*Host) answer {
	// SECCOMP_GET_ACTION_AVAIL (Linux 4.14) answers without installing anything.
	action := uint32(unix.SECCOMP_RET_ERRNO)
	if err := seccomp(unix.SECCOMP_GET_ACTION_AVAIL, &action); err != nil {
		if errors.Is(err, unix.ENOSYS) {
			return answer{No, "the kernel has no seccomp()", "a kernel with CONFIG_SECCOMP_FILTER"}
		}
		return answer{Unknown, "seccomp(): " + err.Error(), "look whether an outer filter refuses seccomp()"}
	}
	notify := uint32(unix.SECCOMP_RET_USER_NOTIF)
	if err := seccomp(unix.SECCOMP_GET_ACTION_AVAIL, &notify); err != nil {
		return answer{Yes, "without user notification", ""}
	}
	return answer{Yes, "with user notification", ""}
}

func libseccomp(h *Host) answer {
	if h.opt.Libseccomp == nil {
		return answer{Unknown, "not wired in", ""}
	}
	version, ok := h.opt.Libseccomp()
	if !ok {
		return answer{No, "this binary was built without it", "build with -tags seccomp, or take a released binary"}
	}
	return answer{Yes, version, ""}
}

func noNewPrivs(*Host) answer {
	if _, err := unix.PrctlRetInt(unix.PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0); err != nil {
		return answer{No, "prctl(PR_GET_NO_NEW_PRIVS): " + err.Error(), "Linux 3.5 or newer"}
	}
	return answer{Yes, "the kernel has it", ""}
}

func devpts(h *Host) answer {
	f, err := os.OpenFile(filepath.Join("/", h.opt.Root, "/dev/ptmx"), os.O_RDWR|unix.O_NOCTTY, 0) //nolint:forbidigo // a device, not a file
	if err != nil {
		return answer{No, err.Error(), "sudo mount -t devpts devpts /dev/pts"}
	}
	f.Close()
	return answer{Yes, "opened one", ""}
}

func landlock(*Host) answer {
	// landlock_create_ruleset(NULL, 0, LANDLOCK_CREATE_RULESET_VERSION) returns the ABI.
	abi, _, errno := unix.Syscall(unix.SYS_LANDLOCK_CREATE_RULESET, 0, 0, unix.LANDLOCK_CREATE_RULESET_VERSION)
	switch errno {
	case 0:
		return answer{Yes, fmt.Sprintf("ABI %d", abi), ""}
	case unix.ENOSYS:
		return answer{No, "the kernel is older than 5.13 or built without it", "a kernel with CONFIG_SECURITY_LANDLOCK"}
	case unix.EOPNOTSUPP:
		return answer{No, "built in, but off", "add landlock to the lsm= kernel parameter"}
	}
	return answer{Unknown, errno.Error(), "look whether an outer filter refuses landlock"}
}

func cgroup(h *Host) answer {
	mode := h.cgroupMode()
	if own := h.ownCgroup(); own != "" {
		mode += ", this process in " + own
	}
	return answer{Yes, mode, ""}
}

func (h *Host) cgroupMode() string {
	switch {
	case h.exists("/sys/fs/cgroup/cgroup.controllers"):
		return "v2"
	case h.exists("/sys/fs/cgroup/unified/cgroup.controllers"):
		return "hybrid"
	case h.exists("/sys/fs/cgroup/memory") || h.exists("/sys/fs/cgroup/cpu"):
		return "v1"
	}
	return "none"
}

func (h *Host) ownCgroup() string {
	text, _ := h.read("/proc/self/cgroup")
	for line := range strings.Lines(text) {
		if path, ok := strings.CutPrefix(strings.TrimSpace(line), "0::"); ok {
			return path
		}
	}
	return ""
}

func securityModules(h *Host) answer {
	if list, ok := h.read("/sys/kernel/security/lsm"); ok {
		return answer{Yes, list, ""}
	}
	return answer{Unknown, "/sys/kernel/security is not readable", "sudo mount -t securityfs securityfs /sys/kernel/security"}
}

func vsock(*Host) answer {
	fd, err := unix.Socket(unix.AF_VSOCK, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err == nil {
		unix.Close(fd)
		return answer{Yes, "no namespace holds it, so seccomp blocks it inside", ""}
	}
	if errors.Is(err, unix.EAFNOSUPPORT) {
		return answer{No, "the kernel has none, so nothing needs to be blocked", ""}
	}
	return answer{Unknown, err.Error(), ""}
}

func kernel(*Host) answer {
	var u unix.Utsname
	if err := unix.Uname(&u); err != nil {
		return answer{Unknown, err.Error(), ""}
	}
	return answer{Yes, unix.ByteSliceToString(u.Release[:]) + " " + unix.ByteSliceToString(u.Machine[:]), ""}
}
