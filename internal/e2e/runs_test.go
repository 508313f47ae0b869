package e2e

import (
	"bytes"
	"encoding/json"
	"io"
	"os"
	"path/filepath"
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

// What the command makes does not get its receipt, or others', out of sight.
func TestReceiptsStayReadable(t *testing.T) {
	lab := sbxtest.NewLab(t)
	everyone(t, func(t *testing.T, who sbxtest.User) {
		got := run(t, lab, who, "--", "python3", "-c", `
import os
for i in range(16):
    os.mkdir("d" * 200); os.chdir("d" * 200)
for i in range(3000):
    name = "%04d" % i + "e" * 180
    os.mkdir(name); open(name + "/.envrc", "w").write("x")`)
		succeeded(t, outside(t, lab, who, "rm -r d*"))
		succeeded(t, got)
		file := filepath.Join(got.RunDir, "receipt.json")
		info, err := os.Stat(file)
		must(t, err)
		said, _ := got.Receipt(t)["set_aside"].([]any)
		left, _ := got.Receipt(t)["set_aside_left"].(float64)
		consumer, _ := got.Receipt(t)["consumer"].(string)
		if info.Size() > 1<<20 || len(said) == 0 || len(said)+int(left) != 3000 {
			t.Errorf("the receipt has %d bytes, %d paths, and %v besides", info.Size(), len(said), left)
		}
		if len(got.Stderr) > 4000 {
			t.Errorf("stderr has %d bytes", len(got.Stderr))
		}
		says(t, got.Stderr, "and 2992 more moved to ")
		printed(t, outside(t, lab, who, "tar -tf "+got.RunDir+"/set-aside.tar | grep -c /.envrc"), "3000\n")

		must(t, os.Truncate(file, 17<<20))
		listed := lab.Run(t, who, "sbx", "runs", "list")
		succeeded(t, listed)
		says(t, listed.Stdout, "unreadable", "python3")
		says(t, listed.Stderr, "too large")
		for _, flags := range [][]string{nil, {"--consumer", consumer}} {
			var list struct {
				Runs []struct {
					Run, State, Problem string
					Exit                int
				}
			}
			answer := lab.Run(t, who, append([]string{"sbx", "runs", "list", "--json"}, flags...)...)
			if err := json.Unmarshal([]byte(answer.Stdout), &list); err != nil || len(list.Runs) != 1 || list.Runs[0].State != "unreadable" || list.Runs[0].Exit != -1 {
				t.Errorf("%v: %v: %s", flags, err, answer.Stdout)
			}
		}
	})
}
