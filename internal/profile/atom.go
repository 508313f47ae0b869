package profile

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/fractalboxdev/sbx/internal/egress"
	"github.com/fractalboxdev/sbx/internal/grant"
)

// atom is a rule for one host, protocol, port, method and path. What inputs and
// registries will stand for is not known when profiles are compared: a host of
// theirs is a symbol, and a repository a text that occurs nowhere else.
type atom struct {
	rule     Rule
	secret   grant.Credential   // zero for none
	symbol   string             // "registry:npm" or "{target}", "" for a pattern
	host     egress.HostPattern // zero for a symbol
	protocol egress.Protocol
	port     uint16 // 0 for a registry, whose endpoint says it
	method   string // "" for what is not intercepted
	path     egress.PathPattern
	pathText string // as written, inputs not filled in
}

// maxAtoms bounds a profile that is compared: the work grows with the square.
const maxAtoms = 4000

var errTooManyAtoms = errors.New("the profile is too large to be compared: it has over 4,000 combinations of host, method and path")

// unused returns a text that stands in neither profile: a digest of both, which
// nobody can write into what is digested.
func unused(a, b Profile) string {
	sum := sha256.Sum256([]byte("sbx-compare\n" + a.Digest + "\n" + b.Digest))
	return "sbx-" + hex.EncodeToString(sum[:16])
}

// atoms takes a profile apart. They are in the order in which a policy asks them.
func atoms(p Profile, unused string) ([]atom, error) {
	f := filling{values: map[string][]string{}}
	for _, in := range p.Inputs {
		f.values[in.Name] = []string{unused + "/" + in.Name}
	}
	var all []atom
	for _, rule := range p.Rules {
		more, err := atomsOf(p, rule, f)
		if err != nil {
			return nil, fmt.Errorf("taking rule %s/%s apart: %w", p.Name, rule.ID, err)
		}
		if all = append(all, more...); len(all) > maxAtoms {
			return nil, errTooManyAtoms
		}
	}
	slices.SortStableFunc(all, asked)
	return all, nil
}

// asked is the order of egress.Compile: exact hosts first, then what judges no
// body, then larger bodies.
func asked(a, b atom) int {
	order := func(x atom) [3]int64 {
		_, exact := x.host.Exact()
		late := [3]int64{0, 0, -x.rule.Permission.MaxBody}
		if x.symbol == "" && !exact {
			late[0] = 1
		}
		if x.rule.Permission.Body.Asserts() {
			late[1] = 1
		}
		return late
	}
	x, y := order(a), order(b)
	return cmp.Or(cmp.Compare(x[0], y[0]), cmp.Compare(x[1], y[1]), cmp.Compare(x[2], y[2]))
}

func atomsOf(p Profile, rule Rule, f filling) ([]atom, error) {
	base := atom{rule: rule}
	for _, c := range p.Credentials {
		if c.Name == rule.Permission.Credential {
			base.secret = c
			base.secret.Name, base.secret.Profile = "", ""
		}
	}
	hosted, err := base.withHosts()
	if err != nil {
		return nil, err
	}
	methods := rule.Permission.Methods
	if len(methods) == 0 {
		methods = []string{""}
	}
	var all []atom
	for _, a := range hosted {
		for _, a.method = range methods {
			more, err := a.withPaths(f)
			if err != nil {
				return nil, err
			}
			if all = append(all, more...); len(all) > maxAtoms {
				return nil, errTooManyAtoms
			}
		}
	}
	return all, nil
}

// withHosts returns one atom for each host, protocol and port of the rule.
func (a atom) withHosts() ([]atom, error) {
	var all []atom
	for _, text := range a.rule.Hosts {
		a.symbol, a.host = text, egress.HostPattern{}
		_, registry := ecosystemOf(text)
		if !registry && !strings.HasPrefix(text, "{") {
			host, err := egress.ParseHostPattern(text)
			if err != nil {
				return nil, err
			}
			a.symbol, a.host = "", host
		}
		for _, a.protocol = range a.rule.Protocols {
			ports := a.rule.Permission.Ports
			if len(ports) == 0 || registry {
				ports = []uint16{a.protocol.DefaultPort()}
			}
			if registry {
				ports = []uint16{0}
			}
			for _, a.port = range ports {
				all = append(all, a)
			}
		}
	}
	return all, nil
}

func (a atom) withPaths(f filling) ([]atom, error) {
	if len(a.rule.Paths) == 0 {
		return []atom{a}, nil
	}
	var all []atom
	for _, text := range a.rule.Paths {
		for _, filled := range f.fill(text) {
			path, err := egress.ParsePathPattern(filled, a.rule.Permission.EncodedSlash)
			if err != nil {
				return nil, err
			}
			a.path, a.pathText = path, text
			all = append(all, a)
		}
	}
	return all, nil
}

func (a atom) tcp() bool    { return a.protocol == egress.ProtocolTCP }
func (a atom) tunnel() bool { return a.rule.Permission.Tunnel }

// reaches reports whether every request that a is about, but for its query, body
// and how it is treated, is one that b is about.
func (a atom) reaches(b atom) bool {
	switch {
	case !a.hostWithin(b) || a.port != b.port:
		return false
	case a.tcp() || a.tunnel():
		return b.tcp() && (a.tcp() || a.tunnel()) || a.tunnel() && b.tunnel()
	case b.tcp() || b.tunnel() || a.protocol != b.protocol:
		return false
	}
	return (a.method == b.method || a.method == "HEAD" && b.method == "GET") && a.path.Within(b.path)
}

// hostWithin knows that no wildcard reaches the deny floor.
func (a atom) hostWithin(b atom) bool {
	if a.symbol != "" || b.symbol != "" {
		return a.symbol == b.symbol
	}
	if host, exact := a.host.Exact(); exact && slices.Contains(denyFloor, host) {
		return a.host == b.host
	}
	return a.host.Within(b.host)
}

// overlaps reports whether some request may be one that both are about. False is a proof.
func (a atom) overlaps(b atom) bool {
	symbolic := a.symbol != "" || b.symbol != ""
	same := a.symbol == b.symbol
	switch {
	case !symbolic && !a.host.Overlaps(b.host):
		return false
	case a.port != b.port && a.port != 0 && b.port != 0:
		return false
	case a.tcp() || a.tunnel() || b.tcp() || b.tunnel():
		return (a.tcp() || a.tunnel()) && (b.tcp() || b.tunnel())
	case a.protocol != b.protocol || !methodsOverlap(a.method, b.method):
		return false
	case symbolic && !same:
		return true // a registry's base path is not known
	}
	return a.path.Overlaps(b.path)
}

func methodsOverlap(a, b string) bool {
	return a == b || a == "HEAD" && b == "GET" || a == "GET" && b == "HEAD"
}

// allowsPlainest reports whether b is about the plainest request that a is about.
func (a atom) allowsPlainest(b atom) bool {
	plain := a
	if a.symbol == "" {
		plain.host = egress.ExactHost(a.host.Witness())
	}
	path, err := egress.ParsePathPattern(a.path.Witness(), true)
	if a.method == "" || err != nil {
		return plain.reaches(b)
	}
	plain.path = path
	return plain.reaches(b) && (b.rule.Permission.EncodedSlash || !strings.Contains(strings.ToLower(a.path.Witness()), "%2f"))
}

// target is what people would type for the requests that an atom is about.
func (a atom) target() string {
	host := a.symbol
	if host == "" {
		host = a.host.String()
	}
	if a.port != 0 && a.port != a.protocol.DefaultPort() {
		host = fmt.Sprintf("%s:%d", host, a.port)
	}
	switch {
	case a.tunnel():
		return "tunnel://" + host
	case a.symbol != "" && a.port == 0:
		return host + " " + a.protocol.String() + " " + a.pathText
	}
	return a.protocol.String() + "://" + host + a.pathText
}
