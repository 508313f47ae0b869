package notify

import (
	"bytes"
	"errors"
	"os"
	"path"
	"strconv"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Check reports why this process could not answer for the children of the sandbox's
// first process, 0 if it can: containers' filters forbid what it takes, and so may
// security modules.
func Check(init int) unix.Errno {
	pidfd, err := unix.PidfdOpen(init, 0)
	if err != nil {
		return errnoOf(err)
	}
	defer unix.Close(pidfd)
	fd, err := unix.PidfdGetfd(pidfd, 0, 0)
	if err == nil {
		err = unix.Close(fd)
	}
	if err != nil && !errors.Is(err, unix.EBADF) { // who has no such descriptor could be asked for it
		return errnoOf(err)
	}
	c := caller{pid: init}
	if _, err := c.read(0, 1); !errors.Is(err, unix.EFAULT) { // nothing lies there
		return errnoOf(err)
	}
	return 0
}

// caller is a thread inside that waits for the answer to one call.
type caller struct {
	listener listener
	id       uint64
	pid      int // of the thread
}

func (c caller) answer(errno unix.Errno) { c.listener.answer(c.id, errno) }

func (c caller) waits() bool { return c.listener.valid(c.id) }

// openCaller opens the thread. Before Linux 6.9 there are only whole processes;
// threads with a descriptor table of their own then get the process's.
func openCaller(pid int) (int, error) {
	fd, err := unix.PidfdOpen(pid, unix.O_EXCL) // PIDFD_THREAD
	if !errors.Is(err, unix.EINVAL) {
		return fd, err
	}
	group, err := strconv.Atoi(status(pid, "Tgid"))
	if err != nil {
		return -1, unix.ESRCH
	}
	return unix.PidfdOpen(group, 0)
}

// take returns a copy of the caller's descriptor. Nothing may be done with it before
// waits said that it was the caller's.
func (c caller) take(fd uint64) (int, error) {
	pidfd, err := openCaller(c.pid)
	if err != nil {
		return -1, err
	}
	copied, err := unix.PidfdGetfd(pidfd, int(int32(fd)), 0) //nolint:gosec // the kernel takes an int, too
	return copied, errors.Join(err, unix.Close(pidfd))
}

// maxAddress is the size of struct sockaddr_storage.
const maxAddress = 128

// address is a copy of a socket address, in which nobody can change anything any more.
type address struct {
	size  int
	bytes [maxAddress]byte
}

// read copies an address as connect(2) does.
func (c caller) read(at, size uint64) (a address, err error) {
	a.size = int(int32(size)) //nolint:gosec // the kernel takes an int, too
	if a.size < 0 || a.size > maxAddress {
		return a, unix.EINVAL
	}
	if a.size == 0 {
		return a, nil
	}
	local := unix.Iovec{Base: &a.bytes[0], Len: uint64(a.size)}
	remote := unix.RemoteIovec{Base: uintptr(at), Len: a.size}
	n, _, errno := unix.Syscall6(unix.SYS_PROCESS_VM_READV, uintptr(c.pid), uintptr(unsafe.Pointer(&local)), 1, uintptr(unsafe.Pointer(&remote)), 1, 0)
	switch {
	case errno == unix.EFAULT || errno == 0 && int(n) != a.size:
		return a, unix.EFAULT
	case errno != 0:
		return a, errno
	}
	return a, nil
}

// path returns the path that the address names. Abstract names, unnamed and malformed
// addresses have none: for them the kernel looks at no file (unix(7)).
func (a *address) path() (string, bool) {
	if a.size <= 2 || a.size > unix.SizeofSockaddrUnix || a.family() != unix.AF_UNIX || a.bytes[2] == 0 {
		return "", false
	}
	text := a.bytes[2:a.size]
	if end := bytes.IndexByte(text, 0); end >= 0 {
		text = text[:end]
	}
	return string(text), true
}

func (a *address) family() uint16 { return *(*uint16)(unsafe.Pointer(&a.bytes[0])) }

// pathAddress is the unix address of a short path.
func pathAddress(name string) address {
	a := address{size: 2 + len(name) + 1}
	a.bytes[0] = unix.AF_UNIX
	copy(a.bytes[2:], name)
	return a
}

// directory opens where the caller's path begins, and says what is left of it. Its own
// descriptors have no name but the caller's: procfs knows it by another process.
func (c caller) directory(name string) (dir int, rest string, err error) {
	if fd, rest, ok := ownDescriptor(name); ok {
		dir, err = c.take(fd)
		return dir, rest, err
	}
	if path.IsAbs(name) {
		return -1, name, nil
	}
	dir, err = unix.Open(c.proc("cwd"), unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	return dir, name, err
}

// ownDescriptor takes /proc/self/fd/N/rest apart.
func ownDescriptor(name string) (fd uint64, rest string, ok bool) {
	for _, own := range []string{"/proc/self/fd/", "/proc/thread-self/fd/", "/dev/fd/"} {
		if after, found := strings.CutPrefix(name, own); found {
			digits, rest, _ := strings.Cut(after, "/")
			fd, err := strconv.ParseUint(digits, 10, 31)
			return fd, strings.TrimLeft(rest, "/"), err == nil
		}
	}
	return 0, "", false
}

func (c caller) proc(name string) string { return "/proc/" + strconv.Itoa(c.pid) + "/" + name }

// errRestart is ERESTARTSYS (linux/errno.h): the kernel calls the handler of the signal
// that waits, or stops the process, then makes the call again or turns this into EINTR,
// as the handler asked for. No program ever sees it.
const errRestart = unix.Errno(512)

// interruption returns how a call ends for which a signal waits, 0 where none does. A
// signal that any thread of the process may take could be gone when the answer comes,
// and then nothing would hide errRestart.
func (c caller) interruption() unix.Errno {
	deliverable := ^signals(status(c.pid, "SigBlk"))
	own, shared := signals(status(c.pid, "SigPnd"))&deliverable, signals(status(c.pid, "ShdPnd"))&deliverable
	switch {
	case own != 0, shared != 0 && status(c.pid, "Threads") == "1":
		return errRestart
	case shared != 0:
		return unix.EINTR
	}
	return 0
}

func signals(text string) uint64 {
	set, _ := strconv.ParseUint(text, 16, 64) // none for a process that is gone
	return set
}

// status returns a field of proc_pid_status(5), or nothing.
func status(pid int, field string) string {
	text, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/status")
	if err != nil {
		return ""
	}
	for line := range strings.Lines(string(text)) {
		if value, ok := strings.CutPrefix(line, field+":"); ok {
			return strings.TrimSpace(value)
		}
	}
	return ""
}
