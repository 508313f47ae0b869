package proxy

import (
	"bytes"
	"errors"
	"io"
	"strconv"
	"strings"
	"sync"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

var errFlow = errors.New("the client sends more than its flow control window")

// h2Stream is one request and its response on an HTTP/2 connection. Windows and
// flags are guarded by the connection's lock.
type h2Stream struct {
	h    *h2
	id   uint32
	req  *request
	body *pipe

	size                  int64 // of the request's head
	send, recv, owed      int64 // windows, and what is to be given back
	declared, got         int64 // request body; declared is -1 when unknown
	localDone, remoteDone bool
	failed                bool
	gone                  func()

	length int64 // of the response body; -1 unknown
	wrote  int64
}

func newStream(h *h2, id uint32, req *request) *h2Stream {
	st := &h2Stream{h: h, id: id, req: req, size: req.size(), send: h.initial, recv: streamWindow, declared: req.length}
	st.body = newPipe(func(n int) {
		h.s.held.bodies.give(int64(n))
		_ = h.giveBack(st, int64(n))
	})
	if req.length != 0 {
		req.body = st.body
		req.interrupt = func() { st.body.close(errClientGone) }
		req.fault = st.body.fault
	}
	return st
}

// receive takes a DATA frame of n bytes, padding included, and returns how many of
// them wait for a handler.
func (st *h2Stream) receive(p []byte, n int64, ended bool) (kept int64, err error) {
	st.h.mu.Lock()
	defer st.h.mu.Unlock()
	st.recv -= n
	st.got += int64(len(p))
	switch {
	case st.remoteDone:
		return 0, malformed("data after the end of a stream")
	case st.recv < 0:
		return 0, errFlow
	case st.declared >= 0 && (st.got > st.declared || ended && st.got != st.declared):
		return 0, malformed("a body of another length than declared")
	}
	if !st.h.s.held.bodies.take(int64(len(p))) {
		return 0, st.h.s.errTooMuch()
	}
	st.remoteDone = ended
	if st.body.put(p) {
		kept = int64(len(p))
	} else {
		st.h.s.held.bodies.give(int64(len(p)))
	}
	if ended {
		st.body.close(io.EOF)
	}
	return kept, nil
}

// fail ends a stream from the client's side.
func (st *h2Stream) fail(err error) {
	st.h.mu.Lock()
	st.failed = true
	gone := st.gone
	st.h.room.Broadcast()
	st.h.mu.Unlock()
	st.body.close(err)
	if gone != nil {
		gone()
	}
}

func (st *h2Stream) watch(gone func()) {
	st.h.mu.Lock()
	st.gone = gone
	failed := st.failed || st.h.closed
	st.h.mu.Unlock()
	if failed {
		gone()
	}
}

func (st *h2Stream) proceed() error {
	if !st.req.expects {
		return nil
	}
	st.req.expects = false
	return st.h.write(func() error { return st.headers(false, ":status", "100", nil) })
}

func (st *h2Stream) start(status int, _ string, fs fields, length int64) error {
	st.length = length
	end := st.req.method == "HEAD" || status == 204 || status == 304 || length == 0
	if _, n := fs.get("Content-Length"); n == 0 && length > 0 && !end {
		fs = append(fs, field{"content-length", strconv.FormatInt(length, 10)})
	}
	st.h.wmu.Lock()
	defer st.h.wmu.Unlock()
	if err := st.headers(end, ":status", strconv.Itoa(status), fs); err != nil {
		return err
	}
	if end {
		st.done()
		return st.h.bw.Flush()
	}
	return nil
}

// headers writes a header block in as many frames as it needs; the caller holds wmu.
func (st *h2Stream) headers(end bool, pseudo, value string, fs fields) error {
	h := st.h
	h.ebuf.Reset()
	var err error
	if pseudo != "" {
		err = h.enc.WriteField(hpack.HeaderField{Name: pseudo, Value: value})
	}
	for i := range fs {
		err = errors.Join(err, h.enc.WriteField(hpack.HeaderField{Name: strings.ToLower(fs[i].name), Value: fs[i].value}))
	}
	if err != nil {
		return err
	}
	const part = 16 << 10
	first := h.ebuf.Next(part)
	err = h.fr.WriteHeaders(http2.HeadersFrameParam{StreamID: st.id, BlockFragment: first, EndStream: end, EndHeaders: h.ebuf.Len() == 0})
	for err == nil && h.ebuf.Len() > 0 {
		more := h.ebuf.Next(part)
		err = h.fr.WriteContinuation(st.id, h.ebuf.Len() == 0, more)
	}
	return err
}

func (st *h2Stream) done() {
	st.h.mu.Lock()
	st.localDone = true
	st.h.mu.Unlock()
}

// write sends p within the windows; an empty p shows the client what was started.
func (st *h2Stream) write(p []byte) error {
	if len(p) == 0 {
		return st.h.write(func() error { return nil })
	}
	return st.sendData(p, false)
}

// sendData sends p in frames, the last of which may end the stream.
func (st *h2Stream) sendData(p []byte, end bool) error {
	for len(p) > 0 {
		n, err := st.reserve(len(p))
		if err != nil {
			return err
		}
		last := n == len(p)
		if err := st.frame(p[:n], end && last, last); err != nil {
			return err
		}
		p = p[n:]
	}
	return nil
}

func (st *h2Stream) frame(p []byte, end, flush bool) error {
	st.h.wmu.Lock()
	defer st.h.wmu.Unlock()
	if err := st.h.fr.WriteData(st.id, end, p); err != nil {
		return err
	}
	st.wrote += int64(len(p))
	if end {
		st.done()
	}
	if !flush {
		return nil
	}
	return st.h.bw.Flush()
}

// reserve waits for room in both windows and takes some of it.
func (st *h2Stream) reserve(want int) (int, error) {
	h := st.h
	h.mu.Lock()
	defer h.mu.Unlock()
	for !st.failed && !h.closed {
		n := min(int64(want), st.send, h.send, int64(h.frame))
		if n > 0 {
			st.send -= n
			h.send -= n
			return int(n), nil
		}
		h.mu.Unlock()
		// What is buffered may be what the client waits for before it makes room.
		err := h.write(func() error { return nil })
		h.mu.Lock()
		if err != nil {
			return 0, err
		}
		if !st.failed && !h.closed && (st.send <= 0 || h.send <= 0) {
			h.room.Wait()
		}
	}
	return 0, errClientGone
}

func (st *h2Stream) finish(p []byte, trailer fields) error {
	st.h.mu.Lock()
	done := st.localDone
	st.h.mu.Unlock()
	if done {
		return nil
	}
	if st.length >= 0 && st.wrote+int64(len(p)) != st.length {
		return errors.New("a response of another length than announced")
	}
	if err := st.sendData(p, len(trailer) == 0); err != nil {
		return err
	}
	switch {
	case len(trailer) > 0:
		if err := st.h.write(func() error { return st.headers(true, "", "", trailer) }); err != nil {
			return err
		}
		st.done()
	case len(p) == 0:
		return st.frame(nil, true, true)
	}
	return nil
}

// abort leaves the stream unfinished; the connection resets it when the handler ends.
func (*h2Stream) abort() {}

func (*h2Stream) upgraded() (*clientConn, bool) { return nil, false }

// pipe carries a request body from the frame reader to its handler. The windows
// bound what it holds.
type pipe struct {
	mu   sync.Mutex
	cond sync.Cond
	buf  bytes.Buffer
	err  error
	took func(n int) // a handler has read n bytes
}

func newPipe(took func(int)) *pipe {
	p := &pipe{took: took}
	p.cond.L = &p.mu
	return p
}

// put reports whether anybody will read b.
func (p *pipe) put(b []byte) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.err != nil {
		return false
	}
	p.buf.Write(b)
	p.cond.Signal()
	return true
}

// close ends the pipe: io.EOF after what it holds, other errors at once.
func (p *pipe) close(err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.err == nil {
		p.err = err
	}
	p.cond.Signal()
}

// fault returns what closed the pipe, nil for the end of the body.
func (p *pipe) fault() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if errors.Is(p.err, io.EOF) {
		return nil
	}
	return p.err
}

// drop throws away what nobody will read and returns how much it was.
func (p *pipe) drop() int64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.err == nil {
		p.err = io.ErrClosedPipe
	}
	n := int64(p.buf.Len())
	p.buf = bytes.Buffer{}
	return n
}

// Read waits for bytes and makes room for as many new ones.
func (p *pipe) Read(b []byte) (int, error) {
	p.mu.Lock()
	for p.buf.Len() == 0 && p.err == nil {
		p.cond.Wait()
	}
	if p.buf.Len() == 0 || p.err != nil && !errors.Is(p.err, io.EOF) {
		err := p.err
		p.mu.Unlock()
		return 0, err
	}
	n, _ := p.buf.Read(b)
	p.mu.Unlock()
	p.took(n)
	return n, nil
}
