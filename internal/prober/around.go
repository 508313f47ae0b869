package prober

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
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

// sendDatagrams sends the nonce to each address.
func sendDatagrams(ctx context.Context, p Plan) []Try {
	var out []Try
	for _, a := range p.UDP {
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

// readInterfaces lists the network devices.
func (r *Report) readInterfaces() error {
	all, err := net.Interfaces()
	if err != nil {
		return fmt.Errorf("listing the sandbox's network devices: %w", err)
	}
	for _, i := range all {
		r.Interfaces = append(r.Interfaces, i.Name)
	}
	return nil
}

// ownStatus are the fields of /proc/self/status that the sandbox sets (proc_pid_status(5)).
var ownStatus = []string{"Seccomp", "NoNewPrivs", "CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"}

func (r *Report) readSelf() error {
	text, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return fmt.Errorf("reading the probe's own status: %w", err)
	}
	r.Status = map[string]string{}
	for line := range strings.Lines(string(text)) {
		key, value, _ := strings.Cut(strings.TrimSpace(line), ":")
		for _, wanted := range ownStatus {
			if key == wanted {
				r.Status[key] = strings.TrimSpace(value)
			}
		}
	}
	return nil
}
