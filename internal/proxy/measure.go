package proxy

import (
	"errors"
	"fmt"
	"io"
	"iter"
	"sync"

	"github.com/fractalboxdev/sbx/internal/coding"
	"github.com/fractalboxdev/sbx/internal/egress"
)

// measured is a request body that is decoded on its way, because its cap holds for what
// the origin makes of it as well. It gives out a piece when its decoder has asked for
// the next, so that all of it was counted, and the end when that fits.
type measured struct {
	src  io.Reader
	note func(over error) // where limits are soft: told what is wrong, and the body goes on
	raw  bool             // from here on as it comes

	mu     sync.Mutex // of everything below
	resume func() (struct{}, bool)
	stop   func()
	piece  []byte // what the decoder has not taken yet
	ended  bool   // no piece follows
	done   bool   // nothing will be decoded any more
	fate   error  // why not; nil for the regular end
	left   int64
}

func newMeasured(src io.Reader, codings []string, limit int64, note func(error)) (*measured, error) {
	m := &measured{src: src, left: limit, note: note}
	hungry := &demand{m: m}
	decoder := coding.New(codings, hungry)
	if decoder == nil {
		return nil, coding.Unknown(codings)
	}
	m.resume, m.stop = iter.Pull(func(yield func(struct{}) bool) {
		hungry.yield = yield
		m.fate = m.decode(decoder)
		m.done = true
	})
	return m, nil
}

// decode counts until the coded data ends, or says what is wrong with it.
func (m *measured) decode(d coding.Decoder) (err error) {
	defer func() {
		if fault := recover(); fault != nil { // this may run outside of what survives faults
			err = fmt.Errorf("%w: %v", coding.ErrCoding, fault)
		}
	}()
	buf := copyBuffers.Get().(*[]byte)
	defer copyBuffers.Put(buf)
	for {
		n, _, err := d.Decode(*buf)
		m.left -= int64(n)
		switch {
		case m.left < 0:
			return errOverCap
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return fmt.Errorf("%w: %w", coding.ErrCoding, err)
		}
	}
}

// Read passes on what fits.
func (m *measured) Read(p []byte) (int, error) {
	n, err := m.src.Read(p)
	if m.raw || err != nil && !errors.Is(err, io.EOF) {
		return n, err
	}
	over := m.count(p[:n], err != nil)
	switch {
	case over == nil:
	case m.note == nil:
		return 0, over
	default:
		m.note(over)
		m.raw = true
	}
	return n, err
}

// count lets the decoder have a piece, and tells it of the end.
func (m *measured) count(piece []byte, ended bool) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.piece = piece
	if !m.done && len(piece) > 0 {
		m.resume()
	}
	if m.ended = ended; ended && !m.done {
		m.resume()
	}
	switch {
	case m.fate != nil:
		return m.fate
	case len(m.piece) > 0:
		return fmt.Errorf("%w: something follows it", coding.ErrCoding)
	}
	return nil
}

// close ends the decoder of a body that nobody reads any more.
func (m *measured) close() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.stop()
	if !m.done {
		m.done, m.fate = true, errClientGone
	}
}

// demand is what the decoder reads, as a coding.Source: pieces, each asked for when
// the last one is used up.
type demand struct {
	m     *measured
	yield func(struct{}) bool
	last  [2]byte // what was read last, for Unread
	again int     // of last, to be read again
}

// More waits for another piece.
func (d *demand) More() bool {
	for len(d.m.piece) == 0 && d.again == 0 {
		if d.m.ended || !d.yield(struct{}{}) {
			return false
		}
	}
	return true
}

// Read gives out what there is of a piece.
func (d *demand) Read(p []byte) (int, error) {
	if !d.More() {
		return 0, io.EOF
	}
	if d.again > 0 {
		n := copy(p, d.last[len(d.last)-d.again:])
		d.again -= n
		return n, nil
	}
	n := copy(p, d.m.piece)
	d.m.piece = d.m.piece[n:]
	for _, c := range p[max(0, n-len(d.last)):n] {
		d.last = [2]byte{d.last[1], c}
	}
	return n, nil
}

// ReadByte is Read for decoders that would buffer otherwise.
func (d *demand) ReadByte() (byte, error) {
	var one [1]byte
	_, err := d.Read(one[:])
	return one[0], err
}

// Unread gives back the last n bytes, at most as many as are kept.
func (d *demand) Unread(n int) { d.again += n }

// measure makes the cap of a streamed body hold for what it is decoded, too.
func (x *exchange) measure(h *hop, codings []string, limit int64, note func(error)) (io.Reader, *refusal) {
	if !coding.Grows(codings) {
		return x.req.body, nil
	}
	m, err := newMeasured(x.req.body, codings, limit, note)
	if err != nil {
		return nil, refuse(egress.CodeBodyEncoding, egress.Describe(h.ask)+": "+err.Error())
	}
	memory := coding.Memory(codings)
	if !x.s.held.bodies.take(memory) {
		return nil, refuseWire(x.s.errTooMuch())
	}
	x.reserved += memory
	x.measured = m
	return m, nil
}
