package approval

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/fractalboxdev/sbx/internal/profile"
	"github.com/fractalboxdev/sbx/internal/sshsig"
)

// statement is what is signed. It has one spelling only: what Text writes.
type statement struct {
	Digest   string // SHA-256 of the file's exact bytes, in hexadecimal
	Profiles []named
	Issued   time.Time
	Expires  time.Time
}

type named struct {
	Name    string
	Version int
}

// firstLine says what the text is, for whoever is asked to sign it.
const firstLine = "sbx approval of a profile file"

// Text returns the lines that are signed.
func (s statement) Text() []byte {
	var b bytes.Buffer
	fmt.Fprintf(&b, "%s\nsha256 %s\n", firstLine, s.Digest)
	for _, p := range s.Profiles {
		fmt.Fprintf(&b, "profile %s %d\n", p.Name, p.Version)
	}
	fmt.Fprintf(&b, "issued %s\nexpires %s\n", s.Issued.UTC().Format(time.RFC3339Nano), s.Expires.UTC().Format(time.RFC3339Nano))
	return b.Bytes()
}

// stampTime writes a time for people.
func stampTime(t time.Time) string { return t.UTC().Format(time.RFC3339) }

// parseStamp reads a statement that is followed by its signature.
func parseStamp(text []byte) (stamp, error) {
	i := bytes.Index(text, []byte("\n"+sshsig.Begin))
	if i < 0 {
		return stamp{}, errors.New("it has no SSH signature")
	}
	s := stamp{text: text[:i+1]}
	var err error
	if s.statement, err = parseStatement(string(s.text)); err != nil {
		return stamp{}, err
	}
	if s.signature, err = sshsig.Parse(text[i+1:]); err != nil {
		return stamp{}, err
	}
	return s, nil
}

// parseStatement reads what Text writes and nothing else.
func parseStatement(text string) (statement, error) {
	var s statement
	for i, line := range strings.Split(strings.TrimSuffix(text, "\n"), "\n") {
		if i == 0 {
			continue // compared with the rest below
		}
		if err := s.set(line); err != nil {
			return s, err
		}
	}
	if string(s.Text()) != text || len(s.Digest) != 64 || len(s.Profiles) == 0 || s.Issued.IsZero() || s.Expires.IsZero() {
		return s, errors.New("its statement is not as sbx writes it")
	}
	return s, nil
}

func (s *statement) set(line string) (err error) {
	key, value, _ := strings.Cut(line, " ")
	switch key {
	case "sha256":
		s.Digest = value
	case "profile":
		var p named
		if _, err := fmt.Sscanf(value, "%s %d", &p.Name, &p.Version); err != nil {
			return fmt.Errorf("line %q: a name and a version are wanted", clip(line))
		}
		s.Profiles = append(s.Profiles, p)
	case "issued":
		s.Issued, err = time.Parse(time.RFC3339Nano, value)
	case "expires":
		s.Expires, err = time.Parse(time.RFC3339Nano, value)
	default:
		return fmt.Errorf("line %q is not known", clip(line))
	}
	return err
}

func clip(s string) string { return s[:min(len(s), 80)] }

// namesOf lists the profiles of a set, sorted.
func namesOf(set profile.Set) ([]named, error) {
	var all []named
	for _, name := range set.Names() {
		p, err := set.Get(name)
		if err != nil {
			return nil, err
		}
		all = append(all, named{name, p.Version})
	}
	return all, nil
}

func (s statement) describes(set profile.Set) bool {
	all, err := namesOf(set)
	return err == nil && slices.Equal(all, s.Profiles)
}
