package fence

import (
	"context"
	"errors"
	"os/signal"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fractalboxdev/sbx/internal/admission"
	"github.com/fractalboxdev/sbx/internal/class"
	"github.com/fractalboxdev/sbx/internal/event"
	"github.com/fractalboxdev/sbx/internal/sandbox/stage"
	"github.com/fractalboxdev/sbx/internal/store"
	"github.com/fractalboxdev/sbx/internal/trap"
)

// beginStore has the store opened while the grant is derived. One that lies where the
// command could write is refused before a byte of it is read.
func (f *fence) beginStore() error {
	if err := f.checkStateDir(); err != nil {
		return err
	}
	if f.o.Store == nil {
		return errors.New("opening the store: the caller has none")
	}
	trap.Trap(f.faults.catch).Go(func() {
		_ = fault("go/store", 0)
		_, _ = f.o.Store() // whoever needs it asks again
	})
	return nil
}

// freeDead frees what processes held that are gone, and names them among the swept.
func (f *fence) freeDead(ctx context.Context) error {
	s, err := f.o.Store()
	if err != nil {
		return err
	}
	freed, err := s.FreeDead(ctx)
	for _, dead := range freed {
		f.noteFreed(dead)
	}
	return err
}

func (f *fence) noteFreed(dead store.Freed) {
	what := "its slot of class " + dead.Class
	if dead.Waiting {
		what = "its place in the queue of class " + dead.Class
	}
	for i := range f.receipt.Swept {
		if s := &f.receipt.Swept[i]; s.Run == dead.Run {
			s.Freed = what
			return
		}
	}
	f.receipt.Swept = append(f.receipt.Swept, event.Swept{Run: dead.Run, StartedAt: dead.AskedAt, Freed: what})
}

// class is the run's: the profiles' before the operator's.
func (f *fence) class() class.Name {
	for _, name := range []class.Name{f.derived.Grant.Class(), f.o.Class} {
		if name != "" {
			return name
		}
	}
	return class.Default
}

// admit takes the run's slot, which it keeps until the revoke. While it waits for one, the signals that ask sbx to
// end end the wait.
func (f *fence) admit(ctx context.Context) error {
	s, err := f.o.Store()
	if err != nil {
		return err
	}
	rules := f.o.Pools.For(f.class())
	if rules.Queue {
		f.faults.pause()
		defer f.faults.resume()
		var stop func()
		ctx, stop = signal.NotifyContext(ctx, unix.SIGINT, unix.SIGTERM, unix.SIGHUP, unix.SIGQUIT)
		defer stop()
	}
	f.admission, err = admission.Admit(ctx, s, rules, admission.Request{Run: f.id, Consumer: f.o.Consumer})
	if err != nil {
		return err
	}
	f.receipt.Admission = &f.admission.Facts
	return nil
}

// tidyAfter is how long a command runs before sbx sets itself up for a longer one: the
// end of a shorter one would have to wait for the disk.
const tidyAfter = 50 * time.Millisecond

// settleIn lets the proxy use all processors and tidies the store.
func (f *fence) settleIn() {
	stage.Free()
	if s, err := f.o.Store(); err == nil {
		_ = s.Tidy(context.Background()) // a log that is long is only slow
	}
}

// leasePart gives the slot back and checks that the store says so.
func (f *fence) leasePart() []part {
	if f.admission == nil {
		return nil
	}
	if f.tidy != nil {
		f.tidy.Stop()
	}
	return []part{{what: "lease released", limit: storeLimit, do: f.admission.Release}}
}
