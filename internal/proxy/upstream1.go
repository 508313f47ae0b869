package proxy

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net"
	"strconv"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fractalboxdev/sbx/internal/trap"
)

// upConn is one HTTP/1 connection to an upstream. It writes the client's own
// target and header spelling, which net/http would change.
type upConn struct {
	pool      *pool
	key       poolKey
	raw       net.Conn
	nc        net.Conn // raw, or TLS over it
	br        *bufio.Reader
	batch     *bufio.Reader
	poll      syscall.Conn // nil when raw has no descriptor
	address   string
	idleSince time.Time
	once      sync.Once
	// unsentBody: a body was announced that did not go up whole; the next request
	// would be taken for the rest. Read only after the upload's end.
	unsentBody bool
}

// kill closes the connection at once, whatever is under way on it.
func (c *upConn) kill() {
	c.once.Do(func() {
		_ = c.raw.Close()
		c.pool.unregister(c.raw)
	})
}

// alive reports whether an idle connection has neither ended nor said anything: an
// answer that came too early would be taken for that to the next request.
func (c *upConn) alive() bool {
	if c.br.Buffered() > 0 || c.batch != nil && c.batch.Buffered() > 0 || !c.drained() {
		return false
	}
	if c.poll == nil {
		return true
	}
	rc, err := c.poll.SyscallConn()
	if err != nil {
		return false
	}
	quiet := false
	err = rc.Read(func(fd uintptr) bool {
		var b [1]byte
		_, _, rerr := unix.Recvfrom(int(fd), b[:], unix.MSG_PEEK|unix.MSG_DONTWAIT)
		quiet = errors.Is(rerr, unix.EAGAIN)
		return true
	})
	return err == nil && quiet
}

// drained reports whether nothing that was decrypted, or read to be, waits inside of
// the TLS connection. A read whose time is up long ago gives out just that.
func (c *upConn) drained() bool {
	if c.nc == c.raw {
		return true
	}
	if c.raw.SetReadDeadline(time.Unix(1, 0)) != nil {
		return false
	}
	var one [1]byte
	n, err := c.nc.Read(one[:])
	return n == 0 && isTimeout(err) && c.raw.SetReadDeadline(time.Time{}) == nil
}

var heads = sync.Pool{New: func() any { b := make([]byte, 0, 2048); return &b }}

// appendHead writes the request's head.
func (o *outgoing) appendHead(b []byte) []byte {
	b = append(append(append(append(b, o.method...), ' '), o.target...), " HTTP/1.1\r\n"...)
	for i := range o.fields {
		b = appendField(b, o.fields[i].name, o.fields[i].value)
	}
	switch {
	case o.length > 0 || o.declares:
		b = appendField(b, "Content-Length", strconv.FormatInt(o.length, 10))
	case o.length < 0:
		b = appendField(b, "Transfer-Encoding", "chunked")
	}
	if o.socket {
		b = append(b, "Connection: Upgrade\r\nUpgrade: websocket\r\n"...)
	}
	if o.expects {
		b = append(b, "Expect: 100-continue\r\n"...)
	}
	return append(b, "\r\n"...)
}

// roundTrip sends the request and reads the head of the final response.
func (c *upConn) roundTrip(ctx context.Context, o *outgoing) (*response, error) {
	stop := context.AfterFunc(ctx, c.kill)
	up, err := c.send(o)
	var resp *response
	if err == nil {
		resp, err = c.readHead(o, up)
	}
	up.settle()
	if err != nil {
		stop()
		c.kill()
		up.end(o)
		return nil, err
	}
	reusable := resp.close == nil
	resp.close = func(reuse bool) {
		stopped := stop()
		done := up.finished()
		if reuse && reusable && stopped && done && !c.unsentBody && resp.status != 101 {
			c.pool.put(c)
			return
		}
		c.kill()
		up.end(o)
		c.recycle()
	}
	return resp, nil
}

// recycle gives back what nobody reads from any more.
func (c *upConn) recycle() {
	if c.batch != nil {
		putReader(c.batch)
		c.batch = nil
	}
}

// send writes the head, and the body with it when it is here already. A streamed
// body goes up while the response is awaited.
func (c *upConn) send(o *outgoing) (*upload, error) {
	buf := heads.Get().(*[]byte)
	defer heads.Put(buf)
	b := append(o.appendHead((*buf)[:0]), o.body...)
	n, err := c.nc.Write(b)
	if cap(b) <= 64<<10 {
		*buf = b
	}
	if n > 0 {
		o.sends++
		if o.left != nil {
			o.left()
		}
	}
	if err != nil {
		return nil, unanswered{err, n > 0}
	}
	if o.stream == nil {
		return nil, nil
	}
	up := &upload{done: make(chan struct{}), c: c, o: o}
	if o.expects {
		up.timer = time.AfterFunc(continueWait, up.begin)
	} else {
		up.begin()
	}
	return up, nil
}

// continueWait is how long a server that was asked for a 100 is waited for before
// the body is sent regardless; many servers never send one (RFC 9110 section 10.1.1).
const continueWait = time.Second

// upload is a request body on its way; nil means that it is all sent.
type upload struct {
	c     *upConn
	o     *outgoing
	done  chan struct{} // closed when nobody reads the client's body any more
	timer *time.Timer

	mu      sync.Mutex
	settled bool // begun, or not to begin any more
}

// begin starts the upload, once, unless the answer is already here.
func (u *upload) begin() {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.settled {
		return
	}
	u.settled, u.o.begun = true, true
	if u.o.expects && u.o.proceed() != nil {
		u.c.kill()
		close(u.done)
		return
	}
	go func() {
		defer close(u.done)
		good := false
		fault := trap.Call(func() error { good = u.copy(u.c, u.o); return nil })
		if fault != nil || !good {
			u.c.kill()
		}
	}()
}

// settle keeps an upload that has not begun from beginning: the final answer came
// first, and from now on somebody else writes to the client.
func (u *upload) settle() {
	if u == nil {
		return
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	if !u.settled {
		u.settled = true
		u.c.unsentBody = true
		close(u.done)
	}
	if u.timer != nil {
		u.timer.Stop()
	}
}

// copy reports whether the upstream connection is still good: a server that
// answers early may close for reading, but a body that fails on our side must not
// look complete.
func (u *upload) copy(c *upConn, o *outgoing) bool {
	buf := copyBuffers.Get().(*[]byte)
	defer copyBuffers.Put(buf)
	const room = 18 // for the size line and the end of a chunk
	b := (*buf)[room : len(*buf)-2]
	for {
		n, err := o.stream.Read(b)
		if n > 0 {
			if _, werr := c.nc.Write(frame(*buf, room, n, o.length < 0)); werr != nil {
				c.unsentBody = true
				return true // what the server said, if anything, is the better error
			}
		}
		switch {
		case errors.Is(err, io.EOF):
			if o.length < 0 {
				_, _ = c.nc.Write([]byte("0\r\n\r\n"))
			}
			o.uploaded()
			return true
		case err != nil:
			return false
		}
	}
}

// frame puts the chunk framing around buf[at:at+n].
func frame(buf []byte, at, n int, chunked bool) []byte {
	if !chunked {
		return buf[at : at+n]
	}
	var line [20]byte
	size := append(strconv.AppendInt(line[:0], int64(n), 16), "\r\n"...)
	start := at - len(size)
	copy(buf[start:], size)
	copy(buf[at+n:], "\r\n")
	return buf[start : at+n+2]
}

// finished reports whether the whole body went up and nobody reads it any more.
func (u *upload) finished() bool {
	if u == nil {
		return true
	}
	select {
	case <-u.done:
		return true
	default:
	}
	// The answer may overtake the end of an upload that has nothing left to read.
	if _, err := u.o.stream.state(); !errors.Is(err, io.EOF) {
		return false
	}
	select {
	case <-u.done:
		return true
	case <-time.After(writeGrace):
		return false
	}
}

// writeGrace is how long the last bytes of an upload may take when the response
// is already complete.
const writeGrace = 100 * time.Millisecond

// end stops an upload and waits for it, so that nobody else reads the client.
func (u *upload) end(o *outgoing) {
	if u == nil || u.finished() {
		return
	}
	o.interrupt()
	<-u.done
}

const maxInterim = 64

// readHead reads response heads until a final one. 1xx responses are dropped:
// only 100 means something, for an upload that waits for it, and hints are optional (RFC 9110 section 15.2).
func (c *upConn) readHead(o *outgoing, up *upload) (*response, error) {
	if _, err := c.br.Peek(1); err != nil {
		return nil, unanswered{unexpected(err), true}
	}
	for range maxInterim {
		h, err := readHead(c.br, responseLimits, true)
		if err != nil {
			return nil, unexpected(err)
		}
		status, minor, reason, err := parseStatusLine(h.line)
		if err != nil {
			return nil, err
		}
		if status >= 200 || status == 101 {
			return c.response(o, h, status, minor, reason)
		}
		if status == 100 && up != nil {
			up.begin()
		}
	}
	return nil, malformed("too many interim responses")
}

func (c *upConn) response(o *outgoing, h head, status, minor int, reason string) (*response, error) {
	resp := &response{status: status, reason: reason, fields: h.fields, address: c.address, conn: c}
	if status == 101 {
		if protocol, _ := h.fields.get("Upgrade"); !o.socket || !listHas(protocol, "websocket") {
			return nil, malformed("an upgrade that nobody asked for")
		}
		return resp, nil
	}
	length, err := responseFraming(h.fields, status, o.method)
	if err != nil {
		return nil, err
	}
	resp.bodyless = o.method == "HEAD" || status == 204 || status == 304
	body := newBody(c.br, length)
	resp.body, resp.trailer = body, body.trailer
	resp.length = max(length, -1)
	resp.waits = func() bool { return c.br.Buffered() == 0 }
	if length == untilClose || minor == 0 || h.fields.hasToken("Connection", "close") {
		resp.close = func(bool) {} // marks the connection as not reusable
	}
	return resp, nil
}
