// Package e2e runs the release binary from start to end: as root and as an
// ordinary user, against servers in a private network, and against the real
// package registries of the machine.
package e2e

import (
	"bytes"
	"context"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fractalboxdev/sbx/internal/event"
	"github.com/fractalboxdev/sbx/internal/sbxtest"
)

func TestMain(m *testing.M) { os.Exit(sbxtest.Main(m)) }

// everyone runs a test for each user.
func everyone(t *testing.T, test func(t *testing.T, who sbxtest.User)) {
	t.Helper()
	for _, who := range sbxtest.Everyone() {
		t.Run(who.String(), func(t *testing.T) { test(t, who) })
	}
}

// run runs one command in the sandbox and waits for it.
func run(t *testing.T, lab *sbxtest.Lab, who sbxtest.User, args ...string) sbxtest.Result {
	t.Helper()
	return lab.Run(t, who, append([]string{"sbx", "exec"}, args...)...)
}

// shell runs a script with bash in the sandbox; flags are sbx's.
func shell(t *testing.T, lab *sbxtest.Lab, who sbxtest.User, script string, flags ...string) sbxtest.Result {
	t.Helper()
	return run(t, lab, who, append(flags, "--", "bash", "-c", script)...)
}

// within runs a prepared command that has to end by itself in the given time;
// one that does not is killed and fails the test.
func within(t *testing.T, limit time.Duration, lab *sbxtest.Lab, who sbxtest.User, cmd *exec.Cmd) sbxtest.Result {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	stop := context.AfterFunc(ctx, func() {
		for _, p := range sbxtest.Processes(t) { // tests run one after the other: all are the command's
			_ = syscall.Kill(p.PID, syscall.SIGKILL) // it may have just ended
		}
	})
	got := lab.RunCommand(t, who, cmd)
	if !stop() {
		t.Fatalf("%s did not end within %s\nstdout: %s\nstderr: %s", strings.Join(cmd.Args, " "), limit, got.Stdout, got.Stderr)
	}
	return got
}

// watch remembers what had left a lab's network when it was made.
type watch struct {
	lab            *sbxtest.Lab
	dials, lookups int
}

func watching(lab *sbxtest.Lab) watch { return watch{lab, len(lab.Dials()), len(lab.Lookups())} }

// nothingLeft fails the test when a packet or a question to the name server
// reached the world since.
func (w watch) nothingLeft(t *testing.T) {
	t.Helper()
	if dials := w.lab.Dials()[w.dials:]; len(dials) > 0 {
		t.Errorf("packets left: %v", dials)
	}
	if asked := w.lab.Lookups()[w.lookups:]; len(asked) > 0 {
		t.Errorf("names were asked for: %v", asked)
	}
}

// succeeded fails the test unless the command exited with status 0.
func succeeded(t *testing.T, got sbxtest.Result) {
	t.Helper()
	if got.Exit != 0 {
		t.Fatalf("exit status %d\nstdout: %s\nstderr: %s", got.Exit, got.Stdout, got.Stderr)
	}
}

// printed fails the test unless the command succeeded and its standard output
// was exactly want.
func printed(t *testing.T, got sbxtest.Result, want string) {
	t.Helper()
	succeeded(t, got)
	if got.Stdout != want {
		t.Errorf("stdout is %q, want %q\nstderr: %s", got.Stdout, want, got.Stderr)
	}
}

// refused fails the test unless sbx itself refused, saying all of the words.
func refused(t *testing.T, got sbxtest.Result, words ...string) {
	t.Helper()
	if got.Exit != 125 {
		t.Errorf("exit status %d, want 125\nstdout: %s\nstderr: %s", got.Exit, got.Stdout, got.Stderr)
	}
	says(t, got.Stderr, words...)
}

// says fails the test unless text has all of the words.
func says(t *testing.T, text string, words ...string) {
	t.Helper()
	for _, word := range words {
		if !strings.Contains(text, word) {
			t.Errorf("%q is not in: %s", word, text)
		}
	}
}

// onlyDenial returns the run's only row.
func onlyDenial(t *testing.T, got sbxtest.Result) event.Denial {
	t.Helper()
	rows := got.Denials(t)
	if len(rows) != 1 {
		t.Fatalf("%d denials, want 1: %+v\nstdout: %s\nstderr: %s", len(rows), rows, got.Stdout, got.Stderr)
	}
	return rows[0]
}

// noDenials fails the test when the run denied anything.
func noDenials(t *testing.T, got sbxtest.Result) {
	t.Helper()
	if rows := got.Denials(t); len(rows) > 0 {
		t.Errorf("denied: %+v", rows)
	}
}

// output is a command's output that can be read while the command writes.
type output struct {
	lock chan struct{}
	text bytes.Buffer
	more chan struct{}
}

func newOutput() *output {
	return &output{lock: make(chan struct{}, 1), more: make(chan struct{}, 1)}
}

// Write appends, for the command.
func (o *output) Write(p []byte) (int, error) {
	o.lock <- struct{}{}
	o.text.Write(p)
	<-o.lock
	select {
	case o.more <- struct{}{}:
	default:
	}
	return len(p), nil
}

// String is all that was written so far.
func (o *output) String() string {
	o.lock <- struct{}{}
	defer func() { <-o.lock }()
	return o.text.String()
}

// drop takes a word out again.
func (o *output) drop(word string) {
	o.lock <- struct{}{}
	defer func() { <-o.lock }()
	rest := bytes.Replace(o.text.Bytes(), []byte(word), nil, 1)
	o.text = *bytes.NewBuffer(bytes.Clone(rest))
}

// until waits for the word, for at most 20 seconds.
func (o *output) until(t *testing.T, word string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	for !strings.Contains(o.String(), word) {
		select {
		case <-o.more:
		case <-ctx.Done():
			t.Fatalf("%q was not written; so far: %s", word, o.String())
		}
	}
}

// eventually fails the test unless the condition holds within the limit.
func eventually(t *testing.T, limit time.Duration, what string, holds func() bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for !holds() {
		select {
		case <-tick.C:
		case <-ctx.Done():
			t.Fatalf("within %s it did not come to be that %s", limit, what)
		}
	}
}

// pipe returns the two ends of a pipe, closed at the end of the test.
func pipe(t *testing.T) (reader, writer *os.File) {
	t.Helper()
	reader, writer, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = reader.Close(); _ = writer.Close() })
	return reader, writer
}

// owner is the user id that a file has on disk.
func owner(t *testing.T, path string) int {
	t.Helper()
	var s unix.Stat_t
	if err := unix.Lstat(path, &s); err != nil {
		t.Fatalf("reading the owner of %s: %v", path, err)
	}
	return int(s.Uid)
}
