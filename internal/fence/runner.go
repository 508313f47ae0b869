// Package fence is the one place that knows the order around a command: grant,
// stale revoke, ensure, prove, run, kill, revoke, receipt.
package fence

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"strings"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/fractalboxdev/sbx/internal/handshake"
	"github.com/fractalboxdev/sbx/internal/netns"
	"github.com/fractalboxdev/sbx/internal/sandbox"
	"github.com/fractalboxdev/sbx/internal/sandbox/notify"
	"github.com/fractalboxdev/sbx/internal/sandbox/stage"
	"github.com/fractalboxdev/sbx/internal/trap"
)

// The messages between supervisor and runner, in the order of a run.
const (
	msgListeners = "listeners"   // runner: descriptors in the order of netns.Names
	msgSpec      = "spec"        // supervisor: sandbox.Spec and the command's pipes
	msgStarted   = "started"     // runner: host pid of the init, which waits for its plan
	msgServing   = "serving"     // supervisor: resolver and proxy serve, at the floor; paths of the run's files, a line each, which travel with it
	msgPty       = "pty"         // runner: the pty's master
	msgProved    = "proved"      // runner: both probes came back as the floor's refusal
	msgGo        = "go"          // supervisor: the grant is applied, start the command
	msgSignal    = "signal"      // supervisor: signal number
	msgNoUnix    = "no-unix"     // runner: errno; nobody can be asked about unix sockets, so there are none inside
	msgNoExec    = "exec-failed" // runner: errno
	msgExited    = "exited"      // runner: wait status
	msgKill      = "kill"        // supervisor: end everything
	msgEmpty     = "empty"       // runner: the pid namespace is empty
)

// Runner is the whole life of the half that holds the namespaces: it makes the
// network floor, the mount tree and the container, and does as the supervisor says.
// It returns the process's exit status.
func Runner(self stage.Self) int {
	conn, err := handshake.New(self.Socket)
	if err != nil {
		return 125 // the supervisor sees its end closed
	}
	r := &runner{self: self, conn: conn}
	if err := trap.Call(r.run); err != nil {
		if !errors.Is(err, handshake.ErrClosed) {
			_ = r.conn.Send(handshake.Failed, failure(err).Encode())
		}
		return 125
	}
	return 0
}

// step names what the runner was doing when it failed.
type step struct {
	name string
	err  error
}

func (s *step) Error() string { return s.name + ": " + s.err.Error() }
func (s *step) Unwrap() error { return s.err }

func failure(err error) *handshake.Failure {
	f := &handshake.Failure{Step: "sandbox", Detail: err.Error()}
	if s, ok := errors.AsType[*step](err); ok {
		f.Step, f.Detail = s.name, s.err.Error()
	}
	if errno, ok := errors.AsType[unix.Errno](err); ok {
		f.Errno = errno
	}
	return f
}

type runner struct {
	self      stage.Self
	conn      *handshake.Conn
	sockets   notify.Config
	container *sandbox.Container
	kill      sync.Once
}

func (r *runner) run() error {
	if err := fault("runner/prepare", 0); err != nil {
		return err
	}
	builder, err := r.prepare()
	if err != nil {
		return err
	}
	started, err := r.start(builder)
	if err != nil {
		return err
	}
	m, err := r.conn.Expect(msgSpec)
	if err != nil {
		return err
	}
	network := async(r.openNetwork)
	spec, err := sandbox.DecodeSpec(m.Body)
	if err != nil {
		return err
	}
	if spec, err = brokenSpec(spec); err != nil {
		return err
	}
	stdio, err := arrange(m.Files, spec.Stdio)
	if err != nil {
		return err
	}
	if err := errors.Join(fault("runner/mounts", 0), builder.Build(spec)); err != nil {
		return &step{"mount-tree", err}
	}
	rest := async(func() ([]byte, error) { return r.makeRest(network, spec.UserNamespaces) })
	unreleased := builder.Release(r.container, stdio)
	stage.Free()                                          // from here on most of the time is the container's, on any processor
	if err := cmp.Or(<-started, unreleased); err != nil { // that it has ended follows from why
		return &step{"container", err}
	}
	for _, f := range m.Files {
		_ = f.Close()
	}
	filter, err := rest()
	if err != nil {
		return err
	}
	if err := fault("runner/started", 0); err != nil {
		return err
	}
	if err := stage.FreeProcess(r.container.PID()); err != nil {
		return &step{"processors", err}
	}
	if err := r.conn.Send(msgStarted, handshake.Int(r.container.PID())); err != nil {
		return err
	}
	r.sockets = socketRules(r.container.PID(), spec.Mapping, builder.Sockets())
	if err := r.container.SendPlan(spec, filter, notify.Check(r.container.PID())); err != nil {
		return &step{"init", err}
	}
	trap.Trap(r.fell).Go(r.obey)
	return r.report()
}

// start begins to start the container, which is mostly waiting and goes on only once it is
// released. It is done from a thread that does nothing else and lives as long as the
// process: the init's death signal is bound to it (prctl(2)). The main goroutine stays
// free of it, since waking a locked one takes two switches.
func (r *runner) start(b *sandbox.Builder) (started <-chan error, err error) {
	if r.container, err = b.NewContainer(); err != nil {
		return nil, &step{"container", err}
	}
	ended := make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		ended <- r.container.Start()
		select {}
	}()
	return ended, nil
}

// makeRest waits for the network's floor, compiles the filter and takes the files of
// this run, which come once the supervisor serves.
func (r *runner) makeRest(network func() (struct{}, error), userNamespaces bool) (filter []byte, err error) {
	if _, err := network(); err != nil {
		return nil, &step{"network", err}
	}
	if filter, err = sandbox.Filter(userNamespaces); err != nil {
		return nil, &step{"seccomp", err}
	}
	return brokenFilter(filter), r.placeFiles()
}

// openNetwork brings the namespace to the floor and hands the listeners up.
func (r *runner) openNetwork() (struct{}, error) {
	if err := fault("runner/network", 0); err != nil {
		return struct{}{}, err
	}
	files, err := netns.Setup()
	if err != nil {
		return struct{}{}, err
	}
	defer files.Close()
	if err := errors.Join(brokenDevices(), brokenRules()); err != nil {
		return struct{}{}, err
	}
	return struct{}{}, r.conn.Send(msgListeners, nil, brokenListeners(files.All())...)
}

// prepare makes what every sandbox has, while the specification is on its way.
func (r *runner) prepare() (*sandbox.Builder, error) {
	var mapping *sandbox.Mapping
	if r.self.Privileged {
		m, err := sandbox.HostMapping(r.self.UID, r.self.GID)
		if err != nil {
			return nil, &step{"mapping", err}
		}
		mapping = m
	}
	b, err := sandbox.Prepare(mapping, async(func() (*os.File, error) { return openIDMap(mapping) }))
	if err != nil {
		return nil, &step{"prepare", err}
	}
	return b, nil
}

// placeFiles waits for the supervisor's word that it serves and puts the files of
// this run in their places.
func (r *runner) placeFiles() error {
	m, err := r.conn.Expect(msgServing)
	if err != nil {
		return err
	}
	names := strings.Split(string(m.Body), "\n")
	if len(m.Files) != len(names) {
		return fmt.Errorf("receiving the run's files: %d of %d", len(m.Files), len(names))
	}
	for i, name := range names {
		if err := sandbox.PlaceFile(name, m.Files[i]); err != nil {
			return &step{"run-files", err}
		}
		_ = m.Files[i].Close()
	}
	return nil
}

func openIDMap(m *sandbox.Mapping) (*os.File, error) {
	if m == nil {
		return nil, nil //nolint:nilnil // an ordinary user needs none
	}
	return stage.IDMap(m.FileUID, m.FileGID, m.KUID, m.KGID)
}

// obey does what the supervisor says until it is gone. Without a supervisor there
// is no policy, so there must be no command either.
func (r *runner) obey() {
	for {
		m, err := r.conn.Receive()
		if err != nil {
			r.end()
			return
		}
		switch m.Kind {
		case msgGo:
			if err = fault("runner/obey", 0); err == nil {
				err = r.container.Go()
			}
		case msgSignal:
			var s int
			if s, err = m.Int(); err == nil {
				err = r.container.Signal(unix.Signal(s))
			}
		case msgKill:
			r.end()
		}
		// A command that has just ended cannot be signalled any more.
		if err != nil && !errors.Is(err, unix.EPIPE) {
			r.end()
		}
	}
}

// fell says that a goroutine panicked, and ends the run.
func (r *runner) fell(p *trap.Panic) {
	_ = r.conn.Send(handshake.Failed, failure(&step{"runner", p}).Encode())
	r.end()
}

func (r *runner) end() { r.kill.Do(func() { _ = r.container.Kill() }) }

// report passes the init's reports on until the pid namespace is empty.
func (r *runner) report() error {
	for {
		e, err := r.container.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err == nil {
			err = r.pass(e)
		}
		if err != nil {
			r.end()
			return errors.Join(err, r.container.Wait())
		}
	}
	if err := r.container.Wait(); err != nil {
		return &step{"empty-pid-namespace", err}
	}
	return r.conn.Send(msgEmpty, nil)
}

func (r *runner) pass(e sandbox.Event) error {
	switch e.Kind {
	case sandbox.EventPty:
		defer e.File.Close()
		return r.conn.Send(msgPty, nil, e.File)
	case sandbox.EventAsks:
		trap.Trap(r.fell).Go(func() { r.answer(e.File) })
	case sandbox.EventNoUnix:
		return r.conn.Send(msgNoUnix, handshake.Int(int(e.Errno)))
	case sandbox.EventProved:
		return r.conn.Send(msgProved, nil)
	case sandbox.EventExited:
		return r.conn.Send(msgExited, handshake.Int(int(e.Status)))
	case sandbox.EventFailed:
		if e.Step == "exec" {
			return r.conn.Send(msgNoExec, handshake.Int(int(e.Errno)))
		}
		return &step{"init", fmt.Errorf("%s: %w", e.Step, e.Errno)}
	}
	return nil
}

// socketRules say which sockets the command may be connected to.
func socketRules(init int, m *sandbox.Mapping, host []unix.Stat_t) notify.Config {
	c := notify.Config{Init: init}
	if m != nil {
		c.Command = &notify.Identity{UID: m.KUID, GID: m.KGID}
	}
	for _, s := range host {
		c.Host = append(c.Host, notify.Inode{Device: s.Dev, Number: s.Ino})
	}
	return c
}

// answer makes the command's connections. Without an answer they would never end, so
// an error ends the run.
func (r *runner) answer(asks *os.File) {
	if brokenAnswers(asks) {
		return
	}
	if err := notify.Serve(asks, r.sockets); err != nil {
		_ = r.conn.Send(handshake.Failed, failure(&step{"sockets", err}).Encode())
		r.end()
	}
}

// arrange puts the received pipes at the descriptors they are for: those that the
// init does not open itself.
func arrange(received []*os.File, stdio sandbox.Stdio) (out [3]*os.File, err error) {
	for i := range out {
		if stdio.TTY[i] || stdio.Null[i] {
			continue
		}
		if len(received) == 0 {
			return out, errors.New("receiving the command's pipes: too few")
		}
		out[i], received = received[0], received[1:]
	}
	return out, nil
}

// async starts f and returns a function that waits for its result, however often
// it is asked.
func async[T any](f func() (T, error)) func() (T, error) {
	wait := sync.OnceValues(f)
	go func() {
		_ = trap.Call(func() error { _, err := wait(); return err }) // whoever waits panics as well
	}()
	return wait
}
