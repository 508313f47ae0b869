package sbxtest

import (
	"fmt"
	"net"
	"net/netip"
	"os"
	"strings"
	"sync"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// The addresses of the link between the lab and the world. The lab's own look
// like those of a machine behind a router.
const (
	labV4, worldV4 = "10.77.0.2/24", "10.77.0.1/24"
	labV6, worldV6 = "fd77::2/64", "fd77::1/64"
	resolverV4     = "11.22.33.53"
)

// world is the network that servers live in. It answers for every address:
// what no server has is refused by its kernel, after it was logged.
type world struct {
	maker    *thread
	space    *namespace
	wire     *wire
	resolver *resolver

	mu    sync.Mutex
	count int
	hosts []string // lines of /etc/hosts
}

// makeWorld connects the lab's thread to a new world. With the real network
// there is nothing to make.
func (l *Lab) makeWorld() error {
	if l.real {
		return nil
	}
	var err error
	if l.ca, err = newAuthority(); err != nil {
		return err
	}
	if err := l.trustCA(); err != nil {
		return err
	}
	name := strings.TrimPrefix(l.dir, labRoot+"/")
	w, inner, err := newWorld(l.t, name)
	if err != nil {
		return err
	}
	l.world = w
	if err := w.link(inner); err != nil {
		return err
	}
	if err := closeOnExec(); err != nil {
		return err
	}
	if w.wire, err = w.tap(l.t); err != nil {
		return err
	}
	if w.resolver, err = w.serveNames(l.t); err != nil {
		return err
	}
	l.WriteEtc("resolv.conf", "nameserver "+resolverV4+"\noptions timeout:2 attempts:1\n")
	l.writeHosts()
	return l.thread.run(func() error {
		if err := unix.Setns(int(inner.NsHandle), unix.CLONE_NEWNET); err != nil {
			return fmt.Errorf("entering the lab's network: %w", err)
		}
		return nil
	})
}

// newWorld makes the two empty namespaces: the world's and, inner, the lab's.
func newWorld(t testing.TB, name string) (w *world, inner *namespace, err error) {
	w = &world{maker: newThread()}
	t.Cleanup(w.maker.stop)
	err = w.maker.run(func() error {
		if inner, err = newNamespace(name); err != nil {
			return err
		}
		t.Cleanup(func() { _ = inner.Close() })
		if w.space, err = newNamespace(name + "-world"); err != nil {
			return err
		}
		t.Cleanup(func() { _ = w.space.Close() })
		return nil
	})
	return w, inner, err
}

// within does work in one of the two namespaces. The maker thread does it:
// gont leaves a thread in the main thread's namespace (see furnish) afterwards.
func (w *world) within(space *namespace, work func() error) error {
	return w.maker.run(func() error { return space.RunFunc(work) })
}

// closeOnExec keeps namespace descriptors, which gont and netns open without
// the flag, away from the commands.
func closeOnExec() error {
	if err := unix.CloseRange(3, ^uint(0), unix.CLOSE_RANGE_CLOEXEC); err != nil {
		return fmt.Errorf("keeping descriptors from the commands: %w", err)
	}
	return nil
}

// link makes a virtual cable between the lab and the world, with addresses and
// routes on both sides.
func (w *world) link(inner *namespace) error {
	err := w.within(w.space, func() error {
		// Made inside the world, so that the machine's own namespace never has it.
		cable := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "lab0"}, PeerName: "eth0", PeerNamespace: netlink.NsFd(inner.NsHandle)}
		if err := netlink.LinkAdd(cable); err != nil {
			return fmt.Errorf("making the cable: %w", err)
		}
		if err := up("lo"); err != nil {
			return err
		}
		if err := up("lab0", worldV4, worldV6); err != nil {
			return err
		}
		return answerAll()
	})
	if err != nil {
		return fmt.Errorf("making the world: %w", err)
	}
	err = w.within(inner, func() error {
		if err := up("lo"); err != nil {
			return err
		}
		if err := up("eth0", labV4, labV6); err != nil {
			return err
		}
		return gateways()
	})
	if err != nil {
		return fmt.Errorf("making the lab's network: %w", err)
	}
	return nil
}

// haveV6 is false on machines whose kernel runs without IPv6.
func haveV6() bool {
	_, err := os.Stat("/proc/sys/net/ipv6")
	return err == nil
}

// up starts an interface and gives it addresses, without waiting for IPv6's
// duplicate detection.
func up(name string, addresses ...string) error {
	link, err := netlink.LinkByName(name)
	if err != nil {
		return fmt.Errorf("finding %s: %w", name, err)
	}
	for _, text := range addresses {
		if err := addAddress(link, text); err != nil {
			return err
		}
	}
	if err := netlink.LinkSetUp(link); err != nil {
		return fmt.Errorf("starting %s: %w", name, err)
	}
	return nil
}

func addAddress(link netlink.Link, text string) error {
	prefix, err := netip.ParsePrefix(text)
	if err != nil {
		return fmt.Errorf("reading address %s: %w", text, err)
	}
	if prefix.Addr().Is6() && !haveV6() {
		return nil
	}
	address := &netlink.Addr{IPNet: ipNet(prefix)}
	if prefix.Addr().Is6() {
		address.Flags = unix.IFA_F_NODAD
	}
	if err := netlink.AddrAdd(link, address); err != nil {
		return fmt.Errorf("adding address %s: %w", text, err)
	}
	return nil
}

func ipNet(p netip.Prefix) *net.IPNet {
	return &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}
}

// families is the default destination of each address family in use, with the
// world's address as its gateway.
func families() map[string]string {
	f := map[string]string{"0.0.0.0/0": worldV4}
	if haveV6() {
		f["::/0"] = worldV6
	}
	return f
}

// answerAll makes every address in the world local to it. The main table is
// the place: in the local table the route would catch the answers as well.
func answerAll() error {
	lo, err := netlink.LinkByName("lo")
	if err != nil {
		return fmt.Errorf("finding lo: %w", err)
	}
	for all := range families() {
		route := &netlink.Route{
			LinkIndex: lo.Attrs().Index, Dst: ipNet(netip.MustParsePrefix(all)),
			Type: unix.RTN_LOCAL, Scope: netlink.SCOPE_HOST, Table: unix.RT_TABLE_MAIN,
		}
		if err := netlink.RouteAdd(route); err != nil {
			return fmt.Errorf("routing %s to the world itself: %w", all, err)
		}
	}
	return nil
}

func gateways() error {
	for all, via := range families() {
		gateway := netip.MustParsePrefix(via).Addr()
		route := &netlink.Route{Dst: ipNet(netip.MustParsePrefix(all)), Gw: gateway.AsSlice()}
		if err := netlink.RouteAdd(route); err != nil {
			return fmt.Errorf("routing %s by %s: %w", all, gateway, err)
		}
	}
	return nil
}

// address gives name addresses in the world. Both look public.
func (w *world) address(name string) ([]netip.Addr, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.count++
	if w.count > 50 {
		return nil, fmt.Errorf("adding %s: a lab has room for 50 servers", name)
	}
	addrs := []netip.Addr{netip.MustParseAddr(fmt.Sprintf("11.22.33.%d", 100+w.count))}
	if haveV6() {
		addrs = append(addrs, netip.MustParseAddr(fmt.Sprintf("2a11:22:33::%d", 100+w.count)))
	}
	err := w.within(w.space, func() error { return own(addrs...) })
	if err != nil {
		return nil, fmt.Errorf("giving %s an address: %w", name, err)
	}
	for _, a := range addrs {
		w.hosts = append(w.hosts, a.String()+" "+name)
	}
	w.resolver.add(name, addrs)
	return addrs, nil
}

// own adds addresses to the loopback of the current namespace.
func own(addrs ...netip.Addr) error {
	lo, err := netlink.LinkByName("lo")
	if err != nil {
		return fmt.Errorf("finding lo: %w", err)
	}
	for _, a := range addrs {
		if err := addAddress(lo, netip.PrefixFrom(a, a.BitLen()).String()); err != nil {
			return err
		}
	}
	return nil
}

// listen opens a TCP listener in the world.
func (w *world) listen(at netip.AddrPort) (listener net.Listener, err error) {
	err = w.within(w.space, func() error {
		listener, err = net.Listen("tcp", at.String())
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("listening on %s in the world: %w", at, err)
	}
	return listener, nil
}

// writeHosts lists all servers in the lab's /etc/hosts.
func (l *Lab) writeHosts() {
	lines := append([]string{"127.0.0.1 localhost", "::1 localhost"}, l.world.hosts...)
	l.WriteEtc("hosts", strings.Join(lines, "\n")+"\n")
}
