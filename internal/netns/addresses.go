package netns

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"

	"golang.org/x/sys/unix"
)

// loopbackIndex is the interface index of lo, the first of every namespace.
const loopbackIndex = 1

// request is one rtnetlink message (rtnetlink(7)) and what it is for.
type request struct {
	what  string
	kind  uint16
	flags uint16
	body  []byte
}

// addresses brings lo up, gives it the two addresses, and makes every address of
// both families local, so that a connection to anywhere stays inside.
func addresses() error {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_ROUTE)
	if err != nil {
		return fmt.Errorf("opening rtnetlink: %w", err)
	}
	defer unix.Close(fd)
	requests := []request{linkUp()}
	for _, a := range []netip.Addr{AddressV4, AddressV6} {
		requests = append(requests, addAddress(a), localEverywhere(a))
	}
	var batch []byte
	for i, r := range requests {
		batch = append(batch, r.encode(uint32(i+1))...)
	}
	if err := unix.Sendto(fd, batch, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return fmt.Errorf("configuring lo: %w", err)
	}
	return acknowledged(fd, requests)
}

// acknowledged reads one acknowledgement for each request.
func acknowledged(fd int, requests []request) error {
	buf := make([]byte, 8<<10)
	for done := 0; done < len(requests); {
		n, _, err := unix.Recvfrom(fd, buf, 0)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			return fmt.Errorf("configuring lo: %w", err)
		}
		for b := buf[:n]; len(b) >= unix.NLMSG_HDRLEN+4; done++ {
			size := int(binary.NativeEndian.Uint32(b))
			code := int32(binary.NativeEndian.Uint32(b[unix.NLMSG_HDRLEN:])) //nolint:gosec // a signed errno
			if binary.NativeEndian.Uint16(b[4:]) != unix.NLMSG_ERROR || size < unix.NLMSG_HDRLEN+4 || size > len(b) {
				return errors.New("configuring lo: no acknowledgement")
			}
			if seq := int(binary.NativeEndian.Uint32(b[8:])); code != 0 && seq >= 1 && seq <= len(requests) {
				return fmt.Errorf("%s: %w", requests[seq-1].what, unix.Errno(-code)) //nolint:gosec // an errno
			}
			b = b[min(len(b), (size+3)&^3):]
		}
	}
	return nil
}

func (r request) encode(seq uint32) []byte {
	b := binary.NativeEndian.AppendUint32(nil, uint32(unix.NLMSG_HDRLEN+len(r.body))) //nolint:gosec // a few bytes
	b = binary.NativeEndian.AppendUint16(b, r.kind)
	b = binary.NativeEndian.AppendUint16(b, r.flags|unix.NLM_F_REQUEST|unix.NLM_F_ACK)
	b = binary.NativeEndian.AppendUint32(b, seq)
	b = binary.NativeEndian.AppendUint32(b, 0)
	return append(b, r.body...)
}

// linkUp is struct ifinfomsg with IFF_UP.
func linkUp() request {
	body := binary.NativeEndian.AppendUint32(make([]byte, 4), loopbackIndex)
	body = binary.NativeEndian.AppendUint32(body, unix.IFF_UP)
	body = binary.NativeEndian.AppendUint32(body, unix.IFF_UP)
	return request{what: "bringing up lo", kind: unix.RTM_NEWLINK, body: body}
}

// addAddress is struct ifaddrmsg with the address.
func addAddress(a netip.Addr) request {
	body := []byte{familyOf(a), byte(a.BitLen()), unix.IFA_F_NODAD, 0} //nolint:gosec // 32 or 128
	body = binary.NativeEndian.AppendUint32(body, loopbackIndex)
	body = append(body, attribute(unix.IFA_LOCAL, a.AsSlice())...)
	body = append(body, attribute(unix.IFA_ADDRESS, a.AsSlice())...)
	return request{what: fmt.Sprintf("adding %s to lo", a), kind: unix.RTM_NEWADDR, flags: unix.NLM_F_CREATE | unix.NLM_F_EXCL, body: body}
}

// localEverywhere is struct rtmsg: the default route of the local table.
func localEverywhere(a netip.Addr) request {
	scope := byte(unix.RT_SCOPE_UNIVERSE)
	if a.Is4() {
		scope = unix.RT_SCOPE_HOST
	}
	body := []byte{familyOf(a), 0, 0, 0, unix.RT_TABLE_LOCAL, unix.RTPROT_STATIC, scope, unix.RTN_LOCAL, 0, 0, 0, 0}
	body = append(body, attribute(unix.RTA_OIF, binary.NativeEndian.AppendUint32(nil, loopbackIndex))...)
	return request{
		what: fmt.Sprintf("adding the local default route for %s", a),
		kind: unix.RTM_NEWROUTE, flags: unix.NLM_F_CREATE | unix.NLM_F_EXCL, body: body,
	}
}

func familyOf(a netip.Addr) byte {
	if a.Is4() {
		return unix.AF_INET
	}
	return unix.AF_INET6
}
