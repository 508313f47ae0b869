package cli

import (
	"context"
	"os"
	"path/filepath"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"
)

func TestMain(m *testing.M) {
	testscript.Main(m, map[string]func(){
		"sbx": func() {
			build := Build{Version: "1.2.3", Commit: "abc"}
			os.Exit(Main(context.Background(), build, os.Args[1:], os.Environ(), os.Stdin, os.Stdout, os.Stderr))
		},
	})
}

// TestScripts runs the real main from testdata/script, with a home, a
// configuration and a state directory of its own.
func TestScripts(t *testing.T) {
	testscript.Run(t, testscript.Params{
		Dir:                 "testdata/script",
		RequireExplicitExec: true,
		RequireUniqueNames:  true,
		Setup: func(env *testscript.Env) error {
			env.Setenv("HOME", filepath.Join(env.WorkDir, "home"))
			env.Setenv("XDG_CONFIG_HOME", filepath.Join(env.WorkDir, "conf"))
			env.Setenv("XDG_STATE_HOME", filepath.Join(env.WorkDir, "state"))
			env.Setenv("ESC", "\x1b")
			return os.Mkdir(filepath.Join(env.WorkDir, "home"), 0o700)
		},
		Cmds: map[string]func(*testscript.TestScript, bool, []string){"status": status},
	})
}

// status runs sbx and demands an exit status: status CODE ARGS...
func status(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 2 {
		ts.Fatalf("usage: status CODE ARGS...")
	}
	err := ts.Exec("sbx", args[1:]...)
	got := "0"
	if err != nil {
		got = err.Error()
	}
	want := "exit status " + args[0]
	if args[0] == "0" {
		want = "0"
	}
	if got != want {
		ts.Fatalf("sbx %q: %s, want %s", args[1:], got, want)
	}
}
