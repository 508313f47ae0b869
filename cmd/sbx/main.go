// Command sbx runs one command in a sandbox, behind a policing proxy.
package main

import (
	"context"
	"os"

	"github.com/fractalboxdev/sbx/internal/cli"
	"github.com/fractalboxdev/sbx/internal/fence"
	"github.com/fractalboxdev/sbx/internal/sandbox"
	"github.com/fractalboxdev/sbx/internal/sandbox/stage"
)

// version and commit are set by the linker.
var version, commit string

// libcontainer starts this binary again as its own init, before main.
func init() { sandbox.Reexec() }

func main() {
	self := stage.Current()
	if self.Role == stage.RoleRunner {
		os.Exit(fence.Runner(self))
	}
	build := cli.Build{Version: version, Commit: commit, Self: self}
	os.Exit(cli.Main(context.Background(), build, os.Args[1:], os.Environ(), os.Stdin, os.Stdout, os.Stderr))
}
