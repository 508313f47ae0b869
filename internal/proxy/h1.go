package proxy

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/fractalboxdev/sbx/internal/egress"
	"github.com/fractalboxdev/sbx/internal/event"
)

// request is one request from inside, HTTP/1 and HTTP/2 alike, before anything
// about it was believed.
type request struct {
	method    string
	target    string // origin form, the client's own bytes
	absolute  string // authority of an absolute-form target or :authority, "" when there was none
	scheme    string // of an absolute-form target or :scheme
	hosts     []string
	fields    fields
	length    int64 // 0 none, -1 unknown
	body      io.Reader
	expects   bool         // Expect: 100-continue
	upgrade   string       // the protocol asked for, lower case
	interrupt func()       // makes a blocked read of the body return; set with body
	fault     func() error // why the body is over before its end, known before it is read so far; may be nil
	multiplex bool         // HTTP/2
	old       bool         // HTTP/1.0
}

// responder sends one response to the client.
type responder interface {
	// proceed tells a client that waits to send its body.
	proceed() error
	// start sends status and fields. length is the body's, -1 when unknown.
	start(status int, reason string, fs fields, length int64) error
	// write sends a part of the body at once.
	write(p []byte) error
	// finish sends the last part of the body, may be empty, and the trailer fields.
	finish(p []byte, trailer fields) error
	// abort ends the response so that the client sees an error.
	abort()
	// watch calls gone when the client leaves while it has nothing to send.
	watch(gone func())
	// upgraded hands the connection over after a 101 response.
	upgraded() (*clientConn, bool)
}

// h1 serves HTTP/1 on one connection, one request after the other.
type h1 struct {
	s     *Server
	c     *clientConn
	bw    *bufio.Writer
	guard watcher

	req     *request
	body    *h1Body
	head    []byte
	chunked bool
	bare    bool // a response to HEAD or with a status that has no body
	started bool
	close   bool // after this response
	broken  bool // the client must see an error
	taken   bool // the connection went to a relay
	unread  bool // the client may still be sending

	interrupted bool // a read of the body was made to return
}

// h1Body is a request body that may still be on the wire.
type h1Body struct {
	messageBody
	done bool
	err  error
}

// Read remembers whether the connection stands behind the body.
func (b *h1Body) Read(p []byte) (int, error) {
	if b.err != nil {
		return 0, b.err
	}
	n, err := b.messageBody.Read(p)
	if err != nil {
		b.done, b.err = errors.Is(err, io.EOF), err
	}
	return n, err
}

var writers = sync.Pool{New: func() any { return bufio.NewWriterSize(nil, 16<<10) }}

// serveHTTP1 reads requests until the connection ends. Each is judged by itself.
func (s *Server) serveHTTP1(c *clientConn) {
	h := &h1{s: s, c: c, bw: writers.Get().(*bufio.Writer)}
	h.bw.Reset(c.Conn)
	defer func() {
		h.bw.Reset(nil)
		writers.Put(h.bw)
	}()
	for first := true; h.next(first); first = false {
	}
	if !h.taken {
		h.guard.interrupt(c)
		h.end()
	}
}

// next serves one request and reports whether another may follow.
func (h *h1) next(first bool) bool {
	h.guard.wait()
	req, err := h.read()
	if err != nil {
		h.failed(err, first)
		return false
	}
	// The deadline of an ungranted connection was for saying what it wants.
	if first {
		_ = h.c.SetReadDeadline(time.Time{})
	}
	h.prepare(req)
	size := req.size()
	if r := h.s.admitHead(size); r != nil {
		h.s.deny(h.c.origin.requestRow(req), r)
		h.refuse(r)
		return false
	}
	defer h.s.giveHead(size)
	if req.method == "CONNECT" {
		h.connect()
		return false
	}
	h.s.handle(h.c.origin, req, h)
	h.guard.stop()
	if h.interrupted {
		h.interrupted = false
		_ = h.c.SetReadDeadline(time.Time{})
	}
	if h.taken || h.broken || h.close {
		return false
	}
	return h.body == nil || h.body.done
}

// read parses one request head.
func (h *h1) read() (*request, error) {
	hd, err := readHead(h.c.br, requestLimits, false)
	if err != nil && hd.line != "" {
		method, target, _ := strings.Cut(hd.line, " ")
		return nil, &partial{&request{method: method, target: target}, err}
	}
	if err != nil {
		return nil, err
	}
	req := &request{fields: hd.fields}
	var minor int
	if req.method, req.target, minor, err = parseRequestLine(hd.line); err != nil {
		return nil, &partial{req, err}
	}
	req.old = minor == 0
	if err := req.parse(minor); err != nil {
		return nil, &partial{req, err}
	}
	return req, nil
}

// partial is a request that was understood only in part; the record shows what was.
type partial struct {
	req *request
	err error
}

func (p *partial) Error() string { return p.err.Error() }
func (p *partial) Unwrap() error { return p.err }

// parse reads what of the head says how the message goes on.
func (req *request) parse(minor int) error {
	for i := range req.fields {
		if strings.EqualFold(req.fields[i].name, "Host") {
			req.hosts = append(req.hosts, req.fields[i].value)
		}
	}
	var err error
	if req.length, err = requestFraming(req.fields, minor); err != nil {
		return err
	}
	if expect, n := req.fields.get("Expect"); n > 0 {
		if n > 1 || !strings.EqualFold(expect, "100-continue") {
			return &wireError{status: 417, code: egress.CodeMalformed, reason: "an expectation other than 100-continue"}
		}
		req.expects = minor > 0
	}
	if len(req.hosts) > 1 || len(req.hosts) == 0 && minor > 0 {
		return malformed(fmt.Sprintf("%d Host fields", len(req.hosts)))
	}
	if req.method == "CONNECT" {
		req.absolute = req.target
		return nil
	}
	if upgrade, n := req.fields.get("Upgrade"); n > 0 && req.fields.hasToken("Connection", "upgrade") {
		req.upgrade = strings.ToLower(upgrade)
	}
	return req.splitAbsolute()
}

// splitAbsolute takes scheme and authority off an absolute-form target.
func (req *request) splitAbsolute() error {
	if strings.HasPrefix(req.target, "/") || req.target == "*" {
		return nil
	}
	scheme, rest, ok := strings.Cut(req.target, "://")
	req.scheme = strings.ToLower(scheme)
	if !ok || req.scheme != "http" && req.scheme != "https" {
		return malformed("a request target of another form")
	}
	end := strings.IndexAny(rest, "/?")
	if end < 0 {
		end = len(rest)
	}
	req.absolute, req.target = rest[:end], rest[end:]
	if req.absolute == "" {
		return malformed("a request target without authority")
	}
	if !strings.HasPrefix(req.target, "/") {
		req.target = "/" + req.target
	}
	return nil
}

// prepare resets the response state and gives the request its body.
func (h *h1) prepare(req *request) {
	h.req, h.body = req, nil
	h.started, h.chunked, h.bare, h.broken = false, false, false, false
	h.close = req.old || req.fields.hasToken("Connection", "close")
	if req.length != 0 {
		h.body = &h1Body{messageBody: newBody(h.c.br, req.length)}
		req.body = h.body
		req.interrupt = func() {
			h.interrupted = true
			_ = h.c.SetReadDeadline(time.Unix(1, 0))
		}
	}
}

// failed ends a connection whose next request could not be read.
func (h *h1) failed(err error, first bool) {
	var wire *wireError
	if !errors.As(err, &wire) {
		h.hungUp(err, first)
		return
	}
	h.req, h.body, h.unread = nil, nil, true
	h.started, h.bare, h.chunked = false, false, false
	o := h.c.origin
	row := o.row(o.protocol().String())
	if p, ok := errors.AsType[*partial](err); ok {
		h.req, row = p.req, o.requestRow(p.req)
		if len(p.req.hosts) > 1 {
			wire = &wireError{status: wire.status, code: wire.code, reason: wire.reason + ": " + egress.CleanPath(strings.Join(masked(p.req.hosts), ", "))}
		}
	}
	r := refuseWire(wire)
	h.s.deny(row, r)
	h.refuse(r)
}

// hungUp handles a connection that ended or fell silent before a whole head.
func (h *h1) hungUp(err error, first bool) {
	if errors.Is(err, io.EOF) || !first {
		return // between requests; a cut head was never a request
	}
	h.s.silent(h.c, err)
	h.broken = true
}

func masked(authorities []string) []string {
	out := make([]string, len(authorities))
	for i, a := range authorities {
		out[i] = egress.MaskUserinfo(a)
	}
	return out
}

// pathOf is the path of a target that was not understood, without the userinfo of an
// absolute form.
func pathOf(target string) string {
	path, _, _ := strings.Cut(target, "?")
	if scheme, rest, ok := strings.Cut(path, "://"); ok {
		authority, after, more := strings.Cut(rest, "/")
		path = scheme + "://" + egress.MaskUserinfo(authority)
		if more {
			path += "/" + after
		}
	}
	return path
}

// connect answers CONNECT on a proxy connection and serves what comes through
// it. Inside of a tunnel or a redirected connection nobody may ask for another.
func (h *h1) connect() {
	o := h.c.origin
	host, port, err := egress.ParseAuthority(h.req.target, 0)
	row := event.Request{Protocol: "tcp", Host: host.String(), Port: port, Method: "CONNECT"}
	var r *refusal
	switch {
	case err != nil || port == 0:
		r = refuseWire(malformed(fmt.Sprintf("the CONNECT target %q is not host:port", egress.MaskUserinfo(h.req.target))))
		row.Host = egress.CleanPath(egress.MaskUserinfo(h.req.target))
	case !o.explicit:
		r = refuse(egress.CodeConnect, fmt.Sprintf("CONNECT %s on a connection to %s:%d", egress.MaskUserinfo(h.req.target), o.host, o.port))
	case h.req.length != 0:
		r = refuseWire(malformed("a CONNECT with a body"))
	case len(h.req.hosts) == 1:
		r = connectHost(h.req, host, port)
	}
	if r != nil {
		h.s.deny(row, r)
		h.refuse(r)
		return
	}
	if _, err := io.WriteString(h.c.Conn, "HTTP/1.1 200 Connection established\r\n\r\n"); err != nil {
		return
	}
	h.taken = true
	h.s.serveStream(&clientConn{Conn: h.c.Conn, br: h.c.br, origin: &origin{
		host: host, port: port, dialled: "CONNECT " + h.req.target,
	}})
}

// connectHost checks that the Host of a CONNECT, where there is one, names the target.
func connectHost(req *request, host egress.Host, port uint16) *refusal {
	h, p, err := egress.ParseAuthority(req.hosts[0], port)
	if err != nil {
		return refuseWire(malformed("the Host of a CONNECT is no authority"))
	}
	if h == host && p == port {
		return nil
	}
	r := refuse(egress.CodeAuthorityMismatch, "CONNECT target and Host differ")
	r.status, r.authorities = 421, []string{egress.CleanPath("CONNECT " + req.target), egress.CleanPath("Host " + req.hosts[0])}
	return r
}

// refuse answers with a refusal and gives up the connection.
func (h *h1) refuse(r *refusal) {
	h.close = true
	sendRefusal(h, r, r.status)
}

func (h *h1) proceed() error {
	if !h.req.expects {
		return nil
	}
	h.req.expects = false
	_, err := h.bw.WriteString("HTTP/1.1 100 Continue\r\n\r\n")
	if err != nil {
		return err
	}
	return h.bw.Flush()
}

func (h *h1) start(status int, reason string, fs fields, length int64) error {
	h.started = true
	h.bare = h.req != nil && h.req.method == "HEAD" || status == 204 || status == 304 || status == 101
	h.chunked = length < 0 && !h.bare && (h.req == nil || !h.req.old)
	// A body that the client still sends would be read as its next request.
	if length < 0 && !h.chunked && !h.bare || h.req != nil && h.req.expects || h.body != nil && !h.body.done && status >= 400 {
		h.close = true
	}
	b := append(h.head[:0], "HTTP/1.1 "...)
	b = strconv.AppendInt(b, int64(status), 10)
	b = append(append(append(b, ' '), reason...), "\r\n"...)
	for i := range fs {
		b = appendField(b, fs[i].name, fs[i].value)
	}
	switch {
	case h.chunked:
		b = appendField(b, "Transfer-Encoding", "chunked")
	case length >= 0 && !h.bare:
		if _, n := fs.get("Content-Length"); n == 0 {
			b = appendField(b, "Content-Length", strconv.FormatInt(length, 10))
		}
	}
	if h.close && status != 101 {
		b = appendField(b, "Connection", "close")
	}
	h.head = append(b, "\r\n"...)
	_, err := h.bw.Write(h.head)
	return err
}

// write sends p, or with an empty p what was started: headers are seen before
// the first byte of a body.
func (h *h1) write(p []byte) error {
	if err := h.part(p); err != nil {
		return err
	}
	return h.bw.Flush()
}

// part buffers a part of the body.
func (h *h1) part(p []byte) error {
	if len(p) == 0 {
		return nil
	}
	if !h.chunked {
		_, err := h.bw.Write(p)
		return err
	}
	var size [20]byte
	if _, err := h.bw.Write(append(strconv.AppendInt(size[:0], int64(len(p)), 16), "\r\n"...)); err != nil {
		return err
	}
	if _, err := h.bw.Write(p); err != nil {
		return err
	}
	_, err := h.bw.WriteString("\r\n")
	return err
}

func (h *h1) finish(p []byte, trailer fields) error {
	if err := h.part(p); err != nil {
		return err
	}
	if h.chunked {
		b := append(h.head[:0], "0\r\n"...)
		for i := range trailer {
			b = appendField(b, trailer[i].name, trailer[i].value)
		}
		h.head = append(b, "\r\n"...)
		if _, err := h.bw.Write(h.head); err != nil {
			return err
		}
	}
	return h.bw.Flush()
}

// closing makes a refusal the last word on a connection, so that clients stop.
func (h *h1) closing() { h.close = true }

func (h *h1) abort() { h.broken, h.close = true, true }

func (h *h1) watch(gone func()) {
	if h.body == nil || h.body.done {
		h.guard.start(h.c.br, gone)
	}
}

func (h *h1) upgraded() (*clientConn, bool) {
	h.guard.interrupt(h.c)
	h.taken = true
	return h.c, h.bw.Flush() == nil
}

// end closes the connection: with an error for a broken response, else in a way
// that does not destroy what the client has not read yet.
func (h *h1) end() {
	if h.broken {
		reset(rawConn(h.c))
		return
	}
	if h.started && (h.unread || h.body != nil && !h.body.done || h.c.br.Buffered() > 0) {
		h.linger()
	}
}

// linger reads on for a moment after a final response: closing with unread data
// would reset the connection under the response (RFC 9112 section 9.6).
func (h *h1) linger() {
	if t, ok := h.c.Conn.(interface{ CloseWrite() error }); ok {
		_ = t.CloseWrite()
	}
	_ = h.c.SetReadDeadline(time.Now().Add(h.s.cfg.Limits.Linger))
	const enough = 1 << 20
	_, _ = io.CopyN(io.Discard, h.c.br, enough)
}

// rawConn returns the TCP connection under TLS and read-ahead.
func rawConn(c *clientConn) net.Conn {
	for {
		switch inner := c.Conn.(type) {
		case *clientConn:
			c = inner
		case interface{ NetConn() net.Conn }:
			next, ok := inner.NetConn().(*clientConn)
			if !ok {
				return inner.NetConn()
			}
			c = next
		default:
			return c.Conn
		}
	}
}

// watchDelay is how long a request may take before its client is watched. Most
// are answered sooner and never pay for it.
const watchDelay = 200 * time.Millisecond

// watcher notices that a client left while its request is answered, by waiting
// for the next request's first byte.
type watcher struct {
	mu     sync.Mutex
	timer  *time.Timer
	armed  *watch // the watch that may begin
	begun  *watch // the watch that reads
	client *bufio.Reader
}

type watch struct {
	gone func()
	done chan struct{}
}

// start begins to watch after watchDelay, unless stopped before.
func (w *watcher) start(br *bufio.Reader, gone func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.client = br
	me := &watch{gone: gone, done: make(chan struct{})}
	w.armed = me
	w.timer = time.AfterFunc(watchDelay, func() { w.run(me) })
}

func (w *watcher) run(me *watch) {
	w.mu.Lock()
	if w.armed != me {
		w.mu.Unlock()
		return
	}
	w.armed, w.begun = nil, me
	w.mu.Unlock()
	defer close(me.done)
	if _, err := w.client.Peek(1); err != nil {
		me.gone()
	}
}

// stop keeps a watch that has not begun from beginning.
func (w *watcher) stop() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.armed != nil {
		w.timer.Stop()
		w.armed = nil
	}
}

// wait returns when nobody else reads from the connection.
func (w *watcher) wait() {
	w.stop()
	w.mu.Lock()
	begun := w.begun
	w.begun = nil
	w.mu.Unlock()
	if begun != nil {
		<-begun.done
	}
}

// interrupt ends a watch that has begun.
func (w *watcher) interrupt(c net.Conn) {
	w.stop()
	w.mu.Lock()
	begun := w.begun
	w.mu.Unlock()
	if begun == nil {
		return
	}
	_ = c.SetReadDeadline(time.Unix(1, 0))
	w.wait()
	_ = c.SetReadDeadline(time.Time{})
}
