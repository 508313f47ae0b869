package fence

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fractalboxdev/sbx/internal/admission"
	"github.com/fractalboxdev/sbx/internal/class"
	"github.com/fractalboxdev/sbx/internal/event"
	"github.com/fractalboxdev/sbx/internal/handshake"
	"github.com/fractalboxdev/sbx/internal/store"
	"github.com/fractalboxdev/sbx/internal/ticket"
)

// runnerSide is the other end of a fence's connection.
func runnerSide(t *testing.T, f *fence) *handshake.Conn {
	t.Helper()
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	ours, err := handshake.New(os.NewFile(uintptr(fds[0]), "supervisor"))
	if err != nil {
		t.Fatal(err)
	}
	theirs, err := handshake.New(os.NewFile(uintptr(fds[1]), "runner"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = theirs.Close() })
	f.conn = ours
	return theirs
}

func TestVector35_TheRunnerGetsNothingWithoutTheTicket(t *testing.T) {
	open := func() *store.Store {
		s, err := store.Open(t.Context(), store.Options{Dir: filepath.Join(t.TempDir(), "state")})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = s.Close() })
		return s
	}
	s, other := open(), open()
	admit := func(s *store.Store, name class.Name, q admission.Request) *admission.Admission {
		a, err := admission.Admit(t.Context(), s, admission.Rules{Class: name, Cap: 9}, q)
		if err != nil {
			t.Fatal(err)
		}
		return a
	}
	forge := func(s *store.Store, c ticket.Claims) *admission.Admission {
		a := admit(s, class.Task, admission.Request{Run: c.Run})
		forged, err := ticket.Issue(c, other.MAC)
		if err != nil {
			t.Fatal(err)
		}
		a.Ticket = forged
		return a
	}
	returned := admit(s, class.Task, admission.Request{Run: "r1"})
	if err := returned.Release(t.Context()); err != nil {
		t.Fatal(err)
	}
	later := time.Now().Add(time.Hour)
	for code, a := range map[string]*admission.Admission{
		ticket.CodeMissing:  nil,
		ticket.CodeRun:      admit(s, class.Task, admission.Request{Run: "r2"}),
		ticket.CodeSandbox:  admit(s, class.Task, admission.Request{Run: "r1", Sandbox: "kept"}),
		ticket.CodePool:     admit(s, class.Lean, admission.Request{Run: "r1"}),
		ticket.CodeTampered: forge(s, ticket.Claims{Run: "r1", Class: "task", Expires: later}),
		ticket.CodeExpired:  forge(other, ticket.Claims{Run: "r1", Class: "task", Expires: time.Now()}),
		ticket.CodeReturned: returned,
	} {
		f := &fence{id: "r1", admission: a, o: Options{Class: class.Task}}
		runner := runnerSide(t, f)
		r, ok := errors.AsType[*event.Refusal](f.refusal(stepEnsure, f.sendSpec(t.Context())))
		if !ok || r.Kind != event.RefusedTicket || r.Code != code {
			t.Errorf("%s: %+v", code, r)
		}
		if err := f.conn.Close(); err != nil {
			t.Fatal(err)
		}
		if m, err := runner.Receive(); !errors.Is(err, handshake.ErrClosed) {
			t.Errorf("%s: the runner got %q, %v", code, m.Kind, err)
		}
	}
}
