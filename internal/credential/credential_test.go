package credential

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/fractalboxdev/sbx/internal/grant"
	"github.com/fractalboxdev/sbx/internal/secret"
)

// private makes a directory that only the caller can write, as TempDir's parents
// are sticky or the caller's.
func private(t *testing.T) string {
	t.Helper()
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	return dir
}

func write(t *testing.T, name, text string, mode fs.FileMode) string {
	t.Helper()
	if err := errors.Join(os.WriteFile(name, []byte(text), 0o600), os.Chmod(name, mode)); err != nil {
		t.Fatal(err)
	}
	return name
}

func read(t *testing.T, r Reader, c grant.Credential) (string, error) {
	t.Helper()
	c.Name = "x-p/c"
	v, err := r.Read(t.Context(), c)
	if e, ok := errors.AsType[*Error](err); err != nil && (!ok || e.Secret != c.SecretName()) {
		t.Errorf("%v is no *Error of %s", err, c.SecretName())
	}
	return v.Reveal(), err
}

func TestVariable(t *testing.T) {
	r := Reader{Env: []string{"A=first", "TOKEN=hunter22", "EMPTY=", "A=second", "LINE=hunter22\n"}}
	for name, want := range map[string]string{"TOKEN": "hunter22", "A": "second", "EMPTY": "", "TOKE": "", "MISSING": ""} {
		if got, err := read(t, r, grant.Credential{Env: name}); got != want || err != nil {
			t.Errorf("%s: %q %v", name, got, err)
		}
	}
	if got, err := read(t, r, grant.Credential{Env: "LINE"}); !errors.Is(err, secret.ErrNewline) || got != "" || strings.Contains(err.Error(), "hunter22") {
		t.Errorf("%q %v", got, err)
	}
}

func TestFile(t *testing.T) {
	home := private(t)
	r := Reader{Home: home, Forbidden: []string{filepath.Join(home, "project")}}
	for _, dir := range []string{"project", "open", "own"} {
		if err := os.Mkdir(filepath.Join(home, dir), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	good := write(t, filepath.Join(home, "own/token"), "hunter22", 0o600)
	write(t, filepath.Join(home, "empty"), "", 0o600)
	write(t, filepath.Join(home, "newline"), "hunter22\n", 0o600)
	write(t, filepath.Join(home, "wide"), "hunter22", 0o666)
	write(t, filepath.Join(home, "project/token"), "hunter22", 0o600)
	write(t, filepath.Join(home, "open/token"), "hunter22", 0o600)
	write(t, filepath.Join(home, "large"), strings.Repeat("x", secret.MaxLength+1), 0o600)
	links := map[string]string{"link": good, "trap": filepath.Join(home, "project/token"), "loop": "loop", "dots": "own/../own/token"}
	for name, target := range links {
		if err := os.Symlink(target, filepath.Join(home, name)); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Chmod(filepath.Join(home, "open"), 0o777); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{
		good: "hunter22", "~/own/token": "hunter22", "~/link": "hunter22", "~/dots": "hunter22", "~/empty": "", "~/missing/x": "",
	} {
		if got, err := read(t, r, grant.Credential{File: name}); got != want || err != nil {
			t.Errorf("%s: %q %v", name, got, err)
		}
	}
	for name, want := range map[string]error{
		"~/newline": secret.ErrNewline, "~/wide": ErrUntrusted, "~/project/token": ErrUntrusted, "~/trap": ErrUntrusted,
		"~/open/token": ErrUntrusted, "~/loop": ErrUntrusted, "~/own": ErrUntrusted, "~/large": secret.ErrLong,
	} {
		if got, err := read(t, r, grant.Credential{File: name}); !errors.Is(err, want) || got != "" {
			t.Errorf("%s: %q %v, want %v", name, got, err, want)
		}
	}
	if _, err := read(t, Reader{}, grant.Credential{File: "~/x"}); err == nil {
		t.Error("~ without a home directory")
	}
}

// A command has a fixed environment and directory and nothing to read.
func TestCommand(t *testing.T) {
	t.Setenv("LEAK", "hunter22")
	home := private(t)
	r := Reader{Env: []string{"LEAK=hunter22"}, Home: home}
	script := write(t, filepath.Join(home, "helper"), "#!/bin/sh\nprintf '%s' \"$PWD|$HOME|$LEAK|$PATH|$#|$2|$(cat)\"\n", 0o700)
	got, err := read(t, r, grant.Credential{Command: grant.NewArgv(script, "a", "b c")})
	if want := "/|" + home + "||/usr/local/bin:/usr/bin:/bin|2|b c|"; err != nil || got != want {
		t.Errorf("%q %v, want %q", got, err, want)
	}
	if got, err := read(t, r, grant.Credential{Command: grant.NewArgv("/bin/sh", "-c", "exit 0")}); got != "" || err != nil {
		t.Errorf("%q %v", got, err)
	}
	for script, want := range map[string]error{
		"echo hunter22":                       secret.ErrNewline,
		"head -c 100000 /dev/zero":            ErrOutput,
		"cat /dev/zero":                       ErrOutput,
		"printf hunter22 >&2; exit 3":         nil,
		"printf hunter22; kill -9 $$":         nil,
		"printf hunter22; exec /none/such":    nil,
		"printf 'hun\\tter22'":                secret.ErrControl,
		"printf hunter22 & exec sleep 0.1; x": nil,
	} {
		got, err := read(t, r, grant.Credential{Command: grant.NewArgv("/bin/sh", "-c", script)})
		if strings.HasSuffix(script, "; x") {
			if err != nil || got != "hunter22" {
				t.Errorf("%s: %q %v", script, got, err)
			}
			continue
		}
		if err == nil || want != nil && !errors.Is(err, want) || got != "" || strings.Contains(err.Error(), "hunter22") {
			t.Errorf("%s: %q %v", script, got, err)
		}
	}
}

// A program that others, or a sandbox, could have written is not run.
func TestCommandThatOthersCanWriteIsNotRun(t *testing.T) {
	home := private(t)
	r := Reader{Home: home, Forbidden: []string{filepath.Join(home, "project")}}
	if err := os.Mkdir(filepath.Join(home, "project"), 0o700); err != nil {
		t.Fatal(err)
	}
	mark := filepath.Join(home, "ran")
	script := "#!/bin/sh\ntouch " + mark + "\nprintf hunter22\n"
	for _, name := range []string{
		write(t, filepath.Join(home, "wide"), script, 0o777), write(t, filepath.Join(home, "project/helper"), script, 0o700), filepath.Join(home, "missing"),
	} {
		if got, err := read(t, r, grant.Credential{Command: grant.NewArgv(name)}); err == nil || got != "" {
			t.Errorf("%s: %q", name, got)
		}
	}
	if _, err := os.Stat(mark); err == nil {
		t.Error("a program that others can write was run")
	}
}

func TestCommandThatHangsIsKilledWithItsChildren(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	fifo := filepath.Join(private(t), "fifo")
	if err := syscall.Mkfifo(fifo, 0o600); err != nil {
		t.Fatal(err)
	}
	argv := grant.NewArgv("/bin/sh", "-c", "sleep 1000 & echo $! > "+fifo+"; wait")
	ended := make(chan error, 1)
	go func() {
		_, err := Reader{Home: "/"}.Read(ctx, grant.Credential{Name: "x/c", Command: argv})
		ended <- err
	}()
	text, err := os.ReadFile(fifo) // waits until the child is there
	if err != nil {
		t.Fatal(err)
	}
	cancel()
	if err := <-ended; err == nil {
		t.Error("a command that hangs gave a secret")
	}
	for deadline := time.Now().Add(5 * time.Second); time.Now().Before(deadline); runtime.Gosched() {
		stat, err := os.ReadFile("/proc/" + strings.TrimSpace(string(text)) + "/stat")
		if err != nil || strings.Contains(string(stat), ") Z ") {
			return
		}
	}
	t.Error("the command's child lives on")
}
