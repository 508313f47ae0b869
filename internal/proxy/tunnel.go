package proxy

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"sync"
	"time"

	"github.com/fractalboxdev/sbx/internal/egress"
)

// relayTunnel carries TLS that is not decrypted: host, port and server name are
// all that is policed, so the name must be there, and stay the same.
func (s *Server) relayTunnel(c *clientConn, snap *snapshot, d egress.Decision) {
	o := c.origin
	hello, err := readHello(c)
	if ended(err) {
		reset(rawConn(c)) // as when a handshake ends: nothing was asked
		return
	}
	r := checkHello(o, hello, err)
	if r != nil {
		s.deny(o.row("tcp"), r)
		reset(rawConn(c))
		return
	}
	s.relayConn(c, snap, d, o.host, hello)
}

// checkHello judges the ClientHello of a tunnel.
func checkHello(o *origin, hello *hello, err error) *refusal {
	if errors.Is(err, errDotted) {
		return refuse(egress.CodeMalformed, "a tunnel: "+err.Error())
	}
	if err != nil {
		return refuse(egress.CodeNotTLS, "a tunnel without a readable ClientHello: "+err.Error())
	}
	o.sniText = hello.name
	sni, err := egress.ParseHost(hello.name)
	switch {
	case hello.encrypted:
		return refuse(egress.CodeNotTLS, "a tunnel with an encrypted ClientHello, whose real server name cannot be seen")
	case hello.name == "":
		return refuse(egress.CodeNotTLS, "a tunnel without a server name")
	case err != nil || sni != o.host:
		r := refuse(egress.CodeAuthorityMismatch, "the tunnel's server name is another")
		r.authorities = []string{o.dialled, "server name " + egress.CleanPath(hello.name)}
		return r
	}
	return nil
}

// hello is what a ClientHello says about where it goes.
type hello struct {
	name      string
	encrypted bool // it carries an encrypted ClientHello extension
}

const (
	maxHello               = 64 << 10
	extensionECH           = 0xfe0d // draft-ietf-tls-esni
	messageClientHello     = 1
	recordHeader           = 5
	recordChangeCipherSpec = 0x14
	recordAlert            = 0x15
	recordApplicationData  = 0x17
)

// readHello parses the ClientHello at the start of a connection without
// consuming it from the relay: c reads it again.
func readHello(c *clientConn) (*hello, error) {
	if err := c.SetReadDeadline(time.Now().Add(handshakeTime)); err != nil {
		return nil, err
	}
	defer func() { _ = c.SetReadDeadline(time.Time{}) }()
	msg, raw, err := collectHello(c)
	if err != nil {
		return nil, err
	}
	if dotted(msg) {
		return nil, errDotted
	}
	parsed, err := parseHello(msg)
	if err != nil {
		return nil, err
	}
	c.br = getReader(io.MultiReader(&byteReader{raw}, c.br))
	return parsed, nil
}

// byteReader is a bytes.Reader without its other methods.
type byteReader struct{ b []byte }

func (r *byteReader) Read(p []byte) (int, error) {
	if len(r.b) == 0 {
		return 0, io.EOF
	}
	n := copy(p, r.b)
	r.b = r.b[n:]
	return n, nil
}

// collectHello reads whole records until they hold one handshake message, and
// returns the message and all bytes read.
func collectHello(r io.Reader) (msg, raw []byte, err error) {
	for len(raw) < maxHello {
		head := len(raw)
		raw = slices.Grow(raw, recordHeader)[:head+recordHeader]
		if _, err := io.ReadFull(r, raw[head:]); err != nil {
			return nil, nil, err
		}
		length := int(binary.BigEndian.Uint16(raw[head+3:]))
		if raw[head] != recordHandshake || length == 0 || length > 16<<10 {
			return nil, nil, errors.New("it does not begin with handshake records")
		}
		raw = slices.Grow(raw, length)[:head+recordHeader+length]
		if _, err := io.ReadFull(r, raw[head+recordHeader:]); err != nil {
			return nil, nil, err
		}
		msg = append(msg, raw[head+recordHeader:]...)
		if msg[0] != messageClientHello {
			return nil, nil, errors.New("the first message is no ClientHello")
		}
		if len(msg) < 4 {
			continue
		}
		switch whole := 4 + int(msg[1])<<16 + int(msg[2])<<8 + int(msg[3]); {
		case len(msg) == whole:
			return msg, raw, nil
		case len(msg) > whole: // a second one, which a server may have asked for by then
			return nil, nil, errors.New("something follows the ClientHello in its record")
		}
	}
	return nil, nil, errors.New("the ClientHello is too long")
}

var errParsed = errors.New("parsed")

// parseHello lets crypto/tls read a handshake message: the parser that decides is
// then the same one that serves intercepted connections.
func parseHello(msg []byte) (*hello, error) {
	var found *hello
	t := tls.Server(&helloConn{in: rerecord(msg)}, &tls.Config{
		MinVersion: tls.VersionTLS12,
		GetConfigForClient: func(info *tls.ClientHelloInfo) (*tls.Config, error) {
			found = &hello{name: info.ServerName, encrypted: slices.Contains(info.Extensions, extensionECH)}
			return nil, errParsed
		},
	})
	err := t.HandshakeContext(context.Background())
	if found == nil {
		return nil, fmt.Errorf("parsing a ClientHello: %w", err)
	}
	return found, nil
}

// errDotted is what crypto/tls refuses without saying why. The name is not folded as that
// of a Host is: the handshake covers its bytes.
var errDotted = errors.New("the server name ends in a dot, which RFC 6066 section 3 forbids: ask for the name without it")

// dotted reports whether the server name of a ClientHello ends in a dot. A message that
// is cut or garbled has none.
func dotted(msg []byte) bool {
	const fixed = 4 + 2 + 32 // header, version, random
	if len(msg) < fixed {
		return false
	}
	var ok bool
	b := msg[fixed:]
	for _, size := range [...]int{1, 2, 1} { // session id, cipher suites, compression methods
		if _, b, ok = vector(b, size); !ok {
			return false
		}
	}
	extensions, _, _ := vector(b, 2)
	for len(extensions) > 2 {
		kind := binary.BigEndian.Uint16(extensions)
		var data []byte
		if data, extensions, ok = vector(extensions[2:], 2); !ok {
			return false
		}
		if list, _, _ := vector(data, 2); kind == 0 && len(list) > 0 {
			name, _, _ := vector(list[1:], 2)
			return bytes.HasSuffix(name, []byte("."))
		}
	}
	return false
}

// vector cuts one, whose length has size bytes, off the front of b (RFC 8446 section 3.4).
func vector(b []byte, size int) (v, rest []byte, ok bool) {
	if len(b) < size {
		return nil, nil, false
	}
	length := 0
	for _, c := range b[:size] {
		length = length<<8 | int(c)
	}
	b = b[size:]
	if len(b) < length {
		return nil, nil, false
	}
	return b[:length], b[length:], true
}

// rerecord frames a handshake message of any length in records.
func rerecord(msg []byte) []byte {
	var out []byte
	for part := range slices.Chunk(msg, 16<<10) {
		out = binary.BigEndian.AppendUint16(append(out, recordHandshake, 3, 1), uint16(len(part))) //nolint:gosec // at most 16 KiB
		out = append(out, part...)
	}
	return out
}

// helloConn is a connection that has a ClientHello to give and drops the answer.
type helloConn struct {
	net.Conn // nil: no other method is called before the handshake fails
	in       []byte
}

func (c *helloConn) Read(p []byte) (int, error) {
	if len(c.in) == 0 {
		return 0, io.EOF
	}
	n := copy(p, c.in)
	c.in = c.in[n:]
	return n, nil
}

func (c *helloConn) Write(p []byte) (int, error) { return len(p), nil }
func (c *helloConn) Close() error                { return nil }

// helloGuard passes a client's bytes on and watches the records in front of the
// encrypted part: a second ClientHello, which a server may ask for, must name the
// same host. Whether it asked is taken from the server's own answer: in TLS 1.2 an
// encrypted record may begin like a ClientHello, and in TLS 1.3 early data may come
// before one.
type helloGuard struct {
	r      io.Reader
	name   string
	answer *serverAnswer
	out    []byte // checked, not yet passed on
	begun  bool   // the first ClientHello was seen
	again  bool   // the second one, too
	over   bool   // and what follows both
	err    error
}

// Read returns whole records until no other ClientHello can follow, then anything.
func (g *helloGuard) Read(p []byte) (int, error) {
	if len(g.out) == 0 && g.err == nil && g.free() {
		return g.r.Read(p)
	}
	if len(g.out) == 0 && g.err == nil {
		g.err = g.next()
	}
	if len(g.out) == 0 {
		return 0, g.err
	}
	n := copy(p, g.out)
	g.out = g.out[n:]
	return n, nil
}

// free reports whether the watch is over. An answer that is not known yet has not
// reached the client either, who then has nothing but a ClientHello to send.
func (g *helloGuard) free() bool {
	select {
	case <-g.answer.known:
		return g.over || !g.answer.retry
	default:
		return g.over
	}
}

// next reads and checks one record, or one ClientHello over several.
func (g *helloGuard) next() error {
	var head [recordHeader]byte
	if _, err := io.ReadFull(g.r, head[:]); err != nil {
		return err
	}
	length := int(binary.BigEndian.Uint16(head[3:]))
	switch {
	case length == 0 || length > 18<<10:
		return errors.New("a record of an impossible length in a tunnel")
	case head[0] == recordHandshake:
		return g.handshake(head[:])
	case head[0] == recordApplicationData && g.again:
		g.over = true
	case head[0] != recordApplicationData && head[0] != recordChangeCipherSpec && head[0] != recordAlert:
		return errors.New("a record of an unknown type in a tunnel")
	}
	// Early data, a ChangeCipherSpec and an alert that the server ignores (RFC 8446
	// sections 4.2.10, D.4 and 6.1) may stand before a second hello.
	body := make([]byte, recordHeader+length)
	copy(body, head[:])
	_, err := io.ReadFull(g.r, body[recordHeader:])
	g.out = body
	return unexpected(err)
}

// handshake judges a record with handshake messages. After the first ClientHello, a
// server that answered it with its own hello is in the middle of TLS 1.2.
func (g *helloGuard) handshake(head []byte) error {
	if g.begun && g.free() {
		g.out = head
		return nil
	}
	msg, raw, err := collectHello(io.MultiReader(&byteReader{head}, g.r))
	if err != nil {
		return fmt.Errorf("reading a later ClientHello: %w", unexpected(err))
	}
	h, err := parseHello(msg)
	if err != nil {
		return err
	}
	if h.encrypted || h.name != g.name {
		return fmt.Errorf("a later ClientHello of a tunnel names %q", egress.CleanPath(h.name))
	}
	g.begun, g.again, g.out = true, g.begun, raw
	return nil
}

// serverAnswer is what the server of a tunnel said to the first ClientHello.
type serverAnswer struct {
	known chan struct{} // closed when retry is set
	retry bool          // it asked for another, or cannot be read
	once  sync.Once
}

func newServerAnswer() *serverAnswer { return &serverAnswer{known: make(chan struct{})} }

func (a *serverAnswer) settle(retry bool) {
	a.once.Do(func() {
		a.retry = retry
		close(a.known)
	})
}

// retryRandom marks a ServerHello as HelloRetryRequest (RFC 8446 section 4.1.3).
var retryRandom = []byte("\xcf\x21\xad\x74\xe5\x9a\x61\x11\xbe\x1d\x8c\x02\x1e\x65\xb8\x91" +
	"\xc2\xa2\x11\x16\x7a\xbb\x8c\x5e\x07\x9e\x09\xe2\xc8\xa8\x33\x9c")

const (
	messageServerHello = 2
	randomAt           = 4 + 2 // behind the message's header and version
	maxAnswer          = 64 << 10
)

// answerReader passes a server's bytes on and reads its hello in them.
type answerReader struct {
	r      io.Reader
	answer *serverAnswer
	buf    []byte // until the answer is known
	done   bool
}

// Read looks at what it returns.
func (r *answerReader) Read(p []byte) (int, error) {
	n, err := r.r.Read(p)
	if r.done {
		return n, err
	}
	r.buf = append(r.buf, p[:n]...)
	retry, sure := readAnswer(r.buf)
	if sure || err != nil || len(r.buf) > maxAnswer {
		r.answer.settle(retry)
		r.done, r.buf = true, nil
	}
	return n, err
}

// readAnswer looks for a ServerHello at the beginning of what a server sends; alerts
// may stand before it (RFC 6066 section 3).
func readAnswer(b []byte) (retry, sure bool) {
	var msg []byte
	for len(b) > recordHeader {
		length := int(binary.BigEndian.Uint16(b[3:]))
		payload := b[recordHeader:min(recordHeader+length, len(b))]
		switch b[0] {
		case recordHandshake:
			msg = append(msg, payload...)
		case recordAlert:
		default:
			return true, true
		}
		if len(msg) > 0 && msg[0] != messageServerHello {
			return true, true
		}
		if len(msg) >= randomAt+len(retryRandom) {
			return bytes.Equal(msg[randomAt:randomAt+len(retryRandom)], retryRandom), true
		}
		if len(payload) < length {
			break
		}
		b = b[recordHeader+length:]
	}
	return true, false
}
