package approval

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"strings"
	"time"

	"github.com/fractalboxdev/sbx/internal/event"
	"github.com/fractalboxdev/sbx/internal/floor"
	"github.com/fractalboxdev/sbx/internal/sshsig"
)

// The codes of refusals about irreversible commands: the first of kind
// event.RefusedApproval, all others event.RefusedAttestation.
const (
	CodeNoAttestation = "attestation-missing"
	CodeUnreadable    = "attestation-unreadable"
	CodeNotOne        = "attestation-malformed"
	CodeNotSigned     = "attestation-signature" // none, a wrong one, or one for another namespace
	CodeNotAllowed    = "attestation-signer"
	CodeNotThey       = "attestation-approver" // approvedBy is not who signed
	CodeOtherCommand  = "attestation-command"
	CodeOtherRules    = "attestation-rules"
	CodeOtherTask     = "attestation-task"
	CodeOtherStore    = "attestation-audience"
	CodeOtherSandbox  = "attestation-sandbox"
	CodeOtherWorkdir  = "attestation-workdir"
	CodeOtherPosition = "attestation-position"
	CodeOtherGrant    = "attestation-grant"
	CodeOver          = "attestation-expired"
	CodeNotYet        = "attestation-not-yet-valid"
	CodeSpent         = "attestation-spent"
	CodeReplayable    = "attestation-replayable" // the store does not last
)

// SignatureSuffix is what "ssh-keygen -Y sign" adds to the name of what it signs.
const SignatureSuffix = ".sig"

// maxAttestation bounds an attestation's file, and its signature's, in bytes.
const maxAttestation = 64 << 10

// Claim is what a run is, and an attestation for it has to say.
type Claim struct {
	Argv     []string
	Matched  []string // rules of the floor list
	Audience string   // the store's id
	Sandbox  string   // the key, "" for a sandbox of the run's own
	Workdir  string   // without symbolic links
	Task     string   // "" for whichever the attestation names
	Ordinal  int      // with Task; negative for whichever
}

// Attested is an attestation that an allowed signer made for a claim. That it is in
// force, for the grant and unspent is still to be seen.
type Attested struct {
	floor.Attestation
	Fingerprint string // of the signer's key
}

func reject(code, next string, cause error, format string, args ...any) error {
	return &event.Refusal{Kind: event.RefusedAttestation, Code: code, Message: "the attestation is rejected: " + fmt.Sprintf(format, args...), Next: next, Cause: cause}
}

// anew is the next step of most rejections.
const anew = "let it be approved anew: \"sbx exec\" without --attestation says how"

// CheckAttestation reads an attestation and proves everything of it that no clock,
// no grant and no store is needed for. Who can write the file does not matter.
func CheckAttestation(file string, c Claim, o Options) (Attested, error) {
	text, signature, err := readAttestation(file)
	if err != nil {
		return Attested{}, err
	}
	a, err := floor.Parse(text)
	if err != nil {
		return Attested{}, reject(CodeNotOne, anew, err, "%s: %v", file, err)
	}
	fingerprint, err := o.checkSigned(a, text, signature)
	if err != nil {
		return Attested{}, err
	}
	return Attested{a, fingerprint}, c.check(a)
}

// readAttestation takes the statement and the signature apart: both in one file, or
// the signature in FILE.sig.
func readAttestation(file string) (text, signature []byte, err error) {
	whole, err := readFile(file, maxAttestation)
	if err != nil {
		return nil, nil, reject(CodeUnreadable, "name the file that \"sbx approve\" wrote", err, "reading it: %v", err)
	}
	if at := bytes.Index(whole, []byte("\n"+sshsig.Begin)); at >= 0 {
		return whole[:at+1], whole[at+1:], nil
	}
	signature, err = readFile(file+SignatureSuffix, maxAttestation)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil, reject(CodeNotSigned, "sign it: ssh-keygen -Y sign -n "+floor.Namespace+" -f KEY "+file, err, "%s has no signature, and there is no %s%s", file, file, SignatureSuffix)
	}
	if err != nil {
		return nil, nil, reject(CodeUnreadable, "", err, "reading its signature: %v", err)
	}
	return whole, signature, nil
}

// checkSigned proves that the text was signed by who it says, who may sign.
func (o Options) checkSigned(a floor.Attestation, text, signature []byte) (fingerprint string, err error) {
	sig, err := sshsig.Parse(signature)
	if err == nil {
		err = sig.Verify(text, floor.Namespace)
	}
	if err != nil {
		return "", reject(CodeNotSigned, anew, err, "%v", err)
	}
	signers, err := o.signers()
	if r, ok := errors.AsType[*event.Refusal](err); ok {
		return "", reject(r.Code, r.Next, r.Cause, "%s", r.Message)
	}
	if err != nil {
		return "", err
	}
	if _, err := signers.Allow(sig, o.Now); err != nil {
		return "", reject(CodeNotAllowed, "let somebody approve it who is listed in "+o.Signers, err, "%v", err)
	}
	if _, err := signers.AllowAs(sig, a.ApprovedBy, o.Now); err != nil {
		return "", reject(CodeNotThey, "let it be approved by who signs it", err, "it says that %s approved, but %v", a.ApprovedBy, err)
	}
	return sig.Fingerprint(), nil
}

// check compares an attestation with what is to be run.
func (c Claim) check(a floor.Attestation) error {
	here := "approve it where it is to run"
	switch missing := a.Uncovered(c.Matched); {
	case a.CommandSHA256 != floor.Sum(c.Argv):
		return reject(CodeOtherCommand, anew, nil, "it is for another command: its SHA-256 is %s, that of this command %s", a.CommandSHA256, floor.Sum(c.Argv))
	case len(missing) > 0:
		return reject(CodeOtherRules, anew, nil, "the command matches %s, which it does not cover", strings.Join(missing, ", "))
	case c.Task != "" && a.TaskID != c.Task:
		return reject(CodeOtherTask, anew, nil, "it is for task %s, not %s", a.TaskID, c.Task)
	case c.Ordinal >= 0 && a.Ordinal != c.Ordinal:
		return reject(CodeOtherTask, anew, nil, "it is for ordinal %d of the task, not %d", a.Ordinal, c.Ordinal)
	case a.Audience != c.Audience:
		return reject(CodeOtherStore, here, nil, "it is for the store %s, this one is %s", a.Audience, c.Audience)
	case a.Sandbox != c.Sandbox:
		return reject(CodeOtherSandbox, anew, nil, "it is for %s, not %s", sandboxName(a.Sandbox), sandboxName(c.Sandbox))
	case a.Workdir != c.Workdir:
		return reject(CodeOtherWorkdir, here, nil, "it is for the directory %s, not %s", a.Workdir, c.Workdir)
	}
	return nil
}

func sandboxName(key string) string {
	if key == "" {
		return "a sandbox of the run's own"
	}
	return "the sandbox " + key
}

func positionName(position string) string {
	if position == "" {
		return "enforce"
	}
	return position
}

// CheckGrant compares the grant and the position that were approved with the run's.
func (a Attested) CheckGrant(digest, position string) error {
	switch {
	case positionName(a.Position) != positionName(position):
		return reject(CodeOtherPosition, anew, nil, "it is for the position %s, not %s", positionName(a.Position), positionName(position))
	case a.GrantDigest == digest:
		return nil
	}
	return reject(CodeOtherGrant, anew, nil, "it is for another grant: its digest is %s, that of this run %s", a.GrantDigest, digest)
}

// CheckTime reports whether the attestation is in force.
func (a Attested) CheckTime(now time.Time) error {
	switch {
	case !now.Before(a.ExpiresAt):
		return reject(CodeOver, anew, nil, "it expired at %s", stampTime(a.ExpiresAt))
	case a.ApprovedAt.After(now.Add(floor.MaxSkew)):
		return reject(CodeNotYet, "look at this machine's clock and that of who approved", nil, "it was approved at %s, which is yet to come", stampTime(a.ApprovedAt))
	}
	return nil
}

// Spent is the refusal of an attestation that was used up.
func Spent(err error) error { return reject(CodeSpent, anew, err, "%v", err) }

// Replayable is the refusal to spend in a store that does not last.
func Replayable(why string) error {
	return reject(CodeReplayable, "set state_dir in the operator configuration to a directory on a disk, or add --accept-replay", nil,
		"it could be used more than once, since what was spent may be forgotten: %s", why)
}

// Attest signs an attestation and returns the text of its file. When this machine has
// allowed signers, the key has to be one of them, for who approves.
func Attest(ctx context.Context, a floor.Attestation, key sshsig.Key, o Options) ([]byte, Attested, error) {
	text, err := a.Encode()
	if err != nil {
		return nil, Attested{}, err
	}
	armored, err := key.Sign(ctx, text, floor.Namespace)
	if err != nil {
		return nil, Attested{}, err
	}
	fingerprint, err := o.readBack(a, text, armored)
	return append(text, armored...), Attested{a, fingerprint}, err
}

func (o Options) readBack(a floor.Attestation, text, armored []byte) (fingerprint string, err error) {
	if o.Signers != "" {
		return o.checkSigned(a, text, armored)
	}
	sig, err := sshsig.Parse(armored)
	if err == nil {
		err = sig.Verify(text, floor.Namespace)
	}
	if err != nil {
		return "", fmt.Errorf("reading the new attestation back: %w", err)
	}
	return sig.Fingerprint(), nil
}

// ErrWho is that nobody knows who approves.
var ErrWho = errors.New("it is not clear who approves")

// Approver is the principal that the signers' file has for a key, if it is one name.
func Approver(key sshsig.Key, o Options) (string, error) {
	if o.Signers == "" {
		return "", fmt.Errorf("%w: allowed_signers is not set here", ErrWho)
	}
	signers, err := o.signers()
	if err != nil {
		return "", err
	}
	principals, err := signers.Principals(key)
	switch {
	case err != nil:
		return "", err
	case principals == "":
		return "", fmt.Errorf("%w: %s does not list the key %s", ErrWho, o.Signers, key.File)
	case strings.ContainsAny(principals, ",*?!"):
		return "", fmt.Errorf("%w: %s lists the key %s for %s", ErrWho, o.Signers, key.File, principals)
	}
	return principals, nil
}
