package prober

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// refusedCall is what a filtered call answers. Anything else means that the call got
// through to the kernel, which had its own reasons.
const refusedCall = "EPERM|ENOSYS|EACCES"

// kernelAttempts are calls that an install or a build never needs and an exploit does
// (bypasses 56 to 59). Where the kernel would let an ordinary process, the arguments
// are such that it would.
func kernelAttempts() []attempt {
	var all []attempt
	for name, args := range map[string][4]uintptr{
		"io_uring_setup": {unix.SYS_IO_URING_SETUP, 8}, "bpf": {unix.SYS_BPF, 0, 0, 72}, "perf_event_open": {unix.SYS_PERF_EVENT_OPEN},
		"userfaultfd": {unix.SYS_USERFAULTFD, 1}, "keyctl": {unix.SYS_KEYCTL, 0, ^uintptr(0) - 2, 1}, "add_key": {unix.SYS_ADD_KEY}, "request_key": {unix.SYS_REQUEST_KEY},
		"unshare user": {unix.SYS_UNSHARE, unix.CLONE_NEWUSER}, "unshare net": {unix.SYS_UNSHARE, unix.CLONE_NEWNET}, "unshare mount": {unix.SYS_UNSHARE, unix.CLONE_NEWNS},
		"unshare, high bits": {unix.SYS_UNSHARE, 1<<40 | unix.CLONE_NEWUSER}, "clone3": {unix.SYS_CLONE3, 0, 88}, "setns": {unix.SYS_SETNS, 0},
		"mount": {unix.SYS_MOUNT}, "umount2": {unix.SYS_UMOUNT2}, "pivot_root": {unix.SYS_PIVOT_ROOT}, "chroot": {unix.SYS_CHROOT}, "fsopen": {unix.SYS_FSOPEN}, "open_tree": {unix.SYS_OPEN_TREE},
		"move_mount": {unix.SYS_MOVE_MOUNT}, "mount_setattr": {unix.SYS_MOUNT_SETATTR}, "process_vm_readv": {unix.SYS_PROCESS_VM_READV, 1}, "process_vm_writev": {unix.SYS_PROCESS_VM_WRITEV, 1},
		"ptrace of the init": {unix.SYS_PTRACE, unix.PTRACE_SEIZE, 1}, "kcmp": {unix.SYS_KCMP, 1, 1}, "open_by_handle_at": {unix.SYS_OPEN_BY_HANDLE_AT},
		"init_module": {unix.SYS_INIT_MODULE}, "finit_module": {unix.SYS_FINIT_MODULE}, "kexec_load": {unix.SYS_KEXEC_LOAD}, "reboot": {unix.SYS_REBOOT}, "swapon": {unix.SYS_SWAPON}, "acct": {unix.SYS_ACCT},
		"quotactl": {unix.SYS_QUOTACTL}, "syslog": {unix.SYS_SYSLOG, 10}, "settimeofday": {unix.SYS_SETTIMEOFDAY}, "sethostname": {unix.SYS_SETHOSTNAME}, "fanotify_init": {unix.SYS_FANOTIFY_INIT},
		"setuid": {unix.SYS_SETUID, 0}, "setgid": {unix.SYS_SETGID, 0}, "setgroups": {unix.SYS_SETGROUPS, 0},
	} {
		want := refusedCall
		if strings.HasPrefix(name, "set") && strings.HasSuffix(name, "id") {
			want += "|EINVAL" // the id is not mapped
		}
		all = append(all, attempt{name, want, func(*attacker) string { return raw(args) }})
	}
	return append(all,
		attempt{"mknod of a device", refusedCall, func(*attacker) string {
			return said(unix.Mknod("/tmp/device", unix.S_IFCHR|0o666, int(unix.Mkdev(1, 3)))) //nolint:gosec // small
		}},
		attempt{"set-user-id bit", refusedCall, setUserID},
		attempt{"capabilities", "EPERM", raiseCapabilities},
		attempt{"privileges by exec", "1", func(*attacker) string {
			n, err := unix.PrctlRetInt(unix.PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0)
			return strings.TrimPrefix(fmt.Sprint(n, nameOf(err)), "success")
		}},
	)
}

// raw makes the call in a process-wide harmless way: the thread's result only.
func raw(args [4]uintptr) string {
	if _, _, errno := unix.Syscall(args[0], args[1], args[2], args[3]); errno != 0 {
		return unix.ErrnoName(errno)
	}
	return "success"
}

func setUserID(*attacker) string {
	f, err := os.CreateTemp("", "sbx-canary-")
	if err != nil {
		return "could not try: " + err.Error()
	}
	defer os.Remove(f.Name())
	defer f.Close()
	return said(unix.Fchmod(int(f.Fd()), 0o4755))
}

func raiseCapabilities(*attacker) string {
	head := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	data := [2]unix.CapUserData{{Effective: 1 << unix.CAP_NET_ADMIN, Permitted: 1 << unix.CAP_NET_ADMIN}}
	return said(unix.Capset(&head, &data[0]))
}

// terminalAttempts type into the caller's terminal (bypass 56).
func terminalAttempts() []attempt {
	var all []attempt
	for name, request := range map[string]uintptr{
		"TIOCSTI": unix.TIOCSTI, "TIOCLINUX": unix.TIOCLINUX, "TIOCSTI, high bits": 1<<40 | unix.TIOCSTI, "TIOCLINUX, high bits": 1<<40 | unix.TIOCLINUX,
	} {
		all = append(all, attempt{name, "EPERM", func(*attacker) string {
			letter := byte('x')
			return raw([4]uintptr{unix.SYS_IOCTL, 0, request, uintptr(unsafe.Pointer(&letter))})
		}})
	}
	return append(all, attempt{"the caller's terminal", "ENXIO|ENOENT|EACCES", func(*attacker) string {
		fd, err := unix.Open("/dev/tty", unix.O_RDWR|unix.O_CLOEXEC, 0)
		if err == nil {
			_ = unix.Close(fd)
		}
		return said(err)
	}})
}

// processAttempts look at the init, the only process of the sandbox's own that shows.
func processAttempts() []attempt {
	const no = "EACCES|EPERM"
	open := func(path string, flags int) func(*attacker) string {
		return func(*attacker) string {
			fd, err := unix.Open(path, flags|unix.O_CLOEXEC, 0)
			if err == nil {
				_ = unix.Close(fd)
			}
			return said(err)
		}
	}
	link := func(path string) func(*attacker) string {
		return func(*attacker) string { _, err := os.Readlink(path); return said(err) }
	}
	return []attempt{
		{"memory of the init", no, open("/proc/1/mem", unix.O_RDWR)},
		{"environment of the init", no, open("/proc/1/environ", unix.O_RDONLY)},
		{"maps of the init", no, open("/proc/1/maps", unix.O_RDONLY)},
		{"root of the init", no, link("/proc/1/root")},
		{"program of the init", no, open("/proc/1/exe", unix.O_WRONLY)},
		{"descriptors of the init", no, link("/proc/1/fd/3")},
		{"namespace of the init", no, open("/proc/1/ns/net", unix.O_RDONLY)},
		{"own program, to write", "EROFS|ETXTBSY|EACCES", open("/proc/self/exe", unix.O_WRONLY)},
		{"the init's file, to write", "EROFS|ETXTBSY|EACCES", open("/run/sbx/init", unix.O_WRONLY)},
		{"other processes", "none", otherProcesses},
		{"kill the init", "alive|EPERM", killInit},
	}
}

// otherProcesses lists processes that are neither the init nor the probe.
func otherProcesses(*attacker) string {
	all, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		return err.Error()
	}
	var others []string
	for _, p := range all {
		if pid := filepath.Base(p); pid != "1" && pid != fmt.Sprint(os.Getpid()) {
			others = append(others, pid)
		}
	}
	if len(others) == 0 {
		return "none"
	}
	return strings.Join(others, " ")
}

func killInit(*attacker) string {
	_ = syscall.Kill(1, syscall.SIGKILL) // the kernel lets it be sent and drops it (pid_namespaces(7))
	if err := syscall.Kill(1, 0); err != nil {
		return nameOf(err)
	}
	return "alive"
}

// fileAttempts write or read what is not the command's.
func fileAttempts() []attempt {
	var all []attempt
	for _, path := range []string{
		"/x", "/usr/x", "/etc/x", "/etc/passwd", "/run/sbx/x", "/proc/sys/kernel/core_pattern", "/proc/sys/net/ipv4/ip_forward",
		"/proc/sysrq-trigger", "/proc/self/uid_map", "/proc/self/setgroups", "/sys/kernel/uevent_helper", "/etc/resolv.conf", "/run/sbx/bundle.pem",
	} {
		all = append(all, attempt{"write " + path, "EROFS|EACCES|EPERM|ENOENT|EISDIR", func(*attacker) string {
			fd, err := unix.Open(path, unix.O_WRONLY|unix.O_CREAT|unix.O_CLOEXEC, 0o600)
			if err != nil {
				return said(err)
			}
			defer unix.Close(fd)
			if strings.HasPrefix(path, "/proc/") {
				_, err = unix.Write(fd, []byte("0"))
			}
			return said(err)
		}})
	}
	const nothing = "ENOENT|EACCES|EPERM|empty"
	for _, path := range []string{
		"/etc/shadow", "/proc/kcore", "/proc/cmdline", "/proc/keys", "/proc/interrupts", "/proc/timer_list", "/sys/kernel/debug", "/sys/fs/cgroup/release_agent",
		"/root/.ssh", "/var/lib/sbx", "/run/user", "/run/systemd/private",
	} {
		all = append(all, attempt{"read " + path, nothing, func(*attacker) string { return readable(path) }})
	}
	for _, path := range []string{"/dev/mem", "/dev/kmem", "/dev/kvm", "/dev/fuse", "/dev/net/tun"} {
		all = append(all, attempt{"read " + path, nothing + "|ENXIO", func(*attacker) string { return readable(path) }})
	}
	for _, path := range []string{"/run/docker.sock", "/var/run/docker.sock", "/run/podman/podman.sock", "/run/containerd/containerd.sock", "/run/dbus/system_bus_socket"} {
		all = append(all, attempt{"look for " + path, nothing, func(*attacker) string { return readable(path) }}) // one that is there says ENXIO
	}
	return append(all, attempt{"remove resolv.conf", "EROFS|EBUSY|EACCES|EPERM", func(*attacker) string { return said(os.Remove("/etc/resolv.conf")) }})
}

// descriptorAttempts look for anything that the supervisor left open.
func descriptorAttempts() []attempt {
	return []attempt{{"inherited descriptors", "none", func(*attacker) string {
		foreign, err := inherited()
		if err != nil {
			return said(err)
		}
		if len(foreign) == 0 {
			return "none"
		}
		return strings.Join(foreign, "; ")
	}}}
}
