package store

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

func spending(change func(*Spending)) Spending {
	s := Spending{Nonce: "nonce-1", Task: "task-7", Ordinal: 2, Command: "abc", Run: "run-1", At: time.UnixMilli(1_767_355_200_000).UTC()}
	if change != nil {
		change(&s)
	}
	return s
}

func (s *Store) spend(t *testing.T, what Spending) error {
	return s.UpdateDurably(t.Context(), func(tx *Tx) error { return tx.Spend(what) })
}

func TestAnAttestationIsSpentOnceByNonceAndByOrdinal(t *testing.T) {
	s := open(t, stateDir(t))
	if err := s.spend(t, spending(nil)); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		change func(*Spending)
		other  bool
	}{
		"again":                      {nil, false},
		"another command":            {func(s *Spending) { s.Command = "def" }, false},
		"under a key":                {func(s *Spending) { s.Key = "k" }, false},
		"same nonce, another task":   {func(s *Spending) { s.Task = "task-8" }, false},
		"another nonce, same task":   {func(s *Spending) { s.Nonce = "nonce-2" }, true},
		"another nonce, under a key": {func(s *Spending) { s.Nonce, s.Key = "nonce-2", "k" }, true},
	} {
		what := spending(c.change)
		what.Run = "run-2"
		for _, use := range []func(*Tx) error{func(tx *Tx) error { return tx.Spend(what) }, func(tx *Tx) error { return tx.Spendable(what) }} {
			err := s.UpdateDurably(t.Context(), use)
			spent, ok := errors.AsType[*SpentError](err)
			if !ok || spent.Earlier != spending(nil) || spent.Other != c.other || !strings.Contains(err.Error(), "run-1 at 2026-01-02T12:00:00Z") {
				t.Errorf("%s: %v", name, err)
			}
		}
	}
	for name, change := range map[string]func(*Spending){
		"another ordinal": func(s *Spending) { s.Nonce, s.Ordinal = "nonce-3", 3 },
		"another task":    func(s *Spending) { s.Nonce, s.Task = "nonce-4", "task-8" },
	} {
		if err := s.spend(t, spending(change)); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestTheSameKeyWithTheSameCommandMayRetry(t *testing.T) {
	s := open(t, stateDir(t))
	keyed := func(run string) Spending { return spending(func(s *Spending) { s.Key, s.Run = "scope/k", run }) }
	if err := errors.Join(s.spend(t, keyed("run-1")), s.spend(t, keyed("run-2"))); err != nil {
		t.Fatal(err)
	}
	for name, change := range map[string]func(*Spending){
		"another key": func(s *Spending) { s.Key = "scope/other" }, "no key": func(s *Spending) { s.Key = "" },
		"another command": func(s *Spending) { s.Key, s.Command = "scope/k", "def" }, "another nonce": func(s *Spending) { s.Key, s.Nonce = "scope/k", "nonce-2" },
	} {
		spent, ok := errors.AsType[*SpentError](s.spend(t, spending(change)))
		if !ok || spent.Earlier.Run != "run-2" {
			t.Errorf("%s: %+v", name, spent)
		}
	}
}

// Many processes have the same attestation: one of them spends it.
func TestOneOfManySpends(t *testing.T) {
	dir := stateDir(t)
	var group sync.WaitGroup
	var won atomic.Int32
	for range 8 {
		s := open(t, dir)
		group.Go(func() {
			err := s.spend(t, spending(nil))
			if err == nil {
				won.Add(1)
			} else if _, ok := errors.AsType[*SpentError](err); !ok {
				t.Error(err)
			}
		})
	}
	group.Wait()
	if won.Load() != 1 {
		t.Errorf("%d spent it", won.Load())
	}
}

func TestAStoreInMemoryIsForgetful(t *testing.T) {
	dir, err := os.MkdirTemp("/dev/shm", "sbx-store-") //nolint:usetesting // has to be in memory
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	why, err := open(t, filepath.Join(dir, "state")).Forgetful()
	if err != nil || !strings.Contains(why, "in memory") {
		t.Errorf("%q, %v", why, err)
	}
}
