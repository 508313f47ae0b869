package main

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"
)

// caps are few, so that runs have to wait.
var caps = map[string]int{"agent": 2, "browser": 3, "lean": 4, "task": 3}

// patience is how long anything may take that has to end by itself.
const patience = 5 * time.Minute

type storm struct {
	sbx     string
	length  time.Duration
	workers int
	seed    uint64

	dir    string // everything that the storm makes
	before machine

	mu    sync.Mutex
	done  []attempt
	asked map[string]int // how many sbx were begun for calls and attestations
	given map[string]*sync.Once
}

// attempt is one sbx and what became of it.
type attempt struct {
	Operation string
	Class     string
	Worker    int
	Number    int
	Queued    bool // it was told to wait
	Begun     time.Time
	Ended     time.Time
	Killed    syscall.Signal // 0: it was left alone
	KilledAt  time.Time      // just before the signal
	Exit      int
	Stderr    string
	Marks     []time.Time // of the command: its start, and its end if it came to that
	Stdout    []byte
	Call      string // the key or attestation that it shares with others
	Run       string // that answers it
	Deduped   bool
}

func (a attempt) String() string {
	return fmt.Sprintf("%s %d.%d of class %s: exit %d, signal %d, %s", a.Operation, a.Worker, a.Number, a.Class, a.Exit, a.Killed, strings.TrimSpace(a.Stderr))
}

// prepare makes a state directory for all and one configuration a class.
func (s *storm) prepare() (err error) {
	if s.dir, err = os.MkdirTemp("", "sbx-storm-"); err != nil {
		return err
	}
	config := fmt.Sprintf("state_dir = %q\nallowed_signers = %q\n", s.state(), s.signers())
	for class, limit := range caps {
		config += fmt.Sprintf("class.%s.cap = %d\n", class, limit)
	}
	for class := range caps {
		dir := filepath.Join(s.dir, "config", class, "sbx")
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return err
		}
		text := fmt.Sprintf("default_class = %q\n", class) + config
		if err := os.WriteFile(filepath.Join(dir, "config.toml"), []byte(text), 0o600); err != nil {
			return err
		}
	}
	for i := range s.workers {
		if err := os.MkdirAll(s.project(i), 0o700); err != nil {
			return err
		}
	}
	if err := s.prepareCalls(); err != nil {
		return err
	}
	s.before, err = lookAtMachine(s.dir)
	return err
}

func (s *storm) state() string        { return filepath.Join(s.dir, "state") }
func (s *storm) project(w int) string { return filepath.Join(s.dir, "projects", fmt.Sprint(w)) }
func (s *storm) environment(class string) []string {
	return []string{"PATH=/usr/local/bin:/usr/bin:/bin", "HOME=" + s.dir, "XDG_CONFIG_HOME=" + filepath.Join(s.dir, "config", class), "LANG=C"}
}

// blow lets all workers begin one sbx after another.
func (s *storm) blow() {
	until := time.Now().Add(s.length)
	var all sync.WaitGroup
	for i := range s.workers {
		all.Go(func() {
			r := rand.New(rand.NewPCG(s.seed, uint64(i))) //nolint:gosec // not for secrets
			for n := 0; time.Now().Before(until); n++ {
				w := &worker{storm: s, number: i, round: n, random: r}
				a := pick(r)(w)
				s.mu.Lock()
				s.done = append(s.done, a)
				s.mu.Unlock()
			}
		})
	}
	all.Wait()
}

// worker makes one attempt.
type worker struct {
	*storm
	number, round int
	random        *rand.Rand
}

// sbxRun is how one sbx is to be run.
type sbxRun struct {
	operation string
	class     string
	args      []string
	queued    bool
	kill      syscall.Signal // 0: none
	after     time.Duration  // of the signal
	dir       string         // "": the worker's own project
}

// attempt runs one sbx to its end, or to ours.
func (w *worker) attempt(r sbxRun) attempt {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	cmd := exec.CommandContext(ctx, w.sbx, r.args...)
	cmd.Dir, cmd.Env = cmp.Or(r.dir, w.project(w.number)), w.environment(r.class)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr, cmd.WaitDelay = &stdout, &stderr, 20*time.Second
	a := attempt{Operation: r.operation, Class: r.class, Worker: w.number, Number: w.round, Queued: r.queued, Begun: time.Now()}
	if err := cmd.Start(); err != nil {
		a.Exit, a.Stderr = -1, err.Error()
		return a
	}
	a.watch(cmd, r)
	a.Ended, a.Exit, a.Stdout, a.Stderr = time.Now(), cmd.ProcessState.ExitCode(), stdout.Bytes(), stderr.String()
	if ctx.Err() != nil {
		a.Stderr += " (it did not end by itself)"
	}
	return a
}

// watch waits, and sends the signal when it is time.
func (a *attempt) watch(cmd *exec.Cmd, r sbxRun) {
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = cmd.Wait() // its state tells
	}()
	if r.kill != 0 {
		select {
		case <-ended:
		case <-time.After(r.after):
			a.Killed, a.KilledAt = r.kill, time.Now()
			_ = cmd.Process.Signal(r.kill) // it may have just ended
		}
	}
	<-ended
}

// settle gives the killed a moment to be gone, and lets each class's next run sweep.
func (s *storm) settle() error {
	for class := range caps {
		cmd := exec.Command(s.sbx, "exec", "--quiet", "--wait", "1m", "--", "true") //nolint:noctx // ends by itself
		cmd.Dir, cmd.Env = s.project(0), s.environment(class)
		if out, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("the run after the storm: %w: %s", err, out)
		}
	}
	until := time.Now().Add(10 * time.Second)
	for time.Now().Before(until) {
		if now, err := lookAtMachine(s.dir); err != nil || len(now.processes) == 0 {
			return err
		}
		time.Sleep(50 * time.Millisecond)
	}
	return nil
}

// receipts reads what the runs recorded.
func (s *storm) receipts() ([]receipt, error) {
	files, err := filepath.Glob(filepath.Join(s.state(), "runs", "*", "receipt.json"))
	var all []receipt
	for _, file := range files {
		text, failed := os.ReadFile(file)
		var r receipt
		if failed == nil {
			failed = json.Unmarshal(text, &r)
		}
		err = errors.Join(err, failed)
		all = append(all, r)
	}
	return all, err
}

// receipt is the part of a receipt that checks look at.
type receipt struct {
	Run         string   `json:"run"`
	Interrupted bool     `json:"interrupted"`
	Command     []string `json:"command"`
	Result      struct {
		Ended bool `json:"ended"`
	} `json:"result"`
	Admission *struct {
		Class      string    `json:"class"`
		Slot       int       `json:"slot"`
		AskedAt    time.Time `json:"asked_at"`
		AdmittedAt time.Time `json:"admitted_at"`
	} `json:"admission"`
	Steps []struct {
		Name      string        `json:"name"`
		StartedAt time.Time     `json:"started_at"`
		Duration  time.Duration `json:"duration_ns"`
	} `json:"steps"`
	Revoke []struct {
		What     string `json:"what"`
		Verified bool   `json:"verified"`
	} `json:"revoke"`
}

// span is the time during which a finished run certainly held its slot.
func (r receipt) span() span {
	s := span{from: r.Admission.AdmittedAt, to: r.Admission.AdmittedAt, who: r.Run}
	for _, step := range r.Steps {
		if step.Name == "kill" {
			s.to = step.StartedAt // the slot is given back after it
		}
	}
	return s
}
