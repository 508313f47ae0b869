package approval

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/fractalboxdev/sbx/internal/event"
	"github.com/fractalboxdev/sbx/internal/profile"
	"github.com/fractalboxdev/sbx/internal/sshsig"
)

// MaxLifetime bounds how long an approval can hold.
const MaxLifetime = 366 * 24 * time.Hour

// Approved is an approval that was written.
type Approved struct {
	File        string    `json:"file"`
	Approval    string    `json:"approval"` // its path
	Digest      string    `json:"digest"`
	Profiles    []string  `json:"profiles"`
	Fingerprint string    `json:"fingerprint"`
	Signer      string    `json:"signer"` // "" when this machine has no allowed signers
	Expires     time.Time `json:"expires"`
}

// Approve signs what a profile file says now and puts the approval beside it. A
// file with findings, a version that could not be used on this machine and a key
// that its configuration does not allow are refused before anything is written.
func Approve(ctx context.Context, path string, key sshsig.Key, lifetime time.Duration, o Options) (Approved, error) {
	text, err := readFile(path, maxProfile)
	if err != nil {
		return Approved{}, fmt.Errorf("reading profile file: %w", err)
	}
	s, err := o.statement(ctx, path, text, lifetime)
	if err != nil {
		return Approved{}, err
	}
	armored, err := key.Sign(ctx, s.Text(), Namespace)
	if err != nil {
		return Approved{}, err
	}
	stamped := append(s.Text(), armored...)
	done, err := o.verify(path, stamped)
	if err != nil {
		return Approved{}, err
	}
	return done, replaceFile(done.Approval, stamped)
}

// statement says what is to be signed of a file.
func (o Options) statement(ctx context.Context, path string, text []byte, lifetime time.Duration) (statement, error) {
	if lifetime <= 0 || lifetime > MaxLifetime {
		return statement{}, fmt.Errorf("approving %s: an approval holds from a moment to %d days", path, MaxLifetime/(24*time.Hour))
	}
	if err := lint(path, string(text)); err != nil {
		return statement{}, err
	}
	set, err := profile.Parse(string(text), path)
	if err != nil {
		return statement{}, err
	}
	s := statement{Digest: digestOf(text), Issued: o.Now.UTC()}
	s.Expires = s.Issued.Add(lifetime).Truncate(time.Second)
	if s.Profiles, err = namesOf(set); err != nil {
		return s, err
	}
	return s, o.checkVersions(ctx, s)
}

func (o Options) checkVersions(ctx context.Context, s statement) error {
	memory, err := o.recall(ctx)
	if err != nil {
		return err
	}
	for _, p := range s.Profiles {
		a := event.Approval{Profile: p.Name, Version: p.Version, Digest: s.Digest}
		if err := memory.check(a, s.Issued); err != nil {
			return err
		}
	}
	return nil
}

// verify reads back what is about to be written.
func (o Options) verify(path string, stamped []byte) (Approved, error) {
	s, err := parseStamp(stamped)
	if err != nil {
		return Approved{}, fmt.Errorf("reading the new approval back: %w", err)
	}
	done := Approved{File: path, Approval: path + Suffix, Digest: s.Digest, Fingerprint: s.signature.Fingerprint(), Expires: s.Expires, Profiles: []string{}}
	for _, p := range s.Profiles {
		done.Profiles = append(done.Profiles, fmt.Sprintf("%s %d", p.Name, p.Version))
	}
	if o.Signers == "" {
		if err := s.signature.Verify(s.text, Namespace); err != nil {
			return Approved{}, fmt.Errorf("checking the new approval: %w", err)
		}
		return done, nil
	}
	approvals, err := s.check(path, o)
	if err != nil {
		return Approved{}, err
	}
	done.Signer = approvals[0].Signer
	return done, nil
}

// replaceFile writes a file under another name first, so that a reader sees the
// old or the new one, and a link of that name is replaced, not followed.
func replaceFile(path string, text []byte) error {
	f, err := os.CreateTemp(filepath.Dir(path), filepath.Base(path)+".*")
	if err != nil {
		return fmt.Errorf("writing the approval: %w", err)
	}
	_, err = bytes.NewReader(text).WriteTo(f)
	err = errors.Join(err, f.Chmod(0o644), f.Close())
	if err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		return fmt.Errorf("writing the approval: %w", errors.Join(err, os.Remove(f.Name())))
	}
	return nil
}
