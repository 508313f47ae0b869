package store

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// lockFile is held while a schema is changed, so that processes which find an old
// one wait for each other instead of failing on each other's steps.
const lockFile = "store.lock"

// applicationID marks the file as sbx's (sqlite.org/pragma.html#pragma_application_id): "sbx1".
const applicationID = 0x73627831

// migration is one step of the schema. What was released is never changed, only
// added to: an older sbx may still hold the store open, so a step takes no table or
// column away that it uses.
type migration struct {
	name string
	sql  string
	// more does what SQL cannot; it sees the state directory.
	more func(t *Tx, state *os.Root) error
}

// migrations lists the steps; the version of a schema is how many were taken. New
// ones go to the end.
func migrations() []migration {
	return []migration{
		{name: "store", sql: storeSchema, more: nameStore},
		{name: "spent", sql: spentSchema},
		{name: "tickets", sql: ticketsSchema},
		{name: "verdicts", sql: verdictsSchema},
		{name: "profiles", sql: profilesSchema, more: importApprovals},
		{name: "rollouts", sql: rolloutsSchema},
		{name: "calls", sql: callsSchema},
	}
}

const storeSchema = `
CREATE TABLE store (
	one INTEGER PRIMARY KEY CHECK (one = 1),
	id TEXT NOT NULL,
	key BLOB NOT NULL,
	made_at INTEGER NOT NULL -- Unix milliseconds, as every time in here
) STRICT;
CREATE TABLE migrations (
	version INTEGER PRIMARY KEY,
	name TEXT NOT NULL,
	taken_at INTEGER NOT NULL
) STRICT;
`

func nameStore(t *Tx, _ *os.Root) error {
	random := make([]byte, 48)
	rand.Read(random) // never fails: crypto/rand ends the process instead
	_, err := t.exec("INSERT INTO store VALUES (1, ?, ?, ?)", fmt.Sprintf("%x", random[:16]), random[16:], time.Now().UnixMilli())
	return err
}

// readSchema returns the version, after making sure that it is one this sbx knows.
func (s *Store) readSchema(ctx context.Context) (version int, err error) {
	var application int
	const query = "SELECT user_version, application_id FROM pragma_user_version, pragma_application_id"
	if err := s.conn.QueryRowContext(ctx, query).Scan(&version, &application); err != nil {
		return 0, err
	}
	switch {
	case version == 0 && application == 0:
		return 0, nil
	case application != applicationID:
		return 0, &Error{Kind: ErrCorrupt, Detail: "it is the database of another program"}
	case version > len(migrations()):
		return 0, &Error{Kind: ErrNewer, Detail: fmt.Sprintf("its schema is version %d, this sbx knows %d", version, len(migrations()))}
	}
	return version, nil
}

// migrate takes the steps that are missing, each in a transaction of its own.
func (s *Store) migrate(ctx context.Context, o Options) error {
	state, err := os.OpenRoot(s.dir)
	if err != nil {
		return fmt.Errorf("opening the state directory: %w", err)
	}
	defer state.Close()
	lock, err := lockMigration(ctx, state, o.Wait)
	if err != nil {
		return err
	}
	defer lock.Close() // releases it
	if s.schema, err = s.readSchema(ctx); err != nil {
		return err
	}
	if s.schema == 0 {
		if err := s.useWAL(ctx); err != nil {
			return err
		}
	}
	for ; s.schema < len(migrations()); s.schema++ {
		m := migrations()[s.schema]
		if err := s.Update(ctx, func(t *Tx) error { return t.take(s.schema+1, m, state) }); err != nil {
			return fmt.Errorf("migrating the store to version %d (%s): %w", s.schema+1, m.name, err)
		}
	}
	return nil
}

// useWAL makes an empty file one with a write-ahead log, which is a property of the
// file from then on. It cannot be done in a transaction.
func (s *Store) useWAL(ctx context.Context) error {
	var tables int
	if err := s.conn.QueryRowContext(ctx, "SELECT count(*) FROM sqlite_schema").Scan(&tables); err != nil {
		return err
	}
	if tables > 0 {
		return &Error{Kind: ErrCorrupt, Detail: "it is the database of another program"}
	}
	var mode string
	if err := s.conn.QueryRowContext(ctx, "PRAGMA journal_mode = WAL").Scan(&mode); err != nil {
		return err
	}
	if mode != "wal" {
		return &Error{Kind: ErrBroken, Detail: "its file system cannot share memory between processes, which a write-ahead log needs (sqlite.org/wal.html)"}
	}
	return nil
}

func (t *Tx) take(version int, m migration, state *os.Root) error {
	if _, err := t.exec(m.sql); err != nil {
		return err
	}
	if m.more != nil {
		if err := m.more(t, state); err != nil {
			return err
		}
	}
	if _, err := t.exec("INSERT INTO migrations VALUES (?, ?, ?)", version, m.name, time.Now().UnixMilli()); err != nil {
		return err
	}
	_, err := t.exec(fmt.Sprintf("PRAGMA user_version = %d; PRAGMA application_id = %d", version, applicationID))
	return err
}

func lockMigration(ctx context.Context, state *os.Root, wait time.Duration) (*os.File, error) {
	f, err := state.OpenFile(lockFile, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, fmt.Errorf("opening %s: %w", lockFile, err)
	}
	until := time.Now().Add(wait)
	for {
		err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		switch {
		case err == nil:
			return f, nil
		case !errors.Is(err, unix.EINTR) && !errors.Is(err, unix.EWOULDBLOCK):
			return nil, errors.Join(fmt.Errorf("locking %s: %w", lockFile, err), f.Close())
		case time.Now().After(until):
			return nil, errors.Join(&Error{Kind: ErrLocked, Detail: fmt.Sprintf("another process has been migrating it for %s", wait)}, f.Close())
		}
		select {
		case <-ctx.Done():
			return nil, errors.Join(ctx.Err(), f.Close())
		case <-time.After(migrationPause):
		}
	}
}

// migrationPause is how often a process looks whether another's migration is done.
// It happens once in the life of a store.
const migrationPause = 10 * time.Millisecond
