package proxy

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"sync"
	"syscall"
	"time"

	"github.com/fractalboxdev/sbx/internal/egress"
	"github.com/fractalboxdev/sbx/internal/event"
)

// origin is what a connection itself says about where it wants to go, before
// any request on it.
type origin struct {
	snap     *snapshot   // what was in force when it came; for judging one that ends unused
	explicit bool        // a proxy connection: each request names its own authority
	host     egress.Host // dialled or asked for by CONNECT; zero when explicit
	port     uint16
	dialled  string // for records: the authority and how it became known
	tls      bool
	sniText  string      // as the client sent it
	sni      egress.Host // zero when there was none
}

// protocol is what requests on the connection are.
func (o *origin) protocol() egress.Protocol {
	if o.tls {
		return egress.ProtocolHTTPS
	}
	return egress.ProtocolHTTP
}

// row begins a record about the connection as a whole.
func (o *origin) row(protocol string) event.Request {
	row := event.Request{Protocol: protocol, Host: o.host.String(), Port: o.port}
	if row.Host == "" {
		row.Host = egress.CleanPath(o.sniText)
	}
	return row
}

// requestRow begins a record about a request that was read but not judged.
func (o *origin) requestRow(req *request) event.Request {
	row := o.row(o.protocol().String())
	row.Method, row.Path = egress.CleanPath(req.method), egress.CleanPath(pathOf(req.target))
	if row.Host == "" && len(req.hosts) > 0 {
		row.Host = egress.CleanPath(egress.MaskUserinfo(req.hosts[0]))
	}
	return row
}

// clientConn is a connection from inside with what was read ahead.
type clientConn struct {
	net.Conn
	br     *bufio.Reader
	origin *origin // for the TLS handshake, which sees only the connection
}

// Read drains what was read ahead.
func (c *clientConn) Read(p []byte) (int, error) { return c.br.Read(p) }

// readAhead is large enough for a few TLS records, so that bulk data needs few
// system calls.
const readAhead = 32 << 10

var readers = sync.Pool{New: func() any { return bufio.NewReaderSize(nil, readAhead) }}

func getReader(r io.Reader) *bufio.Reader {
	br := readers.Get().(*bufio.Reader)
	br.Reset(r)
	return br
}

func putReader(br *bufio.Reader) {
	br.Reset(nil)
	readers.Put(br)
}

// serveTransparent handles a redirected connection.
func (s *Server) serveTransparent(nc net.Conn, original func(net.Conn) (netip.AddrPort, error)) {
	dst, err := original(nc)
	if err != nil {
		s.deny(event.Request{Protocol: "tcp"}, refuse(egress.CodeMalformed, "the connection's destination is unknown: "+err.Error()))
		reset(nc)
		return
	}
	o := s.originOf(dst)
	br := getReader(nc)
	defer putReader(br)
	s.serveStream(&clientConn{Conn: nc, br: br, origin: o})
}

// originOf names the destination of a redirected connection. An address of the
// synthetic range that no name was bound to stays a literal, which nobody grants.
func (s *Server) originOf(dst netip.AddrPort) *origin {
	addr := dst.Addr().Unmap().WithZone("")
	o := &origin{host: egress.AddrHost(addr), port: dst.Port(), dialled: "dialled " + dst.String()}
	name, synthetic := s.cfg.NameOf(addr)
	if !synthetic || name == "" {
		return o
	}
	if h, err := egress.ParseHost(name); err == nil {
		o.host = h
		o.dialled = fmt.Sprintf("dialled %s:%d", h.InURL(), dst.Port())
	}
	return o
}

// serveExplicit handles a connection of a program that speaks to a proxy.
func (s *Server) serveExplicit(nc net.Conn) {
	br := getReader(nc)
	defer putReader(br)
	c := &clientConn{Conn: nc, br: br, origin: &origin{explicit: true}}
	first, err := c.sniff(time.Time{})
	if err != nil {
		return
	}
	if yes, _ := looksHTTP(first); !yes {
		s.deny(event.Request{Protocol: "tcp"}, refuse(egress.CodeNotHTTP, "a connection to the proxy that is not HTTP"))
		reset(nc)
		return
	}
	s.serveHTTP1(c)
}

// serveStream handles a connection whose destination is known: relayed whole,
// decrypted, or read as HTTP, whatever its first bytes say.
func (s *Server) serveStream(c *clientConn) {
	snap := s.current.Load()
	o := c.origin
	o.snap = snap.granted()
	relay := snap.policy.Decide(egress.Request{Protocol: egress.ProtocolTCP, Host: o.host, Port: o.port})
	if relay.Verdict == egress.Allow && !relay.Rule.Tunnel {
		s.relayTCP(c, snap, relay)
		return
	}
	first, err := c.sniff(s.patience(snap, o))
	switch {
	case err != nil:
		s.silent(c, err)
	case first[0] == recordHandshake && relay.Verdict == egress.Allow:
		s.relayTunnel(c, snap, relay)
	case first[0] == recordHandshake:
		s.serveTLS(c, first)
	case isPreface(first):
		s.serveHTTP2(c)
	default:
		s.servePlain(c, first)
	}
}

// servePlain handles a connection that does not begin with a ClientHello.
func (s *Server) servePlain(c *clientConn, first []byte) {
	if yes, _ := looksHTTP(first); yes {
		s.serveHTTP1(c)
		return
	}
	s.notHTTP(c, first)
}

// notHTTP refuses bytes that are neither TLS nor HTTP. The policy's own refusal,
// when it has one for this host and port, tells more than the bytes do.
func (s *Server) notHTTP(c *clientConn, first []byte) {
	o := c.origin
	d := o.snap.policy.Decide(egress.Request{Protocol: egress.ProtocolTCP, Host: o.host, Port: o.port})
	r := refuseDecision(d)
	if d.Stage == egress.StageHandler {
		r = refuse(egress.CodeNotHTTP, fmt.Sprintf("tcp://%s:%d: neither TLS nor HTTP: it begins with %q", o.host.InURL(), o.port, first[:min(len(first), 16)]))
		if !o.tls && (o.port == 443 || d.Verdict == egress.Allow) { // a tunnel is TLS on any port
			r.code = egress.CodeNotTLS
		}
		r.rule = d.Nearest
	}
	if s.relayOpen(c, r) {
		return
	}
	s.deny(o.row("tcp"), r)
	reset(rawConn(c))
}

// patience is when a silent connection ends: soon when nothing that it could say
// would be allowed, so that protocols in which the server speaks first fail
// quickly; never for a granted host, whose clients may connect ahead.
func (s *Server) patience(snap *snapshot, o *origin) time.Time {
	for _, p := range []egress.Protocol{egress.ProtocolHTTPS, egress.ProtocolHTTP, egress.ProtocolTCP} {
		d := snap.policy.Decide(egress.Request{Protocol: p, Host: o.host, Port: o.port})
		if d.Verdict == egress.Allow || d.Stage == egress.StageHandler && d.Code != egress.CodeProtocol && d.Code != egress.CodePort {
			return time.Time{}
		}
	}
	return time.Now().Add(s.cfg.Limits.Sniff)
}

// sniff waits until the first bytes show what the connection speaks. The
// deadline stays in force until the first request is read.
func (c *clientConn) sniff(deadline time.Time) ([]byte, error) {
	if !deadline.IsZero() {
		if err := c.SetReadDeadline(deadline); err != nil {
			return nil, err
		}
	}
	for n := 1; ; n++ {
		if _, err := c.br.Peek(n); err != nil && c.br.Buffered() == 0 {
			return nil, err
		} else if err != nil {
			break // what came is all that comes in time
		}
		first, err := c.br.Peek(c.br.Buffered())
		if err != nil {
			return nil, err
		}
		n = len(first)
		if _, sure := looksHTTP(first); first[0] == recordHandshake || sure || n > maxMethod {
			return first, nil
		}
	}
	return c.br.Peek(c.br.Buffered())
}

// silent ends a connection that said nothing, or not enough. Trying an ungranted
// destination is worth a row even so; a granted one may be left unused, and is when
// the run ends.
func (s *Server) silent(c *clientConn, err error) {
	o := c.origin
	if o.explicit {
		return
	}
	ask := egress.Request{Protocol: egress.ProtocolTCP, Host: o.host, Port: o.port}
	if o.tls {
		ask.Protocol = egress.ProtocolHTTPS
		if !o.sni.IsZero() {
			ask.Host = o.sni
		}
	}
	d := o.snap.policy.Decide(ask)
	revoked := s.current.Load() != o.snap
	if d.Stage == egress.StageHandler && (revoked || !isTimeout(err)) {
		return
	}
	r := refuseDecision(d)
	if d.Verdict == egress.Allow { // a tunnel whose client waits for the server
		r = refuse(egress.CodeNotTLS, "a tunnel that does not begin with a ClientHello")
	}
	if isTimeout(err) && s.relayOpen(c, r) {
		return
	}
	row := o.row(ask.Protocol.String())
	row.Host = ask.Host.String()
	s.deny(row, r)
	reset(rawConn(c))
}

// ended reports whether an error says that a connection is over, from either side.
func ended(err error) bool {
	return errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, net.ErrClosed) ||
		errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE)
}

func isTimeout(err error) bool {
	var t net.Error
	return errors.As(err, &t) && t.Timeout()
}

// recordHandshake is the type of a TLS record that holds handshake messages.
const recordHandshake = 0x16

// clientTLS is the one configuration of all intercepted connections, so that
// they share session tickets.
func (s *Server) clientTLS() *tls.Config {
	return &tls.Config{
		MinVersion: tls.VersionTLS12,
		NextProtos: []string{"h2", "http/1.1"},
		// The wire is this machine's loopback: no post-quantum exchange, full records.
		CurvePreferences:            []tls.CurveID{tls.X25519, tls.CurveP256, tls.CurveP384},
		DynamicRecordSizingDisabled: true,
		// Asked for every hello, resumed sessions too, which need no certificate.
		GetConfigForClient: func(hello *tls.ClientHelloInfo) (*tls.Config, error) { return nil, noteServerName(hello) },
		GetCertificate: func(hello *tls.ClientHelloInfo) (*tls.Certificate, error) {
			c, ok := hello.Conn.(*clientConn)
			if !ok {
				return nil, errors.New("the connection is not from the sandbox")
			}
			if c.origin.sni.IsZero() {
				return s.cfg.Certificate(c.origin.host.String())
			}
			return s.cfg.Certificate(c.origin.sni.String())
		},
	}
}

// noteServerName keeps the name of a hello for the agreement of authorities.
func noteServerName(hello *tls.ClientHelloInfo) error {
	c, ok := hello.Conn.(*clientConn)
	if !ok {
		return errors.New("the connection is not from the sandbox")
	}
	c.origin.sniText = hello.ServerName
	if hello.ServerName == "" {
		return nil
	}
	h, err := egress.ParseHost(hello.ServerName)
	c.origin.sni = h
	return err
}

// handshakeTime bounds a client's handshake; the other side is on this machine.
const handshakeTime = 60 * time.Second

// serveTLS decrypts a connection, which begins with first, and serves what is inside.
func (s *Server) serveTLS(c *clientConn, first []byte) {
	c.origin.tls = true
	if len(first) > recordHeader && dotted(first[recordHeader:]) {
		s.handshakeFailed(c, errDotted)
		return
	}
	_ = c.SetReadDeadline(time.Time{}) // the client has spoken; its handshake has a limit of its own
	t := tls.Server(c, s.tls)
	ctx, cancel := context.WithTimeout(context.Background(), handshakeTime)
	err := t.HandshakeContext(ctx)
	cancel()
	if err != nil {
		s.handshakeFailed(c, err)
		return
	}
	inner := &clientConn{Conn: t, br: getReader(t), origin: c.origin}
	defer putReader(inner.br)
	defer func() { _ = t.Close() }()
	_ = t.SetReadDeadline(s.patience(s.current.Load(), c.origin))
	if t.ConnectionState().NegotiatedProtocol == "h2" {
		s.serveHTTP2(inner)
		return
	}
	s.serveInner(inner)
}

// serveInner handles decrypted bytes that ALPN did not make HTTP/2.
func (s *Server) serveInner(c *clientConn) {
	first, err := c.sniff(time.Time{})
	switch {
	case err != nil:
		s.silent(c, err)
	case isPreface(first):
		s.serveHTTP2(c)
	default:
		s.servePlain(c, first)
	}
}

// handshakeFailed records a ClientHello that led to nothing: a client that does
// not trust the run's CA, a name that is none, or the bound of leaves.
func (s *Server) handshakeFailed(c *clientConn, err error) {
	o := c.origin
	host := o.sni
	if host.IsZero() {
		host = o.host
	}
	r := refuse(egress.CodeNotTLS, fmt.Sprintf("https://%s:%d: the TLS handshake with the client failed: %v", host.InURL(), o.port, err))
	d := o.snap.policy.Decide(egress.Request{Protocol: egress.ProtocolHTTPS, Host: host, Port: o.port})
	switch {
	case o.sniText != "" && o.sni.IsZero():
		r = refuse(egress.CodeMalformed, "the server name is no host name: "+err.Error())
	case isBound(err): // also where the gate would have refused: it was not asked
		r = refuseBound(egress.CodeBoundLeaves, err.Error())
	case d.Stage == egress.StageGate && !host.IsZero() && o.snap.position == Enforce:
		r = refuseDecision(d)
	case errors.Is(err, errDotted):
		r = refuse(egress.CodeMalformed, fmt.Sprintf("https://%s:%d: %v", host.InURL(), o.port, err))
	case ended(err):
		return // a granted host may be tried and left; nothing was asked
	}
	row := o.row("https")
	row.Host = egress.CleanPath(o.sniText)
	if !host.IsZero() {
		row.Host = host.String()
	}
	s.deny(row, r)
	reset(c.Conn)
}

// isBound reports whether an error of a func value says that a bound of the run
// was reached.
func isBound(err error) bool {
	var b interface{ Bound() bool }
	return errors.As(err, &b) && b.Bound()
}

// beginsHTTP2 waits for the whole preface of an HTTP/2 connection.
func beginsHTTP2(br *bufio.Reader) bool {
	b, err := br.Peek(len(h2Preface))
	if err != nil || !bytes.Equal(b, h2Preface) {
		return false
	}
	_, _ = br.Discard(len(h2Preface))
	return true
}
