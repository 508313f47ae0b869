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
			{"listener", "inconclusive", "probe"},
			{"route", "failed", "network device"},
			{"gate", "failed", "egress is open"},
			{"seccomp", "failed", "seccomp"},
			{"resolver", "failed", "192.0.2.77"},
			{"guard", "failed", "address guard"},
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
	text, err := os.ReadFile(sbxtest.Binary(t))
	if err != nil {
		t.Fatal(err)
	}
	if bytes.Contains(text, []byte("SBX_BREAK")) {
		t.Error("SBX_BREAK stands in the release binary")
	}
}
