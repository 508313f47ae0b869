package preflight

import (
	"testing"

	"github.com/fractalboxdev/sbx/internal/host"
	"github.com/fractalboxdev/sbx/internal/origin"
	"github.com/fractalboxdev/sbx/internal/toolchain"
)

func TestWhatATrialSays(t *testing.T) {
	npm := toolchain.Result{Name: "npm", Program: "/usr/bin/npm", Asked: true, Error: "exit status 1", Said: "npm ERR! self-signed certificate"}
	wanted := map[string][]string{"registry:npm": {"npm", "pnpm"}}
	for name, row := range map[string]struct {
		trial Trial
		name  string
		state host.State
		need  host.Need
		ready bool
	}{
		"refused":             {Trial{Problem: "the pool is full", Next: "wait"}, "a run in a sandbox", host.No, host.Required, false},
		"no client":           {Trial{Run: "r"}, "client of registry:npm", host.No, host.Required, false},
		"a client":            {Trial{Run: "r", Results: []toolchain.Result{npm}, Trusted: map[string]bool{"npm": true}}, "client of registry:npm", host.Yes, host.Required, true},
		"which trusts":        {Trial{Run: "r", Results: []toolchain.Result{npm}, Trusted: map[string]bool{"npm": true}}, "npm", host.Yes, host.Required, true},
		"which does not":      {Trial{Run: "r", Results: []toolchain.Result{npm}}, "npm", host.No, host.Required, false},
		"of the project":      {Trial{Run: "r", Results: []toolchain.Result{{Name: "npm", Program: "/p/npm", Error: "it lies there"}}}, "npm", host.Unknown, host.Required, true},
		"not asked":           {Trial{Run: "r", Results: []toolchain.Result{{Name: "npm", Program: "/usr/bin/npm"}}}, "npm", host.Yes, host.Info, true},
		"not built, unneeded": {Trial{Run: "r", Results: []toolchain.Result{npm, {Name: "java", Program: "/usr/bin/java"}}, Trusted: map[string]bool{"npm": true}}, "java", NotBuilt, host.Info, true},
		"another toolchain": {
			Trial{Run: "r", Results: []toolchain.Result{npm, {Name: "wget", Program: "/usr/bin/wget", Asked: true}}, Trusted: map[string]bool{"npm": true}},
			"wget", host.No, host.Better, true,
		},
	} {
		t.Run(name, func(t *testing.T) {
			found := row.trial.Findings(wanted)
			seen := false
			for _, f := range found {
				if f.Name == row.name {
					if seen = true; f.State != row.state || f.Need != row.need || f.State == host.No && f.Fix == "" {
						t.Errorf("%+v; want %s, %s", f, row.state, row.need)
					}
				}
			}
			if !seen || Ready(found) != row.ready {
				t.Errorf("ready %v: %+v", Ready(found), found)
			}
		})
	}
}

func TestOnlyWhatArrivedOverTLSCounts(t *testing.T) {
	got := arrived([]origin.Sighting{
		{Via: "https", Text: "/n/curl"},
		{Via: "https", Text: "/n/npm/-/ping"},
		{Via: "http", Text: "/n/wget"},
		{Via: "https", Text: "/other/git"},
		{Via: "https", Text: "/n/"},
	}, "n")
	if !got["curl"] || !got["npm"] || got["wget"] || got["git"] {
		t.Errorf("%v", got)
	}
}
