package approval

import (
	"bytes"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fractalboxdev/sbx/internal/artifact"
	"github.com/fractalboxdev/sbx/internal/event"
)

// The files below the state directory. The store will take them over.
const (
	memoryFile = "approvals.json"
	lockFile   = "approvals.lock"
	maxMemory  = 16 << 20 // bytes
)

// memory is what is known of custom profiles by name.
type memory struct {
	Schema   int                   `json:"schema"`
	Profiles map[string]remembered `json:"profiles"`
}

type remembered struct {
	Version   int       `json:"version"` // the highest that was loaded
	Digest    string    `json:"digest"`  // of the file that had it
	RevokedAt time.Time `json:"revoked_at,omitzero"`
}

// check refuses what is revoked, older than what was seen, or other bytes under
// a version that was seen.
func (m memory) check(a event.Approval, issued time.Time) error {
	seen := m.Profiles[a.Profile]
	if !seen.RevokedAt.IsZero() && !issued.After(seen.RevokedAt) {
		return refuse(CodeRevoked, "review and approve it anew", nil, "profile %s was revoked at %s, and this approval was issued before", a.Profile, stampTime(seen.RevokedAt))
	}
	return seen.checkVersion(a)
}

func (r remembered) checkVersion(a event.Approval) error {
	switch {
	case a.Version < r.Version:
		return refuse(CodeVersion, "use the newer file", nil, "version %d of profile %s is older than version %d, which was used on this machine", a.Version, a.Profile, r.Version)
	case a.Version == r.Version && a.Digest != r.Digest && r.Digest != "":
		return refuse(CodeVersion, fmt.Sprintf("set version = %d and approve it", r.Version+1), nil, "version %d of profile %s was used on this machine with other contents", a.Version, a.Profile)
	}
	return nil
}

func (m *memory) note(a event.Approval) error {
	seen := m.Profiles[a.Profile]
	if err := seen.checkVersion(a); err != nil {
		return err
	}
	seen.Version, seen.Digest = a.Version, a.Digest
	m.Profiles[a.Profile] = seen
	return nil
}

// Revoke refuses every approval of a profile that was issued up to now.
func Revoke(name string, o Options) error {
	return update(o.StateDir, func(m *memory) error {
		seen := m.Profiles[name]
		seen.RevokedAt = o.Now.UTC()
		m.Profiles[name] = seen
		return nil
	})
}

// Known returns the profiles that were used or revoked on this machine.
func Known(o Options) ([]string, error) {
	m, err := recall(o.StateDir)
	if err != nil {
		return nil, err
	}
	names := make([]string, 0, len(m.Profiles))
	for name := range m.Profiles {
		names = append(names, name)
	}
	return names, nil
}

// recall reads what is remembered. A state directory or file that is missing
// remembers nothing; one that cannot be trusted or read is an error.
func recall(state string) (memory, error) {
	empty := memory{Schema: 1, Profiles: map[string]remembered{}}
	if err := artifact.Check(state); err != nil {
		return empty, fmt.Errorf("reading what was approved before: %w", err)
	}
	root, err := os.OpenRoot(state)
	if errors.Is(err, fs.ErrNotExist) {
		return empty, nil
	}
	if err != nil {
		return empty, fmt.Errorf("reading what was approved before: %w", err)
	}
	defer root.Close()
	return read(root, empty)
}

func read(root *os.Root, empty memory) (memory, error) {
	f, err := root.Open(memoryFile)
	if errors.Is(err, fs.ErrNotExist) {
		return empty, nil
	}
	if err != nil {
		return empty, fmt.Errorf("reading what was approved before: %w", err)
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, maxMemory))
	if err != nil {
		return empty, fmt.Errorf("reading what was approved before: %w", err)
	}
	m := memory{}
	decoder := json.NewDecoder(bytes.NewReader(text))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(&m); err != nil || m.Schema != 1 {
		return empty, fmt.Errorf("reading what was approved before: %s of the state directory cannot be understood, so nothing is known of versions and revocations: %w", memoryFile, errors.Join(err, errSchema(m.Schema)))
	}
	if m.Profiles == nil {
		m.Profiles = map[string]remembered{}
	}
	return m, nil
}

func errSchema(schema int) error {
	if schema == 1 {
		return nil
	}
	return fmt.Errorf("its schema is %d", schema)
}

// update changes what is remembered, alone and all at once.
func update(state string, change func(*memory) error) error {
	if err := artifact.Check(state); err != nil {
		return fmt.Errorf("remembering an approval: %w", err)
	}
	if err := os.MkdirAll(state, 0o700); err != nil {
		return fmt.Errorf("making the state directory: %w", err)
	}
	root, err := os.OpenRoot(state)
	if err != nil {
		return fmt.Errorf("opening the state directory: %w", err)
	}
	defer root.Close()
	lock, err := root.OpenFile(lockFile, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return fmt.Errorf("locking what was approved before: %w", err)
	}
	defer lock.Close() // releases the lock
	for {
		if err = unix.Flock(int(lock.Fd()), unix.LOCK_EX); !errors.Is(err, unix.EINTR) {
			break
		}
	}
	if err != nil {
		return fmt.Errorf("locking what was approved before: %w", err)
	}
	m, err := read(root, memory{Schema: 1, Profiles: map[string]remembered{}})
	if err != nil {
		return err
	}
	if err := change(&m); err != nil {
		return err
	}
	return write(root, m)
}

func write(root *os.Root, m memory) error {
	text, err := json.MarshalIndent(m, "", "  ")
	if err != nil {
		return fmt.Errorf("encoding what was approved: %w", err)
	}
	temporary := memoryFile + "." + rand.Text()
	if err := writeFile(root, temporary, append(text, '\n')); err != nil {
		return fmt.Errorf("remembering an approval: %w", err)
	}
	if err := root.Rename(temporary, memoryFile); err != nil {
		return errors.Join(fmt.Errorf("remembering an approval: %w", err), root.Remove(temporary))
	}
	return nil
}

// writeFile writes a new file and has it on disk before its name is used.
func writeFile(root *os.Root, name string, text []byte) error {
	f, err := root.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(text)
	if err = errors.Join(err, f.Sync(), f.Close()); err != nil {
		return errors.Join(err, root.Remove(name))
	}
	return nil
}
