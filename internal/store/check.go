package store

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// Report is what a check of the store found.
type Report struct {
	Path     string   `json:"path"`
	ID       string   `json:"id"`
	Schema   int      `json:"schema"`
	Known    int      `json:"known_schema"` // of this sbx
	Bytes    int64    `json:"bytes"`
	Problems []string `json:"problems"`
	Notes    []string `json:"notes"` // what the next run mends by itself
}

// maxProblems bounds what SQLite says of a damaged file.
const maxProblems = 100

// Check looks at every page of the store, at every reference, and at what the areas
// promise. It changes nothing.
func (s *Store) Check(ctx context.Context) (Report, error) {
	r := Report{Path: s.Path(), ID: s.id, Schema: s.schema, Known: len(migrations()), Problems: []string{}, Notes: []string{}}
	if info, err := os.Stat(s.Path()); err == nil {
		r.Bytes = info.Size()
	}
	err := s.View(ctx, func(t *Tx) error {
		for _, look := range []func(*Tx) error{r.integrity, r.references, r.migrations, r.tickets} {
			if err := look(t); err != nil {
				return err
			}
		}
		return nil
	})
	if errors.Is(err, ErrCorrupt) {
		r.Problems = append(r.Problems, err.Error())
		err = nil
	}
	return r, err
}

func (r *Report) integrity(t *Tx) error {
	return t.each(fmt.Sprintf("PRAGMA integrity_check(%d)", maxProblems), nil, func(scan func(...any) error) error {
		var line string
		err := scan(&line)
		if line != "ok" {
			r.Problems = append(r.Problems, line)
		}
		return err
	})
}

func (r *Report) references(t *Tx) error {
	return t.each("SELECT \"table\", parent, count(*) FROM pragma_foreign_key_check GROUP BY 1, 2", nil, func(scan func(...any) error) error {
		var from, to string
		var n int
		err := scan(&from, &to, &n)
		r.Problems = append(r.Problems, fmt.Sprintf("%d rows of %s refer to rows of %s that are not there", n, from, to))
		return err
	})
}

// migrations compares the steps that were taken with those that this sbx knows: one
// that was built from other sources may have taken others under the same number.
func (r *Report) migrations(t *Tx) error {
	if r.Schema < r.Known {
		r.Notes = append(r.Notes, fmt.Sprintf("its schema is version %d of %d; the next run migrates it, or \"sbx state migrate\"", r.Schema, r.Known))
	}
	if r.Schema == 0 {
		return nil
	}
	return t.each("SELECT version, name FROM migrations ORDER BY version", nil, func(scan func(...any) error) error {
		var version int
		var name string
		if err := scan(&version, &name); err != nil {
			return err
		}
		if version < 1 || version > r.Known || migrations()[version-1].name != name {
			r.Problems = append(r.Problems, fmt.Sprintf("step %d of its schema is %q, which is not what this sbx knows", version, name))
		}
		return nil
	})
}

// tickets looks for what dead processes left.
func (r *Report) tickets(t *Tx) error {
	if r.Schema < r.Known {
		return nil
	}
	dead, left, err := t.remains()
	if err != nil {
		return err
	}
	for _, f := range dead {
		r.Notes = append(r.Notes, fmt.Sprintf("run %s is gone and still has a ticket of class %s; the next run frees it", f.Run, f.Class))
	}
	for _, name := range left {
		r.Notes = append(r.Notes, fmt.Sprintf("%s was left by a run that is gone; the next run removes it", filepath.Join(gatesDir, name)))
	}
	return nil
}

// orphans lists the gates in queues that nobody holds and whose run does not wait.
func (t *Tx) orphans() ([]string, error) {
	waits, err := t.s.waitGates()
	if err != nil || len(waits) == 0 {
		return nil, err
	}
	known, err := t.Tickets()
	if err != nil {
		return nil, err
	}
	var left []string
	for _, name := range waits {
		if slices.ContainsFunc(known, func(k Ticket) bool { return k.Waiting && waitName(k.Run) == name }) {
			continue
		}
		held, err := t.s.held(name)
		if err != nil {
			return nil, err
		}
		if !held {
			left = append(left, name)
		}
	}
	return left, nil
}

// waitGates lists the gates in queues.
func (s *Store) waitGates() ([]string, error) {
	dir, err := os.Open(filepath.Join(s.dir, gatesDir))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, s.explain("looking at the gates", err)
	}
	defer dir.Close()
	names, err := dir.Readdirnames(-1)
	if err != nil {
		return nil, s.explain("looking at the gates", err)
	}
	return slices.DeleteFunc(names, func(name string) bool { return !strings.HasPrefix(name, waitName("")) }), nil
}
