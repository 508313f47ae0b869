package canary

import (
	"fmt"
	"net/netip"
	"strings"

	"github.com/fractalboxdev/sbx/internal/egress"
	"github.com/fractalboxdev/sbx/internal/event"
	"github.com/fractalboxdev/sbx/internal/prober"
	"github.com/fractalboxdev/sbx/internal/resolver"
	"github.com/fractalboxdev/sbx/internal/verdict"
)

// evidence puts what the probe was told beside what was recorded and seen outside.
func (w *world) evidence(r prober.Report, receipt event.Receipt) verdict.Evidence {
	e := verdict.Evidence{
		Granted: w.leg(r.Granted, ""), Refused: w.leg(r.Refused, egress.CodePath), Guarded: w.leg(r.Guarded, egress.CodeAddressRefused),
		Left: w.left(r), Walls: append(walls(r), unkept(r.Walls, receipt)...), Missing: missing(r),
	}
	e.Attempts, e.Won = len(r.Attempts), won(r.Attempts)
	if w.attack && e.Attempts == 0 {
		e.Missing = append(e.Missing, "the self-attack suite did not run")
	}
	for _, a := range r.Unlisted {
		e.Unlisted = append(e.Unlisted, w.leg(a, egress.CodeHostNotGranted))
	}
	return e
}

// leg of an answer; code is the refusal that the record must have, "" for a granted request.
func (w *world) leg(a prober.Answer, code egress.Code) verdict.Leg {
	return verdict.Leg{
		Name: a.Name, TLS: a.TLS, Verified: a.Verified, Explicit: a.Explicit, Status: a.Status, Error: a.Error,
		Recorded: code != "" && w.refusal(a, code),
	}
}

// won lists the attempts that were not held.
func won(attempts []prober.Attempt) []string {
	out := []string{}
	for _, a := range attempts {
		if !a.Held {
			out = append(out, fmt.Sprintf("%s, %s: %s, not %s", a.Group, a.Name, a.Got, a.Want))
		}
	}
	return out
}

// left says what got out beside the proxy.
func (w *world) left(r prober.Report) []string {
	out := []string{}
	for _, s := range w.origin.Seen() {
		granted := s.Via == "https" && s.Text == r.Granted.Path // also asked for by the suite
		if strings.Contains(s.Text, w.nonce) && !granted {
			out = append(out, fmt.Sprintf("the origin on the host was reached over %s: %s", s.Via, s.Text))
		}
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, name := range w.asked {
		if strings.HasSuffix(name, namesBelow) || name == unlistedHost {
			out = append(out, "the host was asked for the name "+name)
		}
	}
	for _, t := range r.Names {
		if foreign := notSynthetic(t.Said); foreign != "" {
			out = append(out, fmt.Sprintf("a name was answered with %s by %s: not by the sandbox's resolver", foreign, t.Target))
		}
	}
	return out
}

func notSynthetic(said string) string {
	for text := range strings.FieldsSeq(said) {
		if a, err := netip.ParseAddr(text); err != nil || !resolver.Pool.Contains(a.Unmap()) {
			return text
		}
	}
	return ""
}

func orSuccess(err string) string {
	if err == "" {
		return "success"
	}
	return err
}

// abroad reports whether an attempt was to an address that is not the sandbox's own.
func abroad(t prober.Try) bool {
	a, err := netip.ParseAddrPort(t.Target)
	return err == nil && !a.Addr().IsLoopback()
}

// missing says which probes were not answered as a floor answers them although
// nothing got out.
func missing(r prober.Report) []string {
	out := []string{}
	for _, t := range r.Names {
		if t.Said == "" {
			out = append(out, fmt.Sprintf("no address for a name from %s: %s", t.Target, t.Error))
		}
	}
	for _, t := range r.Datagrams {
		if abroad(t) && t.Error != "EPERM" {
			out = append(out, fmt.Sprintf("a datagram to %s was answered with %s, not EPERM", t.Target, orSuccess(t.Error)))
		}
	}
	if len(r.Names) == 0 || len(r.Datagrams) == 0 || len(r.Bare) == 0 {
		out = append(out, "the probe did not try names, datagrams or bare connections")
	}
	return out
}
