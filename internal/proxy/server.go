// Package proxy judges every TCP connection of a run, decrypting TLS where the
// grant is finer than a host, and forwards what the policy allows.
//
// The code inside the fence controls every byte that arrives here. One request
// goes left to right: accept, sniff, agree on one authority, normalise, decide,
// record, forward, stream, complete. No step calls back.
package proxy

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/fractalboxdev/sbx/internal/egress"
	"github.com/fractalboxdev/sbx/internal/event"
	"github.com/fractalboxdev/sbx/internal/trap"
)

// Recorder keeps the rows of a run.
type Recorder interface {
	// Record is called before any byte leaves; an error refuses the request.
	Record(event.Request) error
	// Complete says what became of a request that was recorded as allowed.
	Complete(event.Completion)
}

// Limits bound what one run can make the supervisor hold. Zero fields are defaults.
type Limits struct {
	Connections   int           // open at once from inside; 1,024
	Streams       int           // HTTP/2 requests at once, on all connections together; 1,024
	HeadBytes     int64         // heads of requests under way, all together; 32 MiB
	BufferedBytes int64         // request bodies that were read and have not left yet, all together; 64 MiB
	SearchedBytes int64         // responses that are searched for a secret, with their decoders, all together; 256 MiB
	SearchWait    time.Duration // how long a response waits for room to be searched in; 30 s
	Sniff         time.Duration // how long an ungranted connection may stay silent; 1.5 s
	Linger        time.Duration // how long a refused body is read before the connection ends; 1 s
	IdleUpstream  int           // idle upstream connections kept; 512
}

func (l Limits) withDefaults() Limits {
	if l.Connections <= 0 {
		l.Connections = 1024
	}
	if l.Streams <= 0 {
		l.Streams = 1024
	}
	if l.HeadBytes <= 0 {
		l.HeadBytes = 32 << 20
	}
	if l.BufferedBytes <= 0 {
		l.BufferedBytes = 64 << 20
	}
	if l.SearchedBytes <= 0 {
		l.SearchedBytes = 256 << 20
	}
	if l.SearchWait <= 0 {
		l.SearchWait = 30 * time.Second
	}
	if l.Sniff <= 0 {
		l.Sniff = 1500 * time.Millisecond
	}
	if l.Linger <= 0 {
		l.Linger = time.Second
	}
	if l.IdleUpstream <= 0 {
		l.IdleUpstream = 512
	}
	return l
}

// Config connects a Server with the rest of a run.
type Config struct {
	Run      string
	Recorder Recorder
	// Certificate returns the leaf for a host that is intercepted.
	Certificate func(host string) (*tls.Certificate, error)
	// NameOf returns the name behind a synthetic address; synthetic addresses
	// without a name belong to nobody.
	NameOf func(netip.Addr) (name string, synthetic bool)
	// Vet resolves and checks a granted host before its request is recorded. An
	// error that wraps *egress.AddressError denies the request. nil: Dial alone checks.
	Vet func(ctx context.Context, host egress.Host, port uint16, a egress.AddressAllowance) error
	// Dial resolves a granted host and dials the very address that it vetted.
	Dial func(ctx context.Context, host egress.Host, port uint16, a egress.AddressAllowance) (net.Conn, error)
	// UpstreamTLS holds the host's trust; server name, ALPN and the session cache
	// are set on copies of it. It is read at dials, so it may be filled in until the
	// first Apply. nil: system roots.
	UpstreamTLS *tls.Config
	// Credentials are the secrets by the name that rules have; what a rule names must
	// be here, or its requests are refused.
	Credentials map[string]Credential
	Position    Position // from Apply on; the floor always enforces
	Limits      Limits
	Clock       func() time.Time // nil: time.Now
	NextID      func() uint64    // ids of records; nil: a counter of this Server
	// Trap is told of faults that could not be kept to one connection.
	Trap trap.Trap
}

// Server is the proxy of one run. It starts at the floor: everything is refused.
type Server struct {
	cfg      Config
	vault    *vault
	tls      *tls.Config // towards the client
	sessions tls.ClientSessionCache
	current  atomic.Pointer[snapshot]
	nextID   atomic.Uint64
	held     gauges

	mu        sync.Mutex
	closed    bool
	listeners map[net.Listener]struct{}
	conns     map[net.Conn]struct{}
	handlers  sync.WaitGroup
}

// New returns a Server at the floor.
func New(cfg Config) *Server {
	cfg.Limits = cfg.Limits.withDefaults()
	if cfg.Clock == nil {
		cfg.Clock = time.Now
	}
	if cfg.UpstreamTLS == nil {
		cfg.UpstreamTLS = &tls.Config{MinVersion: tls.VersionTLS12}
	}
	s := &Server{
		cfg:       cfg,
		vault:     newVault(cfg.Credentials),
		sessions:  tls.NewLRUClientSessionCache(256),
		listeners: make(map[net.Listener]struct{}),
		conns:     make(map[net.Conn]struct{}),
	}
	if cfg.NextID == nil {
		s.cfg.NextID = func() uint64 { return s.nextID.Add(1) }
	}
	s.held.init(s.cfg.Limits)
	s.tls = s.clientTLS()
	s.current.Store(s.newSnapshot(nil, Enforce))
	return s
}

// snapshot is the grant as one request sees it: the policy, what it may still
// upload, and the upstream connections that were opened under it.
type snapshot struct {
	policy   *egress.Policy
	position Position
	before   *snapshot // at a floor: the grant that it ended, nil at the first
	pool     *pool
	budgets  budgets
	// begin returns the context of one request; it ends with the snapshot.
	begin func() (context.Context, context.CancelCauseFunc)
	end   context.CancelCauseFunc
}

var errRevoked = errors.New("the grant was revoked")

func (s *Server) newSnapshot(p *egress.Policy, position Position) *snapshot {
	ctx, cancel := context.WithCancelCause(context.Background())
	return &snapshot{
		policy:   p,
		position: position,
		pool:     newPool(s.cfg, s.sessions),
		begin:    func() (context.Context, context.CancelCauseFunc) { return context.WithCancelCause(ctx) },
		end:      cancel,
	}
}

// Apply swaps the policy in with one atomic store. A request loads the policy
// once; whatever still runs under an earlier one is aborted.
func (s *Server) Apply(p *egress.Policy) { s.swap(p, s.cfg.Position) }

// Floor swaps back to refusing everything, aborts requests in flight and closes
// the upstream connections.
func (s *Server) Floor() { s.swap(nil, Enforce) }

func (s *Server) swap(p *egress.Policy, position Position) {
	next := s.newSnapshot(p, position)
	s.mu.Lock()
	if old := s.current.Load(); next.floor() {
		next.before = old.granted()
	}
	old := s.current.Swap(next)
	s.mu.Unlock()
	old.end(errRevoked)
	old.pool.close()
}

// floor reports whether nothing is granted.
func (n *snapshot) floor() bool { return n.policy == nil && n.position == Enforce }

// granted is the grant in force, or the one that was until the floor came back; before
// any grant it is the floor. It is for telling what a connection was about that ends
// with the run, and never allows anything.
func (n *snapshot) granted() *snapshot {
	if n.floor() && n.before != nil {
		return n.before
	}
	return n
}

// Applied reports whether anything but the floor is in force, for the proof of
// floor and grant.
func (s *Server) Applied() bool { return !s.current.Load().floor() }

// Policy returns the policy in force, nil at the floor.
func (s *Server) Policy() *egress.Policy { return s.current.Load().policy }

// Serve accepts redirected connections until l fails or the Server is closed.
// original returns the destination that the program inside dialled.
func (s *Server) Serve(l net.Listener, original func(net.Conn) (netip.AddrPort, error)) error {
	return s.accept(l, func(c net.Conn) { s.serveTransparent(c, original) })
}

// ServeExplicit accepts connections of programs that know they speak to a proxy.
func (s *Server) ServeExplicit(l net.Listener) error {
	return s.accept(l, s.serveExplicit)
}

func (s *Server) accept(l net.Listener, handle func(net.Conn)) error {
	if !s.addListener(l) {
		return net.ErrClosed
	}
	backoff := time.Duration(0)
	for {
		c, err := l.Accept()
		if err == nil {
			backoff = 0
			s.start(c, handle)
			continue
		}
		if s.isClosed() || errors.Is(err, net.ErrClosed) {
			return nil
		}
		var temporary interface{ Temporary() bool }
		if !errors.As(err, &temporary) || !temporary.Temporary() {
			return fmt.Errorf("accepting a connection from the sandbox: %w", err)
		}
		// Out of descriptors: wait for connections to end instead of spinning.
		backoff = min(max(2*backoff, 5*time.Millisecond), time.Second)
		<-time.After(backoff)
	}
}

// start runs handle for a connection, or refuses it beyond the limit.
func (s *Server) start(c net.Conn, handle func(net.Conn)) {
	s.mu.Lock()
	full := len(s.conns) >= s.cfg.Limits.Connections
	if s.closed {
		s.mu.Unlock()
		_ = c.Close()
		return
	}
	if !full {
		s.conns[c] = struct{}{}
	}
	s.handlers.Add(1)
	s.mu.Unlock()
	if full {
		defer s.handlers.Done()
		s.refuseFull(c)
		return
	}
	go func() {
		defer s.cfg.Trap.Catch()
		defer s.handlers.Done()
		defer s.forget(c)
		defer s.survive(c)
		handle(c)
	}()
}

// survive keeps a fault in one connection from ending the run's supervisor
// before it has revoked anything. The connection is gone, and the row says so.
func (s *Server) survive(c net.Conn) {
	if fault := recover(); fault != nil {
		s.deny(event.Request{Protocol: "tcp"}, refuse(egress.CodeMalformed, fmt.Sprintf("internal error in the proxy: %v", fault)))
		reset(c)
	}
}

func (s *Server) refuseFull(c net.Conn) {
	s.deny(event.Request{Protocol: "tcp"}, refuseBound(egress.CodeBoundConnections, fmt.Sprintf("more than %d connections at once", s.cfg.Limits.Connections)))
	reset(c)
}

func (s *Server) forget(c net.Conn) {
	s.mu.Lock()
	delete(s.conns, c)
	s.mu.Unlock()
	_ = c.Close()
}

func (s *Server) addListener(l net.Listener) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return false
	}
	s.listeners[l] = struct{}{}
	return true
}

func (s *Server) isClosed() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.closed
}

// Close falls back to the floor, closes listeners and connections, and waits for
// all handlers until ctx ends.
func (s *Server) Close(ctx context.Context) error {
	s.mu.Lock()
	s.closed = true
	for l := range s.listeners {
		_ = l.Close()
	}
	for c := range s.conns {
		_ = c.Close()
	}
	s.mu.Unlock()
	s.Floor() //nolint:contextcheck // the floor outlives this call
	done := make(chan struct{})
	go func() { s.handlers.Wait(); close(done) }()
	select {
	case <-done:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("waiting for the proxy's connections to end: %w", context.Cause(ctx))
	}
}

// reset ends a connection so that the other side sees an error, not an end.
func reset(c net.Conn) {
	if t, ok := c.(interface{ SetLinger(int) error }); ok {
		_ = t.SetLinger(0)
	}
	_ = c.Close()
}
