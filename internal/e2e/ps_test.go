package e2e

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/fractalboxdev/sbx/internal/event"
	"github.com/fractalboxdev/sbx/internal/sbxtest"
)

// background is a run under way.
type background struct {
	id     string
	stdout *output
	stderr *output
	ended  chan int
	pid    int
}

// inBackground starts a run whose command has to say ready.
func inBackground(t *testing.T, lab *sbxtest.Lab, who sbxtest.User, flags []string, script string) *background {
	t.Helper()
	before := runs(t, lab, who)
	cmd := lab.Command(t, who, append(append([]string{"sbx", "exec"}, flags...), "--", "bash", "-c", script)...)
	b := &background{stdout: newOutput(), stderr: newOutput(), ended: make(chan int, 1)}
	cmd.Stdout, cmd.Stderr = b.stdout, b.stderr
	lab.Start(t, cmd)
	b.pid = cmd.Process.Pid
	go func() { b.ended <- sbxtest.Wait(t, cmd) }()
	b.stdout.until(t, "ready\n")
	known := map[string]bool{}
	for _, id := range before {
		known[id] = true
	}
	for _, id := range runs(t, lab, who) {
		if !known[id] {
			b.id = id
		}
	}
	return b
}

// ends waits for the run's end and returns its status and receipt.
func (b *background) ends(t *testing.T, lab *sbxtest.Lab, who sbxtest.User) (int, event.Receipt) {
	t.Helper()
	select {
	case exit := <-b.ended:
		var r event.Receipt
		text, err := os.ReadFile(filepath.Join(lab.StateDir(who), "runs", b.id, "receipt.json"))
		if err == nil {
			err = json.Unmarshal(text, &r)
		}
		if err != nil {
			t.Fatal(err)
		}
		return exit, r
	case <-time.After(30 * time.Second):
		t.Fatalf("run %s did not end: %s", b.id, b.stderr)
	}
	return 0, event.Receipt{}
}

// listed is what sbx ps --json says.
func listed(t *testing.T, lab *sbxtest.Lab, who sbxtest.User) (ids []string, text string) {
	t.Helper()
	got := lab.Run(t, who, "sbx", "ps", "--json")
	succeeded(t, got)
	var list struct {
		Runs []struct {
			Run, Consumer string
			Command       []string
			Profiles      []string
		}
	}
	if err := json.Unmarshal([]byte(got.Stdout), &list); err != nil {
		t.Fatalf("%v in %s", err, got.Stdout)
	}
	for _, r := range list.Runs {
		ids = append(ids, r.Run)
	}
	return ids, got.Stdout
}

// Runs that are under way are listed to their own user, and nobody else's are.
func TestPsListsRunsUnderWay(t *testing.T) {
	lab := sbxtest.NewLab(t)
	everyone(t, func(t *testing.T, who sbxtest.User) {
		printed(t, lab.Run(t, who, "sbx", "ps"), "no run is under way\n")
		if ids, text := listed(t, lab, who); len(ids) != 0 || !strings.Contains(text, `"runs": []`) {
			t.Errorf("listed %s", text)
		}
		script := `echo ready; trap 'exit 3' TERM; while :; do sleep 0.05; done; : $'\e[31m'`
		one := inBackground(t, lab, who, []string{"--consumer", "ci-7"}, script)
		two := inBackground(t, lab, who, []string{"--profile", "github-api-read"}, script)
		ids, text := listed(t, lab, who)
		if strings.Join(ids, " ") != one.id+" "+two.id {
			t.Errorf("listed are %s, running %s and %s", ids, one.id, two.id)
		}
		says(t, text, `"consumer": "ci-7"`, `"github-api-read"`)
		table := lab.Run(t, who, "sbx", "ps").Stdout
		says(t, table, "RUN", "CONSUMER", "STARTED", "COMMAND", "PROFILES", one.id, two.id, "ci-7", "ago", "bash -c", "github-api-read")
		if strings.Contains(table, "\x1b") {
			t.Errorf("the command's own escapes are in the table: %q", table)
		}
		for _, other := range sbxtest.Everyone() {
			if other != who {
				if ids, _ := listed(t, lab, other); len(ids) != 0 {
					t.Errorf("%s sees %s of %s", other, ids, who)
				}
			}
		}
		for _, b := range []*background{one, two} {
			succeeded(t, lab.Run(t, who, "sbx", "kill", b.id))
			b.ends(t, lab, who)
		}
		if ids, _ := listed(t, lab, who); len(ids) != 0 {
			t.Errorf("after their end %s are listed", ids)
		}
	})
}

// A run that is killed ends as by SIGTERM and the grace, is taken back, and says so.
func TestKillEndsARun(t *testing.T) {
	lab := sbxtest.NewLab(t)
	everyone(t, func(t *testing.T, who sbxtest.User) {
		for script, word := range map[string]string{
			"echo ready; exec sleep 777":                                  "",
			"trap 'echo caught; exit 0' TERM; echo ready; sleep 777&wait": "caught\n",
			"trap '' TERM; echo ready; while :; do sleep 1; done":         "",
			"echo ready; setsid sleep 777 & kill -STOP $$":                "",
		} {
			b := inBackground(t, lab, who, []string{"--grace", "300ms"}, script)
			got := lab.Run(t, who, "sbx", "kill", b.id)
			printed(t, got, "run "+b.id+" has ended with status 143\n")
			exit, r := b.ends(t, lab, who)
			if exit != 143 || r.Result.Exit != 143 || !r.Result.Killed || r.Interrupted || b.stdout.String() != "ready\n"+word {
				t.Errorf("%q: status %d, stdout %q, result %+v", script, exit, b.stdout, r.Result)
			}
			says(t, b.stderr.String(), "sbx: the run was ended by sbx kill")
			revoked(t, r)
			nobodyRuns(t)
		}
	})
}

// Runs are named by any beginning that is theirs alone; a name that is nobody's hits
// nobody.
func TestKillFindsTheRun(t *testing.T) {
	lab := sbxtest.NewLab(t)
	everyone(t, func(t *testing.T, who sbxtest.User) {
		refused(t, lab.Run(t, who, "sbx", "kill", "20"), `no run "20" is under way`, "no run of yours")
		refused(t, lab.Run(t, who, "sbx", "kill"), "RUN")
		one := inBackground(t, lab, who, nil, "echo ready; exec sleep 777")
		two := inBackground(t, lab, who, nil, "echo ready; exec sleep 777")
		refused(t, lab.Run(t, who, "sbx", "kill", one.id[:3]), "2 running runs begin with", "sbx ps")
		refused(t, lab.Run(t, who, "sbx", "kill", ""), "no run", "sbx ps")
		refused(t, lab.Run(t, who, "sbx", "kill", one.id+"0"), "did you mean", one.id)
		for _, other := range sbxtest.Everyone() {
			if other != who {
				refused(t, lab.Run(t, other, "sbx", "kill", one.id), "no run")
			}
		}
		got := lab.Run(t, who, "sbx", "kill", "--json", one.id[:len(one.id)-1])
		succeeded(t, got)
		says(t, got.Stdout, `"run": "`+one.id+`"`, `"exit": 143`, `"revoked": true`, `"swept": []`)
		one.ends(t, lab, who)
		if ids, _ := listed(t, lab, who); len(ids) != 1 || ids[0] != two.id {
			t.Errorf("left are %s, want %s", ids, two.id)
		}
		refused(t, lab.Run(t, who, "sbx", "kill", one.id), "is under way")
		succeeded(t, lab.Run(t, who, "sbx", "kill", two.id[:len(two.id)-2]))
		two.ends(t, lab, who)
	})
}

// An sbx that is stopped is woken up; one that does not end is ended itself.
func TestKillOfAStoppedRun(t *testing.T) {
	lab := sbxtest.NewLab(t)
	everyone(t, func(t *testing.T, who sbxtest.User) {
		b := inBackground(t, lab, who, []string{"--grace", "300ms"}, lingering)
		if err := syscall.Kill(b.pid, syscall.SIGSTOP); err != nil {
			t.Fatal(err)
		}
		succeeded(t, lab.Run(t, who, "sbx", "kill", b.id))
		if exit, r := b.ends(t, lab, who); exit != 143 || !r.Result.Killed {
			t.Errorf("status %d, result %+v", exit, r.Result)
		}
		nobodyRuns(t)

		b = inBackground(t, lab, who, nil, lingering)
		if err := syscall.Kill(b.pid, syscall.SIGSTOP); err != nil {
			t.Fatal(err)
		}
		got := lab.Run(t, who, "sbx", "kill", "--force", b.id)
		succeeded(t, got)
		says(t, got.Stdout, "died with it")
		if exit, r := b.ends(t, lab, who); exit != 137 || !r.Interrupted {
			t.Errorf("status %d, receipt %+v", exit, r)
		}
		nobodyRuns(t)
		tidy(t, lab, who)
	})
}

// A record that names another process cannot be used to hit it: of a dead run nothing
// is hit at all.
func TestKillHitsNobodyElse(t *testing.T) {
	lab := sbxtest.NewLab(t)
	everyone(t, func(t *testing.T, who sbxtest.User) {
		succeeded(t, run(t, lab, who, "--", "true"))
		bystander := lab.Command(t, who, "sleep", "777")
		lab.Start(t, bystander)
		id := "20200101t000000-deadbeef"
		record, err := json.Marshal(map[string]any{"run": id, "pid": bystander.Process.Pid})
		if err != nil {
			t.Fatal(err)
		}
		path := lab.Write(who, "../dead", string(record))
		if err := os.Rename(path, filepath.Join(lab.StateDir(who), "active", id)); err != nil {
			t.Fatal(err)
		}
		refused(t, lab.Run(t, who, "sbx", "kill", id), "no run")
		refused(t, lab.Run(t, who, "sbx", "kill", "--force", id), "no run")
		if err := bystander.Process.Signal(syscall.Signal(0)); err != nil {
			t.Errorf("the bystander: %v", err)
		}
		// Nor while somebody else, a sweep say, holds the dead run's lock.
		held := open(t, filepath.Join(lab.StateDir(who), "active", id), os.O_RDONLY)
		if err := syscall.Flock(int(held.Fd()), syscall.LOCK_EX); err != nil {
			t.Fatal(err)
		}
		whole := strings.TrimSuffix(string(record), "}") + `,` + strings.TrimPrefix(whereabouts(t, lab, who), "{")
		if err := os.WriteFile(held.Name(), []byte(whole), 0o600); err != nil {
			t.Fatal(err)
		}
		got := lab.Run(t, who, "sbx", "kill", "--force", id)
		if got.Exit != 125 {
			t.Errorf("status %d: %s%s", got.Exit, got.Stdout, got.Stderr)
		}
		if err := bystander.Process.Signal(syscall.Signal(0)); err != nil {
			t.Errorf("the bystander: %v", err)
		}
		_ = held.Close()
		_ = bystander.Process.Kill()
		_ = sbxtest.Wait(t, bystander)
		says(t, run(t, lab, who, "--", "true").Stderr, "swept run "+id)
	})
}

// whereabouts is what a living run says of its supervisor's place, but for the pid.
func whereabouts(t *testing.T, lab *sbxtest.Lab, who sbxtest.User) string {
	t.Helper()
	b := inBackground(t, lab, who, nil, "echo ready; exec sleep 777")
	var all map[string]any
	text, err := os.ReadFile(filepath.Join(lab.StateDir(who), "active", b.id))
	if err == nil { // the first of its lines
		err = json.NewDecoder(bytes.NewReader(text)).Decode(&all)
	}
	if err != nil {
		t.Fatal(err)
	}
	succeeded(t, lab.Run(t, who, "sbx", "kill", b.id))
	b.ends(t, lab, who)
	some, err := json.Marshal(map[string]any{"boot": all["boot"], "pid_namespace": all["pid_namespace"], "pid_started": all["pid_started"]})
	if err != nil {
		t.Fatal(err)
	}
	return string(some)
}

// With --wait-children the end is that of the last process, and the status the
// command's.
func TestBypass78_WaitChildren(t *testing.T) {
	lab := sbxtest.NewLab(t)
	everyone(t, func(t *testing.T, who sbxtest.User) {
		script := "mkfifo f; (read x <f; echo late $x; setsid sh -c 'exec >&2; sleep 0.1; touch last' &) & echo now; (sleep 0.1; echo y >f) & exit 5"
		got := within(t, 30*time.Second, lab, who, lab.Command(t, who, "sbx", "exec", "--wait-children", "--", "bash", "-c", script))
		if got.Exit != 5 || got.Stdout != "now\nlate y\n" {
			t.Errorf("status %d, stdout %q: %s", got.Exit, got.Stdout, got.Stderr)
		}
		if _, err := os.Stat(filepath.Join(lab.Project(who), "last")); err != nil {
			t.Errorf("the last child did not end by itself: %v", err)
		}
		for _, name := range []string{"f", "last"} {
			if err := os.Remove(filepath.Join(lab.Project(who), name)); err != nil {
				t.Fatal(err)
			}
		}
		got = within(t, 30*time.Second, lab, who, lab.Command(t, who, "sbx", "exec", "--wait-children", "--timeout", "500ms", "--grace", "200ms", "--", "bash", "-c", strings.TrimSuffix(lingering, "; wait")))
		if got.Exit != 124 || got.Stdout != "ready\n" {
			t.Errorf("status %d, stdout %q: %s", got.Exit, got.Stdout, got.Stderr)
		}
		nobodyRuns(t)

		b := inBackground(t, lab, who, []string{"--wait-children"}, "(trap 'echo child; exit' TERM; echo ready; while :; do sleep 0.05; done) & exit 4")
		eventually(t, 20*time.Second, "the command is gone", func() bool {
			return !strings.Contains(strings.Join(commands(t), "\n"), "exit 4") || len(commands(t)) <= 5
		})
		succeeded(t, lab.Run(t, who, "sbx", "kill", b.id))
		if exit, _ := b.ends(t, lab, who); exit != 143 || !strings.Contains(b.stdout.String(), "child") {
			t.Errorf("status %d, stdout %q", exit, b.stdout)
		}
	})
}

func commands(t *testing.T) (all []string) {
	t.Helper()
	for _, p := range sbxtest.Processes(t) {
		all = append(all, p.Command)
	}
	return all
}

// What the command leaves running keeps the terminal that it had.
func TestWaitChildrenKeepTheTerminal(t *testing.T) {
	lab := sbxtest.NewLab(t)
	everyone(t, func(t *testing.T, who sbxtest.User) {
		term := inTerminal(t, lab, who, "--wait-children", "bash", "-c", "(sleep 0.2; echo la\"\"te >/dev/tty; stty size) & exit 6")
		term.ends(t, 6)
		term.screen.until(t, "late\r\n")
		term = inTerminal(t, lab, who, "--wait-children", "bash", "-c", "trap : INT; (trap 'echo cau\"\"ght; exit' INT; echo rea\"\"dy; while :; do sleep 0.05; done) & exit 7")
		term.screen.until(t, "ready\r\n")
		term.press(t, "\x03")
		term.screen.until(t, "caught")
		term.ends(t, 7)
	})
}
