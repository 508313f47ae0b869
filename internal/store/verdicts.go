package store

import (
	"encoding/json"
	"time"

	"github.com/fractalboxdev/sbx/internal/verdict"
)

// verdictsSchema keeps the latest judgement of each deployment and kind, and the
// digests of binaries, which take longer to compute than a run may wait.
const verdictsSchema = `
CREATE TABLE verdicts (
	deployment TEXT NOT NULL,
	kind TEXT NOT NULL,
	outcome TEXT NOT NULL,
	diagnosis TEXT NOT NULL,
	run TEXT NOT NULL,
	at INTEGER NOT NULL,
	evidence TEXT NOT NULL,
	PRIMARY KEY (deployment, kind)
) STRICT, WITHOUT ROWID;
CREATE TABLE digests (
	file TEXT NOT NULL PRIMARY KEY, -- device, inode, size and both times: no content changes without one of them
	digest TEXT NOT NULL,
	seen_at INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
CREATE TABLE advisory (
	one INTEGER PRIMARY KEY CHECK (one = 1),
	serial INTEGER NOT NULL -- the highest seen: an older advisory must not come back
) STRICT;
`

// digestsKept is how many digests are remembered; the oldest go first.
const digestsKept = 64

// verdictsKept is how long a judgement of a deployment that came after it is remembered,
// and clockStep how far in the future one may lie before it is taken for one of a clock
// that was set back: it would stand in the way of all that follow.
const (
	verdictsKept = 30 * 24 * time.Hour
	clockStep    = time.Hour
)

// PutVerdict keeps a judgement in place of an older one of the same deployment and
// kind. A younger one that is already there stays. Whichever came first, a failure is not
// lost to a judgement that it outweighs.
func (t *Tx) PutVerdict(r verdict.Record) error {
	was, err := t.Verdict(r.Deployment, r.Kind)
	if err != nil {
		return err
	}
	if was == nil || r.Outweighs(*was) || supersedes(r, *was) && !was.Outweighs(r) {
		if err := t.replaceVerdict(r); err != nil {
			return err
		}
	}
	_, err = t.exec("DELETE FROM verdicts WHERE at < ?", r.At.Add(-verdictsKept).UnixMilli())
	return err
}

// supersedes reports whether r is the younger one, or what was there of a wrong clock.
func supersedes(r, was verdict.Record) bool {
	return !r.At.Before(was.At) || was.At.After(r.At.Add(clockStep))
}

func (t *Tx) replaceVerdict(r verdict.Record) error {
	evidence := string(r.Evidence)
	if evidence == "" {
		evidence = "null"
	}
	_, err := t.exec("INSERT OR REPLACE INTO verdicts VALUES (?, ?, ?, ?, ?, ?, ?)",
		r.Deployment, string(r.Kind), string(r.Outcome), r.Diagnosis, r.Run, r.At.UnixMilli(), evidence)
	return err
}

// Verdict returns the latest judgement, nil when there is none.
func (t *Tx) Verdict(deployment string, kind verdict.Kind) (*verdict.Record, error) {
	r := verdict.Record{Deployment: deployment, Kind: kind}
	var outcome, evidence string
	var at int64
	found, err := t.one("SELECT outcome, diagnosis, run, at, evidence FROM verdicts WHERE deployment = ? AND kind = ?",
		[]any{deployment, string(kind)}, &outcome, &r.Diagnosis, &r.Run, &at, &evidence)
	if err != nil || !found {
		return nil, err
	}
	r.Outcome, r.At, r.Evidence = verdict.Outcome(outcome), time.UnixMilli(at).UTC(), json.RawMessage(evidence)
	return &r, nil
}

// PutDigest remembers the digest of a file, which is named by what changes with it.
func (t *Tx) PutDigest(file, digest string, now time.Time) error {
	if _, err := t.exec("INSERT OR REPLACE INTO digests VALUES (?, ?, ?)", file, digest, now.UnixMilli()); err != nil {
		return err
	}
	_, err := t.exec("DELETE FROM digests WHERE file NOT IN (SELECT file FROM digests ORDER BY seen_at DESC LIMIT ?)", digestsKept)
	return err
}

// Digest returns a remembered digest, "" when there is none.
func (t *Tx) Digest(file string) (string, error) {
	var digest string
	_, err := t.one("SELECT digest FROM digests WHERE file = ?", []any{file}, &digest)
	return digest, err
}

// SeeAdvisory notes the serial of an advisory and returns the highest that was ever
// seen, its own included.
func (t *Tx) SeeAdvisory(serial int64) (highest int64, err error) {
	if _, err := t.exec("INSERT INTO advisory VALUES (1, ?) ON CONFLICT (one) DO UPDATE SET serial = max(serial, excluded.serial)", serial); err != nil {
		return 0, err
	}
	_, err = t.one("SELECT serial FROM advisory", nil, &highest)
	return highest, err
}
