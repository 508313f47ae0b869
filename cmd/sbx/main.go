// Command sbx runs one command in a sandbox, behind a policing proxy.
package main

import (
	"context"
	"os"

	"github.com/fractalboxdev/sbx/internal/cli"
)

// version and commit are set by the linker.
var version, commit string

func main() {
	build := cli.Build{Version: version, Commit: commit}
	os.Exit(cli.Main(context.Background(), build, os.Args[1:], os.Environ(), os.Stdin, os.Stdout, os.Stderr))
}
