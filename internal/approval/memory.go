package approval

import (
	"context"
	"fmt"
	"time"

	"github.com/fractalboxdev/sbx/internal/artifact"
	"github.com/fractalboxdev/sbx/internal/event"
	"github.com/fractalboxdev/sbx/internal/store"
)

// memory is what is known of custom profiles by name.
type memory map[string]store.Profile

// check refuses what is revoked, older than what was seen, or other bytes under
// a version that was seen.
func (m memory) check(a event.Approval, issued time.Time) error {
	seen := m[a.Profile]
	if !seen.RevokedAt.IsZero() && !issued.After(seen.RevokedAt) {
		return refuse(CodeRevoked, "review and approve it anew", nil, "profile %s was revoked at %s, and this approval was issued before", a.Profile, stampTime(seen.RevokedAt))
	}
	return checkVersion(seen, a)
}

func checkVersion(seen store.Profile, a event.Approval) error {
	switch {
	case a.Version < seen.Version:
		return refuse(CodeVersion, "use the newer file", nil, "version %d of profile %s is older than version %d, which was used on this machine", a.Version, a.Profile, seen.Version)
	case a.Version == seen.Version && a.Digest != seen.Digest && seen.Digest != "":
		return refuse(CodeVersion, fmt.Sprintf("set version = %d and approve it", seen.Version+1), nil, "version %d of profile %s was used on this machine with other contents", a.Version, a.Profile)
	}
	return nil
}

// note remembers an approval that was loaded.
func note(t *store.Tx, known memory, a event.Approval) error {
	seen := known[a.Profile]
	if err := checkVersion(seen, a); err != nil {
		return err
	}
	if seen.Version == a.Version && seen.Digest == a.Digest {
		return nil
	}
	seen.Version, seen.Digest = a.Version, a.Digest
	return t.SetProfile(a.Profile, seen)
}

// Revoke refuses every approval of a profile that was issued up to now.
func Revoke(name string, o Options) error {
	return o.update(context.Background(), func(t *store.Tx, known memory) error {
		seen := known[name]
		seen.RevokedAt = o.Now.UTC()
		return t.SetProfile(name, seen)
	})
}

// Known returns the profiles that were used or revoked on this machine.
func Known(o Options) ([]string, error) {
	m, err := o.recall(context.Background())
	if err != nil {
		return nil, err
	}
	names := make([]string, 0, len(m))
	for name := range m {
		names = append(names, name)
	}
	return names, nil
}

// recall reads what is remembered. Where there is no store, nothing is, and none is
// made; one that cannot be trusted or read is an error.
func (o Options) recall(ctx context.Context) (m memory, err error) {
	if err := artifact.Check(o.StateDir); err != nil {
		return nil, fmt.Errorf("reading what was approved before: %w", err)
	}
	found, err := store.Holds(o.StateDir)
	if err != nil || !found {
		return nil, err
	}
	s, err := o.store(ctx)
	if err != nil {
		return nil, fmt.Errorf("reading what was approved before: %w", err)
	}
	err = s.View(ctx, func(t *store.Tx) (err error) {
		m, err = t.Profiles()
		return err
	})
	return m, err
}

// update changes what is remembered, alone, all at once and so that it outlives a
// crash of the machine.
func (o Options) update(ctx context.Context, change func(*store.Tx, memory) error) error {
	s, err := o.store(ctx)
	if err != nil {
		return fmt.Errorf("remembering an approval: %w", err)
	}
	return s.UpdateDurably(ctx, func(t *store.Tx) error {
		known, err := t.Profiles()
		if err != nil {
			return err
		}
		return change(t, known)
	})
}

func (o Options) store(ctx context.Context) (*store.Store, error) {
	if o.Store != nil {
		return o.Store()
	}
	return store.Open(ctx, store.Options{Dir: o.StateDir})
}
