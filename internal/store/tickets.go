package store

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"golang.org/x/sys/unix"
)

// ticketsSchema has no index: the table has few rows, and each index would make every
// start of a run write one more page.
const ticketsSchema = `
CREATE TABLE tickets (
	id INTEGER PRIMARY KEY, -- the order of asking
	run TEXT NOT NULL,
	class TEXT NOT NULL,
	sandbox TEXT NOT NULL,
	consumer TEXT NOT NULL,
	asked_at INTEGER NOT NULL,
	beat_at INTEGER NOT NULL,
	expires_at INTEGER NOT NULL,
	admitted_at INTEGER, -- NULL while it waits
	slot INTEGER, -- of its class; NULL while it waits
	CHECK ((admitted_at IS NULL) = (slot IS NULL))
) STRICT;
`

// Claim is what asks for a slot of its class.
type Claim struct {
	Run      string
	Class    string
	Sandbox  string // the key of a kept sandbox; "" for one of the run's own
	Consumer string
	Cap      int           // slots of the class
	Queue    bool          // wait for one where all are taken
	Life     time.Duration // how long the ticket may start a sandbox
}

// Busy says why there was no slot.
type Busy struct {
	Busy    int // slots that are held
	Waiting int // claims that wait
}

// Freed is a claim whose process is gone.
type Freed struct {
	Run, Class, Consumer string
	Waiting              bool
	AskedAt              time.Time
}

// Lease is a held slot. It is this process's own: the kernel takes the slot back
// when the process ends, however it ends.
type Lease struct {
	s     *Store
	gate  *gate
	Run   string
	Class string
	Slot  int
	// Asked and Admitted are taken while no other process can write: their order is that
	// of the claims.
	Asked, Admitted time.Time
}

// Place is a place in the queue of a class.
type Place struct {
	s     *Store
	gate  *gate
	claim Claim
	id    int64
	asked time.Time
}

// Claim takes a slot, or with Queue a place in the queue, in one transaction:
// whoever waits comes before whoever asks. Without either it returns Busy, and
// nothing is left of the claim.
func (s *Store) Claim(ctx context.Context, c Claim) (lease *Lease, place *Place, busy Busy, err error) {
	if !plainName(c.Run) || !plainName(c.Class) {
		return nil, nil, busy, fmt.Errorf("claiming a slot: %q of %q cannot name a file", c.Run, c.Class)
	}
	err = s.Update(ctx, func(t *Tx) error {
		asked := time.Now()
		if err := t.dropDeadWaiters(c.Class); err != nil {
			return err
		}
		if lease, busy, err = t.admit(c, 0, asked); err != nil || lease != nil || !c.Queue {
			return err
		}
		place, err = t.enqueue(c, asked)
		return err
	})
	if err != nil {
		return nil, nil, busy, errors.Join(err, lease.drop(), place.drop())
	}
	return lease, place, busy, nil
}

// plainName reports whether a name is made of letters, digits and inner hyphens.
func plainName(name string) bool {
	for _, c := range []byte(name) {
		if (c < 'a' || c > 'z') && (c < 'A' || c > 'Z') && (c < '0' || c > '9') && c != '-' {
			return false
		}
	}
	return name != "" && len(name) <= 128
}

// admit takes a free slot unless somebody waits who asked before; waiter is the id of
// the claim's own row in the queue, or 0.
func (t *Tx) admit(c Claim, waiter int64, asked time.Time) (*Lease, Busy, error) {
	var busy Busy
	var ahead int
	_, err := t.one("SELECT count(slot), count(*) - count(slot), count(CASE WHEN slot IS NULL AND (?2 = 0 OR id < ?2) THEN 1 END) FROM tickets WHERE class = ?1",
		[]any{c.Class, waiter}, &busy.Busy, &busy.Waiting, &ahead)
	if err != nil || ahead > 0 {
		return nil, busy, err
	}
	if busy.Busy >= c.Cap {
		dead, err := t.dropDead("class = ? AND slot IS NOT NULL", c.Class)
		if busy.Busy -= len(dead); err != nil || busy.Busy >= c.Cap {
			return nil, busy, err
		}
	}
	slot, gate, orphans, err := t.freeSlot(c)
	if busy.Busy += orphans; err != nil || gate == nil {
		return nil, busy, err
	}
	lease := &Lease{s: t.s, gate: gate, Run: c.Run, Class: c.Class, Slot: slot, Asked: asked, Admitted: time.Now()}
	if err := t.noteAdmitted(c, waiter, lease); err != nil {
		return nil, busy, errors.Join(err, lease.drop())
	}
	return lease, busy, nil
}

func (t *Tx) noteAdmitted(c Claim, waiter int64, l *Lease) error {
	at, expires := l.Admitted.UnixMilli(), l.Admitted.Add(c.Life).UnixMilli()
	if waiter == 0 {
		_, err := t.exec("INSERT INTO tickets (run, class, sandbox, consumer, asked_at, beat_at, expires_at, admitted_at, slot) VALUES (?, ?, ?, ?, ?5, ?5, ?, ?5, ?)",
			c.Run, c.Class, c.Sandbox, c.Consumer, at, expires, l.Slot)
		return err
	}
	n, err := t.exec("UPDATE tickets SET admitted_at = ?1, beat_at = ?1, slot = ?2, expires_at = ?3 WHERE id = ?4 AND run = ?5 AND class = ?6 AND sandbox = ?7 AND slot IS NULL",
		at, l.Slot, expires, waiter, c.Run, c.Class, c.Sandbox)
	if err == nil && n != 1 {
		err = fmt.Errorf("admitting run %s: its place in the queue was taken away or changed: %w", c.Run, ErrLost)
	}
	return err
}

// freeSlot finds the lowest slot that no row has and whose gate nobody holds. The
// kernel's lock decides: a store that lost its rows still gives no slot away twice. It
// counts the slots that are held without a row.
func (t *Tx) freeSlot(c Claim) (slot int, g *gate, orphans int, err error) {
	taken, err := t.slots(c.Class)
	if err != nil {
		return 0, nil, 0, err
	}
	for slot = 0; slot < c.Cap; slot++ {
		if slices.Contains(taken, slot) {
			continue
		}
		if g, err = t.s.hold(slotName(c.Class, slot)); err != nil || g != nil {
			return slot, g, orphans, err
		}
		orphans++
	}
	return 0, nil, orphans, nil
}

// slots lists the slots of a class that are held, as far as the store knows.
func (t *Tx) slots(class string) (slots []int, err error) {
	err = t.each("SELECT slot FROM tickets WHERE class = ? AND slot IS NOT NULL", []any{class}, func(scan func(...any) error) error {
		var slot int
		err := scan(&slot)
		slots = append(slots, slot)
		return err
	})
	return slots, err
}

func (t *Tx) enqueue(c Claim, asked time.Time) (*Place, error) {
	g, err := t.s.hold(waitName(c.Run))
	if err != nil {
		return nil, err
	}
	if g == nil {
		return nil, fmt.Errorf("waiting for a slot: run %s already waits", c.Run)
	}
	p := &Place{s: t.s, gate: g, claim: c, asked: asked}
	found, err := t.one("INSERT INTO tickets (run, class, sandbox, consumer, asked_at, beat_at, expires_at) VALUES (?, ?, ?, ?, ?5, ?5, ?) RETURNING id",
		[]any{c.Run, c.Class, c.Sandbox, c.Consumer, asked.UnixMilli(), asked.Add(c.Life).UnixMilli()}, &p.id)
	if err != nil || !found {
		return nil, errors.Join(err, p.drop())
	}
	return p, nil
}

// dropDeadWaiters forgets the claims at the head of a queue whose process is gone.
func (t *Tx) dropDeadWaiters(class string) error {
	for {
		var run string
		found, err := t.one("SELECT run FROM tickets WHERE class = ? AND slot IS NULL ORDER BY id LIMIT 1", []any{class}, &run)
		if err != nil || !found {
			return err
		}
		dead, err := t.dropDead("run = ?", run)
		if err != nil || len(dead) == 0 {
			return err
		}
	}
}

// dropDead forgets the claims of a selection whose gate nobody holds.
func (t *Tx) dropDead(where string, args ...any) ([]Freed, error) {
	dead, err := t.dead(where, args...)
	for _, f := range dead {
		if _, err := t.exec("DELETE FROM tickets WHERE run = ?", f.Run); err != nil {
			return nil, err
		}
		if f.Waiting {
			if err := t.s.removeGate(waitName(f.Run)); err != nil {
				return nil, err
			}
		}
	}
	return dead, err
}

func (t *Tx) dead(where string, args ...any) ([]Freed, error) {
	var all []Ticket
	err := t.each(ticketColumns+" WHERE "+where+" ORDER BY id", args, func(scan func(...any) error) error {
		row, err := scanTicket(scan)
		all = append(all, row)
		return err
	})
	var dead []Freed
	for _, row := range all {
		name := waitName(row.Run)
		if !row.Waiting {
			name = slotName(row.Class, row.Slot)
		}
		held, err := t.s.held(name)
		if err != nil {
			return nil, err
		}
		if !held {
			dead = append(dead, Freed{Run: row.Run, Class: row.Class, Consumer: row.Consumer, Waiting: row.Waiting, AskedAt: row.AskedAt})
		}
	}
	return dead, err
}

// Ticket is a row of the pools: who holds a slot, or waits for one.
type Ticket struct {
	Run, Class, Sandbox, Consumer string
	Waiting                       bool
	Slot                          int // while it does not wait
	AskedAt, AdmittedAt, BeatAt   time.Time
}

const ticketColumns = "SELECT run, class, sandbox, consumer, slot IS NULL, coalesce(slot, -1), asked_at, coalesce(admitted_at, 0), beat_at FROM tickets"

func scanTicket(scan func(...any) error) (Ticket, error) {
	var t Ticket
	var asked, admitted, beat int64
	err := scan(&t.Run, &t.Class, &t.Sandbox, &t.Consumer, &t.Waiting, &t.Slot, &asked, &admitted, &beat)
	t.AskedAt, t.BeatAt = time.UnixMilli(asked).UTC(), time.UnixMilli(beat).UTC()
	if !t.Waiting {
		t.AdmittedAt = time.UnixMilli(admitted).UTC()
	}
	return t, err
}

// Tickets lists who holds slots and who waits, in the order of asking.
func (t *Tx) Tickets() ([]Ticket, error) {
	var all []Ticket
	err := t.each(ticketColumns+" ORDER BY id", nil, func(scan func(...any) error) error {
		row, err := scanTicket(scan)
		all = append(all, row)
		return err
	})
	return all, err
}

// Living is Tickets without those whose process is gone.
func (t *Tx) Living() ([]Ticket, error) {
	all, err := t.Tickets()
	if err != nil {
		return nil, err
	}
	dead, err := t.dead("true")
	return slices.DeleteFunc(all, func(row Ticket) bool {
		return slices.ContainsFunc(dead, func(f Freed) bool { return f.Run == row.Run })
	}), err
}

// Busy counts the slots of a class that are held, and who waits.
func (t *Tx) Busy(class string) (b Busy, err error) {
	_, err = t.one("SELECT count(slot), count(*) - count(slot) FROM tickets WHERE class = ?", []any{class}, &b.Busy, &b.Waiting)
	return b, err
}

// FreeDead forgets the claims whose process is gone, and says which. It also removes
// the gates that such processes left in the queues.
func (s *Store) FreeDead(ctx context.Context) (freed []Freed, err error) {
	var left []string
	err = s.View(ctx, func(t *Tx) error {
		freed, left, err = t.remains()
		return err
	})
	if err != nil || len(freed)+len(left) == 0 {
		return nil, err
	}
	err = s.Update(ctx, func(t *Tx) error {
		if freed, err = t.dropDead("true"); err != nil {
			return err
		}
		if _, left, err = t.remains(); err != nil {
			return err
		}
		for _, name := range left {
			err = errors.Join(err, s.removeGate(name))
		}
		return err
	})
	return freed, err
}

// remains finds what dead processes left: claims, and gates without one.
func (t *Tx) remains() (dead []Freed, gates []string, err error) {
	if dead, err = t.dead("true"); err != nil {
		return nil, nil, err
	}
	gates, err = t.orphans()
	return dead, gates, err
}

// Beat says that the holder still runs, and renews its ticket.
func (l *Lease) Beat(ctx context.Context, now, expires time.Time) error {
	return l.s.Update(ctx, func(t *Tx) error {
		n, err := t.exec("UPDATE tickets SET beat_at = ?, expires_at = ? WHERE run = ? AND class = ? AND slot = ?", now.UnixMilli(), expires.UnixMilli(), l.Run, l.Class, l.Slot)
		if err == nil && n != 1 {
			err = fmt.Errorf("renewing the lease of run %s: %w", l.Run, ErrLost)
		}
		return err
	})
}

// ErrLost is a lease or place that the store does not know any more.
var ErrLost = errors.New("the store does not know the ticket")

// Release gives the slot back and reads the store back. Whatever fails, the slot is
// free afterwards, since its gate is not held any more. A nil lease, and one that was
// released, is a no-op.
func (l *Lease) Release(ctx context.Context) error {
	if l == nil || l.gate == nil {
		return nil
	}
	err := l.s.Update(ctx, func(t *Tx) error {
		n, err := t.exec("DELETE FROM tickets WHERE run = ? AND class = ? AND slot = ?", l.Run, l.Class, l.Slot)
		if err == nil && n != 1 {
			err = fmt.Errorf("releasing the lease of run %s: %w", l.Run, ErrLost)
		}
		if err == nil {
			err = l.gate.unlock() // before anybody can see the row gone
		}
		return err
	})
	err = errors.Join(err, l.drop()) // this wakes who waits
	if err != nil {
		return err
	}
	return l.s.View(ctx, func(t *Tx) error {
		var n int
		_, err := t.one("SELECT count(*) FROM tickets WHERE run = ?", []any{l.Run}, &n)
		if err == nil && n != 0 {
			err = fmt.Errorf("releasing the lease of run %s: it is still in the store", l.Run)
		}
		return err
	})
}

func (l *Lease) drop() error {
	if l == nil || l.gate == nil {
		return nil
	}
	err := l.gate.close()
	l.gate = nil
	return err
}

// Leave gives the place in the queue up. Whoever was behind comes forward.
func (p *Place) Leave(ctx context.Context) error {
	err := p.s.Update(ctx, func(t *Tx) error {
		_, err := t.exec("DELETE FROM tickets WHERE id = ? AND run = ? AND slot IS NULL", p.id, p.claim.Run)
		return err
	})
	return errors.Join(err, p.drop())
}

// drop takes the gate away; closing it wakes the next in the queue.
func (p *Place) drop() error {
	if p == nil || p.gate == nil {
		return nil
	}
	err := errors.Join(p.s.removeGate(waitName(p.claim.Run)), p.gate.close())
	p.gate = nil
	return err
}

// Ahead returns how many claims of the class will be admitted before this one.
func (p *Place) Ahead(ctx context.Context) (n int, err error) {
	err = p.s.View(ctx, func(t *Tx) error {
		_, err := t.one("SELECT count(*) FROM tickets WHERE class = ? AND slot IS NULL AND id < ?", []any{p.claim.Class, p.id}, &n)
		return err
	})
	return n, err
}

// Advance takes a slot if it is this place's turn and one is free. Otherwise it
// returns what to wait for: whoever is directly ahead, or at the head of the queue any
// holder of a slot.
func (p *Place) Advance(ctx context.Context) (*Lease, *Watch, error) {
	for {
		name, err := p.predecessor(ctx)
		if err != nil {
			return nil, nil, err
		}
		if name == "" {
			return p.advanceHead(ctx)
		}
		w, err := p.s.watch([]string{name})
		if err != nil || w != nil {
			return nil, w, err
		}
		// It is gone; if it died, its row is in the way.
		err = p.s.Update(ctx, func(t *Tx) error {
			_, err := t.dropDead("class = ? AND slot IS NULL AND id < ?", p.claim.Class, p.id)
			return err
		})
		if err != nil {
			return nil, nil, err
		}
	}
}

func (p *Place) predecessor(ctx context.Context) (name string, err error) {
	err = p.s.View(ctx, func(t *Tx) error {
		var run string
		found, err := t.one("SELECT run FROM tickets WHERE class = ? AND slot IS NULL AND id < ? ORDER BY id DESC LIMIT 1", []any{p.claim.Class, p.id}, &run)
		if found {
			name = waitName(run)
		}
		return err
	})
	return name, err
}

func (p *Place) advanceHead(ctx context.Context) (lease *Lease, w *Watch, err error) {
	for lease == nil && w == nil && err == nil {
		var held []string
		err = p.s.Update(ctx, func(t *Tx) error {
			if lease, _, err = t.admit(p.claim, p.id, p.asked); err == nil && lease == nil {
				held, err = t.heldSlots(p.claim)
			}
			return err
		})
		if err == nil && lease == nil {
			w, err = p.s.watch(held) // nil when one became free meanwhile
		}
	}
	if err != nil {
		return nil, nil, errors.Join(err, lease.drop())
	}
	if lease != nil {
		err = p.drop()
	}
	return lease, w, err
}

// heldSlots names the gates of a class that somebody holds, with or without a row.
func (t *Tx) heldSlots(c Claim) ([]string, error) {
	slots, err := t.slots(c.Class)
	if err != nil {
		return nil, err
	}
	names := make([]string, 0, len(slots))
	for _, slot := range slots {
		names = append(names, slotName(c.Class, slot))
	}
	for slot := range c.Cap {
		if name := slotName(c.Class, slot); !slices.Contains(slots, slot) {
			held, err := t.s.held(name)
			if err != nil {
				return nil, err
			}
			if held {
				names = append(names, name)
			}
		}
	}
	return names, nil
}

// Watch waits for the end of others.
type Watch struct{ fds []unix.PollFd }

// Wait returns once one of those that are watched is gone, or after the given time,
// or when stop becomes readable. It closes the watch.
func (w *Watch) Wait(limit time.Duration, stop int) error {
	defer w.close()
	fds := append(w.fds, unix.PollFd{Fd: int32(stop), Events: unix.POLLIN}) //nolint:gosec // a descriptor
	for until := time.Now().Add(limit); ; {
		left := max(0, time.Until(until).Milliseconds())
		_, err := unix.Poll(fds, int(left))
		if !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}

// Ended waits up to the limit and tells whether one of those that are watched is gone.
func (w *Watch) Ended(limit time.Duration) (bool, error) {
	n, err := unix.Poll(w.fds, int(limit.Milliseconds()))
	if errors.Is(err, unix.EINTR) {
		return false, nil
	}
	return n > 0, err
}

func (w *Watch) close() {
	for _, fd := range w.fds {
		_ = unix.Close(int(fd.Fd))
	}
}
