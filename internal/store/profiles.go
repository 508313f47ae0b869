package store

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"time"
)

// profilesSchema keeps what is known of custom profiles. revoked_at is in nanoseconds,
// since an approval that was issued in the same millisecond must not outlive it.
const profilesSchema = `
CREATE TABLE profiles (
	name TEXT NOT NULL PRIMARY KEY,
	version INTEGER NOT NULL,
	digest TEXT NOT NULL,
	revoked_at INTEGER
) STRICT, WITHOUT ROWID;
`

// Profile is what is known of a custom profile.
type Profile struct {
	Version   int       // the highest that was loaded
	Digest    string    // of the file that had it
	RevokedAt time.Time // zero: not revoked
}

// Profiles returns what is known of all custom profiles, by name.
func (t *Tx) Profiles() (map[string]Profile, error) {
	all := map[string]Profile{}
	err := t.each("SELECT name, version, digest, coalesce(revoked_at, 0) FROM profiles", nil, func(scan func(...any) error) error {
		var name string
		var p Profile
		var revoked int64
		err := scan(&name, &p.Version, &p.Digest, &revoked)
		if revoked != 0 {
			p.RevokedAt = time.Unix(0, revoked).UTC()
		}
		all[name] = p
		return err
	})
	return all, err
}

// SetProfile puts what is known of a custom profile in place of what was.
func (t *Tx) SetProfile(name string, p Profile) error {
	var revoked any
	if !p.RevokedAt.IsZero() {
		revoked = p.RevokedAt.UnixNano()
	}
	_, err := t.exec("INSERT OR REPLACE INTO profiles VALUES (?, ?, ?, ?)", name, p.Version, p.Digest, revoked)
	return err
}

// approvalsFile is where profiles were remembered before there was a store. It is
// left in place: an older sbx goes on obeying it.
const approvalsFile = "approvals.json"

const maxApprovals = 16 << 20 // bytes

// Holds reports whether the state directory holds anything that Open would know: a
// store, or what becomes part of one. It makes nothing.
func Holds(dir string) (bool, error) {
	for _, name := range []string{File, approvalsFile} {
		_, err := os.Lstat(filepath.Join(dir, name))
		if err == nil {
			return true, nil
		}
		if !errors.Is(err, fs.ErrNotExist) {
			return false, (&Store{dir: dir}).explain("looking for the store", err)
		}
	}
	return false, nil
}

// importApprovals takes over what was remembered before. What cannot be read stops
// the migration: nothing would be known of versions and revocations.
func importApprovals(t *Tx, state *os.Root) error {
	info, err := state.Lstat(approvalsFile)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	path := filepath.Join(t.s.dir, approvalsFile)
	if err != nil {
		return fmt.Errorf("reading %s: %w", path, err)
	}
	if err := checkFile(path, info); err != nil {
		return err
	}
	known, err := readApprovals(state)
	if err != nil {
		return &Error{Kind: ErrCorrupt, Path: path, Detail: "nothing would be known of the versions and revocations of profiles", Cause: err}
	}
	for name, p := range known {
		if err := t.SetProfile(name, p); err != nil {
			return err
		}
	}
	return nil
}

func readApprovals(state *os.Root) (map[string]Profile, error) {
	f, err := state.Open(approvalsFile)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, maxApprovals))
	if err != nil {
		return nil, err
	}
	var file struct {
		Schema   int `json:"schema"`
		Profiles map[string]struct {
			Version   int       `json:"version"`
			Digest    string    `json:"digest"`
			RevokedAt time.Time `json:"revoked_at"`
		} `json:"profiles"`
	}
	decoder := json.NewDecoder(bytes.NewReader(text))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(&file); err != nil {
		return nil, err
	}
	if _, err := decoder.Token(); !errors.Is(err, io.EOF) || file.Schema != 1 {
		return nil, fmt.Errorf("its schema is %d and there may be more after it", file.Schema)
	}
	all := map[string]Profile{}
	for name, p := range file.Profiles {
		all[name] = Profile(p)
	}
	return all, nil
}
