// Package preflight says before the first run what keeps this machine from the runs
// that somebody wants of it, and what mends each.
package preflight

import (
	"github.com/fractalboxdev/sbx/internal/host"
)

// NotBuilt is the state of what this version of sbx does not have yet. It is never
// counted as missing.
const NotBuilt host.State = "not built"

// Finding is one answer, and what it is about.
type Finding struct {
	Group string `json:"group"` // as in "configuration"
	host.Fact
}

// Ready reports whether nothing required is missing.
func Ready(findings []Finding) bool {
	facts := make([]host.Fact, len(findings))
	for i, f := range findings {
		facts[i] = f.Fact
	}
	return host.Ready(facts)
}

// Missing returns how many findings are missing of what is required, and of what would
// be better.
func Missing(findings []Finding) (required, better int) {
	for _, f := range findings {
		switch {
		case f.State != host.No:
		case f.Need == host.Required:
			required++
		case f.Need == host.Better:
			better++
		}
	}
	return required, better
}

// Host folds the facts about the host into what is missing: sbx doctor has them all.
func Host(facts []host.Fact) []Finding {
	var out []Finding
	for _, f := range facts {
		if f.Need == host.Required && f.State == host.No {
			out = append(out, Finding{"host", f})
		}
	}
	if len(out) == 0 {
		out = append(out, Finding{"host", host.Fact{
			Name: "what the kernel gives", Need: host.Required, State: host.Yes, Detail: "nothing that is needed is missing; sbx doctor has the details",
		}})
	}
	return out
}
