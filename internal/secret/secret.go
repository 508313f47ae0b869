// Package secret has values that never print and finds them in bytes, in the
// forms in which programs write them.
package secret

import (
	"errors"
	"fmt"
)

// Masked stands wherever a secret would have been shown.
const Masked = "[secret]"

// Bounds of a value, in bytes. A shorter one cannot be told from ordinary text.
const (
	MinLength = 4
	MaxLength = 16 << 10
)

// Errors of Parse. None of them shows any of the value.
var (
	ErrControl = errors.New("the value has a control character")
	ErrNewline = errors.New("the value ends in a newline, which is not trimmed")
	ErrShort   = fmt.Errorf("the value is shorter than %d bytes", MinLength)
	ErrLong    = fmt.Errorf("the value is longer than %d bytes", MaxLength)
)

// Value is a secret. Every way of printing or encoding it gives Masked. The zero
// Value is unset.
type Value struct {
	text *string // fmt prints a pointer inside an unexported field as an address
}

// Parse returns the value of a text. An empty text is the zero Value; control
// characters, a newline at the end included, are refused and never trimmed.
func Parse(text string) (Value, error) {
	switch {
	case text == "":
		return Value{}, nil
	case text[len(text)-1] == '\n':
		return Value{}, ErrNewline
	case len(text) < MinLength:
		return Value{}, ErrShort
	case len(text) > MaxLength:
		return Value{}, ErrLong
	}
	for i := range len(text) {
		if text[i] < ' ' || text[i] == 0x7f {
			return Value{}, ErrControl
		}
	}
	return Value{&text}, nil
}

// IsZero reports whether there is no value.
func (v Value) IsZero() bool { return v.text == nil }

// Reveal returns the secret itself, for the one place that sends it.
func (v Value) Reveal() string {
	if v.text == nil {
		return ""
	}
	return *v.text
}

// String returns Masked.
func (Value) String() string { return Masked }

// GoString returns Masked.
func (Value) GoString() string { return Masked }

// Format writes Masked for every verb.
func (Value) Format(f fmt.State, _ rune) { _, _ = f.Write([]byte(Masked)) }

// MarshalText writes Masked.
func (Value) MarshalText() ([]byte, error) { return []byte(Masked), nil }

// MarshalJSON writes Masked.
func (Value) MarshalJSON() ([]byte, error) { return []byte(`"` + Masked + `"`), nil }
