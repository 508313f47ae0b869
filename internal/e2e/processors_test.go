package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fractalboxdev/sbx/internal/sbxtest"
)

// processorsOf returns the processors that a status file of proc(5) names.
func processorsOf(status string) string {
	for line := range strings.Lines(status) {
		if list, ok := strings.CutPrefix(line, "Cpus_allowed_list:"); ok {
			return strings.TrimSpace(list)
		}
	}
	return ""
}

// The command may use the processors that sbx may: all that the caller has, no others.
func TestCommandHasTheCallersProcessors(t *testing.T) {
	lab := sbxtest.NewLab(t)
	var set unix.CPUSet
	if err := unix.SchedGetaffinity(0, &set); err != nil {
		t.Fatal(err)
	}
	everyone(t, func(t *testing.T, who sbxtest.User) {
		whole := processorsOf(lab.Run(t, who, "cat", "/proc/self/status").Stdout)
		if got := processorsOf(run(t, lab, who, "--", "cat", "/proc/self/status").Stdout); got != whole || got == "" {
			t.Errorf("the command may use %q, its caller %q", got, whole)
		}
		for cpu := range len(set) * 64 {
			if !set.IsSet(cpu) {
				continue
			}
			one := fmt.Sprint(cpu)
			got := lab.Run(t, who, "taskset", "-c", one, sbxtest.Binary(t), "exec", "--", "cat", "/proc/self/status")
			if list := processorsOf(got.Stdout); list != one {
				t.Errorf("the command of a caller with processor %s may use %q: %s", one, list, got.Stderr)
			}
		}
	})
}

// While it starts, each half of sbx keeps to some processors; a command that runs longer
// has a proxy that may use all.
func TestProxyUsesAllProcessors(t *testing.T) {
	lab := sbxtest.NewLab(t)
	everyone(t, func(t *testing.T, who sbxtest.User) {
		own, err := os.ReadFile("/proc/self/status")
		if err != nil {
			t.Fatal(err)
		}
		whole := processorsOf(string(own))
		cmd := lab.Command(t, who, "sbx", "exec", "--", "sh", "-c", "echo ready; exec sleep 777")
		out := newOutput()
		cmd.Stdout = out
		lab.Start(t, cmd)
		out.until(t, "ready\n")
		eventually(t, 5*time.Second, "all threads of sbx may run on "+whole, func() bool {
			files, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/status", cmd.Process.Pid))
			for _, file := range files {
				if text, err := os.ReadFile(file); err == nil && processorsOf(string(text)) != whole {
					return false
				}
			}
			return len(files) > 0
		})
		if err := cmd.Process.Signal(unix.SIGTERM); err != nil {
			t.Error(err)
		}
		sbxtest.Wait(t, cmd)
	})
}
