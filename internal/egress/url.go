package egress

import (
	"errors"
	"fmt"
	"strings"
)

// ParseURL reads an absolute http or https URL as its clients would send it: the
// host after userinfo (which is dropped), the default port, and the path without
// fragment. Backslashes, spaces and control characters, which clients read
// differently, are errors. Method and BodyLength are left empty.
func ParseURL(raw string) (Request, error) {
	scheme, rest, ok := strings.Cut(raw, "://")
	protocol, err := ParseProtocol(strings.ToLower(scheme))
	if !ok || err != nil || protocol == ProtocolTCP {
		return Request{}, fmt.Errorf("parsing URL %q: %w", clip(raw), errors.New("https:// or http:// is wanted"))
	}
	rest, _, _ = strings.Cut(rest, "#")
	end := strings.IndexAny(rest, "/?\\")
	if end < 0 {
		end = len(rest)
	}
	authority, target := rest[:end], rest[end:]
	if strings.HasPrefix(target, "\\") {
		return Request{}, fmt.Errorf("parsing URL %q: %w: a backslash ends the authority", clip(raw), ErrTarget)
	}
	if at := strings.LastIndexByte(authority, '@'); at >= 0 {
		authority = authority[at+1:]
	}
	host, port, err := ParseAuthority(authority, protocol.DefaultPort())
	if err != nil {
		return Request{}, fmt.Errorf("parsing URL: %w", err)
	}
	if !strings.HasPrefix(target, "/") {
		target = "/" + target
	}
	path, query, err := ParseTarget(target)
	if err != nil {
		return Request{}, fmt.Errorf("parsing URL: %w", err)
	}
	return Request{Protocol: protocol, Host: host, Port: port, Path: path, Query: query}, nil
}
