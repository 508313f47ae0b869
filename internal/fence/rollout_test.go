package fence

import (
	"errors"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/fractalboxdev/sbx/internal/artifact"
	"github.com/fractalboxdev/sbx/internal/class"
	"github.com/fractalboxdev/sbx/internal/event"
	"github.com/fractalboxdev/sbx/internal/rollout"
	"github.com/fractalboxdev/sbx/internal/store"
)

// quiet is a state directory with a rollout whose window opened an hour ago.
func quiet(t *testing.T) (dir string, s *store.Store, r rollout.Record) {
	t.Helper()
	dir = filepath.Join(t.TempDir(), "state")
	s, err := store.Open(t.Context(), store.Options{Dir: dir})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	before := time.Now().UTC().Add(-time.Hour)
	r, err = rollout.Start(rollout.Record{}, "ci", rollout.Report, class.Lean, time.Hour, "ops", before)
	if err != nil {
		t.Fatal(err)
	}
	r, _ = rollout.Observe(r, "g1", nil, true, before)
	update(t, s, func(tx *store.Tx) error { return tx.PutRollout(r) })
	return dir, s, r
}

func update(t *testing.T, s *store.Store, do func(*store.Tx) error) {
	t.Helper()
	if err := s.Update(t.Context(), do); err != nil {
		t.Fatal(err)
	}
}

// entered is a run under report that has begun.
func entered(t *testing.T, dir string, s *store.Store) *artifact.Run {
	t.Helper()
	run, err := artifact.Open(artifact.Options{StateDir: dir, RunID: artifact.NewID(time.Now())})
	if err != nil {
		t.Fatal(err)
	}
	update(t, s, func(tx *store.Tx) error { return tx.BeginObserved(run.ID(), "ci") })
	return run
}

// sweepOf is the sweep of a run that finds nothing else to do.
func sweepOf(t *testing.T, dir string, s *store.Store) {
	t.Helper()
	f := &fence{o: Options{StateDir: dir, Store: func() (*store.Store, error) { return s, nil }}, pathsErr: errors.New("none")}
	if err := f.sweep(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// A run whose entry is gone tells its rollout nothing any more, whoever swept it: the next
// sweep does. One that lives does that itself.
func TestTheSweepTellsRolloutsOfAllRunsThatAreGone(t *testing.T) {
	for name, leave := range map[string]func(*testing.T, *artifact.Run){
		"it ended, and could not note it": func(t *testing.T, run *artifact.Run) {
			if err := run.Finish(event.Receipt{}); err != nil {
				t.Error(err)
			}
			run.Close()
		},
		"it was killed": func(_ *testing.T, run *artifact.Run) { run.Close() },
	} {
		dir, s, before := quiet(t)
		run := entered(t, dir, s)
		look := func() (now rollout.Record, noted []string) {
			err := s.View(t.Context(), func(tx *store.Tx) error {
				r, err := tx.Rollout("ci")
				if err == nil {
					now = *r
				}
				noted, err = tx.Observed("ci")
				return err
			})
			if err != nil {
				t.Fatal(err)
			}
			return now, noted
		}
		sweepOf(t, dir, s)
		if now, noted := look(); !slices.Equal(noted, []string{run.ID()}) || !now.Opened.Equal(before.Opened) {
			t.Errorf("%s: while it lived: %q, opened %s by %s", name, noted, now.Opened, now.Why)
		}
		leave(t, run)
		sweepOf(t, dir, s)
		if now, noted := look(); len(noted) != 0 || !now.Opened.After(before.Opened) || now.Runs != 0 {
			t.Errorf("%s: %q, opened %s by %s", name, noted, now.Opened, now.Why)
		}
	}
}
