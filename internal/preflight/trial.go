package preflight

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/fractalboxdev/sbx/internal/canary"
	"github.com/fractalboxdev/sbx/internal/fence"
	"github.com/fractalboxdev/sbx/internal/host"
	"github.com/fractalboxdev/sbx/internal/origin"
	"github.com/fractalboxdev/sbx/internal/sandbox"
	"github.com/fractalboxdev/sbx/internal/sandbox/stage"
	"github.com/fractalboxdev/sbx/internal/toolchain"
)

// Subcommands of sbx: the trial, in a process of its own since a fencing sbx is split
// before it starts, and its half inside the sandbox.
const (
	TrialCommand = "preflight-trial"
	Command      = "preflight-probe"
)

// trialHost is where the toolchains ask: sbx itself serves it, under a name that exists
// nowhere else (RFC 6761, section 6.4).
const trialHost = "preflight.test"

// profileText is the trial's grant.
const profileText = `
[profiles.preflight]
version = 1
summary = "What toolchains ask for in a trial"

[[profiles.preflight.rules]]
id = "any"
host = "preflight.test"
methods = ["GET"]
path = "/**"
allow = ["GET /x/curl"]
deny = ["POST /x/curl"]
`

// trialLimit is how long the trial's command may take.
const trialLimit = 3 * time.Minute

// Trial is one run in a sandbox of its own, as its process tells it.
type Trial struct {
	Run     string             `json:"run"`
	Problem string             `json:"problem,omitempty"` // why the run was refused, or has no results
	Next    string             `json:"next,omitempty"`    // what mends that
	Results []toolchain.Result `json:"results"`
	Trusted map[string]bool    `json:"trusted"` // toolchains whose request arrived, and so took the run's certificates
}

// Try makes the run. What o says of who asks, where and in which directory counts; the
// directory is shown read-only. Without requests it is only looked which toolchains are
// there. The error is one of the preflight's own making: what the fence refused is a
// finding.
func Try(ctx context.Context, o fence.Options, requests bool) (t Trial, err error) {
	served, err := origin.Start(ctx, []string{trialHost})
	if err != nil {
		return t, err
	}
	defer served.Close()
	nonce := strings.ToLower(rand.Text())
	p := toolchain.Plan{Base: "https://" + trialHost + "/" + nonce, Avoid: sandbox.Resolve(o.Workdir), Look: !requests}
	if err := trialOptions(&o, p); err != nil {
		return t, err
	}
	o.StandIn = canary.Alone(trialHost, served.TLS(), served.Roots())
	out, stdout, stderr, err := canary.Capture(ctx, o)
	if err != nil {
		return t, err
	}
	t.Run = out.Receipt.Run
	if r := out.Receipt.Result.Refusal; r != nil {
		t.Problem, t.Next = r.Message, orElse(r.Next, "sbx doctor")
		return t, nil
	}
	if out.Exit != 0 {
		t.Problem, t.Next = fmt.Sprintf("it ended with status %d: %s", out.Exit, strings.TrimSpace(string(stderr))), "sbx runs show "+t.Run
		return t, nil
	}
	if err := json.Unmarshal(stdout, &t.Results); err != nil {
		return t, fmt.Errorf("reading what the toolchains came to: %w", err)
	}
	t.Trusted = arrived(served.Seen(), nonce)
	return t, nil
}

// trialOptions is the trial's own part of what the fence is told.
func trialOptions(o *fence.Options, p toolchain.Plan) error {
	plan, err := json.Marshal(p)
	if err != nil {
		return fmt.Errorf("encoding the plan of a preflight: %w", err)
	}
	o.Argv = []string{stage.InitPath, Command, string(plan)}
	o.Paths, o.Timeout = []sandbox.Wish{{Path: ".", Access: sandbox.ReadOnly}}, trialLimit
	return canary.Grant(o, "preflight", profileText)
}

// arrived names the toolchains whose requests the origin has seen.
func arrived(seen []origin.Sighting, nonce string) map[string]bool {
	out := map[string]bool{}
	for _, s := range seen {
		rest, mine := strings.CutPrefix(s.Text, "/"+nonce+"/")
		if name, _, _ := strings.Cut(rest, "/"); mine && s.Via == "https" {
			out[name] = true
		}
	}
	return out
}

// Findings says what the trial showed. Wanted are sets of clients of which the selected
// profiles need one each, by what wants them.
func (t Trial) Findings(wanted map[string][]string) []Finding {
	run := host.Fact{Name: "a run in a sandbox", Need: host.Required, State: host.Yes, Detail: "run " + t.Run}
	if t.Problem != "" {
		run.State, run.Detail, run.Cost, run.Fix = host.No, t.Problem, "no command can be run", t.Next
		return []Finding{{"trial", run}}
	}
	out := []Finding{{"trial", run}}
	needed := map[string]bool{}
	for _, name := range slices.Sorted(maps.Keys(wanted)) {
		f, chosen := t.client(name, wanted[name])
		out = append(out, f)
		for _, c := range chosen {
			needed[c] = true
		}
	}
	for _, r := range t.Results {
		if r.Program != "" {
			out = append(out, t.tool(r, needed[r.Name]))
		}
	}
	return out
}

// client looks whether one of several clients is there, and which.
func (t Trial) client(purpose string, clients []string) (f Finding, present []string) {
	for _, r := range t.Results {
		if r.Program != "" && slices.Contains(clients, r.Name) {
			present = append(present, r.Name)
		}
	}
	fact := host.Fact{Name: "client of " + purpose, Need: host.Required, State: host.Yes, Detail: strings.Join(present, ", ")}
	if len(present) == 0 {
		fact.State, fact.Detail = host.No, "none of "+strings.Join(clients, ", ")+" is in the sandbox's PATH"
		fact.Cost = "what the profile grants has nobody to use it"
		fact.Fix = "install one of them, or add its directory to PATH"
	}
	return Finding{"toolchains", fact}, present
}

// tool says whether a toolchain trusts the run's certificates.
func (t Trial) tool(r toolchain.Result, needed bool) Finding {
	f := host.Fact{Name: r.Name, Need: host.Better, State: host.Yes, Detail: r.Program + ": its request arrived", Cost: "its requests end in a broken handshake"}
	if needed {
		f.Need = host.Required
	}
	switch {
	case unasked[r.Name] != "":
		f.Need, f.State, f.Detail, f.Cost = host.Info, NotBuilt, r.Program+": "+unasked[r.Name], ""
	case t.Trusted[r.Name]:
	case !r.Asked && r.Error == "":
		f.Need, f.Detail, f.Cost = host.Info, r.Program, ""
	case !r.Asked:
		f.State, f.Detail, f.Cost, f.Fix = host.Unknown, r.Program+": "+r.Error, "", "take it from a directory outside of the project"
	default:
		f.State = host.No
		f.Detail = strings.Join(nonEmpty(r.Program+": its request did not arrive", r.Error, r.Said), ": ")
		f.Fix = fmt.Sprintf("sbx exec -- %s ... shows why; certificates that it brings along itself have to give way to $SSL_CERT_FILE", r.Name)
	}
	return Finding{"toolchains", f}
}

// unasked are toolchains for which the trust pack has nothing yet.
var unasked = map[string]string{
	"java":     "the run's CA is not in a Java trust store yet",
	"chromium": "the run's CA is not in an NSS database yet",
}

func orElse(text, other string) string {
	if text == "" {
		return other
	}
	return text
}

func nonEmpty(texts ...string) []string {
	return slices.DeleteFunc(texts, func(s string) bool { return s == "" })
}
