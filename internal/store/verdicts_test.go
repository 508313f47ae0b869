package store

import (
	"encoding/json"
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/fractalboxdev/sbx/internal/verdict"
)

func TestTheYoungestVerdictOfADeploymentStays(t *testing.T) {
	s := open(t, stateDir(t))
	at := time.UnixMilli(1_767_355_200_000).UTC()
	young := verdict.Record{
		Deployment: "d", Kind: verdict.Canary, Outcome: verdict.Failed, Diagnosis: "why", Run: "r2", At: at.Add(time.Hour),
		Evidence: json.RawMessage(`{"a":1}`),
	}
	old := young
	old.Outcome, old.Run, old.At, old.Evidence = verdict.Passed, "r1", at, json.RawMessage("null")
	for _, r := range []verdict.Record{old, young, old} {
		if err := s.Update(t.Context(), func(tx *Tx) error { return tx.PutVerdict(r) }); err != nil {
			t.Fatal(err)
		}
	}
	get := func(deployment string, kind verdict.Kind) (r *verdict.Record) {
		err := s.View(t.Context(), func(tx *Tx) (err error) { r, err = tx.Verdict(deployment, kind); return err })
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	if diff := cmp.Diff(&young, get("d", verdict.Canary)); diff != "" {
		t.Error(diff)
	}
	if r := get("d", verdict.Attack); r != nil {
		t.Errorf("of another kind: %+v", r)
	}
	if r := get("e", verdict.Canary); r != nil {
		t.Errorf("of another deployment: %+v", r)
	}
}

func TestDigestsAreBounded(t *testing.T) {
	s := open(t, stateDir(t))
	err := s.Update(t.Context(), func(tx *Tx) error {
		for i := range digestsKept + 10 {
			if err := tx.PutDigest(fmt.Sprint("file ", i), fmt.Sprint("digest ", i), time.UnixMilli(int64(i))); err != nil {
				return err
			}
		}
		for i, want := range map[int]string{0: "", 9: "", 10: "digest 10", digestsKept + 9: fmt.Sprint("digest ", digestsKept+9)} {
			got, err := tx.Digest(fmt.Sprint("file ", i))
			if err != nil || got != want {
				t.Errorf("digest of file %d is %q, want %q (%v)", i, got, want, err)
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

func TestTheHighestSerialOfAnAdvisoryIsRemembered(t *testing.T) {
	s := open(t, stateDir(t))
	for _, step := range []struct{ serial, highest int64 }{{3, 3}, {7, 7}, {5, 7}, {7, 7}, {8, 8}} {
		err := s.Update(t.Context(), func(tx *Tx) error {
			got, err := tx.SeeAdvisory(step.serial)
			if got != step.highest {
				t.Errorf("after %d: %d, want %d", step.serial, got, step.highest)
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
}

// A judgement of a clock that was wrong does not stand in the way of later ones, and one
// of a deployment of long ago goes.
func TestAVerdictOfAWrongClockIsReplaced(t *testing.T) {
	s := open(t, stateDir(t))
	at := time.UnixMilli(1_767_355_200_000).UTC()
	put := func(deployment string, outcome verdict.Outcome, at time.Time) {
		t.Helper()
		r := verdict.Record{Deployment: deployment, Kind: verdict.Canary, Outcome: outcome, At: at}
		if err := s.Update(t.Context(), func(tx *Tx) error { return tx.PutVerdict(r) }); err != nil {
			t.Fatal(err)
		}
	}
	get := func(deployment string) (r *verdict.Record) {
		t.Helper()
		if err := s.View(t.Context(), func(tx *Tx) (err error) { r, err = tx.Verdict(deployment, verdict.Canary); return err }); err != nil {
			t.Fatal(err)
		}
		return r
	}
	put("old", verdict.Passed, at.Add(-31*24*time.Hour))
	put("d", verdict.Passed, at.Add(48*time.Hour))
	put("d", verdict.Failed, at)
	if r := get("d"); r == nil || r.Outcome != verdict.Failed {
		t.Errorf("%+v", r)
	}
	if r := get("old"); r != nil {
		t.Errorf("%+v", r)
	}
}

// A failure of the last 24 hours stays when a later probe could not tell, in whatever order
// the two are put; one that passed takes its place.
func TestAFailureStaysWhenALaterProbeCouldNotTell(t *testing.T) {
	s := open(t, stateDir(t))
	at := time.UnixMilli(1_767_355_200_000).UTC()
	for i, row := range []struct {
		first, second     verdict.Outcome
		firstAt, secondAt time.Duration // after at
		want              verdict.Outcome
	}{
		{verdict.Failed, verdict.Inconclusive, 0, time.Hour, verdict.Failed},
		{verdict.Inconclusive, verdict.Failed, time.Hour, 0, verdict.Failed},
		{verdict.Failed, verdict.Inconclusive, 0, 24 * time.Hour, verdict.Inconclusive},
		{verdict.Failed, verdict.Passed, 0, time.Hour, verdict.Passed},
		{verdict.Passed, verdict.Inconclusive, 0, time.Hour, verdict.Inconclusive},
	} {
		deployment := fmt.Sprint("d", i)
		err := s.Update(t.Context(), func(tx *Tx) error {
			for _, r := range []verdict.Record{
				{Deployment: deployment, Kind: verdict.Canary, Outcome: row.first, At: at.Add(row.firstAt)},
				{Deployment: deployment, Kind: verdict.Canary, Outcome: row.second, At: at.Add(row.secondAt)},
			} {
				if err := tx.PutVerdict(r); err != nil {
					return err
				}
			}
			got, err := tx.Verdict(deployment, verdict.Canary)
			if err != nil || got == nil || got.Outcome != row.want {
				t.Errorf("%s, then %s: %+v, %v; want %s", row.first, row.second, got, err, row.want)
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
}
