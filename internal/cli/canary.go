package cli

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/fractalboxdev/sbx/internal/canary"
	"github.com/fractalboxdev/sbx/internal/deploy"
	"github.com/fractalboxdev/sbx/internal/prober"
	"github.com/fractalboxdev/sbx/internal/term"
	"github.com/fractalboxdev/sbx/internal/verdict"
)

const canaryHelp = `Prove that the floor holds, from inside a sandbox made as for any other run.

A probe of sbx's own asks for a host outside the grant that would answer if egress
were open, over HTTPS and HTTP, with and without checking certificates, directly and
through the proxy variables; for a granted path, a path that no rule allows, and a
name that leads to the host itself; and it tries DNS, UDP and bare connections.
With --attack it also tries some 250 known ways out of such a sandbox.

The verdict is kept for this deployment: binary, profiles, configuration and kernel.
A fresh one is shown again: passed and failed for 24 hours, inconclusive for 10 minutes.

Exit status: 0 passed; 1 failed, inconclusive or deferred; 125 sbx could not try.`

func newCanaryCommand(e *environment) *cobra.Command {
	o := &canaryOptions{}
	cmd := &cobra.Command{
		Use: "canary", Short: "Prove from inside a sandbox that the floor holds", Long: canaryHelp,
		SilenceErrors: true, SilenceUsage: true, Args: exactly(),
		RunE: func(cmd *cobra.Command, _ []string) error { return o.run(cmd.Context(), e) },
	}
	f := cmd.Flags()
	f.StringVarP(&o.dir, "directory", "C", "", "make the sandbox around this `directory` (default: an empty one)")
	f.BoolVar(&o.attack, "attack", false, "also try the self-attack suite in the sandbox")
	f.BoolVar(&o.fresh, "fresh", false, "probe again, also where a fresh verdict is known")
	f.BoolVar(&o.json, "json", false, "print JSON")
	return cmd
}

func newCanaryProbeCommand(e *environment) *cobra.Command {
	return &cobra.Command{
		Use: canary.Command + " PLAN", Short: "The canary's half inside the sandbox", Hidden: true,
		SilenceErrors: true, SilenceUsage: true, Args: exactly("a plan"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return prober.Main(cmd.Context(), args[0], e.stdout)
		},
	}
}

type canaryOptions struct {
	dir                 string
	attack, fresh, json bool
}

// canaryJSON is the answer of "sbx canary --json".
type canaryJSON struct {
	verdict.Record
	Cached    bool   `json:"cached"`    // an earlier run's, still fresh
	Directory string `json:"directory"` // of the run; "" for a cached verdict
}

func (o *canaryOptions) kind() verdict.Kind {
	if o.attack {
		return verdict.Attack
	}
	return verdict.Canary
}

func (o *canaryOptions) run(ctx context.Context, e *environment) error {
	d, err := e.openDeployment(ctx)
	if err != nil {
		return err
	}
	if !o.fresh {
		known, err := deploy.Fresh(ctx, d.store, d.id, o.kind(), time.Now())
		if err != nil {
			return err
		}
		if known != nil {
			return e.conclude(canaryJSON{Record: *known, Cached: true}, nil, o.json)
		}
	}
	r, err := o.probe(ctx, e, d)
	if err != nil {
		return err
	}
	r.Record.Deployment = d.id
	if err := deploy.Remember(ctx, d.store, r.Record); err != nil {
		return err
	}
	return e.conclude(canaryJSON{Record: r.Record, Directory: r.Outcome.Dir}, &r.Evidence, o.json)
}

// probe makes one canary run.
func (o *canaryOptions) probe(ctx context.Context, e *environment, d *deployment) (r canary.Result, err error) {
	dir, scratch := o.dir, o.dir == ""
	if scratch {
		if dir, err = os.MkdirTemp("", "sbx-canary-"); err != nil {
			return r, fmt.Errorf("making a directory for the canary: %w", err)
		}
		defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	} else if dir, err = workingDirectory(dir); err != nil {
		return r, err
	}
	f := d.options(e, "canary")
	f.Workdir = dir
	done := e.say.Progress("probing a sandbox")
	defer done()
	// The fence takes these signals as well, and ends the run.
	asked, stop := signal.NotifyContext(ctx, unix.SIGINT, unix.SIGTERM, unix.SIGHUP, unix.SIGQUIT)
	defer stop()
	r, err = canary.Run(ctx, canary.Options{Fence: f, Attack: o.attack, Scratch: scratch})
	if asked.Err() != nil && r.Record.Outcome == verdict.Inconclusive {
		r.Record.Outcome, r.Record.Diagnosis = verdict.Deferred, "the probe was asked to end before it could tell"
	}
	return r, err
}

// conclude says the verdict and what it rests on.
func (e *environment) conclude(a canaryJSON, evidence *verdict.Evidence, asJSON bool) error {
	if asJSON {
		if err := e.printJSON(a); err != nil {
			return err
		}
	} else {
		e.printCanary(a, evidence)
	}
	if a.Outcome != verdict.Passed {
		return &exitError{code: exitNegative}
	}
	return nil
}

func (e *environment) printCanary(a canaryJSON, evidence *verdict.Evidence) {
	why := a.Diagnosis
	if a.Cached {
		why += " (cached, of " + a.At.Format(time.RFC3339) + "; --fresh probes again)"
	}
	e.out.Table([]string{strings.ToUpper(string(a.Kind)), "WHY"}, [][]term.Cell{{
		{Text: string(a.Outcome), Tone: verdictTones[a.Outcome]}, {Text: why},
	}})
	if evidence != nil && len(evidence.Unlisted) > 0 {
		e.out.Raw(evidenceLine(*evidence) + "\n")
	}
	if a.Directory != "" {
		e.out.Raw("run " + a.Run + ": " + a.Directory + "\n")
	}
}

var verdictTones = map[verdict.Outcome]term.Tone{
	verdict.Passed: term.Good, verdict.Failed: term.Bad, verdict.Inconclusive: term.Unsure, verdict.Deferred: term.Unsure,
}

// evidenceLine is the evidence in one line.
func evidenceLine(v verdict.Evidence) string {
	var out []string
	for _, l := range append(append([]verdict.Leg{}, v.Unlisted...), v.Granted, v.Refused, v.Guarded) {
		text := fmt.Sprintf("%s %d", l.Name, l.Status)
		if l.Recorded {
			text += " recorded"
		}
		out = append(out, text)
	}
	text := "evidence: " + strings.Join(out, ", ")
	if v.Attempts > 0 {
		text += fmt.Sprintf("; %d attacks, %d not held", v.Attempts, len(v.Won))
	}
	return text
}
