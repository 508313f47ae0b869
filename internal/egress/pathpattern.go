package egress

import (
	"errors"
	"fmt"
	"slices"
	"strings"
)

// PathPattern matches paths on whole segments. The zero value matches nothing.
type PathPattern struct {
	text         string
	steps        []step
	slash        bool // the path has to end in a slash
	rest         bool // ends in **: whatever follows, or nothing
	encodedSlash bool
}

type stepKind uint8

const (
	stepLiteral stepKind = iota
	stepAny
	stepHex32
)

// step matches one segment: any, or part for part.
type step struct{ parts []stepPart }

type stepPart struct {
	kind stepKind
	text string // decoded, for literals
}

// ParsePathPattern reads a pattern like /acme/widget/**: literal segments
// (percent-encoding is decoded), * for one segment, {hex32} for 32 lower-case
// hexadecimal digits, and ** at the end for the rest, none included. With
// encodedSlash, %2F counts as part of its segment: "/@types%2f*" is one segment
// of two parts, and * alone matches any segment, such ones too. Without it,
// paths with %2F do not match. Other names in braces are inputs and have to be
// filled in before.
func ParsePathPattern(s string, encodedSlash bool) (PathPattern, error) {
	p := PathPattern{text: s, encodedSlash: encodedSlash}
	if err := p.parse(s); err != nil {
		return PathPattern{}, fmt.Errorf("parsing path pattern %q: %w", clip(s), err)
	}
	return p, nil
}

func (p *PathPattern) parse(s string) error {
	if err := checkTarget(s); err != nil {
		return err
	}
	if strings.Contains(s, "?") {
		return errors.New("the query has its own key")
	}
	texts := strings.Split(s[1:], "/")
	if last := len(texts) - 1; texts[last] == "" {
		texts, p.slash = texts[:last], true
	} else if texts[last] == "**" {
		texts, p.rest = texts[:last], true
	}
	for _, text := range texts {
		st, err := parseStep(text, p.encodedSlash)
		if err != nil {
			return err
		}
		p.steps = append(p.steps, st)
	}
	return nil
}

func parseStep(text string, encodedSlash bool) (step, error) {
	raws := splitEncodedSlash(text)
	if len(raws) > 1 && !encodedSlash {
		return step{}, fmt.Errorf("segment %q has an encoded slash, which needs encoded_slash = true", text)
	}
	st := step{parts: make([]stepPart, 0, len(raws))}
	for _, raw := range raws {
		part, err := parseStepPart(raw)
		if err != nil {
			return step{}, err
		}
		st.parts = append(st.parts, part)
	}
	return st, nil
}

func parseStepPart(raw string) (stepPart, error) {
	switch {
	case raw == "*":
		return stepPart{kind: stepAny}, nil
	case raw == "{hex32}":
		return stepPart{kind: stepHex32}, nil
	case strings.ContainsAny(raw, "*{}"):
		return stepPart{}, fmt.Errorf("%q: * and {name} stand for whole segments, ** for the rest at the end", raw)
	}
	parts, odd := decodeSegment(raw)
	if odd != "" {
		return stepPart{}, fmt.Errorf("segment %q could be read in two ways: %s", raw, odd)
	}
	return stepPart{text: parts[0]}, nil
}

func splitEncodedSlash(text string) []string {
	return strings.Split(strings.ReplaceAll(text, "%2F", "%2f"), "%2f")
}

// EscapeSegment writes a decoded value so that a pattern takes it literally;
// slashes stay and separate segments.
func EscapeSegment(value string) string {
	var b strings.Builder
	for i := range len(value) {
		c := value[i]
		if c <= ' ' || c == 0x7f || strings.IndexByte("%*{}?#\\", c) >= 0 {
			fmt.Fprintf(&b, "%%%02X", c)
			continue
		}
		b.WriteByte(c)
	}
	return b.String()
}

// Under returns the pattern below a base path such as "/api/npm" (percent-encoded,
// without trailing slash, taken literally).
func (p PathPattern) Under(base string) (PathPattern, error) {
	base = strings.TrimSuffix(base, "/")
	if base == "" || p.text == "" { // a rule without a path grants none below a base path either
		return p, nil
	}
	literal := strings.NewReplacer("*", "%2A", "{", "%7B", "}", "%7D").Replace(base)
	prefix, err := ParsePathPattern(literal, false)
	if err != nil {
		return PathPattern{}, fmt.Errorf("prefixing base path: %w", err)
	}
	p.text = literal + p.text
	p.steps = append(slices.Clip(prefix.steps), p.steps...)
	return p, nil
}

// String returns the pattern as it was written, base path included.
func (p PathPattern) String() string { return p.text }

// MarshalText writes String.
func (p PathPattern) MarshalText() ([]byte, error) { return []byte(p.text), nil }

// Matches compares decoded segments. It does not look at Path.Odd: Decide does.
func (p PathPattern) Matches(path Path) bool {
	if p.text == "" || path.raw == "" || path.raw[0] != '/' {
		return false
	}
	if path.encoded && !p.encodedSlash || len(path.segments) < len(p.steps) {
		return false
	}
	for i := range p.steps {
		if !p.steps[i].matches(path.segments[i]) {
			return false
		}
	}
	if p.rest {
		return true
	}
	return len(path.segments) == len(p.steps) && path.slash == p.slash
}

func (s step) matches(seg segment) bool {
	if len(s.parts) == 1 && s.parts[0].kind == stepAny {
		return true
	}
	if len(s.parts) != len(seg.parts) {
		return false
	}
	for i, part := range s.parts {
		if !part.matches(seg.parts[i]) {
			return false
		}
	}
	return true
}

func (p stepPart) matches(text string) bool {
	switch p.kind {
	case stepAny:
		return true
	case stepHex32:
		return len(text) == 32 && strings.Trim(text, "0123456789abcdef") == ""
	case stepLiteral:
		return p.text == text
	}
	return false
}
