// Package toolchain is the half of a preflight inside the sandbox: it finds the
// programs of the known toolchains there and has each make one request over TLS, in a
// directory of its own. It judges nothing: whether a request arrived is seen outside.
package toolchain

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Plan is what to try.
type Plan struct {
	Base  string `json:"base"`  // URL below which each toolchain asks for a path with its own name
	Avoid string `json:"avoid"` // programs below this directory are not started: it is the project's
	Look  bool   `json:"look"`  // start nothing, only look for programs
}

// Result is what became of one toolchain.
type Result struct {
	Name    string `json:"name"`
	Program string `json:"program"`         // path inside; "" for none found
	Asked   bool   `json:"asked"`           // it was started
	Said    string `json:"said"`            // the last line that it wrote
	Error   string `json:"error,omitempty"` // why it was not started, or how it ended
}

// limit is how long one toolchain may take. Some start a compiler or a virtual machine.
const limit = 30 * time.Second

// atOnce is how many run beside each other.
const atOnce = 4

// maxSaid bounds what is kept of what a program writes, in bytes.
const maxSaid = 200

// Main is the whole half as a command: the plan is JSON in text, the results JSON on w.
func Main(ctx context.Context, text string, w io.Writer) error {
	var p Plan
	if err := json.Unmarshal([]byte(text), &p); err != nil {
		return fmt.Errorf("reading the plan of a preflight: %w", err)
	}
	if err := json.NewEncoder(w).Encode(p.try(ctx)); err != nil {
		return fmt.Errorf("reporting to the preflight: %w", err)
	}
	return nil
}

func (p Plan) try(ctx context.Context) []Result {
	results := make([]Result, len(tools))
	var tasks sync.WaitGroup
	slots := make(chan struct{}, atOnce)
	for i, t := range tools {
		tasks.Go(func() {
			slots <- struct{}{}
			defer func() { <-slots }()
			results[i] = p.one(ctx, t)
		})
	}
	tasks.Wait()
	return results
}

func (p Plan) one(ctx context.Context, t tool) Result {
	r := Result{Name: t.name}
	if r.Program = find(os.Getenv("PATH"), t.programs); r.Program == "" || len(t.argv) == 0 || p.Look {
		return r
	}
	if p.Avoid != "" && below(r.Program, p.Avoid) {
		r.Error = "it lies in the working directory, which is not trusted"
		return r
	}
	dir, err := t.prepare()
	if err != nil {
		r.Error = err.Error()
		return r
	}
	defer os.RemoveAll(dir)
	r.Asked = true
	r.Said, err = t.run(ctx, r.Program, dir, p.Base+"/"+t.name)
	if err != nil {
		r.Error = err.Error()
	}
	return r
}

// find returns the first of the programs that a directory of the search path has. The
// current directory is never one of them.
func find(search string, programs []string) string {
	for _, name := range programs {
		for dir := range strings.SplitSeq(search, ":") {
			at := filepath.Join(dir, name)
			if !filepath.IsAbs(at) {
				continue
			}
			if info, err := os.Stat(at); err == nil && info.Mode().IsRegular() && unix.Access(at, unix.X_OK) == nil {
				return at
			}
		}
	}
	return ""
}

// below reports whether a program, or what a link of its name leads to, lies below dir.
func below(program, dir string) bool {
	real, err := filepath.EvalSymlinks(program)
	if err != nil {
		real = program
	}
	for _, path := range []string{program, real} {
		if rel, err := filepath.Rel(dir, path); err == nil && rel != ".." && !strings.HasPrefix(rel, "../") {
			return true
		}
	}
	return false
}

// prepare makes the directory in which the program runs.
func (t tool) prepare() (string, error) {
	dir, err := scratch("sbx-" + t.name + "-")
	if err != nil {
		return "", fmt.Errorf("making a directory for %s: %w", t.name, err)
	}
	for name, content := range t.files {
		at := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(at), 0o700); err != nil {
			return dir, fmt.Errorf("writing for %s: %w", t.name, err)
		}
		if err := os.WriteFile(at, []byte(content), 0o600); err != nil {
			return dir, fmt.Errorf("writing for %s: %w", t.name, err)
		}
	}
	return dir, nil
}

// scratch makes a directory where one can be made: the usual place is read-only where it
// is, or holds, the working directory.
func scratch(prefix string) (dir string, err error) {
	for _, parent := range []string{os.TempDir(), os.Getenv("HOME"), "/dev/shm"} {
		if dir, err = os.MkdirTemp(parent, prefix); err == nil {
			return dir, nil
		}
	}
	return "", err
}

func (t tool) run(ctx context.Context, program, dir, url string) (said string, err error) {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	argv, env := make([]string, len(t.argv)), os.Environ()
	fill := strings.NewReplacer("{url}", url, "{dir}", dir)
	for i, a := range t.argv {
		argv[i] = fill.Replace(a)
	}
	for _, kv := range t.env {
		env = append(env, fill.Replace(kv))
	}
	last := &tail{}
	cmd := exec.CommandContext(ctx, program, argv...) //nolint:gosec // inside the sandbox, to be tried
	cmd.Dir, cmd.Env, cmd.Stdout, cmd.Stderr = dir, env, last, last
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = time.Second // for what escaped the group and holds the pipe
	err = cmd.Run()
	if ctx.Err() != nil {
		err = fmt.Errorf("it took longer than %s", limit)
	}
	return last.line(), err
}

// tail keeps the end of what is written.
type tail struct{ text []byte }

// Write keeps the last bytes of p.
func (t *tail) Write(p []byte) (int, error) {
	t.text = append(t.text, p...)
	if over := len(t.text) - 4096; over > 0 {
		t.text = append(t.text[:0], t.text[over:]...)
	}
	return len(p), nil
}

// line is the last line that is not empty.
func (t *tail) line() string {
	lines := strings.FieldsFunc(string(t.text), func(r rune) bool { return r == '\n' || r == '\r' })
	for _, line := range slices.Backward(lines) {
		if text := strings.TrimSpace(line); text != "" {
			return text[:min(len(text), maxSaid)]
		}
	}
	return ""
}
