package fence

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
	"unicode/utf8"

	"golang.org/x/sys/unix"

	"github.com/fractalboxdev/sbx/internal/artifact"
	"github.com/fractalboxdev/sbx/internal/class"
	"github.com/fractalboxdev/sbx/internal/event"
	"github.com/fractalboxdev/sbx/internal/grant"
	"github.com/fractalboxdev/sbx/internal/sandbox"
	"github.com/fractalboxdev/sbx/internal/stdio"
	"github.com/fractalboxdev/sbx/internal/store"
)

// Codes of refusals about idempotency keys, all of kind event.RefusedRecipe.
const (
	codeBadKey         = "bad-key"
	codeConflict       = "payload-conflict"
	codeOutcomeUnknown = "outcome-unknown"
	codeNoOutput       = "output-gone"
)

// maxKey is the length of an idempotency key, in bytes.
const maxKey = 200

// ValidKey reports whether a key is one: printable ASCII without spaces.
func ValidKey(key string) bool {
	for _, c := range []byte(key) {
		if c <= ' ' || c > '~' {
			return false
		}
	}
	return key != "" && len(key) <= maxKey
}

// KeyScope is where a consumer's keys are unique. Another consumer's are others, as
// will be those of each kept sandbox.
func KeyScope(consumer, sandboxKey string) string {
	text, _ := json.Marshal([]string{exact(consumer), exact(sandboxKey)}) // strings always encode
	return string(text)
}

// exact keeps strings apart that are not UTF-8: JSON would write the same character for
// each of their bytes.
func exact(s string) string {
	if utf8.ValidString(s) && !strings.ContainsRune(s, utf8.RuneError) {
		return s
	}
	return string(utf8.RuneError) + strconv.QuoteToASCII(s)
}

// payload is everything that a call under a key was; what it left out could change
// without being noticed.
type payload struct {
	Argv      []string        `json:"argv"`
	Grant     string          `json:"grant"`
	Position  string          `json:"position"`
	Endpoints []string        `json:"endpoints"`
	Secrets   []string        `json:"secrets"` // names
	Workdir   string          `json:"workdir"`
	Paths     []sandbox.Shown `json:"paths"` // that the caller named
	Env       string          `json:"env"`   // under the store's own key: values are not told by it
	Timeout   time.Duration   `json:"timeout"`
	Stdin     string          `json:"stdin"`
	Tree      []sandbox.Entry `json:"tree"` // the root file system around the project, and with it the recipe
	Class     string          `json:"class"`
	Limits    class.Limits    `json:"limits,omitzero"` // the caller's own; the time is Timeout
}

func (f *fence) payload(s *store.Store) (digest string, err error) {
	facts, who, err := f.look()
	if err != nil {
		return "", err
	}
	caches, err := f.caches(facts)
	if err != nil {
		return "", err
	}
	facts.Protected = nil // it depends on what is in the project, which the call itself may have changed
	p := payload{
		Argv: f.o.Argv, Grant: f.digest(), Position: f.o.Position.String(), Workdir: facts.Workdir, Paths: f.paths.Shown, Timeout: f.o.Timeout,
		Stdin: f.o.StdinDigest, Tree: f.describe(facts, who, caches).Tree, Class: string(f.class()), Limits: f.o.Limits,
	}
	p.Limits.Time = 0
	for _, e := range f.receipt.Endpoints {
		p.Endpoints = append(p.Endpoints, e.Ecosystem+" "+e.URL)
	}
	for _, h := range f.secrets {
		p.Secrets = append(p.Secrets, h.SecretName())
	}
	p.keepApart()
	p.Env = hex.EncodeToString(s.MAC("environment", f.callersEnvironment()...))
	text, err := json.Marshal(p)
	if err != nil {
		return "", fmt.Errorf("encoding the call: %w", err)
	}
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:]), nil
}

// keepApart makes all strings exact that the caller chose, or names of the host's.
func (p *payload) keepApart() {
	p.Workdir = exact(p.Workdir)
	p.Argv, p.Paths, p.Tree = slices.Clone(p.Argv), slices.Clone(p.Paths), slices.Clone(p.Tree)
	for i := range p.Argv {
		p.Argv[i] = exact(p.Argv[i])
	}
	for i := range p.Paths {
		p.Paths[i].Path, p.Paths[i].Real = exact(p.Paths[i].Path), exact(p.Paths[i].Real)
	}
	for i := range p.Tree {
		e := &p.Tree[i]
		e.Source, e.Target = exact(e.Source), exact(e.Target)
		files := map[string]string{}
		for name, content := range e.Files {
			files[exact(name)] = exact(content)
		}
		e.Files = files
	}
}

// callersEnvironment is what of the command's environment the caller and the grant
// decide; the rest is made for each run.
func (f *fence) callersEnvironment() [][]byte {
	set := map[string]string{}
	for _, v := range slices.Concat(f.derived.Grant.Env(), f.derived.ClientEnv, grant.ClientDefaults()) {
		set[v.Name] = v.Value
	}
	pairs := sandbox.Environment(sandbox.EnvironmentRequest{Caller: f.o.Env, Set: set, Extra: f.o.Extra})
	slices.Sort(pairs)
	var out [][]byte
	for _, p := range pairs {
		out = append(out, []byte(p))
	}
	return out
}

// claimKey takes the call under the key up, or answers it: from the receipt of a
// finished one, by following a running one to its end. f.answered is set then.
func (f *fence) claimKey(ctx context.Context) error {
	if !ValidKey(f.o.Key) {
		return &event.Refusal{
			Kind: event.RefusedRecipe, Code: codeBadKey, Message: fmt.Sprintf("%.40q is no idempotency key", f.o.Key),
			Next: fmt.Sprintf("use at most %d printable characters without spaces", maxKey),
		}
	}
	s, err := f.o.Store()
	if err != nil {
		return err
	}
	digest, err := f.payload(s)
	if err != nil {
		return err
	}
	f.receipt.Idempotency = &event.Idempotency{Key: f.o.Key, Payload: digest}
	for f.holding == nil && f.answered == nil {
		if err := f.beginCall(ctx, s, digest); err != nil {
			return err
		}
	}
	return nil
}

func (f *fence) beginCall(ctx context.Context, s *store.Store, digest string) error {
	call := store.Call{
		Scope: KeyScope(f.o.Consumer, ""), Key: f.o.Key, Payload: digest, Run: f.id, BegunAt: time.Now(),
		Irreversible: len(f.receipt.FloorList.Matched) > 0,
	}
	holding, finished, running, err := s.Begin(ctx, call, f.endedReceipt)
	switch {
	case err != nil:
		return keyRefusal(err)
	case finished != nil:
		return f.answer(*finished)
	case running != nil:
		defer running.Close()
		return f.follow(ctx, running)
	}
	f.holding = holding
	return nil
}

// Ended returns what an sbx left that was killed after it had written its receipt and
// before it noted the call; nil where there is nothing of that. Only a whole receipt of a
// command that was seen to end counts.
func Ended(stateDir, run string) (text []byte, r event.Result, err error) {
	text, err = artifact.ReadReceipt(stateDir, run)
	if errors.Is(err, os.ErrNotExist) {
		return nil, r, nil
	}
	if err != nil {
		return nil, r, err
	}
	var receipt event.Receipt
	if json.Unmarshal(text, &receipt) != nil || receipt.Run != run || !receipt.Result.Ended {
		return nil, r, nil //nolint:nilerr // half a receipt says nothing
	}
	return text, receipt.Result, nil
}

func (f *fence) endedReceipt(run string) ([]byte, error) {
	text, _, err := Ended(f.o.StateDir, run)
	if err != nil {
		return nil, &event.Refusal{
			Kind: event.RefusedRecipe, Code: codeOutcomeUnknown, Cause: err,
			Message: fmt.Sprintf("run %s had the call under key %q, and what became of it cannot be read: %v", run, f.o.Key, err),
			Next:    "look what it did, then let the key be used again with: sbx keys forget " + f.o.Key,
		}
	}
	return text, nil
}

func keyRefusal(err error) error {
	if c, ok := errors.AsType[*store.ConflictError](err); ok {
		return &event.Refusal{
			Kind: event.RefusedRecipe, Code: codeConflict, Message: c.Error(), Cause: err,
			Next: "use another key, or make exactly the same call; what a call is made of stands in docs/idempotency.md",
		}
	}
	if u, ok := errors.AsType[*store.UnknownError](err); ok {
		return &event.Refusal{
			Kind: event.RefusedRecipe, Code: codeOutcomeUnknown, Message: u.Error(), Cause: err,
			Next: "look what it did, then let the key be used again with: sbx keys forget " + u.Earlier.Key,
		}
	}
	return err
}

// answer replays a finished call.
func (f *fence) answer(c store.Call) error {
	var receipt event.Receipt
	if err := json.Unmarshal(c.Receipt, &receipt); err != nil {
		return fmt.Errorf("reading the receipt of run %s: %w", c.Run, err)
	}
	if r := &receipt.Result; r.Stream != "" && r.Refusal == nil { // that was the other caller's
		r.Stream, r.Exit = "", r.Status
	}
	if f.followed != c.Run { // else the caller has seen it already
		if err := f.replay(c.Run, &receipt.Result); err != nil {
			return err
		}
	}
	denials, err := artifact.ReadDenials(f.o.StateDir, c.Run)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	f.denials = denials
	if err := f.copyAnswer(c.Run); err != nil {
		return err
	}
	receipt.Deduped = true
	if receipt.Idempotency != nil {
		receipt.Idempotency.Joined = f.followed == c.Run
	}
	f.answered = &receipt
	return nil
}

// replay shows the caller what a run wrote. Where that cannot be passed on, the result
// becomes what it is for whoever runs the command.
func (f *fence) replay(run string, r *event.Result) error {
	replay, err := f.openReplay(run)
	if err != nil {
		return err
	}
	defer replay.Close()
	screens := f.screens()
	defer screens.close()
	err = screens.show(replay)
	if out, ok := errors.AsType[*outputError](err); ok {
		out.noteIn(r)
		return nil
	}
	return err
}

// outputError is output of an earlier run that could not be passed on.
type outputError struct{ err error }

func (e *outputError) Error() string {
	return "passing on the output of an earlier run: " + e.err.Error()
}
func (e *outputError) Unwrap() error { return e.err }

// noteIn makes it the result: a reader that went away ends the call as it would end the
// command.
func (e *outputError) noteIn(r *event.Result) {
	if errors.Is(e.err, unix.EPIPE) {
		r.Exit, r.Signal = 128+int(unix.SIGPIPE), unix.SignalName(unix.SIGPIPE)
		return
	}
	r.Exit, r.Stream = ExitStream, e.Error()
}

// copyAnswer gives the caller the records of the run that answers.
func (f *fence) copyAnswer(run string) error {
	if f.o.Artifacts == "" {
		return nil
	}
	target, err := artifact.HoldTarget(f.o.Artifacts)
	if err != nil {
		return err
	}
	return errors.Join(artifact.CopyEarlier(f.o.StateDir, run, target), target.Close())
}

func (f *fence) openReplay(run string) (*artifact.Replay, error) {
	replay, err := artifact.OpenReplay(f.o.StateDir, run)
	if errors.Is(err, os.ErrNotExist) {
		return nil, &event.Refusal{
			Kind: event.RefusedRecipe, Code: codeNoOutput, Cause: err,
			Message: fmt.Sprintf("the call under key %q finished in run %s, whose records are gone: it cannot be answered from them", f.o.Key, run),
			Next:    "let the key be used again with: sbx keys forget " + f.o.Key,
		}
	}
	return replay, err
}

// screens are the caller's streams for what an earlier run wrote.
type screens struct {
	stdout, stderr *stdio.Screen
	cut            bool // it was said that there is no more
}

func (f *fence) screens() *screens {
	return &screens{stdout: stdio.NewScreen(f.o.Stdout, f.o.RawTerminal), stderr: stdio.NewScreen(f.o.Stderr, f.o.RawTerminal)}
}

func (s *screens) close() { _, _ = s.stdout.Close(), s.stderr.Close() }

// show writes what a replay has so far. An *outputError says that the caller's end failed.
func (s *screens) show(replay *artifact.Replay) error {
	for {
		fd, piece, err := replay.Next()
		switch {
		case errors.Is(err, io.EOF) || s.cut && errors.Is(err, artifact.ErrCut):
			return nil
		case errors.Is(err, artifact.ErrCut):
			s.cut, fd, piece = true, 2, []byte("sbx: "+artifact.ErrCut.Error()+"\n")
		case err != nil:
			return err
		}
		to := s.stdout
		if fd == 2 {
			to = s.stderr
		}
		if _, err := to.Write(piece); err != nil {
			return &outputError{err}
		}
	}
}

// lookEvery is how often a followed run is looked at; its end wakes at once.
const lookEvery = 20 * time.Millisecond

// follow shows what a running call writes, until its process ends. What became of it
// the next look at the store tells.
func (f *fence) follow(ctx context.Context, running *store.Following) error {
	f.followed = running.Call.Run
	f.faults.pause()
	defer f.faults.resume()
	if f.o.OnJoin != nil {
		f.o.OnJoin(f.followed)
	}
	screens := f.screens()
	defer screens.close()
	var replay *artifact.Replay
	for ended := false; !ended; {
		var err error
		if ended, err = running.Ended(lookEvery); err != nil {
			return fmt.Errorf("following run %s: %w", f.followed, err)
		}
		if replay == nil {
			// It may be about to make its records, or have been refused before.
			if replay, err = artifact.OpenReplay(f.o.StateDir, f.followed); err != nil && !errors.Is(err, os.ErrNotExist) {
				return err
			}
			if replay != nil {
				defer replay.Close()
			}
		}
		if replay != nil {
			err := screens.show(replay)
			if out, ok := errors.AsType[*outputError](err); ok {
				f.leave(out)
				return nil
			}
			if err != nil {
				return err
			}
		}
		if err := f.interrupted(ctx); err != nil {
			return err
		}
	}
	return nil
}

// leave ends the following where the caller has nowhere to see it any more. The run goes on.
func (f *fence) leave(out *outputError) {
	r := f.receipt
	key := *r.Idempotency
	key.Joined = true
	r.Idempotency, r.FinishedAt, r.Result = &key, time.Now().UTC(), event.Result{}
	out.noteIn(&r.Result)
	f.answered = &r
}

// interrupted ends the following when the caller's signal asks for it. The run that
// is followed goes on.
func (f *fence) interrupted(ctx context.Context) error {
	select {
	case s := <-f.signals:
		number, ok := s.(syscall.Signal)
		if !ok || !slices.Contains([]syscall.Signal{unix.SIGINT, unix.SIGTERM, unix.SIGHUP, unix.SIGQUIT}, number) {
			return nil
		}
		return &event.Refusal{
			Kind: event.RefusedRecipe, Code: "interrupted",
			Message: fmt.Sprintf("stopped following run %s at %s; it goes on", f.followed, unix.SignalName(number)),
			Next:    "make the same call again to see its end, or end it with: sbx kill " + f.followed,
		}
	case <-ctx.Done():
		return ctx.Err()
	default:
		return nil
	}
}

// launch notes that the command is about to run.
func (f *fence) launch(ctx context.Context) error {
	if f.holding == nil {
		return nil
	}
	return f.holding.Launch(ctx, time.Now())
}

// settle notes what became of the call: the receipt of a command that ran to an end;
// nothing of one that never ran. What lies between stays as it is, for the next call
// to judge.
func (f *fence) settle(out Outcome) Outcome {
	if f.holding == nil {
		return out
	}
	ctx, cancel := context.WithTimeout(context.Background(), storeLimit)
	defer cancel()
	err := fault(stepKey+"/settle", f.o.Self.Runner)
	switch {
	case err != nil:
	case out.Receipt.Result.Ended:
		// What became of this caller's copy of the records is no part of the call.
		receipt := &out.Receipt
		if f.written != nil {
			receipt = f.written
		}
		var text []byte
		if text, err = json.Marshal(receipt); err == nil {
			err = f.holding.Finish(ctx, time.Now(), f.redactor.JSON(text))
		}
	case !f.launched || out.Exit == ExitNotFound || out.Exit == ExitNotExecutable:
		err = f.holding.Forget(ctx)
	}
	if err != nil {
		out.Exit = ExitRefused
		f.alsoRefused(&out.Receipt.Result, &event.Refusal{
			Kind: event.RefusedSandbox, Step: stepKey, Cause: err,
			Message: "noting what became of the call under its key: " + err.Error(),
			Next:    f.retry("look with \"sbx keys list\" what is noted"),
		})
	}
	return out
}

// keyName is the key with its scope, "" for none.
func (f *fence) keyName() string {
	if f.o.Key == "" {
		return ""
	}
	return KeyScope(f.o.Consumer, "") + " " + f.o.Key
}
