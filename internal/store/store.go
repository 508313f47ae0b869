// Package store is what sbx remembers between runs: one SQLite file in the state
// directory, shared by every sbx process of its owner.
//
// Each area has a file of its own with typed methods of [Tx]; nothing outside this
// package sees SQL. A transaction is short: nothing in it waits for anything but
// the disk.
package store

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"database/sql"
	"database/sql/driver"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"time"

	sqlite3 "github.com/mattn/go-sqlite3"
)

// File is the name of the store in the state directory. SQLite keeps File-wal and
// File-shm beside it.
const File = "store.db"

// Options say where the store is and what may be done to it.
type Options struct {
	Dir  string        // the state directory, absolute; made when it is missing
	Wait time.Duration // for transactions of other processes; 0: DefaultWait
	// Existing makes a missing store ErrMissing instead of a new one.
	Existing bool
	// AsIs opens a store of an older schema without migrating it: for looking only.
	AsIs bool
}

// Store is an open store. Its methods are safe for concurrent use; transactions of
// one Store follow each other, so none may be begun within another. At the end of the
// process it need not be closed: nothing is lost, and what closing tidies up costs time.
type Store struct {
	dir    string
	id     string
	key    []byte
	schema int
	wait   time.Duration
	db     *sql.DB
	conn   *sql.Conn
	turn   chan struct{} // held during a transaction
}

// Open opens the store, makes it where there is none, and brings its schema up to
// date. Every error is an *Error.
func Open(ctx context.Context, o Options) (*Store, error) {
	if o.Wait == 0 {
		o.Wait = DefaultWait
	}
	s := &Store{dir: o.Dir, wait: o.Wait, turn: make(chan struct{}, 1)}
	if err := s.open(ctx, o); err != nil {
		return nil, errors.Join(s.explain("opening the store", err), s.Close())
	}
	return s, nil
}

func (s *Store) open(ctx context.Context, o Options) error {
	var err error
	if s.dir, err = prepare(o); err != nil {
		return err
	}
	s.db = sql.OpenDB(connector{dsn(s.Path(), o.Wait)})
	if s.conn, err = s.db.Conn(ctx); err != nil {
		return err
	}
	if _, err = s.conn.ExecContext(ctx, fmt.Sprintf("PRAGMA trusted_schema = OFF; PRAGMA temp_store = MEMORY; PRAGMA wal_autocheckpoint = %d; PRAGMA journal_size_limit = %d", foldAt, tidyAt)); err != nil {
		return err
	}
	if s.schema, err = s.readSchema(ctx); err != nil {
		return err
	}
	if s.schema < len(migrations()) && !o.AsIs {
		if err := s.migrate(ctx, o); err != nil {
			return err
		}
	}
	if s.schema == 0 {
		return nil // nothing in it, and AsIs
	}
	if !o.AsIs {
		_ = os.Remove(filepath.Join(s.dir, beginsFile)) // it has begun; there seldom is one
	}
	return s.conn.QueryRowContext(ctx, "SELECT id, key FROM store").Scan(&s.id, &s.key)
}

// connector makes connections without the registry of database/sql, and with it
// without a name to look up.
type connector struct{ dsn string }

func (c connector) Connect(context.Context) (driver.Conn, error) { return c.Driver().Open(c.dsn) }
func (connector) Driver() driver.Driver                          { return &sqlite3.SQLiteDriver{} }

// dsn is the URI of the database (sqlite.org/uri.html). WAL is a property of the
// file, and with it synchronous is NORMAL in this build: a crash of the machine may
// lose the last transactions, never the order of them.
func dsn(path string, wait time.Duration) string {
	return "file:" + (&url.URL{Path: path}).EscapedPath() +
		"?_busy_timeout=" + strconv.FormatInt(wait.Milliseconds(), 10) + "&_foreign_keys=on&_mutex=no"
}

// The log is read by the first process that opens the store, so it is kept short: Tidy
// folds it into the file once it has grown to tidyAt bytes, a commit at foldAt pages,
// which waits for the disk. One that was folded is cut to tidyAt bytes when it begins
// anew.
const (
	foldAt = 128
	tidyAt = 128 << 10
)

// Tidy folds the log into the file if it has grown, beside everything else: no
// transaction waits for it. It is for the time while a command runs.
func (s *Store) Tidy(ctx context.Context) error {
	info, err := os.Stat(s.Path() + "-wal")
	if errors.Is(err, fs.ErrNotExist) || err == nil && info.Size() <= tidyAt {
		return nil
	}
	if err != nil {
		return s.explain("tidying", err)
	}
	conn, err := s.db.Conn(ctx)
	if err != nil {
		return s.explain("tidying", err)
	}
	defer conn.Close()
	if _, err := conn.ExecContext(ctx, "PRAGMA wal_checkpoint(PASSIVE)"); err != nil {
		return s.explain("tidying", err)
	}
	return nil
}

// Path returns the store's file.
func (s *Store) Path() string { return filepath.Join(s.dir, File) }

// Dir returns the state directory, without symbolic links.
func (s *Store) Dir() string { return s.dir }

// ID returns the random name of this store, made with it: 32 hexadecimal digits. It is the audience of
// attestations.
func (s *Store) ID() string { return s.id }

// Schema returns the version of the store's schema; 0 for an empty file.
func (s *Store) Schema() int { return s.schema }

// Known returns the version of the schema that this sbx makes.
func Known() int { return len(migrations()) }

// MAC authenticates parts for one purpose, under the key of this store, which never
// leaves it. Neither another purpose nor another division into parts gives the same 32 bytes.
func (s *Store) MAC(purpose string, parts ...[]byte) []byte {
	mac := hmac.New(sha256.New, s.key)
	for _, part := range append([][]byte{[]byte(purpose)}, parts...) {
		mac.Write(binary.BigEndian.AppendUint64(nil, uint64(len(part))))
		mac.Write(part)
	}
	return mac.Sum(nil)
}

// Close ends the store's use. The last process to close it folds the log into the file.
func (s *Store) Close() error {
	var err error
	if s.conn != nil {
		err = s.conn.Close()
	}
	if s.db != nil {
		err = errors.Join(err, s.db.Close())
	}
	if err != nil {
		return s.explain("closing the store", err)
	}
	return nil
}

// Tx is one transaction; it is good until the function that got it returns.
type Tx struct {
	ctx  context.Context //nolint:containedctx // lives as long as one transaction
	conn *sql.Conn
	s    *Store
}

// Update runs do in a transaction that no other process's write can come between. It
// is kept whole if do returns nil, and leaves nothing otherwise. An error of do comes
// back as it is; one of the store as an *Error.
func (s *Store) Update(ctx context.Context, do func(*Tx) error) error {
	return s.inTurn(ctx, func() error { return s.written(ctx, do) })
}

// UpdateDurably is Update that waits for the disk: what it kept outlives a crash of
// the machine. It takes milliseconds.
func (s *Store) UpdateDurably(ctx context.Context, do func(*Tx) error) error {
	return s.inTurn(ctx, func() error {
		if _, err := s.conn.ExecContext(ctx, "PRAGMA synchronous = FULL"); err != nil {
			return s.explain("asking for durability", err)
		}
		err := s.written(ctx, do)
		if _, failed := s.conn.ExecContext(context.WithoutCancel(ctx), "PRAGMA synchronous = NORMAL"); failed != nil {
			err = errors.Join(err, s.explain("asking for durability", failed))
		}
		return err
	})
}

// View runs do on one unchanging state of the store. It never waits for writers.
func (s *Store) View(ctx context.Context, do func(*Tx) error) error {
	return s.inTurn(ctx, func() error { return s.begun(ctx, "BEGIN", do) })
}

// written runs a transaction that writes, when no other process does.
func (s *Store) written(ctx context.Context, do func(*Tx) error) error {
	give, err := s.takeTurn(ctx)
	if err != nil {
		return s.explain("waiting for the store", err)
	}
	defer give()
	return s.begun(ctx, "BEGIN IMMEDIATE", do)
}

func (s *Store) inTurn(ctx context.Context, do func() error) error {
	select {
	case s.turn <- struct{}{}:
	case <-ctx.Done():
		return fmt.Errorf("waiting for the store: %w", ctx.Err())
	}
	defer func() { <-s.turn }()
	return do()
}

func (s *Store) begun(ctx context.Context, begin string, do func(*Tx) error) (err error) {
	if _, err := s.conn.ExecContext(ctx, begin); err != nil {
		return s.explain("beginning a transaction", err)
	}
	kept := false
	defer func() { // also when do panics
		if !kept {
			_, failed := s.conn.ExecContext(context.WithoutCancel(ctx), "ROLLBACK")
			if failed != nil && !errorsIsNoTransaction(failed) {
				err = errors.Join(err, s.explain("taking a transaction back", failed))
			}
		}
	}()
	if err := do(&Tx{ctx: ctx, conn: s.conn, s: s}); err != nil {
		return err
	}
	// Whether a commit that is interrupted was kept nobody could tell.
	if _, err := s.conn.ExecContext(context.WithoutCancel(ctx), "COMMIT"); err != nil {
		return s.explain("keeping a transaction", err)
	}
	kept = true
	return nil
}

// errorsIsNoTransaction tells whether SQLite had taken the transaction back itself,
// as it does when the disk is full.
func errorsIsNoTransaction(err error) bool {
	e, ok := errors.AsType[sqlite3.Error](err)
	return ok && e.Code == sqlite3.ErrError
}

// exec changes something and returns how many rows it was.
func (t *Tx) exec(query string, args ...any) (int64, error) {
	result, err := t.conn.ExecContext(t.ctx, query, args...)
	if err != nil {
		return 0, t.s.explain("writing", err)
	}
	n, err := result.RowsAffected()
	if err != nil {
		return 0, t.s.explain("writing", err)
	}
	return n, nil
}

// one reads at most one row; found is false when there is none.
func (t *Tx) one(query string, args []any, into ...any) (found bool, err error) {
	err = t.conn.QueryRowContext(t.ctx, query, args...).Scan(into...)
	if errors.Is(err, sql.ErrNoRows) {
		return false, nil
	}
	if err != nil {
		return false, t.s.explain("reading", err)
	}
	return true, nil
}

// each reads rows one after another; scan gets a function that takes the columns.
func (t *Tx) each(query string, args []any, row func(scan func(into ...any) error) error) error {
	rows, err := t.conn.QueryContext(t.ctx, query, args...)
	if err != nil {
		return t.s.explain("reading", err)
	}
	defer rows.Close()
	for rows.Next() {
		if err := row(rows.Scan); err != nil {
			return t.s.explain("reading", err)
		}
	}
	if err := rows.Err(); err != nil {
		return t.s.explain("reading", err)
	}
	return nil
}
