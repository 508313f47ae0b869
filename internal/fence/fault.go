package fence

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fractalboxdev/sbx/internal/event"
	"github.com/fractalboxdev/sbx/internal/trap"
)

// Codes of refusals for what goes wrong in sbx itself, all of kind event.RefusedSandbox.
const (
	codePanic = "panic"
	codeHangs = "step-hangs"
)

// hangLimit is how long one step may take that waits for nobody but the host; the
// steps that look through whole projects have filesLimit, and copying the records, which
// may be large, copyLimit.
const (
	hangLimit  = 2 * time.Minute
	filesLimit = 5 * time.Minute
	copyLimit  = 30 * time.Minute
)

// faults is what the supervisor's own goroutines did wrong, and what hangs. It is all
// of a fence that more than one goroutine uses while a step runs.
type faults struct {
	once  sync.Once
	first *trap.Panic
	fell  chan struct{} // closed with the first panic
	stuck chan stuck    // the step that hangs

	mu    sync.Mutex
	timer *time.Timer   // of the step; nil where it has no limit
	turn  int           // counts the beginnings and ends of steps
	on    stuck         // the step and its limit, which is counted anew after a pause
	hurry time.Duration // since somebody asked for the end: the limit of a step before the run
	ran   bool          // the run's own step has come
	steps []event.Step  // as in the receipt, of the steps that are over
	seen  []event.Check // the same of the revoke
}

// stuck is a step that does not end.
type stuck struct {
	step  string
	limit time.Duration
	why   string // why it has so little time
}

func newFaults() *faults {
	return &faults{fell: make(chan struct{}), stuck: make(chan stuck, 1)}
}

// catch is the trap of every goroutine that the supervisor starts: the run ends at the
// next look.
func (x *faults) catch(p *trap.Panic) { x.once.Do(func() { x.first = p; close(x.fell) }) }

// fallen returns the first panic of a goroutine.
func (x *faults) fallen() error {
	select {
	case <-x.fell:
		return x.first
	default:
		return nil
	}
}

// noticed is a step that fails also when a goroutine fell meanwhile: what it says itself
// only follows from that.
func (x *faults) noticed(s passStep, runner int) func() error {
	return func() error {
		err := fault(s.name, runner)
		if err == nil {
			err = s.do()
		}
		if fell := x.fallen(); fell != nil {
			return fell
		}
		return err
	}
}

// enter begins the watch over a step; 0 is no limit.
func (x *faults) enter(step string, limit time.Duration) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.turn++
	x.timer, x.on, x.ran = nil, stuck{step: step, limit: patience(step, limit)}, x.ran || step == stepRun
	if limit > 0 {
		x.hasten()
		turn := x.turn
		x.timer = time.AfterFunc(x.on.limit, func() { x.bark(turn) })
	}
}

func (x *faults) bark(turn int) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if turn != x.turn {
		return // the step ended just now
	}
	select {
	case x.stuck <- x.on:
	default: // it was said
	}
}

// asked notes that a signal asked for the end. It waits for the command, which gets it;
// a step before that has the grace to come to its end.
func (x *faults) asked(grace time.Duration) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.hurry = max(grace, time.Millisecond)
	if x.timer != nil && x.hasten() && x.timer.Stop() { // one that is paused hears the signal itself
		x.timer.Reset(x.on.limit)
	}
}

// hasten lowers the limit of the step that is on.
func (x *faults) hasten() bool {
	if x.hurry == 0 || x.ran || x.hurry >= x.on.limit {
		return false
	}
	x.on.limit, x.on.why = x.hurry, " of a signal that asks for the end"
	return true
}

// leave ends the watch over a step.
func (x *faults) leave(s event.Step) {
	x.pause()
	x.mu.Lock()
	defer x.mu.Unlock()
	x.turn++
	x.steps = append(x.steps, s)
}

// checked notes what was seen at the revoke.
func (x *faults) checked(c event.Check) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.seen = append(x.seen, c)
}

// pause suspends the watch: from here the step waits for somebody, and can be interrupted.
func (x *faults) pause() {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.timer != nil {
		x.timer.Stop()
	}
}

func (x *faults) resume() {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.timer != nil {
		x.timer.Reset(x.on.limit)
	}
}

// limitOf is how long a step may take. The call under a key is settled after the command,
// and waits for nobody else's then.
func limitOf(step string) time.Duration {
	switch step {
	case stepReceipt:
		return copyLimit
	case stepRun:
		return 0 // the command's own time
	case stepStale:
		return filesLimit
	}
	return hangLimit
}

// watched runs the pass beside the watch over it. A step that hangs is given up: what it
// holds cannot be taken back while it holds it, but ends with this process.
func watched(o Options, receipt event.Receipt, x *faults, pass func() Outcome) Outcome {
	ended, asked := make(chan Outcome, 1), make(chan os.Signal, 1)
	signal.Notify(asked, unix.SIGINT, unix.SIGTERM, unix.SIGHUP, unix.SIGQUIT, signalStop)
	defer signal.Stop(asked)
	go func() { ended <- pass() }()
	for {
		select {
		case out := <-ended:
			return out
		case <-asked:
			x.asked(o.Grace)
		case s := <-x.stuck:
			return x.giveUp(o, receipt, s)
		}
	}
}

// giveUp kills everything inside, unless that was seen to be over, and says what was not
// looked at. The records stay as the next run's sweep wants to find them.
func (x *faults) giveUp(o Options, receipt event.Receipt, s stuck) Outcome {
	step := s.step
	x.mu.Lock()
	receipt.Steps, receipt.Revoke = slices.Clone(x.steps), slices.Clone(x.seen)
	x.mu.Unlock()
	message := fmt.Sprintf("the step %s did not end within %s%s", step, s.limit, s.why)
	receipt.Steps = append(receipt.Steps, event.Step{Name: step, StartedAt: time.Now().UTC(), Detail: message})
	left := event.Check{What: step, Detail: message + ": what it holds ends with sbx, and the next run looks after the rest"}
	if !slices.ContainsFunc(receipt.Steps, func(s event.Step) bool { return s.Name == stepRevoke }) {
		left.What = stepRevoke
		started := time.Now()
		err := endForGood(o.Self.Runner)
		receipt.Steps = append(receipt.Steps, event.Step{Name: stepKill, StartedAt: started.UTC(), Duration: time.Since(started), OK: err == nil})
		dead := event.Check{What: "the runner ended, and with it everything inside", Verified: err == nil}
		if err != nil {
			dead.Detail = err.Error()
		}
		receipt.Revoke = append(receipt.Revoke, dead)
	}
	receipt.Revoke = append(receipt.Revoke, left)
	receipt.Result.Exit = ExitRefused
	receipt.Result.Refusal = &event.Refusal{
		Kind: event.RefusedSandbox, Code: codeHangs, Name: receipt.Run, Step: step, Message: message,
		Next: "look whether a file system hangs, and try again: the next run looks after what this one left",
	}
	receipt.FinishedAt = time.Now().UTC()
	return Outcome{Receipt: receipt, Exit: ExitRefused}
}

// endForGood kills the runner, and with it everything inside, and sees it end. The
// number may be another process's by now: that one has another parent.
func endForGood(runner int) error {
	if runner == 0 {
		return nil
	}
	p, err := openProcess(runner, os.Getpid())
	if err != nil {
		if parent, gone := parentOf(runner); gone != nil || parent != os.Getpid() {
			return nil
		}
		return err
	}
	defer p.close()
	ctx, cancel := context.WithTimeout(context.Background(), runnerLimit)
	defer cancel()
	return errors.Join(p.kill(), p.await(ctx))
}

// lastLook is how much longer than its context a part of the teardown may take.
const lastLook = time.Second

// bounded runs one part of the teardown. One that hangs or panics must not keep the
// rest from being taken back: it is an error, and left alone.
func bounded[T any](f *fence, name string, limit time.Duration, do func(context.Context) (T, error)) (T, error) {
	limit = patience(name, limit)
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	type result struct {
		value T
		err   error
	}
	done := make(chan result, 1)
	go func() {
		var r result
		r.err = trap.Call(func() error {
			if err := fault(name, f.o.Self.Runner); err != nil {
				return err
			}
			var err error
			r.value, err = do(ctx)
			return err
		})
		done <- r
	}()
	var r result
	select {
	case r = <-done:
		return r.value, r.err
	case <-ctx.Done():
	}
	select {
	case r = <-done:
	case <-time.After(lastLook):
		f.hung, r.err = true, fmt.Errorf("%w within %s", errHangs, limit+lastLook)
	}
	return r.value, r.err
}

// part is one thing that the revoke takes back, and looks at.
type part struct {
	what  string
	limit time.Duration // 0: teardownLimit
	do    func(context.Context) error
}

func (p part) allowed() time.Duration {
	return patience(stepRevoke+"/"+p.what, cmp.Or(p.limit, teardownLimit))
}

// takeBack does the parts one after the other and notes what each came to. One that
// hangs is left alone, and the next ones are done without it. Nobody is woken between
// them.
func (f *fence) takeBack(parts []part) {
	for len(parts) > 0 {
		t := &taking{begun: time.Now()}
		done := make(chan struct{})
		todo := parts
		go func() {
			defer close(done)
			for _, p := range todo {
				if !t.note(p.attempt(f.o.Self.Runner)) {
					return
				}
			}
		}()
		errs := t.follow(done, todo)
		f.hung = f.hung || errors.Is(errs[len(errs)-1], errHangs)
		for i, err := range errs {
			f.check(todo[i].what, err)
		}
		parts = todo[len(errs):]
	}
}

func (p part) attempt(runner int) error {
	ctx, cancel := context.WithTimeout(context.Background(), p.allowed())
	defer cancel()
	return trap.Call(func() error {
		if err := fault(stepRevoke+"/"+p.what, runner); err != nil {
			return err
		}
		return p.do(ctx)
	})
}

var errHangs = errors.New("it did not end")

// taking is how far one goroutine has come with the parts.
type taking struct {
	mu    sync.Mutex
	errs  []error   // of the parts that are over
	begun time.Time // of the one that is on
	left  bool      // nobody waits for it any more
}

// note returns false when the next part is not this goroutine's any more.
func (t *taking) note(err error) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !t.left {
		t.errs, t.begun = append(t.errs, err), time.Now()
	}
	return !t.left
}

// follow waits for all parts, or until one takes too long.
func (t *taking) follow(done <-chan struct{}, parts []part) []error {
	for {
		timer := time.NewTimer(t.remaining(parts))
		select {
		case <-done:
			timer.Stop()
			return t.errs
		case <-timer.C:
			if errs, left := t.leave(parts); left {
				return errs
			}
		}
	}
}

// remaining is after what time to look again: one of the next parts may have less time.
func (t *taking) remaining(parts []part) time.Duration {
	t.mu.Lock()
	defer t.mu.Unlock()
	left := t.rest(parts)
	for _, p := range parts[len(t.errs):] {
		left = min(left, p.allowed()+lastLook)
	}
	return left
}

// rest is what the part that is on has left of its time.
func (t *taking) rest(parts []part) time.Duration {
	if len(t.errs) == len(parts) {
		return lastLook // it is about to say so
	}
	return time.Until(t.begun.Add(parts[len(t.errs)].allowed() + lastLook))
}

// leave gives the part up that is on, if it still takes too long.
func (t *taking) leave(parts []part) (errs []error, left bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.left = t.rest(parts) <= 0; !t.left {
		return nil, false
	}
	return append(t.errs, fmt.Errorf("%w within %s", errHangs, parts[len(t.errs)].allowed()+lastLook)), true
}
