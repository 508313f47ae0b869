package notify

import (
	"errors"
	"unsafe"

	"golang.org/x/sys/unix"
)

// notification is struct seccomp_notif (seccomp_unotify(2)).
type notification struct {
	id    uint64
	pid   uint32 // the calling thread, in this process's pid namespace
	flags uint32
	nr    int32
	arch  uint32
	ip    uint64
	args  [6]uint64
}

// response is struct seccomp_notif_resp.
type response struct {
	id    uint64
	value int64
	errno int32 // negative
	flags uint32
}

// Requests that x/sys has no names for (linux/seccomp.h, linux/un.h).
const (
	requestValid    = 0x40082102 // SECCOMP_IOCTL_NOTIF_ID_VALID
	requestSetFlags = 0x40082104 // SECCOMP_IOCTL_NOTIF_SET_FLAGS
	requestUnixFile = 0x89e0     // SIOCUNIXFILE
)

// listener is the descriptor through which the kernel asks.
type listener int

// wakeHere lets the kernel run this process where the caller of the call waits, which
// halves the time of an answer. Kernels before 6.6 wake it anywhere.
func (l listener) wakeHere() {
	_, _, _ = unix.Syscall(unix.SYS_IOCTL, uintptr(l), requestSetFlags, unix.SECCOMP_USER_NOTIF_FD_SYNC_WAKE_UP)
}

// errOver means that nobody is left who could ask.
var errOver = errors.New("no process is left that the kernel asks for")

// receive waits for the next call.
func (l listener) receive() (notification, error) {
	for {
		var n notification // the kernel demands zeros
		_, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(l), unix.SECCOMP_IOCTL_NOTIF_RECV, uintptr(unsafe.Pointer(&n)))
		switch {
		case errno == 0:
			return n, nil
		case errno == unix.ENOENT && l.over():
			return n, errOver
		case errno != unix.ENOENT && errno != unix.EINTR: // the caller died, or this was woken in vain
			return n, errno
		}
	}
}

// over tells the end of all callers from that of one, which the kernel reports alike.
func (l listener) over() bool {
	poll := []unix.PollFd{{Fd: int32(l)}} //nolint:gosec // a descriptor
	n, err := unix.Poll(poll, 0)
	return err == nil && n == 1 && poll[0].Revents&unix.POLLHUP != 0
}

// valid reports whether the caller still waits: what was taken of its pid before is
// then its own.
func (l listener) valid(id uint64) bool {
	_, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(l), requestValid, uintptr(unsafe.Pointer(&id)))
	return errno == 0
}

// answer ends a call. A caller that is gone needs none.
func (l listener) answer(id uint64, errno unix.Errno) {
	l.send(response{id: id, errno: -int32(errno)}) //nolint:gosec // an errno
}

// pass lets the kernel make the call as it was asked for. That is no decision: the
// caller may have changed what its arguments mean.
func (l listener) pass(id uint64) {
	l.send(response{id: id, flags: unix.SECCOMP_USER_NOTIF_FLAG_CONTINUE})
}

func (l listener) send(r response) {
	_, _, _ = unix.Syscall(unix.SYS_IOCTL, uintptr(l), unix.SECCOMP_IOCTL_NOTIF_SEND, uintptr(unsafe.Pointer(&r)))
}
