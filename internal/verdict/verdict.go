// Package verdict judges what the probes of a deployment saw and says how long
// such a judgement may be believed. Values only.
package verdict

import (
	"encoding/json"
	"time"
)

// Outcome is the judgement of one probe run.
type Outcome string

// The outcomes. Deferred is no judgement: the probe could not be admitted, or was asked
// to end, and nothing is recorded.
const (
	Passed       Outcome = "passed"
	Failed       Outcome = "failed"
	Inconclusive Outcome = "inconclusive"
	Deferred     Outcome = "deferred"
)

// Valid reports whether the outcome exists.
func (o Outcome) Valid() bool {
	return o == Passed || o == Failed || o == Inconclusive || o == Deferred
}

// Kind is what was probed.
type Kind string

// The kinds of probe runs. An attack is a canary with the self-attack suite.
const (
	Canary  Kind = "canary"
	Attack  Kind = "attack"
	Dogfood Kind = "dogfood"
)

// How long a recorded judgement is served in place of a new run.
const (
	decidedFor      = 24 * time.Hour
	inconclusiveFor = 10 * time.Minute
)

// Record is a judgement as it is kept, one per deployment and kind.
type Record struct {
	Deployment string          `json:"deployment"` // id of what was probed: 64 hexadecimal digits
	Kind       Kind            `json:"kind"`
	Outcome    Outcome         `json:"outcome"`
	Diagnosis  string          `json:"diagnosis"` // why, one sentence
	Run        string          `json:"run"`       // whose directory has the evidence
	At         time.Time       `json:"at"`        // end of the probe run, UTC
	Evidence   json.RawMessage `json:"evidence,omitempty"`
}

// Fresh reports whether the record speaks for the deployment at the time now:
// passed and failed do for 24 hours, inconclusive for 10 minutes, and a record from
// the future (a clock that was set back) never does.
func (r Record) Fresh(deployment string, now time.Time) bool {
	age := now.Sub(r.At)
	if r.Deployment != deployment || deployment == "" || age < 0 {
		return false
	}
	switch r.Outcome {
	case Passed, Failed:
		return age < decidedFor
	case Inconclusive:
		return age < inconclusiveFor
	case Deferred:
	}
	return false
}

// Outweighs reports whether the record stays although a later one of the same deployment
// and kind has come: that a probe could not tell takes nothing back of what an earlier one
// saw fail.
func (r Record) Outweighs(later Record) bool {
	return r.Outcome == Failed && later.Outcome == Inconclusive && r.Fresh(later.Deployment, later.At)
}
