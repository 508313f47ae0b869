package fence

import (
	"context"
	"errors"
	"strings"
	"time"

	"github.com/fractalboxdev/sbx/internal/approval"
	"github.com/fractalboxdev/sbx/internal/event"
	"github.com/fractalboxdev/sbx/internal/floor"
	"github.com/fractalboxdev/sbx/internal/sandbox"
	"github.com/fractalboxdev/sbx/internal/store"
)

// Consent is a person's approval of an irreversible command, and where to ask for it.
type Consent struct {
	File    string // the attestation, "" for none
	Task    string // "" for whichever it names
	Ordinal int    // negative for whichever it names
	// AcceptReplay runs also where the store may forget what was spent.
	AcceptReplay bool
	// Gate says who may approve; its Now is not used.
	Gate approval.Options
	// HowTo is the next step of a refusal for want of an attestation.
	HowTo func() string
}

// checkFloor demands an attestation for a command of the floor list. Nothing is read
// for any other.
func (f *fence) checkFloor(ctx context.Context) error {
	f.receipt.FloorList = event.FloorList{Version: floor.Version, Matched: floor.Match(f.o.Argv)}
	given := f.o.Consent.File != ""
	switch {
	case len(f.receipt.FloorList.Matched) == 0 && given:
		f.receipt.Attestation = &event.Attestation{Use: event.AttestationUnneeded}
		return nil
	case len(f.receipt.FloorList.Matched) == 0:
		return nil
	case !given:
		return f.approvalRequired()
	}
	if err := f.checkAttestation(); err != nil || f.o.Key != "" {
		return err // a call under a key may be answered from the receipt of an earlier one
	}
	return f.checkUnspent(ctx)
}

func (f *fence) approvalRequired() error {
	r := &event.Refusal{
		Kind: event.RefusedApproval, Code: approval.CodeNoAttestation,
		Message: "the command cannot be taken back (" + strings.Join(f.receipt.FloorList.Matched, ", ") + "), so a person has to approve it",
	}
	if f.o.Consent.HowTo != nil {
		r.Next = f.o.Consent.HowTo()
	}
	return r
}

// checkAttestation proves signature, signer and everything that the attestation says
// of the run, but for the grant, which is not derived yet, and what changes with time.
func (f *fence) checkAttestation() (err error) {
	if f.store, err = f.o.Store(); err != nil {
		return err
	}
	gate := f.o.Consent.Gate
	gate.Now = time.Now()
	a, err := approval.CheckAttestation(f.o.Consent.File, approval.Claim{
		Argv: f.o.Argv, Matched: f.receipt.FloorList.Matched, Audience: f.store.ID(), Workdir: sandbox.Resolve(f.o.Workdir),
		Task: f.o.Consent.Task, Ordinal: f.o.Consent.Ordinal,
	}, gate)
	if err != nil {
		return err
	}
	f.attested = &a
	f.receipt.Attestation = &event.Attestation{
		Use: event.AttestationChecked, Task: a.TaskID, Ordinal: a.Ordinal, ApprovedBy: a.ApprovedBy, Fingerprint: a.Fingerprint,
		ApprovedAt: a.ApprovedAt, ExpiresAt: a.ExpiresAt, Rules: a.Rules, Nonce: a.Nonce,
	}
	return nil
}

// checkUnspent refuses early what step 7 would refuse. A call under a key comes here
// once it is known that no earlier one answers it: a replay is no use, and neither
// expiry nor an earlier spending is in its way.
func (f *fence) checkUnspent(ctx context.Context) error {
	if err := f.attested.CheckTime(time.Now()); err != nil {
		return err
	}
	why, err := f.store.Forgetful()
	if err != nil {
		return err
	}
	if why != "" && !f.o.Consent.AcceptReplay {
		return approval.Replayable(why)
	}
	f.receipt.Attestation.SingleUse = why == ""
	return spent(f.store.View(ctx, func(t *store.Tx) error { return t.Spendable(f.spending()) }))
}

// checkAttestedGrant is the part of the attestation that waits for the grant and the
// position.
func (f *fence) checkAttestedGrant() error {
	if f.attested == nil {
		return nil
	}
	return f.attested.CheckGrant(f.digest(), f.o.Position.String())
}

// spend uses the attestation up, now that everything stands: once it is on disk, no
// crash gives it back.
func (f *fence) spend(ctx context.Context) error {
	if err := f.attested.CheckTime(time.Now()); err != nil {
		return err // it waited too long
	}
	if f.facts.Workdir != f.attested.Workdir {
		return errors.New("the working directory is another one than at the start: " + f.facts.Workdir)
	}
	err := spent(f.store.UpdateDurably(ctx, func(t *store.Tx) error { return t.Spend(f.spending()) }))
	if err == nil {
		f.receipt.Attestation.Use = event.AttestationSpent
	}
	return err
}

// spending is what the store keeps of this use: under the same key for the same
// command it may be repeated, where the store let the key be used again.
func (f *fence) spending() store.Spending {
	a := f.attested
	return store.Spending{Nonce: a.Nonce, Task: a.TaskID, Ordinal: a.Ordinal, Command: a.CommandSHA256, Key: f.keyName(), Run: f.id, At: time.Now()}
}

func spent(err error) error {
	if _, ok := errors.AsType[*store.SpentError](err); ok {
		return approval.Spent(err)
	}
	return err
}
