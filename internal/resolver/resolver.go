// Package resolver answers the name questions of one run from inside: every
// valid name gets a synthetic address of its own, and nothing is forwarded.
package resolver

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/miekg/dns"

	"github.com/fractalboxdev/sbx/internal/egress"
	"github.com/fractalboxdev/sbx/internal/trap"
)

// DefaultLimit bounds the names of one run; names are chosen by the code inside.
const DefaultLimit = 10_000

// reserved is the number of addresses at the start of the pool that other parts
// of the envelope use (the sandbox's own address among them).
const reserved = 256

// Pool is where names get their addresses from: the benchmark range of RFC 2544, never
// routed, never a real server.
var Pool = netip.MustParsePrefix("198.18.0.0/15")

// Config sets a Resolver up. The zero value is usable.
type Config struct {
	Limit    int               // names per run; 0 means DefaultLimit
	Overflow func(name string) // called once, with the first name beyond Limit
	Clock    func() time.Time  // nil means time.Now
	// Admit counts a connection until it is closed, or refuses it and closes it. nil
	// admits all.
	Admit func(net.Conn) (net.Conn, bool)
}

// Name is what became of one name.
type Name struct {
	Name        string
	First, Last time.Time
	Count       int // questions of any type
}

// Resolver binds names to synthetic addresses and serves them. A binding is
// never changed or reused. It is safe for concurrent use.
type Resolver struct {
	cfg Config

	mu       sync.RWMutex
	names    map[string]*binding
	order    []*binding // index i has address pool + reserved + i
	invalid  map[string]*Name
	overflow bool
	unlisted int // questions for what neither names nor invalid had room for
	servers  []*dns.Server
	closed   bool
}

type binding struct {
	name        string
	addr        netip.Addr
	first, last time.Time
	count       int
	connected   bool
}

// New returns a resolver without bindings.
func New(cfg Config) *Resolver {
	if cfg.Limit <= 0 {
		cfg.Limit = DefaultLimit
	}
	if cfg.Clock == nil {
		cfg.Clock = time.Now
	}
	return &Resolver{cfg: cfg, names: make(map[string]*binding), invalid: make(map[string]*Name)}
}

// ServeUDP answers on pc until Close. A *net.UDPConn replies from the address
// that the question was sent to.
func (r *Resolver) ServeUDP(pc net.PacketConn) error {
	return r.serve(&dns.Server{PacketConn: pc, Handler: r, UDPSize: 4096})
}

// ServeTCP answers on l until Close.
func (r *Resolver) ServeTCP(l net.Listener) error {
	return r.serve(r.streamServer(l))
}

func (r *Resolver) serve(s *dns.Server) error {
	started := make(chan struct{})
	s.NotifyStartedFunc = func() { close(started) }
	r.mu.Lock()
	if r.closed {
		r.mu.Unlock()
		return net.ErrClosed
	}
	failed := make(chan error, 1)
	go func() { failed <- trap.Call(s.ActivateAndServe) }()
	select {
	case <-started:
		r.servers = append(r.servers, s)
		r.mu.Unlock()
		return <-failed
	case err := <-failed:
		r.mu.Unlock()
		return fmt.Errorf("starting the resolver: %w", err)
	}
}

// Close stops all servers and waits for their handlers until ctx ends.
func (r *Resolver) Close(ctx context.Context) error {
	r.mu.Lock()
	servers := r.servers
	r.servers, r.closed = nil, true
	r.mu.Unlock()
	var errs []error
	for _, s := range servers {
		if err := s.ShutdownContext(ctx); err != nil {
			errs = append(errs, fmt.Errorf("stopping the resolver: %w", err))
		}
	}
	return errors.Join(errs...)
}

// NameOf returns the name bound to addr. synthetic reports whether addr lies in
// the pool at all: such an address without a name belongs to nobody.
func (r *Resolver) NameOf(addr netip.Addr) (name string, synthetic bool) {
	addr = addr.Unmap()
	if !Pool.Contains(addr) {
		return "", false
	}
	i := offset(addr) - reserved
	r.mu.RLock()
	defer r.mu.RUnlock()
	if i < 0 || i >= len(r.order) {
		return "", true
	}
	return r.order[i].name, true
}

// Connected marks a name as one that a connection was made for.
func (r *Resolver) Connected(name string) {
	r.mu.RLock()
	b := r.names[name]
	seen := b == nil || b.connected
	r.mu.RUnlock()
	if seen {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	b.connected = true
}

// Unconnected returns the names that were asked for but never connected to, in
// the order of their first question.
func (r *Resolver) Unconnected() []Name {
	r.mu.RLock()
	defer r.mu.RUnlock()
	var out []Name
	for _, b := range r.names {
		if !b.connected {
			out = append(out, Name{Name: b.name, First: b.first, Last: b.last, Count: b.count})
		}
	}
	inOrder(out)
	return out
}

func inOrder(names []Name) {
	slices.SortFunc(names, func(a, b Name) int { return cmp.Or(a.First.Compare(b.First), strings.Compare(a.Name, b.Name)) })
}

// Bind returns the synthetic address of a name, binding it if need be, and
// counts the question. It fails for names that are not valid host names and
// beyond the limit.
func (r *Resolver) Bind(name string) (netip.Addr, bool) {
	host, err := egress.ParseHost(name)
	if _, literal := host.Addr(); err != nil || literal {
		r.refused(name)
		return netip.Addr{}, false
	}
	name = host.String()
	now := r.cfg.Clock()
	r.mu.Lock()
	b, ok := r.names[name]
	if !ok && len(r.order) >= r.cfg.Limit {
		first := !r.overflow
		r.overflow = true
		if !first {
			r.unlisted++
		}
		r.mu.Unlock()
		if first && r.cfg.Overflow != nil {
			r.cfg.Overflow(name)
		}
		return netip.Addr{}, false
	}
	defer r.mu.Unlock()
	if !ok {
		b = &binding{name: name, addr: address(len(r.order)), first: now}
		r.names[name] = b
		r.order = append(r.order, b)
	}
	b.last = now
	b.count++
	return b.addr, true
}

// refused counts a question for what is no host name, up to the limit of names.
func (r *Resolver) refused(name string) {
	now := r.cfg.Clock()
	r.mu.Lock()
	defer r.mu.Unlock()
	n := r.invalid[name]
	if n == nil && len(r.invalid) >= r.cfg.Limit {
		r.unlisted++
		return
	}
	if n == nil {
		n = &Name{Name: name, First: now}
		r.invalid[name] = n
	}
	n.Last = now
	n.Count++
}

// Refused returns what was asked for and is no host name, in the order of the first
// question; such questions are answered with NXDOMAIN.
func (r *Resolver) Refused() []Name {
	r.mu.RLock()
	defer r.mu.RUnlock()
	out := make([]Name, 0, len(r.invalid))
	for _, n := range r.invalid {
		out = append(out, *n)
	}
	inOrder(out)
	return out
}

// Unlisted returns how many questions were for names beyond the limit, valid or not,
// but for the one that Overflow was called with.
func (r *Resolver) Unlisted() int {
	r.mu.RLock()
	defer r.mu.RUnlock()
	return r.unlisted
}

func address(i int) netip.Addr {
	b := Pool.Addr().As4()
	n := uint32(b[0])<<24 | uint32(b[1])<<16 | uint32(b[2])<<8 | uint32(b[3])
	n += uint32(reserved + i) //nolint:gosec // bounded by the limit of names
	return netip.AddrFrom4([4]byte{byte(n >> 24), byte(n >> 16), byte(n >> 8), byte(n)})
}

func offset(addr netip.Addr) int {
	a, b := addr.As4(), Pool.Addr().As4()
	n := 0
	for i := range a {
		n = n<<8 + int(a[i]) - int(b[i])
	}
	return n
}
