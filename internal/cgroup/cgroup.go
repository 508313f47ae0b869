// Package cgroup bounds all processes of a run together: groups of version 2 where
// they are delegated, of version 1 where the caller may make them. Nothing is made
// unless a bound is asked for, since that costs half a start.
package cgroup

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// The controllers, as the kernel names them.
const (
	Memory = "memory"
	CPU    = "cpu"
	Pids   = "pids"
)

// Limits are what to bound. Zero is no bound.
type Limits struct {
	Memory    int64 // bytes, with what is swapped out
	CPU       int   // thousandths of a processor
	Processes int   // processes and threads
}

// IsZero reports whether nothing is bounded.
func (l Limits) IsZero() bool { return l == Limits{} }

func (l Limits) controllers() []string {
	var out []string
	for _, c := range []struct {
		name string
		set  bool
	}{{Memory, l.Memory > 0}, {CPU, l.CPU > 0}, {Pids, l.Processes > 0}} {
		if c.set {
			out = append(out, c.name)
		}
	}
	return out
}

// Plan is where the groups of one run will be. Missing says of each controller that
// cannot be used why.
type Plan struct {
	Missing map[string]error
	name    string
	limits  Limits
	places  []place
}

// NewPlan looks for places and changes nothing.
func NewPlan(run string, l Limits) Plan {
	places, missing := find(l.controllers())
	return Plan{Missing: missing, name: prefix + run, limits: l, places: places}
}

// prefix begins the name of every group, so that none of somebody else's is removed.
const prefix = "sbx-"

// Dirs are the directories that Make will make. Whoever dies before Remove leaves them.
func (p Plan) Dirs() []string {
	out := make([]string, len(p.places))
	for i, at := range p.places {
		out[i] = path.Join(at.dir, p.name)
	}
	return out
}

// Group is the groups of one run, one for each place.
type Group struct {
	plan Plan
}

// Make makes the groups and sets their bounds. On an error nothing is left.
func (p Plan) Make() (*Group, error) {
	g := &Group{plan: p}
	for i, dir := range p.Dirs() {
		err := p.places[i].prepare()
		if err == nil {
			err = unix.Mkdir(dir, 0o755)
		}
		if err == nil {
			err = p.bound(dir, p.places[i])
		}
		if err != nil {
			return nil, errors.Join(fmt.Errorf("making the cgroup %s: %w", dir, err), remove(p.Dirs()[:i+1]))
		}
	}
	return g, nil
}

// prepare has a version 2 group hand on what its children need.
func (at place) prepare() error {
	for _, c := range at.tell {
		if err := os.WriteFile(path.Join(at.dir, subtree), []byte("+"+c), 0); err != nil {
			return fmt.Errorf("having %s hand on %s: %w", at.dir, c, err)
		}
	}
	return nil
}

func (p Plan) bound(dir string, at place) error {
	for _, c := range at.controllers {
		for _, s := range p.settings(c, at.unified) {
			err := os.WriteFile(path.Join(dir, s.file), []byte(s.value), 0)
			if errors.Is(err, os.ErrNotExist) && s.optional {
				continue
			}
			if err != nil {
				return fmt.Errorf("setting %s to %s: %w", s.file, s.value, err)
			}
		}
	}
	return nil
}

// setting is one file of a group; an optional one stands for something that the
// kernel may have been built without.
type setting struct {
	file, value string
	optional    bool
}

// period is the time, in microseconds, in which a group's share of the processors is used up.
const period = 100_000

func (p Plan) settings(controller string, unified bool) []setting {
	memory, quota := strconv.FormatInt(p.limits.Memory, 10), strconv.Itoa(p.limits.CPU*period/1000)
	switch {
	case controller == Pids:
		return []setting{{"pids.max", strconv.Itoa(p.limits.Processes), false}}
	case controller == Memory && unified:
		return []setting{{"memory.max", memory, false}, {"memory.swap.max", "0", true}}
	case controller == Memory:
		return []setting{{"memory.limit_in_bytes", memory, false}, {"memory.memsw.limit_in_bytes", memory, true}}
	case unified:
		return []setting{{"cpu.max", quota + " " + strconv.Itoa(period), false}}
	}
	return []setting{{"cpu.cfs_period_us", strconv.Itoa(period), false}, {"cpu.cfs_quota_us", quota, false}}
}

// Attach moves a process into the groups. Children that it starts afterwards are in
// them as well.
func (g *Group) Attach(pid int) error {
	for _, dir := range g.plan.Dirs() {
		if err := os.WriteFile(path.Join(dir, "cgroup.procs"), []byte(strconv.Itoa(pid)), 0); err != nil {
			return fmt.Errorf("moving process %d into the cgroup %s: %w", pid, dir, err)
		}
	}
	return nil
}

// How names the version of cgroups that holds a controller's bound, "" if none does.
func (p Plan) How(controller string) string {
	for _, at := range p.places {
		if slices.Contains(at.controllers, controller) {
			if at.unified {
				return "cgroup v2"
			}
			return "cgroup v1"
		}
	}
	return ""
}

// Killed counts the processes that the kernel killed since the memory was used up.
func (g *Group) Killed() int {
	return g.event(Memory, "memory.events", "memory.oom_control", "oom_kill")
}

// Refused counts the processes that were not started since there were too many.
func (g *Group) Refused() int { return g.event(Pids, "pids.events", "pids.events", "max") }

// Throttled counts the periods in which the processors' time was used up.
func (g *Group) Throttled() int { return g.event(CPU, "cpu.stat", "cpu.stat", "nr_throttled") }

// event reads one counter; a kernel that does not count says nothing.
func (g *Group) event(controller, unified, old, key string) int {
	for i, at := range g.plan.places {
		if !slices.Contains(at.controllers, controller) {
			continue
		}
		file := old
		if at.unified {
			file = unified
		}
		text, err := os.ReadFile(path.Join(g.plan.Dirs()[i], file))
		if err != nil {
			return 0
		}
		for line := range strings.Lines(string(text)) {
			if name, value, ok := strings.Cut(strings.TrimSpace(line), " "); ok && name == key {
				n, _ := strconv.Atoi(value) // a counter of the kernel's
				return n
			}
		}
	}
	return 0
}

// Remove removes the groups, whose processes must be dead. The kernel may take a
// moment to notice that.
func (g *Group) Remove(ctx context.Context) error { return Remove(ctx, g.plan.Dirs()) }

// Remove removes groups that a run left behind. Directories that are not groups of
// sbx are refused; ones that are gone are fine.
func Remove(ctx context.Context, dirs []string) error {
	for wait := time.Millisecond; ; wait *= 2 {
		err := remove(dirs)
		if !errors.Is(err, unix.EBUSY) {
			return err
		}
		select {
		case <-ctx.Done():
			return err
		case <-time.After(wait):
		}
	}
}

func remove(dirs []string) error {
	var errs []error
	for _, dir := range dirs {
		if !path.IsAbs(dir) || path.Clean(dir) != dir || !strings.HasPrefix(path.Base(dir), prefix) {
			errs = append(errs, fmt.Errorf("removing the cgroup %s: it is none of sbx", dir))
			continue
		}
		if err := unix.Rmdir(dir); err != nil && !errors.Is(err, unix.ENOENT) {
			errs = append(errs, fmt.Errorf("removing the cgroup %s: %w", dir, err))
		}
	}
	return errors.Join(errs...)
}
