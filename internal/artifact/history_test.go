package artifact

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/fractalboxdev/sbx/internal/event"
)

func TestHistoryIsNewestFirstAndOnlyEndedRunsAreRemoved(t *testing.T) {
	state := private(t)
	begin := func(at time.Time) *Run {
		run, err := Open(Options{StateDir: state, RunID: NewID(at)})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(run.Close)
		return run
	}
	at := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	old, young := begin(at), begin(at.Add(time.Hour))
	if err := os.Mkdir(filepath.Join(state, "runs", "NOT A RUN"), 0o700); err != nil {
		t.Fatal(err)
	}
	got, err := History(state)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{young.ID(), old.ID()}, got); diff != "" {
		t.Error(diff)
	}
	if err := Remove(state, old.ID()); !errors.Is(err, ErrActive) {
		t.Errorf("of a run that is under way: %v", err)
	}
	if err := old.Finish(event.Receipt{}); err != nil {
		t.Fatal(err)
	}
	if err := CheckLiving(state, old.ID()); !errors.Is(err, ErrEnded) {
		t.Errorf("a run that is finished: %v", err)
	}
	if err := Remove(state, old.ID()); !errors.Is(err, ErrActive) {
		t.Errorf("of a run whose records may yet be copied: %v", err)
	}
	old.Close()
	if err := Remove(state, old.ID()); err != nil {
		t.Error(err)
	}
	if _, err := os.Lstat(old.Dir()); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("still there: %v", err)
	}
	for _, id := range []string{"../runs", "", "a/b"} {
		if err := Remove(state, id); err == nil {
			t.Errorf("%q was removed", id)
		}
	}
	if ids, err := History(filepath.Join(state, "missing")); err != nil || ids != nil {
		t.Errorf("of no directory: %v, %v", ids, err)
	}
}
