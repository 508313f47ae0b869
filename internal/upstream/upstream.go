// Package upstream resolves granted hosts on the host side, refuses special
// addresses, and dials the very address that was vetted.
package upstream

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/fractalboxdev/sbx/internal/egress"
	"github.com/fractalboxdev/sbx/internal/trap"
)

// HostName is the name under which the host's own loopback servers are reached,
// for rules with internal = true only.
const HostName = "host.sbx.internal"

const (
	dialTimeout = 30 * time.Second
	stagger     = 250 * time.Millisecond // RFC 8305, connection attempt delay
	lookupAge   = 30 * time.Second       // within one run; longer would miss failovers
	ownAge      = 5 * time.Second        // how long the host's own addresses are believed
	maxLookups  = 4096
)

// Options set a Dialer up. The zero value resolves with the system's files and
// servers and knows no proxy.
type Options struct {
	// Lookup resolves a name on the host; nil means the pure Go resolver, with
	// /etc/hosts and /etc/resolv.conf.
	Lookup func(ctx context.Context, name string) ([]netip.Addr, error)
	// HostAddresses lists the addresses of the host itself; nil means all interfaces.
	HostAddresses func() ([]netip.Addr, error)
	// Proxy returns the host's own proxy for a URL, nil for a direct dial; see
	// ProxyFromEnvironment. A nil func means no proxy.
	Proxy func(*url.URL) (*url.URL, error)
	// Clock is for the cache of lookups; nil means time.Now.
	Clock func() time.Time
}

// AddressError says that a host was refused because of an address of it.
type AddressError struct {
	Host    string
	Address netip.Addr
	Err     error
}

// Error names the host, the address and why it is special.
func (e *AddressError) Error() string {
	return fmt.Sprintf("%s is at %s: %v", e.Host, e.Address, e.Err)
}

// Unwrap returns why: an *egress.AddressError.
func (e *AddressError) Unwrap() error { return e.Err }

// ownAddress is the refusal that only the host side can know of.
func ownAddress(addr netip.Addr) error {
	return &egress.AddressError{Addr: addr, Range: "an address of the host itself"}
}

// Dialer opens connections for granted requests. It is safe for concurrent use.
type Dialer struct {
	opts      Options
	delegated atomic.Bool

	mu      sync.Mutex
	lookups map[string]*lookup
	own     map[netip.Addr]bool
	ownAt   time.Time
}

// lookup is one answer, or one question on its way that others wait for.
type lookup struct {
	done  chan struct{}
	addrs []netip.Addr
	err   error
	at    time.Time
}

// New returns a Dialer.
func New(o Options) *Dialer {
	if o.Lookup == nil {
		o.Lookup = systemLookup
	}
	if o.HostAddresses == nil {
		o.HostAddresses = interfaceAddresses
	}
	if o.Clock == nil {
		o.Clock = time.Now
	}
	return &Dialer{opts: o, lookups: make(map[string]*lookup)}
}

// Delegated reports whether a connection went through the host's proxy, so that
// the address guard could cover literals and names only.
func (d *Dialer) Delegated() bool { return d.delegated.Load() }

// Vet resolves host and checks its addresses without connecting anywhere. It
// returns an *AddressError for a refused address.
func (d *Dialer) Vet(ctx context.Context, host egress.Host, port uint16, a egress.AddressAllowance) error {
	proxy, err := d.proxyFor(host, port)
	if err != nil {
		return err
	}
	if proxy != nil {
		return d.checkDelegated(host, a)
	}
	_, err = d.vetted(ctx, host, a)
	return err
}

// Dial connects to one of the vetted addresses of host, or through the host's
// proxy. It returns an *AddressError for a refused address.
func (d *Dialer) Dial(ctx context.Context, host egress.Host, port uint16, a egress.AddressAllowance) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, dialTimeout)
	defer cancel()
	proxy, err := d.proxyFor(host, port)
	if err != nil {
		return nil, err
	}
	if proxy != nil {
		if err := d.checkDelegated(host, a); err != nil {
			return nil, err
		}
		d.delegated.Store(true)
		return dialProxy(ctx, proxy, net.JoinHostPort(host.String(), strconv.Itoa(int(port))))
	}
	addrs, err := d.vetted(ctx, host, a)
	if err != nil {
		return nil, err
	}
	return d.race(ctx, host, addrs, port, a)
}

// vetted returns the addresses of host. All of them must be allowed: which one
// a connection ends at is not ours to choose when one of them fails.
func (d *Dialer) vetted(ctx context.Context, host egress.Host, a egress.AddressAllowance) ([]netip.Addr, error) {
	addrs, err := d.resolve(ctx, host, a)
	if err != nil {
		return nil, err
	}
	for _, addr := range addrs {
		if err := d.check(addr, a); err != nil {
			return nil, &AddressError{Host: host.String(), Address: addr, Err: err}
		}
	}
	return addrs, nil
}

func (d *Dialer) resolve(ctx context.Context, host egress.Host, a egress.AddressAllowance) ([]netip.Addr, error) {
	if addr, ok := host.Addr(); ok {
		return []netip.Addr{addr}, nil
	}
	name := host.String()
	if name == HostName {
		loopback := []netip.Addr{netip.AddrFrom4([4]byte{127, 0, 0, 1}), netip.IPv6Loopback()}
		if a != egress.AllowInternal {
			return nil, &AddressError{Host: name, Address: loopback[0], Err: ownAddress(loopback[0])}
		}
		return loopback, nil
	}
	addrs, err := d.lookup(ctx, name)
	if err != nil {
		return nil, fmt.Errorf("resolving %s: %w", name, err)
	}
	if len(addrs) == 0 {
		return nil, fmt.Errorf("resolving %s: it has no address", name)
	}
	return addrs, nil
}

// check refuses special addresses and, whatever they look like, the host's own.
func (d *Dialer) check(addr netip.Addr, a egress.AddressAllowance) error {
	if err := egress.CheckAddress(addr, a); err != nil {
		return err
	}
	if a == egress.AllowInternal {
		return nil
	}
	own, err := d.ownAddresses()
	if err != nil {
		return fmt.Errorf("listing the host's own addresses: %w", err)
	}
	for _, form := range append(egress.Embedded(addr), addr) {
		if own[form.Unmap().WithZone("")] {
			return ownAddress(addr)
		}
	}
	return nil
}

func (d *Dialer) ownAddresses() (map[netip.Addr]bool, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	now := d.opts.Clock()
	if d.own != nil && now.Sub(d.ownAt) < ownAge {
		return d.own, nil
	}
	addrs, err := d.opts.HostAddresses()
	if err != nil {
		return nil, err
	}
	own := make(map[netip.Addr]bool, len(addrs))
	for _, addr := range addrs {
		own[addr.Unmap().WithZone("")] = true
	}
	d.own, d.ownAt = own, now
	return own, nil
}

// lookup asks once for all who want the same name at the same time, and keeps
// good answers for a short while.
func (d *Dialer) lookup(ctx context.Context, name string) ([]netip.Addr, error) {
	now := d.opts.Clock()
	d.mu.Lock()
	l, ok := d.lookups[name]
	fresh := ok && (l.at.IsZero() || now.Sub(l.at) < lookupAge)
	if !fresh {
		if len(d.lookups) >= maxLookups {
			clear(d.lookups)
		}
		l = &lookup{done: make(chan struct{})}
		d.lookups[name] = l
		// The question outlives the first asker: others may wait for it too.
		go d.ask(context.WithoutCancel(ctx), name, l)
	}
	d.mu.Unlock()
	select {
	case <-l.done:
		return l.addrs, l.err
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

func (d *Dialer) ask(ctx context.Context, name string, l *lookup) {
	ctx, cancel := context.WithTimeout(ctx, dialTimeout)
	defer cancel()
	var addrs []netip.Addr
	err := trap.Call(func() (err error) { addrs, err = d.opts.Lookup(ctx, name); return err })
	d.mu.Lock()
	defer d.mu.Unlock()
	l.addrs, l.err, l.at = addrs, err, d.opts.Clock()
	if err != nil && d.lookups[name] == l {
		delete(d.lookups, name)
	}
	close(l.done)
}

// systemLookup asks for the absolute name, so that no search domain can stand in
// for a granted host. Names of one label have no other meaning than a search.
func systemLookup(ctx context.Context, name string) ([]netip.Addr, error) {
	if strings.Contains(name, ".") {
		name += "."
	}
	r := net.Resolver{PreferGo: true}
	return r.LookupNetIP(ctx, "ip", name)
}

func interfaceAddresses() ([]netip.Addr, error) {
	list, err := net.InterfaceAddrs()
	if err != nil {
		return nil, err
	}
	addrs := make([]netip.Addr, 0, len(list))
	for _, a := range list {
		prefix, err := netip.ParsePrefix(a.String())
		if err != nil {
			return nil, fmt.Errorf("parsing the interface address %q: %w", a, err)
		}
		addrs = append(addrs, prefix.Addr())
	}
	return addrs, nil
}

// dialOne connects to addr and checks again what the kernel is asked to connect to.
func (d *Dialer) dialOne(ctx context.Context, host egress.Host, addr netip.Addr, port uint16, a egress.AddressAllowance) (net.Conn, error) {
	want := netip.AddrPortFrom(addr.Unmap().WithZone(""), port)
	nd := net.Dialer{Control: func(_, address string, _ syscall.RawConn) error {
		got, err := netip.ParseAddrPort(address)
		if err != nil {
			return fmt.Errorf("parsing the dialled address: %w", err)
		}
		if netip.AddrPortFrom(got.Addr().Unmap().WithZone(""), got.Port()) != want {
			err := &egress.AddressError{Addr: got.Addr(), Range: "not the vetted address"}
			return &AddressError{Host: host.String(), Address: got.Addr(), Err: err}
		}
		if err := d.check(got.Addr(), a); err != nil {
			return &AddressError{Host: host.String(), Address: got.Addr(), Err: err}
		}
		return nil
	}}
	return nd.DialContext(ctx, "tcp", want.String())
}

// race tries the addresses one after the other, the next one when the last
// failed or took too long, and returns the first connection (RFC 8305, simplified).
func (d *Dialer) race(ctx context.Context, host egress.Host, addrs []netip.Addr, port uint16, a egress.AddressAllowance) (net.Conn, error) {
	if len(addrs) == 1 {
		return d.dialOne(ctx, host, addrs[0], port, a)
	}
	type result struct {
		conn net.Conn
		err  error
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	results := make(chan result, len(addrs))
	var errs []error
	next, running := 0, 0
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-timer.C:
			if next < len(addrs) {
				addr := addrs[next]
				next++
				running++
				go func() {
					var r result
					r.err = trap.Call(func() (err error) { r.conn, err = d.dialOne(ctx, host, addr, port, a); return err })
					results <- r
				}()
				timer.Reset(stagger)
			}
		case r := <-results:
			running--
			if r.err == nil {
				go func() {
					for range running {
						if late := <-results; late.conn != nil {
							_ = late.conn.Close()
						}
					}
				}()
				return r.conn, nil
			}
			errs = append(errs, r.err)
			if next == len(addrs) && running == 0 {
				return nil, errors.Join(errs...)
			}
			timer.Reset(0)
		}
	}
}
