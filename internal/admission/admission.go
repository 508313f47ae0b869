// Package admission lets runs into the pool of their class, one ticket each: at once,
// after a wait in strict order, or not at all.
package admission

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	"github.com/fractalboxdev/sbx/internal/class"
	"github.com/fractalboxdev/sbx/internal/event"
	"github.com/fractalboxdev/sbx/internal/store"
	"github.com/fractalboxdev/sbx/internal/ticket"
	"github.com/fractalboxdev/sbx/internal/trap"
)

// Codes of refusals.
const (
	CodeFull    = "pool-full"
	CodeWaited  = "wait-over"
	CodeStopped = "wait-stopped"
)

// Life is how long a ticket may start a sandbox, counted from admission and from each
// heartbeat. The slot does not depend on it: that is held for as long as its process lives.
const Life = time.Minute

// beatEvery is the time between two heartbeats.
const beatEvery = Life / 4

// lookAgain is how often a waiter reads its position. It is not needed to be admitted:
// whoever leaves wakes the next.
const lookAgain = time.Second

// ErrStopped is the cause of a wait that the caller ended.
var ErrStopped = errors.New("stopped while waiting")

// Rules are the operator's for one run.
type Rules struct {
	Class class.Name
	Cap   int
	Queue bool          // wait where the pool is full
	Wait  time.Duration // at most; 0: without end
	// OnWait is told the position whenever it changes, at last that the wait is over. It
	// is called on the goroutine of Admit and must not block.
	OnWait func(Position)
}

// Position is a place in the queue; the zero value stands for the wait's end.
type Position struct {
	Class class.Name
	Ahead int // claims that will be admitted before
	Since time.Time
}

// Request is who asks.
type Request struct {
	Run      string
	Sandbox  string // the key of a kept sandbox, "" for one of the run's own
	Consumer string
}

// Admission is a held slot and its ticket.
type Admission struct {
	Ticket ticket.Ticket
	Facts  event.Admission

	want  ticket.Claims
	store *store.Store
	lease *store.Lease

	beats   chan struct{} // closed to end the heartbeats
	beating sync.WaitGroup
	missed  error // the last heartbeat that failed
}

// Admit takes a slot of the class, or waits for one where the rules say so. The error
// is an *event.Refusal of kind admission-refused, or the store's; nothing is left of
// the request then.
func Admit(ctx context.Context, s *store.Store, r Rules, q Request) (*Admission, error) {
	claim := store.Claim{
		Run: q.Run, Class: string(r.Class), Sandbox: q.Sandbox, Consumer: q.Consumer, Cap: r.Cap, Queue: r.Queue, Life: Life,
	}
	a := &Admission{
		store: s, Facts: event.Admission{Class: string(r.Class), Cap: r.Cap},
		want: ticket.Claims{Run: q.Run, Sandbox: q.Sandbox, Class: string(r.Class)},
	}
	lease, err := a.obtain(ctx, claim, r)
	if err != nil {
		return nil, err
	}
	a.lease, a.want.Expires = lease, lease.Admitted.Add(Life)
	a.Facts.Slot, a.Facts.AskedAt, a.Facts.AdmittedAt = lease.Slot, lease.Asked.UTC(), lease.Admitted.UTC()
	if a.Ticket, err = ticket.Issue(a.want, s.MAC); err != nil {
		return nil, errors.Join(err, lease.Release(ctx))
	}
	return a, nil
}

// obtain claims a slot, and waits for it where the rules say so.
func (a *Admission) obtain(ctx context.Context, claim store.Claim, r Rules) (*store.Lease, error) {
	lease, place, busy, err := a.store.Claim(ctx, claim)
	switch {
	case err != nil && ctx.Err() != nil:
		return nil, refuse(CodeStopped, r, busy, "stopped while asking for a slot of class "+string(r.Class), "")
	case err != nil || lease != nil:
		return lease, err
	case place == nil:
		return nil, full(r, busy)
	}
	lease, err = a.wait(ctx, place, r)
	if errors.Is(err, store.ErrLost) {
		return nil, ticket.Reject(ticket.CodeLost, err.Error())
	}
	return lease, err
}

// full is the refusal of a pool without a free slot.
func full(r Rules, busy store.Busy) error {
	message := fmt.Sprintf("the pool of class %s is full: %d of %d slots are held", r.Class, busy.Busy, r.Cap)
	if busy.Waiting > 0 {
		message += fmt.Sprintf(", %d %s", busy.Waiting, plural(busy.Waiting, "run waits", "runs wait"))
	}
	return refuse(CodeFull, r, busy, message,
		fmt.Sprintf("wait for a slot with --queue, or raise class.%s.cap in the operator configuration; \"sbx pool status\" shows who holds them", r.Class))
}

func refuse(code string, r Rules, busy store.Busy, message, next string) error {
	return &event.Refusal{
		Kind: event.RefusedAdmission, Code: code, Message: message, Next: next,
		PoolState: &event.PoolState{Class: string(r.Class), Busy: busy.Busy, Cap: r.Cap, Queued: busy.Waiting},
	}
}

func plural(n int, one, more string) string {
	if n == 1 {
		return one
	}
	return more
}

// wait stands in the queue until it is this claim's turn.
func (a *Admission) wait(ctx context.Context, p *store.Place, r Rules) (*store.Lease, error) {
	since := time.Now()
	if r.Wait > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithDeadlineCause(ctx, since.Add(r.Wait), errWaited)
		defer cancel()
	}
	stop, err := newStop(ctx)
	if err != nil {
		return nil, errors.Join(err, p.Leave(context.WithoutCancel(ctx)))
	}
	defer stop.close()
	if r.OnWait != nil {
		defer r.OnWait(Position{})
	}
	w := &waiter{a: a, place: p, rules: r, since: since, ahead: -1}
	for {
		lease, err := w.turn(ctx, stop)
		if lease != nil {
			return lease, nil
		}
		if err != nil {
			return nil, w.giveUp(ctx, err)
		}
	}
}

// errWaited is the cause of a wait that took as long as it might.
var errWaited = errors.New("the wait is over")

type waiter struct {
	a     *Admission
	place *store.Place
	rules Rules
	since time.Time
	ahead int // as last said
}

// turn asks once, says the position, and sleeps until something happens to the queue.
func (w *waiter) turn(ctx context.Context, stop *stop) (*store.Lease, error) {
	lease, watch, err := w.place.Advance(ctx)
	if err != nil || lease != nil {
		return lease, err
	}
	if err := w.tell(ctx); err != nil {
		return nil, errors.Join(err, watch.Wait(0, -1))
	}
	if err := watch.Wait(lookAgain, stop.fd()); err != nil {
		return nil, fmt.Errorf("waiting for a slot: %w", err)
	}
	return nil, ctx.Err()
}

func (w *waiter) tell(ctx context.Context) error {
	ahead, err := w.place.Ahead(ctx)
	if err != nil || ahead == w.ahead {
		return err
	}
	if w.ahead < 0 {
		w.a.Facts.Ahead = ahead
	}
	w.ahead = ahead
	if w.rules.OnWait != nil {
		w.rules.OnWait(Position{Class: w.rules.Class, Ahead: ahead, Since: w.since})
	}
	return nil
}

// giveUp leaves the queue and says why.
func (w *waiter) giveUp(ctx context.Context, err error) error {
	var busy store.Busy
	still := context.WithoutCancel(ctx)
	left := w.place.Leave(still)
	if ctx.Err() != nil && left == nil {
		left = w.a.store.View(still, func(t *store.Tx) (err error) { busy, err = t.Busy(string(w.rules.Class)); return err })
	}
	if ctx.Err() == nil || left != nil {
		return errors.Join(err, left)
	}
	after := time.Since(w.since).Round(time.Second)
	if errors.Is(context.Cause(ctx), errWaited) {
		return refuse(CodeWaited, w.rules, busy,
			fmt.Sprintf("no slot of class %s came free within %s; %d %s still ahead", w.rules.Class, w.rules.Wait, w.ahead, plural(w.ahead, "run was", "runs were")),
			"wait longer with --wait, or look with \"sbx pool status\" who holds the slots")
	}
	return refuse(CodeStopped, w.rules, busy,
		fmt.Sprintf("stopped after waiting %s for a slot of class %s", after, w.rules.Class), "")
}

// Check returns an error wrapping ticket.ErrRejected unless the admission's ticket may
// start this sandbox now.
func (a *Admission) Check(run, sandbox string, pool class.Name) error {
	if a == nil {
		return ticket.Ticket{}.Check(ticket.Claims{Run: run}, time.Now(), nil)
	}
	if a.lease == nil {
		return ticket.Reject(ticket.CodeReturned, fmt.Sprintf("starting run %q with a ticket that was given back", run))
	}
	return a.Ticket.Check(ticket.Claims{Run: run, Sandbox: sandbox, Class: string(pool)}, time.Now(), a.store.MAC)
}

// Beat says every now and then that the run goes on, until Release.
func (a *Admission) Beat(ctx context.Context) {
	a.beats = make(chan struct{})
	a.beating.Go(func() {
		tick := time.NewTicker(beatEvery)
		defer tick.Stop()
		for {
			select {
			case <-a.beats:
				return
			case now := <-tick.C:
				a.missed = trap.Call(func() error { return a.lease.Beat(ctx, now, now.Add(Life)) })
			}
		}
	})
}

// Release gives the slot back and makes sure that the store says so. A nil admission
// holds nothing.
func (a *Admission) Release(ctx context.Context) error {
	if a == nil || a.lease == nil {
		return nil
	}
	if a.beats != nil {
		close(a.beats)
		a.beating.Wait()
		a.beats = nil
	}
	lease := a.lease
	a.lease = nil
	if err := lease.Release(ctx); err != nil {
		return errors.Join(err, a.missed)
	}
	return nil
}

// stop is a descriptor that becomes readable when a context ends.
type stop struct {
	reader, writer *os.File
	release        func() bool
}

func newStop(ctx context.Context) (*stop, error) {
	r, w, err := os.Pipe()
	if err != nil {
		return nil, fmt.Errorf("waiting for a slot: %w", err)
	}
	s := &stop{reader: r, writer: w}
	s.release = context.AfterFunc(ctx, func() { _ = w.Close() })
	return s, nil
}

func (s *stop) fd() int { return int(s.reader.Fd()) }

func (s *stop) close() {
	s.release()
	_ = s.writer.Close() // may be closed
	_ = s.reader.Close()
}
