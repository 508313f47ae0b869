package store

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"
)

func aCall(change func(*Call)) Call {
	c := Call{Scope: "s", Key: "k", Payload: "p", Run: "r1", BegunAt: time.UnixMilli(1_767_355_200_000).UTC()}
	if change != nil {
		change(&c)
	}
	return c
}

// noReceipt is of runs that left none.
func noReceipt(string) ([]byte, error) { return nil, nil }

func held(t *testing.T, s *Store, c Call) *Holding {
	t.Helper()
	h, finished, running, err := s.Begin(t.Context(), c, noReceipt)
	if err != nil || h == nil || finished != nil || running != nil {
		t.Fatalf("begin: %v, finished %v, running %v, %v", h, finished, running, err)
	}
	return h
}

func TestACallRunsOnce(t *testing.T) {
	s := open(t, stateDir(t))
	h := held(t, s, aCall(nil))
	again := aCall(func(c *Call) { c.Run = "r2" })
	_, _, running, err := s.Begin(t.Context(), again, noReceipt)
	if err != nil || running == nil || running.Call.Run != "r1" {
		t.Fatalf("while it runs: %+v, %v", running, err)
	}
	if ended, err := running.Ended(0); err != nil || ended {
		t.Errorf("ended %v, %v", ended, err)
	}
	if err := h.Launch(t.Context(), again.BegunAt); err != nil {
		t.Fatal(err)
	}
	if err := h.Finish(t.Context(), again.BegunAt, []byte(`{"run":"r1"}`)); err != nil {
		t.Fatal(err)
	}
	if ended, err := running.Ended(time.Minute); err != nil || !ended {
		t.Errorf("ended %v, %v", ended, err)
	}
	running.Close()
	_, finished, _, err := s.Begin(t.Context(), again, noReceipt)
	if err != nil || finished == nil || string(finished.Receipt) != `{"run":"r1"}` || finished.Run != "r1" {
		t.Fatalf("when it finished: %+v, %v", finished, err)
	}
}

func TestAnotherPayloadIsAConflict(t *testing.T) {
	s := open(t, stateDir(t))
	h := held(t, s, aCall(nil))
	other := aCall(func(c *Call) { c.Payload, c.Run = "q", "r2" })
	conflicts := func(when string) {
		t.Helper()
		_, _, _, err := s.Begin(t.Context(), other, noReceipt)
		if conflict, ok := errors.AsType[*ConflictError](err); !ok || conflict.Earlier.Run != "r1" {
			t.Errorf("%s: %v", when, err)
		}
	}
	conflicts("while it runs")
	if err := h.Finish(t.Context(), other.BegunAt, []byte("{}")); err != nil {
		t.Fatal(err)
	}
	conflicts("when it finished")
	for name, c := range map[string]Call{
		"another key":      aCall(func(c *Call) { c.Key, c.Payload = "l", "q" }),
		"another consumer": aCall(func(c *Call) { c.Scope, c.Payload = "t", "q" }),
	} {
		t.Run(name, func(t *testing.T) { held(t, s, c) })
	}
}

func TestARefusedCallLeavesNothing(t *testing.T) {
	s := open(t, stateDir(t))
	if err := held(t, s, aCall(nil)).Forget(t.Context()); err != nil {
		t.Fatal(err)
	}
	held(t, s, aCall(func(c *Call) { c.Payload, c.Run = "q", "r2" }))
}

func TestAFinishedCallIsForgottenAfterSevenDays(t *testing.T) {
	s := open(t, stateDir(t))
	c := aCall(nil)
	if err := held(t, s, c).Finish(t.Context(), c.BegunAt, []byte("{}")); err != nil {
		t.Fatal(err)
	}
	c.Run, c.BegunAt = "r2", c.BegunAt.Add(CallsKept)
	if _, finished, _, err := s.Begin(t.Context(), c, noReceipt); err != nil || finished == nil {
		t.Fatalf("at seven days: %v, %v", finished, err)
	}
	c.BegunAt = c.BegunAt.Add(time.Millisecond)
	held(t, s, c)
}

// abandon is the child of the next test: it begins a call and ends without a word.
func abandon(dir string, launch, irreversible bool) error {
	s, err := Open(context.Background(), Options{Dir: dir})
	if err != nil {
		return err
	}
	h, _, _, err := s.Begin(context.Background(), aCall(func(c *Call) { c.Irreversible = irreversible }), noReceipt)
	if err == nil && launch {
		err = h.Launch(context.Background(), time.Now())
	}
	return err
}

// abandoned has another process begin the call of aCall and end.
func abandoned(t *testing.T, s *Store, launched, irreversible bool) {
	t.Helper()
	child := exec.CommandContext(t.Context(), os.Args[0], "-test.run", "^TestAbandonedCall$")
	child.Env = append(os.Environ(), "ABANDON="+s.Dir())
	if launched {
		child.Env = append(child.Env, "LAUNCH=1")
	}
	if irreversible {
		child.Env = append(child.Env, "IRREVERSIBLE=1")
	}
	if text, err := child.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, text)
	}
}

func TestACrashedCallWithAReceiptIsAnswered(t *testing.T) {
	for name, row := range map[string]struct{ launched, irreversible, answered bool }{
		"ordinary, begun": {}, "ordinary, launched": {launched: true, answered: true},
		"irreversible, begun": {irreversible: true}, "irreversible, launched": {launched: true, irreversible: true, answered: true},
	} {
		t.Run(name, func(t *testing.T) {
			s := open(t, stateDir(t))
			abandoned(t, s, row.launched, row.irreversible)
			again := aCall(func(c *Call) { c.Run, c.Irreversible = "r2", row.irreversible })
			ended := func(run string) ([]byte, error) { return []byte("of " + run), nil }
			for range 2 { // the second time it stands in the store
				h, finished, running, err := s.Begin(t.Context(), again, ended)
				if err != nil || running != nil || (finished != nil) != row.answered || (h == nil) != row.answered {
					t.Fatalf("%v, %v, %v, %v", h, finished, running, err)
				}
				if !row.answered {
					return
				}
				if string(finished.Receipt) != "of r1" || finished.Run != "r1" || !finished.FinishedAt.Equal(again.BegunAt) {
					t.Errorf("%+v", finished)
				}
				ended = noReceipt
			}
			if left, err := s.held(callGate("s", "k", s)); err != nil || left {
				t.Errorf("its gate is held: %v, %v", left, err)
			}
		})
	}
}

func TestACallWhoseReceiptCannotBeReadIsRefused(t *testing.T) {
	s := open(t, stateDir(t))
	abandoned(t, s, true, false)
	again := aCall(func(c *Call) { c.Run = "r2" })
	unreadable := errors.New("unreadable")
	h, finished, _, err := s.Begin(t.Context(), again, func(string) ([]byte, error) { return nil, unreadable })
	if !errors.Is(err, unreadable) || h != nil || finished != nil {
		t.Fatalf("%v, %v, %v", h, finished, err)
	}
	held(t, s, again) // nothing holds it
}

// TestTheEndOfALostCallLeavesTheNextOneAlone: whoever finds its row taken by another may
// not take that one's gate away.
func TestTheEndOfALostCallLeavesTheNextOneAlone(t *testing.T) {
	s := open(t, stateDir(t))
	lost := held(t, s, aCall(nil))
	if err := os.Remove(filepath.Join(s.Dir(), gatesDir, callGate("s", "k", s))); err != nil {
		t.Fatal(err)
	}
	next := aCall(func(c *Call) { c.Run = "r2" })
	held(t, s, next)
	if err := lost.Finish(t.Context(), next.BegunAt, []byte("{}")); !errors.Is(err, ErrLost) {
		t.Errorf("finishing what is another's: %v", err)
	}
	if still, err := s.held(callGate("s", "k", s)); err != nil || !still {
		t.Errorf("the next one's gate is held: %v, %v", still, err)
	}
}

func TestACrashedCallRunsAgainUnlessItCannotBeTakenBack(t *testing.T) {
	for name, row := range map[string]struct{ launched, irreversible, unknown bool }{
		"ordinary, begun": {}, "ordinary, launched": {launched: true},
		"irreversible, begun": {irreversible: true}, "irreversible, launched": {launched: true, irreversible: true, unknown: true},
	} {
		t.Run(name, func(t *testing.T) {
			s := open(t, stateDir(t))
			abandoned(t, s, row.launched, row.irreversible)
			again := aCall(func(c *Call) { c.Run, c.Irreversible = "r2", row.irreversible })
			h, _, _, err := s.Begin(t.Context(), again, noReceipt)
			_, unknown := errors.AsType[*UnknownError](err)
			if unknown != row.unknown || (h == nil) != row.unknown {
				t.Fatalf("%v, %v", h, err)
			}
			if !row.unknown {
				return
			}
			if was, err := s.Decide(t.Context(), "s", "k"); err != nil || was == nil || was.Run != "r1" {
				t.Fatalf("deciding: %v, %v", was, err)
			}
			held(t, s, again)
		})
	}
}

// TestAbandonedCall is what the child of the test before runs; by itself it does nothing.
func TestAbandonedCall(t *testing.T) {
	dir := os.Getenv("ABANDON")
	if dir == "" {
		return
	}
	if err := abandon(dir, os.Getenv("LAUNCH") != "", os.Getenv("IRREVERSIBLE") != ""); err != nil {
		t.Fatal(err)
	}
	os.Exit(0) // as killed: nothing is released by hand
}

func TestARunningCallIsNotForgotten(t *testing.T) {
	s := open(t, stateDir(t))
	h := held(t, s, aCall(nil))
	if _, err := s.Decide(t.Context(), "s", "k"); err == nil {
		t.Error("it was forgotten while it runs")
	}
	if err := h.Forget(t.Context()); err != nil {
		t.Fatal(err)
	}
	if was, err := s.Decide(t.Context(), "s", "k"); err != nil || was != nil {
		t.Errorf("what is not there: %v, %v", was, err)
	}
}
