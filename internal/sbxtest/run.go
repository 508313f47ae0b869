package sbxtest

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/fractalboxdev/sbx/internal/event"
)

// Result is what a command left behind.
type Result struct {
	Stdout, Stderr string
	Exit           int    // 128+n for signal n
	RunDir         string // of the sbx run that it made; "" when there was none
}

// patience bounds a command. Whatever runs longer is killed, and its test fails.
const patience = 3 * time.Minute

// Run runs a command in the user's project and waits for it. A command called
// sbx is the release binary. Standard input is empty.
func (l *Lab) Run(t testing.TB, u User, argv ...string) Result {
	t.Helper()
	return l.RunCommand(t, u, l.Command(t, u, argv...))
}

// RunCommand is Run for a command that was made with [Lab.Command] and changed
// since: its environment, directory or standard input, say. Outputs that were
// not set are in the result.
func (l *Lab) RunCommand(t testing.TB, u User, cmd *exec.Cmd) Result {
	t.Helper()
	var stdout, stderr bytes.Buffer
	if cmd.Stdout == nil {
		cmd.Stdout = &stdout
	}
	if cmd.Stderr == nil {
		cmd.Stderr = &stderr
	}
	before := l.runs(t, u)
	l.Start(t, cmd)
	exit := Wait(t, cmd)
	return Result{Stdout: stdout.String(), Stderr: stderr.String(), Exit: exit, RunDir: newest(before, l.runs(t, u))}
}

// Command prepares a command in the user's project, with the environment of a
// plain login: PATH, HOME, USER, LOGNAME, SHELL, LANG and TERM. It is to be
// started with [Lab.Start], or within [Lab.Within] by other means (a pty, say).
// It is killed at the end of the test, or when the test was patient enough.
func (l *Lab) Command(t testing.TB, u User, argv ...string) *exec.Cmd {
	t.Helper()
	home := l.Home(u)
	a := l.accounts[u]
	if argv[0] == "sbx" {
		argv[0] = Binary(t)
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	t.Cleanup(cancel)
	var cmd *exec.Cmd
	l.Within(t, func() error { // looked up as a process of the lab sees it
		cmd = exec.CommandContext(ctx, argv[0], argv[1:]...)
		return nil
	})
	cmd.Dir = filepath.Join(home, "project")
	cmd.Env = []string{
		"PATH=" + commandPath(), "HOME=" + home, "USER=" + a.name, "LOGNAME=" + a.name,
		"SHELL=/bin/sh", "LANG=C.UTF-8", "TERM=dumb", "PWD=" + cmd.Dir,
	}
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: a.credential(), Pdeathsig: syscall.SIGKILL}
	cmd.WaitDelay = 10 * time.Second
	return cmd
}

// commandPath is the search path of commands: the system's, and the Go
// toolchain that runs the tests, where everybody may use it.
func commandPath() string {
	path := "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
	if goTool, err := exec.LookPath("go"); err == nil && !strings.HasPrefix(goTool, "/root/") {
		path = filepath.Dir(goTool) + ":" + path
	}
	return path
}

// Start starts a command in the lab's namespaces.
func (l *Lab) Start(t testing.TB, cmd *exec.Cmd) {
	t.Helper()
	l.Within(t, cmd.Start)
}

// Within does work on the lab's own thread, whose namespaces are the lab's.
// Goroutines that it starts are outside.
func (l *Lab) Within(t testing.TB, work func() error) {
	t.Helper()
	if err := l.thread.run(work); err != nil {
		t.Fatalf("in the lab: %v", err)
	}
}

// Wait waits for a started command and returns its exit status, 128+n for
// signal n.
func Wait(t testing.TB, cmd *exec.Cmd) int {
	t.Helper()
	err := cmd.Wait()
	exit, exited := errors.AsType[*exec.ExitError](err)
	if err != nil && !exited {
		t.Fatalf("waiting for %s: %v", strings.Join(cmd.Args, " "), err)
	}
	if err == nil {
		return 0
	}
	if status, ok := exit.Sys().(syscall.WaitStatus); ok && status.Signaled() {
		return 128 + int(status.Signal())
	}
	return exit.ExitCode()
}

// runs is the directories of all sbx runs of the user, by the time of their
// receipts or, without one, of their making.
func (l *Lab) runs(t testing.TB, u User) map[string]bool {
	t.Helper()
	found := map[string]bool{}
	err := filepath.WalkDir(l.StateDir(u), func(path string, _ fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) {
			return nil // nothing ran yet, or something was just swept
		}
		if name := filepath.Base(path); name == "receipt.json" || name == "requests.jsonl" {
			found[filepath.Dir(path)] = true
		}
		return err
	})
	if err != nil {
		t.Fatalf("listing the runs of %s: %v", u, err)
	}
	return found
}

// StateDir is where the test finds what sbx keeps of the user's runs. For root
// that is what a process of the lab sees in /var/lib/sbx.
func (l *Lab) StateDir(u User) string {
	if u == AsRoot {
		return filepath.Join(l.dir, "state")
	}
	return filepath.Join(l.Home(u), ".local/state/sbx")
}

// newest is the run directory that is in now and was not before. Run ids sort
// by time.
func newest(before, now map[string]bool) string {
	last := ""
	for dir := range now {
		if !before[dir] && dir > last {
			last = dir
		}
	}
	return last
}

// Receipt is the run's receipt.json, decoded without its types so that a test
// sees what a reader of the file sees.
func (r Result) Receipt(t testing.TB) map[string]any {
	t.Helper()
	var receipt map[string]any
	if err := json.Unmarshal(r.File(t, "receipt.json"), &receipt); err != nil {
		t.Fatalf("reading the receipt: %v", err)
	}
	return receipt
}

// Denials is the run's denials.jsonl.
func (r Result) Denials(t testing.TB) []event.Denial {
	t.Helper()
	return lines[event.Denial](t, r.File(t, "denials.jsonl"))
}

// Requests is the run's requests.jsonl, without the completions.
func (r Result) Requests(t testing.TB) []event.Request {
	t.Helper()
	rows := lines[struct {
		event.Request
		Event string `json:"event"`
	}](t, r.File(t, "requests.jsonl"))
	var requests []event.Request
	for _, row := range rows {
		if row.Event == "" {
			requests = append(requests, row.Request)
		}
	}
	return requests
}

// File reads a file of the run's directory.
func (r Result) File(t testing.TB, name string) []byte {
	t.Helper()
	if r.RunDir == "" {
		t.Fatalf("the command made no run; exit status %d, stderr:\n%s", r.Exit, r.Stderr)
	}
	data, err := os.ReadFile(filepath.Join(r.RunDir, name))
	if err != nil {
		t.Fatalf("reading the run: %v", err)
	}
	return data
}

func lines[Row any](t testing.TB, text []byte) []Row {
	t.Helper()
	var rows []Row
	for line := range bytes.Lines(text) {
		var row Row
		if err := json.Unmarshal(line, &row); err != nil {
			t.Fatalf("reading row %d: %v in %s", len(rows)+1, err, line)
		}
		rows = append(rows, row)
	}
	return rows
}
