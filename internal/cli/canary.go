package cli

import (
	"context"
	"fmt"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"github.com/fractalboxdev/sbx/internal/canary"
	"github.com/fractalboxdev/sbx/internal/config"
	"github.com/fractalboxdev/sbx/internal/fence"
	"github.com/fractalboxdev/sbx/internal/prober"
	"github.com/fractalboxdev/sbx/internal/term"
	"github.com/fractalboxdev/sbx/internal/verdict"
)

const canaryHelp = `Prove that the floor holds, from inside a sandbox made as for any other run.

A probe of sbx's own asks for a host outside the grant that would answer if egress
were open, over HTTPS and HTTP, with and without checking certificates, directly and
through the proxy variables; for a granted path, a path that no rule allows, and a
name that leads to the host itself; and it tries DNS, UDP and bare connections.

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
	dir    string
	attack bool
	fresh  bool
	json   bool
}

func (o *canaryOptions) run(ctx context.Context, e *environment) error {
	f, cleanup, err := e.canaryFence(o.dir)
	if err != nil {
		return err
	}
	defer cleanup()
	done := e.say.Progress("probing a sandbox")
	r, err := canary.Run(ctx, canary.Options{Fence: f, Attack: o.attack, Scratch: o.dir == ""})
	done()
	if err != nil {
		return err
	}
	if err := e.printCanary(r, o.json); err != nil {
		return err
	}
	if r.Record.Outcome != verdict.Passed {
		return &exitError{code: exitNegative}
	}
	return nil
}

// canaryFence is how a canary's run goes through the fence; cleanup removes the
// empty directory that it was made around.
func (e *environment) canaryFence(dir string) (f fence.Options, cleanup func(), err error) {
	c, err := e.loadConfig()
	if err != nil {
		return f, nil, err
	}
	cleanup = func() {}
	if dir == "" {
		if dir, err = os.MkdirTemp("", "sbx-canary-"); err != nil {
			return f, nil, fmt.Errorf("making a directory for the canary: %w", err)
		}
		made := dir
		cleanup = func() { _ = os.RemoveAll(made) }
	} else if dir, err = workingDirectory(dir); err != nil {
		return f, nil, err
	}
	state, err := stateDirectory(e, c)
	if err != nil {
		cleanup()
		return f, nil, err
	}
	return fence.Options{
		Self: e.build.Self, Workdir: dir, Env: e.env, Grace: c.Grace.V, StateDir: state, Consumer: "canary",
		Config: []string{config.SystemFile, config.UserFile(e.getenv)}, Version: e.build.Version,
		OnSwept: e.sweptLines, Store: e.storeIn(state), Class: c.DefaultClass.V, Pools: e.poolsOf(c),
	}, cleanup, nil
}

// printCanary says the verdict and what it rests on.
func (e *environment) printCanary(r canary.Result, asJSON bool) error {
	if asJSON {
		return e.printJSON(struct {
			verdict.Record
			Directory string `json:"directory"`
		}{r.Record, r.Outcome.Dir})
	}
	e.out.Table([]string{"CANARY", "WHY"}, [][]term.Cell{{
		{Text: string(r.Record.Outcome), Tone: verdictTones[r.Record.Outcome]}, {Text: r.Record.Diagnosis},
	}})
	if line := evidenceLine(r.Evidence); line != "" {
		e.out.Raw(line + "\n")
	}
	e.out.Raw("run " + r.Record.Run + ": " + r.Outcome.Dir + "\n")
	return nil
}

var verdictTones = map[verdict.Outcome]term.Tone{
	verdict.Passed: term.Good, verdict.Failed: term.Bad, verdict.Inconclusive: term.Unsure, verdict.Deferred: term.Unsure,
}

// evidenceLine is the evidence in one line, "" when there is none.
func evidenceLine(v verdict.Evidence) string {
	if len(v.Unlisted) == 0 {
		return ""
	}
	var out []string
	for _, l := range append(append([]verdict.Leg{}, v.Unlisted...), v.Granted, v.Refused, v.Guarded) {
		text := fmt.Sprintf("%s %d", l.Name, l.Status)
		if l.Recorded {
			text += " recorded"
		}
		out = append(out, text)
	}
	return "evidence: " + strings.Join(out, ", ")
}
