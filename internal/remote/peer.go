package remote

import (
	"errors"
	"fmt"
	"net"
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

// ErrForeign is a socket on which somebody listens whose word does not count.
var ErrForeign = errors.New("the server's word does not count")

// trusted looks at who listens: the caller or root, and not in another user namespace, as
// what runs in a sandbox is. It could otherwise lay a socket into its working directory and
// say that all is well. hidden says that no sandbox shows the place of the socket.
func trusted(c net.Conn, hidden bool) error {
	p, err := peerOf(c)
	if err != nil {
		return fmt.Errorf("asking who listens: %w", err)
	}
	if p.process != nil {
		defer p.process.Close()
	}
	return p.trusted(hidden)
}

// peer is who called listen(2), as unix(7) tells it.
type peer struct {
	uid, pid int      // of SO_PEERCRED; no pid where it is outside of this pid namespace
	process  *os.File // of SO_PEERPIDFD; nil on kernels before 6.5
}

func (p peer) trusted(hidden bool) error {
	switch {
	case p.uid != os.Geteuid() && p.uid != 0:
		return fmt.Errorf("%w: it is uid %d, neither you nor root", ErrForeign, p.uid)
	case p.process == nil && hidden:
		return nil
	case p.process == nil:
		// The pid alone would do for a sandbox: a child listens and ends, its parent answers, and
		// the pid is given to somebody else.
		return fmt.Errorf("%w: before Linux 6.5 nobody can tell which process listens, so only a socket in sbx's state directory counts (sbx state path), which no sandbox shows", ErrForeign)
	}
	own, err := os.Stat("/proc/self/ns/user")
	if err != nil {
		return fmt.Errorf("asking who listens: %w", err)
	}
	theirs, err := p.userNamespace()
	// What was looked at by its pid was that process only if it lives on.
	if alive, failed := p.alive(); failed != nil || !alive {
		return errors.Join(fmt.Errorf("%w: process %d, which listened, has ended", ErrForeign, p.pid), failed)
	}
	switch {
	case errors.Is(err, os.ErrPermission) && p.uid == 0 && os.Geteuid() != 0:
		return nil // root's processes do not show theirs to others, and are in none of a sandbox
	case err != nil:
		return fmt.Errorf("%w: process %d cannot be looked at: %w", ErrForeign, p.pid, err)
	case !os.SameFile(own, theirs):
		return fmt.Errorf("%w: process %d is in another user namespace, as in a sandbox", ErrForeign, p.pid)
	}
	return nil
}

// alive reports whether the process has not ended: its descriptor is readable from then on
// (pidfd_open(2)), also while nobody has collected it.
func (p peer) alive() (bool, error) {
	poll := []unix.PollFd{{Fd: int32(p.process.Fd()), Events: unix.POLLIN}} //nolint:gosec // a descriptor
	for {
		n, err := unix.Poll(poll, 0)
		if !errors.Is(err, unix.EINTR) {
			return n == 0, err
		}
	}
}

// getUserNamespace is PIDFD_GET_USER_NAMESPACE of linux/pidfd.h (Linux 6.11).
const getUserNamespace = 0xff<<8 | 9

// userNamespace is asked of the process itself, and where the kernel cannot do that, by its pid.
func (p peer) userNamespace() (os.FileInfo, error) {
	fd, err := unix.IoctlRetInt(int(p.process.Fd()), getUserNamespace)
	if err == nil {
		file := os.NewFile(uintptr(fd), "user namespace")
		defer file.Close()
		return file.Stat()
	}
	if !errors.Is(err, unix.ENOTTY) && !errors.Is(err, unix.EINVAL) {
		return nil, err
	}
	if p.pid == 0 {
		return nil, errors.New("it is outside of this pid namespace, and this kernel is older than 6.11")
	}
	return os.Stat("/proc/" + strconv.Itoa(p.pid) + "/ns/user")
}

func peerOf(c net.Conn) (peer, error) {
	socket, ok := c.(*net.UnixConn)
	if !ok {
		return peer{}, errors.New("it is no unix socket")
	}
	raw, err := socket.SyscallConn()
	if err != nil {
		return peer{}, err
	}
	var p peer
	var failed error
	err = raw.Control(func(fd uintptr) { p, failed = peerOn(int(fd)) })
	return p, errors.Join(err, failed)
}

func peerOn(socket int) (peer, error) {
	who, err := unix.GetsockoptUcred(socket, unix.SOL_SOCKET, unix.SO_PEERCRED)
	if err != nil {
		return peer{}, err
	}
	p := peer{uid: int(who.Uid), pid: int(who.Pid)}
	fd, err := unix.GetsockoptInt(socket, unix.SOL_SOCKET, unix.SO_PEERPIDFD)
	switch {
	case errors.Is(err, unix.ENOPROTOOPT):
		return p, nil
	case err != nil: // kernels before 6.16 have none of a process that has ended
		return peer{}, fmt.Errorf("%w: process %d, which listened, is gone: %w", ErrForeign, p.pid, err)
	}
	p.process = os.NewFile(uintptr(fd), "listening process")
	return p, nil
}
