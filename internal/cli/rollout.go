package cli

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/fractalboxdev/sbx/internal/class"
	"github.com/fractalboxdev/sbx/internal/proxy"
	"github.com/fractalboxdev/sbx/internal/report"
	"github.com/fractalboxdev/sbx/internal/rollout"
	"github.com/fractalboxdev/sbx/internal/store"
	"github.com/fractalboxdev/sbx/internal/term"
)

const rolloutHelp = `A rollout takes the runs of one name from legacy, where all requests are
forwarded, over report, where it is recorded what would be denied, to enforce.
A run's name is --run-name of exec, else its profiles, sorted and joined by +,
or none. A name without a rollout is enforced.

From report to enforce it takes a report window in which something ran and no run
would have been denied anything new, and a person's confirmation that what the
runs need is granted. Another grant, a new row and a run that was killed open the
window anew, and do not count in it. The way down is "start"; "revert" enforces at once.`

func newRolloutCommand(e *environment) *cobra.Command {
	cmd := group("rollout", "Bring a grant to be enforced, step by step")
	cmd.Long = rolloutHelp
	cmd.AddCommand(
		newRolloutStart(e), newRolloutStatus(e),
		newRolloutStep(e, "confirm", "Say that what the runs need is granted", true, func(t *store.Tx, r, shown rollout.Record, by string, now time.Time) error {
			next, err := rollout.Confirmed(r, shown, by, now)
			return orPut(t, next, err)
		}),
		newRolloutStep(e, "graduate", "Take the next step up", false, graduate),
		newRolloutStep(e, "revert", "End the rollout: enforce from now on", false, func(t *store.Tx, r, _ rollout.Record, _ string, _ time.Time) error {
			return t.DropRollout(r.Name)
		}),
	)
	return cmd
}

func orPut(t *store.Tx, r rollout.Record, err error) error {
	if err != nil {
		return err
	}
	return t.PutRollout(r)
}

// graduate waits for the runs that are under way: they may still bring news.
func graduate(t *store.Tx, r, _ rollout.Record, by string, now time.Time) error {
	if r.Position == rollout.Report {
		runs, err := t.Observed(r.Name)
		if err != nil {
			return err
		}
		if len(runs) > 0 {
			return fmt.Errorf("%w: run %s has not ended; if it was killed, the next run sweeps it", rollout.ErrStep, runs[0])
		}
	}
	next, err := rollout.Graduate(r, by, now)
	return orPut(t, next, err)
}

// runName checks a name that was given, or makes that of a selection.
func runName(given string, profiles []string) (string, error) {
	if given == "" {
		if len(profiles) == 0 {
			return "none", nil
		}
		return strings.Join(slices.Compact(slices.Sorted(slices.Values(profiles))), "+"), nil
	}
	if !regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._+:/-]{0,199}$`).MatchString(given) {
		return "", &usageError{fmt.Sprintf("%q is no name of a run", given), "use letters, digits and ._+:/- after the first, up to 200"}
	}
	return given, nil
}

type rolloutStart struct {
	position, kind, window string
	yes, json              bool
}

func newRolloutStart(e *environment) *cobra.Command {
	o := &rolloutStart{}
	cmd := &cobra.Command{
		Use: "start NAME", Short: "Begin a rollout, or move one down", Args: exactly("NAME"), Long: rolloutHelp,
		Example: "  sbx rollout start js-install --kind agent\n  sbx rollout start nightly --position legacy --window 14d",
		RunE:    func(cmd *cobra.Command, args []string) error { return o.run(cmd.Context(), e, args[0]) },
	}
	f := cmd.Flags()
	f.StringVar(&o.position, "position", rollout.Report, "where to begin: `report or legacy`")
	f.StringVar(&o.kind, "kind", string(class.Default), "`class` of the runs, which says how long they are watched: "+strings.Join(class.Names(), ", "))
	f.StringVar(&o.window, "window", "", "length of the report `window`, as in 7d or 12h (default: lean 1d, browser 3d, agent and task 7d)")
	f.BoolVarP(&o.yes, "yes", "y", false, "do not ask")
	f.BoolVar(&o.json, "json", false, "print JSON")
	return cmd
}

func (o *rolloutStart) run(ctx context.Context, e *environment, given string) error {
	name, err := runName(given, nil)
	if err != nil {
		return err
	}
	kind := class.Name(o.kind)
	if !kind.Valid() {
		return &usageError{fmt.Sprintf("--kind %s is none", o.kind), "name one of " + strings.Join(class.Names(), ", ")}
	}
	window := rollout.WindowOf(kind)
	if o.window != "" {
		if window, err = parseDays(o.window); err != nil {
			return &usageError{fmt.Sprintf("--window %q is no time", o.window), "give days or hours, as in 7d or 12h"}
		}
	}
	if err := e.sure(o.yes, fmt.Sprintf("the grant of runs named %s will NOT be enforced (%s)", name, o.position)); err != nil {
		return err
	}
	return e.changeRollout(ctx, name, o.json, func(t *store.Tx, r *rollout.Record) error {
		if r == nil {
			r = &rollout.Record{}
		}
		next, err := rollout.Start(*r, name, o.position, kind, window, whoami(), time.Now().UTC())
		if err == nil {
			err = t.DropRollout(name) // with the runs under way, which are the earlier one's
		}
		return orPut(t, next, err)
	})
}

// rolloutStep changes a rollout. Shown is what a person saw of it before, where the step
// asks one: runs may have ended since.
type rolloutStep func(t *store.Tx, r, shown rollout.Record, by string, now time.Time) error

// newRolloutStep makes a command that changes a rollout which exists.
func newRolloutStep(e *environment, use, short string, asks bool, step rolloutStep) *cobra.Command {
	var yes, asJSON bool
	cmd := &cobra.Command{
		Use: use + " NAME", Short: short, Args: exactly("NAME"), Long: rolloutHelp,
		RunE: func(cmd *cobra.Command, args []string) (err error) {
			var shown rollout.Record
			if asks {
				if shown, err = e.askAboutRows(cmd.Context(), args[0], yes); err != nil {
					return err
				}
			}
			return e.changeRollout(cmd.Context(), args[0], asJSON, func(t *store.Tx, r *rollout.Record) error {
				if r == nil {
					return noRollout(args[0])
				}
				return step(t, *r, shown, whoami(), time.Now().UTC())
			})
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	if asks {
		cmd.Flags().BoolVarP(&yes, "yes", "y", false, "do not ask")
	}
	return cmd
}

func noRollout(name string) error {
	return &usageError{fmt.Sprintf("there is no rollout %q: runs of that name are enforced", name), "\"sbx rollout status\" lists all; \"sbx rollout start\" begins one"}
}

// sure asks a person, unless that was said on the command line.
func (e *environment) sure(yes bool, what string) error {
	if yes {
		return nil
	}
	if !term.Interactive(e.stdin) {
		return &usageError{what + ": there is no terminal to ask on", "add --yes if that is meant"}
	}
	e.say.Line(what)
	e.say.Raw("sbx: go on? type yes: ")
	answer, err := bufio.NewReader(e.stdin).ReadString('\n')
	if err != nil || strings.TrimSpace(answer) != "yes" {
		return errors.New("nothing was changed")
	}
	return nil
}

// askAboutRows shows what enforce would refuse before a person confirms it, and returns
// what it showed.
func (e *environment) askAboutRows(ctx context.Context, name string, yes bool) (rollout.Record, error) {
	r, _, err := e.readRollout(ctx, name)
	if err != nil {
		return r, err
	}
	e.rolloutRows(r)
	return r, e.sure(yes, fmt.Sprintf("enforce will refuse the %d kinds of requests above, and whatever else is not granted", len(r.Rows)))
}

// changeRollout changes one rollout in one transaction, and shows it afterwards.
func (e *environment) changeRollout(ctx context.Context, name string, asJSON bool, change func(*store.Tx, *rollout.Record) error) error {
	s, err := e.openStore(ctx)
	if err != nil {
		return err
	}
	defer s.Close()
	var after []rollout.Record
	err = s.UpdateDurably(ctx, func(t *store.Tx) error {
		r, err := t.Rollout(name)
		if err != nil {
			return err
		}
		if err := change(t, r); err != nil {
			return err
		}
		if r, err = t.Rollout(name); err == nil && r != nil {
			after = append(after, *r)
		}
		return err
	})
	if errors.Is(err, rollout.ErrStep) {
		return &refusedStep{err, "\"sbx rollout status " + name + "\" shows where it is"}
	}
	if err != nil {
		return err
	}
	return e.printRollouts(after, name, asJSON)
}

func (e *environment) readRollout(ctx context.Context, name string) (r rollout.Record, running []string, err error) {
	s, err := e.openStore(ctx)
	if err != nil {
		return r, nil, err
	}
	defer s.Close()
	err = s.View(ctx, func(t *store.Tx) error {
		found, err := t.Rollout(name)
		if err != nil {
			return err
		}
		if found == nil {
			return noRollout(name)
		}
		r = *found
		running, err = t.Observed(name)
		return err
	})
	return r, running, err
}

func newRolloutStatus(e *environment) *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use: "status [NAME]", Short: "Show all rollouts, or one with what would be denied", Args: cobra.MaximumNArgs(1), Long: rolloutHelp,
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) == 1 {
				return e.rolloutStatus(cmd.Context(), args[0], asJSON)
			}
			return e.rolloutList(cmd.Context(), asJSON)
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return cmd
}

func (e *environment) rolloutList(ctx context.Context, asJSON bool) error {
	s, err := e.openStore(ctx)
	if err != nil {
		return err
	}
	defer s.Close()
	var all []rollout.Record
	err = s.View(ctx, func(t *store.Tx) (err error) {
		all, err = t.Rollouts()
		return err
	})
	if err != nil {
		return err
	}
	return e.printRollouts(all, "", asJSON)
}

// rolloutJSON is a rollout with what it lacks.
type rolloutJSON struct {
	rollout.Record
	Missing []string `json:"missing"` // before the next step up
	Running []string `json:"running"` // runs under report that have not ended
}

func jsonOf(r rollout.Record, running []string, now time.Time) rolloutJSON {
	r.Rows, r.Changes = append([]rollout.Row{}, r.Rows...), append([]rollout.Change{}, r.Changes...)
	return rolloutJSON{r, append([]string{}, r.Missing(now)...), append([]string{}, running...)}
}

// printRollouts prints a table; name is said when there is none.
func (e *environment) printRollouts(all []rollout.Record, name string, asJSON bool) error {
	now := time.Now().UTC()
	if asJSON {
		list := make([]rolloutJSON, len(all))
		for i, r := range all {
			list[i] = jsonOf(r, nil, now)
		}
		return e.printJSON(struct {
			Rollouts []rolloutJSON `json:"rollouts"`
		}{list})
	}
	if len(all) == 0 {
		e.out.Raw(strings.TrimSpace("no rollout "+term.Escape(name)) + ": every run is enforced\n")
		return nil
	}
	var rows [][]term.Cell
	for _, r := range all {
		position := term.Cell{Text: r.Position, Tone: term.Unsure}
		if r.Position == rollout.Enforce {
			position.Tone = term.Good
		}
		rows = append(rows, []term.Cell{
			{Text: r.Name},
			position,
			{Text: r.Since.Format(time.RFC3339)},
			{Text: r.By},
			{Text: strconv.Itoa(len(r.Rows))},
			{Text: strconv.Itoa(r.Runs)},
			{Text: orDash(strings.Join(r.Missing(now), "; "))},
		})
	}
	e.out.Table([]string{"NAME", "POSITION", "SINCE", "BY", "ROWS", "RUNS", "MISSING"}, rows)
	return nil
}

func (e *environment) rolloutStatus(ctx context.Context, name string, asJSON bool) error {
	r, running, err := e.readRollout(ctx, name)
	if err != nil {
		return err
	}
	now := time.Now().UTC()
	if asJSON {
		return e.printJSON(jsonOf(r, running, now))
	}
	opened := "-"
	if !r.Opened.IsZero() {
		opened = r.Opened.Format(time.RFC3339) + " by " + r.Why + ", " + strconv.Itoa(r.Runs) + " runs since"
	}
	confirmed := "-"
	if r.Confirm != nil {
		confirmed = r.Confirm.At.Format(time.RFC3339) + " by " + r.Confirm.By
	}
	e.out.Table(nil, [][]term.Cell{
		term.Cells("name", r.Name), term.Cells("position", r.Position+" since "+r.Since.Format(time.RFC3339)+" by "+r.By), term.Cells("moved down from", dash(r.From)),
		term.Cells("kind", string(r.Kind)), term.Cells("window", r.Window.String()+", opened "+opened), term.Cells("confirmed", confirmed),
		term.Cells("running", dash(strings.Join(running, ", "))), term.Cells("missing", dash(strings.Join(r.Missing(now), "; "))),
	})
	e.rolloutRows(r)
	return nil
}

// rolloutRows lists what enforce would refuse.
func (e *environment) rolloutRows(r rollout.Record) {
	rows := make([][]term.Cell, len(r.Rows))
	for i, row := range r.Rows {
		rows[i] = term.Cells(report.Text(row.Host, 255), report.Text(row.Method, 64), report.Text(row.Path, 512), row.Code, row.FirstAt.Format(time.RFC3339))
	}
	if len(rows) > 0 {
		e.out.Raw("\n")
		e.out.Table([]string{"HOST", "METHOD", "PATH", "CODE", "FIRST"}, rows)
	}
	if r.Lost {
		e.say.Line("there were more rows than are kept")
	}
}

// rolloutPosition is the position that a run of the name has.
func rolloutPosition(ctx context.Context, s *store.Store, name string) (proxy.Position, error) {
	position := proxy.Enforce
	err := s.View(ctx, func(t *store.Tx) error {
		r, err := t.Rollout(name)
		if err != nil || r == nil {
			return err
		}
		position, err = proxy.ParsePosition(r.Position)
		return err
	})
	return position, err
}
