package proxy

import (
	"github.com/fractalboxdev/sbx/internal/egress"
	"github.com/fractalboxdev/sbx/internal/event"
)

// refusal is how a request ends when it is not forwarded.
type refusal struct {
	status      int // what the client sees; 0: nothing
	source      event.Source
	code        egress.Code
	rule        string // the rule that came nearest
	reason      string // for the record, never for the client
	authorities []string
	unrecorded  bool // the recorder itself refused, and keeps count of that; or the row is there already
	mute        bool // the client learns the code only
	final       bool // in every position
}

// refuse is a refusal by the handler: 403.
func refuse(code egress.Code, reason string) *refusal {
	return &refusal{status: 403, source: event.SourceHandler, code: code, reason: reason}
}

// refuseDecision turns a denial of the policy into what the client sees.
func refuseDecision(d egress.Decision) *refusal {
	r := refuse(d.Code, d.Reason)
	r.rule = d.Nearest
	if d.Stage == egress.StageGate {
		r.status, r.source = statusGate, event.SourceGate
	}
	return r
}

// refuseWire is the refusal of a message that cannot be understood in one way.
func refuseWire(e *wireError) *refusal {
	return &refusal{status: e.status, source: event.SourceHandler, code: e.code, reason: e.reason, final: true, unrecorded: e.recorded}
}

// statusGate is outside of every range that programs give a meaning to, so a
// refusal of the gate cannot be taken for an answer of the host.
const statusGate = 520

// record completes a row and hands it to the recorder.
func (s *Server) record(row event.Request) error {
	row.Time = s.cfg.Clock()
	row.Run = s.cfg.Run
	if now := s.current.Load().position; now != Enforce {
		row.Position = now.String()
	}
	if row.ID == 0 {
		row.ID = s.cfg.NextID()
	}
	return s.cfg.Recorder.Record(row)
}

// deny records a refusal. A denial that cannot be recorded is still a denial.
func (s *Server) deny(row event.Request, r *refusal) {
	row.Verdict = "deny"
	row.Source, row.Code, row.Reason = r.source, string(r.code), r.reason
	row.Authorities = r.authorities
	if r.rule != "" {
		row.Rule = r.rule
	}
	_ = s.record(row)
}

// text is the body of a refusal: nothing that could describe the grant to the
// code inside, except the rule that it came nearest to, or the code.
func (r *refusal) text() string {
	if r.status == statusGate || r.status == 0 {
		return ""
	}
	if r.rule != "" && !r.mute {
		return "sbx: " + string(r.code) + " " + r.rule + "\n"
	}
	return "sbx: " + string(r.code) + "\n"
}
