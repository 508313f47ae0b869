package secret

import (
	"bytes"
	"cmp"
	"slices"
)

// Finder looks for secrets in bytes: raw, base64 at every offset, URL-encoded,
// hexadecimal, JSON- and HTML-escaped. The nil Finder finds nothing. It is
// immutable and safe for concurrent use.
type Finder struct {
	forms   [][]byte // longer ones first
	longest int
}

// NewFinder returns a Finder for values; unset ones are left out.
func NewFinder(values ...Value) *Finder {
	texts := make([]string, 0, len(values))
	for _, v := range values {
		texts = append(texts, v.Reveal())
	}
	return finderOf(texts)
}

// NewTextFinder looks for a text that is no secret, as a placeholder, in the same forms.
func NewTextFinder(texts ...string) *Finder { return finderOf(texts) }

func finderOf(texts []string) *Finder {
	f := &Finder{}
	for _, text := range texts {
		if text == "" {
			continue
		}
		for _, form := range forms(text) {
			f.forms = append(f.forms, []byte(form))
			f.longest = max(f.longest, len(form))
		}
	}
	slices.SortStableFunc(f.forms, func(a, b []byte) int { return cmp.Compare(len(b), len(a)) })
	f.forms = slices.CompactFunc(f.forms, bytes.Equal)
	return f
}

// Empty reports whether there is nothing to look for.
func (f *Finder) Empty() bool { return f == nil || len(f.forms) == 0 }

// Find returns where the first form in b begins and ends, or -1.
func (f *Finder) Find(b []byte) (start, end int) {
	start, end = -1, -1
	if f.Empty() {
		return start, end
	}
	for _, form := range f.forms {
		within := b
		if start >= 0 { // only what begins earlier counts
			within = b[:min(len(b), start+len(form)-1)]
		}
		if i := bytes.Index(within, form); i >= 0 {
			start, end = i, i+len(form)
		}
	}
	return start, end
}

// Has reports whether b holds a secret in any form.
func (f *Finder) Has(b []byte) bool {
	if f.Empty() {
		return false
	}
	return slices.ContainsFunc(f.forms, func(form []byte) bool { return bytes.Contains(b, form) })
}

// HasText is Has for a string.
func (f *Finder) HasText(s string) bool { return !f.Empty() && f.Has([]byte(s)) }

// Open returns how many bytes at the end of b may be the beginning of a form that
// what follows completes.
func (f *Finder) Open(b []byte) int {
	if f.Empty() {
		return 0
	}
	for n := min(len(b), f.longest-1); n > 0; n-- {
		tail := b[len(b)-n:]
		if slices.ContainsFunc(f.forms, func(form []byte) bool { return len(form) > n && bytes.HasPrefix(form, tail) }) {
			return n
		}
	}
	return 0
}

// Search looks through a stream that comes in pieces. The zero Search finds nothing.
type Search struct {
	finder *Finder
	tail   []byte
}

// NewSearch returns a Search at the beginning of a stream.
func NewSearch(f *Finder) *Search { return &Search{finder: f} }

// Next looks at the next piece. found reports a form that ends in it; open is how
// many of the last bytes of the stream may be the beginning of one.
func (s *Search) Next(piece []byte) (open int, found bool) {
	if s.finder.Empty() {
		return 0, false
	}
	joined := piece
	if len(s.tail) > 0 {
		joined = append(s.tail, piece...)
	}
	if s.finder.Has(joined) {
		return 0, true
	}
	open = s.finder.Open(joined)
	s.tail = append(s.tail[:0:0], joined[len(joined)-open:]...)
	return open, false
}
