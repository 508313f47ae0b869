package fence

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"syscall"
	"time"

	"github.com/fractalboxdev/sbx/internal/event"
	"golang.org/x/sys/unix"
)

// teardownLimit is how long kill and revoke may take together. It is their own: a
// cancelled run is torn down all the same.
const teardownLimit = 10 * time.Second

// revoke is kill, then revoke, on every path. A failed kill never skips the revoke,
// and each check stands for something that was looked at.
func (f *fence) revoke() {
	ctx, cancel := context.WithTimeout(context.Background(), teardownLimit)
	defer cancel()
	f.timed(stepKill, func() error { return f.kill(ctx) })
	f.timed(stepRevoke, func() error { return f.floor(ctx) })
}

func (f *fence) timed(name string, do func() error) {
	if err := f.step(name, do); err != nil {
		f.check(name, err)
	}
}

func (f *fence) check(what string, err error) {
	c := event.Check{What: what, Verified: err == nil}
	if err != nil {
		c.Detail = err.Error()
	}
	f.receipt.Revoke = append(f.receipt.Revoke, c)
}

// kill ends everything in the run's namespaces and waits until the runner says that
// the pid namespace is empty, or is gone itself: its init dies with it.
func (f *fence) kill(ctx context.Context) error {
	if f.conn == nil {
		return nil
	}
	_ = f.conn.Send(msgKill, nil)
	if f.network == nil || f.network.proxy == nil {
		return f.endRunner(ctx)
	}
	for !f.emptied {
		select {
		case m, ok := <-f.inbox:
			if !ok || (m.err != nil && m.Kind != "failed") {
				return f.endRunner(ctx)
			}
			f.emptied = m.Kind == msgEmpty
		case <-ctx.Done():
			return errors.Join(errors.New("killing the sandbox: it did not end in time"), f.endRunner(ctx))
		}
	}
	f.check("pid namespace empty", nil)
	return nil
}

// endRunner makes sure of the runner; whatever it held ends with it.
func (f *fence) endRunner(context.Context) error {
	if err := unix.Kill(f.o.Self.Runner, unix.SIGKILL); err != nil && !errors.Is(err, unix.ESRCH) {
		return fmt.Errorf("killing the runner: %w", err)
	}
	return nil
}

// floor takes the grant back and looks at what is left of it.
func (f *fence) floor(ctx context.Context) error {
	if n := f.network; n != nil {
		n.proxy.Floor()
		f.check("policy is the floor", unless(!n.proxy.Applied(), "the grant is still applied"))
		if f.streams != nil {
			f.stream(f.streams.Finish())
		}
		n.recordUnconnected(f.derived.Grant.Policy())
		f.check("listeners closed", n.close(ctx))
		n.authority.Destroy()
		f.check("certificate authority's key released", unless(n.authority.Destroyed(), "the key is still there"))
		if n.dialer.Delegated() {
			f.receipt.AddressGuard = "delegated"
		}
	} else if f.streams != nil {
		f.streams.Close()
	}
	return f.reapRunner()
}

// stream notes a failed output stream, apart from the command's own status.
func (f *fence) stream(err error) {
	if err != nil {
		f.receipt.Result.Stream, f.receipt.Result.Exit = err.Error(), ExitStream
	}
}

// reapRunner waits for the runner's end: with it go its mount and network
// namespaces, and nothing of the run is mounted anywhere else.
func (f *fence) reapRunner() error {
	if f.o.Self.Runner == 0 {
		return nil
	}
	_ = f.conn.Close()
	var status unix.WaitStatus
	for {
		_, err := unix.Wait4(f.o.Self.Runner, &status, 0, nil)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			return fmt.Errorf("waiting for the runner: %w", err)
		}
		f.check("mounts and network namespace gone with the runner", nil)
		return nil
	}
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
