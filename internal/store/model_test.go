package store

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/fractalboxdev/sbx/internal/verdict"
)

// memory is what the store should remember of calls, attestations and verdicts.
type memory struct {
	calls    map[string]*modelCall
	spent    []Spending
	verdicts map[string]verdict.Record
	serial   int64
}

// modelCall is a call and, while its process lives, its holding.
type modelCall struct {
	Call
	holding *Holding
	left    []byte // the receipt that its process wrote before it died without noting it here
}

// modeller makes random operations on some stores that are one, and on the memory.
type modeller struct {
	*testing.T
	r      *rand.Rand
	stores []*Store
	memory
	now  time.Time
	step int
}

// TestModelOfCallsSpendingsAndVerdicts makes random operations and compares the store
// with a model after each; processes die, and days pass.
func TestModelOfCallsSpendingsAndVerdicts(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	dir := stateDir(t)
	m := &modeller{
		T: t, r: rand.New(rand.NewPCG(seed, 0)), stores: []*Store{open(t, dir), open(t, dir), open(t, dir)},
		memory: memory{calls: map[string]*modelCall{}, verdicts: map[string]verdict.Record{}}, now: time.UnixMilli(1_767_355_200_000).UTC(),
	}
	operations := []func(*Store){m.begin, m.begin, m.begin, m.progress, m.progress, m.progress, m.decide, m.spend, m.spend, m.judge, m.advise}
	for m.step = range 2500 {
		m.now = m.now.Add(time.Duration(m.r.Int64N(int64(2 * time.Hour))))
		operations[m.r.IntN(len(operations))](m.any())
		if diff := cmp.Diff(m.expected(), m.seen(m.any())); diff != "" {
			t.Fatalf("step %d: %s", m.step, diff)
		}
	}
	m.gatesAreOfCalls(dir)
}

func (m *modeller) any() *Store { return m.stores[m.r.IntN(len(m.stores))] }

func (m *modeller) name(kind string, of int) string { return fmt.Sprintf("%s%d", kind, m.r.IntN(of)) }

// forget takes out of the model what is too old.
func (m *modeller) forget() {
	before := m.now.Add(-CallsKept)
	for key, c := range m.calls {
		unknown := c.Irreversible && !c.LaunchedAt.IsZero()
		if !c.FinishedAt.IsZero() && c.FinishedAt.Before(before) || c.FinishedAt.IsZero() && c.holding == nil && !unknown && c.BegunAt.Before(before) {
			delete(m.calls, key)
		}
	}
}

// begin asks for a call, which is one of few.
func (m *modeller) begin(s *Store) {
	c := Call{Scope: m.name("s", 2), Key: m.name("k", 3), Payload: m.name("p", 2), Run: fmt.Sprintf("r%d", m.step), BegunAt: m.now, Irreversible: m.r.IntN(2) == 0}
	before := maps.Clone(m.calls)
	m.forget()
	id := c.Scope + " " + c.Key
	was := m.calls[id]
	h, finished, running, err := s.Begin(m.Context(), c, m.ended)
	_, conflict := errors.AsType[*ConflictError](err)
	_, unknown := errors.AsType[*UnknownError](err)
	var got, want string
	switch {
	case conflict:
		got = "conflict"
	case unknown:
		got = "unknown"
	case err != nil:
		m.Fatal(err)
	case finished != nil:
		got = "finished in " + string(finished.Receipt)
	case running != nil:
		got = "running in " + running.Call.Run
		running.Close()
	case h != nil:
		got = "held"
	}
	switch {
	case was == nil:
		want = "held"
	case was.Payload != c.Payload:
		want = "conflict"
	case !was.FinishedAt.IsZero():
		want = "finished in " + string(was.Receipt)
	case was.holding != nil:
		want = "running in " + was.Run
	case was.left != nil:
		want = "finished in " + string(was.left)
		was.FinishedAt, was.Receipt = m.now, was.left
	case was.Irreversible && !was.LaunchedAt.IsZero():
		want = "unknown"
	default:
		want = "held"
	}
	if got != want {
		m.Fatalf("step %d: beginning %+v after %+v: %s, want %s", m.step, c, was, got, want)
	}
	if err != nil {
		m.calls = before // nothing is kept of what failed, not even that old ones were forgotten
	}
	if h != nil {
		m.calls[id] = &modelCall{Call: c, holding: h}
	}
}

// ended returns what the process of a run left.
func (m *modeller) ended(run string) ([]byte, error) {
	for _, c := range m.calls {
		if c.Run == run {
			return c.left, nil
		}
	}
	return nil, nil
}

// progress takes a call that goes on a step further, or has its process die.
func (m *modeller) progress(*Store) {
	var going []*modelCall
	for _, c := range m.calls {
		if c.holding != nil {
			going = append(going, c)
		}
	}
	if len(going) == 0 {
		return
	}
	slices.SortFunc(going, func(a, b *modelCall) int { return a.BegunAt.Compare(b.BegunAt) })
	c := going[m.r.IntN(len(going))]
	var err error
	switch m.r.IntN(4) {
	case 0:
		err = c.holding.drop() // as by SIGKILL
		c.holding = nil
		if !c.LaunchedAt.IsZero() && m.r.IntN(2) == 0 {
			c.left = []byte(`"left by ` + c.Run + `"`)
		}
	case 1:
		if c.LaunchedAt.IsZero() {
			err = c.holding.Forget(m.Context())
			delete(m.calls, c.Scope+" "+c.Key)
		}
	case 2:
		c.LaunchedAt = m.now
		err = c.holding.Launch(m.Context(), m.now)
	case 3:
		if !c.LaunchedAt.IsZero() {
			c.FinishedAt, c.Receipt = m.now, []byte(`"`+c.Run+`"`)
			err = c.holding.Finish(m.Context(), m.now, c.Receipt)
			c.holding = nil
		}
	}
	if err != nil {
		m.Fatalf("step %d: %v", m.step, err)
	}
}

// decide forgets a call, unless it goes on.
func (m *modeller) decide(s *Store) {
	scope, key := m.name("s", 2), m.name("k", 3)
	c := m.calls[scope+" "+key]
	was, err := s.Decide(m.Context(), scope, key)
	if alive := c != nil && c.holding != nil; (err != nil) != alive || (was == nil) != (c == nil) {
		m.Fatalf("step %d: deciding %+v: %+v, %v", m.step, c, was, err)
	}
	if err == nil {
		delete(m.calls, scope+" "+key)
	}
}

// spend uses one of few attestations up, of few tasks and under few keys.
func (m *modeller) spend(s *Store) {
	a := Spending{
		Nonce: m.name("n", 12), Task: m.name("t", 4), Ordinal: m.r.IntN(3), Command: m.name("c", 2),
		Key: []string{"", "k0", "k1"}[m.r.IntN(3)], Run: fmt.Sprintf("r%d", m.step), At: m.now,
	}
	at := slices.IndexFunc(m.spent, func(e Spending) bool { return e.Nonce == a.Nonce })
	if at < 0 {
		at = slices.IndexFunc(m.spent, func(e Spending) bool { return e.Task == a.Task && e.Ordinal == a.Ordinal })
	}
	retry := at >= 0 && a.Key != "" && func(e Spending) bool { e.Run, e.At = a.Run, a.At; return e == a }(m.spent[at])
	good := at < 0 || retry
	may := s.View(m.Context(), func(t *Tx) error { return t.Spendable(a) })
	did := s.UpdateDurably(m.Context(), func(t *Tx) error { return t.Spend(a) })
	for _, err := range []error{may, did} {
		_, before := errors.AsType[*SpentError](err)
		if before == good || err != nil && !before {
			m.Fatalf("step %d: spending %+v: %v, want good %v", m.step, a, err, good)
		}
	}
	switch {
	case at < 0:
		m.spent = append(m.spent, a)
	case retry:
		m.spent[at] = a
	}
}

// judge puts a verdict, now and then an older one than what is there.
func (m *modeller) judge(s *Store) {
	v := verdict.Record{
		Deployment: m.name("d", 2), Kind: []verdict.Kind{verdict.Canary, verdict.Dogfood}[m.r.IntN(2)],
		Outcome: []verdict.Outcome{verdict.Passed, verdict.Failed, verdict.Inconclusive}[m.r.IntN(3)],
		Run:     fmt.Sprintf("r%d", m.step), At: m.now.Add(-time.Duration(m.r.Int64N(int64(4 * time.Hour)))).Truncate(time.Millisecond), Evidence: json.RawMessage("{}"),
	}
	if err := s.Update(m.Context(), func(t *Tx) error { return t.PutVerdict(v) }); err != nil {
		m.Fatal(err)
	}
	id := v.Deployment + " " + string(v.Kind)
	was, ok := m.verdicts[id]
	lately := func(failed, later verdict.Record) bool { // one that could not tell does not take the place of a failure
		after := later.At.Sub(failed.At)
		return failed.Outcome == verdict.Failed && later.Outcome == verdict.Inconclusive && after >= 0 && after < 24*time.Hour
	}
	younger := !v.At.Before(was.At) || was.At.After(v.At.Add(clockStep))
	if !ok || lately(v, was) || younger && !lately(was, v) {
		m.verdicts[id] = v
	}
	for id, old := range m.verdicts {
		if old.At.Before(v.At.Add(-verdictsKept)) {
			delete(m.verdicts, id)
		}
	}
}

func (m *modeller) advise(s *Store) {
	serial := m.r.Int64N(1000)
	var highest int64
	err := s.Update(m.Context(), func(t *Tx) (err error) { highest, err = t.SeeAdvisory(serial); return err })
	m.serial = max(m.serial, serial)
	if err != nil || highest != m.serial {
		m.Fatalf("step %d: the highest serial is %d, want %d, %v", m.step, highest, m.serial, err)
	}
}

// expected is the model as text.
func (m *modeller) expected() (lines []string) {
	for id, c := range m.calls {
		lines = append(lines, id+": "+textOf(c.Call))
	}
	for _, s := range m.spent {
		lines = append(lines, fmt.Sprintf("spent %s %s %d in %s", s.Nonce, s.Task, s.Ordinal, s.Run))
	}
	for id, v := range m.verdicts {
		lines = append(lines, "verdict "+id+": "+string(v.Outcome)+" "+v.Run+" "+v.At.String())
	}
	slices.Sort(lines)
	return lines
}

func textOf(c Call) string {
	return fmt.Sprintf("%s %s irreversible %v, begun %d, launched %d, finished %d, %s", c.Payload, c.Run, c.Irreversible,
		c.BegunAt.UnixMilli(), c.LaunchedAt.UnixMilli(), c.FinishedAt.UnixMilli(), c.Receipt)
}

// seen is the store as the same text.
func (m *modeller) seen(s *Store) (lines []string) {
	err := s.View(m.Context(), func(t *Tx) error {
		var errs []error
		for _, scope := range []string{"s0", "s1"} {
			calls, err := t.Calls(scope)
			errs = append(errs, err)
			for _, c := range calls {
				lines = append(lines, c.Scope+" "+c.Key+": "+textOf(c))
			}
		}
		for n := range 12 {
			e, err := t.SpentBefore(Spending{Nonce: fmt.Sprintf("n%d", n), Ordinal: -1})
			errs = append(errs, err)
			if e != nil {
				lines = append(lines, fmt.Sprintf("spent %s %s %d in %s", e.Nonce, e.Task, e.Ordinal, e.Run))
			}
		}
		for _, deployment := range []string{"d0", "d1"} {
			for _, kind := range []verdict.Kind{verdict.Canary, verdict.Dogfood} {
				v, err := t.Verdict(deployment, kind)
				errs = append(errs, err)
				if v != nil {
					lines = append(lines, "verdict "+deployment+" "+string(kind)+": "+string(v.Outcome)+" "+v.Run+" "+v.At.String())
				}
			}
		}
		return errors.Join(errs...)
	})
	if err != nil {
		m.Fatal(err)
	}
	slices.Sort(lines)
	return lines
}

// gatesAreOfCalls: no more gates than calls that have not finished.
func (m *modeller) gatesAreOfCalls(dir string) {
	entries, err := os.ReadDir(filepath.Join(dir, gatesDir))
	if err != nil {
		m.Fatal(err)
	}
	unfinished := 0
	for _, c := range m.calls {
		if c.FinishedAt.IsZero() {
			unfinished++
		}
	}
	if len(entries) != unfinished {
		m.Errorf("%d gates for %d calls that have not finished", len(entries), unfinished)
	}
}
