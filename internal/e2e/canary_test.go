package e2e

import (
	"bytes"
	"encoding/json"
	"os"
	"strings"
	"testing"

	"github.com/fractalboxdev/sbx/internal/sbxtest"
)

// canaryAnswer is what `sbx canary --json` prints, as far as these tests look.
type canaryAnswer struct {
	Outcome, Diagnosis, Run, Directory string
	Evidence                           struct {
		Unlisted []struct {
			Name     string
			Status   int
			Recorded bool
		}
		Left, Walls, Missing []string
	}
}

func canary(t *testing.T, lab *sbxtest.Lab, who sbxtest.User, binary string, env ...string) (canaryAnswer, int) {
	t.Helper()
	cmd := lab.Command(t, who, binary, "canary", "--fresh", "--json")
	cmd.Env = append(cmd.Env, env...)
	got := lab.RunCommand(t, who, cmd)
	var a canaryAnswer
	if err := json.Unmarshal([]byte(got.Stdout), &a); err != nil {
		t.Fatalf("%v\nstdout: %s\nstderr: %s", err, got.Stdout, got.Stderr)
	}
	return a, got.Exit
}

func TestBypass65_CanaryProvesTheFloorFromInside(t *testing.T) {
	lab := sbxtest.NewLab(t)
	everyone(t, func(t *testing.T, who sbxtest.User) {
		outside := watching(lab)
		a, exit := canary(t, lab, who, sbxtest.Binary(t))
		if exit != 0 || a.Outcome != "passed" {
			t.Fatalf("exit status %d: %+v", exit, a)
		}
		for _, leg := range a.Evidence.Unlisted {
			if leg.Status != 520 || !leg.Recorded {
				t.Errorf("%s: %d, recorded %v", leg.Name, leg.Status, leg.Recorded)
			}
		}
		lab.Within(t, func() error { _, err := os.Stat(a.Directory + "/receipt.json"); return err })
		outside.nothingLeft(t)
	})
}

func TestCanaryNoticesEveryBrokenWall(t *testing.T) {
	lab := sbxtest.NewLab(t)
	broken := sbxtest.BrokenBinary(t)
	everyone(t, func(t *testing.T, who sbxtest.User) {
		for _, row := range []struct{ wall, outcome, says string }{
			{"nothing", "passed", "refused"},
			{"ca", "inconclusive", "CA is not trusted"},
			{"listener", "inconclusive", "the fence refused"},
			{"route", "failed", "network device"},
			{"gate", "failed", "egress is open"},
			{"seccomp", "failed", "seccomp"},
			{"resolver", "failed", "192.0.2.77"},
			{"guard", "failed", "address guard"},
			{"landlock", "failed", "the receipt claims Landlock"},
			{"limits", "failed", "the receipt claims a limit of 8192 processes"},
			{"ipv6", "inconclusive", "the fence refused"},
			{"udp", "failed", "the kernel took a datagram"},
			{"unix", "failed", "reached over unix socket"},
			{"socket", "failed", "/run/docker.sock"},
			{"proc", "failed", "/proc/sys is writable"},
			{"capability", "failed", "CapEff"},
			{"privileges", "failed", "NoNewPrivs"},
			{"descriptor", "failed", "a descriptor that it was not to get"},
		} {
			t.Run(row.wall, func(t *testing.T) {
				a, exit := canary(t, lab, who, broken, "SBX_BREAK="+row.wall)
				if a.Outcome != row.outcome || !strings.Contains(a.Diagnosis, row.says) || (exit == 0) != (row.outcome == "passed") {
					t.Errorf("exit status %d, %s: %s; want %s with %q", exit, a.Outcome, a.Diagnosis, row.outcome, row.says)
				}
			})
		}
	})
}

func TestReleaseBinaryHasNoSwitchThatBreaksWalls(t *testing.T) {
	release, err := os.ReadFile(sbxtest.Binary(t))
	if err != nil {
		t.Fatal(err)
	}
	broken, err := os.ReadFile(sbxtest.BrokenBinary(t))
	if err != nil {
		t.Fatal(err)
	}
	for _, mark := range []string{"SBX_BREAK", "an injected fault at", "breaking the network"} {
		if bytes.Contains(release, []byte(mark)) {
			t.Errorf("%q stands in the release binary", mark)
		}
		if !bytes.Contains(broken, []byte(mark)) {
			t.Errorf("%q does not stand in the binary that has the switch", mark)
		}
	}
}

func TestBypass68_NothingRunsWithoutAFreshPass(t *testing.T) {
	lab := sbxtest.NewLab(t)
	everyone(t, func(t *testing.T, who sbxtest.User) {
		refused(t, run(t, lab, who, "--require-canary", "--", "true"), "no canary is known", "sbx canary")
		if a, exit := canary(t, lab, who, sbxtest.Binary(t)); exit != 0 {
			t.Fatalf("the canary: %+v", a)
		}
		succeeded(t, run(t, lab, who, "--require-canary", "--", "true"))
		lab.Configure("require_canary = true\n")
		defer lab.Configure("")
		// Another configuration is another deployment.
		refused(t, run(t, lab, who, "--", "true"), "no canary is known")
		if a, exit := canary(t, lab, who, sbxtest.Binary(t)); exit != 0 {
			t.Fatalf("the canary: %+v", a)
		}
		succeeded(t, run(t, lab, who, "--", "true"))
	})
}

func TestVerifyDeployGatesScripts(t *testing.T) {
	lab := sbxtest.NewLab(t)
	everyone(t, func(t *testing.T, who sbxtest.User) {
		for _, row := range []struct {
			args string
			want int
			says string
		}{
			{"health --attempts 1", 1, "health: unverified"},
			{"health --attempts 2 --interval 1ms", 1, "health: unverified"},
			{"migrations", 0, "migrations: current"},
			{"canary", 0, "canary: passed"},
			{"health", 0, "health: ok"},
			{"dogfood", 0, "dogfood: passed"},
			{"", 0, "dogfood: passed"},
			{"heath", 2, "did you mean"},
			{"--attempt 3", 2, "no flag"},
			{"--attempts 0", 2, "--attempts"},
			{"--socket a --url http://b.test", 2, "exclude"},
			{"--deployment x", 2, "no id"},
			{"health --deployment " + strings.Repeat("0", 64), 1, "health: another deployment"},
			{"--url ftp://b.test", 2, "no http or https URL"},
			{"canary --socket /nonexistent/socket", 1, "no such file"},
		} {
			got := lab.Run(t, who, append([]string{"sbx", "verify-deploy"}, strings.Fields(row.args)...)...)
			if got.Exit != row.want {
				t.Errorf("verify-deploy %s: exit status %d, want %d\n%s%s", row.args, got.Exit, row.want, got.Stdout, got.Stderr)
			}
			says(t, got.Stdout+got.Stderr, row.says)
		}
	})
}

func TestDogfoodClonesOnceForTwoCalls(t *testing.T) {
	lab := sbxtest.NewLab(t)
	everyone(t, func(t *testing.T, who sbxtest.User) {
		outside := watching(lab)
		got := lab.Run(t, who, "sbx", "dogfood", "--fresh", "--json")
		succeeded(t, got)
		says(t, got.Stdout, `"outcome": "passed"`, `"deduped": true`, `"clones": 1`)
		outside.nothingLeft(t)
		if keys := lab.Run(t, who, "sbx", "keys", "list", "--consumer", "dogfood", "--json"); !strings.Contains(keys.Stdout, `"keys": []`) {
			t.Errorf("left over: %s", keys.Stdout)
		}
	})
}

func TestBypass67_TheSelfAttackIsHeld(t *testing.T) {
	lab := sbxtest.NewLab(t)
	everyone(t, func(t *testing.T, who sbxtest.User) {
		outside := watching(lab)
		got := lab.Run(t, who, "sbx", "canary", "--attack", "--fresh", "--json")
		succeeded(t, got)
		var a struct{ Evidence struct{ Attempts int } }
		if err := json.Unmarshal([]byte(got.Stdout), &a); err != nil || a.Evidence.Attempts < 240 {
			t.Errorf("%d attempts, %v", a.Evidence.Attempts, err)
		}
		outside.nothingLeft(t)
		// A sandbox without a filter does not hold it, and both verdicts are known then.
		cmd := lab.Command(t, who, sbxtest.BrokenBinary(t), "canary", "--attack", "--fresh")
		cmd.Env = append(cmd.Env, "SBX_BREAK=seccomp")
		if got := lab.RunCommand(t, who, cmd); got.Exit != 1 || !strings.Contains(got.Stdout, "failed") {
			t.Errorf("without a filter: exit status %d, %s", got.Exit, got.Stdout)
		}
	})
}
