package main

import (
	"encoding/json"
	"fmt"
	"hash/fnv"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
)

// together is how many sbx make the same call, or use the same attestation, at about
// the same time.
const together = 4

func (s *storm) signers() string { return filepath.Join(s.dir, "signers") }

// shared is the project of all calls: where a call is made is a part of it.
func (s *storm) shared() string { return filepath.Join(s.dir, "projects", "shared") }

// pushing is the irreversible command: it notes that it ran, and takes a moment.
const pushing = "#!/bin/bash\necho begin >>\"calls/$2\"; sleep 0.02; echo end >>\"calls/$2\"\n"

// prepareCalls makes the project of the calls, and somebody who approves.
func (s *storm) prepareCalls() error {
	s.asked, s.given = map[string]int{}, map[string]*sync.Once{}
	if err := os.MkdirAll(filepath.Join(s.shared(), "calls"), 0o700); err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(s.shared(), "git"), []byte(pushing), 0o700); err != nil { //nolint:gosec // a program
		return err
	}
	key := filepath.Join(s.dir, "key")
	if out, err := exec.Command("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", key).CombinedOutput(); err != nil { //nolint:noctx // ends by itself
		return fmt.Errorf("making a key: %w: %s", err, out)
	}
	public, err := os.ReadFile(key + ".pub")
	if err != nil {
		return err
	}
	return os.WriteFile(s.signers(), append([]byte("ops@storm.test "), public...), 0o600)
}

// next names the call of this kind that is on now.
func (s *storm) next(kind string) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := s.asked[kind] / together
	s.asked[kind]++
	return fmt.Sprintf("%s%d", kind, n)
}

// classOf gives everybody who makes a call the same class.
func classOf(call string) string {
	h := fnv.New32a()
	_, _ = h.Write([]byte(call)) // never fails
	return []string{"agent", "browser", "lean", "task"}[h.Sum32()%4]
}

// call makes an ordinary call under a key that others use, too.
func (w *worker) call(kill syscall.Signal) attempt {
	key := w.next("call")
	const script = `echo begin >>"$1"; sleep 0.05; echo end >>"$1"`
	return w.shares(key, kill, "--key", key, "--", "bash", "-c", script, "calling", "calls/"+key)
}

// push runs an irreversible command with an attestation that others use, too; under a
// key they make the same call.
func (w *worker) push(kill syscall.Signal, keyed bool) attempt {
	kind := "push"
	if keyed {
		kind = "keyedpush"
	}
	name := w.next(kind)
	if a, ok := w.approve(name); !ok {
		return a
	}
	args := []string{"--attestation", name + ".json", "--accept-replay"}
	if keyed {
		args = append(args, "--key", name)
	}
	return w.shares(name, kill, append(args, "--", "./git", "push", name)...)
}

// approve has the first one make the attestation; the others wait for it.
func (w *worker) approve(name string) (a attempt, ok bool) {
	w.mu.Lock()
	if w.given[name] == nil {
		w.given[name] = &sync.Once{}
	}
	once := w.given[name]
	w.mu.Unlock()
	ok = true
	once.Do(func() {
		a = w.attempt(sbxRun{
			operation: "approve", class: classOf(name), queued: true, dir: w.shared(),
			args: []string{"approve", "--key", filepath.Join(w.dir, "key"), "--yes", "--task", name, "--ordinal", "0", "-o", name + ".json", "--", "./git", "push", name},
		})
		ok = a.Exit == 0
	})
	return a, ok
}

func (w *worker) shares(call string, kill syscall.Signal, args ...string) attempt {
	r := sbxRun{operation: "shared", class: classOf(call), queued: true, kill: kill, dir: w.shared()}
	r.args = append([]string{"exec", "--quiet", "--json", "--wait", patience.String()}, args...)
	if kill != 0 {
		r.after = w.moment()
	}
	a := w.attempt(r)
	a.Call = call
	var outcome struct {
		Receipt struct {
			Run     string
			Deduped bool
		}
	}
	if json.Unmarshal(a.Stdout, &outcome) == nil {
		a.Run, a.Deduped = outcome.Receipt.Run, outcome.Receipt.Deduped
	}
	a.Stdout = nil
	return a
}

// refusedRightly: an attestation that was spent, or a call whose sbx was killed while
// its irreversible command might have run, is refused and said to be that.
func (a attempt) refusedRightly() bool {
	if a.Exit != 125 {
		return false
	}
	switch {
	case strings.HasPrefix(a.Call, "push"):
		return strings.Contains(a.Stderr, "spent")
	case strings.HasPrefix(a.Call, "keyedpush"):
		return strings.Contains(a.Stderr, "whether the command did its work is not known")
	}
	return false
}

// begun is how often the command of each call began.
func (s *storm) begun() map[string]int {
	all := map[string]int{}
	files, _ := filepath.Glob(filepath.Join(s.shared(), "calls", "*")) // the pattern is good
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err == nil {
			all[filepath.Base(file)] = strings.Count(string(text), "begin\n")
		}
	}
	return all
}

// callsOnce: an ordinary call ran again only after runs that were killed before they had a
// receipt, of which each got one that says so; its command was seen to end once at most.
// All who were answered were answered by the same run.
func (s *storm) callsOnce() []string {
	interrupted, ended, err := s.ends()
	if err != nil {
		return []string{err.Error()}
	}
	var bad []string
	for call, n := range s.begun() {
		if strings.HasPrefix(call, "call") && n > 1+interrupted[call] || ended[call] > 1 {
			bad = append(bad, fmt.Sprintf("%s began %d times, %d of its runs were killed, %d have a receipt of the end", call, n, interrupted[call], ended[call]))
		}
	}
	answers := map[string][]string{}
	for _, a := range s.done {
		if a.Exit == 0 && a.Call != "" && !slices.Contains(answers[a.Call], a.Run) {
			answers[a.Call] = append(answers[a.Call], a.Run)
		}
	}
	for call, runs := range answers {
		if len(runs) > 1 {
			bad = append(bad, fmt.Sprintf("%s was answered by the runs %q", call, runs))
		}
	}
	return bad
}

// spentOnce: an irreversible command never ran twice, whoever was killed, and never
// twice did somebody say that it did it.
func (s *storm) spentOnce() []string {
	var bad []string
	for call, n := range s.begun() {
		if strings.Contains(call, "push") && n > 1 {
			bad = append(bad, fmt.Sprintf("%s began %d times", call, n))
		}
	}
	own := map[string]int{}
	for _, a := range s.done {
		if strings.Contains(a.Call, "push") && a.Exit == 0 && !a.Deduped {
			if own[a.Call]++; own[a.Call] == 2 {
				bad = append(bad, a.Call+" was run by two, as they say")
			}
		}
	}
	return bad
}

func (s *storm) summariseCalls() {
	begun, again := s.begun(), 0
	counts := map[string]int{}
	for call, n := range begun {
		counts[strings.TrimRight(call, "0123456789")]++
		again += max(0, n-1)
	}
	deduped, refused := 0, 0
	for _, a := range s.done {
		switch {
		case a.Deduped:
			deduped++
		case a.Call != "" && a.Exit == 125:
			refused++
		}
	}
	fmt.Printf("calls: %d under a key ran, %d more times after kills; %d answered or followed; attestations: %d spent alone, %d under a key; %d refused\n",
		counts["call"], again, deduped, counts["push"], counts["keyedpush"], refused)
}

// ends is how many runs of each call have a receipt that says that their sbx was killed,
// and how many one that says that the command ended.
func (s *storm) ends() (interrupted, ended map[string]int, err error) {
	interrupted, ended = map[string]int{}, map[string]int{}
	receipts, err := s.receipts()
	for _, r := range receipts {
		if len(r.Command) == 0 {
			continue
		}
		call := filepath.Base(r.Command[len(r.Command)-1])
		if r.Interrupted {
			interrupted[call]++
		}
		if r.Result.Ended {
			ended[call]++
		}
	}
	return interrupted, ended, err
}
