// Package coding undoes the content codings of HTTP messages, as they come or as a
// whole.
package coding

import (
	"compress/flate"
	"compress/gzip"
	"compress/zlib"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/andybalholm/brotli"
	"github.com/klauspost/compress/zstd"
)

// Decoder undoes a content coding.
type Decoder interface {
	// Decode returns the next piece, at the end io.EOF. clean reports that nobody could
	// decode more of what was read so far than was given out.
	Decode(out []byte) (n int, clean bool, err error)
}

// Source is what a Decoder reads, byte by byte where the coding allows it, so that
// nothing is read ahead of what was decoded.
type Source interface {
	io.Reader
	io.ByteReader
	// More waits until there is more to read, or the end.
	More() bool
	// Unread gives back the last n bytes that were read.
	Unread(n int)
}

// Parse returns the codings that a Content-Encoding names, in the order in which they
// were applied, without those that do nothing.
func Parse(value string) []string {
	var out []string
	for coding := range strings.SplitSeq(value, ",") {
		if coding = strings.ToLower(strings.Trim(coding, " \t")); coding != "" && coding != "identity" {
			out = append(out, coding)
		}
	}
	return out
}

// New returns the Decoder for a list of content codings (RFC 9110 section 8.4.1,
// RFC 7932, RFC 8878), nil when there is none.
func New(codings []string, from Source) Decoder {
	if len(codings) != 1 {
		return nil
	}
	switch codings[0] {
	case "gzip", "x-gzip":
		return &gzipDecoder{from: from}
	case "deflate":
		return &deflateDecoder{from: from}
	case "br":
		return &blockDecoder{r: brotli.NewReader(from)}
	case "zstd":
		r, err := zstd.NewReader(from, zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxWindow(zstdWindow), zstd.WithDecoderLowmem(true))
		if err == nil {
			return &blockDecoder{r: r}
		}
	}
	return nil
}

// zstdWindow is what a zstd stream may ask for, in bytes (RFC 9659).
const zstdWindow = 8 << 20

// blockDecoder is for decoders that give out all they have before they read more:
// one that does not fill the piece has nothing left.
type blockDecoder struct{ r io.Reader }

func (d *blockDecoder) Decode(out []byte) (n int, clean bool, err error) {
	n, err = d.r.Read(out)
	return n, n < len(out), err
}

// window is the history that compress/flate fills before it gives anything out,
// unless a block ends the wait: an empty stored one, which is how encoders flush,
// or the last one. Only then is it clean: a full window may end inside a match.
const window = 32 << 10

type flateCount int

func (c *flateCount) add(n int) (clean bool) {
	*c = (*c + flateCount(n)) % window
	return *c != 0
}

// gzipDecoder reads any number of members (RFC 1952 section 2.2).
type gzipDecoder struct {
	from  Source
	r     *gzip.Reader
	count flateCount
}

func (d *gzipDecoder) Decode(out []byte) (n int, clean bool, err error) {
	if d.r == nil {
		if d.r, err = gzip.NewReader(d.from); err != nil {
			return 0, false, fmt.Errorf("reading gzip: %w", err)
		}
		d.r.Multistream(false)
	}
	n, err = d.r.Read(out)
	if !errors.Is(err, io.EOF) {
		return n, d.count.add(n), err
	}
	// What follows may be another member. It is looked for only when all of this
	// one is given out, since looking waits.
	if n > 0 {
		return n, true, nil
	}
	if !d.from.More() {
		return 0, true, io.EOF
	}
	d.count = 0
	if err := d.r.Reset(d.from); err != nil {
		return 0, false, fmt.Errorf("reading the next member of gzip: %w", cut(err))
	}
	d.r.Multistream(false)
	return 0, false, nil
}

// deflateDecoder takes zlib's format, which is meant, and the raw one, which some
// servers send.
type deflateDecoder struct {
	from  Source
	r     io.Reader
	count flateCount
}

func (d *deflateDecoder) Decode(out []byte) (n int, clean bool, err error) {
	if d.r == nil {
		if err := d.open(); err != nil {
			return 0, false, fmt.Errorf("reading deflate: %w", err)
		}
	}
	n, err = d.r.Read(out)
	return n, d.count.add(n) || errors.Is(err, io.EOF), err
}

func (d *deflateDecoder) open() (err error) {
	var head [2]byte
	if _, err := io.ReadFull(d.from, head[:]); err != nil {
		return err
	}
	d.from.Unread(len(head))
	if head[0]&15 != 8 || (int(head[0])<<8|int(head[1]))%31 != 0 {
		d.r = flate.NewReader(d.from)
		return nil
	}
	d.r, err = zlib.NewReader(d.from)
	return err
}

// cut turns the end of a stream inside of something into an error of its own.
func cut(err error) error {
	if errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}
