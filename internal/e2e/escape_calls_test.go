package e2e

import (
	"fmt"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// attempt is one way out, and what has to come of it.
type attempt struct {
	name string
	want string // names of errors or a result, alternatives separated by |
	try  string // a line for testdata/probe.c, or a Python expression
}

// call is a system call for testdata/probe.c. Arguments are numbers, or words as
// probe.c has them.
func call(name, want string, number int, arguments ...any) attempt {
	line := []string{strconv.Itoa(number)}
	for _, a := range arguments {
		line = append(line, fmt.Sprint(a))
	}
	return attempt{name, want, strings.Join(line, " ")}
}

// aboveInt is a bit that the kernel ignores where it takes an int.
const aboveInt = 1 << 40

// x/sys has no name for it yet (Linux 6.15).
const sysOpenTreeAttr = 467

// systemCalls are the calls that the sandbox forbids, in the spellings that a
// careless filter lets through.
func systemCalls() []attempt {
	all := privilegeBitCalls()
	all = append(all, inodeCalls...)
	all = append(all, namespaceCalls()...)
	all = append(all, socketCalls()...)
	all = append(all, initCalls()...)
	for fd := 3; fd < 256; fd++ {
		all = append(all, call(fmt.Sprint("descriptor ", fd), "EBADF", unix.SYS_FCNTL, fd, unix.F_GETFD))
	}
	return append(append(all, forbiddenCalls...), foreignCalls...)
}

// privilegeBitCalls would leave files that run as their owner, who may be root.
func privilegeBitCalls() []attempt {
	var all []attempt
	for _, bits := range []int{unix.S_ISUID, unix.S_ISGID} {
		for _, high := range []int{0, 1 << 16, aboveInt} {
			mode := high | bits | 0o755
			as := fmt.Sprintf(" %#o", mode)
			all = append(all,
				call("fchmod"+as, "EPERM", unix.SYS_FCHMOD, "@file", mode),
				call("fchmodat"+as, "EPERM", unix.SYS_FCHMODAT, unix.AT_FDCWD, `"file`, mode),
				call("fchmodat2"+as, "EPERM", unix.SYS_FCHMODAT2, unix.AT_FDCWD, `"file`, mode, 0),
				call("openat"+as, "EPERM", unix.SYS_OPENAT, unix.AT_FDCWD, `"made`, unix.O_CREAT|unix.O_WRONLY, mode),
				call("openat, high flags"+as, "EPERM", unix.SYS_OPENAT, unix.AT_FDCWD, `"made`, aboveInt|unix.O_CREAT|unix.O_WRONLY, mode),
				call("O_TMPFILE"+as, "EPERM", unix.SYS_OPENAT, unix.AT_FDCWD, `".`, unix.O_TMPFILE|unix.O_WRONLY, mode),
				call("mknodat"+as, "EPERM", unix.SYS_MKNODAT, unix.AT_FDCWD, `"made`, mode|unix.S_IFREG, 0),
			)
			all = append(all, oldPrivilegeBitCalls(as, mode)...)
		}
	}
	return append(all,
		call("fchmod without bits", "ok", unix.SYS_FCHMOD, "@file", 0o755),
		call("open with bits, not to create", "ok", unix.SYS_OPENAT, unix.AT_FDCWD, `"file`, unix.O_RDONLY, 0o4755),
	)
}

// inodeCalls would make devices, or change who a file belongs to.
var inodeCalls = []attempt{
	call("character device", "EPERM", unix.SYS_MKNODAT, unix.AT_FDCWD, `"device`, unix.S_IFCHR|0o666, unix.Mkdev(1, 3)),
	call("block device", "EPERM", unix.SYS_MKNODAT, unix.AT_FDCWD, `"device`, unix.S_IFBLK|0o666, unix.Mkdev(8, 0)),
	call("character device in memory", "EPERM", unix.SYS_MKNODAT, unix.AT_FDCWD, `"/tmp/device`, unix.S_IFCHR|0o666, unix.Mkdev(1, 3)),
	call("block device in memory", "EPERM", unix.SYS_MKNODAT, unix.AT_FDCWD, `"/dev/shm/device`, unix.S_IFBLK|0o666, unix.Mkdev(8, 0)),
	call("chown to root", "EINVAL|EPERM", unix.SYS_FCHOWNAT, unix.AT_FDCWD, `"file`, 0, 0, 0),
	call("chown to somebody", "EINVAL|EPERM", unix.SYS_FCHOWNAT, unix.AT_FDCWD, `"file`, 1234, 1234, 0),
	call("chown to nobody", "EINVAL|EPERM", unix.SYS_FCHOWNAT, unix.AT_FDCWD, `"file`, 65534, 65534, 0),
	call("chgrp to root", "EINVAL|EPERM", unix.SYS_FCHOWNAT, unix.AT_FDCWD, `"file`, -1, 0, 0),
	call("trusted attribute", "EPERM", unix.SYS_SETXATTR, `"file`, `"trusted.overlay.opaque`, "*", 1, 0),
}

// namespaceCalls would give the command capabilities of its own.
func namespaceCalls() []attempt {
	var all []attempt
	for name, flag := range map[string]int{
		"user": unix.CLONE_NEWUSER, "mount": unix.CLONE_NEWNS, "cgroup": unix.CLONE_NEWCGROUP, "uts": unix.CLONE_NEWUTS,
		"ipc": unix.CLONE_NEWIPC, "pid": unix.CLONE_NEWPID, "net": unix.CLONE_NEWNET,
	} {
		for _, high := range []int{0, aboveInt, 1 << 32} {
			as := fmt.Sprintf(" %s %#x", name, high)
			all = append(all,
				call("unshare"+as, "EPERM", unix.SYS_UNSHARE, high|flag),
				call("clone"+as, "EPERM", unix.SYS_CLONE, high|flag|int(unix.SIGCHLD), 0, 0, 0, 0),
			)
		}
	}
	return append(all,
		call("unshare time", "EPERM", unix.SYS_UNSHARE, unix.CLONE_NEWTIME),
		call("unshare time, high bits", "EPERM", unix.SYS_UNSHARE, aboveInt|unix.CLONE_NEWTIME),
		call("unshare user and mount", "EPERM", unix.SYS_UNSHARE, unix.CLONE_NEWUSER|unix.CLONE_NEWNS),
		call("clone3", "ENOSYS", unix.SYS_CLONE3, "*", 88),
		call("setns", "EPERM", unix.SYS_SETNS, "@/proc/self/ns/net", 0),
	)
}

// socketCalls would be ways around the network's rules.
func socketCalls() []attempt {
	const allProtocols = 3 // ETH_P_ALL
	var all []attempt
	for family := range 64 {
		switch family {
		case unix.AF_UNIX, unix.AF_INET, unix.AF_INET6, unix.AF_NETLINK:
			continue
		}
		for _, high := range []int{0, aboveInt, 1 << 32} {
			as := fmt.Sprintf(" of family %#x", high|family)
			all = append(all,
				call("socket"+as, "EAFNOSUPPORT", unix.SYS_SOCKET, high|family, unix.SOCK_STREAM, 0),
				call("raw socket"+as, "EAFNOSUPPORT", unix.SYS_SOCKET, high|family, unix.SOCK_RAW|unix.SOCK_CLOEXEC, allProtocols),
				call("pair"+as, "EAFNOSUPPORT", unix.SYS_SOCKETPAIR, high|family, unix.SOCK_STREAM, 0, "*"),
			)
		}
	}
	for protocol := 1; protocol < 32; protocol++ {
		all = append(all,
			call(fmt.Sprint("netlink ", protocol), "EPROTONOSUPPORT", unix.SYS_SOCKET, unix.AF_NETLINK, unix.SOCK_RAW, protocol),
			call(fmt.Sprint("netlink, high bits ", protocol), "EPROTONOSUPPORT", unix.SYS_SOCKET, aboveInt|unix.AF_NETLINK, unix.SOCK_DGRAM, aboveInt|protocol),
		)
	}
	for _, family := range []int{unix.AF_INET, unix.AF_INET6} {
		for name, protocol := range map[string]int{"SCTP": unix.IPPROTO_SCTP, "DCCP": unix.IPPROTO_DCCP, "L2TP": unix.IPPROTO_L2TP, "SMC": 256} {
			for _, kind := range []int{unix.SOCK_STREAM, unix.SOCK_DGRAM, unix.SOCK_STREAM | unix.SOCK_NONBLOCK} {
				all = append(all, call(fmt.Sprint(name, " ", family, " ", kind), "EPROTONOSUPPORT", unix.SYS_SOCKET, family, kind, protocol))
			}
		}
		all = append(all,
			call(fmt.Sprint("SEQPACKET ", family), "ESOCKTNOSUPPORT", unix.SYS_SOCKET, family, unix.SOCK_SEQPACKET, 0),
			call(fmt.Sprint("SEQPACKET, high bits ", family), "ESOCKTNOSUPPORT", unix.SYS_SOCKET, family, aboveInt|unix.SOCK_SEQPACKET, 0),
			call(fmt.Sprint("DCCP's kind ", family), "ESOCKTNOSUPPORT", unix.SYS_SOCKET, family, unix.SOCK_DCCP, 0),
			call(fmt.Sprint("raw ", family), "EPERM", unix.SYS_SOCKET, family, unix.SOCK_RAW, unix.IPPROTO_ICMP),
			call(fmt.Sprint("raw, any header ", family), "EPERM", unix.SYS_SOCKET, family, unix.SOCK_RAW, unix.IPPROTO_RAW),
		)
	}
	return all
}

// initCalls would starve or end the sandbox's first process.
func initCalls() []attempt {
	var all []attempt
	for _, high := range []int{0, aboveInt} {
		first := high | 1
		as := fmt.Sprintf(" of %#x", first)
		all = append(all,
			call("prlimit"+as, "EPERM", unix.SYS_PRLIMIT64, first, unix.RLIMIT_NOFILE, "*", 0),
			call("sched_setscheduler"+as, "EPERM", unix.SYS_SCHED_SETSCHEDULER, first, unix.SCHED_IDLE, "*"),
			call("sched_setparam"+as, "EPERM", unix.SYS_SCHED_SETPARAM, first, "*"),
			call("sched_setattr"+as, "EPERM", unix.SYS_SCHED_SETATTR, first, "*", 0),
			call("sched_setaffinity"+as, "EPERM", unix.SYS_SCHED_SETAFFINITY, first, 8, "*"),
			call("setpriority"+as, "EPERM", unix.SYS_SETPRIORITY, unix.PRIO_PROCESS, first, 19),
			call("ioprio_set"+as, "EPERM", unix.SYS_IOPRIO_SET, 1, first, 3<<13),
			call("setpgid"+as, "ESRCH", unix.SYS_SETPGID, first, 0),
		)
	}
	// Landlock refuses it; without, the kernel lets it be sent and drops it, which
	// everything after this shows.
	want := "EPERM"
	if landlockABI() < 6 {
		want = "ok"
	}
	return append(all,
		call("kill -9 the init", want, unix.SYS_KILL, 1, int(unix.SIGKILL)),
		call("stop the init", want, unix.SYS_KILL, 1, int(unix.SIGSTOP)),
		call("kill the init by descriptor", want+"|EBADF", unix.SYS_PIDFD_SEND_SIGNAL, "@/proc/1", int(unix.SIGKILL), 0, 0),
	)
}

// landlockABI is this kernel's, 0 without Landlock (landlock(7)).
func landlockABI() int {
	abi, _, errno := unix.Syscall(unix.SYS_LANDLOCK_CREATE_RULESET, 0, 0, unix.LANDLOCK_CREATE_RULESET_VERSION)
	if errno != 0 {
		return 0
	}
	return int(abi)
}

// forbiddenCalls are of no use to installs and builds. Where the kernel itself
// would let an ordinary process, the arguments are such that it would.
var forbiddenCalls = []attempt{
	call("openat2", "ENOSYS", unix.SYS_OPENAT2, unix.AT_FDCWD, `"file`, "*", 24),
	call("io_uring_setup", "ENOSYS", unix.SYS_IO_URING_SETUP, 8, "*"),
	call("io_uring_enter", "ENOSYS", unix.SYS_IO_URING_ENTER, 0, 1, 0, 0, 0, 0),
	call("io_uring_register", "ENOSYS", unix.SYS_IO_URING_REGISTER, -1, 0, 0, 0),
	call("fsopen", "ENOSYS", unix.SYS_FSOPEN, `"tmpfs`, 0),
	call("fsconfig", "ENOSYS", unix.SYS_FSCONFIG, 0, 6, 0, 0, 0),
	call("fsmount", "ENOSYS", unix.SYS_FSMOUNT, 0, 0, 0),
	call("fspick", "ENOSYS", unix.SYS_FSPICK, unix.AT_FDCWD, `".`, 0),
	call("open_tree", "ENOSYS", unix.SYS_OPEN_TREE, unix.AT_FDCWD, `".`, 0),
	call("open_tree, cloned", "ENOSYS", unix.SYS_OPEN_TREE, unix.AT_FDCWD, `".`, unix.OPEN_TREE_CLONE),
	call("open_tree_attr", "ENOSYS", sysOpenTreeAttr, unix.AT_FDCWD, `".`, 0, "*", 32),
	call("move_mount", "ENOSYS", unix.SYS_MOVE_MOUNT, unix.AT_FDCWD, `"/etc`, unix.AT_FDCWD, `"/tmp`, 0),
	call("mount_setattr", "ENOSYS", unix.SYS_MOUNT_SETATTR, unix.AT_FDCWD, `"/`, unix.AT_RECURSIVE, "*", 32),
	call("mount", "EPERM", unix.SYS_MOUNT, `"none`, `"/tmp`, `"tmpfs`, 0, 0),
	call("bind mount", "EPERM", unix.SYS_MOUNT, `"/`, `"/tmp`, 0, unix.MS_BIND, 0),
	call("remount", "EPERM", unix.SYS_MOUNT, `"none`, `"/etc`, 0, unix.MS_REMOUNT|unix.MS_BIND, 0),
	call("umount", "EPERM", unix.SYS_UMOUNT2, `"/etc/resolv.conf`, unix.MNT_DETACH),
	call("pivot_root", "EPERM", unix.SYS_PIVOT_ROOT, `".`, `".`),
	call("chroot", "EPERM", unix.SYS_CHROOT, `".`),
	call("ptrace, to be traced", "ok", unix.SYS_PTRACE, unix.PTRACE_TRACEME, 0, 0, 0),
	call("ptrace of the init", "EPERM", unix.SYS_PTRACE, unix.PTRACE_SEIZE, 1, 0, 0),
	call("process_vm_readv", "ENOSYS", unix.SYS_PROCESS_VM_READV, 1, "*", 1, "*", 1, 0),
	call("process_vm_writev", "ENOSYS", unix.SYS_PROCESS_VM_WRITEV, 1, "*", 1, "*", 1, 0),
	call("pidfd_getfd", "ENOSYS", unix.SYS_PIDFD_GETFD, 0, 0, 0),
	call("kcmp", "ENOSYS", unix.SYS_KCMP, 1, 1, 0, 0, 0),
	call("bpf", "ENOSYS", unix.SYS_BPF, 0, "*", 72),
	call("userfaultfd", "ENOSYS", unix.SYS_USERFAULTFD, 1),
	call("perf_event_open", "ENOSYS", unix.SYS_PERF_EVENT_OPEN, "*", 0, -1, -1, 0),
	call("keyctl", "ENOSYS", unix.SYS_KEYCTL, unix.KEYCTL_GET_KEYRING_ID, unix.KEY_SPEC_SESSION_KEYRING, 1),
	call("add_key", "ENOSYS", unix.SYS_ADD_KEY, `"user`, `"name`, "*", 1, unix.KEY_SPEC_PROCESS_KEYRING),
	call("request_key", "ENOSYS", unix.SYS_REQUEST_KEY, `"user`, `"name`, 0, 0),
	call("quotactl", "EPERM", unix.SYS_QUOTACTL, 0, 0, 0, "*"),
	call("quotactl_fd", "EPERM", unix.SYS_QUOTACTL_FD, "@file", 0, 0, "*"),
	call("syslog", "EPERM", unix.SYS_SYSLOG, 10, 0, 0),
	call("name_to_handle_at", "ENOSYS", unix.SYS_NAME_TO_HANDLE_AT, unix.AT_FDCWD, `".`, "*", "*", 0),
	call("open_by_handle_at", "EPERM", unix.SYS_OPEN_BY_HANDLE_AT, "@file", "*", 0),
	call("fanotify_init", "ENOSYS", unix.SYS_FANOTIFY_INIT, unix.FAN_REPORT_FID, 0),
	call("acct", "EPERM", unix.SYS_ACCT, `"file`),
	call("vhangup", "EPERM", unix.SYS_VHANGUP),
	call("swapon", "EPERM", unix.SYS_SWAPON, `"file`, 0),
	call("swapoff", "EPERM", unix.SYS_SWAPOFF, `"file`),
	call("kexec_load", "EPERM", unix.SYS_KEXEC_LOAD, 0, 0, 0, 0),
	call("kexec_file_load", "EPERM", unix.SYS_KEXEC_FILE_LOAD, 0, 0, 0, 0, 0),
	call("init_module", "EPERM", unix.SYS_INIT_MODULE, "*", 1, "*"),
	call("finit_module", "EPERM", unix.SYS_FINIT_MODULE, "@file", "*", 0),
	call("delete_module", "EPERM", unix.SYS_DELETE_MODULE, `"x`, 0),
	call("reboot", "EPERM", unix.SYS_REBOOT, unix.LINUX_REBOOT_MAGIC1, unix.LINUX_REBOOT_MAGIC2, unix.LINUX_REBOOT_CMD_CAD_OFF, 0),
	call("sethostname", "EPERM", unix.SYS_SETHOSTNAME, `"evil`, 4),
	call("settimeofday", "EPERM", unix.SYS_SETTIMEOFDAY, "*", 0),
	call("clock_settime", "EPERM", unix.SYS_CLOCK_SETTIME, 0, "*"),
	call("adjtimex", "EPERM", unix.SYS_ADJTIMEX, "*"),
	call("TIOCSTI", "EPERM", unix.SYS_IOCTL, 0, unix.TIOCSTI, "*"),
	call("TIOCLINUX", "EPERM", unix.SYS_IOCTL, 0, unix.TIOCLINUX, "*"),
	call("TIOCSETD", "EPERM", unix.SYS_IOCTL, 0, unix.TIOCSETD, "*"),
	call("TIOCSTI, high bits", "EPERM", unix.SYS_IOCTL, 0, aboveInt|unix.TIOCSTI, "*"),
	call("TIOCLINUX, high bits", "EPERM", unix.SYS_IOCTL, 0, aboveInt|unix.TIOCLINUX, "*"),
	call("TIOCSETD, high bits", "EPERM", unix.SYS_IOCTL, aboveInt, 1<<32|unix.TIOCSETD, "*"),
}
