package sandbox

import (
	_ "embed" // the compiled filters
	"encoding/binary"
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

// Filter returns the filter as a classic BPF program (seccomp(2)), with or without
// user namespaces for the command. Foreign ABIs, x32 included, are killed. On amd64 it
// was compiled when this binary was made, from the same data and by libseccomp too:
// that takes milliseconds, which every run would pay. A test compares both.
func Filter(userNamespaces bool) ([]byte, error) {
	if err := CheckSeccomp(); err != nil {
		return nil, err
	}
	switch {
	case runtime.GOARCH != "amd64":
		return compileFilter(userNamespaces)
	case userNamespaces:
		return filterBrowserAMD64, nil
	}
	return filterAMD64, nil
}

//go:embed filter_amd64.bpf
var filterAMD64 []byte

//go:embed filter_browser_amd64.bpf
var filterBrowserAMD64 []byte

// compileFilter makes one program of two. libseccomp drops the rules about arguments of
// a call that another rule permits as a whole, so they come first, in a program of
// their own that lets everything else pass, and its "pass" leads on to the list.
func compileFilter(userNamespaces bool) ([]byte, error) {
	arguments, err := compile(libseccomp.ActAllow, func(f *libseccomp.ScmpFilter) error { return addRefusals(f, userNamespaces) })
	if err != nil {
		return nil, err
	}
	enosys := libseccomp.ActErrno.SetReturnCode(int16(unix.ENOSYS))
	list, err := compile(enosys, func(f *libseccomp.ScmpFilter) error { return addCalls(f, userNamespaces) })
	if err != nil {
		return nil, err
	}
	return chain(arguments, list), nil
}

func compile(otherwise libseccomp.ScmpAction, add func(*libseccomp.ScmpFilter) error) ([]byte, error) {
	filter, err := libseccomp.NewFilter(otherwise)
	if err != nil {
		return nil, fmt.Errorf("making a seccomp filter: %w", err)
	}
	defer filter.Release()
	if err := filter.SetBadArchAction(libseccomp.ActKillProcess); err != nil {
		return nil, fmt.Errorf("making a seccomp filter: %w", err)
	}
	// A binary tree over the calls' numbers instead of one comparison after the other.
	if err := filter.SetOptimize(2); err != nil {
		return nil, fmt.Errorf("making a seccomp filter: %w", err)
	}
	if err := add(filter); err != nil {
		return nil, err
	}
	return exportFilter(filter)
}

func addRefusals(filter *libseccomp.ScmpFilter, userNamespaces bool) error {
	for _, r := range refusals(userNamespaces) {
		if err := addRule(filter, r.call, r.errno, r.conditions...); err != nil {
			return err
		}
	}
	return nil
}

func addCalls(filter *libseccomp.ScmpFilter, userNamespaces bool) error {
	for _, group := range permitted {
		for _, call := range group {
			if call == "personality" {
				continue
			}
			if err := addRule(filter, call, 0); err != nil {
				return err
			}
		}
	}
	for _, p := range personalities {
		if err := addRule(filter, "personality", 0, low(0, p)); err != nil {
			return err
		}
	}
	for _, call := range privileged {
		errno := unix.EPERM
		if call == "chroot" && userNamespaces {
			errno = 0
		}
		if err := addRule(filter, call, errno); err != nil {
			return err
		}
	}
	return nil
}

// addRule permits a call, or has it fail with errno, where all conditions hold.
func addRule(filter *libseccomp.ScmpFilter, name string, errno unix.Errno, conditions ...condition) error {
	call, err := number(name)
	if err != nil {
		return fmt.Errorf("adding %s to the seccomp filter: %w", name, err)
	}
	action := libseccomp.ActAllow
	if errno != 0 {
		action = libseccomp.ActErrno.SetReturnCode(int16(errno)) //nolint:gosec // an errno
	}
	if len(conditions) == 0 {
		err = filter.AddRule(call, action)
	} else {
		var made []libseccomp.ScmpCondition
		if made, err = comparisons(conditions); err == nil {
			err = filter.AddRuleConditional(call, action, made)
		}
	}
	if err != nil {
		return fmt.Errorf("adding %s to the seccomp filter: %w", name, err)
	}
	return nil
}

func number(name string) (libseccomp.ScmpSyscall, error) {
	if n, ok := newCalls[name]; ok {
		return libseccomp.ScmpSyscall(n), nil
	}
	return libseccomp.GetSyscallFromName(name)
}

func comparisons(conditions []condition) ([]libseccomp.ScmpCondition, error) {
	out := make([]libseccomp.ScmpCondition, 0, len(conditions))
	for _, c := range conditions {
		made, err := libseccomp.MakeCondition(c.arg, libseccomp.CompareMaskedEqual, c.mask, c.value)
		if c.mask == 0 {
			made, err = libseccomp.MakeCondition(c.arg, libseccomp.CompareGreaterEqual, c.value)
		}
		if err != nil {
			return nil, err
		}
		out = append(out, made)
	}
	return out, nil
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

// instruction is the size of a classic BPF instruction (struct sock_filter): 16 bits of
// code, two jump offsets of 8, 32 of an operand.
const instruction = 8

// chain joins two programs: what the first lets pass, the second decides.
func chain(first, second []byte) []byte {
	out := append([]byte{}, first...)
	n := len(first) / instruction
	for i := range n {
		at := out[i*instruction:]
		if binary.NativeEndian.Uint16(at) == unix.BPF_RET|unix.BPF_K && binary.NativeEndian.Uint32(at[4:]) == unix.SECCOMP_RET_ALLOW {
			binary.NativeEndian.PutUint16(at, unix.BPF_JMP|unix.BPF_JA)
			binary.NativeEndian.PutUint32(at[4:], uint32(n-i-1)) //nolint:gosec // at most 4,096 instructions
		}
	}
	return append(out, second...)
}
