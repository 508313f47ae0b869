package proxy

import (
	"bufio"
	"context"
	"crypto/tls"
	"errors"
	"io"
	"maps"
	"net"
	"net/http"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/fractalboxdev/sbx/internal/egress"
)

// poolKey is a set of interchangeable upstream connections.
type poolKey struct {
	tls       bool
	h2        bool // offer HTTP/2, or speak it with prior knowledge without TLS
	host      egress.Host
	port      uint16
	allowance egress.AddressAllowance
}

const (
	idleAge     = 90 * time.Second       // servers close idle connections after 5 to 120 s
	maxAttempts = 3                      // to connect
	maxSends    = 2                      // of one request
	retryDelay  = 150 * time.Millisecond // doubles
)

// pool keeps the upstream connections of one grant.
type pool struct {
	cfg      Config
	sessions tls.ClientSessionCache
	h2t      *http.Transport // for HTTP/2 only, over connections that were dialled here

	mu      sync.Mutex
	closed  bool
	idle    map[poolKey][]*upConn // the most recently used last
	count   int
	multi   map[poolKey]*multi
	configs map[poolKey]*tls.Config
	open    map[net.Conn]struct{}
}

// multi has the shared HTTP/2 connections of a key.
type multi struct {
	mu    sync.Mutex // held while dialling, so that a burst makes one connection
	conns []shared
	h1    bool // the server chose HTTP/1.1
}

type shared struct {
	*http.ClientConn
	address string
	up      *upConn // below it
}

// reserve returns a connection with room for one more request, and drops those
// that have ended.
func (m *multi) reserve() (shared, bool) {
	m.forget(func(c shared) bool { return c.Err() != nil })
	for _, c := range m.conns {
		if c.Reserve() == nil {
			return c, true
		}
	}
	return shared{}, false
}

// forget ends the connections that match.
func (m *multi) forget(match func(shared) bool) {
	m.conns = slices.DeleteFunc(m.conns, func(c shared) bool {
		if !match(c) {
			return false
		}
		_ = c.Close()
		c.up.kill()
		return true
	})
}

func newPool(cfg Config, sessions tls.ClientSessionCache) *pool {
	return &pool{
		cfg:      cfg,
		sessions: sessions,
		h2t:      transport2(),
		idle:     make(map[poolKey][]*upConn),
		multi:    make(map[poolKey]*multi),
		configs:  make(map[poolKey]*tls.Config),
		open:     make(map[net.Conn]struct{}),
	}
}

// outgoing is a request as it leaves.
type outgoing struct {
	key       poolKey
	method    string
	target    string // the client's own bytes
	host      string
	fields    fields
	length    int64 // of the body; 0 none, -1 unknown
	declares  bool  // say "Content-Length: 0"
	body      []byte
	stream    *stream
	interrupt func() // makes a blocked read of stream return
	uploaded  func() // called when all of stream was read
	expects   bool   // the client waits for a 100 before it sends stream
	proceed   func() error
	begun     bool        // some of stream may be gone
	again     func() bool // takes one more attempt from the rule's budget; nil: there is none
	left      func()      // told each time that a head left with a secret; may be nil
	sends     int         // attempts of which something may have left
	socket    bool        // a websocket handshake
}

// whole reports whether all of the request can be sent once more.
func (o *outgoing) whole() bool { return o.stream == nil || !o.begun }

// repeatable reports whether sending the request twice is the same as once: its
// method is idempotent (RFC 9110 section 9.2.2), and it is here to be sent again.
func (o *outgoing) repeatable() bool {
	if !o.whole() || o.socket {
		return false
	}
	switch o.method {
	case "GET", "HEAD", "OPTIONS", "TRACE", "PUT", "DELETE":
		return true
	}
	return false
}

// response is what came back. close must be called exactly once.
type response struct {
	status   int
	reason   string
	fields   fields
	length   int64 // of the body; -1 unknown
	bodyless bool  // the length, if any, describes a body that is not sent
	body     io.Reader
	trailer  func() fields
	address  string
	conn     *upConn // of a 101
	waits    func() bool
	close    func(reuse bool)
}

// discard drops a small body so that the connection can be used again.
func (r *response) discard() {
	const enough = 64 << 10
	n, err := io.CopyN(io.Discard, r.body, enough)
	r.close(errors.Is(err, io.EOF) && n < enough)
}

// unanswered marks an error that struck before the first byte of an answer.
type unanswered struct {
	err  error
	left bool // some of the request may have reached the host
}

func (e unanswered) Error() string { return e.err.Error() }
func (e unanswered) Unwrap() error { return e.err }

// roundTrip sends a request and returns the final response's head. What broke
// before an answer began is tried again when repeating is harmless: clients in
// the sandbox are told not to retry.
func (p *pool) roundTrip(ctx context.Context, o *outgoing) (*response, error) {
	delay := retryDelay
	for attempt := 1; ; attempt++ {
		resp, pooled, err := p.try(ctx, o, attempt > 1)
		if err == nil {
			return resp, nil
		}
		if attempt >= maxAttempts || ctx.Err() != nil || permanent(err) || !o.mayRepeat(err) {
			return nil, err
		}
		if pooled { // most likely the server had closed it: there is nothing to wait for
			continue
		}
		select {
		case <-time.After(delay):
			delay *= 2
		case <-ctx.Done():
			return nil, err
		}
	}
}

// mayRepeat reports whether another attempt is harmless after an error. Of a request
// that may have reached the host nobody knows whether it was acted on, also on a
// connection that had been idle: it is sent once more at most, and only where that is
// the same as once.
func (o *outgoing) mayRepeat(err error) bool {
	early, ok := errors.AsType[unanswered](err)
	switch {
	case !ok:
		return false
	case !early.left:
		return o.whole()
	}
	return o.repeatable() && o.sends < maxSends && (o.again == nil || o.again())
}

// permanent reports errors that a second attempt would only repeat.
func permanent(err error) bool {
	var address *egress.AddressError
	var cert *tls.CertificateVerificationError
	var op *net.OpError
	var dns *net.DNSError
	return errors.As(err, &address) || errors.As(err, &cert) || errors.Is(err, errRevoked) ||
		errors.As(err, &op) && op.Op == "remote error" || // a TLS alert
		errors.As(err, &dns) && dns.IsNotFound
}

// try makes one attempt. pooled reports that it used an HTTP/1 connection that had
// been idle; fresh keeps it from using one.
func (p *pool) try(ctx context.Context, o *outgoing, fresh bool) (resp *response, pooled bool, err error) {
	if o.key.h2 && !o.socket {
		found, err := p.multiplex(ctx, o.key)
		switch {
		case err != nil:
			return nil, false, unanswered{err: err}
		case found.cc.ClientConn != nil:
			resp, err = roundTrip2(ctx, found.cc, o)
			return resp, false, err
		case found.h1 != nil:
			resp, err = found.h1.roundTrip(ctx, o)
			return resp, false, err
		}
	}
	key := o.key
	key.h2 = false
	// What cannot be sent twice gets a connection that cannot be stale. One that is
	// idle goes for it, so that their number does not grow with each such request.
	if !fresh && o.repeatable() && (o.stream == nil || o.expects) {
		if c := p.take(key); c != nil {
			resp, err := c.roundTrip(ctx, o)
			return resp, true, err
		}
	} else if c := p.pop(key); c != nil {
		c.kill()
	}
	c, err := p.dial(ctx, key)
	if err != nil {
		return nil, false, unanswered{err: err}
	}
	resp, err = c.roundTrip(ctx, o)
	return resp, false, err
}

func (p *pool) multiOf(key poolKey) *multi {
	p.mu.Lock()
	defer p.mu.Unlock()
	m := p.multi[key]
	if m == nil {
		m = new(multi)
		p.multi[key] = m
	}
	return m
}

// negotiated is a connection as the server wanted it; neither field is set for a
// server that is known to speak HTTP/1.1.
type negotiated struct {
	cc shared
	h1 *upConn
}

// multiplex returns an HTTP/2 connection with room for a request. Where the
// server chooses HTTP/1.1 it returns the connection that found out.
func (p *pool) multiplex(ctx context.Context, key poolKey) (negotiated, error) {
	m := p.multiOf(key)
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.h1 {
		return negotiated{}, nil
	}
	if c, ok := m.reserve(); ok {
		return negotiated{cc: c}, nil
	}
	c, err := p.dial(ctx, key)
	if err != nil {
		return negotiated{}, err
	}
	if t, ok := c.nc.(*tls.Conn); ok && t.ConnectionState().NegotiatedProtocol != "h2" {
		m.h1 = true
		return negotiated{h1: c}, nil
	}
	cc, err := p.speak2(ctx, c)
	if err != nil {
		c.kill()
		return negotiated{}, err
	}
	made := shared{cc, c.address, c}
	m.conns = append(m.conns, made)
	p.trim(m)
	return negotiated{cc: made}, nil
}

// trim ends shared connections that nobody uses, where there are more than may be
// kept; those of the caller's key, which holds its lock, stay.
func (p *pool) trim(caller *multi) {
	p.mu.Lock()
	others := slices.DeleteFunc(slices.Collect(maps.Values(p.multi)), func(m *multi) bool { return m == caller })
	p.mu.Unlock()
	over := len(caller.conns) - p.cfg.Limits.IdleUpstream
	eachFree(others, func(m *multi) { over += len(m.conns) })
	eachFree(others, func(m *multi) {
		m.forget(func(c shared) bool {
			drop := c.Err() != nil || over > 0 && c.InFlight() == 0
			if drop {
				over--
			}
			return drop
		})
	})
}

// eachFree calls f for the connections that nobody is choosing from.
func eachFree(all []*multi, f func(*multi)) {
	for _, m := range all {
		if m.mu.TryLock() {
			f(m)
			m.mu.Unlock()
		}
	}
}

// dial opens a connection to the key's host.
func (p *pool) dial(ctx context.Context, key poolKey) (*upConn, error) {
	raw, err := p.cfg.Dial(ctx, key.host, key.port, key.allowance)
	if err != nil {
		return nil, err
	}
	if !p.register(raw) {
		_ = raw.Close()
		return nil, errRevoked
	}
	c := &upConn{pool: p, key: key, raw: raw, nc: raw, address: raw.RemoteAddr().String()}
	c.poll, _ = raw.(syscall.Conn)
	if key.tls {
		c.batch = getReader(raw)
		t := tls.Client(&batched{Conn: raw, br: c.batch}, p.tlsFor(key))
		if err := t.HandshakeContext(ctx); err != nil {
			c.kill()
			return nil, err
		}
		c.nc = t
	}
	c.br = bufio.NewReaderSize(c.nc, 8<<10)
	return c, nil
}

// batched reads the ciphertext of a few records with one system call.
type batched struct {
	net.Conn
	br *bufio.Reader
}

// Read drains the buffer before the connection.
func (b *batched) Read(p []byte) (int, error) { return b.br.Read(p) }

func (p *pool) tlsFor(key poolKey) *tls.Config {
	p.mu.Lock()
	defer p.mu.Unlock()
	cfg := p.configs[key]
	if cfg == nil {
		cfg = p.cfg.UpstreamTLS.Clone()
		cfg.ServerName = key.host.String()
		cfg.ClientSessionCache = p.sessions
		cfg.NextProtos = []string{"http/1.1"}
		if key.h2 {
			cfg.NextProtos = []string{"h2", "http/1.1"}
		}
		p.configs[key] = cfg
	}
	return cfg
}

func (p *pool) register(c net.Conn) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.closed {
		p.open[c] = struct{}{}
	}
	return !p.closed
}

func (p *pool) unregister(c net.Conn) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.open, c)
}

// has reports whether a request for key would probably use an open connection.
func (p *pool) has(key poolKey) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if m := p.multi[key]; key.h2 && m != nil && m.ready() {
		return true
	}
	key.h2 = false
	return len(p.idle[key]) > 0
}

func (m *multi) ready() bool {
	if !m.mu.TryLock() {
		return true // being dialled, and vetted, by another request
	}
	defer m.mu.Unlock()
	return slices.ContainsFunc(m.conns, func(c shared) bool { return c.Available() > 0 })
}

// take returns an idle connection that is still alive, as far as can be seen.
func (p *pool) take(key poolKey) *upConn {
	for {
		c := p.pop(key)
		if c == nil {
			return nil
		}
		if time.Since(c.idleSince) < idleAge && c.alive() {
			return c
		}
		c.kill()
	}
}

func (p *pool) pop(key poolKey) *upConn {
	p.mu.Lock()
	defer p.mu.Unlock()
	list := p.idle[key]
	if len(list) == 0 {
		return nil
	}
	c := list[len(list)-1]
	list[len(list)-1] = nil
	p.idle[key] = list[:len(list)-1]
	p.count--
	return c
}

// put keeps a connection for the next request.
func (p *pool) put(c *upConn) {
	c.idleSince = time.Now()
	key := c.key
	key.h2 = false
	p.mu.Lock()
	full := p.closed || p.count >= p.cfg.Limits.IdleUpstream
	if !full {
		p.idle[key] = append(p.idle[key], c)
		p.count++
	}
	p.mu.Unlock()
	if full {
		c.kill()
	}
}

// close ends all connections, busy ones included.
func (p *pool) close() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.closed = true
	for c := range p.open {
		_ = c.Close()
	}
	clear(p.open)
	clear(p.idle)
	p.count = 0
}
