package netns

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"unsafe"

	"golang.org/x/sys/unix"
)

// soOriginalDst is SO_ORIGINAL_DST and IP6T_SO_ORIGINAL_DST: what an nft redirect replaced.
const soOriginalDst = 80

// Original returns the destination that the program inside really dialled, before
// the redirect.
func Original(c net.Conn) (netip.AddrPort, error) {
	tcp, ok := c.(*net.TCPConn)
	if !ok {
		return netip.AddrPort{}, fmt.Errorf("reading the original destination of a %T: %w", c, errors.ErrUnsupported)
	}
	raw, err := tcp.SyscallConn()
	if err != nil {
		return netip.AddrPort{}, fmt.Errorf("reading the original destination: %w", err)
	}
	local, _ := tcp.LocalAddr().(*net.TCPAddr)
	var out netip.AddrPort
	var errno error
	err = raw.Control(func(fd uintptr) {
		if local != nil && local.IP.To4() == nil {
			out, errno = originalV6(fd)
		} else {
			out, errno = originalV4(fd)
		}
	})
	if err := errors.Join(err, errno); err != nil {
		return netip.AddrPort{}, fmt.Errorf("reading the original destination: %w", err)
	}
	return out, nil
}

func originalV4(fd uintptr) (netip.AddrPort, error) {
	var sa unix.RawSockaddrInet4
	if err := getsockopt(fd, unix.SOL_IP, soOriginalDst, unsafe.Pointer(&sa), unix.SizeofSockaddrInet4); err != nil {
		return netip.AddrPort{}, err
	}
	return netip.AddrPortFrom(netip.AddrFrom4(sa.Addr), networkOrder(sa.Port)), nil
}

func originalV6(fd uintptr) (netip.AddrPort, error) {
	var sa unix.RawSockaddrInet6
	if err := getsockopt(fd, unix.SOL_IPV6, soOriginalDst, unsafe.Pointer(&sa), unix.SizeofSockaddrInet6); err != nil {
		return netip.AddrPort{}, err
	}
	return netip.AddrPortFrom(netip.AddrFrom16(sa.Addr).Unmap(), networkOrder(sa.Port)), nil
}

// networkOrder reads a port that the kernel stored in network byte order.
func networkOrder(port uint16) uint16 {
	var b [2]byte
	binary.NativeEndian.PutUint16(b[:], port)
	return binary.BigEndian.Uint16(b[:])
}

func getsockopt(fd uintptr, level, name int, value unsafe.Pointer, size uint32) error {
	_, _, errno := unix.Syscall6(unix.SYS_GETSOCKOPT, fd, uintptr(level), uintptr(name),
		uintptr(value), uintptr(unsafe.Pointer(&size)), 0)
	if errno != 0 {
		return errno
	}
	return nil
}
