package store

import (
	"fmt"
	"strconv"
	"time"

	"golang.org/x/sys/unix"
)

// spentSchema keeps every attestation that was ever spent: a task's ordinal is good
// for one run, also when a new attestation names it a year later.
const spentSchema = `
CREATE TABLE spent (
	nonce TEXT NOT NULL PRIMARY KEY,
	task TEXT NOT NULL,
	ordinal INTEGER NOT NULL,
	command TEXT NOT NULL,
	idempotency TEXT NOT NULL,
	run TEXT NOT NULL,
	spent_at INTEGER NOT NULL,
	UNIQUE (task, ordinal)
) STRICT, WITHOUT ROWID;
`

// Spending is one use of an attestation.
type Spending struct {
	Nonce   string
	Task    string
	Ordinal int
	Command string // SHA-256 of its text, in hexadecimal
	Key     string // the idempotency key with its scope, "" for none
	Run     string
	At      time.Time
}

// SpentError says that an attestation was spent before, or another one for the same
// ordinal of the same task.
type SpentError struct {
	Earlier Spending
	Other   bool // the nonce was another one
}

// Error says by which run and when.
func (e *SpentError) Error() string {
	what := "it was spent"
	if e.Other {
		what = fmt.Sprintf("another one for ordinal %d of task %s was spent", e.Earlier.Ordinal, e.Earlier.Task)
	}
	return fmt.Sprintf("%s by run %s at %s", what, e.Earlier.Run, e.Earlier.At.UTC().Format(time.RFC3339))
}

// Spend uses an attestation up, or returns a *SpentError. The same one under the same
// idempotency key with the same command may be spent again. Call it within
// [Store.UpdateDurably]: a spending that a crash takes back was none.
func (t *Tx) Spend(s Spending) error {
	earlier, err := t.SpentBefore(s)
	if err != nil {
		return err
	}
	if earlier == nil {
		_, err := t.exec("INSERT INTO spent VALUES (?, ?, ?, ?, ?, ?, ?)", s.Nonce, s.Task, s.Ordinal, s.Command, s.Key, s.Run, s.At.UnixMilli())
		return err
	}
	if !s.retries(*earlier) {
		return &SpentError{Earlier: *earlier, Other: earlier.Nonce != s.Nonce}
	}
	_, err = t.exec("UPDATE spent SET run = ?, spent_at = ? WHERE nonce = ?", s.Run, s.At.UnixMilli(), s.Nonce)
	return err
}

// Spendable returns the *SpentError that Spend would return.
func (t *Tx) Spendable(s Spending) error {
	earlier, err := t.SpentBefore(s)
	if err != nil || earlier == nil || s.retries(*earlier) {
		return err
	}
	return &SpentError{Earlier: *earlier, Other: earlier.Nonce != s.Nonce}
}

func (s Spending) retries(earlier Spending) bool {
	same := s
	same.Run, same.At = earlier.Run, earlier.At
	return s.Key != "" && same == earlier
}

// SpentBefore returns what the nonce, or the ordinal of the task, was spent on; nil
// when it was not.
func (t *Tx) SpentBefore(s Spending) (*Spending, error) {
	var e Spending
	var at int64
	found, err := t.one("SELECT nonce, task, ordinal, command, idempotency, run, spent_at FROM spent WHERE nonce = ? OR task = ? AND ordinal = ? ORDER BY nonce = ? DESC LIMIT 1",
		[]any{s.Nonce, s.Task, s.Ordinal, s.Nonce}, &e.Nonce, &e.Task, &e.Ordinal, &e.Command, &e.Key, &e.Run, &at)
	if err != nil || !found {
		return nil, err
	}
	e.At = time.UnixMilli(at).UTC()
	return &e, nil
}

// Forgetful says why the store does not outlive the machine's next start, "" when
// nothing says so: a file system in memory.
func (s *Store) Forgetful() (why string, err error) {
	var fs unix.Statfs_t
	if err := unix.Statfs(s.dir, &fs); err != nil {
		return "", s.explain("looking at the file system of the state directory", err)
	}
	switch fs.Type {
	case unix.TMPFS_MAGIC, unix.RAMFS_MAGIC:
		return "the state directory " + s.dir + " is on a file system in memory (type 0x" + strconv.FormatInt(fs.Type, 16) + ")", nil
	}
	return "", nil
}
