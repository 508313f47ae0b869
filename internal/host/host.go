// Package host tells what this machine gives: facts that are yes, no or could
// not be told, each with what it costs when missing and what mends it.
package host

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"sync"
)

// State is the answer to a question about the host.
type State string

// The three answers. Unknown is neither: sbx goes on and fails when it must.
const (
	Yes     State = "yes"
	No      State = "no"
	Unknown State = "unknown"
)

// Need says what a missing fact means.
type Need string

// Required facts stop every run when missing; Better ones weaken or slow it;
// Info is for reports.
const (
	Required Need = "required"
	Better   Need = "better"
	Info     Need = "info"
)

// Fact is one answer.
type Fact struct {
	Name   string `json:"name"`
	Need   Need   `json:"need"`
	State  State  `json:"state"`
	Detail string `json:"detail"`         // what was seen
	Cost   string `json:"cost,omitempty"` // what a missing fact means for a run
	Fix    string `json:"fix,omitempty"`  // command or step that mends it, only when State is not Yes
}

// Options are what the host package cannot know by itself. All are optional.
type Options struct {
	// Inside is the argv with which this same binary, started by the probes in
	// new namespaces, runs Inside. Without it the facts that need a real try are
	// unknown.
	Inside []string
	// Libseccomp returns the version of the linked library, false when the
	// binary was built without it.
	Libseccomp func() (version string, ok bool)
	// Root is put before /proc and /sys paths; "" outside tests.
	Root string
}

// Host answers each question once.
type Host struct {
	opt   Options
	child func() insideResult
	facts func() []Fact
}

// New makes a Host. Nothing is probed before Facts is called.
func New(opt Options) *Host {
	h := &Host{opt: opt}
	h.child = sync.OnceValue(h.tryInside)
	h.facts = sync.OnceValue(h.probeAll)
	return h
}

// Facts returns every fact, most important first. The first call takes tens of
// milliseconds and starts one short-lived child.
func (h *Host) Facts() []Fact { return append([]Fact(nil), h.facts()...) }

// Ready reports whether no required fact is missing.
func Ready(facts []Fact) bool {
	for _, f := range facts {
		if f.Need == Required && f.State == No {
			return false
		}
	}
	return true
}

// answer is what a probe found out.
type answer struct {
	state  State
	detail string
	fix    string
}

func (h *Host) probeAll() []Fact {
	facts := make([]Fact, 0, len(probes))
	for _, p := range probes {
		a := p.run(h)
		f := Fact{Name: p.name, Need: p.need(), State: a.state, Detail: a.detail, Cost: p.cost}
		if a.state != Yes {
			f.Fix = a.fix
		}
		facts = append(facts, f)
	}
	return facts
}

// read returns a small file of /proc or /sys, trimmed.
func (h *Host) read(path string) (string, bool) {
	text, err := os.ReadFile(filepath.Join("/", h.opt.Root, path))
	return strings.TrimSpace(string(text)), err == nil
}

// exists reports whether the path is there.
func (h *Host) exists(path string) bool {
	_, err := os.Stat(filepath.Join("/", h.opt.Root, path))
	return err == nil
}

func (h *Host) tryInside() insideResult {
	if len(h.opt.Inside) == 0 {
		return insideResult{Err: "the real try is not wired in"}
	}
	return runInside(context.Background(), h.opt.Inside)
}
