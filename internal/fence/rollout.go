package fence

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/fractalboxdev/sbx/internal/artifact"
	"github.com/fractalboxdev/sbx/internal/event"
	"github.com/fractalboxdev/sbx/internal/proxy"
	"github.com/fractalboxdev/sbx/internal/report"
	"github.com/fractalboxdev/sbx/internal/rollout"
	"github.com/fractalboxdev/sbx/internal/store"
)

// settlePosition takes the position from the run name's rollout, unless this run was
// given one. A name without a rollout is enforced. Once it is settled it stays.
func (f *fence) settlePosition(ctx context.Context) error {
	if f.settled {
		return nil
	}
	f.settled = true
	if f.o.RunName != "" {
		if err := f.readRollout(ctx); err != nil {
			return err
		}
	}
	f.receipt.Position = f.o.Position.String()
	if f.o.OnPosition != nil {
		f.o.OnPosition(f.o.Position, f.receipt.Rollout)
	}
	return nil
}

func (f *fence) readRollout(ctx context.Context) error {
	s, err := f.o.Store()
	if err != nil {
		return err
	}
	var r *rollout.Record
	err = s.View(ctx, func(t *store.Tx) (err error) {
		r, err = t.Rollout(f.o.RunName)
		return err
	})
	if err != nil || r == nil {
		return err
	}
	position, err := proxy.ParsePosition(r.Position)
	if err != nil {
		return fmt.Errorf("reading the rollout %s: %w", r.Name, err)
	}
	if !f.o.PositionGiven {
		f.o.Position = position
	}
	f.receipt.Rollout = rolloutFacts(*r)
	return nil
}

func rolloutFacts(r rollout.Record) *event.Rollout {
	facts := &event.Rollout{Name: r.Name, Position: r.Position, Since: r.Since, By: r.By, From: r.From}
	if r.Position == rollout.Report && !r.Opened.IsZero() {
		facts.WindowEnds = r.Opened.Add(r.Window)
	}
	return facts
}

// observed reports whether what this run is denied counts for its rollout.
func (f *fence) observed() bool {
	return f.receipt.Rollout != nil && f.receipt.Rollout.Position == rollout.Report && f.o.Position == proxy.Report
}

// beginObserved notes the run before it can ask for anything: should it be killed, its
// rollout is told so by the sweep. The run's entry has to be there before (Untold).
func (f *fence) beginObserved(ctx context.Context) error {
	if !f.observed() {
		return nil
	}
	s, err := f.o.Store()
	if err != nil {
		return err
	}
	return s.Update(ctx, func(t *store.Tx) error { return t.BeginObserved(f.id, f.o.RunName) })
}

// endObserved tells the rollout what would have been denied, while the run's entry is held
// (Untold). A run that it cannot tell of stays noted as one that has not ended, and so is in
// the way of graduating, until the next run's sweep opens the window anew for it.
func (f *fence) endObserved(rows []event.Denial) {
	if !f.observed() || f.o.Store == nil {
		return
	}
	err := f.observe(rows)
	if err != nil {
		f.receipt.Rollout.Problem = err.Error()
	}
}

func (f *fence) observe(denials []event.Denial) error {
	ctx, cancel := context.WithTimeout(context.Background(), storeLimit)
	defer cancel()
	s, err := f.o.Store()
	if err != nil {
		return err
	}
	rows, complete := wouldBeDenied(denials)
	return s.Update(ctx, func(t *store.Tx) error {
		name, err := t.EndObserved(f.id)
		if err != nil || name == "" || !f.took(stepApply) {
			return err
		}
		r, err := t.Rollout(name)
		if err != nil || r == nil {
			return err // taken back meanwhile
		}
		next, news := rollout.Observe(*r, f.digest(), rows, complete, time.Now().UTC())
		f.receipt.Rollout.News = news
		f.receipt.Rollout.WindowEnds = next.Opened.Add(next.Window)
		return t.PutRollout(next)
	})
}

// took reports whether a step was taken, well or not.
func (f *fence) took(step string) bool {
	for _, s := range f.receipt.Steps {
		if s.Name == step {
			return true
		}
	}
	return false
}

// wouldBeDenied are the rows that enforce would have refused. They are not complete when
// the run had more than its report holds.
func wouldBeDenied(denials []event.Denial) (rows []rollout.Row, complete bool) {
	complete = true
	for _, d := range denials {
		switch {
		case d.Host == "" && d.Method == "" && d.Code == report.CodeOverflow:
			complete = false
		case d.WouldDeny:
			rows = append(rows, rollout.Row{Host: d.Host, Method: d.Method, Path: d.Path, Code: d.Code, FirstAt: d.FirstAt.UTC()})
		}
	}
	return rows, complete
}

// tellRollouts tells the rollouts of the runs under report that are gone.
func (f *fence) tellRollouts(ctx context.Context) error {
	s, err := f.o.Store()
	if err != nil {
		return err
	}
	return TellRollouts(ctx, s, f.o.StateDir)
}

// TellRollouts tells the rollouts of the runs that Untold finds: what those would have
// been denied is not known for sure.
func TellRollouts(ctx context.Context, s *store.Store, stateDir string) error {
	gone, err := Untold(ctx, s, stateDir)
	if err != nil || len(gone) == 0 {
		return err
	}
	return s.Update(ctx, func(t *store.Tx) error {
		var errs []error
		for _, run := range gone {
			errs = append(errs, tellRollout(t, run))
		}
		return errors.Join(errs...)
	})
}

// Untold finds the runs under report that are gone and could not say so themselves: they
// were killed, or the store was not to be had, or whoever swept them could not say it. A
// run is noted after its entry in the state directory was made, and gives that up after it
// told its rollout. So one that is noted and that nobody holds the entry of is gone for
// certain, and none that begins right now is taken for it.
func Untold(ctx context.Context, s *store.Store, stateDir string) (gone []string, err error) {
	var noted []string
	err = s.View(ctx, func(t *store.Tx) (err error) {
		noted, err = t.Observed("")
		return err
	})
	if err != nil {
		return nil, err
	}
	for _, run := range noted {
		switch err := artifact.CheckLiving(stateDir, run); {
		case errors.Is(err, artifact.ErrEnded):
			gone = append(gone, run)
		case err != nil:
			return nil, err
		}
	}
	return gone, nil
}

func tellRollout(t *store.Tx, run string) error {
	name, err := t.EndObserved(run)
	if err != nil || name == "" {
		return err // another sweep was first
	}
	r, err := t.Rollout(name)
	if err != nil || r == nil {
		return err
	}
	return t.PutRollout(rollout.Interrupted(*r, time.Now().UTC()))
}
