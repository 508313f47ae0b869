// Package netns makes the network of a sandbox from inside its own namespace:
// loopback, a synthetic address, listeners, and nft rules that lead every way out
// to those listeners. It is called by the runner, whose threads are all inside.
package netns

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

// The ports of the supervisor's listeners inside the namespace. They are
// privileged, so that the command cannot take them.
const (
	PortTransparent = 61
	PortExplicit    = 62
	PortResolver    = 63
)

// firstOpenPort is the first port that the command may serve on: its own servers on 80
// and 443 work as they do for tests in a container.
const firstOpenPort = 80

// Addresses that exist inside: a resolver and proxy address of the synthetic range
// (RFC 2544) and one unique local address (RFC 4193). Without a non-loopback
// address getaddrinfo with AI_ADDRCONFIG finds nothing.
var (
	AddressV4 = netip.MustParseAddr("198.18.0.1")
	AddressV6 = netip.MustParseAddr("fd5b:7362:78::1")
)

// ProxyPort is the port of AddressV4 that the proxy variables name.
const ProxyPort = 3128

// Files are the descriptors that the supervisor serves, in the order of Names.
type Files struct{ files []*os.File }

// Names of the descriptors, in order.
var Names = [...]string{
	"transparent-v4", "transparent-v6", "explicit-v4",
	"resolver-udp-v4", "resolver-udp-v6", "resolver-tcp-v4", "resolver-tcp-v6", "packet-log",
}

// All returns the descriptors in the order of Names.
func (f Files) All() []*os.File { return f.files }

// Close closes this process's copies.
func (f Files) Close() error {
	var errs []error
	for _, file := range f.files {
		errs = append(errs, file.Close())
	}
	return errors.Join(errs...)
}

// Setup brings the namespace of the calling process to the floor: everything is
// led to the returned listeners, everything else is refused. The rules are read
// back and compared; a difference is an error.
func Setup() (Files, error) {
	if err := addresses(); err != nil {
		return Files{}, err
	}
	if err := openPorts(); err != nil {
		return Files{}, err
	}
	files, err := listeners()
	if err != nil {
		return Files{}, err
	}
	if err := loadRules(); err != nil {
		return Files{}, errors.Join(err, files.Close())
	}
	return files, nil
}

// openPorts sets where the unprivileged ports of this namespace begin (ip_sysctl,
// ip_unprivileged_port_start).
func openPorts() error {
	const name = "/proc/sys/net/ipv4/ip_unprivileged_port_start"
	f, err := os.OpenFile(name, os.O_WRONLY, 0) //nolint:forbidigo // a setting of the kernel's
	if err == nil {
		_, err = f.WriteString(strconv.Itoa(firstOpenPort))
		err = errors.Join(err, f.Close())
	}
	if err != nil {
		return fmt.Errorf("opening ports from %d on to the command: %w", firstOpenPort, err)
	}
	return nil
}

func listeners() (Files, error) {
	v4, v6 := netip.MustParseAddr("127.0.0.1"), netip.IPv6Loopback()
	makers := []func() (int, error){
		func() (int, error) { return listen(v4, PortTransparent) },
		func() (int, error) { return listen(v6, PortTransparent) },
		func() (int, error) { return listen(v4, PortExplicit) },
		func() (int, error) { return bind(unix.SOCK_DGRAM, v4, PortResolver) },
		func() (int, error) { return bind(unix.SOCK_DGRAM, v6, PortResolver) },
		func() (int, error) { return listen(v4, PortResolver) },
		func() (int, error) { return listen(v6, PortResolver) },
		packetLog,
	}
	var out Files
	for i, make := range makers {
		fd, err := make()
		if err != nil {
			return Files{}, errors.Join(fmt.Errorf("opening %s: %w", Names[i], err), out.Close())
		}
		out.files = append(out.files, os.NewFile(uintptr(fd), Names[i]))
	}
	return out, nil
}

func listen(a netip.Addr, port int) (int, error) {
	fd, err := bind(unix.SOCK_STREAM, a, port)
	if err != nil {
		return -1, err
	}
	if err := unix.Listen(fd, 4096); err != nil {
		_ = unix.Close(fd)
		return -1, err
	}
	return fd, nil
}

func bind(kind int, a netip.Addr, port int) (int, error) {
	family, sa := unix.AF_INET, unix.Sockaddr(&unix.SockaddrInet4{Port: port, Addr: [4]byte(a.AsSlice()[:4])})
	if a.Is6() {
		family, sa = unix.AF_INET6, &unix.SockaddrInet6{Port: port, Addr: a.As16()}
	}
	fd, err := unix.Socket(family, kind|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return -1, err
	}
	if err := unix.Bind(fd, sa); err != nil {
		_ = unix.Close(fd)
		return -1, err
	}
	return fd, nil
}
