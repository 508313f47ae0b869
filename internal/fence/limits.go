package fence

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fractalboxdev/sbx/internal/cgroup"
	"github.com/fractalboxdev/sbx/internal/class"
	"github.com/fractalboxdev/sbx/internal/event"
	"github.com/fractalboxdev/sbx/internal/sandbox"
)

// limits are what this run may use of the machine, and how that is held.
type limits struct {
	class   class.Definition
	values  class.Limits
	require []class.Limit
	plan    cgroup.Plan
	group   *cgroup.Group // nil: none was needed, or none could be made
	failed  error         // why the planned groups could not be made
}

// chooseLimits settles class and limits. Flags only lower what the class says.
func (f *fence) chooseLimits() error {
	name := f.class()
	l := limits{class: class.Definition{Name: name}}
	if f.o.Classes != nil {
		l.class = f.o.Classes(name)
	}
	if over, ok := f.o.Limits.Over(l.class.Limits); ok {
		return &event.Refusal{
			Kind: event.RefusedRecipe, Code: "limit-too-high",
			Message: fmt.Sprintf("%s is more %s than the class %s allows: %s (%s)", f.o.Limits.Text(over), over, name, l.class.Limits.Text(over), l.class.Sources[over]),
			Next:    "ask for no more than that, or have the operator raise it",
		}
	}
	l.values = f.o.Limits.Under(l.class.Limits)
	if f.o.Limits.Time == 0 {
		l.values = l.values.Under(class.Limits{Time: f.o.Timeout})
	}
	l.require = append(f.derived.Grant.Require(), l.class.Require...)
	for _, r := range l.require {
		if !l.values.Has(r) {
			return &event.Refusal{
				Kind: event.RefusedRecipe, Code: "limit-missing",
				Message: fmt.Sprintf("a limit of %s is required, and the class %s sets none", r, name),
				Next:    fmt.Sprintf("set %s in [class.%s] of the operator's configuration, or give --%s", r, name, flagOf(r)),
			}
		}
	}
	f.limits, f.receipt.Class = l, string(name)
	return nil
}

func flagOf(l class.Limit) string {
	if l == class.Time {
		return "timeout"
	}
	return string(l)
}

// planLimits looks where cgroups can be made. Nothing is looked at unless a limit
// needs one.
func (f *fence) planLimits() {
	want := cgroup.Limits{Memory: f.limits.values.Memory, CPU: f.limits.values.CPU}
	if f.asked(class.Processes) && !countsByNamespace() {
		want.Processes = f.limits.values.Processes
	}
	if want.IsZero() {
		return
	}
	f.limits.plan = cgroup.NewPlan(f.id, want)
	f.receipt.Cgroups = f.limits.plan.Dirs()
}

// asked reports whether somebody set the limit.
func (f *fence) asked(l class.Limit) bool {
	return f.limits.values.Has(l) && (f.o.Limits.Has(l) || f.limits.class.Sources[l] != defaultSource)
}

// defaultSource is how configuration marks what nobody set.
const defaultSource = "default"

// countsByNamespace reports whether the kernel counts a user's processes for each user
// namespace: since 5.14 the limit of a process (RLIMIT_NPROC) is one of the run.
func countsByNamespace() bool {
	var u unix.Utsname
	if unix.Uname(&u) != nil {
		return false
	}
	var major, minor int
	if _, err := fmt.Sscanf(unix.ByteSliceToString(u.Release[:]), "%d.%d", &major, &minor); err != nil {
		return false
	}
	return major > 5 || major == 5 && minor >= 14
}

// makeLimits makes the groups, and refuses the run where a required limit cannot be
// held. Their directories stand in the run's records already.
func (f *fence) makeLimits(context.Context) error {
	if len(f.limits.plan.Dirs()) > 0 {
		f.limits.group, f.limits.failed = f.limits.plan.Make()
	}
	f.receipt.Limits = f.describeLimits()
	if f.o.OnLimits != nil {
		f.o.OnLimits(f.receipt.Limits)
	}
	for _, l := range f.receipt.Limits {
		if slices.Contains(f.limits.require, class.Limit(l.Name)) && !l.Whole {
			return &event.Refusal{
				Kind: event.RefusedSandbox, Code: "limit-unavailable",
				Message: fmt.Sprintf("a limit of %s is required and cannot be held here: %s", l.Name, l.Detail),
				Next:    "run sbx where cgroups can be made, as in: systemd-run --user --scope sbx exec …; `sbx doctor` says what this host gives",
			}
		}
	}
	return nil
}

// describeLimits says of each limit whether and how it is held. Where no group holds
// the memory of all, each process has the limit for itself.
func (f *fence) describeLimits() []event.Limit {
	var out []event.Limit
	for _, name := range class.LimitNames() {
		l := class.Limit(name)
		if !f.limits.values.Has(l) {
			continue
		}
		row := event.Limit{Name: name, Value: f.limits.values.Text(l), Source: f.limitSource(l), Default: !f.asked(l)}
		switch l {
		case class.Memory:
			f.inGroup(&row, cgroup.Memory)
			if !row.Applied {
				row.Applied, row.How, row.Detail = true, "rlimit", "each process alone, not for all together: "+row.Detail
			}
		case class.CPU:
			f.inGroup(&row, cgroup.CPU)
		case class.Processes:
			f.boundProcesses(&row)
		case class.Files:
			row.Applied, row.Whole, row.How, row.Detail = true, true, "rlimit", "open files of one process"
		case class.Disk:
			row.Applied, row.Whole, row.How = true, true, "rlimit, mount"
			row.Detail = "of one file, and of each private file system; their sum in the working directory is not bounded"
		case class.Time:
			row.Applied, row.Whole, row.How = true, true, "sbx"
		}
		out = append(out, row)
	}
	return out
}

func (f *fence) limitSource(l class.Limit) string {
	switch {
	case f.o.Limits.Has(l):
		return "--" + flagOf(l)
	case l == class.Time && f.limits.values.Time != f.limits.class.Limits.Time:
		return "timeout"
	}
	return fmt.Sprintf("class %s (%s)", f.limits.class.Name, f.limits.class.Sources[l])
}

func (f *fence) inGroup(row *event.Limit, controller string) {
	how, missing := f.limits.plan.How(controller), f.limits.plan.Missing[controller]
	switch {
	case f.limits.failed != nil:
		row.Detail = f.limits.failed.Error()
	case missing != nil:
		row.Detail = missing.Error()
	default:
		row.Applied, row.Whole, row.How = true, true, how
	}
}

func (f *fence) boundProcesses(row *event.Limit) {
	switch {
	case countsByNamespace():
		row.Applied, row.Whole, row.How, row.Detail = true, true, "rlimit", "processes and threads of the run's user namespace"
	case f.asked(class.Processes):
		f.inGroup(row, cgroup.Pids)
	default:
		row.Detail = "this kernel counts a user's processes on the whole machine"
	}
}

// boundSpec puts into the specification what the init and the mount tree hold.
func (f *fence) boundSpec(s *sandbox.Spec) {
	v := f.limits.values
	s.UserNamespaces = f.limits.class.Name.UserNamespaces()
	s.Limits = sandbox.ResourceLimits{Files: uint64(v.Files), FileSize: uint64(v.Disk)} //nolint:gosec // not negative
	if v.Processes > 0 && countsByNamespace() {
		s.Limits.Processes = uint64(v.Processes) + 1 // and the init
	}
	if v.Memory > 0 && f.limits.group == nil {
		s.Limits.Data = uint64(v.Memory)
	}
	s.PrivateSize = uint64(v.Under(class.Limits{Disk: v.Memory}).Disk) //nolint:gosec // not negative
	f.landlock, f.noLandlock = sandbox.LandlockABI()
	s.Landlock = uint32(f.landlock) //nolint:gosec // a small number
}

// joinGroups moves the init into the run's groups, before it may start the command.
func (f *fence) joinGroups(pid int) error {
	if f.limits.group == nil {
		return nil
	}
	return f.limits.group.Attach(pid)
}

// outOfMemory reports whether the kernel killed for the memory limit: the init, too,
// if there was nobody larger.
func (f *fence) outOfMemory() bool { return f.limits.group != nil && f.limits.group.Killed() > 0 }

// noRoom is the refusal of a memory limit that the init itself does not fit into.
func (f *fence) noRoom() error {
	return &event.Refusal{
		Kind: event.RefusedRecipe, Code: "limit-too-low",
		Message: fmt.Sprintf("a memory limit of %s leaves no room for the sandbox itself", f.limits.values.Text(class.Memory)),
		Next:    "give it some MiB and what the command needs",
	}
}

// leaveGroups reads what the kernel counted and removes the groups.
func (f *fence) leaveGroups() {
	g := f.limits.group
	if g == nil {
		return
	}
	var killed, refused, throttled int
	f.takeBack([]part{{what: "cgroups removed", do: func(ctx context.Context) error {
		killed, refused, throttled = g.Killed(), g.Refused(), g.Throttled()
		return g.Remove(ctx)
	}}})
	f.hit(class.Memory, killed, "the kernel killed %d of its processes")
	f.hit(class.Processes, refused, "%d processes were not started")
	f.hit(class.CPU, throttled, "it waited for processors in %d periods of 100 ms")
}

// hit notes that a limit was reached.
func (f *fence) hit(l class.Limit, count int, text string) {
	for i := range f.receipt.Limits {
		if row := &f.receipt.Limits[i]; row.Name == string(l) && count > 0 {
			row.Hits, row.Hit = count, text
			if strings.Contains(text, "%d") {
				row.Hit = fmt.Sprintf(text, count)
			}
		}
	}
}

// landlockMeasure is the receipt's line about Landlock.
func (f *fence) landlockMeasure() event.Measure {
	m := event.Measure{Name: "landlock", Applied: f.landlock > 0}
	switch {
	case f.noLandlock != nil:
		m.Detail = f.noLandlock.Error()
	case f.landlock < sandbox.LandlockScope:
		m.Detail = fmt.Sprintf("ABI %d: changes only below the writable mounts", f.landlock)
	default:
		m.Detail = fmt.Sprintf("ABI %d: changes only below the writable mounts; signals, tracing and abstract sockets stay among the command's processes", f.landlock)
	}
	return m
}

// limitMeasures are the receipt's lines about limits.
func (f *fence) limitMeasures() []event.Measure {
	var out []event.Measure
	for _, name := range class.LimitNames() {
		m := event.Measure{Name: name + " limit", Detail: "not asked for"}
		for _, l := range f.receipt.Limits {
			if l.Name == name {
				m.Applied, m.Detail = l.Applied, strings.Join(slices.DeleteFunc([]string{l.Value, l.Source, l.How, l.Detail}, func(s string) bool { return s == "" }), "; ")
			}
		}
		out = append(out, m)
	}
	return out
}

// timeout is how long the command may take, 0 for any time.
func (f *fence) timeout() time.Duration { return f.limits.values.Time }
