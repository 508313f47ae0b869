package fence

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fractalboxdev/sbx/internal/class"
	"github.com/fractalboxdev/sbx/internal/egress"
	"github.com/fractalboxdev/sbx/internal/event"
	"github.com/fractalboxdev/sbx/internal/grant"
	"github.com/fractalboxdev/sbx/internal/handshake"
	"github.com/fractalboxdev/sbx/internal/trap"
)

// message is one message of the runner, or its end.
type message struct {
	handshake.Message
	err error
}

// receive passes the runner's messages on until it is gone.
func (f *fence) receive() {
	_ = fault("go/receive", f.o.Self.Runner)
	for {
		m, err := f.conn.Receive()
		f.inbox <- message{m, err}
		if err != nil && m.Kind != handshake.Failed {
			close(f.inbox)
			return
		}
	}
}

// awaitStarted waits until there is a sandbox, where something is about to be spent on it.
func (f *fence) awaitStarted(context.Context) error {
	for f.attested != nil && f.init == nil {
		if _, err := f.proof(); err != nil {
			return err
		}
	}
	return nil
}

// prove waits for the init's word and the gate's own records of both probes. It
// also takes over the pty, which comes first.
func (f *fence) prove() error {
	for {
		if proved, err := f.proof(); err != nil || proved {
			return err
		}
	}
}

// proof takes one message of the way to the proof.
func (f *fence) proof() (proved bool, err error) {
	m, ok := f.next()
	switch {
	case !ok:
		return false, handshake.ErrClosed
	case m.err != nil:
		return false, m.err
	case m.Kind == msgStarted:
		return false, f.watchInit(m)
	case m.Kind == msgPty && len(m.Files) == 1:
		return false, f.streams.AttachPty(m.Files[0])
	case m.Kind == msgProved:
		return true, f.network.probes.finish()
	case m.Kind == msgEmpty && f.outOfMemory():
		return false, f.noRoom()
	case m.Kind == msgEmpty:
		return false, errors.New("proving the floor: the sandbox's first process ended, as by a signal")
	}
	return false, fmt.Errorf("proving the floor: the runner said %q", m.Kind)
}

// next is the runner's next message; none comes where nobody listens any more.
func (f *fence) next() (m message, ok bool) {
	select {
	case m, ok = <-f.inbox:
	case <-f.faults.fell:
	}
	return m, ok
}

// watchInit opens the init by its pid: its end is the end of everything inside, and
// the supervisor looks at that itself.
func (f *fence) watchInit(m message) error {
	pid, err := m.Int()
	if err != nil {
		return err
	}
	if f.init, err = openProcess(pid, f.o.Self.Runner); err != nil {
		return err
	}
	if err := f.run.Begun(pid); err != nil {
		return err
	}
	return f.joinGroups(pid)
}

// apply swaps the floor for the grant, once, and lets the command start.
func (f *fence) apply(ctx context.Context) error {
	f.streams.Trap = f.faults.catch
	f.streams.Start(brokenLog(f.run.Stream))
	if _, err := f.ready(); err != nil {
		return err
	}
	if f.roots != nil {
		roots, err := f.roots()
		if err != nil {
			return err
		}
		f.network.tls.RootCAs = roots
	}
	f.granted = true
	f.network.proxy.Apply(f.derived.Grant.Policy())
	if err := f.network.proxy.ProvePlaceholders(ctx); err != nil {
		return err
	}
	f.receipt.Applied = append(f.applied(), interception(f.derived.Grant)...)
	trap.Trap(f.faults.catch).Go(f.prepareReceipt)
	f.admission.Beat(context.Background()) // until the release
	f.tidy = time.AfterFunc(tidyAfter, func() { defer trap.Trap(f.faults.catch).Catch(); f.settleIn() })
	if err := f.conn.LimitReceive(time.Time{}); err != nil {
		return err
	}
	if err := f.launch(ctx); err != nil {
		return err
	}
	f.launched = true
	if err := fault("apply-grant/launched", f.o.Self.Runner); err != nil {
		return err
	}
	f.streams.Resize() // the window may have changed since its size was looked at
	err := f.conn.Send(msgGo, nil)
	if errors.Is(err, unix.EPIPE) {
		f.launched = false // nobody was there to hear it
	}
	return err
}

// prepareReceipt does what the receipt will need, while the command runs.
func (f *fence) prepareReceipt() {
	_ = fault("go/prepare", 0)
	f.digest()
	_, _ = json.Marshal(event.Receipt{Applied: []event.Measure{{}}, Steps: []event.Step{{}}, Revoke: []event.Check{{}}})
}

// interception lists the rules whose connections are not opened: less is policed
// there than the name of a rule may make people believe.
func interception(g grant.Grant) []event.Measure {
	var out []event.Measure
	for _, r := range g.Rules() {
		m := event.Measure{Name: "interception of " + r.ID, Detail: "host and port are all that is policed"}
		switch {
		case r.Tunnel:
			m.Detail = "host-only: host, port and server name are all that is policed, and what is asked inside can be fronted"
		case r.Protocol != egress.ProtocolTCP:
			continue
		}
		if !slices.Contains(out, m) {
			out = append(out, m)
		}
	}
	return out
}

// applied lists the walls that stand. Each was made or checked by a step that
// would have refused the run otherwise.
func (f *fence) applied() []event.Measure {
	uid := fmt.Sprintf("the command is uid %d inside, the caller outside", f.spec.UID)
	if m := f.spec.Mapping; m != nil {
		uid = fmt.Sprintf("the command is uid %d inside, %d outside; files of %d are shown as its own", f.spec.UID, m.KUID, m.FileUID)
	}
	measures := []event.Measure{
		{Name: "network namespace", Applied: true, Detail: "loopback only; nft rules read back; both probes came back from the floor"},
		{Name: "pid, mount, ipc, uts and cgroup namespaces", Applied: true},
		{Name: "user namespaces", Applied: true, Detail: uid},
		{Name: "capabilities", Applied: true, Detail: "all dropped, bounding set empty"},
		{Name: "no_new_privs", Applied: true},
		{Name: "seccomp", Applied: true, Detail: seccompDetail(f.spec.UserNamespaces)},
		f.landlockMeasure(),
		{Name: "unix sockets", Applied: true, Detail: "connected by sbx, to those made inside"},
		{Name: "core dumps", Applied: true, Detail: "limit 0"},
	}
	return append(append(measures, f.guardMeasure()), f.limitMeasures()...)
}

func seccompDetail(userNamespaces bool) string {
	const detail = "a list of permitted calls, the rest answers ENOSYS; foreign ABIs killed"
	if userNamespaces {
		return detail + "; user namespaces permitted"
	}
	return detail
}

// forwarded are the signals that go on to the command.
var forwarded = []os.Signal{
	unix.SIGINT, unix.SIGTERM, unix.SIGHUP, unix.SIGQUIT, unix.SIGUSR1, unix.SIGUSR2, unix.SIGCONT, unix.SIGWINCH, signalStop,
}

// signalStop is what Kill sends: a real-time signal that nobody else has a use for, so
// that the run's status can say what ended it.
const signalStop = unix.Signal(42)

// wait follows the command to its end: the timeout and the signals that ask sbx to
// end give it its grace, then it is killed.
func (f *fence) wait(ctx context.Context) error {
	w := &waiter{fence: f, ctx: ctx}
	if f.timeout() > 0 {
		t := time.NewTimer(f.timeout())
		defer t.Stop()
		w.timeout = t.C
	}
	for {
		select {
		case m, ok := <-f.inbox:
			if done, err := w.message(m, ok); done {
				return err
			}
		case s := <-f.signals:
			w.signal(s)
		case <-w.timeout:
			f.receipt.Result.TimedOut = true
			f.hit(class.Time, 1, "it was ended")
			w.terminate()
		case <-w.deadline:
			if w.killed {
				return errors.New("ending the command: the sandbox did not end in time")
			}
			w.kill()
		case <-w.empty:
			w.exited(unix.WaitStatus(unix.SIGKILL))
			return nil
		case <-f.faults.fell:
			return nil // the step says it
		}
	}
}

type waiter struct {
	*fence
	ctx      context.Context //nolint:containedctx // lives as long as one wait
	timeout  <-chan time.Time
	deadline <-chan time.Time
	killed   bool            // the grace is over
	empty    <-chan struct{} // closed when the init, which was killed, has ended
}

// kill ends the init, and with it everything inside. The runner is told as well, but
// not waited for: it may be stopped.
func (w *waiter) kill() {
	_ = w.conn.Send(msgKill, nil)
	if w.init.kill() == nil {
		w.empty = w.init.ended()
	}
	w.deadline, w.killed = time.After(runnerLimit), true
}

func (w *waiter) signal(s os.Signal) {
	number, ok := s.(syscall.Signal)
	if !ok {
		return
	}
	switch number {
	case unix.SIGWINCH:
		w.streams.Resize()
		return
	case unix.SIGTERM, unix.SIGHUP:
		w.startGrace()
	case signalStop:
		w.receipt.Result.Killed = true
		w.terminate()
		return
	}
	_ = w.conn.Send(msgSignal, handshake.Int(int(number)))
}

func (w *waiter) terminate() {
	w.timeout = nil
	w.startGrace()
	_ = w.conn.Send(msgSignal, handshake.Int(int(unix.SIGTERM)))
}

func (w *waiter) startGrace() {
	if w.deadline == nil {
		w.deadline = time.After(w.o.Grace)
	}
}

// message handles one report of the runner; done means that the command is over.
func (w *waiter) message(m message, ok bool) (done bool, err error) {
	switch {
	case !ok && w.empty != nil:
		w.inbox = nil // the runner went with its init: that one's end tells
		return false, nil
	case !ok:
		return true, fmt.Errorf("following the command: %w", handshake.ErrClosed)
	case m.err != nil:
		return true, m.err
	}
	switch m.Kind {
	case msgNoUnix:
		errno, err := m.Int()
		w.withoutUnix(unix.Errno(errno))
		return err != nil, err
	case msgNoExec:
		errno, err := m.Int()
		if err != nil {
			return true, err
		}
		return true, w.noExec(unix.Errno(errno))
	case msgExited:
		status, err := m.Int()
		if err != nil {
			return true, err
		}
		w.exited(unix.WaitStatus(status)) //nolint:gosec // a wait status
		return true, nil
	case msgEmpty:
		if w.killed || w.outOfMemory() {
			w.exited(unix.WaitStatus(unix.SIGKILL))
			return true, nil
		}
		return true, errors.New("following the command: the sandbox's init was killed")
	}
	return false, nil
}

// withoutUnix notes that the kernel asks nobody where sockets connect to: then the
// command has pairs only, which lead nowhere else.
func (f *fence) withoutUnix(why unix.Errno) {
	for i := range f.receipt.Applied {
		if m := &f.receipt.Applied[i]; m.Name == "unix sockets" {
			m.Detail = "none but pairs: connects cannot be followed here (" + unix.ErrnoName(why) + ")"
		}
	}
}

func (f *fence) exited(status unix.WaitStatus) {
	r := &f.receipt.Result
	r.Ended = true
	switch {
	case r.TimedOut:
		r.Exit = ExitTimeout
	case r.Killed:
		r.Exit = ExitKilled
	case status.Signaled():
		r.Exit, r.Signal = 128+int(status.Signal()), unix.SignalName(status.Signal())
		if status.Signal() == unix.SIGXFSZ {
			f.hit(class.Disk, 1, "it ended by writing a larger file")
		}
	default:
		r.Exit = status.ExitStatus()
	}
	r.Status = r.Exit
}

// noExec explains why the command did not start.
func (f *fence) noExec(errno unix.Errno) error {
	r := &event.Refusal{Kind: event.RefusedRecipe, Cause: errno}
	if errors.Is(errno, fs.ErrNotExist) || errno == unix.ENOTDIR {
		r.Code = "not-found"
		r.Message = fmt.Sprintf("command not found in the sandbox: %s", f.o.Argv[0])
		r.Next = "look at `sbx exec --dry-run -- …` for the PATH and the directories that show inside"
		return r
	}
	r.Code = "not-executable"
	r.Message = fmt.Sprintf("command cannot be executed in the sandbox: %s: %s", f.o.Argv[0], errno.Error())
	r.Next = "check its mode and its interpreter"
	return r
}
