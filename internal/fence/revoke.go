package fence

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fractalboxdev/sbx/internal/event"
	"github.com/fractalboxdev/sbx/internal/sandbox"
	"github.com/fractalboxdev/sbx/internal/store"
)

// teardownLimit is how long each part of kill and revoke may take. It is their own: a
// cancelled run is torn down all the same.
const teardownLimit = 10 * time.Second

// storeLimit is the same for what is noted in the store, where others may be writing.
const storeLimit = store.DefaultWait + teardownLimit

// revoke is kill, then revoke, on every path. A failed kill never skips the revoke,
// and each check stands for something that was looked at.
func (f *fence) revoke() {
	f.timed(stepKill, f.killAndSee)
	f.takeBack(f.policyPart()) // before the rest: looking through what is left may take long
	dead := f.dead
	if dead {
		f.lookThrough()
	}
	f.timed(stepRevoke, f.floor)
	if !dead {
		f.timed(stepLateKill, f.killLate)
		if f.dead {
			f.lookThrough()
		}
	}
	if !f.hung { // else something still uses it
		f.leaveSurvey()
	}
}

// timed is a step of the teardown. What goes wrong in it stands among the checks.
func (f *fence) timed(name string, do func() error) {
	if err := f.step(name, 0, do); err != nil {
		f.check(name, err)
	}
}

func (f *fence) check(what string, err error) {
	c := event.Check{What: what, Verified: err == nil}
	if err != nil {
		c.Detail = err.Error()
	}
	f.faults.checked(c)
	f.receipt.Revoke = append(f.receipt.Revoke, c)
}

// lookThrough takes over what the command left, now that nothing of it moves any more.
func (f *fence) lookThrough() {
	if f.init == nil {
		return // nothing ran
	}
	f.timed(stepSetAside, f.setAside)
	f.timed(stepCollect, f.collect)
}

func (f *fence) killAndSee() error {
	_, err := bounded(f, stepKill, teardownLimit, func(ctx context.Context) (struct{}, error) { return struct{}{}, f.kill(ctx) })
	f.dead = err == nil
	if f.init != nil {
		f.check(nobodyInside, err)
	}
	return err
}

const nobodyInside = "pid namespace empty"

// killLate looks again after the revoke: what the kill could not end went with the
// runner, on which the init depends.
func (f *fence) killLate() error {
	_, err := bounded(f, stepLateKill, teardownLimit, func(ctx context.Context) (struct{}, error) {
		if err := endForGood(f.o.Self.Runner); err != nil || f.init == nil {
			return struct{}{}, err
		}
		return struct{}{}, f.init.await(ctx)
	})
	f.dead = err == nil
	return err
}

// kill ends everything in the run's namespaces. The kernel lets the init go only
// after every process of its pid namespace was reaped (pid_namespaces(7)).
func (f *fence) kill(ctx context.Context) error {
	if f.o.Self.Runner == 0 {
		return nil
	}
	if f.conn == nil {
		return f.endRunner()
	}
	_ = f.conn.Send(msgKill, nil)
	if f.init == nil {
		return f.endRunner() // nothing hostile can have run: an init without a plan waits
	}
	// The supervisor ends the init itself: the runner may be stopped. Where it may not
	// signal it, the runner has to.
	_ = f.init.kill()
	patient, cancel := context.WithTimeout(ctx, runnerLimit)
	defer cancel()
	err := f.init.await(patient)
	if err != nil {
		err = errors.Join(f.endRunner(), f.init.await(ctx))
	}
	return err
}

// runnerLimit is how long the runner may take to end the init before it is ended
// itself, and the init with it.
const runnerLimit = 3 * time.Second

// endRunner makes sure of the runner; whatever it held ends with it.
func (f *fence) endRunner() error {
	if err := unix.Kill(f.o.Self.Runner, unix.SIGKILL); err != nil && !errors.Is(err, unix.ESRCH) {
		return fmt.Errorf("killing the runner: %w", err)
	}
	return nil
}

// floor takes the rest back and looks at what is left of it.
func (f *fence) floor() error {
	if f.conn != nil {
		_ = f.conn.Close() // the runner ends while the rest is taken back
	}
	f.reapRunner()
	f.leaveGroups()
	parts := append(f.networkParts(), f.leasePart()...)
	f.takeBack(append(parts, part{what: "no mounts left", do: noMounts}))
	if f.network != nil && f.network.dialer.Delegated() {
		f.receipt.AddressGuard = "delegated"
	}
	if f.streams != nil {
		// Last: it waits for whoever reads the caller's pipes, and nothing is open any more.
		f.stream(f.streams.Finish())
	}
	return nil
}

func (f *fence) policyPart() []part {
	n := f.network
	if n == nil {
		return nil
	}
	return []part{{what: "policy is the floor", do: func(context.Context) error {
		n.proxy.Floor()
		return unless(!n.proxy.Applied(), "the grant is still applied")
	}}}
}

func (f *fence) networkParts() []part {
	n, policy := f.network, f.derived.Grant.Policy()
	if n == nil {
		return nil
	}
	return []part{
		{what: "listeners closed", do: func(ctx context.Context) error {
			err := n.close(ctx)
			n.recordUnconnected(policy)
			return err
		}},
		{what: "certificate authority's key released", do: func(context.Context) error {
			n.authority.Destroy()
			return unless(n.authority.Destroyed(), "the key is still there")
		}},
	}
}

// stream notes a failed output stream, apart from the command's own status.
func (f *fence) stream(err error) {
	if err != nil {
		f.receipt.Result.Stream, f.receipt.Result.Exit = err.Error(), ExitStream
	}
}

// reapRunner collects the runner beside everything else: where nobody does, as in a
// container without an init, each run would leave a dead process behind.
func (f *fence) reapRunner() {
	f.reaped = make(chan struct{})
	go func() {
		defer close(f.reaped)
		if f.o.Self.Runner != 0 {
			_ = retried(func() error { _, err := unix.Wait4(f.o.Self.Runner, nil, 0, nil); return err })
		}
	}()
}

// promptly is how long a runner needs to end that nothing keeps.
const promptly = 200 * time.Millisecond

// awaitRunner is the last thing of a run. A runner that is stopped or hangs holds
// nothing any more and is ended.
func (f *fence) awaitRunner() {
	if f.reaped == nil {
		f.reapRunner() // the revoke did not come to it
	}
	limit := time.After(runnerLimit)
	look := time.After(promptly)
	for {
		select {
		case <-f.reaped:
			return
		case <-look:
			if !stopped(f.o.Self.Runner) {
				continue
			}
		case <-limit:
		}
		if f.endRunner() != nil {
			return
		}
		select {
		case <-f.reaped:
		case <-time.After(runnerLimit):
		}
		return
	}
}

// noMounts looks for mounts of the run in the caller's own mount table. The
// runner, which holds the only ones, is on its way out.
func noMounts(context.Context) error {
	table, err := os.ReadFile("/proc/self/mountinfo")
	if err == nil && bytes.Contains(table, []byte(sandbox.MountMark)) {
		err = errors.New("a mount of a sandbox is in the caller's mount table")
	}
	return err
}

func unless(ok bool, text string) error {
	if ok {
		return nil
	}
	return errors.New(text)
}

func ownedByCaller(info fs.FileInfo) bool {
	stat, ok := info.Sys().(*syscall.Stat_t)
	return ok && int(stat.Uid) == os.Geteuid()
}
