package coding

import (
	"bytes"
	"errors"
	"fmt"
	"io"
)

// ErrCoding is wrapped by errors about bodies whose decoded size cannot be told.
var ErrCoding = errors.New("the body's coding cannot be decoded")

// Unknown is the error for a list of codings that New has no Decoder for.
func Unknown(codings []string) error {
	return fmt.Errorf("%w: one of gzip, br, zstd and deflate is wanted, not %d codings or others", ErrCoding, len(codings))
}

// Grows reports whether decoding can make more of a body than there is. Signed chunks
// of object stores (aws-chunked) only wrap it.
func Grows(codings []string) bool {
	return len(codings) > 1 || len(codings) == 1 && codings[0] != "aws-chunked"
}

// Memory is what a Decoder for the codings may hold, in bytes: the largest window of
// the coding (RFC 1951 section 3.2.5, RFC 7932 section 9.1, RFC 9659).
func Memory(codings []string) int64 {
	switch {
	case len(codings) != 1:
	case codings[0] == "br":
		return 16 << 20
	case codings[0] == "zstd":
		return zstdWindow + 256<<10
	}
	return 64 << 10
}

const sizePiece = 160 << 10 // larger than what any decoder gives out at once

// Size returns how many bytes a body is when it is decoded. It stops when that is
// more than limit. What follows the coded data makes the body malformed.
func Size(body []byte, codings []string, limit int64) (int64, error) {
	if !Grows(codings) {
		return int64(len(body)), nil
	}
	from := &whole{bytes.NewReader(body)}
	d := New(codings, from)
	if d == nil {
		return 0, Unknown(codings)
	}
	out := make([]byte, min(sizePiece, max(limit, 0)+512))
	for size := int64(0); ; {
		n, _, err := d.Decode(out)
		size += int64(n)
		switch {
		case size > limit:
			return size, nil
		case errors.Is(err, io.EOF) && from.Len() > 0:
			return 0, fmt.Errorf("%w: something follows it", ErrCoding)
		case errors.Is(err, io.EOF):
			return size, nil
		case err != nil:
			return 0, fmt.Errorf("%w: %w", ErrCoding, cut(err))
		}
	}
}

// whole is a Source that is all there.
type whole struct{ *bytes.Reader }

// More reports whether anything is left.
func (w *whole) More() bool { return w.Len() > 0 }

// Unread gives back the last n bytes.
func (w *whole) Unread(n int) { _, _ = w.Seek(int64(-n), io.SeekCurrent) }
