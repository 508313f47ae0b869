package store

import (
	"bytes"
	"encoding/json"

	"github.com/fractalboxdev/sbx/internal/rollout"
)

// rolloutsSchema keeps each rollout as one JSON text, and the runs under report that
// have not ended: what they would have been denied is not known yet.
const rolloutsSchema = `
CREATE TABLE rollouts (
	name TEXT NOT NULL PRIMARY KEY,
	record TEXT NOT NULL
) STRICT, WITHOUT ROWID;
CREATE TABLE observed (
	run TEXT NOT NULL PRIMARY KEY,
	name TEXT NOT NULL
) STRICT, WITHOUT ROWID;
`

// Rollout returns the rollout of a name, nil when there is none.
func (t *Tx) Rollout(name string) (*rollout.Record, error) {
	var text string
	found, err := t.one("SELECT record FROM rollouts WHERE name = ?", []any{name}, &text)
	if err != nil || !found {
		return nil, err
	}
	return decodeRollout(text)
}

func decodeRollout(text string) (*rollout.Record, error) {
	var r rollout.Record
	decoder := json.NewDecoder(bytes.NewReader([]byte(text)))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(&r); err != nil {
		return nil, &Error{Kind: ErrCorrupt, Doing: "reading a rollout", Cause: err}
	}
	return &r, nil
}

// Rollouts returns all, by name.
func (t *Tx) Rollouts() ([]rollout.Record, error) {
	var all []rollout.Record
	err := t.each("SELECT record FROM rollouts ORDER BY name", nil, func(scan func(into ...any) error) error {
		var text string
		if err := scan(&text); err != nil {
			return err
		}
		r, err := decodeRollout(text)
		if err == nil {
			all = append(all, *r)
		}
		return err
	})
	return all, err
}

// PutRollout keeps a rollout in place of the name's earlier one.
func (t *Tx) PutRollout(r rollout.Record) error {
	text, err := json.Marshal(r)
	if err != nil {
		return err
	}
	_, err = t.exec("INSERT INTO rollouts VALUES (?, ?) ON CONFLICT (name) DO UPDATE SET record = excluded.record", r.Name, string(text))
	return err
}

// DropRollout forgets a rollout, and the runs under way that it was to hear of: its name
// is enforced from then on.
func (t *Tx) DropRollout(name string) error {
	if _, err := t.exec("DELETE FROM observed WHERE name = ?", name); err != nil {
		return err
	}
	_, err := t.exec("DELETE FROM rollouts WHERE name = ?", name)
	return err
}

// BeginObserved notes that a run under report begins.
func (t *Tx) BeginObserved(run, name string) error {
	_, err := t.exec("INSERT INTO observed VALUES (?, ?)", run, name)
	return err
}

// EndObserved forgets a run that ended, and returns the name that it was observed for,
// "" when it was not.
func (t *Tx) EndObserved(run string) (name string, err error) {
	if _, err := t.one("SELECT name FROM observed WHERE run = ?", []any{run}, &name); err != nil || name == "" {
		return "", err
	}
	_, err = t.exec("DELETE FROM observed WHERE run = ?", run)
	return name, err
}

// Observed returns the runs of a name that have begun and not ended; those of all names
// for "".
func (t *Tx) Observed(name string) ([]string, error) {
	var runs []string
	err := t.each("SELECT run FROM observed WHERE ?1 IN ('', name) ORDER BY run", []any{name}, func(scan func(into ...any) error) error {
		var run string
		err := scan(&run)
		runs = append(runs, run)
		return err
	})
	return runs, err
}
