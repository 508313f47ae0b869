package fence

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fractalboxdev/sbx/internal/admission"
	"github.com/fractalboxdev/sbx/internal/approval"
	"github.com/fractalboxdev/sbx/internal/artifact"
	"github.com/fractalboxdev/sbx/internal/cgroup"
	"github.com/fractalboxdev/sbx/internal/event"
	"github.com/fractalboxdev/sbx/internal/handshake"
	"github.com/fractalboxdev/sbx/internal/host"
	"github.com/fractalboxdev/sbx/internal/project"
	"github.com/fractalboxdev/sbx/internal/sandbox"
	"github.com/fractalboxdev/sbx/internal/secret"
	"github.com/fractalboxdev/sbx/internal/stdio"
	"github.com/fractalboxdev/sbx/internal/store"
	"github.com/fractalboxdev/sbx/internal/ticket"
	"github.com/fractalboxdev/sbx/internal/trap"
)

// Names of the steps in receipts and refusals.
const (
	stepCommand  = "command"
	stepFloor    = "floor-list"
	stepGrant    = "grant"
	stepCanary   = "require-canary"
	stepKey      = "idempotency"
	stepStale    = "stale-revoke"
	stepEnsure   = "ensure"
	stepUnspent  = "unspent"
	stepAttest   = "attestation"
	stepProve    = "prove-floor"
	stepApply    = "apply-grant"
	stepRun      = "run"
	stepKill     = "kill"
	stepLateKill = "late-kill" // where the first did not succeed
	stepSetAside = "set-aside"
	stepCollect  = "collect"
	stepRevoke   = "revoke"
	stepReceipt  = "receipt"
)

// fence is one pass. Its methods are the steps, in the order of Run.
type fence struct {
	o       Options
	id      string
	receipt event.Receipt
	derived Derived
	digest  func() string // of the grant; that of no grant is not waited for at the start
	run     *artifact.Run
	target  *artifact.Target
	conn    *handshake.Conn
	network *network
	probes  *probes
	// runFiles are shown inside and belong to this run alone: content by path.
	runFiles map[string][]byte
	streams  *stdio.Streams
	spec     sandbox.Spec
	facts    sandbox.Facts
	who      identity
	inbox    chan message
	reaped   chan struct{} // closed when the runner is collected
	signals  chan os.Signal
	roots    func() (*x509.CertPool, error)
	ready    func() (struct{}, error) // what has to be done before the command starts
	init     *process                 // the sandbox's PID 1, as soon as there is one
	limits   limits

	paths    sandbox.Paths
	pathsErr error
	host     hostFacts
	own      []ownPath
	searched func() (project.Survey, error)
	survey   project.Survey
	surveyed bool   // the search is over
	outbox   string // of the host, for what the command leaves as artifacts

	landlock   int // its ABI; 0 with noLandlock for the reason
	noLandlock error

	store     *store.Store       // the one of Options, for an irreversible command
	attested  *approval.Attested // what lets an irreversible command run
	admission *admission.Admission
	tidy      *time.Timer // tidies the store while a long command runs

	holding  *store.Holding // of the call under a key
	followed string         // the run that was followed
	answered *event.Receipt // of an earlier run, which answers the call
	denials  []event.Denial // of that run
	written  *event.Receipt // as it stands in the records: what a later call is answered with
	granted  bool           // the policy was the grant, at least for a time
	launched bool           // the command may have begun
	settled  bool           // the position is

	secrets  []heldSecret
	redactor *secret.Redactor

	faults *faults
	dead   bool // everything inside, as was seen
	hung   bool // a part of the teardown was given up, and may still use what it had
}

// Run takes one command through the fence. It always returns an outcome with a
// receipt; a refusal is in the receipt's result.
func Run(ctx context.Context, o Options) Outcome {
	now := time.Now().UTC()
	f := &fence{o: o, id: artifact.NewID(now), inbox: make(chan message, 16), faults: newFaults()}
	f.receipt = event.Receipt{
		Run: f.id, Version: o.Version, Consumer: o.Consumer, Position: o.Position.String(),
		Command: o.Argv, Workdir: o.Workdir, StartedAt: now, AddressGuard: "local",
	}
	f.receipt.Result.Exit = ExitRefused
	defer f.catchSignals()()
	if o.WithParent {
		f.endWithParent()
	}
	return watched(o, f.receipt, f.faults, func() Outcome {
		err := f.pass(ctx)
		defer f.awaitRunner()
		return f.end(err)
	})
}

// end closes the records and settles the call. A panic there is the last thing that can
// go wrong: the sweep of the next run finds the records as they are.
func (f *fence) end(err error) Outcome {
	f.faults.enter(stepReceipt, copyLimit)
	defer f.faults.pause()
	if err == nil {
		err = f.faultRefusal()
	}
	out := f.spoiled(stepReceipt, f.receipt, func() Outcome { return f.finish(err) })
	f.faults.enter(stepKey, hangLimit)
	return f.spoiled(stepKey, out.Receipt, func() Outcome { return f.settle(out) })
}

// spoiled is what do returns, or after a panic the receipt so far with a refusal.
func (f *fence) spoiled(step string, so event.Receipt, do func() Outcome) (out Outcome) {
	err := trap.Call(func() error { out = do(); return nil })
	if err == nil {
		return out
	}
	r, _ := errors.AsType[*event.Refusal](f.refusal(step, err))
	f.alsoRefused(&so.Result, r)
	return Outcome{Receipt: so, Exit: ExitRefused}
}

// faultRefusal is for a goroutine that fell after the last step of the pass.
func (f *fence) faultRefusal() error {
	if fault := f.faults.fallen(); fault != nil {
		return f.refusal(stepRevoke, fault)
	}
	return nil
}

// catchSignals takes the signals that go on to the command, from the start: one that
// comes before the command does is delivered to it. SIGPIPE is taken so that a reader
// that goes away is an error of a write, not the end of sbx before its revoke.
func (f *fence) catchSignals() (stop func()) {
	f.signals = make(chan os.Signal, 64)
	broken := make(chan os.Signal, 1)
	signal.Notify(f.signals, forwarded...)
	signal.Notify(broken, unix.SIGPIPE)
	return func() { signal.Stop(broken); f.letGo() }
}

// letGo has later signals do to this process what they do to one that takes none. To give
// them back one by one would cost a switch of threads each, and this process ends soon.
func (f *fence) letGo() {
	for len(f.signals) > 0 {
		<-f.signals // it came while the command could still get it
	}
	go func() {
		for s := range f.signals {
			signal.Reset(s)
			_ = unix.Kill(os.Getpid(), s.(syscall.Signal)) //nolint:forcetypeassert // all of forwarded are
		}
	}()
}

// endWithParent has the kernel send SIGTERM when the caller ends. That is bound to the
// thread that asked (prctl(2)), so it is one that lives as long as sbx.
func (f *fence) endWithParent() {
	parent, asked := os.Getppid(), make(chan error)
	go func() {
		runtime.LockOSThread()
		asked <- unix.Prctl(unix.PR_SET_PDEATHSIG, uintptr(unix.SIGTERM), 0, 0, 0)
		select {}
	}()
	if err := <-asked; err != nil || os.Getppid() != parent {
		f.signals <- unix.SIGTERM // it ended just now
	}
}

// pass is the order. Nothing after a failed step happens but kill and revoke.
func (f *fence) pass(ctx context.Context) error {
	defer f.revoke()
	for _, s := range f.order(ctx) {
		if s.when != nil && !s.when() {
			continue
		}
		if err := f.step(s.name, limitOf(s.name), f.faults.noticed(s, f.o.Self.Runner)); err != nil || f.answered != nil {
			return err
		}
	}
	return nil
}

// passStep is one step of the order; when, if not nil, says whether it is one of this run's.
type passStep struct {
	name string
	when func() bool
	do   func() error
}

func (f *fence) order(ctx context.Context) []passStep {
	keyed := func() bool { return f.o.Key != "" }
	attested := func() bool { return f.attested != nil }
	return []passStep{
		{stepCommand, nil, f.checkCommand},
		{stepFloor, nil, func() error { return f.checkFloor(ctx) }},
		{stepGrant, nil, func() error { return f.derive(ctx) }},
		{stepKey, keyed, func() error { return f.claimKey(ctx) }},
		{stepUnspent, func() bool { return keyed() && attested() }, func() error { return f.checkUnspent(ctx) }},
		{stepCanary, func() bool { return f.o.Require != nil }, func() error { return f.o.Require(ctx) }},
		{stepStale, nil, func() error { return f.sweep(ctx) }},
		{stepEnsure, nil, func() error { return f.ensure(ctx) }},
		{stepAttest, attested, func() error { return f.spend(ctx) }},
		{stepProve, nil, f.prove},
		{stepApply, nil, func() error { return f.apply(ctx) }},
		{stepRun, nil, func() error { return f.wait(ctx) }},
	}
}

// step runs one step and notes it in the receipt. Its error, or its panic, becomes a
// refusal of the kind that the step stands for. limit is for the watch over it, 0 for none.
func (f *fence) step(name string, limit time.Duration, do func() error) error {
	f.faults.enter(name, limit)
	started := time.Now()
	err := trap.Call(do)
	s := event.Step{Name: name, StartedAt: started.UTC(), Duration: time.Since(started), OK: err == nil}
	if err != nil {
		s.Detail = err.Error()
		err = f.refusal(name, err)
	}
	f.faults.leave(s)
	f.receipt.Steps = append(f.receipt.Steps, s)
	return err
}

// refusal wraps an error into the typed refusal of its step.
func (f *fence) refusal(step string, err error) error {
	if r, ok := errors.AsType[*event.Refusal](err); ok {
		r.Name, r.Step = f.id, step
		return r
	}
	r := &event.Refusal{Kind: event.RefusedSandbox, Name: f.id, Step: step, Message: err.Error(), Cause: err}
	if errors.Is(err, ticket.ErrRejected) {
		r.Kind = event.RefusedTicket
	}
	if t, ok := errors.AsType[*ticket.Rejected](err); ok {
		r.Code = t.Code
	}
	if s, ok := errors.AsType[*store.Error](err); ok {
		r.Code, r.Next = s.Code(), s.Next()
	}
	if s, ok := errors.AsType[*sandbox.Refusal](err); ok {
		r.Kind, r.Code, r.Next = event.RefusedRecipe, "bad-workdir", s.Next
	}
	if p, ok := errors.AsType[*project.Refusal](err); ok {
		r.Kind, r.Code, r.Next = event.RefusedRecipe, "bad-workdir", p.Next
	}
	if s, ok := errors.AsType[*stdio.Refused](err); ok {
		r.Kind, r.Code, r.Next = event.RefusedRecipe, "bad-stdio", "redirect "+s.FD+" from a file, a pipe or /dev/null"
	}
	if errors.Is(err, os.ErrDeadlineExceeded) && (step == stepEnsure || step == stepProve) {
		r.Message, r.Next = fmt.Sprintf("starting the sandbox: it was not ready within %s", startLimit), "look whether a file system hangs or a process of sbx is stopped, and try again"
	}
	if h, ok := errors.AsType[*handshake.Failure](err); ok {
		r.Message, r.Next = explainFailure(h)
	}
	if p, ok := errors.AsType[*trap.Panic](err); ok {
		r.Kind, r.Code, r.Message = event.RefusedSandbox, codePanic, "sbx itself failed: "+p.Error()
		r.Next = "everything was taken back as far as the receipt says; please report this fault of sbx, with its place"
	}
	if r.Kind == event.RefusedSandbox && r.Next == "" {
		r.Next = seeDoctor
	}
	return r
}

// explainFailure says in words what the host refused the runner, and what helps.
func explainFailure(h *handshake.Failure) (message, next string) {
	if strings.Contains(h.Detail, sandbox.ErrNotIDMappable.Error()) {
		return h.Step + ": " + h.Detail, "as root sbx needs a file system with idmapped mounts; use one, or run sbx as an ordinary user"
	}
	message = "preparing the sandbox: " + shorter(h.Error())
	if h.Step == "unshare-user" || h.Step == "uid-map" || h.Step == "setgroups" {
		message = fmt.Sprintf("creating a user namespace: %s at %s", h.Errno.Error(), h.Step)
	}
	why, next := host.New(host.Options{}).Explain(host.Blocked{Step: h.Step, Errno: h.Unwrap(), Detail: h.Detail})
	if why == "" {
		return message, seeDoctor
	}
	return message + ": " + why, next
}

// shorter drops what libcontainer says of itself before the step that failed, and the
// descriptors of a mount.
func shorter(text string) string {
	const mark = "error during container init: "
	if head, tail, ok := strings.Cut(text, ": starting the container: "); ok {
		if i := strings.LastIndex(tail, mark); i >= 0 {
			text = head + ": " + tail[i+len(mark):]
		}
	}
	if head, tail, ok := strings.Cut(text, ": mount src="); ok {
		if i := strings.LastIndex(tail, ": "); i >= 0 {
			text = head + tail[i:]
		}
	}
	return text
}

const seeDoctor = "run `sbx doctor` for what this host allows"

func (f *fence) checkCommand() error {
	if len(f.o.Argv) == 0 || strings.TrimSpace(f.o.Argv[0]) == "" {
		return &event.Refusal{
			Kind: event.RefusedRecipe, Code: "empty-command", Message: "there is no command to run",
			Next: "name one after --, as in: sbx exec -- npm ci",
		}
	}
	if f.o.Self.Socket == nil {
		return errors.New("starting the runner: the process could not be split (socketpair or fork failed)")
	}
	conn, err := handshake.New(f.o.Self.Socket)
	if err != nil {
		return err
	}
	f.conn = conn
	f.findPaths()
	if err := f.beginStore(); err != nil { // first: it takes longest, and is waited for soonest
		return err
	}
	f.search()
	return sandbox.CheckSeccomp()
}

func (f *fence) derive(ctx context.Context) error {
	d, err := f.o.Derive(ctx)
	if err != nil {
		return err
	}
	f.derived = d
	f.digest = sync.OnceValue(d.Grant.Digest)
	if f.attested != nil || f.o.Key != "" { // both are for one position; else the store is not waited for yet
		if err := f.settlePosition(ctx); err != nil {
			return err
		}
	}
	if err := f.checkAttestedGrant(); err != nil {
		return err
	}
	if !d.Grant.IsZero() {
		f.receipt.GrantDigest = f.digest()
	}
	for _, p := range d.Grant.Profiles() {
		f.receipt.Profiles = append(f.receipt.Profiles, p.Name)
	}
	for _, in := range d.Grant.Inputs() {
		f.receipt.Inputs = append(f.receipt.Inputs, event.Input{Profile: in.Profile, Name: in.Name, Value: in.Value})
	}
	f.receipt.Approvals = d.Approvals
	for _, e := range d.Grant.Endpoints() {
		f.receipt.Endpoints = append(f.receipt.Endpoints, event.Endpoint{Ecosystem: e.Ecosystem, URL: e.URL, Source: e.Source})
	}
	if err := f.chooseLimits(); err != nil {
		return err
	}
	for _, s := range d.Grant.UnixSockets() {
		f.receipt.UnixSockets = append(f.receipt.UnixSockets, event.UnixSocket{Profile: s.Profile, Path: s.Path})
	}
	return f.readSecrets(ctx)
}

// sweep resets what dead runs left behind before anything new exists.
func (f *fence) sweep(ctx context.Context) error {
	swept, err := artifact.Sweep(f.o.StateDir, lookAfter)
	for i := range swept {
		sweepGroups(ctx, &swept[i])
	}
	f.receipt.Swept = swept
	if len(swept) > 0 {
		f.searchAgain()
	}
	if f.pathsErr == nil {
		f.readFacts() // the store is still being opened
	}
	err = errors.Join(err, f.freeDead(ctx), f.tellRollouts(ctx))
	if len(f.receipt.Swept) > 0 && f.o.OnSwept != nil {
		f.o.OnSwept(f.receipt.Swept)
	}
	return err
}

// sweepGroups removes the groups of a dead run. They are empty, or will be: whatever
// was in them dies with its supervisor. So one that cannot be removed is only told.
func sweepGroups(ctx context.Context, s *event.Swept) {
	if len(s.Cgroups) == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, runnerLimit)
	defer cancel()
	if err := cgroup.Remove(ctx, s.Cgroups); err != nil {
		s.Detail += "; " + err.Error()
		return
	}
	s.Removed = append(s.Removed, s.Cgroups...)
}

// finish turns the error of a pass into the outcome and writes the receipt.
func (f *fence) finish(err error) Outcome {
	if r, ok := errors.AsType[*event.Refusal](err); ok {
		f.receipt.Result.Refusal = r
		if !f.ended() {
			f.receipt.Result.Exit = exitOf(r)
		}
	}
	f.checkRevoke()
	if f.digest != nil {
		f.receipt.GrantDigest = f.digest()
	}
	if f.answered != nil && f.receipt.Result.Refusal == nil {
		return Outcome{Receipt: *f.answered, Exit: f.answered.Result.Exit, Dir: f.answered.Directory, Denials: f.denials}
	}
	f.receipt.Secrets = f.secretsUsed()
	f.receipt.FinishedAt = time.Now().UTC()
	out := Outcome{Receipt: f.receipt, Exit: f.receipt.Result.Exit}
	if f.run == nil {
		return out
	}
	out.Denials, out.Dir = f.run.Denials(), f.run.Dir()
	f.endObserved(out.Denials)
	f.receipt.Result.Denials, f.receipt.Result.Would = f.run.Denied(), f.run.WouldDeny()
	if err := f.keep(); err != nil {
		f.alsoRefused(&f.receipt.Result, &event.Refusal{
			Kind: event.RefusedSandbox, Step: stepReceipt, Message: err.Error(), Cause: err,
			Next: f.retry("look why its records could not be written"),
		})
	} else if f.target != nil {
		out.Dir = f.target.Path()
	}
	out.Receipt, out.Exit = f.receipt, f.receipt.Result.Exit
	out.Receipt.Directory = f.run.Dir()
	return out
}

// retry is the next step of a refusal that comes after the command.
func (f *fence) retry(look string) string {
	if f.launched {
		return "the command may have done its work: " + look + " before you make the call again"
	}
	return look + ", and try again"
}

// keep writes the receipt and copies the records to where the caller wants them.
func (f *fence) keep() error {
	defer f.run.Close()
	if err := fault(stepReceipt, f.o.Self.Runner); err != nil {
		return err
	}
	if err := f.run.Finish(f.receipt); err != nil {
		return fmt.Errorf("writing the receipt: %w", err)
	}
	written := f.receipt
	written.Directory = f.run.Dir()
	f.written = &written
	if f.target == nil {
		return nil
	}
	defer f.target.Close()
	if err := f.run.CopyTo(f.target); err != nil {
		return fmt.Errorf("copying the records to %s: %w", f.target.Path(), err)
	}
	return nil
}

// ended reports whether the command itself ran to an end.
func (f *fence) ended() bool {
	return f.receipt.Result.Refusal == nil && f.receipt.Result.Exit != ExitRefused
}

func exitOf(r *event.Refusal) int {
	switch r.Code {
	case "not-found":
		return ExitNotFound
	case "not-executable":
		return ExitNotExecutable
	}
	return ExitRefused
}

// checkRevoke fails the call when any part of the revoke could not be verified,
// whatever the command returned, and says each of them beside what went wrong before.
func (f *fence) checkRevoke() {
	var unverified []string
	for _, c := range f.receipt.Revoke {
		if !c.Verified {
			unverified = append(unverified, c.What+": "+c.Detail)
		}
	}
	if len(unverified) == 0 {
		return
	}
	next := "look for what is left with `sbx doctor`"
	if f.granted {
		next += ", and treat the grant as still open"
	}
	message := "the revoke could not be verified: " + strings.Join(unverified, "; ")
	f.alsoRefused(&f.receipt.Result, &event.Refusal{Kind: event.RefusedSandbox, Step: stepRevoke, Message: message, Next: next})
}

// alsoRefused fails the call for one more reason: the first is the refusal, since the
// others often follow from it, and what was not known then is said beside it.
func (f *fence) alsoRefused(result *event.Result, r *event.Refusal) {
	result.Exit, r.Name = ExitRefused, f.id
	if first := result.Refusal; first != nil {
		both := *first
		both.Message = first.Error() + "; then " + r.Message
		both.Next = strings.TrimPrefix(first.Next+"; "+r.Next, "; ")
		r = &both
	}
	result.Refusal = r
}

func lookup(env []string, key string) (string, bool) {
	for _, kv := range env {
		if value, ok := strings.CutPrefix(kv, key+"="); ok {
			return value, true
		}
	}
	return "", false
}
