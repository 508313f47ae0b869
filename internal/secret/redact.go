package secret

import (
	"bytes"
	"fmt"
	"io"
)

// Redactor replaces secrets by Masked. The nil Redactor changes nothing. It is
// immutable and safe for concurrent use.
type Redactor struct{ finder *Finder }

// NewRedactor returns a Redactor for values; unset ones are left out.
func NewRedactor(values ...Value) *Redactor { return &Redactor{NewFinder(values...)} }

// Bytes returns b itself when there is nothing to mask, else a masked copy.
func (r *Redactor) Bytes(b []byte) []byte {
	if r == nil || !r.finder.Has(b) {
		return b
	}
	var out []byte
	for {
		start, end := r.finder.Find(b)
		if start < 0 {
			return append(out, b...)
		}
		out = append(append(out, b[:start]...), Masked...)
		b = b[end:]
	}
}

// Text is Bytes for a string.
func (r *Redactor) Text(s string) string {
	if r == nil || !r.finder.HasText(s) {
		return s
	}
	return string(r.Bytes([]byte(s)))
}

// Texts masks every element of a list, in a copy.
func (r *Redactor) Texts(list []string) []string {
	if r == nil || list == nil {
		return list
	}
	out := make([]string, len(list))
	for i, s := range list {
		out[i] = r.Text(s)
	}
	return out
}

// JSON masks inside of the string values of a JSON text, so that it stays one:
// keys, numbers and words are left alone.
func (r *Redactor) JSON(text []byte) []byte {
	if r == nil || !r.finder.Has(text) {
		return text
	}
	out := make([]byte, 0, len(text))
	for len(text) > 0 {
		start := bytes.IndexByte(text, '"')
		if start < 0 {
			break
		}
		end := start + 1 + stringEnd(text[start+1:])
		content := text[start+1 : end]
		rest := text[min(end+1, len(text)):]
		if !bytes.HasPrefix(bytes.TrimLeft(rest, " \t\r\n"), []byte(":")) {
			content = r.Bytes(content)
		}
		out = append(append(out, text[:start+1]...), content...)
		out = append(out, text[end:min(end+1, len(text))]...)
		text = rest
	}
	return append(out, text...)
}

// stringEnd is where a JSON string ends whose inside begins at b.
func stringEnd(b []byte) int {
	for i := 0; i < len(b); i++ {
		switch b[i] {
		case '\\':
			i++
		case '"':
			return i
		}
	}
	return len(b)
}

// Writer masks what is written through it, also a secret that is split across
// writes: the end of a piece that may begin one waits for the next piece, or for
// Close, which does not close the writer below.
func (r *Redactor) Writer(to io.Writer) io.WriteCloser {
	w := &writer{to: to, r: r}
	if r == nil {
		w.r = &Redactor{}
	}
	return w
}

// writer is not safe for concurrent use.
type writer struct {
	to   io.Writer
	r    *Redactor
	held []byte
}

// Write passes on what cannot be the beginning of a secret.
func (w *writer) Write(p []byte) (int, error) {
	if w.r.finder.Empty() {
		n, err := w.to.Write(p)
		if err != nil {
			err = fmt.Errorf("writing masked output: %w", err)
		}
		return n, err
	}
	all := append(w.held, p...)
	all = w.r.Bytes(all)
	open := w.r.finder.Open(all)
	ready := all[:len(all)-open]
	w.held = append([]byte(nil), all[len(ready):]...)
	if len(ready) == 0 {
		return len(p), nil
	}
	if _, err := w.to.Write(ready); err != nil {
		return 0, fmt.Errorf("writing masked output: %w", err)
	}
	return len(p), nil
}

// Close writes what was held back: nothing completes it any more.
func (w *writer) Close() error {
	held := w.held
	w.held = nil
	if len(held) == 0 {
		return nil
	}
	if _, err := w.to.Write(held); err != nil {
		return fmt.Errorf("writing masked output: %w", err)
	}
	return nil
}
