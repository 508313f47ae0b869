package cgroup

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

const oldMounts = `31 23 0:28 / /sys/fs/cgroup rw - tmpfs tmpfs rw
32 31 0:29 / /sys/fs/cgroup/cpu,cpuacct rw shared:1 - cgroup cgroup rw,cpu,cpuacct
35 31 0:32 /docker/a /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory
39 31 0:36 /elsewhere /sys/fs/cgroup/pids rw - cgroup cgroup rw,pids
40 31 0:37 / /sys/fs/cgroup/systemd rw - cgroup cgroup rw,name=systemd
41 31 0:38 / /sys/fs/cg\040two rw - cgroup2 cgroup2 rw,nsdelegate
`

const oldOwn = `9:name=systemd:/user
8:pids:/docker/a
4:memory:/docker/a/b
1:cpu,cpuacct:/x:y
0::/user.slice/u.scope
`

func TestMountsAndOwnGroupsAreJoined(t *testing.T) {
	want := []hierarchy{
		{mount: "/sys/fs/cgroup/cpu,cpuacct", own: "/sys/fs/cgroup/cpu,cpuacct/x:y", controllers: []string{"rw", "cpu", "cpuacct"}},
		{mount: "/sys/fs/cgroup/memory", own: "/sys/fs/cgroup/memory/b", controllers: []string{"rw", "memory"}},
		{mount: "/sys/fs/cgroup/systemd", own: "/sys/fs/cgroup/systemd/user", controllers: []string{"rw", "name=systemd"}},
		{mount: "/sys/fs/cg two", own: "/sys/fs/cg two/user.slice/u.scope", unified: true},
	}
	got := hierarchies(oldMounts, oldOwn)
	if diff := cmp.Diff(want, got, cmp.AllowUnexported(hierarchy{})); diff != "" {
		t.Error(diff)
	}
	for _, broken := range []string{"", "x\n", "1 2 3 4 5 - cgroup\n", "1 2 3 - cgroup cgroup rw,memory\n"} {
		if got := hierarchies(broken, oldOwn); len(got) > 0 {
			t.Errorf("%q: %+v", broken, got)
		}
	}
}

// A directory that is called like a group's place and is none is never used.
func TestOnlyCgroupFileSystemsCount(t *testing.T) {
	dir := t.TempDir()
	for _, unified := range []bool{false, true} {
		places, missing := choose([]hierarchy{{mount: dir, own: dir, unified: unified, controllers: []string{Memory}}}, []string{Memory})
		if len(places) > 0 || missing[Memory] == nil {
			t.Errorf("unified %v: %+v, %v", unified, places, missing)
		}
	}
	if _, missing := choose(nil, []string{CPU}); !errors.Is(missing[CPU], ErrNone) {
		t.Errorf("%v", missing)
	}
}

func TestSettings(t *testing.T) {
	p := Plan{limits: Limits{Memory: 1 << 20, CPU: 1500, Processes: 7}}
	for _, c := range []struct {
		controller string
		unified    bool
		want       string
	}{
		{Memory, true, "memory.max=1048576 memory.swap.max=0"},
		{Memory, false, "memory.limit_in_bytes=1048576 memory.memsw.limit_in_bytes=1048576"},
		{CPU, true, "cpu.max=150000 100000"},
		{CPU, false, "cpu.cfs_period_us=100000 cpu.cfs_quota_us=150000"},
		{Pids, true, "pids.max=7"},
		{Pids, false, "pids.max=7"},
	} {
		var got []string
		for _, s := range p.settings(c.controller, c.unified) {
			got = append(got, s.file+"="+s.value)
		}
		if strings.Join(got, " ") != c.want {
			t.Errorf("%s, unified %v: %s, want %s", c.controller, c.unified, got, c.want)
		}
	}
	if got := p.limits.controllers(); !slices.Equal(got, []string{Memory, CPU, Pids}) {
		t.Errorf("%v", got)
	}
}

func TestOnlyOwnGroupsAreRemoved(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{"other", "sbx-r/../other", "other/"} {
		if err := os.MkdirAll(path.Join(dir, "other"), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := Remove(t.Context(), []string{dir + "/" + name}); err == nil {
			t.Errorf("%s was removed", name)
		}
	}
	if err := Remove(t.Context(), []string{"sbx-relative"}); err == nil {
		t.Error("a relative path was taken")
	}
	if err := Remove(t.Context(), []string{path.Join(dir, "sbx-gone")}); err != nil {
		t.Errorf("one that is gone: %v", err)
	}
}

// TestGroupOfTheKernel makes a real group, where this machine lets the test.
func TestGroupOfTheKernel(t *testing.T) {
	plan := NewPlan("test", Limits{Memory: 64 << 20, CPU: 500})
	for controller, err := range plan.Missing {
		t.Logf("%s: %v", controller, err)
		if plan.How(controller) != "" || !errors.Is(err, ErrNone) && !errors.Is(err, ErrNotDelegated) {
			t.Errorf("%s is missing (%v), and held by %s", controller, err, plan.How(controller))
		}
	}
	g, err := plan.Make()
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	sleep := exec.CommandContext(ctx, "sleep", "777")
	if err := sleep.Start(); err != nil {
		t.Fatal(err)
	}
	if err := g.Attach(sleep.Process.Pid); err != nil {
		t.Error(err)
	}
	for _, dir := range plan.Dirs() {
		if inside := words(dir, "cgroup.procs"); len(inside) != 1 {
			t.Errorf("%s has the processes %v", dir, inside)
		}
	}
	if g.Killed() != 0 || g.Refused() != 0 {
		t.Errorf("%d killed, %d refused", g.Killed(), g.Refused())
	}
	cancel()
	_ = sleep.Wait() // it was killed
	if err := g.Remove(t.Context()); err != nil {
		t.Error(err)
	}
	for _, dir := range plan.Dirs() {
		if _, err := os.Stat(dir); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("%s is left: %v", dir, err)
		}
	}
}
