package prober

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// nameSuffix is below a name that exists nowhere (RFC 6761, section 6.4).
const nameSuffix = ".names.canary.test"

// askNames asks each server for a name with the nonce in it, over UDP and TCP, and
// the system's own way once.
func askNames(ctx context.Context, p Plan) []Try {
	var out []Try
	for _, network := range []string{"udp", "tcp"} {
		for _, server := range p.Servers {
			target := net.JoinHostPort(server.String(), "53")
			r := &net.Resolver{PreferGo: true, Dial: func(ctx context.Context, _, _ string) (net.Conn, error) {
				return (&net.Dialer{}).DialContext(ctx, network, target)
			}}
			out = append(out, askName(ctx, r, network+" "+target, fmt.Sprintf("%s-%s-%d", p.Nonce, network, len(out))))
		}
	}
	return append(out, askName(ctx, net.DefaultResolver, "the system's resolver", p.Nonce))
}

func askName(ctx context.Context, r *net.Resolver, target, label string) Try {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	t := Try{What: "name", Target: target}
	addrs, err := r.LookupHost(ctx, label[:min(len(label), 63)]+nameSuffix+".")
	t.Said, t.Error = strings.Join(addrs, " "), nameOf(err)
	return t
}

// connectBare says the nonce to each address and reads one line.
func connectBare(ctx context.Context, p Plan) []Try {
	var out []Try
	for _, a := range p.Bare {
		t := Try{What: "connection", Target: a.String()}
		t.Said, t.Error = sayTo(ctx, a, p.Nonce)
		out = append(out, t)
	}
	return out
}

func sayTo(ctx context.Context, a netip.AddrPort, nonce string) (string, string) {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	c, err := (&net.Dialer{}).DialContext(ctx, "tcp", a.String())
	if err != nil {
		return "", nameOf(err)
	}
	defer c.Close()
	deadline, _ := ctx.Deadline()
	_ = c.SetDeadline(deadline)
	if _, err := io.WriteString(c, nonce+"\n"); err != nil {
		return "", nameOf(err)
	}
	// The proxy takes this for a broken request and says so; nobody else may answer.
	line, err := bufio.NewReader(io.LimitReader(c, 256)).ReadString('\n')
	if errors.Is(err, io.EOF) {
		err = nil
	}
	return strings.TrimSpace(line), nameOf(err)
}

// sendDatagrams sends the nonce to each address of the host's, and to the world's
// servers: the host may have no address of a family but the loopback's.
func sendDatagrams(ctx context.Context, p Plan) []Try {
	var out []Try
	to := slices.Clone(p.UDP)
	for _, server := range p.Servers {
		to = append(to, netip.AddrPortFrom(server, 443))
	}
	for _, a := range to {
		out = append(out, Try{What: "datagram", Target: a.String(), Error: nameOf(send(ctx, a, p.Nonce))})
	}
	return out
}

func send(ctx context.Context, a netip.AddrPort, nonce string) error {
	c, err := (&net.Dialer{}).DialContext(ctx, "udp", a.String())
	if err != nil {
		return err
	}
	defer c.Close()
	_, err = io.WriteString(c, nonce)
	return err
}

// connectHost connects to the unix sockets of the host that the plan names.
func connectHost(ctx context.Context, p Plan) []Try {
	var out []Try
	for _, at := range []string{p.Abstract, p.Socket} {
		if at == "" {
			continue
		}
		t := Try{What: "unix socket", Target: at}
		if t.Error = connectUnix(ctx, at); t.Error == "success" {
			t.Said, t.Error = "connected", ""
		}
		out = append(out, t)
	}
	return out
}

// nameOf is the errno's name where there is one, "" for no error.
func nameOf(err error) string {
	if err == nil {
		return ""
	}
	if errno, ok := errors.AsType[unix.Errno](err); ok {
		return unix.ErrnoName(errno)
	}
	return err.Error()
}
