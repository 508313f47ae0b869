// Package class has the four kinds of runs and what a run of each may use of the
// machine. Values only: the operator's configuration fills them in, the profile
// chooses one.
package class

import "slices"

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
