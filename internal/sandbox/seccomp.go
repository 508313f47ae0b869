package sandbox

import (
	_ "embed" // the compiled filter
	"errors"
	"fmt"
	"os"
	"runtime"

	"github.com/opencontainers/runc/libcontainer/seccomp"
	libseccomp "github.com/seccomp/libseccomp-golang"
	"golang.org/x/sys/unix"
)

// ErrNoSeccomp means that this binary was built without libseccomp and must not run anything.
var ErrNoSeccomp = errors.New("this sbx was built without seccomp")

// CheckSeccomp refuses a binary whose build tag left seccomp out.
func CheckSeccomp() error {
	if !seccomp.Enabled {
		return ErrNoSeccomp
	}
	return nil
}

// SeccompVersion returns libseccomp's version, such as "2.5.4".
func SeccompVersion() string {
	major, minor, micro := libseccomp.GetLibraryVersion()
	return fmt.Sprintf("%d.%d.%d", major, minor, micro)
}

// condition compares the masked low bits of a system call's argument. Masks never
// reach above bit 31 where the kernel takes an int: set high bits must not beat the filter.
type condition struct {
	arg   uint
	mask  uint64
	value uint64
}

// refusal is one rule of the filter: calls for which all conditions hold fail with errno.
type refusal struct {
	call       string
	errno      unix.Errno
	conditions []condition
}

const low32 = 0xffffffff

func low(arg uint, value uint64) condition { return condition{arg, low32, value & low32} }

func bit(arg uint, b uint64) condition { return condition{arg, b, b} }

// forbidden are calls that no install or build needs and that widen the kernel's
// attack surface or reach other processes' memory.
var forbidden = []string{
	"add_key", "keyctl", "request_key", "bpf", "perf_event_open", "userfaultfd",
	"kexec_load", "kexec_file_load", "init_module", "finit_module", "delete_module",
	"mount", "umount2", "pivot_root", "move_mount", "open_tree", "open_tree_attr", "fsopen", "fsconfig",
	"fsmount", "fspick", "mount_setattr", "setns", "chroot",
	"ptrace", "process_vm_readv", "process_vm_writev", "kcmp", "pidfd_getfd",
	"reboot", "swapon", "swapoff", "quotactl", "quotactl_fd", "acct", "syslog",
	"iopl", "ioperm", "vhangup", "open_by_handle_at", "name_to_handle_at",
	"settimeofday", "clock_settime", "clock_adjtime", "adjtimex", "sethostname", "setdomainname", "fanotify_init",
}

// absent are calls that must look like an older kernel's, so that callers fall
// back: rings and openat2 hide their arguments from a filter, and so does clone3.
var absent = []string{"io_uring_setup", "io_uring_enter", "io_uring_register", "clone3", "openat2"}

// namespaceFlags are CLONE_NEW* bits: user, mount, cgroup, uts, ipc, pid, net, time.
var namespaceFlags = []uint64{
	unix.CLONE_NEWUSER, unix.CLONE_NEWNS, unix.CLONE_NEWCGROUP, unix.CLONE_NEWUTS,
	unix.CLONE_NEWIPC, unix.CLONE_NEWPID, unix.CLONE_NEWNET,
}

// families are the socket families that exist inside.
var families = map[uint64]bool{unix.AF_UNIX: true, unix.AF_INET: true, unix.AF_INET6: true, unix.AF_NETLINK: true}

// refusals is the whole filter as data.
func refusals() []refusal {
	var out []refusal
	for _, call := range forbidden {
		out = append(out, refusal{call: call, errno: unix.EPERM})
	}
	for _, call := range absent {
		out = append(out, refusal{call: call, errno: unix.ENOSYS})
	}
	for _, flag := range namespaceFlags {
		out = append(out,
			refusal{"clone", unix.EPERM, []condition{bit(0, flag)}},
			refusal{"unshare", unix.EPERM, []condition{bit(0, flag)}})
	}
	out = append(out, refusal{"unshare", unix.EPERM, []condition{bit(0, unix.CLONE_NEWTIME)}})
	for _, request := range []uint64{unix.TIOCSTI, unix.TIOCLINUX, unix.TIOCSETD} {
		out = append(out, refusal{"ioctl", unix.EPERM, []condition{low(1, request)}})
	}
	out = append(out, initRefusals()...)
	return append(append(out, socketRefusals()...), privilegeBitRefusals()...)
}

// initRefusals keep the command from starving its init, which shares its uid: the
// end of the init would look like a failure of sbx.
func initRefusals() []refusal {
	var out []refusal
	for _, c := range []argument{
		{"prlimit64", 0},
		{"sched_setscheduler", 0},
		{"sched_setparam", 0},
		{"sched_setattr", 0},
		{"sched_setaffinity", 0},
		{"setpriority", 1},
		{"ioprio_set", 1},
	} {
		out = append(out, refusal{c.call, unix.EPERM, []condition{low(c.arg, 1)}})
	}
	return out
}

// socketKind are the bits of a socket's type that are not flags (socket(2)).
const socketKind = 0xf

// protocolSMC is IPPROTO_SMC.
const protocolSMC = 256

// socketRefusals leave unix, inet, inet6 and route netlink. AF_VSOCK is not
// namespaced: it would reach the hypervisor. SCTP would leave no trace in the rules.
func socketRefusals() []refusal {
	var out []refusal
	for family := range uint64(64) {
		if !families[family] {
			out = append(out,
				refusal{"socket", unix.EAFNOSUPPORT, []condition{low(0, family)}},
				refusal{"socketpair", unix.EAFNOSUPPORT, []condition{low(0, family)}})
		}
	}
	for _, family := range []uint64{unix.AF_INET, unix.AF_INET6} {
		for _, kind := range []uint64{unix.SOCK_SEQPACKET, unix.SOCK_DCCP} {
			out = append(out, refusal{"socket", unix.ESOCKTNOSUPPORT, []condition{low(0, family), {1, socketKind, kind}}})
		}
		for _, protocol := range []uint64{unix.IPPROTO_SCTP, unix.IPPROTO_DCCP, unix.IPPROTO_L2TP, protocolSMC} {
			out = append(out, refusal{"socket", unix.EPROTONOSUPPORT, []condition{low(0, family), low(2, protocol)}})
		}
	}
	for protocol := uint64(1); protocol < 32; protocol++ {
		out = append(out, refusal{"socket", unix.EPROTONOSUPPORT, []condition{low(0, unix.AF_NETLINK), low(2, protocol)}})
	}
	return out
}

// argument is a call with the position of one of its arguments.
type argument struct {
	call string
	arg  uint
}

// modeArguments are where calls take a file mode.
var modeArguments = []argument{
	{"chmod", 1}, {"fchmod", 1}, {"fchmodat", 2}, {"fchmodat2", 2}, {"creat", 1}, {"mknod", 1}, {"mknodat", 2},
}

// privilegeBitRefusals forbid set-user-id and set-group-id bits: a file that the
// command leaves in the project belongs to the caller, who may be root.
func privilegeBitRefusals() []refusal {
	const tmpfile = unix.O_TMPFILE &^ unix.O_DIRECTORY
	var out []refusal
	for _, mode := range []uint64{unix.S_ISUID, unix.S_ISGID} {
		for _, c := range modeArguments {
			out = append(out, refusal{c.call, unix.EPERM, []condition{bit(c.arg, mode)}})
		}
		for _, create := range []uint64{unix.O_CREAT, tmpfile} {
			out = append(out,
				refusal{"open", unix.EPERM, []condition{bit(1, create), bit(2, mode)}},
				refusal{"openat", unix.EPERM, []condition{bit(2, create), bit(3, mode)}})
		}
	}
	return out
}

// Filter returns the filter as a classic BPF program (seccomp(2)). Foreign ABIs, x32
// included, are killed. On amd64 it was compiled when this binary was made, from
// the same data and by libseccomp too: that takes a millisecond, which every run
// would pay. A test compares both.
func Filter() ([]byte, error) {
	if err := CheckSeccomp(); err != nil {
		return nil, err
	}
	if runtime.GOARCH == "amd64" {
		return filterAMD64, nil
	}
	return compileFilter()
}

//go:embed filter_amd64.bpf
var filterAMD64 []byte

func compileFilter() ([]byte, error) {
	filter, err := libseccomp.NewFilter(libseccomp.ActAllow)
	if err != nil {
		return nil, fmt.Errorf("making a seccomp filter: %w", err)
	}
	defer filter.Release()
	if err := filter.SetBadArchAction(libseccomp.ActKillProcess); err != nil {
		return nil, fmt.Errorf("making a seccomp filter: %w", err)
	}
	for _, r := range refusals() {
		if err := addRefusal(filter, r); err != nil {
			return nil, fmt.Errorf("adding %s to the seccomp filter: %w", r.call, err)
		}
	}
	return exportFilter(filter)
}

func addRefusal(filter *libseccomp.ScmpFilter, r refusal) error {
	call, err := libseccomp.GetSyscallFromName(r.call)
	if err != nil {
		return addByNumber(filter, r)
	}
	return addRule(filter, call, r)
}

// newCalls are calls that older libseccomp versions do not know by name; their
// numbers are the same on every architecture (asm-generic/unistd.h).
var newCalls = map[string]libseccomp.ScmpSyscall{"fchmodat2": 452, "open_tree_attr": 467}

func addByNumber(filter *libseccomp.ScmpFilter, r refusal) error {
	if call, ok := newCalls[r.call]; ok {
		return addRule(filter, call, r)
	}
	return errors.New("unknown to this libseccomp")
}

func addRule(filter *libseccomp.ScmpFilter, call libseccomp.ScmpSyscall, r refusal) error {
	action := libseccomp.ActErrno.SetReturnCode(int16(r.errno)) //nolint:gosec // an errno
	if len(r.conditions) == 0 {
		return filter.AddRule(call, action)
	}
	conditions := make([]libseccomp.ScmpCondition, 0, len(r.conditions))
	for _, c := range r.conditions {
		made, err := libseccomp.MakeCondition(c.arg, libseccomp.CompareMaskedEqual, c.mask, c.value)
		if err != nil {
			return err
		}
		conditions = append(conditions, made)
	}
	return filter.AddRuleConditional(call, action, conditions)
}

func exportFilter(filter *libseccomp.ScmpFilter) ([]byte, error) {
	fd, err := unix.MemfdCreate("seccomp", unix.MFD_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("exporting the seccomp filter: %w", err)
	}
	file := os.NewFile(uintptr(fd), "seccomp")
	defer file.Close()
	if err := filter.ExportBPF(file); err != nil {
		return nil, fmt.Errorf("exporting the seccomp filter: %w", err)
	}
	size, err := unix.Seek(fd, 0, unix.SEEK_END)
	if err != nil {
		return nil, fmt.Errorf("exporting the seccomp filter: %w", err)
	}
	program := make([]byte, size)
	if _, err := file.ReadAt(program, 0); err != nil {
		return nil, fmt.Errorf("exporting the seccomp filter: %w", err)
	}
	return program, nil
}
