package notify

import (
	"strconv"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// attempt makes one connection as far as that is possible without waiting. blocks
// reports that the socket is one that would have waited for the rest.
func (s *Server) attempt(fd int, a *address) (errno unix.Errno, blocks bool) {
	flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFL, 0)
	if err != nil || flags&unix.O_NONBLOCK != 0 || !mayWait(fd) {
		return connect(fd, a), false
	}
	// The flag belongs to the socket, not to this copy of the descriptor. It is set for
	// the moment of the call only, by nobody else at the same time.
	s.flags.Lock()
	defer s.flags.Unlock()
	if _, err := unix.FcntlInt(uintptr(fd), unix.F_SETFL, flags|unix.O_NONBLOCK); err != nil {
		return unix.EAGAIN, false
	}
	errno = connect(fd, a)
	if errno == unix.EINPROGRESS {
		errno = connect(fd, a) // loopback is there already
	}
	_, _ = unix.FcntlInt(uintptr(fd), unix.F_SETFL, flags)
	return errno, true
}

func connect(fd int, a *address) unix.Errno {
	_, _, errno := unix.Syscall(unix.SYS_CONNECT, uintptr(fd), uintptr(unsafe.Pointer(&a.bytes[0])), uintptr(a.size))
	return errno
}

// mayWait leaves out datagram sockets, which connect at once.
func mayWait(fd int) bool {
	kind, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_TYPE)
	return err == nil && kind != unix.SOCK_DGRAM
}

// Between two looks at a connection that has to wait.
const (
	firstLook = time.Millisecond
	lastLook  = 50 * time.Millisecond
)

// wait follows a connection that is on its way to its end, to that of the caller, or to
// a signal for it. again makes the next attempt; unfinished is what it says meanwhile,
// and expired what the caller is told when the socket's own limit is over.
func (c caller) wait(fd int, unfinished, expired unix.Errno, again func() unix.Errno) {
	limit := sendLimit(fd)
	for pause, waited := firstLook, time.Duration(0); ; pause = min(2*pause, lastLook) {
		<-time.After(pause)
		waited += pause
		if !c.waits() {
			return
		}
		errno, over := again(), true
		if errno == unfinished {
			errno, over = c.patience(waited, limit, expired, pause == lastLook)
		}
		if over {
			c.answer(errno)
			return
		}
	}
}

// patience says whether, and how, a call ends that has not come to its own end.
func (c caller) patience(waited, limit time.Duration, expired unix.Errno, look bool) (errno unix.Errno, over bool) {
	if limit > 0 && waited >= limit {
		return expired, true
	}
	if look {
		errno = c.interruption()
	}
	if errno != 0 && limit > 0 {
		errno = unix.EINTR // signal(7): a call with a limit is never made again
	}
	return errno, errno != 0
}

// sendLimit is how long the socket may wait (SO_SNDTIMEO of socket(7)), 0 for ever.
func sendLimit(fd int) time.Duration {
	limit, err := unix.GetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_SNDTIMEO)
	if err != nil {
		return 0
	}
	return time.Duration(limit.Nano())
}

// throughDescriptor is the address of the very file that a descriptor of this process
// holds, for a thread in the given directory.
func throughDescriptor(proc string, fd int) address {
	return pathAddress(proc + "self/fd/" + strconv.Itoa(fd))
}
