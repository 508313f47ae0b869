package egress

import (
	"errors"
	"fmt"
	"net/netip"
	"strconv"
	"strings"

	"golang.org/x/net/idna"
)

// Host is a normalised host: a lower-case A-label name or an IP address. Two
// hosts are the same exactly when they compare equal. The zero value is no host.
type Host struct {
	text string
	addr netip.Addr
}

// ErrHost is wrapped by every error about a host that has no single meaning.
var ErrHost = errors.New("not a valid host")

// lookup maps names as IDNA2008 and UTS 46 want them for lookups. Length, and
// the letters of the result, are checked afterwards by checkName.
var lookup = idna.New(idna.MapForLookup(), idna.BidiRule(), idna.Transitional(false), idna.StrictDomainName(false))

// ParseHost normalises a host name, strict IPv4 address or IPv6 address with or
// without brackets. One trailing dot is dropped. What other parsers could read
// differently is an error: userinfo, NUL, empty labels, brackets round names,
// zones, and octal, hexadecimal, short or integer forms of IPv4.
func ParseHost(s string) (Host, error) {
	if strings.HasPrefix(s, "[") || strings.Contains(s, ":") {
		return parseV6(s)
	}
	name, err := canonicalName(s)
	if err != nil {
		return Host{}, fmt.Errorf("parsing host %q: %w: %w", clip(s), ErrHost, err)
	}
	if !numericEnd(name) {
		return Host{text: name}, nil
	}
	addr, err := netip.ParseAddr(name)
	if err != nil {
		return Host{}, fmt.Errorf("parsing host %q: %w: it ends like an IPv4 address but is not in dotted decimal form", clip(s), ErrHost)
	}
	return AddrHost(addr), nil
}

// AddrHost returns the host of an address; IPv4 mapped into IPv6 is unwrapped
// and a zone is dropped.
func AddrHost(addr netip.Addr) Host {
	if !addr.IsValid() {
		return Host{}
	}
	addr = addr.Unmap().WithZone("")
	return Host{text: addr.String(), addr: addr}
}

func parseV6(s string) (Host, error) {
	inner, ok := s, true
	if strings.HasPrefix(s, "[") {
		inner, ok = strings.CutSuffix(s[1:], "]")
	}
	addr, err := netip.ParseAddr(inner)
	if !ok || err != nil || !addr.Is6() || addr.Zone() != "" {
		return Host{}, fmt.Errorf("parsing host %q: %w: not an IPv6 address without zone", clip(s), ErrHost)
	}
	return AddrHost(addr), nil
}

// canonicalName returns the lower-case A-label form without its trailing dot.
func canonicalName(s string) (string, error) {
	name := s
	if !plainASCII(s) {
		var err error
		if name, err = viaIDNA(s); err != nil {
			return "", err
		}
	}
	name = strings.TrimSuffix(name, ".")
	if err := checkName(name); err != nil {
		return "", err
	}
	return name, nil
}

// viaIDNA maps a name with upper-case or non-ASCII letters or A-labels. An
// A-label that does not survive the way to Unicode and back has no one meaning.
func viaIDNA(s string) (string, error) {
	if len(s) > 1024 {
		return "", errors.New("the name is too long")
	}
	name, err := lookup.ToASCII(s)
	if err != nil {
		return "", fmt.Errorf("mapping it to ASCII: %w", err)
	}
	again, err := lookup.ToASCII(name)
	if err != nil || again != name {
		return "", errors.New("its ASCII form is not stable")
	}
	return name, nil
}

// plainASCII reports whether s needs no mapping: the usual case, without allocation.
func plainASCII(s string) bool {
	for i := range len(s) {
		c := s[i]
		if c >= 0x80 || 'A' <= c && c <= 'Z' {
			return false
		}
	}
	return !strings.HasPrefix(s, "xn--") && !strings.Contains(s, ".xn--")
}

// checkName demands letters, digits, hyphens and underscores in labels of 1 to
// 63 bytes, at most 253 bytes in all (RFC 1035 section 2.3.4).
func checkName(name string) error {
	if name == "" || len(name) > 253 {
		return errors.New("a name has 1 to 253 bytes")
	}
	start := 0
	for i := 0; i <= len(name); i++ {
		if i < len(name) && name[i] != '.' {
			continue
		}
		if err := checkLabel(name[start:i]); err != nil {
			return err
		}
		start = i + 1
	}
	return nil
}

func checkLabel(label string) error {
	if label == "" || len(label) > 63 {
		return errors.New("a label has 1 to 63 bytes")
	}
	if label[0] == '-' || label[len(label)-1] == '-' {
		return errors.New("a label neither starts nor ends with a hyphen")
	}
	for i := range len(label) {
		c := label[i]
		if c != '-' && c != '_' && !isDigit(c) && (c < 'a' || c > 'z') {
			return fmt.Errorf("%q may not stand in a name", c)
		}
	}
	return nil
}

// numericEnd reports whether the last label is a number in any base, which makes
// some parsers read the whole as an IPv4 address (WHATWG URL, "ends in a number").
func numericEnd(name string) bool {
	last := name[strings.LastIndexByte(name, '.')+1:]
	if hex, ok := strings.CutPrefix(last, "0x"); ok {
		return strings.Trim(hex, "0123456789abcdef") == ""
	}
	return strings.Trim(last, "0123456789") == ""
}

// String returns the normalised form, IPv6 without brackets.
func (h Host) String() string { return h.text }

// Addr returns the address when the host is one.
func (h Host) Addr() (netip.Addr, bool) { return h.addr, h.addr.IsValid() }

// IsZero reports whether h is no host.
func (h Host) IsZero() bool { return h.text == "" }

// InURL returns the host as it stands in a URL: IPv6 in brackets.
func (h Host) InURL() string {
	if h.addr.Is6() {
		return "[" + h.text + "]"
	}
	return h.text
}

// MarshalText writes the normalised form.
func (h Host) MarshalText() ([]byte, error) { return []byte(h.text), nil }

// UnmarshalText reads what MarshalText wrote; empty text is the zero Host.
func (h *Host) UnmarshalText(text []byte) error {
	if len(text) == 0 {
		*h = Host{}
		return nil
	}
	parsed, err := ParseHost(string(text))
	if err != nil {
		return err
	}
	*h = parsed
	return nil
}

// ParseAuthority reads host[:port] as in a Host header, :authority or CONNECT
// target. IPv6 needs brackets; userinfo, port 0, an empty port and leading zeros
// are errors.
func ParseAuthority(s string, defaultPort uint16) (Host, uint16, error) {
	hostText, portText, hasPort, err := splitAuthority(s)
	if err != nil {
		return Host{}, 0, fmt.Errorf("parsing authority %q: %w: %w", clip(MaskUserinfo(s)), ErrHost, err)
	}
	host, err := ParseHost(hostText)
	if err != nil {
		return Host{}, 0, fmt.Errorf("parsing authority: %w", err)
	}
	if !hasPort {
		return host, defaultPort, nil
	}
	port, err := parsePort(portText)
	if err != nil {
		return Host{}, 0, fmt.Errorf("parsing authority %q: %w: %w", clip(MaskUserinfo(s)), ErrHost, err)
	}
	return host, port, nil
}

func splitAuthority(s string) (host, port string, hasPort bool, err error) {
	if strings.Contains(s, "@") {
		return "", "", false, errors.New("userinfo is not allowed")
	}
	if strings.HasPrefix(s, "[") {
		end := strings.IndexByte(s, ']')
		if end < 0 {
			return "", "", false, errors.New("the bracket is not closed")
		}
		host, rest := s[:end+1], s[end+1:]
		if rest == "" {
			return host, "", false, nil
		}
		port, hasPort = strings.CutPrefix(rest, ":")
		if !hasPort {
			return "", "", false, errors.New("only a port may follow the bracket")
		}
		return host, port, true, nil
	}
	host, port, hasPort = strings.Cut(s, ":")
	if strings.Contains(port, ":") {
		return "", "", false, errors.New("an IPv6 address needs brackets")
	}
	return host, port, hasPort, nil
}

func parsePort(s string) (uint16, error) {
	if s == "" || s[0] == '0' || strings.Trim(s, "0123456789") != "" {
		return 0, errors.New("a port is a number from 1 to 65535 without leading zeros")
	}
	port, err := strconv.ParseUint(s, 10, 16)
	if err != nil {
		return 0, errors.New("a port is a number from 1 to 65535")
	}
	return uint16(port), nil
}

func isDigit(c byte) bool { return '0' <= c && c <= '9' }

// MaskUserinfo hides what stands before the last @ of an authority, for records.
func MaskUserinfo(authority string) string {
	at := strings.LastIndexByte(authority, '@')
	if at < 0 {
		return authority
	}
	return "***" + authority[at:]
}

// clip bounds what an error repeats of hostile input.
func clip(s string) string {
	if len(s) > 128 {
		return s[:128] + "…"
	}
	return s
}
