package e2e

import (
	"bytes"
	"encoding/json"
	"io"
	"strings"
	"testing"

	"github.com/fractalboxdev/sbx/internal/sbxtest"
)

func TestRunsAreListedShownAndCollected(t *testing.T) {
	lab := sbxtest.NewLab(t)
	everyone(t, func(t *testing.T, who sbxtest.User) {
		shell(t, lab, who, "exec 2>&1; echo first; echo more >&2; exit 4") // one stream: of two the order is not certain
		run(t, lab, who, "--consumer", "other", "--key", "k", "--", "sh", "-c", "echo second; getent hosts evil.test")
		var list struct {
			Runs []struct {
				Run, Consumer, State string
				Exit                 int
			}
		}
		read := func(want int, flags ...string) {
			t.Helper()
			list.Runs = nil
			got := lab.Run(t, who, append([]string{"sbx", "runs", "list", "--json"}, flags...)...)
			if err := json.Unmarshal([]byte(got.Stdout), &list); err != nil || len(list.Runs) != want {
				t.Fatalf("%v: %d runs, %v: %s", flags, len(list.Runs), err, got.Stdout)
			}
		}
		read(1, "--consumer", "other")
		read(2)
		first := list.Runs[1]
		if first.State != "finished" || first.Exit != 4 {
			t.Errorf("%+v", first)
		}
		printed(t, lab.Run(t, who, "sbx", "runs", "logs", first.Run), "first\nmore\n")
		says(t, lab.Run(t, who, "sbx", "runs", "show", first.Run).Stdout, "exit", "4", "revoke: listeners closed", "verified")
		says(t, lab.Run(t, who, "sbx", "runs", "show", "--key", "k", "--consumer", "other").Stdout, "second", "evil.test", "name-ungranted")
		refused(t, lab.Run(t, who, "sbx", "runs", "show", "--key", "k"), "no key")
		refused(t, lab.Run(t, who, "sbx", "runs", "show", "nothing"), "there is no run")
		refused(t, lab.Run(t, who, "sbx", "runs", "show", "2"), "runs begin with")

		says(t, lab.Run(t, who, "sbx", "runs", "gc").Stdout, "removed the records of 0 runs")
		succeeded(t, lab.Run(t, who, "sbx", "runs", "gc", "--older", "0s", "--keep", "0"))
		// The key can still be answered.
		says(t, lab.Run(t, who, "sbx", "runs", "show", "--key", "k", "--consumer", "other").Stdout, "second")
	})
}

func TestLogsFollowARunToItsEnd(t *testing.T) {
	lab := sbxtest.NewLab(t)
	everyone(t, func(t *testing.T, who sbxtest.User) {
		cmd := lab.Command(t, who, "sbx", "exec", "--", "sh", "-c", "echo begun; until [ -e go ]; do sleep 0.02; done; rm go; echo done")
		r, w := io.Pipe()
		cmd.Stdout = w
		lab.Start(t, cmd)
		if _, err := io.ReadFull(r, make([]byte, 6)); err != nil {
			t.Fatal(err)
		}
		go func() { _, _ = io.Copy(io.Discard, r) }()
		var list struct{ Runs []struct{ Run, State string } }
		if err := json.Unmarshal([]byte(lab.Run(t, who, "sbx", "runs", "list", "--json").Stdout), &list); err != nil || list.Runs[0].State != "running" {
			t.Fatalf("%v: %+v", err, list)
		}
		logs := lab.Command(t, who, "sbx", "runs", "logs", "-f", list.Runs[0].Run)
		var text bytes.Buffer
		lr, lw := io.Pipe()
		logs.Stdout = io.MultiWriter(&text, lw)
		lab.Start(t, logs)
		if _, err := io.ReadFull(lr, make([]byte, 6)); err != nil {
			t.Fatal(err)
		}
		go func() { _, _ = io.Copy(io.Discard, lr) }()
		succeeded(t, lab.Run(t, who, "touch", "go"))
		if exit := sbxtest.Wait(t, cmd); exit != 0 {
			t.Errorf("the run: %d", exit)
		}
		if exit := sbxtest.Wait(t, logs); exit != 0 || text.String() != "begun\ndone\n" {
			t.Errorf("the log: %d, %q", exit, text.String())
		}
		if strings.Contains(lab.Run(t, who, "sbx", "ps").Stdout, list.Runs[0].Run) {
			t.Error("it is still under way")
		}
	})
}
