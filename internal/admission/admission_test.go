package admission

import (
	"context"
	"encoding/json"
	"errors"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/fractalboxdev/sbx/internal/class"
	"github.com/fractalboxdev/sbx/internal/event"
	"github.com/fractalboxdev/sbx/internal/store"
	"github.com/fractalboxdev/sbx/internal/ticket"
)

func open(t *testing.T) *store.Store {
	t.Helper()
	s, err := store.Open(t.Context(), store.Options{Dir: filepath.Join(t.TempDir(), "state")})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return s
}

var lean = Rules{Class: class.Lean, Cap: 1}

func admit(t *testing.T, s *store.Store, r Rules, run string) *Admission {
	t.Helper()
	a, err := Admit(t.Context(), s, r, Request{Run: run, Consumer: "me"})
	if err != nil {
		t.Fatal(err)
	}
	return a
}

func release(t *testing.T, a *Admission) {
	t.Helper()
	if err := a.Release(t.Context()); err != nil {
		t.Error(err)
	}
}

func tickets(t *testing.T, s *store.Store) (all []store.Ticket) {
	t.Helper()
	err := s.View(t.Context(), func(tx *store.Tx) (err error) { all, err = tx.Tickets(); return err })
	if err != nil {
		t.Fatal(err)
	}
	return all
}

func TestVector35_TheTicketStartsOnlyItsOwnSandbox(t *testing.T) {
	s, other := open(t), open(t)
	a := admit(t, s, lean, "r1")
	if err := a.Check("r1", "", class.Lean); err != nil {
		t.Errorf("its own: %v", err)
	}
	forged, err := ticket.Issue(ticket.Claims{Run: "r1", Class: "lean", Expires: time.Now().Add(time.Hour)}, other.MAC)
	if err != nil {
		t.Fatal(err)
	}
	expired, err := ticket.Issue(ticket.Claims{Run: "r1", Class: "lean", Expires: time.Now()}, s.MAC)
	if err != nil {
		t.Fatal(err)
	}
	with := func(t ticket.Ticket) *Admission {
		return &Admission{Ticket: t, want: a.want, store: s, lease: a.lease}
	}
	for name, c := range map[string]struct {
		a    *Admission
		run  string
		key  string
		pool class.Name
		code string
	}{
		"none":            {nil, "r1", "", class.Lean, ticket.CodeMissing},
		"an empty one":    {with(ticket.Ticket{}), "r1", "", class.Lean, ticket.CodeMissing},
		"another run":     {a, "r2", "", class.Lean, ticket.CodeRun},
		"another sandbox": {a, "r1", "kept", class.Lean, ticket.CodeSandbox},
		"another pool":    {a, "r1", "", class.Task, ticket.CodePool},
		"another store's": {with(forged), "r1", "", class.Lean, ticket.CodeTampered},
		"expired":         {with(expired), "r1", "", class.Lean, ticket.CodeExpired},
	} {
		if r, ok := errors.AsType[*ticket.Rejected](c.a.Check(c.run, c.key, c.pool)); !ok || r.Code != c.code {
			t.Errorf("%s: %v, want %s", name, r, c.code)
		}
	}
	release(t, a)
	if r, ok := errors.AsType[*ticket.Rejected](a.Check("r1", "", class.Lean)); !ok || r.Code != ticket.CodeReturned {
		t.Errorf("given back: %v", r)
	}
}

func TestVector36_RefusalsNamePoolBusyAndCap(t *testing.T) {
	s := open(t)
	a := admit(t, s, lean, "r1")
	_, err := Admit(t.Context(), s, lean, Request{Run: "r2", Consumer: "me"})
	r, ok := errors.AsType[*event.Refusal](err)
	if !ok || r.Kind != event.RefusedAdmission || r.Code != CodeFull || r.Next == "" {
		t.Fatalf("%v", err)
	}
	text, err := json.Marshal(r)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{`"_tag":"admission-refused"`, `"pool":"lean"`, `"busy":1`, `"cap":1`, `"queued":0`} {
		if !strings.Contains(string(text), want) {
			t.Errorf("%s is not in %s", want, text)
		}
	}
	if got := tickets(t, s); len(got) != 1 || got[0].Run != "r1" {
		t.Errorf("left: %+v", got)
	}
	release(t, a)
	if got := tickets(t, s); len(got) != 0 {
		t.Errorf("left: %+v", got)
	}
}

func TestTheQueueSaysWhereItStandsAndWaitsInOrder(t *testing.T) {
	s := open(t)
	first := admit(t, s, lean, "r1")
	said := make(chan Position, 16)
	queue := lean
	queue.Queue, queue.OnWait = true, func(p Position) { said <- p }
	done := make(chan *Admission)
	for ahead, run := range []string{"r2", "r3"} {
		go func() {
			a, err := Admit(context.Background(), s, queue, Request{Run: run, Consumer: run})
			if err != nil {
				t.Error(err)
			}
			done <- a
		}()
		if p := <-said; p.Class != class.Lean || p.Ahead != ahead {
			t.Errorf("%s: %+v, want %d ahead", run, p, ahead)
		}
	}
	release(t, first)
	a := <-done
	if a.want.Run != "r2" || a.Facts.Ahead != 0 || !a.Facts.AdmittedAt.After(a.Facts.AskedAt) {
		t.Errorf("%+v was admitted", a.Facts)
	}
	release(t, a)
	a = <-done
	if a.want.Run != "r3" || a.Facts.Ahead != 1 {
		t.Errorf("%+v was admitted", a.Facts)
	}
	release(t, a)
	ends := 0
	for len(said) > 0 {
		if p := <-said; p.Since.IsZero() {
			ends++
		}
	}
	if ends != 2 {
		t.Errorf("the end of a wait was told %d times", ends)
	}
}

func TestAWaitThatIsOverLeavesNothing(t *testing.T) {
	s := open(t)
	a := admit(t, s, lean, "r1")
	defer release(t, a)
	limited, stopped := lean, lean
	limited.Queue, limited.Wait = true, time.Millisecond
	stopped.Queue = true
	ctx, cancel := context.WithCancel(t.Context())
	stopped.OnWait = func(p Position) { cancel() }
	for code, wait := range map[string]func() error{
		CodeWaited:  func() error { _, err := Admit(t.Context(), s, limited, Request{Run: "r2"}); return err },
		CodeStopped: func() error { _, err := Admit(ctx, s, stopped, Request{Run: "r3"}); return err },
	} {
		r, ok := errors.AsType[*event.Refusal](wait())
		if !ok || r.Code != code || r.Kind != event.RefusedAdmission || r.Busy != 1 || r.Queued != 0 {
			t.Errorf("%s: %+v", code, r)
		}
	}
	if got := tickets(t, s); len(got) != 1 {
		t.Errorf("left: %+v", got)
	}
}

func TestStatusCountsByConsumer(t *testing.T) {
	at := time.Unix(1000, 0).UTC()
	row := func(run, consumer string, waiting bool) store.Ticket {
		return store.Ticket{Run: run, Class: "lean", Consumer: consumer, Waiting: waiting, AskedAt: at, AdmittedAt: at}
	}
	got := summarise([]store.Ticket{row("r1", "b", false), row("r2", "a", false), row("r3", "b", true), row("r4", "b", true)}, map[class.Name]int{class.Lean: 2, class.Task: 1})
	want := Status{
		Pools: []Pool{
			{Class: class.Lean, Cap: 2, Busy: 2, Queued: 2, Consumers: []Consumer{{"a", 1, 0}, {"b", 1, 2}}},
			{Class: class.Task, Cap: 1, Consumers: []Consumer{}},
		},
		Holders: []Holder{
			{Run: "r1", Class: class.Lean, Consumer: "b", Since: at},
			{Run: "r2", Class: class.Lean, Consumer: "a", Since: at},
			{Run: "r3", Class: class.Lean, Consumer: "b", Waiting: true, Since: at},
			{Run: "r4", Class: class.Lean, Consumer: "b", Waiting: true, Ahead: 1, Since: at},
		},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}
