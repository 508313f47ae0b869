package proxy

import (
	"context"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"sync/atomic"
	"time"

	"github.com/fractalboxdev/sbx/internal/egress"
	"github.com/fractalboxdev/sbx/internal/event"
	"github.com/fractalboxdev/sbx/internal/secret"
	"github.com/fractalboxdev/sbx/internal/trap"
)

// relayTCP carries a connection that a rule with protocol = "tcp" grants. The
// server may speak first.
func (s *Server) relayTCP(c *clientConn, snap *snapshot, d egress.Decision) {
	s.relayConn(c, snap, d, c.origin.host, nil)
}

// relayConn records, dials and copies both ways until both sides are done.
func (s *Server) relayConn(c *clientConn, snap *snapshot, d egress.Decision, host egress.Host, first *hello) {
	h := &hop{begun: s.cfg.Clock(), rule: d.Rule, ask: egress.Request{Protocol: egress.ProtocolTCP, Host: host, Port: c.origin.port}}
	s.relayHop(c, snap, h, nil, first)
}

// relayOpen carries a connection that enforce would refuse, when the position is
// another; it reports whether it did.
func (s *Server) relayOpen(c *clientConn, r *refusal) bool {
	snap, o := s.current.Load(), c.origin
	if snap.position == Enforce || o.explicit || r.final {
		return false
	}
	if snap.position == Legacy {
		r = nil
	}
	_ = c.SetReadDeadline(time.Time{}) // it was for saying what the connection wants
	ask := egress.Request{Protocol: egress.ProtocolTCP, Host: o.host, Port: o.port}
	s.relayHop(c, snap, &hop{begun: s.cfg.Clock(), rule: openRule, open: true, ask: ask}, r, nil)
	return true
}

func (s *Server) relayHop(c *clientConn, snap *snapshot, h *hop, judged *refusal, first *hello) {
	ctx, cancel := snap.begin()
	defer cancel(nil)
	x := &exchange{s: s, snap: snap, o: c.origin, req: &request{}}
	r := x.admitBudget(ctx, h)
	if r == nil {
		r = x.admitAddress(ctx, h)
	}
	if r == nil {
		r = x.recordAllowed(h, judged)
	}
	if r != nil {
		if !r.unrecorded {
			s.deny(x.row(h), r)
		}
		reset(rawConn(c))
		return
	}
	up, err := x.dialRelay(ctx, h)
	if err != nil {
		if r := refuseAddress(h, err); r != nil {
			s.deny(x.row(h), r)
		}
		reset(rawConn(c))
		x.complete(h, err)
		return
	}
	h.address = up.RemoteAddr().String()
	s.copyBoth(ctx, x, h, c, up, first)
}

// dialRelay connects to where a relay goes, with TLS where the client's was opened.
func (x *exchange) dialRelay(ctx context.Context, h *hop) (net.Conn, error) {
	up, err := x.s.cfg.Dial(ctx, h.ask.Host, h.ask.Port, x.allowance(h))
	if err != nil || !x.o.tls {
		return up, err
	}
	cfg := x.s.cfg.UpstreamTLS.Clone()
	cfg.ServerName = h.ask.Host.String()
	t := tls.Client(up, cfg)
	if err := t.HandshakeContext(ctx); err != nil {
		return nil, errors.Join(err, up.Close())
	}
	return t, nil
}

func (s *Server) copyBoth(ctx context.Context, x *exchange, h *hop, c *clientConn, up net.Conn, first *hello) {
	stop := context.AfterFunc(ctx, func() { reset(rawConn(c)); _ = up.Close() })
	defer stop()
	p := &pair{c: c, up: up}
	var err error
	if first == nil {
		err = p.run(x.fromClient(h, c), up)
	} else {
		answer := newServerAnswer()
		guarded := &helloGuard{r: c, name: first.name, answer: answer}
		err = p.run(x.fromClient(h, guarded), &answerReader{r: up, answer: answer})
	}
	if ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	if errors.Is(err, errPlaceholder) {
		s.deny(x.row(h), refuse(egress.CodePlaceholder, egress.Describe(h.ask)+": "+errPlaceholder.Error()))
	}
	c2 := event.Completion{
		Time: s.cfg.Clock(), Run: s.cfg.Run, ID: h.id, Event: "completed", Address: h.address,
		Sent: p.sent.Load(), Received: p.received.Load(), Millis: s.cfg.Clock().Sub(h.begun).Milliseconds(),
	}
	if err != nil {
		c2.Error = err.Error()
	}
	s.cfg.Recorder.Complete(c2)
}

// fromClient is what a relay sends: reading through the connection keeps the order
// with the bytes that were read ahead.
func (x *exchange) fromClient(h *hop, r io.Reader) io.Reader {
	if placed := x.s.vault.placed; !placed.Empty() && !h.open {
		r = &placeholderGuard{r: r, search: secret.NewSearch(placed)}
	}
	if h.rule.UploadBudget.Bytes > 0 {
		r = &stream{r: r, left: 1 << 62, snap: x.snap, rule: h.rule}
	}
	return r
}

var errPlaceholder = errors.New("a placeholder on a connection that is not opened, where no secret belongs")

// placeholderGuard cuts a relayed connection before a placeholder leaves whole.
type placeholderGuard struct {
	r      io.Reader
	search *secret.Search
	err    error
}

// Read searches what it returns.
func (g *placeholderGuard) Read(p []byte) (int, error) {
	if g.err != nil {
		return 0, g.err
	}
	n, err := g.r.Read(p)
	if _, found := g.search.Next(p[:n]); found {
		g.err = errPlaceholder
		return 0, g.err
	}
	return n, err
}

// pair is two connections that are one.
type pair struct {
	c, up          net.Conn
	sent, received atomic.Int64
}

// run copies both ways. An end is passed on as an end, an error as an error.
func (p *pair) run(fromClient, fromServer io.Reader) error {
	done := make(chan error, 1)
	go func() {
		done <- trap.Call(func() error { return p.copy(p.up, fromClient, &p.sent) })
	}()
	err := p.copy(p.c, fromServer, &p.received)
	if err != nil {
		// The server is gone: nothing that the client still says can be answered.
		_ = p.c.SetReadDeadline(time.Unix(1, 0))
	}
	return errors.Join(err, <-done)
}

func (p *pair) copy(dst net.Conn, src io.Reader, count *atomic.Int64) error {
	buf := copyBuffers.Get().(*[]byte)
	defer copyBuffers.Put(buf)
	for {
		n, err := src.Read(*buf)
		if n > 0 {
			count.Add(int64(n))
			if _, werr := dst.Write((*buf)[:n]); werr != nil {
				p.kill()
				return werr
			}
		}
		switch {
		case errors.Is(err, io.EOF):
			closeWrite(dst)
			return nil
		case err != nil:
			p.kill()
			return err
		}
	}
}

func (p *pair) kill() {
	if c, ok := p.c.(*clientConn); ok {
		reset(rawConn(c))
	}
	_ = p.up.Close()
}

// closeWrite passes the end of one direction on; where the transport knows no
// half-closed state, the whole connection ends.
func closeWrite(c net.Conn) {
	if cc, ok := c.(*clientConn); ok {
		c = cc.Conn
	}
	if h, ok := c.(interface{ CloseWrite() error }); ok {
		_ = h.CloseWrite()
		return
	}
	_ = c.Close()
}

// relaySocket hands a websocket through after the upstream accepted it.
func (x *exchange) relaySocket(ctx context.Context, h *hop, resp *response) {
	h.status = 101
	fs := responseFields(resp.fields, h.rule, false)
	fs = append(fs, field{"Connection", "Upgrade"}, field{"Upgrade", "websocket"})
	c, ok := (*clientConn)(nil), false
	if err := x.w.start(101, resp.reason, fs, 0); err == nil {
		c, ok = x.w.upgraded()
	}
	if !ok {
		resp.close(false)
		x.complete(h, errClientGone)
		return
	}
	stop := context.AfterFunc(ctx, func() { reset(rawConn(c)) })
	defer stop()
	p := &pair{c: c, up: resp.conn.nc}
	var fromClient io.Reader = &frames{r: c}
	if h.rule.UploadBudget.Bytes > 0 {
		fromClient = &stream{r: fromClient, left: 1 << 62, snap: x.snap, rule: h.rule}
	}
	err := p.run(fromClient, resp.conn.br)
	resp.close(false)
	x.received = p.received.Load()
	x.stream = &stream{sent: p.sent.Load()}
	h.ask.BodyLength = -1 // so that what was sent is counted
	if ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	x.complete(h, err)
}

// frames passes client bytes on as long as they are websocket frames (RFC 6455
// section 5.2): masked, without reserved bits of unknown meaning or opcodes.
type frames struct {
	r    io.Reader
	head []byte // of the frame being read
	left uint64 // payload still to come
}

var errFrame = errors.New("the client sends something else than websocket frames")

// Read checks the frame headers in what it returns.
func (f *frames) Read(p []byte) (int, error) {
	n, err := f.r.Read(p)
	for b := p[:n]; len(b) > 0; {
		if f.left > 0 {
			skip := min(f.left, uint64(len(b)))
			f.left -= skip
			b = b[skip:]
			continue
		}
		f.head = append(f.head, b[0])
		b = b[1:]
		if !f.header() {
			return 0, errFrame
		}
	}
	return n, err
}

// header looks at the header bytes so far and reports whether they are valid.
func (f *frames) header() bool {
	if len(f.head) < 2 {
		return f.head[0]&0x0f <= 2 || f.head[0]&0x0f >= 8 && f.head[0]&0x0f <= 10
	}
	if f.head[1]&0x80 == 0 {
		return false
	}
	length, size := uint64(f.head[1]&0x7f), 6 // two bytes and the mask
	switch length {
	case 126:
		size = 8
	case 127:
		size = 14
	}
	if len(f.head) < size {
		return true
	}
	switch length {
	case 126:
		length = uint64(binary.BigEndian.Uint16(f.head[2:]))
	case 127:
		length = binary.BigEndian.Uint64(f.head[2:])
	}
	f.head, f.left = f.head[:0], length
	return length>>63 == 0
}
