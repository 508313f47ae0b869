// Package class has the four kinds of runs and what a run of each may use of the
// machine. Values only: the operator's configuration fills them in, the profile
// chooses one.
package class

import "slices"

// Definition is a class as the operator defined it.
type Definition struct {
	Name    Name
	Cap     int // runs at a time; 0: no bound
	Limits  Limits
	Require []Limit          // limits without which nothing runs
	Sources map[Limit]string // what set each limit, as in "/etc/sbx/config.toml:3"
}

// DefaultProcesses bounds a run that nobody bounded: room for any build, and an end
// for a fork bomb.
const DefaultProcesses = 8192

// Name is a class. The list is closed.
type Name string

// The classes. Browser runs may make user namespaces, as a browser's own sandbox does.
const (
	Lean    Name = "lean"
	Browser Name = "browser"
	Agent   Name = "agent"
	Task    Name = "task"
)

// Default is the class of a run where neither profile nor operator names one.
const Default = Task

var names = []Name{Agent, Browser, Lean, Task}

// Names returns all classes, sorted.
func Names() []string {
	out := make([]string, len(names))
	for i, n := range names {
		out[i] = string(n)
	}
	return out
}

// Valid reports whether the class exists.
func (n Name) Valid() bool { return slices.Contains(names, n) }

// UserNamespaces reports whether runs of this class may make user namespaces inside.
func (n Name) UserNamespaces() bool { return n == Browser }
