package prober

import (
	"context"
	"net/netip"
	"strings"
	"sync"
)

// Attempt is one way out or up that was tried.
type Attempt struct {
	Group string `json:"group"`
	Name  string `json:"name"`
	Want  string `json:"want"` // what a whole sandbox answers; alternatives are separated by |
	Got   string `json:"got"`  // name of an errno, statuses of HTTP, or what was achieved
	Held  bool   `json:"held"`
}

// attempt is a way out before it is tried.
type attempt struct {
	name string
	want string
	try  func(*attacker) string
}

// attacker knows what the attempts need to know of their sandbox.
type attacker struct {
	Plan
	ctx context.Context //nolint:containedctx // lives as long as one suite
}

// groups of attempts, each tried one after the other beside all other groups.
func groups() map[string][]attempt {
	return map[string][]attempt{
		"authority":   authorityAttempts(),
		"path":        pathAttempts(),
		"framing":     framingAttempts(),
		"names":       nameAttempts(),
		"network":     networkAttempts(),
		"sockets":     socketAttempts(),
		"kernel":      kernelAttempts(),
		"terminal":    terminalAttempts(),
		"process":     processAttempts(),
		"files":       fileAttempts(),
		"descriptors": descriptorAttempts(),
	}
}

// Attack tries the whole suite and takes as long as its slowest group.
func Attack(ctx context.Context, p Plan) []Attempt {
	var all []Attempt
	var mu sync.Mutex
	var tasks sync.WaitGroup
	for group, attempts := range groups() { //nolint:contextcheck // the attacker has it
		tasks.Go(func() {
			for _, a := range attempts {
				done := a.run(&attacker{p, ctx})
				done.Group = group
				mu.Lock()
				all = append(all, done)
				mu.Unlock()
			}
		})
	}
	tasks.Wait()
	return all
}

func (a attempt) run(by *attacker) Attempt {
	got := a.try(by)
	return Attempt{Name: a.name, Want: a.want, Got: got, Held: matches(a.want, got)}
}

// matches reports whether got is one of the alternatives. Statuses of several
// answers on one connection are separated by commas; each must be one.
func matches(want, got string) bool {
	for part := range strings.SplitSeq(got, ",") {
		known := false
		for alternative := range strings.SplitSeq(want, "|") {
			known = known || part == alternative
		}
		if !known {
			return false
		}
	}
	return true
}

// said is the errno's name, or "success".
func said(err error) string {
	if err == nil {
		return "success"
	}
	return nameOf(err)
}

// address of one of the canary's hosts inside.
func (a *attacker) address(host string) (netip.Addr, error) {
	addrs, err := resolve(a.ctx, host)
	if err != nil {
		return netip.Addr{}, err
	}
	return addrs[0], nil
}
