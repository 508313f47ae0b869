package egress

import "strings"

// Within reports whether every host that p matches is matched by q as well.
func (p HostPattern) Within(q HostPattern) bool {
	if p.host.IsZero() || p == q {
		return true
	}
	host, exact := p.Exact()
	return exact && q.Matches(host)
}

// Overlaps reports whether some host is matched by both.
func (p HostPattern) Overlaps(q HostPattern) bool {
	if p.host.IsZero() || q.host.IsZero() {
		return false
	}
	return p.Within(q) || q.Within(p)
}

// Witness returns a host that the pattern matches: its own, or a label under the wildcard.
func (p HostPattern) Witness() Host {
	if !p.wildcard {
		return p.host
	}
	host, err := ParseHost("a." + p.host.text)
	if err != nil {
		return Host{} // the name under the star is too long for another label: it matches nothing
	}
	return host
}

// Within reports whether every path that p matches is matched by q as well. True
// is a proof. False may be wrong for patterns that match nothing at all.
func (p PathPattern) Within(q PathPattern) bool {
	switch {
	case p.text == "":
		return true
	case q.text == "", p.mayBeEncoded() && !q.encodedSlash, len(q.steps) > len(p.steps):
		return false
	}
	for i := range q.steps {
		if !p.steps[i].within(q.steps[i]) {
			return false
		}
	}
	if q.rest {
		return true
	}
	return !p.rest && len(p.steps) == len(q.steps) && p.slash == q.slash
}

// mayBeEncoded reports whether the pattern can match a path with an encoded slash.
func (p PathPattern) mayBeEncoded() bool {
	if !p.encodedSlash {
		return false
	}
	if p.rest {
		return true
	}
	for _, s := range p.steps {
		if len(s.parts) > 1 || s.parts[0].kind == stepAny {
			return true
		}
	}
	return false
}

func (s step) wholeAny() bool { return len(s.parts) == 1 && s.parts[0].kind == stepAny }

func (s step) within(t step) bool {
	if t.wholeAny() {
		return true
	}
	if s.wholeAny() || len(s.parts) != len(t.parts) {
		return false
	}
	for i := range s.parts {
		if !s.parts[i].within(t.parts[i]) {
			return false
		}
	}
	return true
}

func (p stepPart) within(q stepPart) bool {
	switch {
	case q.kind == stepAny:
		return true
	case p.kind == stepLiteral:
		return q.matches(p.text)
	}
	return p.kind == q.kind
}

// Overlaps reports whether some path may be matched by both. False is a proof.
func (p PathPattern) Overlaps(q PathPattern) bool {
	if p.text == "" || q.text == "" {
		return false
	}
	for i := range min(len(p.steps), len(q.steps)) {
		if !p.steps[i].overlaps(q.steps[i]) {
			return false
		}
	}
	switch {
	case p.rest && q.rest:
		return true
	case p.rest:
		return len(p.steps) <= len(q.steps)
	case q.rest:
		return len(q.steps) <= len(p.steps)
	}
	return len(p.steps) == len(q.steps) && p.slash == q.slash
}

func (s step) overlaps(t step) bool {
	if s.wholeAny() || t.wholeAny() {
		return true
	}
	if len(s.parts) != len(t.parts) {
		return false
	}
	for i := range s.parts {
		if !s.parts[i].within(t.parts[i]) && !t.parts[i].within(s.parts[i]) {
			return false
		}
	}
	return true
}

// witnessHex is 32 lower-case hexadecimal digits.
const witnessHex = "0123456789abcdef0123456789abcdef"

// Witness returns a path that the pattern matches, percent-encoded as a client
// would send it.
func (p PathPattern) Witness() string {
	var b strings.Builder
	for _, s := range p.steps {
		for i, part := range s.parts {
			b.WriteString([]string{"/", "%2f"}[min(i, 1)])
			b.WriteString(part.witness())
		}
	}
	switch {
	case p.rest && len(p.steps) == 0:
		return "/x"
	case p.rest:
		return b.String() + "/x"
	case p.slash:
		return b.String() + "/"
	}
	return b.String()
}

func (p stepPart) witness() string {
	switch p.kind {
	case stepAny:
		return "x"
	case stepHex32:
		return witnessHex
	case stepLiteral:
	}
	return strings.ReplaceAll(EscapeSegment(p.text), "/", "%2f")
}

// EndsOpen reports whether the last thing that the pattern says is a wildcard: a
// pattern that does not is exact, which its readers may take for a prefix.
func (p PathPattern) EndsOpen() bool {
	if p.rest || len(p.steps) == 0 {
		return true
	}
	for _, part := range p.steps[len(p.steps)-1].parts {
		if part.kind != stepLiteral {
			return true
		}
	}
	return false
}
