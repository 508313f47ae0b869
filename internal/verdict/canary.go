package verdict

import (
	"fmt"
	"strings"
)

// The answers that the table knows: a granted request's, and those of the two places
// where a request dies, the gate and the handler.
const (
	statusOK        = 200
	statusForbidden = 403
	statusGate      = 520
)

// Leg is one request from inside to a host of the canary.
type Leg struct {
	Name     string `json:"name"` // as in "https, verified"
	TLS      bool   `json:"tls"`
	Verified bool   `json:"verified"` // the client checked the certificate against the sandbox's own bundle
	Explicit bool   `json:"explicit"` // through the proxy variables, which not every program heeds
	Status   int    `json:"status"`   // 0: no answer
	Recorded bool   `json:"recorded"` // a refusal of this very request stands in the run's own record
	Error    string `json:"error,omitempty"`
}

// opened reports whether somebody answered who should not have been reached.
func (l Leg) opened() bool { return l.Status >= statusOK && l.Status < 400 }

// Evidence is what one canary run saw.
type Evidence struct {
	Unlisted []Leg    `json:"unlisted"` // to a host outside the grant that would have answered
	Granted  Leg      `json:"granted"`  // a granted path
	Refused  Leg      `json:"refused"`  // a path that no rule allows, on the granted host
	Guarded  Leg      `json:"guarded"`  // a granted name that lies at an address of the host
	Left     []string `json:"left"`     // what got out beside the proxy; one sentence each
	Walls    []string `json:"walls"`    // walls of the sandbox that were missing; one sentence each
	Missing  []string `json:"missing"`  // probes that could not be made
	Attempts int      `json:"attempts"` // of the self-attack suite
	Won      []string `json:"won"`      // attempts that achieved something, or that the sandbox did not answer as it should
}

// Judge is the canary's verdict table. Anything that got out fails, whatever else
// was seen. To pass, the verified HTTPS leg must have been refused by the gate, with
// the gate's own record of it, and the granted path must have answered.
func Judge(e Evidence) (o Outcome, diagnosis string) {
	if why := e.open(); why != "" {
		return Failed, why
	}
	if why := e.unproven(); why != "" {
		return Inconclusive, why
	}
	return Passed, "the gate refused the unlisted host over HTTPS and recorded it; the granted path answered"
}

// open says what got out, "" for nothing.
func (e Evidence) open() string {
	for _, l := range e.Unlisted {
		if l.opened() {
			return fmt.Sprintf("the unlisted host answered %d (%s): egress is open", l.Status, l.Name)
		}
	}
	if e.Refused.opened() {
		return fmt.Sprintf("a path that no rule allows answered %d on the granted host", e.Refused.Status)
	}
	if e.Guarded.opened() {
		return fmt.Sprintf("a granted name at an address of the host answered %d: the address guard is off", e.Guarded.Status)
	}
	if len(e.Left) > 0 {
		return strings.Join(e.Left, "; ")
	}
	if len(e.Walls) > 0 {
		return strings.Join(e.Walls, "; ")
	}
	if n := len(e.Won); n > 0 {
		return fmt.Sprintf("%d of %d attacks were not held: %s", n, e.Attempts, strings.Join(e.Won, "; "))
	}
	return ""
}

// unproven says why nothing can be concluded although nothing got out, "" when
// everything was seen that a pass needs.
func (e Evidence) unproven() string {
	if why := e.decisive(); why != "" {
		return why
	}
	switch {
	case e.Granted.Status != statusOK:
		return fmt.Sprintf("the granted path did not answer 200 but %s: the grant is not what was asked for", e.Granted.said())
	case e.Refused.Status != statusForbidden || !e.Refused.Recorded:
		return fmt.Sprintf("a path that no rule allows was not refused with a recorded 403 but answered with %s", e.Refused.said())
	case e.Guarded.Status != statusForbidden || !e.Guarded.Recorded:
		return fmt.Sprintf("a granted name at an address of the host was not refused with a recorded 403 but answered with %s", e.Guarded.said())
	case len(e.Missing) > 0:
		return "a probe could not be made: " + strings.Join(e.Missing, "; ")
	}
	return ""
}

// decisive looks at the HTTPS legs to the unlisted host. What reaches the gate through
// the proxy variables only does not decide: not every program heeds them.
func (e Evidence) decisive() string {
	var plain, unverified, unrecorded, answered bool
	for _, l := range e.Unlisted {
		answered = answered || l.Status != 0
		refused := l.Status == statusGate
		switch {
		case refused && l.TLS && l.Explicit:
			plain = true
		case refused && l.TLS && l.Verified:
			if l.Recorded {
				return ""
			}
			unrecorded = true
		case refused && l.TLS:
			unverified = true
		case refused:
			plain = true
		}
	}
	switch {
	case !answered:
		return "nothing answered: the probes did not reach the proxy"
	case unrecorded:
		return "the gate's answer to HTTPS has no record of its own: something else answered"
	case unverified:
		return "HTTPS reaches the proxy only when the certificate is not checked: the run's CA is not trusted inside"
	case plain:
		return "only HTTP, or what was sent to the explicit proxy, was refused by the gate: HTTPS does not reach the proxy (is the run's CA trusted inside?)"
	}
	return "the unlisted host was not refused by the gate: " + e.answers()
}

// answers lists what the legs to the unlisted host got.
func (e Evidence) answers() string {
	out := make([]string, 0, len(e.Unlisted))
	for _, l := range e.Unlisted {
		out = append(out, l.Name+": "+l.said())
	}
	return strings.Join(out, ", ")
}

func (l Leg) said() string {
	if l.Status != 0 {
		return fmt.Sprint(l.Status)
	}
	if l.Error != "" {
		return "nothing (" + l.Error + ")"
	}
	return "nothing"
}
