package e2e

import (
	"bytes"
	"encoding/json"
	"io"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	"github.com/fractalboxdev/sbx/internal/event"
	"github.com/fractalboxdev/sbx/internal/sbxtest"
)

// receiptOf returns the receipt that --outcome wrote.
func keyed(t *testing.T, lab *sbxtest.Lab, who sbxtest.User, exit int, args ...string) (sbxtest.Result, event.Receipt) {
	t.Helper()
	shell(t, lab, who, "rm -f outcome.json")
	got := run(t, lab, who, append([]string{"--outcome", "outcome.json"}, args...)...)
	if got.Exit != exit {
		t.Fatalf("%q: exit status %d, want %d\nstdout: %s\nstderr: %s", args, got.Exit, exit, got.Stdout, got.Stderr)
	}
	var outcome struct{ Receipt event.Receipt }
	text := lab.Run(t, who, "cat", "outcome.json")
	if err := json.Unmarshal([]byte(text.Stdout), &outcome); err != nil {
		t.Fatalf("reading the outcome: %v: %s", err, text.Stdout)
	}
	return got, outcome.Receipt
}

func count(t *testing.T, lab *sbxtest.Lab, who sbxtest.User) string {
	t.Helper()
	return strings.TrimSpace(lab.Run(t, who, "sh", "-c", "cat ran 2>/dev/null | wc -l").Stdout)
}

func TestACallUnderAKeyRunsOnce(t *testing.T) {
	lab := sbxtest.NewLab(t)
	everyone(t, func(t *testing.T, who sbxtest.User) {
		// What the call makes in the project does not make it another one.
		script := []string{"--key", "k1", "--", "sh", "-c", "mkdir -p .vscode; git init -q made; echo out; echo err >&2; echo x >> ran; echo more; exit 3"}
		first, a := keyed(t, lab, who, 3, script...)
		again, b := keyed(t, lab, who, 3, script...)
		if again.Stdout != first.Stdout || !strings.Contains(again.Stderr, "err\n") || again.Stdout != "out\nmore\n" {
			t.Errorf("answered with %q and %q", again.Stdout, again.Stderr)
		}
		if a.Deduped || !b.Deduped || a.Run != b.Run || count(t, lab, who) != "1" {
			t.Errorf("deduped %v and %v, runs %s and %s, ran %s times", a.Deduped, b.Deduped, a.Run, b.Run, count(t, lab, who))
		}
		for name, other := range map[string][]string{
			"another command":   {"--key", "k1", "--", "sh", "-c", "echo x >> ran"},
			"another timeout":   append([]string{"--timeout", "5m"}, script...),
			"another limit":     append([]string{"--memory", "1GiB"}, script...),
			"another variable":  append([]string{"--env", "LANG=C"}, script...),
			"another directory": append([]string{"-C", ".git/.."}, append([]string{"--ro"}, script...)...),
			"another grant":     append([]string{"--profile", "rust-install"}, script...),
			"another position":  append([]string{"--position", "report"}, script...),
			"some input":        append([]string{"--stdin", "/etc/hostname"}, script...),
		} {
			_, r := keyed(t, lab, who, 125, other...)
			if r.Result.Refusal == nil || r.Result.Refusal.Kind != event.RefusedRecipe || r.Result.Refusal.Code != "payload-conflict" {
				t.Errorf("%s: %+v", name, r.Result.Refusal)
			}
		}
		if n := count(t, lab, who); n != "1" {
			t.Errorf("it ran %s times", n)
		}
		// Another consumer's key of the same name is another one.
		if _, r := keyed(t, lab, who, 3, append([]string{"--consumer", "other"}, script...)...); r.Deduped || count(t, lab, who) != "2" {
			t.Errorf("another consumer was answered: %+v", r.Idempotency)
		}
	})
}

func TestVector29_AnotherConsumerSeesNothingOfAKey(t *testing.T) {
	lab := sbxtest.NewLab(t)
	everyone(t, func(t *testing.T, who sbxtest.User) {
		succeeded(t, run(t, lab, who, "--key", "mine", "--consumer", "a", "--", "true"))
		if got := lab.Run(t, who, "sbx", "keys", "list", "--consumer", "a"); !strings.Contains(got.Stdout, "mine") {
			t.Errorf("its own: %s", got.Stdout)
		}
		if got := lab.Run(t, who, "sbx", "keys", "list", "--consumer", "b"); strings.Contains(got.Stdout, "mine") {
			t.Errorf("another's: %s", got.Stdout)
		}
		refused(t, lab.Run(t, who, "sbx", "keys", "forget", "mine", "--consumer", "b"), "no key")
	})
}

func TestRefusalsAndTimeoutsUnderAKey(t *testing.T) {
	lab := sbxtest.NewLab(t)
	everyone(t, func(t *testing.T, who sbxtest.User) {
		keyed(t, lab, who, 127, "--key", "n", "--", "nothing-by-that-name")
		_, r := keyed(t, lab, who, 0, "--key", "n", "--", "true")
		if r.Deduped {
			t.Error("a refusal was kept")
		}
		slow := []string{"--key", "t", "--timeout", "300ms", "--", "sh", "-c", "echo began; echo x >> ran; exec sleep 1000"}
		keyed(t, lab, who, 124, slow...)
		got, r := keyed(t, lab, who, 124, slow...)
		if !r.Deduped || !r.Result.TimedOut || got.Stdout != "began\n" {
			t.Errorf("%+v %q", r.Result, got.Stdout)
		}
		refused(t, run(t, lab, who, "--key", "a b", "--", "true"), "no idempotency key")
		refused(t, run(t, lab, who, "--stdin", "/dev/null", "--", "true"), "--stdin needs --key")
	})
}

// TestTwoTerminalsFollowOneRun: the second call begins while the first one runs, and
// both see all of it.
func TestTwoTerminalsFollowOneRun(t *testing.T) {
	lab := sbxtest.NewLab(t)
	everyone(t, func(t *testing.T, who sbxtest.User) {
		// The command goes on when its directory says so.
		const script = "echo begun; echo x >> ran; until [ -e go ]; do sleep 0.02; done; rm go; echo gone on >&2; echo done"
		call := []string{"sbx", "exec", "--key", "two", "--", "sh", "-c", script}
		var outputs [2]struct{ stdout, stderr bytes.Buffer }
		var calls [2]*exec.Cmd
		for i := range calls {
			calls[i] = lab.Command(t, who, append([]string{}, call...)...)
			r, w := io.Pipe()
			calls[i].Stdout, calls[i].Stderr = io.MultiWriter(&outputs[i].stdout, w), &outputs[i].stderr
			seen := make(chan struct{})
			go func() {
				b := make([]byte, 6)
				_, _ = io.ReadFull(r, b) // "begun\n"
				close(seen)
				_, _ = io.Copy(io.Discard, r)
			}()
			lab.Start(t, calls[i])
			<-seen
		}
		succeeded(t, lab.Run(t, who, "touch", "go"))
		for i, c := range calls {
			exit := sbxtest.Wait(t, c)
			if exit != 0 || outputs[i].stdout.String() != "begun\ndone\n" || !strings.Contains(outputs[i].stderr.String(), "gone on\n") {
				t.Errorf("call %d: exit status %d, %q, %q", i, exit, outputs[i].stdout.String(), outputs[i].stderr.String())
			}
		}
		says(t, outputs[1].stderr.String(), "following it")
		if n := count(t, lab, who); n != "1" {
			t.Errorf("it ran %s times", n)
		}
	})
}

func TestAKilledCallRunsAgain(t *testing.T) {
	lab := sbxtest.NewLab(t)
	everyone(t, func(t *testing.T, who sbxtest.User) {
		const script = "echo x >> ran; echo begun; [ -e again ] || exec sleep 1000"
		call := []string{"sbx", "exec", "--key", "killed", "--", "sh", "-c", script}
		cmd := lab.Command(t, who, append([]string{}, call...)...)
		r, w := io.Pipe()
		cmd.Stdout = w
		lab.Start(t, cmd)
		if _, err := io.ReadFull(r, make([]byte, 6)); err != nil {
			t.Fatal(err)
		}
		go func() { _, _ = io.Copy(io.Discard, r) }()
		if err := cmd.Process.Signal(syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
		sbxtest.Wait(t, cmd)
		succeeded(t, lab.Run(t, who, "touch", "again"))
		printed(t, lab.Run(t, who, call...), "begun\n")
		if n := count(t, lab, who); n != "2" {
			t.Errorf("it ran %s times", n)
		}
	})
}
