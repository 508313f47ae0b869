package project

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
)

// errSnapshot means that a snapshot cannot be understood.
var errSnapshot = errors.New("reading what was guarded")

// Encode writes a survey down, for a later run that has to look after this one: a line
// each for a tree, its entries, and what was not searched. Paths are quoted.
func (s Survey) Encode() []byte {
	var b []byte
	for _, t := range s.Trees {
		b = fmt.Appendf(b, "tree %t %d ", t.Whole, t.Dirs)
		b = appendIdentity(b, t.id, t.Root)
		for _, e := range t.Entries {
			b = append(b, "entry "...)
			b = append(b, byte(e.kind), ' ')
			b = strconv.AppendUint(b, e.parent, 10)
			b = append(append(append(b, ' '), e.sum...), '-', ' ')
			b = appendIdentity(b, e.id, e.Path)
		}
		for _, p := range t.Closed {
			b = append(strconv.AppendQuote(append(b, "closed "...), p), '\n')
		}
		for _, p := range t.Skipped {
			b = append(strconv.AppendQuote(append(b, "skipped "...), p), '\n')
		}
	}
	return b
}

func appendIdentity(b []byte, id identity, p string) []byte {
	b = append(strconv.AppendUint(b, id.dev, 10), ' ')
	b = append(strconv.AppendUint(b, id.ino, 10), ' ')
	b = append(strconv.AppendInt(b, id.changed, 10), ' ')
	b = append(strconv.AppendInt(b, id.size, 10), ' ')
	b = append(strconv.AppendUint(b, uint64(id.mode), 10), ' ')
	b = append(strconv.AppendUint(b, id.links, 10), ' ')
	return append(strconv.AppendQuote(b, p), '\n')
}

// Decode reads what Encode wrote. Nothing is opened yet.
func Decode(text []byte) (Survey, error) {
	var s Survey
	for line := range strings.Lines(string(text)) {
		if err := s.line(strings.TrimSuffix(line, "\n")); err != nil {
			return s, fmt.Errorf("%w: %q: %w", errSnapshot, line, err)
		}
	}
	return s, nil
}

func (s *Survey) line(line string) error {
	what, rest, _ := strings.Cut(line, " ")
	if what == "tree" {
		t := Tree{}
		n, err := fmt.Sscanf(rest, "%t %d %d %d %d %d %d %d %q", &t.Whole, &t.Dirs,
			&t.id.dev, &t.id.ino, &t.id.changed, &t.id.size, &t.id.mode, &t.id.links, &t.Root)
		if err != nil || n != 9 {
			return fmt.Errorf("a tree: %w", err)
		}
		s.Trees = append(s.Trees, t)
		return nil
	}
	if len(s.Trees) == 0 {
		return errors.New("no tree comes first")
	}
	t := &s.Trees[len(s.Trees)-1]
	switch what {
	case "entry":
		e, err := parseEntry(rest)
		t.Entries = append(t.Entries, e)
		return err
	case "closed":
		p, err := strconv.Unquote(rest)
		t.Closed = append(t.Closed, p)
		return err
	case "skipped":
		p, err := strconv.Unquote(rest)
		t.Skipped = append(t.Skipped, p)
		return err
	}
	return errors.New("an unknown line")
}

func parseEntry(text string) (Entry, error) {
	var e Entry
	var k rune
	n, err := fmt.Sscanf(text, "%c %d %s %d %d %d %d %d %d %q", &k, &e.parent, &e.sum,
		&e.id.dev, &e.id.ino, &e.id.changed, &e.id.size, &e.id.mode, &e.id.links, &e.Path)
	if err != nil || n != 10 {
		return e, fmt.Errorf("an entry: %w", err)
	}
	e.kind, e.sum = kind(k), strings.TrimSuffix(e.sum, "-") //nolint:gosec // one of the kinds, which are ASCII
	return e, nil
}

// Reopen holds the trees of a decoded survey, as far as they are still where they
// were. The others are dropped and named.
func (s *Survey) Reopen() (lost []string) {
	var found []Tree
	for _, t := range s.Trees {
		dir, err := openRoot(t.Root)
		if err == nil {
			var id identity
			if id, err = identify(int(dir.Fd()), "."); err == nil && (id.dev != t.id.dev || id.ino != t.id.ino) {
				err = errSnapshot
			}
		}
		if err != nil {
			if dir != nil {
				_ = dir.Close()
			}
			lost = append(lost, t.Root)
			continue
		}
		t.dir = dir
		found = append(found, t)
	}
	s.Trees = found
	return lost
}
