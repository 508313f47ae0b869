package main

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// operation is one thing that a worker can do with sbx.
type operation struct {
	weight int
	do     func(*worker) attempt
}

// operations are chosen by weight.
var operations = []operation{
	{6, func(w *worker) attempt { return w.plain(true, 0) }},
	{2, func(w *worker) attempt { return w.plain(false, 0) }},
	{2, func(w *worker) attempt { return w.plain(true, syscall.SIGKILL) }},
	{1, func(w *worker) attempt { return w.plain(true, syscall.SIGTERM) }},
	{3, func(w *worker) attempt { return w.call(0) }},
	{2, func(w *worker) attempt { return w.call(syscall.SIGKILL) }},
	{2, func(w *worker) attempt { return w.push(0, false) }},
	{1, func(w *worker) attempt { return w.push(syscall.SIGKILL, false) }},
	{2, func(w *worker) attempt { return w.push(0, true) }},
	{1, func(w *worker) attempt { return w.push(syscall.SIGKILL, true) }},
}

func pick(r *rand.Rand) func(*worker) attempt {
	total := 0
	for _, o := range operations {
		total += o.weight
	}
	n := r.IntN(total)
	for _, o := range operations {
		if n -= o.weight; n < 0 {
			return o.do
		}
	}
	panic("no operation")
}

// marking is a command that notes when it starts and ends, in microseconds, and takes
// a moment.
const marking = `echo $EPOCHREALTIME >>"$1"; sleep "$2"; echo $EPOCHREALTIME >>"$1"`

// plain is one run of a random class that marks when it had its slot.
func (w *worker) plain(queue bool, kill syscall.Signal) attempt {
	class := []string{"agent", "browser", "lean", "task"}[w.random.IntN(4)]
	marks := fmt.Sprintf("marks-%d", w.round)
	r := sbxRun{operation: "plain", class: class, queued: queue, kill: kill, args: []string{"exec", "--quiet", "--grace", "1s"}}
	if queue {
		r.args = append(r.args, "--wait", patience.String())
	}
	pause := fmt.Sprintf("0.%03d", w.random.IntN(100))
	r.args = append(r.args, "--", "bash", "-c", marking, "marking", marks, pause)
	if kill != 0 {
		r.after = w.moment()
	}
	a := w.attempt(r)
	a.Marks = readMarks(filepath.Join(w.project(w.number), marks))
	return a
}

// moment is when to end an sbx: somewhere in its life.
func (w *worker) moment() time.Duration { return time.Duration(w.random.Int64N(int64(w.typical()))) }

// typical is about how long a run takes now, with its wait.
func (w *worker) typical() time.Duration {
	w.mu.Lock()
	defer w.mu.Unlock()
	for i := len(w.done) - 1; i >= 0; i-- {
		if a := w.done[i]; a.Operation == "plain" && a.Killed == 0 && a.Exit == 0 {
			return a.Ended.Sub(a.Begun) + 20*time.Millisecond
		}
	}
	return 200 * time.Millisecond
}

func readMarks(file string) []time.Time {
	text, err := os.ReadFile(file)
	if err != nil {
		return nil // it never started
	}
	_ = os.Remove(file) // thousands of them would only slow things down
	var marks []time.Time
	for line := range strings.Lines(string(text)) {
		seconds, micros, _ := strings.Cut(strings.TrimSpace(line), ".")
		s, err := strconv.ParseInt(seconds, 10, 64)
		us, failed := strconv.ParseInt(micros, 10, 64)
		if err == nil && failed == nil {
			marks = append(marks, time.Unix(s, us*1000))
		}
	}
	return marks
}
