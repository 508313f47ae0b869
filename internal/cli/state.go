package cli

import (
	"context"
	"errors"
	"fmt"
	"strconv"

	"github.com/spf13/cobra"

	"github.com/fractalboxdev/sbx/internal/fence"
	"github.com/fractalboxdev/sbx/internal/store"
	"github.com/fractalboxdev/sbx/internal/term"
)

func newStateCommand(e *environment) *cobra.Command {
	cmd := group("state", "Look after what sbx remembers between runs")
	var checkJSON, migrateJSON bool
	path := &cobra.Command{
		Use: "path", Short: "Print the state directory", Args: exactly(),
		RunE: func(*cobra.Command, []string) error { return e.statePath() },
	}
	check := &cobra.Command{
		Use: "check", Short: "Look at all of the store; the exit status is 1 when something is wrong with it", Args: exactly(),
		RunE: func(cmd *cobra.Command, _ []string) error { return e.checkState(cmd.Context(), checkJSON) },
	}
	check.Flags().BoolVar(&checkJSON, "json", false, "print JSON")
	migrate := &cobra.Command{
		Use: "migrate", Short: "Make the store, or bring its schema up to date, and clear what dead runs left in it", Args: exactly(),
		Long: "Make the store, or bring its schema up to date, and clear what dead runs left in it.\n" +
			"Every run does this as well; doing it before a deployment shows that it can be done.",
		RunE: func(cmd *cobra.Command, _ []string) error { return e.migrateState(cmd.Context(), migrateJSON) },
	}
	migrate.Flags().BoolVar(&migrateJSON, "json", false, "print JSON")
	cmd.AddCommand(path, check, migrate)
	return cmd
}

// configuredState is the state directory of the configuration in force.
func (e *environment) configuredState() (string, error) {
	c, err := e.loadConfig()
	if err != nil {
		return "", err
	}
	return e.stateDir(c)
}

func (e *environment) statePath() error {
	dir, err := e.configuredState()
	if err != nil {
		return err
	}
	e.out.Raw(dir + "\n")
	return nil
}

func (e *environment) checkState(ctx context.Context, asJSON bool) error {
	dir, err := e.configuredState()
	if err != nil {
		return err
	}
	s, err := store.Open(ctx, store.Options{Dir: dir, Existing: true, AsIs: true})
	if errors.Is(err, store.ErrMissing) {
		return e.printReport(store.Report{Path: dir, Known: store.Known(), Problems: []string{}, Notes: []string{"there is no store yet; the first run makes it"}}, asJSON)
	}
	if errors.Is(err, store.ErrCorrupt) {
		return &exitError{exitNegative, err}
	}
	if err != nil {
		return err
	}
	defer s.Close()
	r, err := s.Check(ctx)
	if err == nil && len(r.Problems) == 0 && r.Schema == r.Known {
		err = noteUntold(ctx, s, dir, &r)
	}
	if err != nil {
		return err
	}
	if err := e.printReport(r, asJSON); err != nil {
		return err
	}
	if len(r.Problems) > 0 {
		return &exitError{code: exitNegative}
	}
	return nil
}

// noteUntold notes what the store alone does not show: whether a run is gone that stands
// there as under way.
func noteUntold(ctx context.Context, s *store.Store, dir string, r *store.Report) error {
	gone, err := fence.Untold(ctx, s, dir)
	for _, run := range gone {
		r.Notes = append(r.Notes, fmt.Sprintf("run %s is gone and its rollout still waits for it; the next run tells it so", run))
	}
	return err
}

func (e *environment) printReport(r store.Report, asJSON bool) error {
	if asJSON {
		return e.printJSON(r)
	}
	rows := [][]term.Cell{
		term.Cells("store", r.Path), term.Cells("id", dash(r.ID)),
		term.Cells("schema", fmt.Sprintf("%d of %d", r.Schema, r.Known)), term.Cells("bytes", strconv.FormatInt(r.Bytes, 10)),
	}
	for _, text := range r.Notes {
		rows = append(rows, []term.Cell{{Text: "note", Tone: term.Unsure}, {Text: text}})
	}
	for _, text := range r.Problems {
		rows = append(rows, []term.Cell{{Text: "problem", Tone: term.Bad}, {Text: text}})
	}
	if len(r.Problems) == 0 {
		rows = append(rows, []term.Cell{{Text: "check", Tone: term.Good}, {Text: "nothing is wrong"}})
	}
	e.out.Table(nil, rows)
	return nil
}

func (e *environment) migrateState(ctx context.Context, asJSON bool) error {
	dir, err := e.configuredState()
	if err != nil {
		return err
	}
	before, err := schemaOf(ctx, dir)
	if err != nil {
		return err
	}
	s, err := store.Open(ctx, store.Options{Dir: dir})
	if err != nil {
		return err
	}
	defer s.Close()
	freed, err := s.FreeDead(ctx)
	if err = errors.Join(err, fence.TellRollouts(ctx, s, dir)); err != nil {
		return err
	}
	if asJSON {
		return e.printJSON(struct {
			Path  string `json:"path"`
			From  int    `json:"from"`
			To    int    `json:"to"`
			Freed int    `json:"freed_tickets"`
		}{s.Path(), before, s.Schema(), len(freed)})
	}
	what := fmt.Sprintf("migrated from version %d to %d", before, s.Schema())
	if before == s.Schema() {
		what = fmt.Sprintf("at version %d already", before)
	}
	e.out.Raw(fmt.Sprintf("%s: %s; freed %d tickets of dead runs\n", s.Path(), what, len(freed)))
	return nil
}

// schemaOf is the version of the store's schema, 0 where there is no store.
func schemaOf(ctx context.Context, dir string) (int, error) {
	s, err := store.Open(ctx, store.Options{Dir: dir, Existing: true, AsIs: true})
	if errors.Is(err, store.ErrMissing) {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	defer s.Close()
	return s.Schema(), nil
}
