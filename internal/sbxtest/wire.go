package sbxtest

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"sync"
	"testing"

	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"
)

// Dial is one connection attempt or datagram that left the lab.
type Dial struct {
	Protocol string         // tcp, udp, icmp, or the number of another protocol
	To       netip.AddrPort // port 0 where the protocol has none
}

// String is as in "tcp 11.22.33.101:443".
func (d Dial) String() string { return d.Protocol + " " + d.To.String() }

// wire logs what arrives in the world, on a packet socket: the first segment
// of each TCP connection and every other packet.
type wire struct {
	fd int

	mu    sync.Mutex
	dials []Dial
}

// headersOnly is how much of a packet is kept, in bytes: an IPv6 header and
// the ports behind it, or an IPv4 header with options.
const headersOnly = 64

// newFlows drops TCP segments that do not open a connection, so that the
// socket's buffer cannot run over during a download. A packet begins with its
// IP header (SOCK_DGRAM). The number of each instruction stands behind it.
var newFlows = []bpf.Instruction{
	bpf.LoadExtension{Num: bpf.ExtProto},                                              // 0
	bpf.JumpIf{Cond: bpf.JumpEqual, Val: unix.ETH_P_IP, SkipTrue: 1},                  // 1, to 3
	bpf.JumpIf{Cond: bpf.JumpEqual, Val: unix.ETH_P_IPV6, SkipTrue: 5, SkipFalse: 11}, // 2, to 8 or 14
	bpf.LoadAbsolute{Off: 9, Size: 1},                                                 // 3, protocol
	bpf.JumpIf{Cond: bpf.JumpEqual, Val: unix.IPPROTO_TCP, SkipFalse: 8},              // 4, else to 13
	bpf.LoadMemShift{Off: 0},                                                          // 5, header length
	bpf.LoadIndirect{Off: 13, Size: 1},                                                // 6, flags
	bpf.Jump{Skip: 3},                                                                 // 7, to 11
	bpf.LoadAbsolute{Off: 6, Size: 1},                                                 // 8, next header
	bpf.JumpIf{Cond: bpf.JumpEqual, Val: unix.IPPROTO_TCP, SkipFalse: 3},              // 9, else to 13
	bpf.LoadAbsolute{Off: ipv6Header + 13, Size: 1},                                   // 10, flags
	bpf.ALUOpConstant{Op: bpf.ALUOpAnd, Val: 0x12},                                    // 11, SYN and ACK
	bpf.JumpIf{Cond: bpf.JumpEqual, Val: 0x02, SkipFalse: 1},                          // 12, else to 14
	bpf.RetConstant{Val: headersOnly},                                                 // 13
	bpf.RetConstant{Val: 0},                                                           // 14
}

const ipv6Header = 40

// tap starts the log of the world's end of the cable.
func (w *world) tap(t testing.TB) (*wire, error) {
	l := &wire{fd: -1}
	err := w.within(w.space, func() (err error) {
		l.fd, err = packetSocket("lab0")
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("logging the world's packets: %w", err)
	}
	t.Cleanup(func() { _ = unix.Close(l.fd) })
	return l, nil
}

// packetSocket opens a socket for what arrives at a device of this namespace.
func packetSocket(device string) (int, error) {
	link, err := net.InterfaceByName(device)
	if err != nil {
		return -1, err
	}
	// Protocol 0 keeps it deaf until the filter is in place.
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return -1, err
	}
	if err := errors.Join(
		unix.SetsockoptInt(fd, unix.SOL_PACKET, unix.PACKET_IGNORE_OUTGOING, 1),
		unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUF, 64<<20),
		attach(fd, newFlows),
		unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: bigEndian(unix.ETH_P_ALL), Ifindex: link.Index}),
	); err != nil {
		_ = unix.Close(fd)
		return -1, err
	}
	return fd, nil
}

func bigEndian(v uint16) uint16 {
	return binary.NativeEndian.Uint16(binary.BigEndian.AppendUint16(nil, v))
}

func attach(fd int, program []bpf.Instruction) error {
	raw, err := bpf.Assemble(program)
	if err != nil {
		return err
	}
	filter := make([]unix.SockFilter, len(raw))
	for i, r := range raw {
		filter[i] = unix.SockFilter{Code: r.Op, Jt: r.Jt, Jf: r.Jf, K: r.K}
	}
	return unix.SetsockoptSockFprog(fd, unix.SOL_SOCKET, unix.SO_ATTACH_FILTER,
		&unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]})
}

// read takes what has arrived. A packet is in the socket's queue before its
// receiver can answer it, so nothing that a command got a reply to is missing.
func (l *wire) read() error {
	packet := make([]byte, headersOnly)
	for {
		n, _, err := unix.Recvfrom(l.fd, packet, 0)
		if errors.Is(err, unix.EAGAIN) {
			return l.complete()
		}
		if err != nil {
			return fmt.Errorf("reading the packet log: %w", err)
		}
		if dial, ok := parseDial(packet[:n]); ok {
			l.dials = append(l.dials, dial)
		}
	}
}

// complete fails when the kernel had to drop packets.
func (l *wire) complete() error {
	stats, err := unix.GetsockoptTpacketStats(l.fd, unix.SOL_PACKET, unix.PACKET_STATISTICS)
	if err != nil {
		return fmt.Errorf("reading the packet log's statistics: %w", err)
	}
	if stats.Drops > 0 {
		return fmt.Errorf("the packet log lost %d packets", stats.Drops)
	}
	return nil
}

// parseDial reads the headers of one IP packet. Neighbour discovery, which the
// kernel does by itself on any link, is no dial.
func parseDial(p []byte) (Dial, bool) {
	if len(p) < 20 {
		return Dial{}, false
	}
	var protocol byte
	var to netip.Addr
	var rest []byte
	switch p[0] >> 4 {
	case 4:
		protocol, to, rest = p[9], netip.AddrFrom4([4]byte(p[16:20])), p[min(len(p), int(p[0]&15)*4):]
	case 6:
		if len(p) < ipv6Header {
			return Dial{}, false
		}
		protocol, to, rest = p[6], netip.AddrFrom16([16]byte(p[24:40])), p[ipv6Header:]
	}
	return dialTo(protocol, to, rest)
}

func dialTo(protocol byte, to netip.Addr, rest []byte) (Dial, bool) {
	switch protocol {
	case unix.IPPROTO_TCP, unix.IPPROTO_UDP:
		if len(rest) < 4 {
			return Dial{}, false
		}
		name := map[byte]string{unix.IPPROTO_TCP: "tcp", unix.IPPROTO_UDP: "udp"}[protocol]
		return Dial{name, netip.AddrPortFrom(to, binary.BigEndian.Uint16(rest[2:4]))}, true
	case unix.IPPROTO_ICMP:
		return Dial{"icmp", netip.AddrPortFrom(to, 0)}, true
	case unix.IPPROTO_ICMPV6:
		const echoRequest = 128
		ping := len(rest) > 0 && rest[0] == echoRequest
		return Dial{"icmp", netip.AddrPortFrom(to, 0)}, ping
	case unix.IPPROTO_HOPOPTS: // multicast listener reports
		return Dial{}, false
	}
	return Dial{strconv.Itoa(int(protocol)), netip.AddrPortFrom(to, 0)}, true
}

// Dials is every connection attempt and datagram that has left the lab's
// network so far, in order, answered or not.
func (l *Lab) Dials() []Dial {
	l.t.Helper()
	if l.world == nil {
		l.t.Fatal("a lab with the real network has no packet log")
	}
	w := l.world.wire
	w.mu.Lock()
	defer w.mu.Unlock()
	if err := w.read(); err != nil {
		l.t.Fatal(err)
	}
	return slices.Clone(w.dials)
}
