package deploy

import (
	"errors"
	"time"

	"github.com/fractalboxdev/sbx/internal/admission"
	"github.com/fractalboxdev/sbx/internal/advisory"
	"github.com/fractalboxdev/sbx/internal/host"
	"github.com/fractalboxdev/sbx/internal/verdict"
)

// Status is the one word of a health report.
type Status string

// The statuses. Only OK lets a deploy go on.
const (
	OK            Status = "ok"
	Unverified    Status = "unverified"    // no fresh pass of this deployment
	Misconfigured Status = "misconfigured" // configuration or store cannot be used, or a proof failed
	Unsupported   Status = "unsupported"   // an advisory says so
)

// Health is what `sbx health` says.
type Health struct {
	Status     Status           `json:"status"`
	Why        string           `json:"why,omitempty"` // unless ok
	Version    string           `json:"version"`
	Contract   int              `json:"contract"`
	Deployment string           `json:"deployment"`
	Store      StoreHealth      `json:"store"`
	Ceiling    int              `json:"ceiling"` // of runs at once, over all classes; 0: none
	Pools      []admission.Pool `json:"pools"`
	Canary     *verdict.Record  `json:"canary"`
	Attack     *verdict.Record  `json:"attack"`
	Dogfood    *verdict.Record  `json:"dogfood"`
	Advisory   Advisory         `json:"advisory"`
}

// Judge fills in status and why from what is known, at the time now. Problem is what
// is wrong with configuration or store, nil for nothing; nothing is proved of a binary that
// was replaced.
func (h *Health) Judge(problem error, k Known, now time.Time) {
	h.Canary, h.Attack, h.Dogfood = k.Canary, k.Attack, k.Dogfood
	failed := ""
	for _, r := range []*verdict.Record{k.Canary, k.Attack} {
		if r != nil && r.Fresh(h.Deployment, now) && r.Outcome == verdict.Failed {
			failed = "the " + string(r.Kind) + " failed: " + r.Diagnosis
		}
	}
	h.Status, h.Why = OK, ""
	switch unproved := Cleared(k, h.Deployment, now); {
	case errors.Is(problem, host.ErrReplaced):
		h.Status, h.Why = Unverified, problem.Error()
	case problem != nil:
		h.Status, h.Why = Misconfigured, problem.Error()
	case h.Advisory.State == advisory.Unsupported:
		h.Status, h.Why = Unsupported, h.Advisory.Detail
	case failed != "":
		h.Status, h.Why = Misconfigured, failed
	case h.Advisory.State == advisory.Unknown:
		h.Status, h.Why = Unverified, "advisory-unknown: "+h.Advisory.Detail
	case unproved != "":
		h.Status, h.Why = Unverified, unproved
	}
}
