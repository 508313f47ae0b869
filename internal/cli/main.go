// Package cli is the command line: it parses, calls the packages below, and
// maps errors to exit codes in one place.
package cli

import (
	"context"
	"os"
	"strings"

	"github.com/fractalboxdev/sbx/internal/host"
	"github.com/fractalboxdev/sbx/internal/sandbox/stage"
	"github.com/fractalboxdev/sbx/internal/store"
	"github.com/fractalboxdev/sbx/internal/term"
)

// Build is what is known about this binary and process before any command runs.
type Build struct {
	Version, Commit string     // set by the linker
	Self            stage.Self // which half of a fencing sbx this process is
}

// Main runs one command line, without the program's name, and returns the exit
// status. Everything of the process that a command may use is a parameter.
func Main(ctx context.Context, build Build, args, env []string, stdin, stdout, stderr *os.File) int {
	if build.Version == "" {
		build.Version = "dev"
	}
	e := newEnvironment(build, env, stdin, stdout, stderr)
	root := newRootCommand(e, args)
	root.SetArgs(args)
	return e.exit(root.ExecuteContext(ctx))
}

// environment is what every command gets.
type environment struct {
	build  Build
	env    []string
	vars   map[string]string
	binary host.Binary // as it lay when sbx started
	stdin  *os.File
	stdout *os.File
	stderr *os.File
	out    *term.Printer // what was asked for
	say    *term.Printer // what sbx has to say

	// opened opens the store of the one state directory that this process uses.
	opened func() (*store.Store, error)

	// askDefault asks a client, inside a floor sandbox, for its built-in registry;
	// nil where that cannot be done.
	askDefault func(ctx context.Context, ecosystem string) ([]string, error)
}

func newEnvironment(build Build, env []string, stdin, stdout, stderr *os.File) *environment {
	e := &environment{build: build, env: env, binary: host.RunningBinary(), stdin: stdin, stdout: stdout, stderr: stderr}
	e.vars = make(map[string]string, len(env))
	for _, pair := range env {
		name, value, _ := strings.Cut(pair, "=")
		e.vars[name] = value
	}
	e.out = term.New(stdout, e.getenv)
	e.say = term.New(stderr, e.getenv)
	return e
}

func (e *environment) getenv(name string) string { return e.vars[name] }
