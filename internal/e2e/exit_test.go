package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/fractalboxdev/sbx/internal/sbxtest"
)

// The command's own status is sbx's, however the command ends.
func TestCase16_StatusIsTheCommands(t *testing.T) {
	lab := sbxtest.NewLab(t)
	everyone(t, func(t *testing.T, who sbxtest.User) {
		lab.Write(who, "script", "#!/bin/sh\nexit 9\n")
		lab.Write(who, "nointerpreter", "#!/nonexistent/sh\nexit 9\n")
		data := lab.Write(who, "data", "no program\n")
		if err := os.Chmod(data, 0o644); err != nil {
			t.Fatal(err)
		}
		for script, want := range map[string]int{
			"exit 0": 0, "exit 1": 1, "exit 42": 42, "exit 255": 255,
			"kill -TERM $$; echo alive": 143, "kill -KILL $$; echo alive": 137, "kill -SEGV $$; echo alive": 139,
			"kill -INT $$; echo alive": 130, "kill -HUP $$; echo alive": 129, "kill -QUIT $$; echo alive": 131,
			"kill -ABRT $$; echo alive": 134, "kill -PIPE $$; echo alive": 141,
		} {
			got := run(t, lab, who, "--", "sh", "-c", script)
			if got.Exit != want || got.Stdout != "" || got.Stderr != "" {
				t.Errorf("%q: exit status %d, want %d; stdout %q, stderr %q", script, got.Exit, want, got.Stdout, got.Stderr)
			}
		}
		for command, want := range map[string]int{
			"./script": 9, "no-such-command": 127, "./no-such-file": 127, "/nonexistent/x": 127, "./nointerpreter": 127, "./data": 126, "/etc": 126,
		} {
			got := run(t, lab, who, "--", command)
			if got.Exit != want {
				t.Errorf("%s: exit status %d, want %d; stderr %q", command, got.Exit, want, got.Stderr)
			}
			if want > 100 && !strings.Contains(got.Stderr, command) {
				t.Errorf("%s is not named: %q", command, got.Stderr)
			}
		}
	})
}

// Time that runs out is status 124, also for a command that will not go.
func TestTimeoutIsStatus124(t *testing.T) {
	lab := sbxtest.NewLab(t)
	everyone(t, func(t *testing.T, who sbxtest.User) {
		for script, flags := range map[string][]string{
			"sleep 100": {"--timeout", "300ms"},
			"trap '' TERM; while :; do sleep 1; done": {"--timeout", "300ms", "--grace", "200ms"},
			"trap 'exit 0' TERM; sleep 100 & wait":    {"--timeout", "300ms"},
			"setsid sleep 100 & sleep 100":            {"--timeout", "300ms"},
		} {
			argv := append(append([]string{"sbx", "exec"}, flags...), "--", "bash", "-c", script)
			got := within(t, 15*time.Second, lab, who, lab.Command(t, who, argv...))
			if got.Exit != 124 {
				t.Errorf("%q: exit status %d, want 124; stderr %q", script, got.Exit, got.Stderr)
			}
			says(t, got.Stderr, "300ms")
			if result := got.Receipt(t)["result"].(map[string]any); result["timed_out"] != true {
				t.Errorf("%q: the receipt's result is %v, want timed_out", script, result)
			}
			nobodyRuns(t)
		}
		succeeded(t, run(t, lab, who, "--timeout", "60s", "--", "true"))
	})
}

// refusedFlags are command lines that sbx refuses, with words of its reason.
var refusedFlags = []struct {
	flags string
	words []string
}{
	{"--profile js-instal", []string{"js-instal", "js-install"}},
	{"--profile public-repo-read", []string{"repo"}},
	{"--profile public-repo-read --input repo=a/b/c", []string{"repo", "a/b/c"}},
	{"--profile public-repo-read --input repp=a/b", []string{"repp", "repo"}},
	{"--profile js-install --input repo=a/b", []string{"repo"}},
	{"--profile browser-fetch --input target=*.x.dev", []string{"target"}},
	{"--profile browser-fetch --input target=https://x.dev", []string{"target"}},
	{"--input target=x.dev", []string{"target"}},
	{"--tiemout 3s", []string{"tiemout"}},
	{"--timeout soon", []string{"timeout", "soon"}},
	{"-C /nonexistent", []string{"/nonexistent"}},
	{"-C /", []string{"/", "--ro"}},
}

// A refusal says what is wrong, has a status of its own, and nothing runs.
func TestVector25_RefusalsAreStatus125(t *testing.T) {
	lab := sbxtest.NewLab(t)
	lab.Configure(npmRegistry)
	everyone(t, func(t *testing.T, who sbxtest.User) {
		for _, c := range refusedFlags {
			t.Run(c.flags, func(t *testing.T) {
				got := run(t, lab, who, append(strings.Fields(c.flags), "--", "touch", lab.Project(who)+"/ran")...)
				refused(t, got, append(c.words, "sbx: ")...)
				nothingRan(t, lab, who)
			})
		}
		refused(t, run(t, lab, who, "--profile", "browser-fetch", "--input", "target= x.dev", "--", "touch", "ran"), "target")
		nothingRan(t, lab, who)
		refused(t, run(t, lab, who, "--"), "command")
		refused(t, run(t, lab, who, "--", "  "), "command")
	})
}

func nothingRan(t *testing.T, lab *sbxtest.Lab, who sbxtest.User) {
	t.Helper()
	if _, err := os.Stat(filepath.Join(lab.Project(who), "ran")); err == nil {
		t.Error("the command ran")
	}
}

// The home, what is above it and / are never writable inside; read-only they
// are accepted, and show nothing.
func TestWorkingDirectoryMayNotHoldTheHome(t *testing.T) {
	lab := sbxtest.NewLab(t)
	everyone(t, func(t *testing.T, who sbxtest.User) {
		inHome(t, lab, who, "diary", "private\n")
		for _, dir := range []string{lab.Home(who), filepath.Dir(lab.Home(who)), "/"} {
			refused(t, run(t, lab, who, "-C", dir, "--", "true"), "--ro", dir)
			got := shell(t, lab, who, "touch x 2>/dev/null; cat "+lab.Home(who)+"/diary diary || echo absent", "-C", dir, "--ro")
			printed(t, got, "absent\n")
			if _, err := os.Stat(filepath.Join(dir, "x")); err == nil {
				t.Errorf("%s was written to", dir)
			}
		}
		link := filepath.Join(lab.Project(who), "link")
		if err := os.Symlink(lab.Home(who), link); err != nil {
			t.Fatal(err)
		}
		refused(t, run(t, lab, who, "-C", link, "--", "true"), "--ro")
	})
}

// Without user namespaces nothing runs, and the message says why.
func TestCase01_NoUserNamespaces(t *testing.T) {
	lab := sbxtest.NewLab(t)
	everyone(t, func(t *testing.T, who sbxtest.User) {
		got := outside(t, lab, who, `unshare -Ur sh -c 'echo 0 >/proc/sys/user/max_user_namespaces && exec "$SBX" exec -- touch ran'`)
		refused(t, got, "user namespace", "max_user_namespaces")
		nothingRan(t, lab, who)
	})
}

// Root's projects are shown with mapped owners, which needs a file system that
// can do it; overlayfs cannot.
func TestRootNeedsAnIdmappableDirectory(t *testing.T) {
	lab := sbxtest.NewLab(t)
	everyone(t, func(t *testing.T, who sbxtest.User) {
		script := `set -e
			mkdir -p lower upper work merged
			mount -t overlay overlay -o lowerdir=lower,upperdir=upper,workdir=work merged
			cd merged; exec "$SBX" exec -- touch ran`
		if who == sbxtest.AsUser {
			printed(t, outside(t, lab, who, "unshare -Urm bash -c '"+strings.ReplaceAll(script, "-o lowerdir", "-o userxattr,lowerdir")+"' && ls upper"), "ran\n")
			return
		}
		got := outside(t, lab, who, "unshare -m bash -c '"+script+"'")
		refused(t, got, lab.Project(who)+"/merged", "idmapped")
		nothingRan(t, lab, who)
	})
}

// Signals to sbx are meant for the command.
func TestCase16_SignalsReachTheCommand(t *testing.T) {
	lab := sbxtest.NewLab(t)
	everyone(t, func(t *testing.T, who sbxtest.User) {
		for _, sig := range []syscall.Signal{syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP} {
			caught := fmt.Sprintf("trap 'echo caught; exit 7' %d; echo ready; while :; do sleep 0.05; done", sig)
			for script, want := range map[string]struct {
				exit   int
				stdout string
			}{
				caught:                        {7, "ready\ncaught\n"},
				"echo ready; exec sleep 1000": {128 + int(sig), "ready\n"},
			} {
				cmd := lab.Command(t, who, "sbx", "exec", "--", "bash", "-c", script)
				stdout := newOutput()
				cmd.Stdout, cmd.Stderr = stdout, newOutput()
				lab.Start(t, cmd)
				stdout.until(t, "ready\n")
				if err := cmd.Process.Signal(sig); err != nil {
					t.Fatal(err)
				}
				if exit := sbxtest.Wait(t, cmd); exit != want.exit || stdout.String() != want.stdout {
					t.Errorf("%s to %q: exit status %d, stdout %q, want %v; stderr %s", sig, script, exit, stdout, want, cmd.Stderr)
				}
			}
		}
	})
}
