package proxy

import (
	"bufio"
	"errors"
	"io"
	"sync"
)

const copySize = 64 << 10

var copyBuffers = sync.Pool{New: func() any { b := make([]byte, copySize); return &b }}

// messageBody is the body of one HTTP/1 message on a connection. After io.EOF
// the connection stands at the next message.
type messageBody interface {
	io.Reader
	// trailer holds the fields after a chunked body, once Read returned io.EOF.
	trailer() fields
}

// newBody returns the reader for a length as the framing functions give it.
func newBody(br *bufio.Reader, length int64) messageBody {
	switch {
	case length == untilClose:
		return &closedBody{br: br}
	case length < 0:
		return &chunkedBody{br: br}
	}
	return &fixedBody{br: br, left: length}
}

// fixedBody has a declared length; ending early is an error.
type fixedBody struct {
	br   *bufio.Reader
	left int64
}

func (b *fixedBody) Read(p []byte) (int, error) {
	if b.left == 0 {
		return 0, io.EOF
	}
	if int64(len(p)) > b.left {
		p = p[:b.left]
	}
	n, err := b.br.Read(p)
	b.left -= int64(n)
	switch {
	case b.left == 0:
		err = io.EOF
	case errors.Is(err, io.EOF):
		err = io.ErrUnexpectedEOF
	}
	return n, err
}

func (*fixedBody) trailer() fields { return nil }

// closedBody ends with the connection.
type closedBody struct{ br *bufio.Reader }

func (b *closedBody) Read(p []byte) (int, error) { return b.br.Read(p) }

func (*closedBody) trailer() fields { return nil }

const (
	maxChunkLine   = 1 << 10  // size and extensions of one chunk, bytes
	maxExtensions  = 64 << 10 // extensions of a whole body, bytes
	maxChunkDigits = 15       // fits an int64
)

// chunkedBody decodes Transfer-Encoding: chunked strictly: CRLF only, hex digits
// without blanks or sign, bounded extensions and trailers.
type chunkedBody struct {
	br         *bufio.Reader
	left       int64 // of the current chunk
	started    bool
	extensions int
	after      fields
	err        error
}

func (b *chunkedBody) trailer() fields { return b.after }

func (b *chunkedBody) Read(p []byte) (int, error) {
	if b.err == nil && b.left == 0 {
		b.err = b.next()
	}
	if b.err != nil {
		return 0, b.err
	}
	if int64(len(p)) > b.left {
		p = p[:b.left]
	}
	n, err := b.br.Read(p)
	b.left -= int64(n)
	if errors.Is(err, io.EOF) {
		err = io.ErrUnexpectedEOF
	}
	b.err = err
	// The end is reported with the last bytes when it is already here, so that
	// a relay can tell "all" from "more to come" without another wait.
	if b.err == nil && b.left == 0 && b.endBuffered() {
		b.err = b.next()
	}
	return n, b.err
}

// endBuffered reports whether the line ending and the last chunk are in the buffer.
func (b *chunkedBody) endBuffered() bool {
	if b.br.Buffered() < 7 {
		return false
	}
	p, err := b.br.Peek(7)
	return err == nil && string(p) == "\r\n0\r\n\r\n"
}

// next reads the end of the last chunk and the size of the next one; the last
// chunk and its trailers are io.EOF.
func (b *chunkedBody) next() error {
	if b.started {
		if err := b.crlf(); err != nil {
			return err
		}
	}
	b.started = true
	size, err := b.size()
	if err != nil {
		return err
	}
	if size > 0 {
		b.left = size
		return nil
	}
	h, err := readHead(b.br, trailerLimits, false)
	if err != nil {
		return unexpected(err)
	}
	b.after = h.fields
	return io.EOF
}

func (b *chunkedBody) crlf() error {
	for _, want := range []byte("\r\n") {
		c, err := b.br.ReadByte()
		if err != nil {
			return unexpected(err)
		}
		if c != want {
			return malformed("a chunk is longer than its size says")
		}
	}
	return nil
}

// size parses "1*HEXDIG [;ext] CRLF".
func (b *chunkedBody) size() (int64, error) {
	var n int64
	for i := 0; ; i++ {
		c, err := b.br.ReadByte()
		if err != nil {
			return 0, unexpected(err)
		}
		v := unhex(c)
		switch {
		case v >= 0 && i < maxChunkDigits:
			n = n<<4 | int64(v)
		case i > 0 && (c == ' ' || c == '\t') && b.extensions < maxExtensions:
			b.extensions++ // blanks may follow, but no more digits
			i = maxChunkDigits
		case i > 0 && c == ';':
			return n, b.extension()
		case i > 0 && c == '\r':
			if c, err = b.br.ReadByte(); err != nil || c != '\n' {
				return 0, malformed("a chunk size without CRLF")
			}
			return n, nil
		default:
			return 0, malformed("a chunk size that is no number")
		}
	}
}

// extension skips the rest of a chunk's first line.
func (b *chunkedBody) extension() error {
	for n := 0; n < maxChunkLine && b.extensions < maxExtensions; n++ {
		b.extensions++
		c, err := b.br.ReadByte()
		switch {
		case err != nil:
			return unexpected(err)
		case c == '\r':
			if c, err = b.br.ReadByte(); err != nil || c != '\n' {
				return malformed("a chunk extension without CRLF")
			}
			return nil
		case c < ' ' && c != '\t' || c == 0x7f:
			return malformed("a control character in a chunk extension")
		}
	}
	return malformed("chunk extensions that are too long")
}

func unhex(c byte) int {
	switch {
	case '0' <= c && c <= '9':
		return int(c - '0')
	case 'a' <= c && c <= 'f':
		return int(c-'a') + 10
	case 'A' <= c && c <= 'F':
		return int(c-'A') + 10
	}
	return -1
}

// unexpected turns the end of a stream inside a message into an error of its own.
func unexpected(err error) error {
	if errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}
