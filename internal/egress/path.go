package egress

import (
	"errors"
	"fmt"
	"strings"
	"unicode/utf8"
)

// ErrTarget is wrapped by errors about request targets that cannot be represented.
var ErrTarget = errors.New("not a valid request target")

// Path is the path of a request: the client's own bytes for sending, and its
// decoded segments for judging. The zero value matches no pattern.
type Path struct {
	raw      string
	segments []segment
	slash    bool   // ends in a slash; "/" itself has no segment
	encoded  bool   // some segment holds an encoded slash
	odd      string // why readers could disagree about the path, "" when they cannot
}

// segment is what stands between two slashes, cut at encoded slashes: "a%2fb"
// is one segment of two parts.
type segment struct {
	parts []string // decoded
}

// Query is the query of a request in the client's own bytes.
type Query struct {
	raw     string
	present bool
}

// ParseTarget reads an origin-form request target (RFC 9112 section 3.2.1), or
// "*". What cannot be represented is an error: another form, a fragment, bytes
// that may not stand in a request line. A path that other readers could
// understand differently is recorded in the Path instead, so that Decide refuses
// it unless a rule opts in.
func ParseTarget(target string) (Path, Query, error) {
	if target == "*" {
		return Path{raw: target, odd: "it is the asterisk form"}, Query{}, nil
	}
	if err := checkTarget(target); err != nil {
		shown, _, _ := strings.Cut(target, "?") // a query may hold secrets
		return Path{}, Query{}, fmt.Errorf("parsing target %q: %w: %w", clip(shown), ErrTarget, err)
	}
	raw, query, present := strings.Cut(target, "?")
	return parsePath(raw), Query{raw: query, present: present}, nil
}

func checkTarget(target string) error {
	if !strings.HasPrefix(target, "/") {
		return errors.New("it does not begin with a slash")
	}
	for i := range len(target) {
		if c := target[i]; c <= ' ' || c == 0x7f || c == '#' {
			return fmt.Errorf("byte %#02x may not stand in it", c)
		}
	}
	return nil
}

// Target returns the bytes to send.
func Target(p Path, q Query) string {
	if q.present {
		return p.raw + "?" + q.raw
	}
	return p.raw
}

// Raw returns the client's own bytes, without the query.
func (p Path) Raw() string { return p.raw }

// Odd says why readers could disagree about the path: "" when they cannot.
func (p Path) Odd() string { return p.odd }

// Raw returns the client's own bytes, without the question mark.
func (q Query) Raw() string { return q.raw }

// Present reports whether there was a question mark.
func (q Query) Present() bool { return q.present }

func parsePath(raw string) Path {
	p := Path{raw: raw, segments: make([]segment, 0, strings.Count(raw, "/"))}
	rest := raw[1:]
	for {
		text, after, more := strings.Cut(rest, "/")
		if text == "" && !more {
			p.slash = true
			return p
		}
		p.add(text)
		if !more {
			return p
		}
		rest = after
	}
}

func (p *Path) add(text string) {
	decoded, odd := decodeSegment(text)
	if len(decoded) > 1 {
		p.encoded = true
	}
	if p.odd == "" {
		p.odd = odd
	}
	p.segments = append(p.segments, segment{parts: decoded})
}

// decodeSegment decodes one raw segment and says what is odd about it.
func decodeSegment(text string) (parts []string, odd string) {
	if strings.IndexByte(text, '%') < 0 {
		return []string{text}, oddPart(text)
	}
	parts, complaint := decodeParts(text)
	for _, part := range parts {
		if complaint == "" {
			complaint = oddPart(part)
		}
	}
	return parts, complaint
}

// decodeParts decodes percent-encoding once and cuts at encoded slashes.
func decodeParts(text string) (parts []string, odd string) {
	part := make([]byte, 0, len(text))
	for i := 0; i < len(text); i++ {
		if text[i] != '%' {
			part = append(part, text[i])
			continue
		}
		c, ok := unhex(text[i:])
		switch {
		case !ok:
			odd = "it has a malformed percent-encoding"
			part = append(part, '%')
			continue
		case c == '/':
			parts, part = append(parts, string(part)), part[:0]
		default:
			part = append(part, c)
		}
		i += 2
	}
	return append(parts, string(part)), odd
}

// oddPart names what another decoder or normaliser could make of a decoded part.
func oddPart(part string) string {
	bare, _, _ := strings.Cut(part, ";") // servlet containers drop parameters before they resolve dots
	switch {
	case bare == "":
		return "it has an empty segment"
	case isDots(bare):
		return "it has a dot segment"
	case strings.ContainsAny(part, "\\／＼"):
		return "it has a backslash or a look-alike of a slash"
	case hasControl(part):
		return "it has an encoded control character"
	case decodesAgain(part):
		return "a second decoding would change it"
	case !utf8.ValidString(part):
		return "it is not valid UTF-8"
	}
	return ""
}

// isDots reports whether a part is . or .. after the compatibility mapping that
// turns full-width and leader dots into plain ones (Unicode NFKC).
func isDots(part string) bool {
	dots := 0
	for _, r := range part {
		switch r {
		case '.', '．', '․', '﹒':
			dots++
		case '‥':
			dots += 2
		case ' ':
		default:
			return false
		}
	}
	return dots == 1 || dots == 2
}

func hasControl(s string) bool {
	for i := range len(s) {
		if s[i] < ' ' || s[i] == 0x7f {
			return true
		}
	}
	return false
}

// decodesAgain reports whether a decoded text still holds a percent-encoding.
func decodesAgain(s string) bool {
	for i := strings.IndexByte(s, '%'); i >= 0; {
		if _, ok := unhex(s[i:]); ok {
			return true
		}
		next := strings.IndexByte(s[i+1:], '%')
		if next < 0 {
			return false
		}
		i += 1 + next
	}
	return false
}

// unhex reads a percent-encoded byte at the start of s.
func unhex(s string) (byte, bool) {
	if len(s) < 3 || s[0] != '%' {
		return 0, false
	}
	hi, lo := hexValue(s[1]), hexValue(s[2])
	return hi<<4 | lo, hi < 16 && lo < 16
}

func hexValue(c byte) byte {
	switch {
	case isDigit(c):
		return c - '0'
	case 'a' <= c && c <= 'f':
		return c - 'a' + 10
	case 'A' <= c && c <= 'F':
		return c - 'A' + 10
	}
	return 0xff
}

// Has reports whether the decoded key occurs exactly once and with exactly the
// decoded value. Keys that differ only in what a second decoding, or a reader
// that separates at semicolons or knows key[], would see count as occurrences.
func (q Query) Has(key, value string) bool {
	found, right := 0, false
	for rest := q.raw; rest != ""; {
		end := strings.IndexAny(rest, "&;")
		pair := rest
		if end < 0 {
			rest = ""
		} else {
			pair, rest = rest[:end], rest[end+1:]
		}
		name, val, _ := strings.Cut(pair, "=")
		if !keyMeans(name, key) {
			continue
		}
		found++
		right = equalDecoded(name, key) && equalDecoded(val, value)
	}
	return found == 1 && right
}

// KeyMeans reports whether some reader could take the raw name of a query's pair
// for the key: in another case, percent-encoded up to three times, as key[], or with
// what PHP makes an underscore of in its place.
func KeyMeans(name, key string) bool { return keyMeans(name, key) }

func keyMeans(name, key string) bool {
	nested := strings.IndexByte(key, '[') >= 0 // it never means what it says: key[] is key
	for range 3 {
		bare, _, _ := strings.Cut(name, "[")
		if strings.EqualFold(bare, key) || !nested && strings.EqualFold(foldName(name), foldName(key)) {
			return true
		}
		if strings.IndexByte(name, '%') < 0 && strings.IndexByte(name, '+') < 0 {
			return false
		}
		parts, _ := decodeParts(strings.ReplaceAll(name, "+", " "))
		name = strings.TrimSpace(strings.Join(parts, "/"))
	}
	return true // still encoded after three decodings: nobody means well
}

// foldName puts an underscore where a variable of PHP gets one: for a space, a dot, an
// opening bracket, and NUL.
func foldName(name string) string {
	if !strings.ContainsAny(name, " .[\x00") {
		return name
	}
	return strings.Map(func(c rune) rune {
		switch c {
		case ' ', '.', '[', 0:
			return '_'
		}
		return c
	}, name)
}

// equalDecoded compares a raw query component with a decoded text without allocating.
func equalDecoded(raw, want string) bool {
	for i := 0; i < len(raw); i++ {
		c := raw[i]
		if c == '+' {
			c = ' '
		} else if c == '%' {
			var ok bool
			if c, ok = unhex(raw[i:]); !ok {
				return false
			}
			i += 2
		}
		if want == "" || want[0] != c {
			return false
		}
		want = want[1:]
	}
	return want == ""
}
