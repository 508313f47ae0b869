package store

import (
	"errors"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/fractalboxdev/sbx/internal/class"
	"github.com/fractalboxdev/sbx/internal/rollout"
)

func TestRolloutsAreKept(t *testing.T) {
	s := open(t, stateDir(t))
	at := time.Date(2026, 1, 2, 12, 0, 0, 0, time.UTC)
	r, err := rollout.Start(rollout.Record{}, "ci", rollout.Report, class.Task, time.Hour, "ops", at)
	if err != nil {
		t.Fatal(err)
	}
	r, _ = rollout.Observe(r, "g1", []rollout.Row{{Host: "a.test", Method: "GET", Path: "/", Code: "x", FirstAt: at}}, true, at)
	b := r
	b.Name = "build"
	err = s.Update(t.Context(), func(tx *Tx) error {
		return errors.Join(tx.PutRollout(rollout.Record{Name: "ci"}), tx.PutRollout(r), tx.PutRollout(b), tx.BeginObserved("r1", "ci"), tx.BeginObserved("r2", "ci"), tx.BeginObserved("r3", "build"))
	})
	if err != nil {
		t.Fatal(err)
	}
	err = s.Update(t.Context(), func(tx *Tx) error {
		got, err := tx.Rollout("ci")
		all, allErr := tx.Rollouts()
		none, noneErr := tx.Rollout("other")
		if diff := cmp.Diff(&r, got); diff != "" || none != nil || len(all) != 2 || all[0].Name != "build" {
			t.Errorf("%s; %+v; %d", diff, none, len(all))
		}
		name, endErr := tx.EndObserved("r1")
		unknown, unknownErr := tx.EndObserved("r9")
		runs, runsErr := tx.Observed("ci")
		every, everyErr := tx.Observed("")
		if name != "ci" || unknown != "" || len(runs) != 1 || runs[0] != "r2" || len(every) != 2 {
			t.Errorf("%q %q %q %q", name, unknown, runs, every)
		}
		return errors.Join(err, allErr, noneErr, endErr, unknownErr, runsErr, everyErr, tx.DropRollout("ci"))
	})
	if err != nil {
		t.Fatal(err)
	}
	err = s.View(t.Context(), func(tx *Tx) error {
		got, err := tx.Rollout("ci")
		runs, runsErr := tx.Observed("")
		if got != nil || len(runs) != 1 || runs[0] != "r3" {
			t.Errorf("%+v, %q", got, runs)
		}
		return errors.Join(err, runsErr)
	})
	if err != nil {
		t.Fatal(err)
	}
}

// A record that nobody understands lowers nothing.
func TestARolloutThatCannotBeReadIsAnError(t *testing.T) {
	s := open(t, stateDir(t))
	for _, text := range []string{"", "{", `{"position": 1}`, `{"more": 1}`} {
		err := s.Update(t.Context(), func(tx *Tx) error {
			if _, err := tx.exec("INSERT OR REPLACE INTO rollouts VALUES ('ci', ?)", text); err != nil {
				return err
			}
			_, err := tx.Rollout("ci")
			return err
		})
		if !errors.Is(err, ErrCorrupt) {
			t.Errorf("%q: %v", text, err)
		}
	}
}
