package store

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// callsSchema keeps a call under an idempotency key: what was asked for, and what came
// of it.
const callsSchema = `
CREATE TABLE calls (
	scope TEXT NOT NULL, -- consumer and key of a kept sandbox, as the caller joins them
	name TEXT NOT NULL, -- the idempotency key
	payload TEXT NOT NULL, -- digest of everything that the call was
	run TEXT NOT NULL,
	irreversible INTEGER NOT NULL,
	begun_at INTEGER NOT NULL,
	launched_at INTEGER, -- NULL: the command cannot have run
	finished_at INTEGER, -- NULL: it runs, or its sbx was killed
	receipt TEXT, -- of a finished call
	PRIMARY KEY (scope, name)
) STRICT, WITHOUT ROWID;
CREATE INDEX calls_run ON calls (run);
`

// CallsKept is how long a finished call is answered from its receipt.
const CallsKept = 7 * 24 * time.Hour

// Call is a run under an idempotency key.
type Call struct {
	Scope, Key   string
	Payload      string // digest
	Run          string
	Irreversible bool
	BegunAt      time.Time
	LaunchedAt   time.Time // zero: the command cannot have run
	FinishedAt   time.Time // zero: it runs, or its sbx was killed
	Receipt      []byte    // JSON, of a finished call
}

// What stands in the way of a call. Test for it with errors.As.
type (
	// ConflictError is the same key with another payload.
	ConflictError struct{ Earlier Call }
	// UnknownError is an irreversible command that was started and never finished:
	// whether it did its work, nobody knows.
	UnknownError struct{ Earlier Call }
)

// Error names the run.
func (e *ConflictError) Error() string {
	return fmt.Sprintf("key %q was used for something else, in run %s of %s", e.Earlier.Key, e.Earlier.Run, e.Earlier.BegunAt.Format(time.RFC3339))
}

// Error names the run.
func (e *UnknownError) Error() string {
	return fmt.Sprintf("run %s of %s started the command under key %q, and its sbx was killed: whether the command did its work is not known",
		e.Earlier.Run, e.Earlier.LaunchedAt.Format(time.RFC3339), e.Earlier.Key)
}

// Holding is a call that this process makes. The kernel tells everybody when the
// process ends, however it ends.
type Holding struct {
	s    *Store
	gate *gate
	call Call
}

func callGate(scope, key string, s *Store) string {
	return "call." + fmt.Sprintf("%x", s.MAC("call", []byte(scope), []byte(key))[:16])
}

// Ended returns the receipt, as JSON, of a run whose command is known to have ended;
// nil where nothing says so.
type Ended func(run string) (receipt []byte, err error)

// Begin takes the call up, or says what is there already: exactly one of the first
// three is not nil without an error. A finished call has its receipt, also one whose
// process died before it noted the end: ended is asked for that. A running one is
// there to be followed until the watch ends; then Begin tells what became of it.
func (s *Store) Begin(ctx context.Context, c Call, ended Ended) (h *Holding, finished *Call, running *Following, err error) {
	name := callGate(c.Scope, c.Key, s)
	err = s.Update(ctx, func(t *Tx) error {
		if err := t.dropOldCalls(c.BegunAt.Add(-CallsKept)); err != nil {
			return err
		}
		earlier, err := t.Call(c.Scope, c.Key)
		if err != nil {
			return err
		}
		if earlier != nil && earlier.Payload != c.Payload {
			return &ConflictError{*earlier}
		}
		if earlier != nil && !earlier.FinishedAt.IsZero() {
			finished = earlier
			return nil
		}
		g, err := s.hold(name)
		if err != nil {
			return err
		}
		if g == nil {
			running, err = s.follow(name, earlier)
			return err
		}
		h = &Holding{s: s, gate: g, call: c}
		if finished, err = t.adopt(earlier, ended, c.BegunAt); err != nil || finished != nil {
			return err
		}
		return t.begin(c, earlier)
	})
	if h != nil && (err != nil || finished != nil) {
		err = errors.Join(err, h.drop())
		h = nil
	}
	if err != nil {
		return nil, nil, nil, err
	}
	return h, finished, running, nil
}

// adopt notes the end of a call whose process died between writing its receipt and
// noting it here. It is kept from now on.
func (t *Tx) adopt(earlier *Call, ended Ended, now time.Time) (*Call, error) {
	if earlier == nil || earlier.LaunchedAt.IsZero() {
		return nil, nil //nolint:nilnil // its command cannot have run
	}
	receipt, err := ended(earlier.Run)
	if err != nil || receipt == nil {
		return nil, err
	}
	if err := t.finish(*earlier, now, receipt); err != nil {
		return nil, err
	}
	earlier.FinishedAt, earlier.Receipt = now, receipt
	return earlier, nil
}

// finish keeps the receipt of a call that nobody makes any more.
func (t *Tx) finish(c Call, now time.Time, receipt []byte) error {
	return t.end(c, "UPDATE calls SET finished_at = ?, receipt = ? WHERE scope = ? AND name = ? AND run = ?", now.UnixMilli(), string(receipt))
}

// end changes the row of a call for the last time. Its gate goes only if the row was
// there: it is another's else.
func (t *Tx) end(c Call, query string, args ...any) error {
	if err := t.own(c, query, args...); err != nil {
		return err
	}
	return t.s.removeGate(callGate(c.Scope, c.Key, t.s))
}

// dropOldCalls forgets what finished before, and what began before and did not, where it
// would only begin anew: its process is gone, and nothing is unknown about it.
func (t *Tx) dropOldCalls(before time.Time) error {
	if _, err := t.exec("DELETE FROM calls WHERE finished_at < ?", before.UnixMilli()); err != nil {
		return err
	}
	var old []Call
	err := t.each(callColumns+" WHERE finished_at IS NULL AND begun_at < ? AND NOT (irreversible AND launched_at IS NOT NULL)", []any{before.UnixMilli()},
		func(scan func(...any) error) error {
			c, err := scanCall(scan)
			old = append(old, c)
			return err
		})
	if err != nil {
		return err
	}
	for _, c := range old {
		name := callGate(c.Scope, c.Key, t.s)
		held, err := t.s.held(name)
		if err != nil {
			return err
		}
		if held {
			continue
		}
		if _, err := t.exec("DELETE FROM calls WHERE scope = ? AND name = ?", c.Scope, c.Key); err != nil {
			return err
		}
		if err := t.s.removeGate(name); err != nil {
			return err
		}
	}
	return nil
}

// begin writes the call down in place of one whose process is gone.
func (t *Tx) begin(c Call, earlier *Call) error {
	if earlier != nil && earlier.Irreversible && !earlier.LaunchedAt.IsZero() {
		return &UnknownError{*earlier}
	}
	_, err := t.exec("INSERT OR REPLACE INTO calls VALUES (?, ?, ?, ?, ?, ?, NULL, NULL, NULL)",
		c.Scope, c.Key, c.Payload, c.Run, c.Irreversible, c.BegunAt.UnixMilli())
	return err
}

// Following is a call that another process makes.
type Following struct {
	Call  Call
	watch *Watch
}

func (s *Store) follow(name string, earlier *Call) (*Following, error) {
	if earlier == nil {
		return nil, &Error{Kind: ErrBroken, Detail: "a call is held that the store does not know"}
	}
	w, err := s.watch([]string{name})
	return &Following{Call: *earlier, watch: w}, err
}

// Ended waits up to the limit, and tells whether the call's process has ended.
func (f *Following) Ended(limit time.Duration) (bool, error) {
	if f.watch == nil {
		return true, nil
	}
	return f.watch.Ended(limit)
}

// Close ends the following.
func (f *Following) Close() {
	if f.watch != nil {
		f.watch.close()
	}
}

// Launch notes that the command is about to run. For an irreversible one it is on
// disk before it returns.
func (h *Holding) Launch(ctx context.Context, now time.Time) error {
	update := h.s.Update
	if h.call.Irreversible {
		update = h.s.UpdateDurably
	}
	h.call.LaunchedAt = now
	return update(ctx, func(t *Tx) error {
		return t.own(h.call, "UPDATE calls SET launched_at = ? WHERE scope = ? AND name = ? AND run = ?", now.UnixMilli())
	})
}

// Finish keeps the receipt of a call whose command ran. For an irreversible one it is
// on disk before it returns.
func (h *Holding) Finish(ctx context.Context, now time.Time, receipt []byte) error {
	update := h.s.Update
	if h.call.Irreversible {
		update = h.s.UpdateDurably
	}
	err := update(ctx, func(t *Tx) error { return t.finish(h.call, now, receipt) })
	return errors.Join(err, h.drop())
}

// Forget takes the call back: it was refused, and the command never ran.
func (h *Holding) Forget(ctx context.Context) error {
	err := h.s.Update(ctx, func(t *Tx) error {
		return t.end(h.call, "DELETE FROM calls WHERE scope = ? AND name = ? AND run = ?")
	})
	return errors.Join(err, h.drop())
}

// own changes the row of a call, which has to be there.
func (t *Tx) own(c Call, query string, args ...any) error {
	n, err := t.exec(query, append(args, c.Scope, c.Key, c.Run)...)
	if err == nil && n != 1 {
		err = fmt.Errorf("noting what became of the call under key %q: %w", c.Key, ErrLost)
	}
	return err
}

// drop gives the gate up; whoever follows the call wakes.
func (h *Holding) drop() error {
	if h.gate == nil {
		return nil
	}
	g := h.gate
	h.gate = nil
	return g.close()
}

const callColumns = `SELECT scope, name, payload, run, irreversible, begun_at, coalesce(launched_at, 0), coalesce(finished_at, 0), coalesce(receipt, '') FROM calls`

func scanCall(scan func(...any) error) (c Call, err error) {
	var begun, launched, finished int64
	var receipt string
	err = scan(&c.Scope, &c.Key, &c.Payload, &c.Run, &c.Irreversible, &begun, &launched, &finished, &receipt)
	at := func(ms int64) time.Time {
		if ms == 0 {
			return time.Time{}
		}
		return time.UnixMilli(ms).UTC()
	}
	c.BegunAt, c.LaunchedAt, c.FinishedAt, c.Receipt = at(begun), at(launched), at(finished), []byte(receipt)
	return c, err
}

// Call returns what is kept under a key, nil for nothing.
func (t *Tx) Call(scope, key string) (found *Call, err error) {
	err = t.each(callColumns+" WHERE scope = ? AND name = ?", []any{scope, key}, func(scan func(...any) error) error {
		c, err := scanCall(scan)
		found = &c
		return err
	})
	return found, err
}

// Calls lists what is kept in a scope, oldest first.
func (t *Tx) Calls(scope string) (all []Call, err error) {
	err = t.each(callColumns+" WHERE scope = ? ORDER BY begun_at", []any{scope}, func(scan func(...any) error) error {
		c, err := scanCall(scan)
		all = append(all, c)
		return err
	})
	return all, err
}

// NeededRuns returns the runs whose output a later call may ask for.
func (t *Tx) NeededRuns(now time.Time) (runs []string, err error) {
	err = t.each("SELECT run FROM calls WHERE finished_at IS NULL OR finished_at >= ?", []any{now.Add(-CallsKept).UnixMilli()}, func(scan func(...any) error) error {
		var run string
		err := scan(&run)
		runs = append(runs, run)
		return err
	})
	return runs, err
}

// Decide forgets a call, so that its key can be used again: a person knows what became
// of it. One that runs is not forgotten.
func (s *Store) Decide(ctx context.Context, scope, key string) (was *Call, err error) {
	err = s.Update(ctx, func(t *Tx) error {
		if was, err = t.Call(scope, key); err != nil || was == nil {
			return err
		}
		held, err := s.held(callGate(scope, key, s))
		if err != nil {
			return err
		}
		if held {
			return fmt.Errorf("forgetting key %q: run %s is under way", key, was.Run)
		}
		if _, err = t.exec("DELETE FROM calls WHERE scope = ? AND name = ?", scope, key); err != nil {
			return err
		}
		return s.removeGate(callGate(scope, key, s))
	})
	return was, err
}
