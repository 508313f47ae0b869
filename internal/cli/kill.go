package cli

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"github.com/fractalboxdev/sbx/internal/artifact"
	"github.com/fractalboxdev/sbx/internal/event"
	"github.com/fractalboxdev/sbx/internal/fence"
	"github.com/fractalboxdev/sbx/internal/profile"
)

const killHelp = `End a run: its command gets SIGTERM, after the grace SIGKILL, and everything is
taken back as at any other end. The exit status of that sbx is then 143, and its
receipt says "killed". RUN is a run's id as "sbx ps" has it, or the beginning of one.

With --force sbx itself is ended by SIGKILL: the sandbox and its way out die with
it, and what it left is swept at once; its receipt then says "interrupted".`

func newKillCommand(e *environment) *cobra.Command {
	var asJSON, force bool
	cmd := &cobra.Command{
		Use: "kill [flags] RUN", Short: "End a run that is under way", Long: killHelp,
		Args: exactly("RUN"),
		RunE: func(cmd *cobra.Command, args []string) error { return e.kill(cmd.Context(), args[0], force, asJSON) },
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	cmd.Flags().BoolVar(&force, "force", false, "end sbx itself, for a run that does not end otherwise")
	return cmd
}

// killedJSON is what became of the run.
type killedJSON struct {
	Run       string        `json:"run"`
	Directory string        `json:"directory"`
	Exit      int           `json:"exit"`    // of the run; -1 when nobody knows
	Revoked   bool          `json:"revoked"` // all that the revoke looked at was verified
	Swept     []event.Swept `json:"swept"`
}

func (e *environment) kill(ctx context.Context, name string, force, asJSON bool) error {
	runs, state, err := e.living()
	if err != nil {
		return err
	}
	run, err := pickRun(runs, name)
	if err != nil {
		return err
	}
	done := e.say.Progress("ending run " + run.Run)
	swept, err := fence.Kill(ctx, state, run, force)
	done()
	switch {
	case errors.Is(err, fence.ErrKillLate) && !force:
		return &refusedStep{err, "\"sbx kill --force " + run.Run + "\" ends sbx itself, and with it the sandbox"}
	case err != nil && !errors.Is(err, artifact.ErrEnded):
		return err
	}
	return e.tellKilled(filepath.Join(state, "runs", run.Run), run, swept, asJSON)
}

// tellKilled reports what the run's own receipt says.
func (e *environment) tellKilled(dir string, run artifact.Living, swept []event.Swept, asJSON bool) error {
	r, found, err := readReceipt(dir)
	if err != nil {
		return err
	}
	if !found {
		return fmt.Errorf("reading the receipt of run %s: it has none: its sbx died before it could write one", run.Run)
	}
	out := killedJSON{Run: run.Run, Directory: dir, Exit: r.Result.Exit, Revoked: verified(r), Swept: append([]event.Swept{}, swept...)}
	switch {
	case asJSON:
		err = e.printJSON(out)
	case r.Interrupted:
		e.out.Raw(fmt.Sprintf("run %s is ended: its sbx was killed, the sandbox and its way out died with it\n", run.Run))
	default:
		e.out.Raw(fmt.Sprintf("run %s has ended with status %d\n", run.Run, out.Exit))
	}
	if err == nil && !out.Revoked && !r.Interrupted {
		err = fmt.Errorf("ending run %s: its revoke could not be verified; see %s", run.Run, filepath.Join(dir, "receipt.json"))
	}
	return err
}

func verified(r event.Receipt) bool {
	for _, c := range r.Revoke {
		if !c.Verified {
			return false
		}
	}
	return !r.Interrupted
}

// refusedStep is an error with what to do next.
type refusedStep struct {
	error
	next string
}

func (r *refusedStep) Unwrap() error { return r.error }

// pickRun finds the one run whose id is, or begins with, name.
func pickRun(runs []artifact.Living, name string) (artifact.Living, error) {
	var found []artifact.Living
	ids := make([]string, 0, len(runs))
	for _, r := range runs {
		if r.Run == name {
			return r, nil
		}
		if name != "" && strings.HasPrefix(r.Run, name) {
			found = append(found, r)
		}
		ids = append(ids, r.Run)
	}
	switch len(found) {
	case 1:
		return found[0], nil
	case 0:
		return artifact.Living{}, noSuchRun(ids, name)
	}
	return artifact.Living{}, &usageError{
		fmt.Sprintf("%d running runs begin with %q", len(found), name), "type more of the id: \"sbx ps\" lists them",
	}
}

func noSuchRun(ids []string, name string) error {
	what := fmt.Sprintf("no run %q is under way", name)
	if near := profile.Nearest(name, ids); near != "" {
		what += fmt.Sprintf(" (did you mean %q?)", near)
	}
	next := "\"sbx ps\" lists the runs that are under way"
	if len(ids) == 0 {
		next = "there is nothing to end: no run of yours is under way"
	}
	return &usageError{what, next}
}
