// Package canary takes a probe of sbx's own through the ordinary fence and judges
// from both ends whether the floor holds: by what the probe was told inside, and by
// what the gate recorded and the origin saw outside.
package canary

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/fractalboxdev/sbx/internal/artifact"
	"github.com/fractalboxdev/sbx/internal/event"
	"github.com/fractalboxdev/sbx/internal/fence"
	"github.com/fractalboxdev/sbx/internal/prober"
	"github.com/fractalboxdev/sbx/internal/profile"
	"github.com/fractalboxdev/sbx/internal/sandbox/stage"
	"github.com/fractalboxdev/sbx/internal/verdict"
)

// Command is the subcommand of sbx that is the probe inside.
const Command = "canary-probe"

// limit is how long a canary's command may run.
const limit = 30 * time.Second

// Result is what one canary came to.
type Result struct {
	Record   verdict.Record // without the deployment, which the caller knows
	Evidence verdict.Evidence
	Report   prober.Report // as the probe told it
	Outcome  fence.Outcome
}

// Options say what to probe.
type Options struct {
	Fence   fence.Options // who asks, where records go, and in which directory; the rest is the canary's own
	Attack  bool          // also try the self-attack suite
	Scratch bool          // the directory is the canary's own
}

// Run takes one canary through the fence. The error is one of the canary's own
// making; a refusal of the fence is a verdict.
func Run(ctx context.Context, options Options) (Result, error) {
	w, err := openWorld(ctx, options)
	if err != nil {
		return Result{}, err
	}
	defer w.close()
	plan, err := json.Marshal(w.plan())
	if err != nil {
		return Result{}, fmt.Errorf("encoding the canary's plan: %w", err)
	}
	o := options.Fence
	o.Argv = []string{stage.InitPath, Command, string(plan)}
	if err := Grant(&o, "canary", fmt.Sprintf(profileText, w.origin.TLS().Port())); err != nil {
		return Result{}, err
	}
	o.OnRequest, o.StandIn = w.recorded, w.standIn()
	o.Timeout = limit
	var r Result
	var stdout, stderr []byte
	if r.Outcome, stdout, stderr, err = Capture(ctx, o); err != nil {
		return Result{}, err
	}
	err = r.judge(w, stdout, stderr)
	return r, err
}

// Grant makes a profile of sbx's own, parsed as any other, the grant of a run. name is
// the profile's name in the text.
func Grant(o *fence.Options, name, text string) error {
	set, err := profile.Parse(text, name+" profile")
	if err != nil {
		return fmt.Errorf("making the grant of %s: %w", name, err)
	}
	grant, err := set.Resolve([]string{name}, nil, nil)
	if err != nil {
		return fmt.Errorf("making the grant of %s: %w", name, err)
	}
	o.Derive = func(context.Context) (fence.Derived, error) { return fence.Derived{Grant: grant}, nil }
	return nil
}

// Capture takes a command of sbx's own through the fence, without stdin and caches,
// and returns the first megabyte of each of its outputs.
func Capture(ctx context.Context, o fence.Options) (out fence.Outcome, stdout, stderr []byte, err error) {
	s, err := capture()
	if err != nil {
		return out, nil, nil, err
	}
	o.Stdin, o.Stdout, o.Stderr = s.null, s.stdout.write, s.stderr.write
	o.NoTTY, o.NoCache = true, true
	out = fence.Run(ctx, o)
	stdout, stderr = s.finish()
	return out, stdout, stderr, nil
}

// judge puts the two ends together.
func (r *Result) judge(w *world, stdout, stderr []byte) error {
	receipt := r.Outcome.Receipt
	kind := verdict.Canary
	if w.attack {
		kind = verdict.Attack
	}
	r.Record = verdict.Record{Kind: kind, Run: receipt.Run, At: receipt.FinishedAt}
	if refusal := receipt.Result.Refusal; refusal != nil {
		r.Record.Outcome, r.Record.Diagnosis = verdict.Inconclusive, "the fence refused: "+refusal.Message
		if refusal.Kind == event.RefusedAdmission {
			r.Record.Outcome = verdict.Deferred
		}
		return nil
	}
	if r.Outcome.Exit != 0 {
		r.Record.Outcome = verdict.Inconclusive
		r.Record.Diagnosis = fmt.Sprintf("the probe ended with status %d: %s", r.Outcome.Exit, firstLine(stderr))
		return nil
	}
	if err := json.Unmarshal(stdout, &r.Report); err != nil {
		return fmt.Errorf("reading the probe's report: %w", err)
	}
	r.Evidence = w.evidence(r.Report, receipt)
	r.Record.Outcome, r.Record.Diagnosis = verdict.Judge(r.Evidence)
	text, err := json.Marshal(r.Evidence)
	if err != nil {
		return fmt.Errorf("encoding the canary's evidence: %w", err)
	}
	r.Record.Evidence = text
	return r.attach()
}

// attach puts the whole report beside the run's other records.
func (r *Result) attach() error {
	text, err := json.MarshalIndent(struct {
		verdict.Record
		Report prober.Report `json:"report"`
	}{r.Record, r.Report}, "", "  ")
	if err != nil {
		return fmt.Errorf("encoding the canary's report: %w", err)
	}
	dir, err := artifact.HoldTarget(r.Outcome.Dir)
	if err != nil {
		return err
	}
	return errors.Join(dir.Write("canary.json", append(text, '\n')), dir.Close())
}

func firstLine(text []byte) string {
	line, _, _ := strings.Cut(strings.TrimSpace(string(text)), "\n")
	return line
}

// stream collects what is written to a pipe, at most a megabyte.
type stream struct {
	write *os.File
	text  bytes.Buffer
	done  sync.WaitGroup
}

func openStream() (*stream, error) {
	r, w, err := os.Pipe()
	if err != nil {
		return nil, fmt.Errorf("making a pipe for the probe's report: %w", err)
	}
	s := &stream{write: w}
	s.done.Go(func() {
		defer r.Close()
		_, _ = io.Copy(&s.text, io.LimitReader(r, 1<<20))
		_, _ = io.Copy(io.Discard, r)
	})
	return s, nil
}

// finish closes the writing end and returns what came.
func (s *stream) finish() []byte {
	_ = s.write.Close()
	s.done.Wait()
	return s.text.Bytes()
}

// streams are the probe's.
type streams struct {
	null           *os.File
	stdout, stderr *stream
}

func capture() (*streams, error) {
	null, err := os.Open(os.DevNull)
	if err != nil {
		return nil, fmt.Errorf("opening the probe's stdin: %w", err)
	}
	stdout, err1 := openStream()
	stderr, err2 := openStream()
	return &streams{null, stdout, stderr}, errors.Join(err1, err2)
}

func (s *streams) finish() (stdout, stderr []byte) {
	_ = s.null.Close()
	return s.stdout.finish(), s.stderr.finish()
}

func newNonce() string {
	var b [12]byte
	_, _ = rand.Read(b[:]) // it never fails
	return hex.EncodeToString(b[:])
}
