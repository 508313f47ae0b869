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

// trusted looks at who listens (unix(7), SO_PEERCRED): the caller or root, and not in a
// user namespace below this one, as what runs in a sandbox is. It could otherwise lay a
// socket into its working directory and say that all is well.
func trusted(c net.Conn) error {
	peer, err := peerOf(c)
	if err != nil {
		return fmt.Errorf("asking who listens: %w", err)
	}
	if uid := int(peer.Uid); uid != os.Geteuid() && uid != 0 {
		return fmt.Errorf("%w: it is uid %d, neither you nor root", ErrForeign, uid)
	}
	if peer.Pid == 0 {
		return nil // outside of this pid namespace, and so not below this process
	}
	own, err := os.Readlink("/proc/self/ns/user")
	if err != nil {
		return fmt.Errorf("asking who listens: %w", err)
	}
	// Root's processes do not show theirs to others, and are in none of a sandbox.
	theirs, err := os.Readlink("/proc/" + strconv.Itoa(int(peer.Pid)) + "/ns/user")
	switch {
	case err != nil && peer.Uid == 0 && os.Geteuid() != 0:
		return nil
	case err != nil:
		return fmt.Errorf("%w: process %d cannot be looked at: %w", ErrForeign, peer.Pid, err)
	case theirs != own:
		return fmt.Errorf("%w: process %d is in a user namespace of its own, as in a sandbox", ErrForeign, peer.Pid)
	}
	return nil
}

func peerOf(c net.Conn) (*unix.Ucred, error) {
	socket, ok := c.(*net.UnixConn)
	if !ok {
		return nil, errors.New("it is no unix socket")
	}
	raw, err := socket.SyscallConn()
	if err != nil {
		return nil, err
	}
	var peer *unix.Ucred
	var failed error
	err = raw.Control(func(fd uintptr) { peer, failed = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED) })
	return peer, errors.Join(err, failed)
}
