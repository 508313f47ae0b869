package proxy

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/fractalboxdev/sbx/internal/coding"
	"github.com/fractalboxdev/sbx/internal/egress"
	"github.com/fractalboxdev/sbx/internal/secret"
)

// Errors of responses from credentialed hosts. None of them shows the secret.
var (
	errEchoed     = errors.New("the response holds the secret")
	errUnsearched = errors.New("the response cannot be searched for the secret")
)

// guard makes sure that no response of a credentialed host hands the secret to the
// command, also one to a request that was sent without it: the head is searched
// now, body and trailer as they come.
func (x *exchange) guard(ctx context.Context, h *hop, resp *response) *refusal {
	sl := x.guarded(h)
	if sl == nil || sl.Value.IsZero() {
		return nil
	}
	for i := range resp.fields {
		if sl.value.HasText(resp.fields[i].name) || sl.value.HasText(resp.fields[i].value) {
			return x.echoed(h, "the header "+egress.CleanPath(sl.clean(resp.fields[i].name)))
		}
	}
	if sl.value.HasText(resp.reason) {
		return x.echoed(h, "the reason phrase")
	}
	if resp.body == nil || resp.bodyless || resp.length == 0 {
		return nil
	}
	body, err := newSearched(resp.body, sl.value, codings(resp.fields), resp.trailer)
	if err != nil {
		return x.unsafe(h, err)
	}
	return x.admitSearched(ctx, h, resp, body)
}

// admitSearched counts what a searched response holds until it is closed. It waits for
// others to end, for a while: clients ask for many at once.
func (x *exchange) admitSearched(ctx context.Context, h *hop, resp *response, body *searched) *refusal {
	room, limits := &x.s.held.responses, &x.s.cfg.Limits
	need := body.needs()
	if !room.take(need) {
		waiting, cancel := context.WithTimeout(ctx, limits.SearchWait)
		defer cancel()
		if !room.wait(waiting, need) {
			return x.s.refuseNoRoom(h)
		}
	}
	body.room, body.charged = room, need
	resp.body = body
	end := resp.close
	resp.close = func(reuse bool) {
		end(reuse)
		room.give(body.charged)
	}
	return nil
}

// unsafe is the denial that an error of a searched body means.
func (x *exchange) unsafe(h *hop, err error) *refusal {
	if errors.Is(err, errEchoed) {
		return x.echoed(h, "the body or trailer")
	}
	r := refuse(egress.CodeSecretEchoed, egress.Describe(h.ask)+": "+err.Error())
	r.rule = h.rule.ID
	return r
}

// clean hides a field name that is the secret itself.
func (sl *slot) clean(name string) string {
	if sl.value.HasText(name) {
		return secret.Masked
	}
	return name
}

func (x *exchange) echoed(h *hop, where string) *refusal {
	r := refuse(egress.CodeSecretEchoed, fmt.Sprintf("%s: %s of the response holds the secret %s", egress.Describe(h.ask), where, x.guarded(h).Secret))
	r.rule = h.rule.ID
	return r
}

// codings returns the content codings of a message, the last applied last.
func codings(fs fields) []string {
	var out []string
	for i := range fs {
		if strings.EqualFold(fs[i].name, "Content-Encoding") {
			out = append(out, coding.Parse(fs[i].value)...)
		}
	}
	return out
}

// searched is a response body that releases only bytes which were searched, as
// they came and decoded. What may be the beginning of the secret is held back
// until more shows that it is not.
type searched struct {
	feed
	src     io.Reader
	trailer func() fields
	finder  *secret.Finder
	raw     *secret.Search
	plain   *secret.Search // nil where there is no coding
	decoder coding.Decoder // reads through feed
	memory  int64          // what decoder may hold
	out     []byte         // decoded bytes are only looked at here
	room    *room          // charged is taken from it; nil: nothing is counted
	charged int64

	rawOpen int   // of the last bytes of held
	safe    int   // of the first bytes of held: decoded and searched
	before  int   // taken as it was one piece earlier
	err     error // what ended src
	done    bool  // everything that will be searched was
	began   bool  // there was a byte
}

func newSearched(src io.Reader, f *secret.Finder, codings []string, trailer func() fields) (*searched, error) {
	b := &searched{src: src, trailer: trailer, finder: f, raw: secret.NewSearch(f)}
	b.fetch = b.fetchSearched
	if len(codings) == 0 {
		return b, nil
	}
	b.plain, b.memory = secret.NewSearch(f), coding.Memory(codings)+decodedPiece
	if b.decoder = coding.New(codings, &b.feed); b.decoder == nil {
		return nil, fmt.Errorf("%w: its coding is %s", errUnsearched, egress.CleanPath(strings.Join(codings, ",")))
	}
	return b, nil
}

// needs is what the body takes before anything of it is known: its decoder and one
// piece.
func (b *searched) needs() int64 { return b.memory + copySize }

// count charges for what is held beyond the first piece. It does not wait: who holds
// much already would keep the others from ending.
func (b *searched) count(held int) error {
	more := b.memory + int64(held) - b.charged
	if b.room == nil || more <= 0 {
		return nil
	}
	if !b.room.take(more) {
		return errNoRoom
	}
	b.charged += more
	return nil
}

// Read gives away what is searched. It never returns bytes together with an error
// other than the end, and none at all once the secret was seen.
func (b *searched) Read(p []byte) (int, error) {
	for {
		if n := b.releasable(); n > 0 {
			n = copy(p, b.held[:n])
			b.drop(n)
			if b.done && len(b.held) == 0 && errors.Is(b.err, io.EOF) {
				return n, io.EOF
			}
			return n, nil
		}
		if b.done {
			return 0, b.err
		}
		if err := b.advance(); err != nil {
			b.held, b.done, b.err = nil, true, err
		}
	}
}

// releasable is how many of the held bytes the client may have.
func (b *searched) releasable() int {
	switch {
	case b.done:
		return len(b.held)
	case b.decoder == nil:
		return len(b.held) - b.rawOpen
	}
	return min(b.safe, len(b.held)-b.rawOpen)
}

func (b *searched) drop(n int) {
	b.feed.drop(n)
	b.safe = max(b.safe-n, 0)
	b.before = max(b.before-n, 0)
}

// advance searches some more.
func (b *searched) advance() error {
	if b.decoder == nil {
		if err := b.fetch(); err != nil || b.err != nil && errors.Is(b.err, io.EOF) {
			return b.ended(b.err)
		}
		return nil
	}
	if b.out == nil {
		b.out = make([]byte, decodedPiece) // only now: it may have waited for room
	}
	n, clean, err := b.decoder.Decode(b.out)
	open, found := b.plain.Next(b.out[:n])
	switch {
	case found:
		return errEchoed
	case b.err != nil && !errors.Is(b.err, io.EOF):
		return b.err // the bound was reached, or the transport failed: what was not searched is dropped
	case errors.Is(err, io.EOF), errors.Is(b.err, io.EOF) && !b.began:
		return b.rest()
	case err != nil:
		return fmt.Errorf("%w: %w", errUnsearched, err)
	}
	b.decoded(clean && open == 0, open == 0)
	if len(b.held) > maxHeld {
		return fmt.Errorf("%w: more than %d bytes wait for their decoding", errUnsearched, maxHeld)
	}
	return nil
}

// decoded notes how far the held bytes are searched. Unless the decoder is clean,
// what it has taken says a little more than it has given out; what it had taken
// one piece earlier does not.
func (b *searched) decoded(all, most bool) {
	switch {
	case all:
		b.safe = b.taken
	case most:
		b.safe = max(b.safe, b.before)
	}
	b.before = b.taken
}

// rest searches what follows the end of the coded data.
func (b *searched) rest() error {
	for {
		if err := b.fetch(); err != nil {
			return b.ended(err)
		}
		if len(b.held) > maxHeld {
			return fmt.Errorf("%w: more than %d bytes follow its end", errUnsearched, maxHeld)
		}
	}
}

// ended is nil at the regular end of a body and its trailer.
func (b *searched) ended(err error) error {
	if !errors.Is(err, io.EOF) {
		return err
	}
	for _, f := range b.trailer() {
		if b.finder.HasText(f.name) || b.finder.HasText(f.value) {
			return errEchoed
		}
	}
	b.done, b.err = true, io.EOF
	return nil
}

// fetchSearched reads a piece and searches it as it is. An error that comes with data
// does not save the data from being searched.
func (b *searched) fetchSearched() error {
	buf := copyBuffers.Get().(*[]byte)
	defer copyBuffers.Put(buf)
	for b.err == nil {
		var n int
		n, b.err = b.src.Read(*buf)
		open, found := b.raw.Next((*buf)[:n])
		if found {
			b.err = errEchoed
			return errEchoed
		}
		if err := b.count(len(b.held) + n); err != nil {
			b.err = err
			return err
		}
		if n > 0 {
			b.held, b.rawOpen, b.began = append(b.held, (*buf)[:n]...), open, true
			return nil // the error, if any, is there the next time
		}
	}
	return b.err
}

const (
	// maxHeld bounds what may wait for its decoding, in bytes. Decoders give out
	// what they have after at most a window of 32 KiB or a block of 128 KiB.
	maxHeld = 4 << 20
	// decodedPiece is larger than what any decoder gives out at once.
	decodedPiece = 160 << 10
)

var errHeld = errors.New("more than 4 MiB wait for their decoding")

// feed is what a decoder reads, as a coding.Source: bytes that are held until they may
// go on.
type feed struct {
	held  []byte       // read, not yet given away
	taken int          // of the first bytes of held: read by the decoder
	fetch func() error // adds to held, or says why it cannot
}

// Read gives the decoder what is held and not yet taken.
func (f *feed) Read(p []byte) (int, error) {
	for f.taken == len(f.held) {
		if len(f.held) > maxHeld {
			return 0, errHeld
		}
		if err := f.fetch(); err != nil {
			return 0, err
		}
	}
	n := copy(p, f.held[f.taken:])
	f.taken += n
	return n, nil
}

// ReadByte is Read for decoders that would buffer otherwise.
func (f *feed) ReadByte() (byte, error) {
	var one [1]byte
	_, err := f.Read(one[:])
	return one[0], err
}

// More waits until there is more to read, or the end.
func (f *feed) More() bool { return f.taken < len(f.held) || f.fetch() == nil }

// Unread gives back the last n bytes.
func (f *feed) Unread(n int) { f.taken -= n }

// drop forgets the first n bytes, which were given away.
func (f *feed) drop(n int) {
	f.held = f.held[n:]
	f.taken -= n
	if len(f.held) == 0 {
		f.held = nil
	}
}
