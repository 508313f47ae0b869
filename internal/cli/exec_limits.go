package cli

import (
	"fmt"
	"time"

	"github.com/spf13/pflag"

	"github.com/fractalboxdev/sbx/internal/class"
	"github.com/fractalboxdev/sbx/internal/event"
)

// limitFlags are the caller's own limits.
type limitFlags struct {
	memory, disk     string
	processes, files int
	cpu              float64
}

func (l *limitFlags) addTo(f *pflag.FlagSet) {
	f.StringVar(&l.memory, "memory", "", "bound the memory of all its processes, as in 2GiB; this and the next four only lower what the class says (default: its limit)")
	f.IntVar(&l.processes, "processes", 0, "bound the `number` of its processes and threads")
	f.Float64Var(&l.cpu, "cpu", 0, "bound the `processors` whose time it uses, as in 1.5")
	f.IntVar(&l.files, "files", 0, "bound the `number` of open files of each process")
	f.StringVar(&l.disk, "disk", "", "bound each file that it writes, and each private file system such as /tmp, as in 10GiB")
}

// parse returns the limits that were given. A bound of nothing is refused, as is what
// is none.
func (l *limitFlags) parse(timeout time.Duration) (class.Limits, error) {
	out := class.Limits{Processes: l.processes, Files: l.files, Time: timeout}
	for _, s := range []struct {
		flag, text string
		into       *int64
	}{{"memory", l.memory, &out.Memory}, {"disk", l.disk, &out.Disk}} {
		if s.text == "" {
			continue
		}
		var err error
		if *s.into, err = class.ParseSize(s.text); err != nil {
			return out, &usageError{fmt.Sprintf("--%s: %s", s.flag, err), "leave it out for the class's limit"}
		}
	}
	for flag, n := range map[string]int{"processes": l.processes, "files": l.files} {
		if n < 0 {
			return out, &usageError{fmt.Sprintf("--%s %d is no number from 1", flag, n), "leave it out for the class's limit"}
		}
	}
	if timeout < 0 {
		return out, &usageError{fmt.Sprintf("--timeout %s is negative", timeout), "leave it out for none"}
	}
	if l.cpu == 0 {
		return out, nil
	}
	var err error
	if out.CPU, err = class.CPUOf(l.cpu); err != nil {
		return out, &usageError{fmt.Sprintf("--cpu: %s", err), "leave it out for the class's limit"}
	}
	return out, nil
}

// unheldLines says which limits are not held as somebody wanted them.
func (e *environment) unheldLines(limits []event.Limit) {
	for _, l := range limits {
		if l.Whole || l.Default {
			continue
		}
		how := "is not held: "
		if l.Applied {
			how = "is held for "
		}
		e.say.Line(fmt.Sprintf("the limit of %s, %s (%s), %s%s", l.Name, l.Value, l.Source, how, l.Detail))
	}
}

// limitLines says which limits the command reached. Waiting for processors is what
// such a limit is for, and the end by time has its own line.
func (e *environment) limitLines(limits []event.Limit) {
	for _, l := range limits {
		if l.Hits > 0 && l.Name != string(class.CPU) && l.Name != string(class.Time) {
			e.say.Line(fmt.Sprintf("the command reached its limit of %s, %s (%s): %s", l.Name, l.Value, l.Source, l.Hit))
		}
	}
}
