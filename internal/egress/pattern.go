package egress

import (
	"errors"
	"fmt"
	"strings"
)

// HostPattern is an exact host, or all names with one label in front of a name.
// The zero value matches nothing.
type HostPattern struct {
	host     Host
	wildcard bool
}

// ParseHostPattern reads an exact host or "*.name". The star stands for exactly
// one label, so it matches neither the name itself nor deeper names; the name
// under it needs two labels at least.
func ParseHostPattern(s string) (HostPattern, error) {
	base, wildcard := strings.CutPrefix(s, "*.")
	if strings.Contains(base, "*") {
		return HostPattern{}, fmt.Errorf("parsing host pattern %q: * may only be the whole first label of a name", clip(s))
	}
	host, err := ParseHost(base)
	if err != nil {
		return HostPattern{}, fmt.Errorf("parsing host pattern %q: %w", clip(s), err)
	}
	if _, isAddr := host.Addr(); wildcard && (isAddr || !strings.Contains(host.text, ".")) {
		return HostPattern{}, fmt.Errorf("parsing host pattern %q: %w", clip(s), errors.New("the name under * needs two labels at least"))
	}
	return HostPattern{host: host, wildcard: wildcard}, nil
}

// ExactHost matches h and nothing else.
func ExactHost(h Host) HostPattern { return HostPattern{host: h} }

// Exact returns the host of a pattern without a wildcard.
func (p HostPattern) Exact() (Host, bool) { return p.host, !p.wildcard && !p.host.IsZero() }

// Matches reports whether h is the exact host, or one label under the wildcard's name.
func (p HostPattern) Matches(h Host) bool {
	if p.host.IsZero() || h.IsZero() {
		return false
	}
	if !p.wildcard {
		return p.host == h
	}
	return parentOf(h) == p.host.text
}

// String returns the pattern as ParseHostPattern reads it.
func (p HostPattern) String() string {
	if p.wildcard {
		return "*." + p.host.text
	}
	return p.host.text
}

// MarshalText writes String.
func (p HostPattern) MarshalText() ([]byte, error) { return []byte(p.String()), nil }

// parentOf returns the name without its first label, "" for addresses and single labels.
func parentOf(h Host) string {
	if h.addr.IsValid() {
		return ""
	}
	_, parent, _ := strings.Cut(h.text, ".")
	return parent
}
