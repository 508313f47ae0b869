package main

import (
	"cmp"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"
)

// check is one promise, looked at after the storm.
type check struct {
	name string
	look func(*storm) []string
}

var checks = []check{
	{"every sbx ended as it should", (*storm).endedWell},
	{"caps were never exceeded", (*storm).capsHeld},
	{"no slot was held twice at a time", (*storm).slotsHeld},
	{"whoever asked first was admitted first", (*storm).fifoHeld},
	{"every finished revoke was verified", (*storm).revokesVerified},
	{"no call under a key ran twice, but after a kill", (*storm).callsOnce},
	{"no attestation was spent twice", (*storm).spentOnce},
	{"nobody holds or waits for a slot", (*storm).poolsEmpty},
	{"no place in a queue, no active run, no scratch left", (*storm).stateTidy},
	{"no process, mount, listener or control group left", (*storm).machineTidy},
	{"the store is whole", (*storm).storeWhole},
}

// endedWell: a run that was left alone succeeded, or was refused because it did not
// want to wait; one that was asked to end ended by that signal or had done its work.
func (s *storm) endedWell() []string {
	var bad []string
	for _, a := range s.done {
		ok := a.Exit == 0
		switch {
		case a.Killed == syscall.SIGKILL:
			ok = true
		case a.Killed != 0:
			ok = ok || a.Exit == 128+int(a.Killed) || a.Exit == 125 && strings.Contains(a.Stderr, "sbx: stopped ") || a.Exit == -1
		case !a.Queued:
			ok = ok || a.Exit == 125 && strings.Contains(a.Stderr, "is full")
		case a.Call != "":
			ok = ok || a.refusedRightly()
		}
		if !ok {
			bad = append(bad, a.String())
		}
	}
	return bad
}

// span is a time during which something was held.
type span struct {
	from, to time.Time
	who      string
}

// most returns how many spans there were at once.
func most(spans []span) int {
	type edge struct {
		at   time.Time
		step int
	}
	var edges []edge
	for _, s := range spans {
		edges = append(edges, edge{s.from, 1}, edge{s.to, -1})
	}
	slices.SortFunc(edges, func(a, b edge) int { return cmp.Or(a.at.Compare(b.at), cmp.Compare(a.step, b.step)) })
	now, top := 0, 0
	for _, e := range edges {
		now += e.step
		top = max(top, now)
	}
	return top
}

// running are the spans of a class during which a command certainly ran under a living
// sbx: from its first mark to its last, or to the moment before its sbx was killed.
func (s *storm) running(class string) []span {
	var spans []span
	for _, a := range s.done {
		if a.Class != class || len(a.Marks) == 0 {
			continue
		}
		to := a.Marks[len(a.Marks)-1]
		if len(a.Marks) == 1 {
			to = a.Ended
			if a.Killed != 0 {
				to = a.KilledAt
			}
		}
		if from := a.Marks[0]; to.After(from) {
			spans = append(spans, span{from, to, a.String()})
		}
	}
	return spans
}

func (s *storm) capsHeld() []string {
	var bad []string
	for class, limit := range caps {
		if n := most(s.running(class)); n > limit {
			bad = append(bad, fmt.Sprintf("%d commands of class %s at once, its cap is %d", n, class, limit))
		}
	}
	return bad
}

// slotsHeld: a finished run had its slot from its admission at least until its command
// ended.
func (s *storm) slotsHeld() []string {
	all, err := s.receipts()
	if err != nil {
		return []string{err.Error()}
	}
	var bad []string
	bySlot := map[string][]span{}
	for _, r := range all {
		if r.Admission != nil && !r.Interrupted {
			key := fmt.Sprintf("%s.%d", r.Admission.Class, r.Admission.Slot)
			bySlot[key] = append(bySlot[key], r.span())
		}
	}
	for key, spans := range bySlot {
		slices.SortFunc(spans, func(a, b span) int { return a.from.Compare(b.from) })
		for i := 1; i < len(spans); i++ {
			if spans[i].from.Before(spans[i-1].to) {
				bad = append(bad, fmt.Sprintf("%s: %s and %s", key, spans[i-1].who, spans[i].who))
			}
		}
	}
	return bad
}

// fifoHeld: among those that were admitted, the order of asking is the order of
// admission, class by class.
func (s *storm) fifoHeld() []string {
	all, err := s.receipts()
	if err != nil {
		return []string{err.Error()}
	}
	var bad []string
	byClass := map[string][]receipt{}
	for _, r := range all {
		if r.Admission != nil {
			byClass[r.Admission.Class] = append(byClass[r.Admission.Class], r)
		}
	}
	for class, rs := range byClass {
		slices.SortFunc(rs, func(a, b receipt) int { return a.Admission.AskedAt.Compare(b.Admission.AskedAt) })
		for i := 1; i < len(rs); i++ {
			if rs[i].Admission.AdmittedAt.Before(rs[i-1].Admission.AdmittedAt) {
				bad = append(bad, fmt.Sprintf("%s: %s asked after %s and was admitted before", class, rs[i].Run, rs[i-1].Run))
			}
		}
	}
	return bad
}

func (s *storm) revokesVerified() []string {
	all, err := s.receipts()
	if err != nil {
		return []string{err.Error()}
	}
	var bad []string
	for _, r := range all {
		for _, c := range r.Revoke {
			if !c.Verified {
				bad = append(bad, r.Run+": "+c.What)
			}
		}
	}
	return bad
}

func (s *storm) poolsEmpty() []string {
	text, err := s.ask("pool", "status", "--json")
	var status struct {
		Runs []struct{ Run, Class string }
	}
	if err == nil {
		err = json.Unmarshal(text, &status)
	}
	if err != nil {
		return []string{err.Error()}
	}
	var bad []string
	for _, r := range status.Runs {
		bad = append(bad, fmt.Sprintf("%s of class %s", r.Run, r.Class))
	}
	return bad
}

func (s *storm) storeWhole() []string {
	text, err := s.ask("state", "check", "--json")
	if err != nil {
		return []string{fmt.Sprintf("%v: %s", err, text)}
	}
	return nil
}

func (s *storm) ask(args ...string) ([]byte, error) {
	cmd := exec.Command(s.sbx, args...) //nolint:noctx // ends by itself
	cmd.Env = s.environment("task")
	return cmd.Output()
}

func (s *storm) stateTidy() []string {
	var bad []string
	for _, pattern := range []string{"gates/wait.*", "active/*", "scratch/*"} {
		left, err := filepath.Glob(filepath.Join(s.state(), pattern))
		if err != nil {
			bad = append(bad, err.Error())
		}
		bad = append(bad, left...)
	}
	return bad
}

func (s *storm) machineTidy() []string {
	now, err := lookAtMachine(s.dir)
	if err != nil {
		return []string{err.Error()}
	}
	bad := now.processes
	for what, pair := range map[string][2][]string{
		"mount": {s.before.mounts, now.mounts}, "listener": {s.before.listeners, now.listeners}, "control group": {s.before.groups, now.groups},
	} {
		for _, entry := range pair[1] {
			if !slices.Contains(pair[0], entry) && (what != "control group" || s.ours(entry)) {
				bad = append(bad, what+": "+entry)
			}
		}
	}
	return bad
}

// ours tells whether a control group is named after a run of the storm.
func (s *storm) ours(group string) bool {
	runs, err := os.ReadDir(filepath.Join(s.state(), "runs"))
	return err != nil || slices.ContainsFunc(runs, func(r os.DirEntry) bool { return strings.Contains(group, r.Name()) })
}

// summarise says what the storm was like.
func (s *storm) summarise() {
	counts := map[string]int{}
	var longest time.Duration
	for _, a := range s.done {
		switch {
		case a.Killed == syscall.SIGKILL:
			counts["killed"]++
		case a.Killed != 0:
			counts["asked to end"]++
		case a.Exit == 125:
			counts["refused"]++
		default:
			counts["finished"]++
			longest = max(longest, a.Ended.Sub(a.Begun))
		}
		if len(a.Marks) > 0 {
			counts["commands that ran"]++
		}
	}
	fmt.Printf("%d sbx:", len(s.done))
	for _, what := range []string{"finished", "refused", "killed", "asked to end", "commands that ran"} {
		fmt.Printf(" %s %d,", what, counts[what])
	}
	fmt.Printf(" longest %s\n", longest.Round(time.Millisecond))
	s.summariseCalls()
	fmt.Print("at once:")
	for _, class := range []string{"agent", "browser", "lean", "task"} {
		fmt.Printf(" %s %d of %d", class, most(s.running(class)), caps[class])
	}
	info, err := os.Stat(filepath.Join(s.state(), "store.db-wal"))
	if err == nil {
		fmt.Printf("; the store's log has %d bytes", info.Size())
	}
	fmt.Println()
}
