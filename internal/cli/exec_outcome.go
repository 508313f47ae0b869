package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"

	"github.com/fractalboxdev/sbx/internal/event"
	"github.com/fractalboxdev/sbx/internal/fence"
	"github.com/fractalboxdev/sbx/internal/profile"
	"github.com/fractalboxdev/sbx/internal/registry"
	"github.com/fractalboxdev/sbx/internal/term"
)

// outcomeJSON is what --json prints and --outcome writes (docs/cli.md).
type outcomeJSON struct {
	Exit      int            `json:"exit"`
	Run       string         `json:"run"`
	Directory string         `json:"directory"`
	Result    event.Result   `json:"result"`
	Denials   []event.Denial `json:"denials"`
	Receipt   event.Receipt  `json:"receipt"`
}

// openOutcome makes the file before anything runs: what cannot be reported must
// not happen, and the command cannot have put a link in its place.
func openOutcome(name string) (*os.File, error) {
	if name == "" {
		return nil, nil //nolint:nilnil // not asked for
	}
	f, err := os.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600) //nolint:forbidigo // a new file where the caller says
	if errors.Is(err, os.ErrExist) {
		return nil, &usageError{fmt.Sprintf("--outcome %s exists already", name), "name a new file, or remove the old one"}
	}
	if err != nil {
		return nil, fmt.Errorf("making the outcome file: %w", err)
	}
	return f, nil
}

// write hands the outcome to machines.
func (o *execOptions) write(e *environment, out fence.Outcome, file *os.File) error {
	if !o.json && file == nil {
		return nil
	}
	v := outcomeJSON{
		Exit: out.Exit, Run: out.Receipt.Run, Directory: out.Dir, Result: out.Receipt.Result,
		Denials: append([]event.Denial{}, out.Denials...), Receipt: out.Receipt,
	}
	if o.json {
		if err := e.printJSON(v); err != nil {
			return err
		}
	}
	if file == nil {
		return nil
	}
	text, err := json.MarshalIndent(v, "", "  ")
	if err == nil {
		_, err = file.Write(append(text, '\n'))
	}
	if err := errors.Join(err, file.Close()); err != nil {
		return fmt.Errorf("writing the outcome: %w", err)
	}
	return nil
}

// recipeRefusal gives an error of the grant its kind.
func recipeRefusal(err error) error {
	r := &event.Refusal{Kind: event.RefusedRecipe, Code: "bad-input", Message: err.Error(), Next: nextStep(err), Cause: err}
	if p, ok := errors.AsType[*profile.Refusal](err); ok {
		r.Code = string(p.Code)
	}
	if errors.Is(err, registry.ErrUnknown) || errors.Is(err, registry.ErrUntrusted) {
		r.Code = string(profile.CodeUnknownEndpoint)
	}
	return r
}

// preview prints what a run would be given.
func (o *execOptions) preview(ctx context.Context, e *environment, f fence.Options) error {
	p, err := fence.DryRun(ctx, f)
	if err != nil {
		return err
	}
	if o.json {
		return e.printJSON(p)
	}
	if err := e.printJSON(p.Grant); err != nil {
		return err
	}
	e.out.Raw(fmt.Sprintf("\nworkdir %s\nuid     %d\n\nmounts\n", term.Escape(p.Dir), p.UID))
	for _, m := range p.Tree {
		mode := "ro"
		if m.Writable || m.Kind == "tmpfs" {
			mode = "rw"
		}
		line := fmt.Sprintf("  %s %-9s %s", mode, m.Kind, term.Escape(m.Target))
		if m.Source != "" && m.Source != m.Target && m.Kind != "text" {
			line += " <- " + term.Escape(m.Source)
		}
		e.out.Raw(line + "\n")
	}
	e.out.Raw("\nenvironment\n")
	for _, kv := range p.Env {
		e.out.Raw("  " + term.Escape(kv) + "\n")
	}
	return nil
}
