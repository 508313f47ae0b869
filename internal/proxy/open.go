package proxy

import (
	"bytes"
	"context"
	"errors"
	"io"
	"math"

	"github.com/fractalboxdev/sbx/internal/coding"
	"github.com/fractalboxdev/sbx/internal/egress"
)

// pass records what enforce would have done with a hop, and lets it go on all the
// same. Only what is final is refused: malformed requests were before, internal
// addresses and what cannot be recorded are here.
func (x *exchange) pass(ctx context.Context, h *hop) *refusal {
	var judged *refusal
	if x.snap.position == Report {
		if judged = x.judge(ctx, h); judged != nil && judged.final {
			return judged
		}
	}
	h.open = true
	var limit *egress.Rule // of an allowed body
	if judged == nil && x.snap.position == Report {
		limit = h.rule
	} else if r := x.admitAddress(ctx, h); r != nil {
		return r
	}
	if r := revoked(ctx); r != nil {
		return r
	}
	x.openBody(h, limit)
	r := x.recordAllowed(h, judged)
	h.rule = openRule
	return r
}

// openRule is how a hop is treated that is forwarded untouched.
var openRule = &egress.Rule{Headers: egress.HeadersPreserve, Cookies: true, WebSocket: true}

// openBody streams what was not read yet behind what was.
func (x *exchange) openBody(h *hop, rule *egress.Rule) {
	if h.ask.BodyLength == 0 || x.loaded {
		return
	}
	body := x.req.body
	if x.over {
		body = io.MultiReader(bytes.NewReader(x.body), body)
		x.body, x.req.expects = nil, false // it was told to go on
	}
	soft := &stream{r: body, left: math.MaxInt64, snap: x.snap, rule: rule, soft: true}
	if rule != nil {
		soft.left = rule.BodyCap(h.ask.Method)
		if x.measured != nil { // by judging; nothing was read
			x.measured.note, soft.r = soft.pass, x.measured
		}
	}
	x.stream = soft
}

// allowance is what addresses a hop may go to. In the positions that forward all,
// a host that some rule knows to be internal stays reachable.
func (x *exchange) allowance(h *hop) egress.AddressAllowance {
	if h.open {
		return x.snap.policy.HostAllowance(h.ask.Host)
	}
	return h.rule.Allowance()
}

// notePassed records a limit that only showed while the body went up.
func (x *exchange) notePassed(h *hop) {
	if !h.open || x.stream == nil {
		return
	}
	err, code := x.stream.passed(), egress.CodeBodyTooLarge
	switch {
	case err == nil:
		return
	case errors.Is(err, errOverBudget):
		code = egress.CodeUploadBudget
	case errors.Is(err, coding.ErrCoding):
		code = egress.CodeBodyEncoding
	}
	r := refuse(code, egress.Describe(h.ask)+": "+err.Error())
	row := x.row(h)
	row.Verdict, row.WouldDeny, row.Rule = "allow", true, x.stream.rule.ID
	row.Source, row.Code, row.Reason = r.source, string(r.code), r.reason
	_ = x.s.record(row)
}
