package netns

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"unsafe"

	"golang.org/x/sys/unix"
)

// packetLogBytes is how much of a refused packet is copied: both headers.
const packetLogBytes = 64

// Constants of linux/netfilter/nfnetlink_log.h.
const (
	nfulnlMsgPacket = unix.NFNL_SUBSYS_ULOG << 8
	nfulnlMsgConfig = unix.NFNL_SUBSYS_ULOG<<8 | 1
	nfulaCfgCmd     = 1
	nfulaCfgMode    = 2
	nfulaCfgQThresh = 5
	nfulnlCmdBind   = 1
	nfulnlCopyPkt   = 2
	nfulaPayload    = 9
)

// Constants of linux/sock_diag.h.
const (
	skMemInfoDrops = 8
	skMemInfoVars  = 9
)

// packetLogQueue is how much the kernel may queue for the reader, in bytes; each packet
// takes a page of it.
const packetLogQueue = 8 << 20

// Packet is one packet that the rules refused.
type Packet struct {
	Protocol    string // udp, icmp, or the IP protocol's number
	Destination netip.AddrPort
}

// packetLog opens a netlink socket that receives the refused packets of this namespace.
func packetLog() (int, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_NETFILTER)
	if err != nil {
		return -1, err
	}
	mode := binary.BigEndian.AppendUint32(nil, packetLogBytes)
	mode = append(mode, nfulnlCopyPkt, 0)
	settings := [][]byte{
		attribute(nfulaCfgCmd, []byte{nfulnlCmdBind}),
		attribute(nfulaCfgMode, mode),
		// Deliver every packet at once: the default waits a second for a hundred.
		attribute(nfulaCfgQThresh, binary.BigEndian.AppendUint32(nil, 1)),
	}
	for _, attr := range settings {
		if err := configurePacketLog(fd, attr); err != nil {
			_ = unix.Close(fd)
			return -1, err
		}
	}
	if err := unix.SetNonblock(fd, true); err != nil {
		_ = unix.Close(fd)
		return -1, err
	}
	// Only root may go beyond net.core.rmem_max; for others it is the most there is.
	if unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, packetLogQueue) != nil {
		_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUF, packetLogQueue)
	}
	return fd, nil
}

func attribute(kind uint16, data []byte) []byte {
	b := binary.NativeEndian.AppendUint16(nil, uint16(4+len(data))) //nolint:gosec // a few bytes
	b = binary.NativeEndian.AppendUint16(b, kind)
	b = append(b, data...)
	return append(b, make([]byte, -len(b)&3)...)
}

// configurePacketLog sends one request and waits for its acknowledgement (netlink(7)).
func configurePacketLog(fd int, attr []byte) error {
	body := append([]byte{unix.AF_UNSPEC, unix.NFNETLINK_V0}, bigEndian(packetLogGroup)...)
	body = append(body, attr...)
	m := binary.NativeEndian.AppendUint32(nil, uint32(unix.NLMSG_HDRLEN+len(body))) //nolint:gosec // a few bytes
	m = binary.NativeEndian.AppendUint16(m, nfulnlMsgConfig)
	m = binary.NativeEndian.AppendUint16(m, unix.NLM_F_REQUEST|unix.NLM_F_ACK)
	m = append(m, make([]byte, 8)...)
	if err := unix.Sendto(fd, append(m, body...), 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return err
	}
	reply := make([]byte, 256)
	n, _, err := unix.Recvfrom(fd, reply, 0)
	if err != nil {
		return err
	}
	if n < unix.NLMSG_HDRLEN+4 || binary.NativeEndian.Uint16(reply[4:]) != unix.NLMSG_ERROR {
		return errors.New("no acknowledgement")
	}
	if code := int32(binary.NativeEndian.Uint32(reply[unix.NLMSG_HDRLEN:])); code != 0 { //nolint:gosec // a signed errno
		return unix.Errno(-code) //nolint:gosec // an errno
	}
	return nil
}

// ReadPackets calls seen for every refused packet until the descriptor is closed, or
// its read deadline has passed and nothing is queued any more. lost is how many packets
// the kernel dropped because they came faster than they were read.
func ReadPackets(log *os.File, seen func(Packet)) (lost int64, err error) {
	buf := make([]byte, 64<<10)
	for {
		n, err := log.Read(buf)
		switch {
		case errors.Is(err, unix.ENOBUFS):
			lost++
			continue
		case errors.Is(err, os.ErrDeadlineExceeded):
			more := readQueued(log, buf, seen)
			return max(lost+more, dropped(log)), nil
		case errors.Is(err, os.ErrClosed):
			return lost, nil
		case err != nil:
			return max(lost, dropped(log)), fmt.Errorf("reading the packet log: %w", err)
		case n == 0:
			return lost, nil
		}
		eachMessage(buf[:n], seen)
	}
}

// maxQueued bounds what is read after the deadline; the largest queue has fewer packets.
const maxQueued = 1 << 16

// readQueued reads what the kernel has queued already, and returns how often it had to
// drop some.
func readQueued(log *os.File, buf []byte, seen func(Packet)) (lost int64) {
	raw, err := log.SyscallConn()
	if err != nil {
		return 0
	}
	for range maxQueued {
		n, errno := 0, error(nil)
		err := raw.Control(func(fd uintptr) { n, _, errno = unix.Recvfrom(int(fd), buf, unix.MSG_DONTWAIT) })
		switch {
		case errors.Is(errno, unix.ENOBUFS):
			lost++
		case errors.Is(errno, unix.EINTR):
		case err != nil || errno != nil || n == 0:
			return lost
		default:
			eachMessage(buf[:n], seen)
		}
	}
	return lost
}

// dropped is how many packets the kernel says that it dropped; 0 where it does not say
// (before Linux 4.12). An ENOBUFS alone stands for one or more.
func dropped(log *os.File) (n int64) {
	raw, err := log.SyscallConn()
	if err != nil {
		return 0
	}
	_ = raw.Control(func(fd uintptr) {
		var info [skMemInfoVars]uint32
		if getsockopt(fd, unix.SOL_SOCKET, unix.SO_MEMINFO, unsafe.Pointer(&info), uint32(unsafe.Sizeof(info))) == nil {
			n = int64(info[skMemInfoDrops])
		}
	})
	return n
}

func eachMessage(b []byte, seen func(Packet)) {
	for len(b) >= unix.NLMSG_HDRLEN {
		size := int(binary.NativeEndian.Uint32(b))
		if size < unix.NLMSG_HDRLEN || size > len(b) {
			return
		}
		if binary.NativeEndian.Uint16(b[4:]) == nfulnlMsgPacket && size > unix.NLMSG_HDRLEN+4 {
			if p, ok := parsePacket(payload(b[unix.NLMSG_HDRLEN+4 : size])); ok {
				seen(p)
			}
		}
		b = b[min(len(b), (size+3)&^3):]
	}
}

// payload finds the packet's own bytes among the attributes of a log message.
func payload(attrs []byte) []byte {
	for len(attrs) >= 4 {
		size := int(binary.NativeEndian.Uint16(attrs))
		if size < 4 || size > len(attrs) {
			return nil
		}
		if binary.NativeEndian.Uint16(attrs[2:])&0x3fff == nfulaPayload {
			return attrs[4:size]
		}
		attrs = attrs[min(len(attrs), (size+3)&^3):]
	}
	return nil
}

// parsePacket reads destination and protocol of an IPv4 (RFC 791) or IPv6 (RFC 8200) packet.
func parsePacket(p []byte) (Packet, bool) {
	if len(p) < 20 {
		return Packet{}, false
	}
	var to netip.Addr
	var protocol byte
	var rest []byte
	switch p[0] >> 4 {
	case 4:
		header := int(p[0]&15) * 4
		to, protocol, rest = netip.AddrFrom4([4]byte(p[16:20])), p[9], p[min(len(p), max(20, header)):]
	case 6:
		if len(p) < 40 {
			return Packet{}, false
		}
		to, protocol, rest = netip.AddrFrom16([16]byte(p[24:40])), p[6], p[40:]
	default:
		return Packet{}, false
	}
	return packetOf(to, protocol, rest), true
}

func packetOf(to netip.Addr, protocol byte, rest []byte) Packet {
	switch protocol {
	case unix.IPPROTO_UDP, unix.IPPROTO_UDPLITE:
		var port uint16
		if len(rest) >= 4 {
			port = binary.BigEndian.Uint16(rest[2:])
		}
		return Packet{Protocol: "udp", Destination: netip.AddrPortFrom(to, port)}
	case unix.IPPROTO_ICMP, unix.IPPROTO_ICMPV6:
		return Packet{Protocol: "icmp", Destination: netip.AddrPortFrom(to, 0)}
	}
	return Packet{Protocol: fmt.Sprintf("ip-%d", protocol), Destination: netip.AddrPortFrom(to, 0)}
}
