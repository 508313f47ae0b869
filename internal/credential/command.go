package credential

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"syscall"
	"time"

	"github.com/fractalboxdev/sbx/internal/secret"
)

// CommandTime bounds how long a command may take.
const CommandTime = 10 * time.Second

// Errors of commands. What a command says on stderr is not shown: it may be the secret.
var (
	ErrTime   = fmt.Errorf("the command took longer than %s", CommandTime)
	ErrOutput = fmt.Errorf("the command printed more than %d bytes", secret.MaxLength)
)

// command returns what a program prints. It runs in / with a fixed environment,
// by absolute path, without input: nothing that a project or its files say
// reaches it.
func (r Reader) command(ctx context.Context, argv []string) (string, error) {
	program, err := r.program(argv[0])
	if err != nil {
		return "", err
	}
	ctx, cancel := context.WithTimeoutCause(ctx, CommandTime, ErrTime)
	defer cancel()
	out := &bounded{stop: cancel}
	cmd := exec.CommandContext(ctx, program, argv[1:]...) //nolint:gosec // an argv of a reviewed profile
	cmd.Args[0] = argv[0]
	cmd.Dir, cmd.Env, cmd.Stdout = "/", r.commandEnv(), out
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = time.Second // for what escaped the group and holds the pipe
	err = cmd.Run()
	switch {
	case out.over:
		return "", ErrOutput
	case errors.Is(context.Cause(ctx), ErrTime):
		return "", ErrTime
	case err != nil:
		return "", fmt.Errorf("running %s: %w", argv[0], err)
	}
	return string(out.text), nil
}

// program checks who could have written the program and returns where it really is.
func (r Reader) program(name string) (string, error) {
	f, err := r.open(name)
	if err != nil {
		return "", err
	}
	if err := f.Close(); err != nil {
		return "", fmt.Errorf("closing %s: %w", name, err)
	}
	return r.resolve(name)
}

// commandEnv is all that a command knows.
func (r Reader) commandEnv() []string {
	env := []string{"PATH=/usr/local/bin:/usr/bin:/bin", "LANG=C.UTF-8", "SHELL=/bin/sh", "USER=" + strconv.Itoa(os.Geteuid())}
	if r.Home != "" {
		env = append(env, "HOME="+r.Home)
	}
	return env
}

// bounded keeps the beginning of what is written and stops the writer beyond it.
type bounded struct {
	text []byte
	over bool
	stop func()
}

// Write keeps p, or gives up.
func (b *bounded) Write(p []byte) (int, error) {
	if len(b.text)+len(p) > secret.MaxLength {
		b.over = true
		b.stop()
		return 0, ErrOutput
	}
	b.text = append(b.text, p...)
	return len(p), nil
}
