package proxy

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"

	"github.com/fractalboxdev/sbx/internal/egress"
)

// The flow control that an HTTP/2 client is given, in bytes.
const (
	streamWindow  = 256 << 10
	connWindow    = 1 << 20
	defaultWindow = 64<<10 - 1 // RFC 9113 section 6.9.2
	maxWindow     = 1<<31 - 1
	maxStreams    = 250
	maxFrame      = 16 << 10 // payload; no client was told of more (RFC 9113 section 4.2)
)

// h2 serves HTTP/2 on one connection. net/http's server would drop what does not
// fit its own types before anybody could record it, and reorder the rest.
type h2 struct {
	s  *Server
	c  *clientConn
	fr *http2.Framer

	wmu  sync.Mutex // frames are written whole
	bw   *bufio.Writer
	enc  *hpack.Encoder
	ebuf bytes.Buffer

	mu      sync.Mutex
	room    sync.Cond // more may be sent, or never again
	streams map[uint32]*h2Stream
	last    uint32   // highest stream id of the client
	left    []uint32 // the last streams that we ended before the client did, oldest first
	asked   bool
	closed  bool
	send    int64 // window of the connection
	initial int64 // window of a new stream
	frame   int   // largest frame that the client takes
	recv    int64 // what the client may still send on the connection
	owed    int64 // of it, read but not yet given back

	handlers sync.WaitGroup
	running  int
}

// serveHTTP2 reads frames until the connection ends.
func (s *Server) serveHTTP2(c *clientConn) {
	if _, err := c.br.Peek(1); err != nil {
		s.silent(c, err)
		return
	}
	if !beginsHTTP2(c.br) {
		s.deny(c.origin.row(c.origin.protocol().String()), refuseWire(malformed("an HTTP/2 connection without its preface")))
		reset(rawConn(c))
		return
	}
	bw := writers.Get().(*bufio.Writer)
	bw.Reset(c.Conn)
	h := &h2{
		s: s, c: c, fr: http2.NewFramer(bw, c.br), bw: bw, streams: make(map[uint32]*h2Stream),
		send: defaultWindow, initial: defaultWindow, frame: 16 << 10, recv: connWindow,
	}
	h.room.L = &h.mu
	h.enc = hpack.NewEncoder(&h.ebuf)
	h.fr.ReadMetaHeaders = hpack.NewDecoder(4096, nil)
	h.fr.MaxHeaderListSize = uint32(requestLimits.block) //nolint:gosec // a constant that fits
	h.fr.SetReuseFrames()
	h.fr.SetMaxReadFrameSize(maxFrame) // it is memory of ours that the length of a frame asks for
	err := h.greet()
	for err == nil {
		err = h.next()
	}
	h.end(err)
	bw.Reset(nil)
	writers.Put(bw)
}

// greet sends our settings and demands the client's (RFC 9113 section 3.4).
func (h *h2) greet() error {
	err := h.write(func() error {
		return errors.Join(h.fr.WriteSettings(
			http2.Setting{ID: http2.SettingMaxConcurrentStreams, Val: maxStreams},
			http2.Setting{ID: http2.SettingInitialWindowSize, Val: streamWindow},
			http2.Setting{ID: http2.SettingMaxHeaderListSize, Val: h.fr.MaxHeaderListSize},
		), h.fr.WriteWindowUpdate(0, connWindow-defaultWindow))
	})
	if err != nil {
		return err
	}
	f, err := h.readFrame()
	if err != nil {
		return err
	}
	settings, ok := f.(*http2.SettingsFrame)
	if !ok || settings.IsAck() {
		return http2.ConnectionError(http2.ErrCodeProtocol)
	}
	return h.settings(settings)
}

// write runs f, which writes frames, and flushes.
func (h *h2) write(f func() error) error {
	h.wmu.Lock()
	defer h.wmu.Unlock()
	if err := f(); err != nil {
		return err
	}
	return h.bw.Flush()
}

// readFrame calls a frame that is too large what it is.
func (h *h2) readFrame() (http2.Frame, error) {
	f, err := h.fr.ReadFrame()
	if errors.Is(err, http2.ErrFrameTooLarge) {
		return nil, http2.ConnectionError(http2.ErrCodeFrameSize)
	}
	return f, err
}

// next reads and handles one frame.
func (h *h2) next() error {
	f, err := h.readFrame()
	if stream, ok := errors.AsType[http2.StreamError](err); ok {
		return h.badStream(stream)
	}
	if err != nil {
		return err
	}
	switch f := f.(type) {
	case *http2.MetaHeadersFrame:
		return h.headers(f)
	case *http2.DataFrame:
		return h.data(f)
	case *http2.WindowUpdateFrame:
		return h.windowUpdate(f)
	case *http2.RSTStreamFrame:
		return h.rst(f)
	case *http2.SettingsFrame:
		if f.IsAck() {
			return nil
		}
		return h.settings(f)
	case *http2.PingFrame:
		if f.IsAck() {
			return nil
		}
		return h.write(func() error { return h.fr.WritePing(true, f.Data) })
	case *http2.PushPromiseFrame:
		return http2.ConnectionError(http2.ErrCodeProtocol)
	}
	return nil // PRIORITY, GOAWAY and unknown frames change nothing for us
}

// badStream records a request whose header block is malformed. Frames on known
// streams that are malformed end their stream.
func (h *h2) badStream(e http2.StreamError) error {
	h.mu.Lock()
	st := h.streams[e.StreamID]
	fresh := e.StreamID > h.last
	if fresh {
		h.last, h.asked = e.StreamID, true
		h.leave(e.StreamID)
	}
	h.mu.Unlock()
	switch {
	case st != nil:
		h.spoil(st, malformed("a malformed HTTP/2 frame of a request: "+e.Error()))
	case fresh:
		o := h.c.origin
		h.s.deny(o.row(o.protocol().String()), refuseWire(malformed("a malformed HTTP/2 request: "+e.Error())))
	}
	return h.write(func() error { return h.fr.WriteRSTStream(e.StreamID, e.Code) })
}

func (h *h2) settings(f *http2.SettingsFrame) error {
	err := f.ForeachSetting(func(s http2.Setting) error {
		if err := s.Valid(); err != nil {
			return err
		}
		return h.setting(s)
	})
	if err != nil {
		return err
	}
	return h.write(h.fr.WriteSettingsAck)
}

func (h *h2) setting(s http2.Setting) error {
	if s.ID == http2.SettingHeaderTableSize {
		h.wmu.Lock() // never while holding mu
		defer h.wmu.Unlock()
		h.enc.SetMaxDynamicTableSize(min(s.Val, 4096))
		return nil
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	switch s.ID { //nolint:exhaustive // the others say nothing about what we send
	case http2.SettingInitialWindowSize:
		for _, st := range h.streams {
			st.send += int64(s.Val) - h.initial
			if st.send > maxWindow {
				return http2.ConnectionError(http2.ErrCodeFlowControl)
			}
		}
		h.initial = int64(s.Val)
		h.room.Broadcast()
	case http2.SettingMaxFrameSize:
		h.frame = int(min(s.Val, 64<<10))
	}
	return nil
}

func (h *h2) windowUpdate(f *http2.WindowUpdateFrame) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	window := &h.send
	if f.StreamID != 0 {
		st := h.streams[f.StreamID]
		if st == nil {
			if f.StreamID > h.last {
				return http2.ConnectionError(http2.ErrCodeProtocol)
			}
			return nil
		}
		window = &st.send
	}
	*window += int64(f.Increment)
	if *window > maxWindow {
		return http2.ConnectionError(http2.ErrCodeFlowControl)
	}
	h.room.Broadcast()
	return nil
}

func (h *h2) rst(f *http2.RSTStreamFrame) error {
	h.mu.Lock()
	st, idle := h.streams[f.StreamID], f.StreamID > h.last
	h.mu.Unlock()
	if idle {
		return http2.ConnectionError(http2.ErrCodeProtocol)
	}
	if st != nil {
		st.fail(errClientGone)
	}
	return nil
}

// data takes a part of a request body. Bytes for streams that ended count
// against the connection all the same, and are given back at once.
func (h *h2) data(f *http2.DataFrame) error {
	n := int64(f.Header().Length) // padding counts
	h.mu.Lock()
	st, idle := h.streams[f.StreamID], f.StreamID > h.last
	h.recv -= n
	over := h.recv < 0
	h.mu.Unlock()
	switch {
	case idle:
		return http2.ConnectionError(http2.ErrCodeProtocol)
	case over:
		return http2.ConnectionError(http2.ErrCodeFlowControl)
	case st == nil:
		return h.giveBack(nil, n)
	}
	kept, err := st.receive(f.Data(), n, f.StreamEnded())
	if err != nil {
		st.fail(err)
		code := http2.ErrCodeProtocol
		var wire *wireError
		switch {
		case errors.Is(err, errFlow):
			code = http2.ErrCodeFlowControl
		case errors.As(err, &wire) && wire.code == egress.CodeBoundBodies:
			code = http2.ErrCodeEnhanceYourCalm
		}
		return errors.Join(h.giveBack(nil, n), h.write(func() error { return h.fr.WriteRSTStream(f.StreamID, code) }))
	}
	return h.giveBack(st, n-kept)
}

// giveBack lets the client send n more bytes on the connection and on a stream,
// not at once but when it is worth a frame.
func (h *h2) giveBack(st *h2Stream, n int64) error {
	h.mu.Lock()
	conn := h.owe(&h.owed, &h.recv, n)
	var stream int64
	if st != nil && !st.remoteDone {
		stream = h.owe(&st.owed, &st.recv, n)
	}
	h.mu.Unlock()
	if conn+stream == 0 {
		return nil
	}
	return h.write(func() error {
		var err error
		if conn > 0 {
			err = h.fr.WriteWindowUpdate(0, uint32(conn)) //nolint:gosec // at most a window
		}
		if stream > 0 && err == nil {
			err = h.fr.WriteWindowUpdate(st.id, uint32(stream)) //nolint:gosec // at most a window
		}
		return err
	})
}

// owe adds n to what is owed to the client, and returns what to give back now.
func (*h2) owe(owed, window *int64, n int64) int64 {
	*owed += n
	if *owed < streamWindow/4 {
		return 0
	}
	n = *owed
	*window += n
	*owed = 0
	return n
}

// headers begins a stream, or ends one with trailers, which are dropped.
func (h *h2) headers(f *http2.MetaHeadersFrame) error {
	h.mu.Lock()
	st := h.streams[f.StreamID]
	old, left := f.StreamID <= h.last, slices.Contains(h.left, f.StreamID)
	h.mu.Unlock()
	switch {
	case st != nil:
		return h.trailers(st, f)
	case left:
		return nil // its end crosses ours
	case old || f.StreamID%2 == 0: // RFC 9113 section 5.1.1
		return http2.ConnectionError(http2.ErrCodeProtocol)
	}
	req, err := request2(f)
	st, r := h.admit(f.StreamID, req)
	if r != nil {
		h.s.deny(h.c.origin.requestRow(req), r)
		h.refused(f)
		return h.write(func() error { return h.fr.WriteRSTStream(f.StreamID, http2.ErrCodeRefusedStream) })
	}
	if f.StreamEnded() {
		st.body.close(io.EOF)
		st.remoteDone = true
	}
	h.s.cfg.Trap.Go(func() { h.run(st, req, err) })
	return nil
}

// maxLeft bounds the streams whose end from the client is waited for; more than it may
// have open at once.
const maxLeft = 2 * maxStreams

// leave remembers a stream that ended before the client has ended it: what the client
// sent meanwhile is no new request. The caller holds mu.
func (h *h2) leave(id uint32) {
	if len(h.left) >= maxLeft {
		h.left = slices.Delete(h.left, 0, maxLeft/2)
	}
	h.left = append(h.left, id)
}

// refused is leave for a request that did not become a stream.
func (h *h2) refused(f *http2.MetaHeadersFrame) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if !f.StreamEnded() {
		h.leave(f.StreamID)
	}
}

// admit makes a stream of a request, within the bounds of connection and Server.
func (h *h2) admit(id uint32, req *request) (*h2Stream, *refusal) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.last, h.asked = id, true
	if h.running >= maxStreams {
		return nil, refuseBound(egress.CodeBoundStreams, fmt.Sprintf("more than %d HTTP/2 requests at once on one connection", maxStreams))
	}
	st := newStream(h, id, req)
	if r := h.s.admitStream(st.size); r != nil {
		return nil, r
	}
	h.streams[id] = st
	h.running++
	h.handlers.Add(1)
	return st, nil
}

func (h *h2) trailers(st *h2Stream, f *http2.MetaHeadersFrame) error {
	bad := !f.StreamEnded() || len(f.PseudoFields()) > 0
	if !bad {
		_, err := st.receive(nil, 0, true)
		bad = err != nil
	}
	if bad {
		h.spoil(st, malformed("malformed HTTP/2 trailers"))
		return h.write(func() error { return h.fr.WriteRSTStream(f.StreamID, http2.ErrCodeProtocol) })
	}
	return nil
}

// spoil ends a stream whose client broke the protocol on it. The row is made here: a
// handler may be past looking at how its request ends.
func (h *h2) spoil(st *h2Stream, why *wireError) {
	h.mu.Lock()
	failed := st.failed
	h.mu.Unlock()
	if !failed {
		h.s.deny(h.c.origin.requestRow(st.req), refuseWire(why))
	}
	why.recorded = true
	st.fail(why)
}

// run answers one request.
func (h *h2) run(st *h2Stream, req *request, err error) {
	defer h.handlers.Done()
	defer h.finished(st)
	defer h.s.survive(rawConn(h.c))
	if wire, ok := errors.AsType[*wireError](err); ok {
		r := refuseWire(wire)
		h.s.deny(h.c.origin.requestRow(req), r)
		sendRefusal(st, r, r.status)
		return
	}
	h.s.handle(h.c.origin, req, st)
}

// finished forgets a stream. A request body that nobody wants is stopped.
func (h *h2) finished(st *h2Stream) {
	h.mu.Lock()
	delete(h.streams, st.id)
	h.running--
	clean := st.localDone && st.remoteDone
	if !st.remoteDone {
		h.leave(st.id)
	}
	code := http2.ErrCodeNo
	if !st.localDone {
		code = http2.ErrCodeInternal
	}
	reset := !clean && !st.failed
	unread := st.body.drop()
	h.mu.Unlock()
	if reset {
		_ = h.write(func() error { return h.fr.WriteRSTStream(st.id, code) })
	}
	h.s.held.bodies.give(unread)
	h.s.giveStream(st.size)
	_ = h.giveBack(nil, unread)
}

// end closes the connection, saying why when it is the client's fault.
func (h *h2) end(err error) {
	if code, ok := errors.AsType[http2.ConnectionError](err); ok {
		h.s.deny(h.c.origin.row(h.c.origin.protocol().String()), refuseWire(malformed("an HTTP/2 connection error: "+err.Error())))
		_ = h.write(func() error { return h.fr.WriteGoAway(h.last, http2.ErrCode(code), nil) })
	} else if !h.asked {
		h.s.silent(h.c, err)
	}
	h.mu.Lock()
	h.closed = true
	open := make([]*h2Stream, 0, len(h.streams))
	for _, st := range h.streams {
		open = append(open, st)
	}
	h.room.Broadcast()
	h.mu.Unlock()
	for _, st := range open {
		st.fail(errClientGone)
	}
	_ = h.c.Close()
	h.handlers.Wait()
}

// request2 reads a header block into a request (RFC 9113 section 8.3.1).
func request2(f *http2.MetaHeadersFrame) (*request, error) {
	req := &request{
		method:    f.PseudoValue("method"),
		target:    f.PseudoValue("path"),
		scheme:    f.PseudoValue("scheme"),
		absolute:  f.PseudoValue("authority"),
		multiplex: true,
		length:    -1,
	}
	if f.StreamEnded() {
		req.length = 0
	}
	if f.Truncated {
		return req, &wireError{status: 431, code: egress.CodeMalformed, reason: "the header block is too large"}
	}
	regular := f.RegularFields()
	req.fields = make(fields, 0, len(regular))
	for i := range regular {
		if err := req.add(regular[i].Name, regular[i].Value); err != nil {
			return req, err
		}
	}
	return req, req.check2(f)
}

// add takes one regular field.
func (req *request) add(name, value string) error {
	switch name {
	case "connection", "proxy-connection", "keep-alive", "transfer-encoding", "upgrade":
		return malformed("a connection-specific field in HTTP/2: " + name)
	case "te":
		if !strings.EqualFold(value, "trailers") {
			return malformed("TE with another value than trailers")
		}
	case "host":
		req.hosts = append(req.hosts, value)
	case "cookie":
		// Crumbs are one field again (RFC 9113 section 8.2.3).
		if i := slices.IndexFunc(req.fields, func(f field) bool { return f.name == "cookie" }); i >= 0 {
			req.fields[i].value += "; " + value
			return nil
		}
	}
	req.fields = append(req.fields, field{name, value})
	return nil
}

func (req *request) check2(f *http2.MetaHeadersFrame) error {
	if req.method == "" || !isToken(req.method) || len(req.method) > maxMethod {
		return malformed("a request without a valid :method")
	}
	if f.PseudoValue("protocol") != "" {
		return malformed("an extended CONNECT")
	}
	if len(req.hosts) > 1 || req.absolute == "" && len(req.hosts) == 0 {
		return malformed(fmt.Sprintf("no :authority and %d Host fields", len(req.hosts)))
	}
	if req.method != "CONNECT" && (req.target == "" || req.scheme == "") {
		return malformed("a request without :path or :scheme")
	}
	if req.method == "CONNECT" {
		req.scheme = ""
	}
	if expect, n := req.fields.get("expect"); n > 0 {
		if n > 1 || !strings.EqualFold(expect, "100-continue") {
			return &wireError{status: 417, code: egress.CodeMalformed, reason: "an expectation other than 100-continue"}
		}
		req.expects = true
	}
	return req.length2(f)
}

// length2 compares what is declared with what the frames say.
func (req *request) length2(f *http2.MetaHeadersFrame) error {
	value, n := req.fields.get("content-length")
	if n == 0 {
		return nil
	}
	length, err := parseLength(value)
	switch {
	case n > 1 || err != nil:
		return malformed("more than one Content-Length, or none that is a number")
	case f.StreamEnded() && length != 0:
		return malformed("a Content-Length without a body")
	}
	req.length = length
	return nil
}
