package e2e

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/fractalboxdev/sbx/internal/event"
	"github.com/fractalboxdev/sbx/internal/sbxtest"
)

func receipt(t *testing.T, got sbxtest.Result) event.Receipt {
	t.Helper()
	var r event.Receipt
	if err := json.Unmarshal(got.File(t, "receipt.json"), &r); err != nil {
		t.Fatal(err)
	}
	return r
}

// measure is one wall of the receipt.
func measure(t *testing.T, got sbxtest.Result, name string) event.Measure {
	t.Helper()
	r := receipt(t, got)
	i := slices.IndexFunc(r.Applied, func(m event.Measure) bool { return m.Name == name })
	if i < 0 {
		t.Fatalf("the receipt says nothing of %s: %+v", name, r.Applied)
	}
	return r.Applied[i]
}

// limit is one limit of the receipt.
func limit(t *testing.T, got sbxtest.Result, name string) event.Limit {
	t.Helper()
	r := receipt(t, got)
	i := slices.IndexFunc(r.Limits, func(l event.Limit) bool { return l.Name == name })
	if i < 0 {
		t.Fatalf("the receipt has no limit of %s: %+v", name, r.Limits)
	}
	return r.Limits[i]
}

// The kernel's own answer is what a limit comes to; the receipt says which one it was.
func TestLimitsHold(t *testing.T) {
	lab := sbxtest.NewLab(t)
	everyone(t, func(t *testing.T, who sbxtest.User) {
		t.Run("processes", func(t *testing.T) {
			printed(t, run(t, lab, who, "--processes", "20", "--", "/usr/bin/python3", "-c", forks), "19\n")
		})
		t.Run("threads", func(t *testing.T) {
			printed(t, run(t, lab, who, "--processes", "20", "--", "/usr/bin/python3", "-c", threads), "19\n")
		})
		t.Run("files", func(t *testing.T) {
			printed(t, run(t, lab, who, "--files", "50", "--", "/usr/bin/python3", "-c", opens), "47 EMFILE ValueError\n")
		})
		t.Run("file size", func(t *testing.T) {
			got := shell(t, lab, who, "exec head -c 2M /dev/zero >large", "--disk", "1MiB")
			if l := limit(t, got, "disk"); got.Exit != 128+int(syscall.SIGXFSZ) || l.Hits != 1 || !strings.Contains(got.Stderr, "reached its limit of disk, 1MiB (--disk)") {
				t.Errorf("exit status %d, %+v, stderr %s", got.Exit, l, got.Stderr)
			}
		})
		t.Run("private file systems", func(t *testing.T) {
			for _, dir := range []string{"/tmp", "/var/tmp", "/dev/shm", "$HOME"} {
				got := shell(t, lab, who, "for i in 1 2 3 4; do head -c 400K /dev/zero >"+dir+"/$i || exit 7; done", "--disk", "1MiB")
				if got.Exit != 7 || !strings.Contains(got.Stderr, "No space left on device") {
					t.Errorf("%s: exit status %d, stderr %s", dir, got.Exit, got.Stderr)
				}
			}
		})
	})
}

// What a run starts until the kernel refuses.
const (
	forks = `
import os, time
n = 0
while True:
    try:
        if os.fork() == 0: time.sleep(60)
    except BlockingIOError: break
    n += 1
print(n, flush=True)
os._exit(0)`
	threads = `
import os, threading
n, end = 0, threading.Event()
while True:
    try: threading.Thread(target=end.wait, daemon=True).start()
    except RuntimeError: break
    n += 1
print(n, flush=True)
os._exit(0)`
	opens = `
import errno, resource
files = []
try:
    while True: files.append(open('/dev/null'))
except OSError as e: why = errno.errorcode[e.errno]
try: resource.setrlimit(resource.RLIMIT_NOFILE, (100, 100))
except ValueError as e: print(len(files), why, 'ValueError')`
)

// Memory is that of all processes together where a cgroup can be made, and of each
// alone elsewhere: the receipt says which, and sbx says so when it is the weaker one.
func TestMemoryLimit(t *testing.T) {
	lab := sbxtest.NewLab(t)
	everyone(t, func(t *testing.T, who sbxtest.User) {
		got := run(t, lab, who, "--memory", "100MiB", "--", "/usr/bin/python3", "-c", "x = bytearray(300 << 20)")
		switch l := limit(t, got, "memory"); {
		case l.Whole:
			if got.Exit != 128+int(syscall.SIGKILL) || l.Hits < 1 || !strings.HasPrefix(l.How, "cgroup v") || !strings.Contains(got.Stderr, "reached its limit of memory, 100MiB (--memory): the kernel killed") {
				t.Errorf("exit status %d, %+v, stderr %s", got.Exit, l, got.Stderr)
			}
		case got.Exit != 1 || l.How != "rlimit" || !l.Applied || !strings.Contains(got.Stderr, "MemoryError") || !strings.Contains(got.Stderr, "is held for each process alone"):
			t.Errorf("exit status %d, %+v, stderr %s", got.Exit, l, got.Stderr)
		}
		if got = run(t, lab, who, "--memory", "4KiB", "--", "true"); limit(t, got, "memory").Whole && got.Exit != 128+int(syscall.SIGKILL) && !strings.Contains(got.Stderr, "a memory limit of 4KiB leaves no room for the sandbox itself") {
			t.Errorf("without memory for anything: exit status %d, stderr %s", got.Exit, got.Stderr)
		}
		noGroups(t, lab, who)
	})
}

// noGroups fails the test when a cgroup of a run is left.
func noGroups(t *testing.T, lab *sbxtest.Lab, who sbxtest.User) {
	t.Helper()
	for _, id := range runs(t, lab, who) {
		if left, err := filepath.Glob("/sys/fs/cgroup/*/sbx-" + id); err != nil || len(left) > 0 {
			t.Errorf("cgroups are left: %v, %v", left, err)
		}
	}
}

// Nothing is made, and nothing said, for a run without limits.
func TestNoGroupsUnlessAskedFor(t *testing.T) {
	lab := sbxtest.NewLab(t)
	everyone(t, func(t *testing.T, who sbxtest.User) {
		got := run(t, lab, who, "--", "cat", "/proc/self/cgroup")
		succeeded(t, got)
		if strings.Contains(got.Stdout, "sbx-") || got.Stderr != "" {
			t.Errorf("stdout %s, stderr %s", got.Stdout, got.Stderr)
		}
		if l := limit(t, got, "processes"); !l.Default || l.Value != "8192" {
			t.Errorf("%+v", l)
		}
	})
}

// A limit is of one run: what else the user does, and other runs, count for nothing.
func TestProcessLimitIsOfTheRunAlone(t *testing.T) {
	lab := sbxtest.NewLab(t)
	everyone(t, func(t *testing.T, who sbxtest.User) {
		other := lab.Command(t, who, "sbx", "exec", "--", "bash", "-c", "for i in {1..30}; do sleep 777 & done; echo ready; wait")
		stdout := newOutput()
		other.Stdout, other.Stderr = stdout, newOutput()
		lab.Start(t, other)
		stdout.until(t, "ready\n")
		printed(t, run(t, lab, who, "--processes", "20", "--", "/usr/bin/python3", "-c", forks), "19\n")
		killed(t, lab, other, other.Process.Pid, lab.Mounts())
	})
}

// A fork bomb ends with its run.
func TestForkBombEnds(t *testing.T) {
	lab := sbxtest.NewLab(t)
	everyone(t, func(t *testing.T, who sbxtest.User) {
		got := shell(t, lab, who, "bomb() { bomb | bomb & }; bomb 2>/dev/null; sleep 777", "--processes", "200", "--timeout", "2s", "--grace", "100ms")
		if got.Exit != 124 {
			t.Errorf("exit status %d, stderr %s", got.Exit, got.Stderr)
		}
		nobodyRuns(t)
	})
}

// The operator's word is the upper bound; a flag goes below it and not above.
func TestFlagsOnlyLowerLimits(t *testing.T) {
	lab := sbxtest.NewLab(t)
	lab.Configure("[class.task]\nprocesses = 30\nmemory = \"1GiB\"\ntime = \"2m\"\n[class.browser]\nprocesses = 40\n")
	everyone(t, func(t *testing.T, who sbxtest.User) {
		refused(t, run(t, lab, who, "--processes", "31", "--", "touch", "ran"), "31 is more processes than the class task allows: 30 (/etc/sbx/config.toml:2)")
		refused(t, run(t, lab, who, "--memory", "2g", "--", "touch", "ran"), "2GiB is more memory than the class task allows: 1GiB")
		refused(t, run(t, lab, who, "--timeout", "3m", "--", "touch", "ran"), "3m0s is more time than the class task allows: 2m0s")
		refused(t, run(t, lab, who, "--memory", "0", "--", "touch", "ran"), `--memory: "0" is no size`)
		nothingRan(t, lab, who)
		printed(t, run(t, lab, who, "--quiet", "--processes", "20", "--", "/usr/bin/python3", "-c", forks), "19\n")
		printed(t, run(t, lab, who, "--quiet", "--", "/usr/bin/python3", "-c", forks), "29\n")
		printed(t, run(t, lab, who, "--quiet", "--profile", "browser-fetch", "--", "/usr/bin/python3", "-c", forks), "39\n")
	})
}

// The class's time ends the command, and the receipt names it.
func TestTimeOfTheClass(t *testing.T) {
	lab := sbxtest.NewLab(t)
	lab.Configure("default_class = \"lean\"\n[class.lean]\ntime = \"1s\"\n")
	everyone(t, func(t *testing.T, who sbxtest.User) {
		got := run(t, lab, who, "--grace", "100ms", "--", "sleep", "777")
		if l := limit(t, got, "time"); got.Exit != 124 || l.Hits != 1 || !strings.Contains(got.Stderr, "the command was ended after 1s") || !strings.Contains(l.Source, "class lean (/etc/sbx/config.toml:3)") {
			t.Errorf("exit status %d, %+v, stderr %s", got.Exit, l, got.Stderr)
		}
	})
}

// TestBypass61_ARequiredLimitIsHeldOrNothingRuns: what was promised is there, or the
// run is refused; what was not promised is listed.
func TestBypass61_ARequiredLimitIsHeldOrNothingRuns(t *testing.T) {
	lab := sbxtest.NewLab(t)
	everyone(t, func(t *testing.T, who sbxtest.User) {
		lab.Configure("[class.task]\nrequire = [\"disk\"]\n")
		refused(t, run(t, lab, who, "--", "touch", "ran"), "a limit of disk is required, and the class task sets none", "give --disk")
		nothingRan(t, lab, who)
		succeeded(t, run(t, lab, who, "--disk", "1GiB", "--", "true"))

		lab.Configure("[class.task]\nrequire = [\"cpu\"]\ncpu = 1\n")
		got := run(t, lab, who, "--", "touch", "ran")
		if l := limit(t, got, "cpu"); l.Whole {
			succeeded(t, got)
			if err := os.Remove(filepath.Join(lab.Project(who), "ran")); err != nil {
				t.Error(err)
			}
		} else {
			refused(t, got, "a limit of cpu is required and cannot be held here", "systemd-run --user --scope")
			nothingRan(t, lab, who)
		}
		lab.Configure("[class.task]\ncpu = 1\n")
		got = run(t, lab, who, "--", "true")
		succeeded(t, got)
		if l := limit(t, got, "cpu"); !l.Whole && !strings.Contains(got.Stderr, "the limit of cpu, 1 (class task (/etc/sbx/config.toml:2)), is not held: ") {
			t.Errorf("%+v, stderr %s", l, got.Stderr)
		}
		noGroups(t, lab, who)
	})
}

// TestCase22_NoGroupIsLeft: the next run removes what a killed sbx could not.
func TestCase22_NoGroupIsLeft(t *testing.T) {
	lab := sbxtest.NewLab(t)
	everyone(t, func(t *testing.T, who sbxtest.User) {
		cmd := lab.Command(t, who, "sbx", "exec", "--memory", "100MiB", "--", "bash", "-c", lingering)
		stdout := newOutput()
		cmd.Stdout, cmd.Stderr = stdout, newOutput()
		lab.Start(t, cmd)
		stdout.until(t, "ready\n")
		killed(t, lab, cmd, cmd.Process.Pid, lab.Mounts())
		got := run(t, lab, who, "--", "true")
		succeeded(t, got)
		says(t, got.Stderr, "swept run")
		noGroups(t, lab, who)
	})
}

// A profile names its class, and what it cannot do without.
func TestProfilesChooseTheClass(t *testing.T) {
	lab := sbxtest.NewLab(t)
	everyone(t, func(t *testing.T, who sbxtest.User) {
		for profile, want := range map[string]string{"": "task", "browser-fetch": "browser"} {
			var flags []string
			if profile != "" {
				flags = []string{"--profile", profile}
			}
			got := run(t, lab, who, append(flags, "--", "true")...)
			succeeded(t, got)
			if class := fmt.Sprint(got.Receipt(t)["class"]); class != want {
				t.Errorf("%q: class %s, want %s", profile, class, want)
			}
		}
	})
}
