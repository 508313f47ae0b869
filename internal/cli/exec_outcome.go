package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"time"

	"github.com/fractalboxdev/sbx/internal/artifact"
	"github.com/fractalboxdev/sbx/internal/event"
	"github.com/fractalboxdev/sbx/internal/fence"
	"github.com/fractalboxdev/sbx/internal/profile"
	"github.com/fractalboxdev/sbx/internal/proxy"
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

// outcomeFile is where --outcome goes: a directory held from before the command
// ran, and a name in it.
type outcomeFile struct {
	dir  *artifact.Target
	name string
}

// openOutcome holds the place before anything runs. The file itself is made when
// every process is dead: until then the command could write it, too.
func openOutcome(name string) (*outcomeFile, error) {
	if name == "" {
		return nil, nil //nolint:nilnil // not asked for
	}
	abs, err := filepath.Abs(name)
	if err != nil {
		return nil, fmt.Errorf("finding --outcome %s: %w", name, err)
	}
	dir, err := artifact.HoldTarget(filepath.Dir(abs))
	if err != nil {
		return nil, err
	}
	f := &outcomeFile{dir: dir, name: filepath.Base(abs)}
	exists, err := dir.Has(f.name)
	if err == nil && exists {
		err = &usageError{fmt.Sprintf("--outcome %s exists already", name), "name a new file, or remove the old one"}
	}
	if err != nil {
		return nil, errors.Join(err, dir.Close())
	}
	return f, nil
}

// refuseEarly tells machines of an error before the fence, as of one in it.
func (o *execOptions) refuseEarly(e *environment, argv []string, err error) error {
	if o.dryRun {
		return err
	}
	var file *outcomeFile
	if o.outcome != "" {
		if file, _ = openOutcome(o.outcome); file == nil && !o.json {
			return err // there is nowhere to write, which would be the next error
		}
	}
	id := artifact.NewID(time.Now())
	r := event.Receipt{Run: id, Version: e.build.Version, Command: argv, Result: event.Result{Exit: exitRefused}}
	r.Result.Refusal = &event.Refusal{
		Kind: event.RefusedRecipe, Code: "bad-usage", Name: id, Step: "usage", Message: err.Error(), Next: nextStep(err), Cause: err,
	}
	if failed := o.write(e, fence.Outcome{Exit: exitRefused, Receipt: r}, file); failed != nil {
		return errors.Join(err, failed)
	}
	return err
}

// write hands the outcome to machines.
func (o *execOptions) write(e *environment, out fence.Outcome, file *outcomeFile) error {
	if !o.json && file == nil {
		return nil
	}
	v := outcomeJSON{
		Exit: out.Exit, Run: out.Receipt.Run, Directory: out.Dir, Result: out.Receipt.Result,
		Denials: append([]event.Denial{}, out.Denials...), Receipt: out.Receipt,
	}
	text, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		return fmt.Errorf("encoding the outcome: %w", err)
	}
	text = append(o.mask.JSON(text), '\n')
	if o.json {
		e.out.Raw(string(text))
	}
	if file == nil {
		return nil
	}
	err = file.dir.Write(file.name, text)
	if err := errors.Join(err, file.dir.Close()); err != nil {
		return fmt.Errorf("writing the outcome: %w", err)
	}
	return nil
}

// positionWarning is said before a run that does not enforce its grant.
func positionWarning(p proxy.Position, r *event.Rollout) string {
	what := "requests that are not granted are FORWARDED and recorded as would-deny; no credential is sent"
	if p == proxy.Legacy {
		what = "ALL requests are FORWARDED and only logged; no credential is sent"
	}
	text := "WARNING: position " + p.String() + ", the grant is NOT enforced in this run: " + what
	if r == nil || r.Position != p.String() {
		return text
	}
	text += " (rollout " + r.Name + ", since " + r.Since.Format(time.DateOnly) + " by " + r.By
	if r.From != "" {
		text += ", moved down from " + r.From
	}
	return text + ")"
}

// recipeRefusal gives an error of the grant its kind.
func recipeRefusal(err error) error {
	if refusal, ok := errors.AsType[*event.Refusal](err); ok {
		return refusal // it has its kind: that of the review gate
	}
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
	if len(p.Floor) > 0 {
		e.out.Raw("\non the floor list (" + strings.Join(p.Floor, ", ") + "): the command needs an attestation\n")
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
