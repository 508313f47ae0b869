// Package approval is the review gate of custom profiles: a file loads when an
// allowed signer approved its exact bytes, its names and its version, and the
// approval is neither expired, revoked nor older than one that was seen before.
package approval

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"time"

	"github.com/fractalboxdev/sbx/internal/event"
	"github.com/fractalboxdev/sbx/internal/profile"
	"github.com/fractalboxdev/sbx/internal/sshsig"
	"github.com/fractalboxdev/sbx/internal/store"
)

// Namespace keeps signatures of profiles apart from all others.
const Namespace = "sbx-profile-v1"

// Suffix is added to a profile file's name for its approval.
const Suffix = ".approval"

// maxSkew is how far in the future an approval may have been issued.
const maxSkew = 5 * time.Minute

// The codes of refusals, all of kind event.RefusedApproval.
const (
	CodeMissing   = "approval-missing"
	CodeMalformed = "approval-malformed"
	CodeChanged   = "approval-changed" // the bytes are not those that were approved
	CodeExpired   = "approval-expired"
	CodeFuture    = "approval-not-yet-valid"
	CodeSignature = "approval-signature" // wrong namespace or wrong signature
	CodeSigner    = "approval-signer"
	CodeVersion   = "approval-version" // lower than one that was seen, or other bytes under the same
	CodeRevoked   = "approval-revoked"
	CodeFindings  = "profile-findings"
	CodeNoSigners = "signers-not-configured"
	CodeSigners   = "signers-unusable"
)

// Options say where the gate looks.
type Options struct {
	Signers   string   // allowed_signers file of the operator's configuration, "" for none
	StateDir  string   // where versions and revocations are remembered
	UID       int      // the caller: the signers' file is its own or root's
	RootUID   int      // the uid that root's files show, 0 but in some user namespaces
	Forbidden []string // absolute paths below which a sandbox may write
	Now       time.Time
	// Store opens the store of StateDir, once; nil opens it each time.
	Store func() (*store.Store, error)
}

// Loaded is a profile file that passed the gate.
type Loaded struct {
	Profiles  profile.Set
	Approvals []event.Approval
	gate      Options
}

func refuse(code, next string, cause error, format string, args ...any) error {
	return &event.Refusal{Kind: event.RefusedApproval, Code: code, Message: fmt.Sprintf(format, args...), Next: next, Cause: cause}
}

// Load reads a profile file and its approval, each once, and checks them. Every
// refusal is an *event.Refusal with the next step.
func Load(path string, o Options) (Loaded, error) {
	text, err := readFile(path, maxProfile)
	if err != nil {
		return Loaded{}, fmt.Errorf("reading profile file: %w", err)
	}
	stamp, err := readStamp(path)
	if err != nil {
		return Loaded{}, err
	}
	if stamp.Digest != digestOf(text) {
		return Loaded{}, refuse(CodeChanged, next(path), nil, "%s is not what was approved: its digest is %s, that of the approval %s", path, digestOf(text), stamp.Digest)
	}
	approvals, err := stamp.check(path, o)
	if err != nil {
		return Loaded{}, err
	}
	set, err := parse(path, string(text), stamp.statement)
	if err != nil {
		return Loaded{}, err
	}
	memory, err := o.recall(context.Background())
	if err != nil {
		return Loaded{}, err
	}
	for _, a := range approvals {
		if err := memory.check(a, stamp.Issued); err != nil {
			return Loaded{}, err
		}
	}
	return Loaded{Profiles: set, Approvals: approvals, gate: o}, nil
}

// Remember notes the versions that were loaded, so that no lower one loads again.
func (l Loaded) Remember() error {
	if len(l.Approvals) == 0 {
		return nil
	}
	return l.gate.update(context.Background(), func(t *store.Tx, known memory) error {
		for _, a := range l.Approvals {
			if err := note(t, known, a); err != nil {
				return err
			}
		}
		return nil
	})
}

func next(path string) string {
	return fmt.Sprintf("review it, then: sbx profiles approve %s --key KEY", path)
}

func digestOf(text []byte) string {
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:])
}

// stamp is an approval file: a statement and its signature.
type stamp struct {
	statement
	text      []byte // of the statement
	signature *sshsig.Signature
}

func readStamp(path string) (stamp, error) {
	file := path + Suffix
	text, err := readFile(file, maxApproval)
	if errors.Is(err, fs.ErrNotExist) {
		return stamp{}, refuse(CodeMissing, next(path), err, "%s has no approval: %s is missing", path, filepath.Base(file))
	}
	if err != nil {
		return stamp{}, fmt.Errorf("reading approval: %w", err)
	}
	s, err := parseStamp(text)
	if err != nil {
		return stamp{}, refuse(CodeMalformed, next(path), err, "%s is no approval: %v", file, err)
	}
	return s, nil
}

// check proves signature and signer, and looks at the times.
func (s stamp) check(path string, o Options) ([]event.Approval, error) {
	if err := s.signature.Verify(s.text, Namespace); err != nil {
		return nil, refuse(CodeSignature, next(path), err, "the approval of %s does not hold: %v", path, err)
	}
	signers, err := o.signers()
	if err != nil {
		return nil, err
	}
	who, err := signers.Allow(s.signature, o.Now)
	if err != nil {
		return nil, refuse(CodeSigner, "let somebody approve it who is listed in "+o.Signers, err, "the approval of %s does not count: %v", path, err)
	}
	switch {
	case !o.Now.Before(s.Expires):
		return nil, refuse(CodeExpired, next(path), nil, "the approval of %s expired at %s", path, stampTime(s.Expires))
	case s.Issued.After(o.Now.Add(maxSkew)):
		return nil, refuse(CodeFuture, "look at this machine's clock", nil, "the approval of %s was issued at %s, which is yet to come", path, stampTime(s.Issued))
	}
	var approvals []event.Approval
	for _, p := range s.Profiles {
		approvals = append(approvals, event.Approval{
			Profile: p.Name, Version: p.Version, Digest: s.Digest, Signer: who, Fingerprint: s.signature.Fingerprint(), Expires: s.Expires,
		})
	}
	return approvals, nil
}

// parse loads the approved text, which has to be free of findings, and to be
// what the statement says of it.
func parse(path, text string, s statement) (profile.Set, error) {
	if err := lint(path, text); err != nil {
		return profile.Set{}, err
	}
	set, err := profile.Parse(text, path)
	if err != nil {
		return profile.Set{}, err
	}
	if !s.describes(set) {
		return profile.Set{}, refuse(CodeChanged, next(path), nil, "the approval of %s names other profiles or versions than the file has", path)
	}
	return set, nil
}

// lint refuses a file with findings; the first is named.
func lint(path, text string) error {
	found := profile.Lint(text, path, true)
	if len(found) == 0 {
		return nil
	}
	return refuse(CodeFindings, "\"sbx profiles lint "+path+"\" has all findings", nil, "%s has %d findings, the first: %s", path, len(found), found[0])
}
