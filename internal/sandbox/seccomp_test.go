package sandbox

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"syscall"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"
)

const (
	filteredVariable = "SBX_SECCOMP_TEST_CHILD"
	browserVariable  = "SBX_SECCOMP_TEST_BROWSER"
)

// foreign asks the child for a call of another ABI.
const foreign = "foreign"

// TestMain lets a child of the tests run under the filter.
func TestMain(m *testing.M) {
	if os.Getenv(filteredVariable) != "" {
		os.Exit(underFilter())
	}
	os.Exit(m.Run())
}

// attempt is one call and what must come of it.
type attempt struct {
	name string
	want error
	call func() error
}

func raw(nr uintptr, args ...uintptr) func() error {
	return func() error {
		var a [6]uintptr
		copy(a[:], args)
		_, _, errno := unix.Syscall6(nr, a[0], a[1], a[2], a[3], a[4], a[5])
		if errno != 0 {
			return errno
		}
		return nil
	}
}

// high are bits above an int's: the kernel ignores them, so the filter has to.
const high = 1 << 40

func attempts(dir string) []attempt {
	path := func(name string) uintptr {
		b, err := unix.BytePtrFromString(dir + "/" + name)
		if err != nil {
			panic(err)
		}
		return uintptr(unsafe.Pointer(b))
	}
	at := unix.AT_FDCWD
	cwd := uintptr(at)
	return []attempt{
		{"clone3", unix.ENOSYS, raw(unix.SYS_CLONE3, 0, 0)},
		{"openat2", unix.ENOSYS, raw(unix.SYS_OPENAT2, cwd, path("f"), 0, 0)},
		{"io_uring_setup", unix.ENOSYS, raw(unix.SYS_IO_URING_SETUP, 1, 0)},
		{"unshare user", unix.EPERM, raw(unix.SYS_UNSHARE, unix.CLONE_NEWUSER)},
		{"unshare user, high bits", unix.EPERM, raw(unix.SYS_UNSHARE, unix.CLONE_NEWUSER|high)},
		{"unshare net", unix.EPERM, raw(unix.SYS_UNSHARE, unix.CLONE_NEWNET)},
		{"unshare files", nil, raw(unix.SYS_UNSHARE, unix.CLONE_FILES)},
		{"clone user", unix.EPERM, raw(unix.SYS_CLONE, unix.CLONE_NEWUSER|uintptr(unix.SIGCHLD))},
		{"setns", unix.EPERM, raw(unix.SYS_SETNS, 0, 0)},
		{"mount", unix.EPERM, raw(unix.SYS_MOUNT, 0, 0, 0, 0, 0)},
		{"ptrace", nil, raw(unix.SYS_PTRACE, unix.PTRACE_TRACEME, 0, 0, 0)},
		{"process_vm_readv", unix.ENOSYS, raw(unix.SYS_PROCESS_VM_READV, 0, 0, 0, 0, 0, 0)},
		{"a call of the future", unix.ENOSYS, raw(9999)},
		{"personality, to ask", nil, raw(unix.SYS_PERSONALITY, low32)},
		{"personality of another system", unix.ENOSYS, raw(unix.SYS_PERSONALITY, 0x0100)},
		{"executable data", unix.ENOSYS, raw(unix.SYS_PERSONALITY, 0x0400000)},
		{"packet filter", unix.EPERM, raw(unix.SYS_SETSOCKOPT, 0, unix.SOL_IP, 64, 0, 0)},
		{"packet filter, high bits", unix.EPERM, raw(unix.SYS_SETSOCKOPT, 0, unix.SOL_IP|high, 64|high, 0, 0)},
		{"packet filter, IPv6", unix.EPERM, raw(unix.SYS_SETSOCKOPT, 0, unix.SOL_IPV6, 64|high, 0, 0)},
		{"chroot", unix.EPERM, raw(unix.SYS_CHROOT, path("."))},
		{"bpf", unix.ENOSYS, raw(unix.SYS_BPF, 0, 0, 0)},
		{"keyctl", unix.ENOSYS, raw(unix.SYS_KEYCTL, 0, 0, 0)},
		{"vsock", unix.EAFNOSUPPORT, raw(unix.SYS_SOCKET, unix.AF_VSOCK, unix.SOCK_STREAM, 0)},
		{"vsock, high bits", unix.EAFNOSUPPORT, raw(unix.SYS_SOCKET, unix.AF_VSOCK|high, unix.SOCK_STREAM, 0)},
		{"packet", unix.EAFNOSUPPORT, raw(unix.SYS_SOCKET, unix.AF_PACKET, unix.SOCK_RAW, 0)},
		{"packet, as inet", unix.EPERM, raw(unix.SYS_SOCKET, unix.AF_INET, unix.SOCK_PACKET|unix.SOCK_CLOEXEC, 0x300)},
		{"alg", unix.EAFNOSUPPORT, raw(unix.SYS_SOCKET, unix.AF_ALG, unix.SOCK_SEQPACKET, 0)},
		{"sctp", unix.EPROTONOSUPPORT, raw(unix.SYS_SOCKET, unix.AF_INET, unix.SOCK_STREAM, unix.IPPROTO_SCTP)},
		{"nfnetlink", unix.EPROTONOSUPPORT, raw(unix.SYS_SOCKET, unix.AF_NETLINK, unix.SOCK_RAW, unix.NETLINK_NETFILTER)},
		{"tcp", nil, raw(unix.SYS_SOCKET, unix.AF_INET, unix.SOCK_STREAM, 0)},
		{"tcp6", nil, raw(unix.SYS_SOCKET, unix.AF_INET6, unix.SOCK_STREAM, 0)},
		{"unix", nil, raw(unix.SYS_SOCKET, unix.AF_UNIX, unix.SOCK_STREAM, 0)},
		{"unix datagrams", unix.ESOCKTNOSUPPORT, raw(unix.SYS_SOCKET, unix.AF_UNIX, unix.SOCK_DGRAM, 0)},
		{"unix datagrams, flags and high bits", unix.ESOCKTNOSUPPORT, raw(unix.SYS_SOCKET, unix.AF_UNIX|high, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK|high, 0)},
		{"unix datagrams by another name", unix.ESOCKTNOSUPPORT, raw(unix.SYS_SOCKET, unix.AF_UNIX, unix.SOCK_RAW, 0)},
		{"pair of unix datagrams", unix.ESOCKTNOSUPPORT, raw(unix.SYS_SOCKETPAIR, unix.AF_UNIX, unix.SOCK_DGRAM, 0)},
		{"route netlink", nil, raw(unix.SYS_SOCKET, unix.AF_NETLINK, unix.SOCK_RAW, unix.NETLINK_ROUTE)},
		{"socketpair vsock", unix.EAFNOSUPPORT, raw(unix.SYS_SOCKETPAIR, unix.AF_VSOCK, unix.SOCK_STREAM, 0)},
		{"seqpacket inet", unix.ESOCKTNOSUPPORT, raw(unix.SYS_SOCKET, unix.AF_INET, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)},
		{"prlimit of the init", unix.EPERM, raw(unix.SYS_PRLIMIT64, 1, unix.RLIMIT_CPU, 0, 0)},
		{"prlimit of itself", nil, raw(unix.SYS_PRLIMIT64, 0, unix.RLIMIT_CPU, 0, 0)},
		{"TIOCSETD", unix.EPERM, raw(unix.SYS_IOCTL, 0, unix.TIOCSETD|high, 0)},
		{"TIOCSTI", unix.EPERM, raw(unix.SYS_IOCTL, 0, unix.TIOCSTI, 0)},
		{"TIOCSTI, high bits", unix.EPERM, raw(unix.SYS_IOCTL, 0, unix.TIOCSTI|high, 0)},
		{"TIOCLINUX, high bits", unix.EPERM, raw(unix.SYS_IOCTL, 0, unix.TIOCLINUX|high, 0)},
		{"chmod", nil, raw(unix.SYS_FCHMODAT, cwd, path("f"), 0o755)},
		{"chmod setuid", unix.EPERM, raw(unix.SYS_FCHMODAT, cwd, path("f"), 0o4755)},
		{"chmod setgid", unix.EPERM, raw(unix.SYS_FCHMODAT, cwd, path("f"), 0o2755)},
		{"fchmodat2 setuid", unix.EPERM, raw(unix.SYS_FCHMODAT2, cwd, path("f"), 0o4755, 0)},
		{"open", nil, raw(unix.SYS_OPENAT, cwd, path("f"), unix.O_RDONLY, 0o4755)},
		{"create setuid", unix.EPERM, raw(unix.SYS_OPENAT, cwd, path("g"), unix.O_CREAT|unix.O_WRONLY, 0o4755)},
		{"tmpfile setuid", unix.EPERM, raw(unix.SYS_OPENAT, cwd, path("."), unix.O_TMPFILE|unix.O_WRONLY, 0o4755)},
		{"mknod setuid", unix.EPERM, raw(unix.SYS_MKNODAT, cwd, path("h"), unix.S_IFREG|0o4755, 0)},
		{"name_to_handle_at", unix.ENOSYS, raw(unix.SYS_NAME_TO_HANDLE_AT, cwd, path("f"), 0, 0, 0)},
	}
}

// underFilter applies the compiled filter to this process and makes every attempt.
func underFilter() int {
	runtime.LockOSThread()
	program, err := Filter(os.Getenv(browserVariable) != "")
	if err == nil {
		err = unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
	}
	if err != nil {
		fmt.Println(err)
		return 1
	}
	prog := unix.SockFprog{Len: uint16(len(program) / 8), Filter: (*unix.SockFilter)(unsafe.Pointer(&program[0]))}
	const setFilter, syncThreads = 1, 1
	if err := raw(unix.SYS_SECCOMP, setFilter, syncThreads, uintptr(unsafe.Pointer(&prog)))(); err != nil {
		fmt.Println("loading the filter:", err)
		return 1
	}
	if os.Getenv(filteredVariable) == foreign {
		const x32 = 0x40000000
		fmt.Println("an x32 call returned:", raw(x32|unix.SYS_GETPID)())
		return 0
	}
	status := 0
	for _, a := range attempts(os.Getenv(filteredVariable)) {
		if err := a.call(); !errors.Is(err, a.want) {
			fmt.Printf("%s: %v, want %v\n", a.name, err, a.want)
			status = 1
		}
	}
	return status
}

func TestFilterRefusesWithTheExactError(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(dir+"/f", nil, 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), "/proc/self/exe")
	cmd.Env = append(os.Environ(), filteredVariable+"="+dir)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("under the filter: %v\n%s", err, out)
	}
	if _, err := os.Stat(dir + "/g"); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a set-user-id file was made: %v", err)
	}
}

func TestForeignABIIsKilled(t *testing.T) {
	cmd := exec.CommandContext(t.Context(), "/proc/self/exe")
	cmd.Env = append(os.Environ(), filteredVariable+"="+foreign)
	err := cmd.Run()
	exit, ok := errors.AsType[*exec.ExitError](err)
	if !ok || exit.Sys().(syscall.WaitStatus).Signal() != unix.SIGSYS {
		t.Errorf("an x32 call: %v, want death by SIGSYS", err)
	}
}

func TestFilterInTheBinaryIsTheOneInTheSource(t *testing.T) {
	for name, userNamespaces := range map[string]bool{"filter_amd64.bpf": false, "filter_browser_amd64.bpf": true} {
		compiled, err := compileFilter(userNamespaces)
		if err != nil {
			t.Fatal(err)
		}
		if len(compiled)/instruction > maxInstructions {
			t.Errorf("%s: %d instructions, more than the kernel takes", name, len(compiled)/instruction)
		}
		if *update {
			if err := os.WriteFile(name, compiled, 0o600); err != nil {
				t.Fatal(err)
			}
		}
		embedded, err := Filter(userNamespaces)
		if err != nil {
			t.Fatal(err)
		}
		// Other versions of the library may order the program differently.
		if version := SeccompVersion(); version == filterMadeWith && !bytes.Equal(compiled, embedded) {
			t.Errorf("%s: the filter's data changed; run go test -update ./internal/sandbox", name)
		} else if len(embedded) == 0 {
			t.Errorf("no filter (libseccomp %s)", version)
		}
	}
}

// maxInstructions is BPF_MAXINSNS.
const maxInstructions = 4096

// filterMadeWith is the libseccomp whose output is compared byte by byte.
const filterMadeWith = "2.5.4"

func BenchmarkCompileFilter(b *testing.B) {
	for b.Loop() {
		if _, err := compileFilter(false); err != nil {
			b.Fatal(err)
		}
	}
}
