package fence

import (
	"context"
	"crypto/x509"
	"net"
	"net/netip"

	"github.com/fractalboxdev/sbx/internal/egress"
	"github.com/fractalboxdev/sbx/internal/event"
	"github.com/fractalboxdev/sbx/internal/upstream"
)

// StandIn stands in for the world outside in a canary's run: nothing is resolved or
// dialled that it does not know. No other run has one.
type StandIn struct {
	// Lookup resolves every name in place of the host's resolver.
	Lookup func(ctx context.Context, name string) ([]netip.Addr, error)
	// Knows reports whether a name is exempt from the address guard.
	Knows func(host egress.Host) bool
	// Dial connects to a name that Knows exempts.
	Dial func(ctx context.Context, host egress.Host, port uint16) (net.Conn, error)
	// Roots is what the stand-in's certificates are checked against.
	Roots *x509.CertPool
}

// route is how granted requests find their upstream.
type route interface {
	Vet(ctx context.Context, host egress.Host, port uint16, a egress.AddressAllowance) error
	Dial(ctx context.Context, host egress.Host, port uint16, a egress.AddressAllowance) (net.Conn, error)
}

// routes returns the run's dialer, and what leads to it or to the stand-in.
func routes(s *StandIn) (*upstream.Dialer, route) {
	if s == nil {
		d := upstream.New(upstream.Options{Proxy: upstream.ProxyFromEnvironment()})
		return d, d
	}
	d := upstream.New(upstream.Options{Lookup: s.Lookup})
	return d, &standInRoute{s, d}
}

type standInRoute struct {
	standIn *StandIn
	dialer  *upstream.Dialer
}

// Vet lets the stand-in's own names pass.
func (r *standInRoute) Vet(ctx context.Context, host egress.Host, port uint16, a egress.AddressAllowance) error {
	if r.standIn.Knows(host) {
		return nil
	}
	return r.dialer.Vet(ctx, host, port, a)
}

// Dial asks the stand-in first.
func (r *standInRoute) Dial(ctx context.Context, host egress.Host, port uint16, a egress.AddressAllowance) (net.Conn, error) {
	if r.standIn.Knows(host) {
		return r.standIn.Dial(ctx, host, port)
	}
	return r.dialer.Dial(ctx, host, port, a)
}

// observed tells a canary what stands in the run's record.
func (n *network) observed(r event.Request) {
	if n.observe != nil {
		n.observe(r)
	}
}
