package class

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Limit names one thing that can be bounded.
type Limit string

// The limits, as configuration, flags and receipts name them.
const (
	Memory    Limit = "memory"    // bytes of all processes together
	Processes Limit = "processes" // processes and threads of the run
	CPU       Limit = "cpu"       // processors' worth of time
	Files     Limit = "files"     // open files of one process
	Disk      Limit = "disk"      // bytes of one file, and of each private file system in memory
	Time      Limit = "time"      // from the start of the command to its end
)

var limits = []Limit{Memory, Processes, CPU, Files, Disk, Time}

// LimitNames returns all limits in their usual order.
func LimitNames() []string {
	out := make([]string, len(limits))
	for i, l := range limits {
		out[i] = string(l)
	}
	return out
}

// Valid reports whether the limit exists.
func (l Limit) Valid() bool { return slices.Contains(limits, l) }

// Limits are the bounds of one run. Zero is no bound; a bound of nothing does not exist.
type Limits struct {
	Memory    int64         // bytes
	Processes int           // processes and threads
	CPU       int           // thousandths of a processor
	Files     int           // descriptors
	Disk      int64         // bytes
	Time      time.Duration // of the command
}

// Has reports whether the limit is set.
func (l Limits) Has(name Limit) bool { return l.amount(name) != 0 }

func (l Limits) amount(name Limit) int64 {
	switch name {
	case Memory:
		return l.Memory
	case Processes:
		return int64(l.Processes)
	case CPU:
		return int64(l.CPU)
	case Files:
		return int64(l.Files)
	case Disk:
		return l.Disk
	case Time:
		return int64(l.Time)
	}
	return 0
}

// Text returns the limit's value for people and files, "" when it is not set.
func (l Limits) Text(name Limit) string {
	amount := l.amount(name)
	switch {
	case amount == 0:
		return ""
	case name == Memory, name == Disk:
		return FormatSize(amount)
	case name == CPU:
		return FormatCPU(l.CPU)
	case name == Time:
		return l.Time.String()
	}
	return strconv.FormatInt(amount, 10)
}

// Over returns the first limit of l that is larger than the bound that b sets.
func (l Limits) Over(b Limits) (Limit, bool) {
	for _, name := range limits {
		if have, bound := l.amount(name), b.amount(name); bound != 0 && have > bound {
			return name, true
		}
	}
	return "", false
}

// Under returns l, with what b sets in place of what l leaves open or has larger.
func (l Limits) Under(b Limits) Limits {
	return Limits{
		Memory: tighter(l.Memory, b.Memory), Processes: tighter(l.Processes, b.Processes), CPU: tighter(l.CPU, b.CPU),
		Files: tighter(l.Files, b.Files), Disk: tighter(l.Disk, b.Disk), Time: tighter(l.Time, b.Time),
	}
}

func tighter[T int | int64 | time.Duration](a, b T) T {
	if a == 0 || b == 0 {
		return a + b
	}
	return min(a, b)
}

// units of sizes; all are powers of 1024, as ulimit, docker and systemd read them.
var units = map[string]int{"": 0, "b": 0, "k": 10, "kb": 10, "kib": 10, "m": 20, "mb": 20, "mib": 20, "g": 30, "gb": 30, "gib": 30, "t": 40, "tb": 40, "tib": 40}

// ParseSize reads a number of bytes such as "512MiB", "2g" or "1048576".
func ParseSize(text string) (int64, error) {
	digits := strings.TrimRight(text, "bBiIkKmMgGtT")
	shift, known := units[strings.ToLower(text[len(digits):])]
	n, err := strconv.ParseInt(digits, 10, 64)
	if err != nil || !known || n < 1 || n > math.MaxInt64>>shift {
		return 0, fmt.Errorf("%q is no size such as \"512MiB\" or \"2GiB\"", text)
	}
	return n << shift, nil
}

// FormatSize writes a size as ParseSize reads it, in the largest unit that keeps it whole.
func FormatSize(n int64) string {
	for _, u := range []struct {
		shift int
		name  string
	}{{40, "TiB"}, {30, "GiB"}, {20, "MiB"}, {10, "KiB"}} {
		if n != 0 && n%(1<<u.shift) == 0 {
			return strconv.FormatInt(n>>u.shift, 10) + u.name
		}
	}
	return strconv.FormatInt(n, 10)
}

// ErrCPU is a share of processors that is none.
var ErrCPU = errors.New("no number of processors such as 2 or 0.5")

// CPUOf turns processors into thousandths. The kernel shares out time in periods of
// 100 ms and at least 1 ms of each: one hundredth is the least.
func CPUOf(processors float64) (int, error) {
	const most = 1 << 20
	if !(processors >= 0.01) || processors > most {
		return 0, fmt.Errorf("%v is %w", processors, ErrCPU)
	}
	return int(math.Round(processors * 1000)), nil
}

// FormatCPU writes thousandths of a processor as a number of processors.
func FormatCPU(thousandths int) string {
	return strconv.FormatFloat(float64(thousandths)/1000, 'f', -1, 64)
}
