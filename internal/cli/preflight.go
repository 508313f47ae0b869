package cli

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/fractalboxdev/sbx/internal/host"
	"github.com/fractalboxdev/sbx/internal/preflight"
	"github.com/fractalboxdev/sbx/internal/term"
	"github.com/fractalboxdev/sbx/internal/toolchain"
)

const preflightHelp = `Look before the first run at everything that it will need: the host, configuration,
store, signers, profiles, registries, the secrets of the selected profiles (whether
they are there; no value is shown), and in a sandbox of its own the toolchains and
whether each takes the run's certificates. What is missing comes with what mends it.

The directory is shown to that sandbox read-only. Nothing leaves the machine.

Exit status: 0 nothing that is required is missing; 1 something is; 125 sbx could not look.`

func newPreflightCommand(e *environment) *cobra.Command {
	o := &preflightOptions{}
	cmd := &cobra.Command{
		Use: "preflight", Short: "Look at everything that a run will need, and say what mends what is missing", Long: preflightHelp,
		Example:       "  sbx preflight --profile js-install",
		SilenceErrors: true, SilenceUsage: true, Args: exactly(),
		RunE: func(cmd *cobra.Command, _ []string) error { return o.run(cmd.Context(), e) },
	}
	o.addTo(cmd)
	cmd.Flags().StringVarP(&o.dir, "directory", "C", "", "look as for a run in this `directory`")
	cmd.Flags().BoolVar(&o.look, "no-toolchains", false, "only look which toolchains are there, and start none")
	cmd.Flags().BoolVar(&o.json, "json", false, "print JSON")
	return cmd
}

func newPreflightTrialCommand(e *environment) *cobra.Command {
	var dir, class string
	var look bool
	cmd := &cobra.Command{
		Use: preflight.TrialCommand, Short: "The preflight's run", Hidden: true,
		SilenceErrors: true, SilenceUsage: true, Args: exactly(),
		RunE: func(cmd *cobra.Command, _ []string) error { return e.preflightTrial(cmd.Context(), dir, class, !look) },
	}
	cmd.Flags().StringVar(&dir, "directory", "", "as of preflight")
	cmd.Flags().StringVar(&class, "class", "", "class of the run")
	cmd.Flags().BoolVar(&look, "look", false, "start no toolchain")
	return cmd
}

func newPreflightProbeCommand(e *environment) *cobra.Command {
	return &cobra.Command{
		Use: preflight.Command + " PLAN", Short: "The preflight's half inside the sandbox", Hidden: true,
		SilenceErrors: true, SilenceUsage: true, Args: exactly("a plan"),
		RunE: func(cmd *cobra.Command, args []string) error { return toolchain.Main(cmd.Context(), args[0], e.stdout) },
	}
}

type preflightOptions struct {
	selection
	dir  string
	look bool
	json bool
}

func (o *preflightOptions) run(ctx context.Context, e *environment) error {
	dir, err := workingDirectory(o.dir)
	if err != nil {
		return err
	}
	if _, err := o.values(); err != nil {
		return err
	}
	found, err := e.preflight(ctx, o, dir)
	if err != nil {
		return err
	}
	ready := preflight.Ready(found)
	if o.json {
		err := e.printJSON(struct {
			Ready    bool                `json:"ready"`
			Findings []preflight.Finding `json:"findings"`
		}{ready, found})
		if err != nil {
			return err
		}
	} else {
		e.printFindings(found, ready)
	}
	if !ready {
		return &exitError{code: exitNegative}
	}
	return nil
}

func (e *environment) printFindings(found []preflight.Finding, ready bool) {
	rows := make([][]term.Cell, 0, len(found))
	for _, f := range found {
		rows = append(rows, []term.Cell{{Text: f.Group}, {Text: f.Name}, {Text: string(f.State), Tone: tones[f.State]}, {Text: string(f.Need)}, {Text: f.Detail}})
	}
	e.out.Table([]string{"ABOUT", "WHAT", "HERE", "NEED", "DETAIL"}, rows)
	for _, f := range found {
		if f.State != host.No {
			continue
		}
		text := f.Name + ": " + string(f.State)
		if f.Cost != "" {
			text += ": " + f.Cost
		}
		if f.Fix != "" {
			text += "; to mend it: " + f.Fix
		}
		e.out.Line(text)
	}
	required, better := preflight.Missing(found)
	switch {
	case !ready:
		e.out.Line(fmt.Sprintf("not ready: missing of what such a run needs: %d", required))
	case better > 0:
		e.out.Line(fmt.Sprintf("ready; missing of what would be better: %d", better))
	default:
		e.out.Line("ready: nothing is missing")
	}
}
