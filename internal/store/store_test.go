package store

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"
)

func open(t *testing.T, dir string) *Store {
	t.Helper()
	s, err := Open(t.Context(), Options{Dir: dir})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return s
}

func stateDir(t *testing.T) string {
	t.Helper()
	return filepath.Join(t.TempDir(), "state")
}

func TestAStoreKeepsItsIdentity(t *testing.T) {
	dir := stateDir(t)
	a := open(t, dir)
	b := open(t, dir)
	if a.ID() == "" || a.ID() != b.ID() {
		t.Errorf("ids %q and %q", a.ID(), b.ID())
	}
	if string(a.MAC("x", []byte("1"))) != string(b.MAC("x", []byte("1"))) {
		t.Error("the key changed between two openings")
	}
	other := open(t, stateDir(t))
	if other.ID() == a.ID() || string(other.MAC("x", []byte("1"))) == string(a.MAC("x", []byte("1"))) {
		t.Error("two stores share an id or a key")
	}
	for _, name := range []string{File, File + "-wal", File + "-shm"} {
		info, err := os.Stat(filepath.Join(dir, name))
		if err != nil || info.Mode().Perm() != 0o600 {
			t.Errorf("%s: %v, %v", name, info, err)
		}
	}
}

func TestMACDependsOnPurposeAndDivision(t *testing.T) {
	s := open(t, stateDir(t))
	seen := map[string]string{}
	for name, mac := range map[string][]byte{
		"one":        s.MAC("a", []byte("bc")),
		"purpose":    s.MAC("b", []byte("bc")),
		"divided":    s.MAC("a", []byte("b"), []byte("c")),
		"moved":      s.MAC("ab", []byte("c")),
		"no parts":   s.MAC("a"),
		"empty part": s.MAC("a", nil),
	} {
		if other, ok := seen[string(mac)]; ok {
			t.Errorf("%s and %s have the same MAC", name, other)
		}
		seen[string(mac)] = name
	}
}

func TestManyMakeOneStore(t *testing.T) {
	for _, old := range []bool{false, true} {
		dir := stateDir(t)
		if old {
			spoil(t, dir, os.Remove) // what it leaves shows that there was one
		}
		manyMakeOne(t, dir)
	}
}

func manyMakeOne(t *testing.T, dir string) {
	t.Helper()
	ids := make([]string, 16)
	var all sync.WaitGroup
	for i := range ids {
		all.Go(func() {
			s, err := Open(context.Background(), Options{Dir: dir})
			if err != nil {
				t.Error(err)
				return
			}
			ids[i] = s.ID()
			if err := s.Close(); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	for _, id := range ids {
		if id != ids[0] {
			t.Errorf("ids %q and %q", id, ids[0])
		}
	}
}

func TestATransactionIsWholeOrNothing(t *testing.T) {
	s := open(t, stateDir(t))
	fail := errors.New("no")
	write := func(tx *Tx) error {
		_, err := tx.exec("INSERT INTO migrations VALUES (99, 'x', 0)")
		return err
	}
	err := s.Update(t.Context(), func(tx *Tx) error { return errors.Join(write(tx), fail) })
	if !errors.Is(err, fail) {
		t.Errorf("error %v", err)
	}
	func() {
		defer func() { _ = recover() }()
		_ = s.Update(t.Context(), func(tx *Tx) error { _ = write(tx); panic("no") })
	}()
	count := func() (n int) {
		err := s.View(t.Context(), func(tx *Tx) error {
			_, err := tx.one("SELECT count(*) FROM migrations WHERE version = 99", nil, &n)
			return err
		})
		if err != nil {
			t.Error(err)
		}
		return n
	}
	if n := count(); n != 0 {
		t.Errorf("%d rows of transactions that failed", n)
	}
	if err := s.UpdateDurably(t.Context(), write); err != nil {
		t.Error(err)
	}
	if n := count(); n != 1 {
		t.Errorf("%d rows of one that did not", n)
	}
}

func TestFaults(t *testing.T) {
	for _, c := range []struct {
		name  string
		kind  error
		spoil func(t *testing.T, dir string) Options
	}{
		{"damaged header", ErrCorrupt, func(t *testing.T, dir string) Options {
			return spoil(t, dir, func(path string) error {
				return os.WriteFile(path, []byte("this is no database, it is a text that is long enough"), 0o600)
			})
		}},
		{"cut off", ErrCorrupt, func(t *testing.T, dir string) Options {
			return spoil(t, dir, func(path string) error { return os.Truncate(path, 1) })
		}},
		{"emptied", ErrCorrupt, func(t *testing.T, dir string) Options {
			return spoil(t, dir, func(path string) error { return os.Truncate(path, 0) })
		}},
		{"emptied while it is open", ErrCorrupt, func(t *testing.T, dir string) Options {
			open(t, dir)
			leaveOnly(t, dir, File, File+"-wal", File+"-shm")
			return Options{Dir: dir, Existing: true, AsIs: true}
		}},
		{"emptied beside records of runs", ErrCorrupt, func(t *testing.T, dir string) Options {
			open(t, dir)
			leaveOnly(t, dir, File)
			if err := os.MkdirAll(filepath.Join(dir, "runs", "r1"), 0o700); err != nil {
				t.Fatal(err)
			}
			return Options{Dir: dir}
		}},
		{"another program's", ErrCorrupt, func(t *testing.T, dir string) Options {
			s := open(t, dir)
			set(t, s, "PRAGMA application_id = 7")
			return Options{Dir: dir}
		}},
		{"newer", ErrNewer, func(t *testing.T, dir string) Options {
			s := open(t, dir)
			set(t, s, fmt.Sprintf("PRAGMA user_version = %d", len(migrations())+1))
			return Options{Dir: dir}
		}},
		{"missing", ErrMissing, func(_ *testing.T, dir string) Options { return Options{Dir: dir, Existing: true} }},
		{"relative", ErrForeign, func(_ *testing.T, _ string) Options { return Options{Dir: "state"} }},
		{"others may read the directory", ErrForeign, func(t *testing.T, dir string) Options {
			open(t, dir)
			return chmod(t, dir, dir, 0o750)
		}},
		{"others may read the file", ErrForeign, func(t *testing.T, dir string) Options {
			open(t, dir)
			return chmod(t, dir, filepath.Join(dir, File), 0o640)
		}},
		{"others may write the log", ErrForeign, func(t *testing.T, dir string) Options {
			open(t, dir)
			return chmod(t, dir, filepath.Join(dir, File+"-wal"), 0o606)
		}},
		{"everybody may rename it", ErrForeign, func(t *testing.T, dir string) Options {
			return chmod(t, dir, filepath.Dir(dir), 0o777)
		}},
		{"a link", ErrForeign, func(t *testing.T, dir string) Options {
			return spoil(t, dir, func(path string) error {
				return errors.Join(os.Rename(path, path+".real"), os.Symlink(path+".real", path))
			})
		}},
		{"another name", ErrForeign, func(t *testing.T, dir string) Options {
			return spoil(t, dir, func(path string) error { return os.Link(path, path+".too") })
		}},
		{"a directory", ErrForeign, func(t *testing.T, dir string) Options {
			return spoil(t, dir, func(path string) error { return errors.Join(os.Remove(path), os.Mkdir(path, 0o700)) })
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			o := c.spoil(t, stateDir(t))
			s, err := Open(t.Context(), o)
			if s != nil {
				t.Error("a store was opened")
			}
			var fault *Error
			if !errors.As(err, &fault) || !errors.Is(err, c.kind) {
				t.Fatalf("error %v, want %v", err, c.kind)
			}
			if fault.Next() == "" || fault.Doing == "" || fault.Path == "" {
				t.Errorf("it explains nothing: %+v", fault)
			}
		})
	}
}

// leaveOnly empties the store and removes what else there is.
func leaveOnly(t *testing.T, dir string, names ...string) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	for _, e := range entries {
		if !slices.Contains(names, e.Name()) {
			err = errors.Join(err, os.RemoveAll(filepath.Join(dir, e.Name())))
		}
	}
	if err = errors.Join(err, os.Truncate(filepath.Join(dir, File), 0)); err != nil {
		t.Fatal(err)
	}
}

// An empty file is a new store where nothing says that there was one, and where its
// maker had said so before it was killed.
func TestAStoreThatWasBegunIsGoneOnWith(t *testing.T) {
	for name, old := range map[string]bool{"a new directory": false, "the store was moved away": true} {
		t.Run(name, func(t *testing.T) {
			dir := stateDir(t)
			if old {
				spoil(t, dir, os.Remove)
			}
			if _, err := prepare(Options{Dir: dir}); err != nil { // and no more: it was killed
				t.Fatal(err)
			}
			if _, err := os.Lstat(filepath.Join(dir, beginsFile)); err != nil {
				t.Error(err)
			}
			open(t, dir)
			if _, err := os.Lstat(filepath.Join(dir, beginsFile)); !errors.Is(err, os.ErrNotExist) {
				t.Errorf("it goes on for good: %v", err)
			}
		})
	}
	dir := stateDir(t)
	if err := errors.Join(os.Mkdir(dir, 0o700), os.WriteFile(filepath.Join(dir, File), nil, 0o600), os.Mkdir(filepath.Join(dir, runsDir), 0o700)); err != nil {
		t.Fatal(err)
	}
	open(t, dir) // of an sbx that made no sign
}

func spoil(t *testing.T, dir string, how func(path string) error) Options {
	t.Helper()
	s, err := Open(t.Context(), Options{Dir: dir})
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(s.Close(), how(s.Path())); err != nil {
		t.Fatal(err)
	}
	return Options{Dir: dir}
}

func chmod(t *testing.T, dir, path string, mode os.FileMode) Options {
	t.Helper()
	if err := os.Chmod(path, mode); err != nil {
		t.Fatal(err)
	}
	return Options{Dir: dir}
}

func set(t *testing.T, s *Store, query string) {
	t.Helper()
	if err := s.Update(t.Context(), func(tx *Tx) error { _, err := tx.exec(query); return err }); err != nil {
		t.Fatal(err)
	}
}

func TestAWriterThatDoesNotEndIsAnError(t *testing.T) {
	dir := stateDir(t)
	a := open(t, dir)
	b, err := Open(t.Context(), Options{Dir: dir, Wait: 20 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = b.Close() })
	err = a.Update(t.Context(), func(*Tx) error {
		return b.Update(t.Context(), func(*Tx) error { return nil })
	})
	if !errors.Is(err, ErrLocked) {
		t.Errorf("error %v", err)
	}
	if err := b.Update(t.Context(), func(*Tx) error { return nil }); err != nil {
		t.Errorf("afterwards: %v", err)
	}
}

// Writers of many processes and many writers of one process all get their turn.
func TestWritersTakeTurns(t *testing.T) {
	dir := stateDir(t)
	set(t, open(t, dir), "CREATE TABLE n (n INTEGER); INSERT INTO n VALUES (0)")
	const stores, times = 16, 25
	var all sync.WaitGroup
	for range stores {
		s, err := Open(t.Context(), Options{Dir: dir})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = s.Close() })
		for range 2 {
			all.Go(func() {
				for range times {
					err := s.Update(context.Background(), func(tx *Tx) error { _, err := tx.exec("UPDATE n SET n = n + 1"); return err })
					if err != nil {
						t.Error(err)
					}
				}
			})
		}
	}
	all.Wait()
	var n int
	err := open(t, dir).View(t.Context(), func(tx *Tx) error { _, err := tx.one("SELECT n FROM n", nil, &n); return err })
	if err != nil || n != stores*2*times {
		t.Errorf("%d, %v, want %d", n, err, stores*2*times)
	}
}

func TestAWriterThatGivesUpLeavesTheTurn(t *testing.T) {
	dir := stateDir(t)
	a, b := open(t, dir), open(t, dir)
	ctx, cancel := context.WithCancel(t.Context())
	err := a.Update(t.Context(), func(*Tx) error {
		done := make(chan error)
		go func() { done <- b.Update(ctx, func(*Tx) error { return nil }) }()
		cancel()
		return <-done
	})
	if !errors.Is(err, context.Canceled) {
		t.Errorf("error %v", err)
	}
	for _, s := range []*Store{a, b, a} {
		if err := s.Update(t.Context(), func(*Tx) error { return nil }); err != nil {
			t.Error(err)
		}
	}
}

func TestAFullDiskIsAnError(t *testing.T) {
	s := open(t, stateDir(t))
	set(t, s, "PRAGMA max_page_count = 1")
	var n int
	err := s.Update(t.Context(), func(tx *Tx) error {
		_, err := tx.exec("CREATE TABLE big AS SELECT zeroblob(1000000) AS b")
		return err
	})
	if !errors.Is(err, ErrFull) {
		t.Errorf("error %v", err)
	}
	err = s.View(t.Context(), func(tx *Tx) error {
		_, err := tx.one("SELECT count(*) FROM migrations", nil, &n)
		return err
	})
	if err != nil || n != len(migrations()) {
		t.Errorf("%d migrations, %v", n, err)
	}
}

func TestTidyKeepsTheLogShort(t *testing.T) {
	s := open(t, stateDir(t))
	grow := func() {
		for range 20 {
			set(t, s, "UPDATE store SET made_at = made_at + 1")
		}
	}
	size := func() int64 {
		info, err := os.Stat(s.Path() + "-wal")
		if err != nil {
			t.Fatal(err)
		}
		return info.Size()
	}
	for range 3 {
		for size() <= tidyAt {
			grow()
		}
		if err := s.Tidy(t.Context()); err != nil {
			t.Fatal(err)
		}
		set(t, s, "UPDATE store SET made_at = made_at + 1")
		if got := size(); got > tidyAt {
			t.Errorf("the log of %d bytes was not cut", got)
		}
	}
}

func TestBypass48_AStateDirectoryIsReachedOnceAndForAll(t *testing.T) {
	base := t.TempDir()
	dir, link := filepath.Join(base, "state"), filepath.Join(base, "link")
	if err := errors.Join(os.Mkdir(dir, 0o700), os.Symlink(dir, link)); err != nil {
		t.Fatal(err)
	}
	s := open(t, link)
	if err := errors.Join(os.Remove(link), os.Symlink(base, link)); err != nil {
		t.Fatal(err)
	}
	if err := take(t, s, claim("a", "lean", 1)).Release(t.Context()); err != nil {
		t.Error(err)
	}
	if s.Dir() != dir {
		t.Errorf("it is in %s", s.Dir())
	}
	if entries, err := os.ReadDir(base); err != nil || len(entries) != 2 {
		t.Errorf("%v, %v", entries, err)
	}
}

// Whoever may rename in a directory above can put another store in place of root's.
func TestBypass50_RootsStoreLiesInRootsDirectories(t *testing.T) {
	if os.Geteuid() != 0 {
		if err := checkAncestor("/", info(t, "/")); err != nil {
			t.Errorf("an ordinary user's may lie below root's: %v", err)
		}
		return
	}
	dir := stateDir(t)
	open(t, dir)
	if err := os.Chown(filepath.Dir(dir), 1, -1); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(t.Context(), Options{Dir: dir}); !errors.Is(err, ErrForeign) {
		t.Errorf("error %v", err)
	}
}

func info(t *testing.T, path string) os.FileInfo {
	t.Helper()
	i, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	return i
}
