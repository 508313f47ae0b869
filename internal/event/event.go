// Package event has the records of a run: what was asked, what was denied and
// what the fence did. Values only; writing them is the artifact package's work.
package event

import "time"

// Source is the place where something was denied.
type Source string

// The sources of denials.
const (
	SourceGate    Source = "gate"
	SourceHandler Source = "handler"
	SourceDNS     Source = "dns"
	SourceNet     Source = "net"
)

// Request is one row of requests.jsonl: exactly one per request, denied or not,
// written before any byte leaves.
type Request struct {
	Time           time.Time `json:"time"`
	Run            string    `json:"run"`
	ID             uint64    `json:"id"` // unique within the run
	Source         Source    `json:"source,omitempty"`
	Protocol       string    `json:"protocol"` // https, http, tcp, udp, icmp, dns
	Host           string    `json:"host"`
	Port           uint16    `json:"port,omitempty"`
	Method         string    `json:"method,omitempty"`
	Path           string    `json:"path,omitempty"` // without query, at most 512 bytes, control characters escaped
	Verdict        string    `json:"verdict"`        // allow, deny
	Code           string    `json:"code"`
	Rule           string    `json:"rule,omitempty"` // the rule that allowed, or came nearest
	Reason         string    `json:"reason,omitempty"`
	WouldDeny      bool      `json:"would_deny,omitempty"`
	Position       string    `json:"position,omitempty"`   // report or legacy; left out under enforce
	Credential     string    `json:"credential,omitempty"` // name of the secret that is sent with it
	RedirectedFrom string    `json:"redirected_from,omitempty"`
	Process        string    `json:"process,omitempty"`
	Authorities    []string  `json:"authorities,omitempty"` // all values when they disagree
}

// Denied reports whether the row belongs into the denial report.
func (r Request) Denied() bool { return r.Verdict != "allow" || r.WouldDeny }

// Completion is what became of an allowed request; a second line in
// requests.jsonl with the same ID.
type Completion struct {
	Time     time.Time `json:"time"`
	Run      string    `json:"run"`
	ID       uint64    `json:"id"`
	Event    string    `json:"event"`  // always "completed"
	Status   int       `json:"status"` // what the client saw; 0 when nothing was sent
	Address  string    `json:"address,omitempty"`
	Attempts int       `json:"attempts,omitempty"` // how often it went upstream, where that was more than once
	Sent     int64     `json:"sent"`               // body bytes upstream
	Received int64     `json:"received"`           // body bytes to the client
	Millis   int64     `json:"millis"`
	Error    string    `json:"error,omitempty"` // upstream failure or client abort, never a denial
}

// Denial is one row of denials.jsonl: all denied requests with the same host,
// method, path, code and would_deny.
type Denial struct {
	Host           string    `json:"host"`
	Method         string    `json:"method"`
	Path           string    `json:"path"`
	Reason         string    `json:"reason"`
	Count          int       `json:"count"`
	Source         Source    `json:"source"`
	Code           string    `json:"code"`
	Rule           string    `json:"rule,omitempty"`
	Port           uint16    `json:"port,omitempty"`
	Protocol       string    `json:"protocol,omitempty"`
	WouldDeny      bool      `json:"would_deny,omitempty"`
	FirstAt        time.Time `json:"first_at"`
	LastAt         time.Time `json:"last_at"`
	Run            string    `json:"run"`
	RedirectedFrom string    `json:"redirected_from,omitempty"`
	Process        string    `json:"process,omitempty"`
}
