package store

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// helperDir makes this test binary a process that holds or waits for a slot.
const helperDir = "SBX_STORE_TEST_HELPER"

func TestMain(m *testing.M) {
	if dir := os.Getenv(helperDir); dir != "" {
		if err := helper(dir, os.Args[1:]); err != nil {
			fmt.Println("error", err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// helper claims a slot as "RUN CLASS CAP MODE", says "lease", "place" or "busy", then
// "admitted", and gives it back at the end of its input.
func helper(dir string, args []string) error {
	ctx := context.Background()
	s, err := Open(ctx, Options{Dir: dir})
	if err != nil {
		return err
	}
	c := claim(args[0], args[1], 0)
	if _, err := fmt.Sscan(args[2], &c.Cap); err != nil {
		return err
	}
	c.Queue = args[3] == "queue"
	lease, place, busy, err := s.Claim(ctx, c)
	switch {
	case err != nil:
		return err
	case lease != nil:
		fmt.Println("lease")
	case place != nil:
		fmt.Println("place")
		if lease, err = wait(ctx, place); err != nil {
			return err
		}
		fmt.Println("lease")
	default:
		fmt.Println("busy", busy.Busy, busy.Waiting)
		return nil
	}
	_, _ = io.Copy(io.Discard, os.Stdin)
	return lease.Release(ctx)
}

func wait(ctx context.Context, p *Place) (*Lease, error) {
	for {
		lease, w, err := p.Advance(ctx)
		if err != nil || lease != nil {
			return lease, err
		}
		if err := w.Wait(time.Hour, -1); err != nil { // no test waits that long: only a wake-up helps
			return nil, err
		}
	}
}

func claim(run, class string, limit int) Claim {
	return Claim{Run: run, Class: class, Consumer: "me", Cap: limit, Life: time.Minute}
}

// process is a helper under way.
type process struct {
	*exec.Cmd
	in  io.WriteCloser
	out *bufio.Scanner
}

func start(t *testing.T, dir string, args ...string) *process {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), os.Args[0], args...)
	cmd.Env = append(os.Environ(), helperDir+"="+dir)
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	return &process{cmd, in, bufio.NewScanner(out)}
}

func (p *process) says(t *testing.T, want string) {
	t.Helper()
	if !p.out.Scan() {
		t.Fatalf("it ended instead of saying %q", want)
	}
	if got := p.out.Text(); got != want {
		t.Fatalf("it said %q, not %q", got, want)
	}
}

func (p *process) end(t *testing.T) {
	t.Helper()
	if err := p.in.Close(); err != nil {
		t.Fatal(err)
	}
	if p.out.Scan() {
		t.Errorf("it said %q", p.out.Text())
	}
	if err := p.Wait(); err != nil {
		t.Error(err)
	}
}

func take(t *testing.T, s *Store, c Claim) *Lease {
	t.Helper()
	lease, place, busy, err := s.Claim(t.Context(), c)
	if err != nil || lease == nil {
		t.Fatalf("no slot for %s: %v %+v %v", c.Run, place, busy, err)
	}
	return lease
}

func refuse(t *testing.T, s *Store, c Claim, want Busy) {
	t.Helper()
	before := gates(t, s)
	lease, place, busy, err := s.Claim(t.Context(), c)
	if err != nil || lease != nil || place != nil || busy != want {
		t.Errorf("%s: %v %v %+v %v, want refused with %+v", c.Run, lease, place, busy, err, want)
	}
	if diff := cmp.Diff(before, gates(t, s)); diff != "" {
		t.Errorf("a refusal left something behind: %s", diff)
	}
}

// gates are the files and rows that there are.
func gates(t *testing.T, s *Store) []string {
	t.Helper()
	entries, err := os.ReadDir(filepath.Join(s.Dir(), gatesDir))
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		t.Fatal(err)
	}
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	for _, row := range rows(t, s) {
		names = append(names, "row "+row.Run)
	}
	return names
}

func rows(t *testing.T, s *Store) (rows []Ticket) {
	t.Helper()
	err := s.View(t.Context(), func(tx *Tx) (err error) { rows, err = tx.Tickets(); return err })
	if err != nil {
		t.Fatal(err)
	}
	return rows
}

func TestVector36_AFullClassRefusesAndNothingIsLeft(t *testing.T) {
	s := open(t, stateDir(t))
	a := take(t, s, claim("a", "lean", 2))
	b := take(t, s, claim("b", "lean", 2))
	refuse(t, s, claim("c", "lean", 2), Busy{Busy: 2})
	other := take(t, s, claim("d", "task", 1)) // another class has slots of its own
	if err := a.Release(t.Context()); err != nil {
		t.Fatal(err)
	}
	c := take(t, s, claim("c", "lean", 2))
	if c.Slot != a.Slot {
		t.Errorf("slot %d, want the one that was given back, %d", c.Slot, a.Slot)
	}
	for _, l := range []*Lease{a, b, c, other} {
		if err := l.Release(t.Context()); err != nil {
			t.Error(err)
		}
	}
	if left := rows(t, s); len(left) > 0 {
		t.Errorf("left: %+v", left)
	}
}

func TestVector37_TheEarlierWaiterIsAdmitted(t *testing.T) {
	dir := stateDir(t)
	s := open(t, dir)
	holder := take(t, s, claim("holder", "lean", 1))
	first, second := claim("first", "lean", 1), claim("second", "lean", 1)
	first.Queue, second.Queue = true, true
	_, p1, _, err := s.Claim(t.Context(), first)
	if err != nil {
		t.Fatal(err)
	}
	_, p2, _, err := s.Claim(t.Context(), second)
	if err != nil {
		t.Fatal(err)
	}
	if err := holder.Release(t.Context()); err != nil {
		t.Fatal(err)
	}
	// The later one asks first, and somebody who never waited asks as well.
	lease, w, err := p2.Advance(t.Context())
	if err != nil || lease != nil {
		t.Fatalf("the later waiter got %v, %v", lease, err)
	}
	refuse(t, s, claim("third", "lean", 1), Busy{Waiting: 2})
	got, _, err := p1.Advance(t.Context())
	if err != nil || got == nil {
		t.Fatalf("the earlier waiter got %v, %v", got, err)
	}
	if err := w.Wait(time.Hour, -1); err != nil { // its predecessor has left the queue
		t.Error(err)
	}
	if n, err := p2.Ahead(t.Context()); err != nil || n != 0 {
		t.Errorf("%d ahead, %v", n, err)
	}
	lease, w, err = p2.Advance(t.Context())
	if err != nil || lease != nil {
		t.Fatalf("the later waiter got %v, %v", lease, err)
	}
	if err := got.Release(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := w.Wait(time.Hour, -1); err != nil {
		t.Error(err)
	}
	lease, _, err = p2.Advance(t.Context())
	if err != nil || lease == nil {
		t.Fatalf("at last the later waiter got %v, %v", lease, err)
	}
	if err := lease.Release(t.Context()); err != nil {
		t.Error(err)
	}
}

// A holder or waiter that is killed is no obstacle from that moment on, and nothing
// but the kernel says that it is dead.
func TestAKilledProcessHoldsNothing(t *testing.T) {
	dir := stateDir(t)
	s := open(t, dir)
	holder := start(t, dir, "holder", "lean", "1", "refuse")
	holder.says(t, "lease")
	var waiters []*process
	for _, run := range []string{"w1", "w2", "w3"} {
		w := start(t, dir, run, "lean", "1", "queue")
		w.says(t, "place")
		waiters = append(waiters, w)
	}
	refuse(t, s, claim("x", "lean", 1), Busy{1, 3})
	kill(t, waiters[0]) // w2 is the head now
	kill(t, holder)
	waiters[1].says(t, "lease")
	kill(t, waiters[1])
	waiters[2].says(t, "lease")
	waiters[2].end(t)
	if left := rows(t, s); len(left) > 0 {
		t.Errorf("left: %+v", left)
	}
	last := start(t, dir, "last", "lean", "1", "refuse")
	last.says(t, "lease")
	kill(t, last)
	freed, err := s.FreeDead(t.Context())
	if err != nil || len(freed) != 1 || freed[0].Run != "last" || freed[0].Waiting {
		t.Errorf("freed %+v, %v", freed, err)
	}
	if got := gates(t, s); !slices.Equal(got, []string{"slot.lean.0"}) {
		t.Errorf("left: %q", got)
	}
}

func kill(t *testing.T, p *process) {
	t.Helper()
	if err := p.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = p.Wait() // it was killed
}

// A waiter that dies before it has its row, or after it has its slot, leaves a gate.
func TestGatesOfTheDeadAreRemoved(t *testing.T) {
	s := open(t, stateDir(t))
	holder := take(t, s, claim("holder", "lean", 1))
	queued := claim("queued", "lean", 1)
	queued.Queue = true
	_, place, _, err := s.Claim(t.Context(), queued)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.makeGate(waitName("dead")); err != nil {
		t.Fatal(err)
	}
	if freed, err := s.FreeDead(t.Context()); err != nil || len(freed) > 0 {
		t.Errorf("freed %+v, %v", freed, err)
	}
	want := []string{"slot.lean.0", "wait.queued", "row holder", "row queued"}
	if diff := cmp.Diff(want, gates(t, s)); diff != "" {
		t.Error(diff)
	}
	if err := errors.Join(place.Leave(t.Context()), holder.Release(t.Context())); err != nil {
		t.Error(err)
	}
}

// A store that lost its rows still cannot give a slot away twice.
func TestTheKernelGuardsASlotWithoutARow(t *testing.T) {
	s := open(t, stateDir(t))
	lease := take(t, s, claim("a", "lean", 1))
	set(t, s, "DELETE FROM tickets")
	refuse(t, s, claim("b", "lean", 1), Busy{Busy: 1})
	if err := lease.Release(t.Context()); !errors.Is(err, ErrLost) {
		t.Errorf("releasing a lease that is not known: %v", err)
	}
	if err := take(t, s, claim("b", "lean", 1)).Release(t.Context()); err != nil {
		t.Error(err)
	}
}

func TestAHeartbeatRenewsOnlyItsOwnLease(t *testing.T) {
	s := open(t, stateDir(t))
	lease := take(t, s, claim("a", "lean", 1))
	beat := time.UnixMilli(1_000_000_000_000).UTC()
	if err := lease.Beat(t.Context(), beat, beat); err != nil {
		t.Fatal(err)
	}
	if got := rows(t, s)[0].BeatAt; !got.Equal(beat) {
		t.Errorf("beat at %s", got)
	}
	set(t, s, "UPDATE tickets SET slot = 7")
	if err := lease.Beat(t.Context(), beat, beat); !errors.Is(err, ErrLost) {
		t.Errorf("error %v", err)
	}
}

func TestBypass48_GatesAreOnlyNamedPipesOfTheCaller(t *testing.T) {
	for name, spoil := range map[string]func(gate string) error{
		"a file": func(gate string) error { return os.WriteFile(gate, nil, 0o600) },
		"a link": func(gate string) error { return os.Symlink("/dev/null", gate) },
	} {
		s := open(t, stateDir(t))
		dir := filepath.Join(s.Dir(), gatesDir)
		if err := errors.Join(os.Mkdir(dir, 0o700), spoil(filepath.Join(dir, slotName("lean", 0)))); err != nil {
			t.Fatal(err)
		}
		if lease, _, _, err := s.Claim(t.Context(), claim("a", "lean", 1)); err == nil {
			t.Errorf("%s: %+v", name, lease)
		}
	}
	s := open(t, stateDir(t))
	for _, c := range []Claim{claim("../x", "lean", 1), claim("a", "../lean", 1), claim("", "lean", 1)} {
		if lease, _, _, err := s.Claim(t.Context(), c); err == nil {
			t.Errorf("%q of %q: %+v", c.Run, c.Class, lease)
		}
	}
}

// model is what the pools should be like.
type model struct {
	limit   map[string]int
	holding map[string][]string
	waiting map[string][]string
}

func (m *model) expect() []string {
	var out []string
	for class, runs := range m.holding {
		for _, run := range runs {
			out = append(out, run+" holds "+class)
		}
	}
	for class, runs := range m.waiting {
		for i, run := range runs {
			out = append(out, fmt.Sprintf("%s waits for %s, %d ahead", run, class, i))
		}
	}
	slices.Sort(out)
	return out
}

// TestModel makes random claims and compares the store with a model after each.
func TestModel(t *testing.T) {
	seed := rand.Uint64()
	r := rand.New(rand.NewPCG(seed, 0))
	t.Logf("seed %d", seed)
	dir := stateDir(t)
	stores := []*Store{open(t, dir), open(t, dir), open(t, dir)}
	m := &model{map[string]int{"lean": 2, "task": 3}, map[string][]string{}, map[string][]string{}}
	leases, places := map[string]*Lease{}, map[string]*Place{}
	for step := range 1500 {
		class := []string{"lean", "task"}[r.IntN(2)]
		s := stores[r.IntN(len(stores))]
		switch r.IntN(4) {
		case 0, 1: // ask
			c := claim(fmt.Sprintf("r%d", step), class, m.limit[class])
			c.Queue = r.IntN(2) == 0
			lease, place, busy, err := s.Claim(t.Context(), c)
			free := len(m.holding[class]) < m.limit[class] && len(m.waiting[class]) == 0
			switch {
			case err != nil:
				t.Fatal(err)
			case (lease != nil) != free, (place != nil) != (!free && c.Queue):
				t.Fatalf("step %d: %s got %v %v, free %v", step, class, lease, place, free)
			case lease != nil:
				leases[c.Run], m.holding[class] = lease, append(m.holding[class], c.Run)
			case place != nil:
				places[c.Run], m.waiting[class] = place, append(m.waiting[class], c.Run)
			default:
				if want := (Busy{len(m.holding[class]), len(m.waiting[class])}); busy != want {
					t.Fatalf("step %d: %+v, want %+v", step, busy, want)
				}
			}
		case 2: // somebody releases
			if runs := m.holding[class]; len(runs) > 0 {
				i := r.IntN(len(runs))
				if err := leases[runs[i]].Release(t.Context()); err != nil {
					t.Fatal(err)
				}
				m.holding[class] = slices.Delete(runs, i, i+1)
			}
		case 3: // somebody who waits asks again, or leaves
			if runs := m.waiting[class]; len(runs) > 0 {
				i := r.IntN(len(runs))
				run := runs[i]
				if r.IntN(4) == 0 {
					if err := places[run].Leave(t.Context()); err != nil {
						t.Fatal(err)
					}
					m.waiting[class] = slices.Delete(runs, i, i+1)
					break
				}
				lease, w, err := places[run].Advance(t.Context())
				if err != nil {
					t.Fatal(err)
				}
				if want := i == 0 && len(m.holding[class]) < m.limit[class]; (lease != nil) != want {
					t.Fatalf("step %d: %s got %v, want a lease: %v", step, run, lease, want)
				}
				if w != nil {
					w.close()
				}
				if lease != nil {
					leases[run] = lease
					m.holding[class], m.waiting[class] = append(m.holding[class], run), slices.Delete(runs, i, i+1)
				}
			}
		}
		if diff := cmp.Diff(m.expect(), observed(t, s)); diff != "" {
			t.Fatalf("step %d: %s", step, diff)
		}
	}
}

func observed(t *testing.T, s *Store) []string {
	t.Helper()
	var out []string
	ahead := map[string]int{}
	for _, row := range rows(t, s) {
		if row.Waiting {
			out = append(out, fmt.Sprintf("%s waits for %s, %d ahead", row.Run, row.Class, ahead[row.Class]))
			ahead[row.Class]++
		} else {
			out = append(out, row.Run+" holds "+row.Class)
		}
	}
	slices.Sort(out)
	return out
}

// Many processes and many goroutines, some of which are killed, never hold more than
// the cap together, and everyone who waits is admitted.
func TestCapsHoldAcrossProcesses(t *testing.T) {
	dir := stateDir(t)
	s := open(t, dir)
	const limit = 3
	var all sync.WaitGroup
	for i := range 12 {
		all.Go(func() {
			for j := range 4 {
				p := start(t, dir, fmt.Sprintf("p%d-%d", i, j), "lean", fmt.Sprint(limit), "queue")
				admitted := false
				for !admitted && p.out.Scan() {
					admitted = p.out.Text() == "lease"
				}
				if !admitted {
					t.Errorf("p%d-%d was not admitted", i, j)
				}
				if holding := strings.Count(strings.Join(observed(t, s), "\n"), "holds"); holding > limit {
					t.Errorf("%d hold a slot of %d", holding, limit)
				}
				if (i+j)%3 == 0 {
					kill(t, p)
				} else {
					p.end(t)
				}
			}
		})
	}
	all.Wait()
	if _, err := s.FreeDead(t.Context()); err != nil {
		t.Error(err)
	}
	if left := rows(t, s); len(left) > 0 {
		t.Errorf("left: %+v", left)
	}
}
