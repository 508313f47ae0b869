package e2e

import (
	"encoding/json"
	"errors"
	"io/fs"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/fractalboxdev/sbx/internal/sbxtest"
)

// lingering is a command that would outlive a careless sandbox.
const lingering = "setsid sleep 777 & (setsid bash -c 'trap \"\" TERM HUP INT; while :; do sleep 1; done' &) ; sleep 777 | cat & echo ready; wait"

// killed kills a process for good and checks that nothing of its run is left.
func killed(t *testing.T, lab *sbxtest.Lab, cmd *exec.Cmd, pid int, mounts []string) {
	t.Helper()
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil && !errors.Is(err, syscall.ESRCH) {
		t.Fatal(err)
	}
	_ = sbxtest.Wait(t, cmd) // returns when nobody holds its outputs open
	nobodyRuns(t)
	if now := lab.Mounts(); !slices.Equal(now, mounts) {
		t.Errorf("mounts were %q, are %q", mounts, now)
	}
}

// nobodyRuns fails the test unless all processes of the run are dead. sbx does not
// wait for its own runner's last moments.
func nobodyRuns(t *testing.T) {
	t.Helper()
	eventually(t, 2*time.Second, "no process was left", func() bool { return len(sbxtest.Processes(t)) == 0 })
}

// When sbx is killed, everything in the sandbox dies with it; the next run
// cleans up and says so.
func TestCase22_KilledSbxLeavesNothing(t *testing.T) {
	lab := sbxtest.NewLab(t)
	lab.ServeNPM(t, "npm.test", sbxtest.Package{
		Name: "slow", Version: "1.0.0",
		Scripts: map[string]string{"postinstall": "bash wait.sh"}, Files: map[string]string{"wait.sh": lingering},
	})
	lab.Configure(npmRegistry)
	everyone(t, func(t *testing.T, who sbxtest.User) {
		lab.Write(who, "package.json", `{"name": "root", "version": "1.0.0", "dependencies": {"slow": "1.0.0"}}`)
		mounts := lab.Mounts()
		for name, argv := range map[string][]string{
			"shell":       {"bash", "-c", lingering},
			"npm install": {"npm", "install", "--foreground-scripts"},
		} {
			t.Run(name, func(t *testing.T) {
				cmd := lab.Command(t, who, append([]string{"sbx", "exec", "--profile", "js-install", "--"}, argv...)...)
				stdout := newOutput()
				cmd.Stdout, cmd.Stderr = stdout, newOutput()
				before := runs(t, lab, who)
				lab.Start(t, cmd)
				stdout.until(t, "ready\n")
				killed(t, lab, cmd, cmd.Process.Pid, mounts)
				swept(t, lab, who, before)
			})
		}
	})
}

// runs are the ids of the user's runs.
func runs(t *testing.T, lab *sbxtest.Lab, who sbxtest.User) []string {
	t.Helper()
	entries, err := os.ReadDir(filepath.Join(lab.StateDir(who), "runs"))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		t.Fatal(err)
	}
	var ids []string
	for _, e := range entries {
		ids = append(ids, e.Name())
	}
	return ids
}

// swept starts the next run, which has to say that it found one that was
// killed, and to make its records true.
func swept(t *testing.T, lab *sbxtest.Lab, who sbxtest.User, before []string) {
	t.Helper()
	lost := slices.DeleteFunc(runs(t, lab, who), func(id string) bool { return slices.Contains(before, id) })
	if len(lost) != 1 {
		t.Fatalf("the killed run has left the records %q, want one", lost)
	}
	next := run(t, lab, who, "--", "true")
	succeeded(t, next)
	says(t, next.Stderr, "swept run "+lost[0])
	text, err := os.ReadFile(filepath.Join(lab.StateDir(who), "runs", lost[0], "receipt.json"))
	if err != nil {
		t.Fatal(err)
	}
	var receipt map[string]any
	if err := json.Unmarshal(text, &receipt); err != nil || receipt["interrupted"] != true {
		t.Errorf("%v; the killed run's receipt is %s, want interrupted", err, text)
	}
	list, _ := json.Marshal(next.Receipt(t)["swept"])
	says(t, string(list), lost[0])
	tidy(t, lab, who)
	if again := run(t, lab, who, "--", "true"); again.Stderr != "" {
		t.Errorf("the run after the sweep said %q", again.Stderr)
	}
}

// tidy fails the test when the state directory has more than finished runs.
func tidy(t *testing.T, lab *sbxtest.Lab, who sbxtest.User) {
	t.Helper()
	for _, dir := range []string{"active", "scratch"} {
		entries, err := os.ReadDir(filepath.Join(lab.StateDir(who), dir))
		if err != nil {
			t.Fatal(err)
		}
		if len(entries) > 0 {
			t.Errorf("%s still has %v", dir, entries)
		}
	}
}

// The same at the moments of start-up, told by how many processes there are.
func TestCase22_KilledWhileStarting(t *testing.T) {
	lab := sbxtest.NewLab(t)
	everyone(t, func(t *testing.T, who sbxtest.User) {
		succeeded(t, run(t, lab, who, "--", "true"))
		mounts := lab.Mounts()
		for processes := 1; processes <= 5; processes++ {
			cmd := lab.Command(t, who, "sbx", "exec", "--", "bash", "-c", lingering)
			cmd.Stdout, cmd.Stderr = newOutput(), newOutput()
			lab.Start(t, cmd)
			eventually(t, 10*time.Second, "sbx had enough processes", func() bool { return len(sbxtest.Processes(t)) >= processes })
			killed(t, lab, cmd, cmd.Process.Pid, mounts)
		}
		succeeded(t, run(t, lab, who, "--", "true"))
		tidy(t, lab, who)
	})
}

// The same at twenty random moments from the first instruction to well into the run,
// with a network, a cache and files: no process, mount, control group or directory is
// left, and the project and the home are as before.
func TestCase22_KilledAtRandomMoments(t *testing.T) {
	const moments = 20
	lab := sbxtest.NewLab(t)
	everyone(t, func(t *testing.T, who sbxtest.User) {
		seed := uint64(time.Now().UnixNano())
		t.Logf("seed %d", seed)
		random := rand.New(rand.NewPCG(seed, 0))
		argv := []string{"sbx", "exec", "--profile", "github-api-read", "--artifacts", "../artifacts", "--", "bash", "-c", lingering}
		lab.Write(who, "kept", "")
		succeeded(t, outside(t, lab, who, "mkdir ../artifacts"))
		start := time.Now()
		succeeded(t, run(t, lab, who, "--profile", "github-api-read", "--artifacts", "../artifacts", "--", "true"))
		whole := time.Since(start)
		before, mounts, known := places(t, lab, who), lab.Mounts(), runs(t, lab, who)
		for range moments {
			cmd := lab.Command(t, who, slices.Clone(argv)...)
			cmd.Stdout, cmd.Stderr = newOutput(), newOutput()
			lab.Start(t, cmd)
			<-time.After(time.Duration(random.Int64N(int64(whole * 3 / 2))))
			killed(t, lab, cmd, cmd.Process.Pid, mounts)
		}
		made := slices.DeleteFunc(runs(t, lab, who), func(id string) bool { return slices.Contains(known, id) })
		nothingNamed(t, made)
		succeeded(t, run(t, lab, who, "--", "true"))
		tidy(t, lab, who)
		same(t, before, places(t, lab, who))
		t.Logf("%d of %d had a record", len(made), moments)
	})
}

// places is all of the user's home but sbx's own records.
func places(t *testing.T, lab *sbxtest.Lab, who sbxtest.User) map[string]string {
	t.Helper()
	all := tree(t, lab.Home(who))
	for name := range all {
		if strings.HasPrefix(name, ".local/state/sbx") {
			delete(all, name)
		}
	}
	return all
}

// nothingNamed fails the test when a control group, or a directory of those for
// temporary files, has the name of a run.
func nothingNamed(t *testing.T, ids []string) {
	t.Helper()
	for _, root := range []string{"/sys/fs/cgroup", "/tmp", "/var/tmp", "/run", "/dev/shm"} {
		_ = filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
			if err != nil || !d.IsDir() {
				return nil //nolint:nilerr // somebody else's, or just gone
			}
			if slices.ContainsFunc(ids, func(id string) bool { return strings.Contains(d.Name(), id) }) {
				t.Errorf("%s is left", path)
			}
			return nil
		})
	}
}

// With --die-with-parent the run ends with whoever started it, and is taken back; without,
// it goes on as any command would.
func TestCase22_KilledParent(t *testing.T) {
	lab := sbxtest.NewLab(t)
	everyone(t, func(t *testing.T, who sbxtest.User) {
		before := runs(t, lab, who)
		cmd := lab.Command(t, who, "bash", "-c", `"$SBX" exec --die-with-parent --grace 300ms -- bash -c '`+strings.ReplaceAll(lingering, "'", `'"'"'`)+`'; true`)
		cmd.Env = append(cmd.Env, "SBX="+sbxtest.Binary(t))
		stdout := newOutput()
		cmd.Stdout, cmd.Stderr = stdout, newOutput()
		lab.Start(t, cmd)
		stdout.until(t, "ready\n")
		if err := cmd.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		_ = sbxtest.Wait(t, cmd) // returns when nobody holds its outputs open
		nobodyRuns(t)
		for _, id := range runs(t, lab, who) {
			if text, err := os.ReadFile(filepath.Join(lab.StateDir(who), "runs", id, "receipt.json")); !slices.Contains(before, id) && (err != nil || !strings.Contains(string(text), `"interrupted": false`)) {
				t.Errorf("%v; the receipt is %s", err, text)
			}
		}
	})
}

// Each process of a run takes all others with it, and sbx does not call it a
// success.
func TestCase22_KilledHelpers(t *testing.T) {
	lab := sbxtest.NewLab(t)
	everyone(t, func(t *testing.T, who sbxtest.User) {
		mounts := lab.Mounts()
		for i := 0; ; i++ {
			cmd := lab.Command(t, who, "sbx", "exec", "--", "bash", "-c", "echo ready; exec sleep 777")
			stdout := newOutput()
			cmd.Stdout, cmd.Stderr = stdout, newOutput()
			lab.Start(t, cmd)
			stdout.until(t, "ready\n")
			all := sbxtest.Processes(t)
			if i >= len(all) {
				killed(t, lab, cmd, cmd.Process.Pid, mounts)
				return
			}
			killed(t, lab, cmd, all[i].PID, mounts)
			if exit := cmd.ProcessState.ExitCode(); exit == 0 {
				t.Errorf("exit status 0 although %v was killed", all[i])
			}
		}
	})
}

// What a command leaves running when it ends is ended as well, and does not
// keep the caller waiting.
func TestBypass78_BackgroundProcessesEndWithTheRun(t *testing.T) {
	lab := sbxtest.NewLab(t)
	everyone(t, func(t *testing.T, who sbxtest.User) {
		script := strings.TrimSuffix(lingering, "; wait") + "; exit 5"
		got := within(t, 15*time.Second, lab, who, lab.Command(t, who, "sbx", "exec", "--", "bash", "-c", script))
		if got.Exit != 5 || got.Stdout != "ready\n" {
			t.Errorf("exit status %d, stdout %q, stderr %q", got.Exit, got.Stdout, got.Stderr)
		}
		nobodyRuns(t)
	})
}
