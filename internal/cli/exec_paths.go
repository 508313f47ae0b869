package cli

import (
	"fmt"
	"path/filepath"
	"strings"

	"github.com/spf13/pflag"

	"github.com/fractalboxdev/sbx/internal/event"
	"github.com/fractalboxdev/sbx/internal/sandbox"
)

// wishes are what --ro, --rw and --hide say, in the order of the command line.
type wishes struct {
	list   []sandbox.Wish
	bareRO bool // --ro without a path
}

// wishFlag is one of the three options.
type wishFlag struct {
	all    *wishes
	access sandbox.Access
}

// here is the path of an option without one: the working directory.
const here = "."

// String is empty: there is no default to show.
func (*wishFlag) String() string { return "" }

// Type is what the help calls the value.
func (*wishFlag) Type() string { return "path" }

// Set adds a path.
func (w *wishFlag) Set(path string) error {
	w.all.list = append(w.all.list, sandbox.Wish{Path: path, Access: w.access})
	w.all.bareRO = w.all.bareRO || w.access == sandbox.ReadOnly && path == here
	return nil
}

// addTo makes the options. Paths count from the working directory of the run.
func (w *wishes) addTo(f *pflag.FlagSet) {
	ro := f.VarPF(&wishFlag{w, sandbox.ReadOnly}, "ro", "", "show a file or directory read-only: --ro=`path`; without a path, the working directory is read-only")
	ro.NoOptDefVal = here
	f.Var(&wishFlag{w, sandbox.Writable}, "rw", "show a file or directory at this `path`, and let the command change it")
	f.Var(&wishFlag{w, sandbox.Hidden}, "hide", "hide the file or directory at this `path`")
}

// check refuses what looks like a path behind --ro, which would be run as the command.
func (w *wishes) check(argv []string) error {
	if w.bareRO && len(argv) > 1 && argv[1] == "--" {
		return &usageError{
			fmt.Sprintf("--ro takes its path behind an equals sign, and %s is not part of it", argv[0]),
			fmt.Sprintf("write --ro=%s, or put -- before the command", argv[0]),
		}
	}
	return nil
}

// maxNamed is how many paths one line names.
const maxNamed = 8

// asideLines say what became of what the command had put where programs outside would
// run or obey it.
func asideLines(a event.Aside, workdir, archive string) (lines []string) {
	var parts []string
	if n := len(a.SetAside); n > 0 {
		parts = append(parts, named(a.SetAside, workdir)+" moved to "+archive)
	}
	for _, r := range a.Renamed {
		parts = append(parts, named([]string{r.Path}, workdir)+" renamed to "+filepath.Base(r.To))
	}
	for _, c := range a.Cleaned {
		settings := strings.Join(c.Settings, ", ")
		if settings == "" {
			settings = "its other names"
		}
		parts = append(parts, "taken from "+named([]string{c.Path}, workdir)+": "+settings)
	}
	if len(parts) > maxNamed {
		parts = append(parts[:maxNamed], fmt.Sprintf("and %d more, in the receipt", len(parts)-maxNamed))
	}
	if len(parts) > 0 {
		lines = append(lines, "the command made what programs outside would run or obey: "+strings.Join(parts, "; "))
	}
	if len(a.Replaced) > 0 {
		lines = append(lines, "changed from outside while the command ran, and not guarded from then on: "+named(a.Replaced, workdir)+"; look at it before you use it")
	}
	return lines
}

// named lists paths, those of the working directory below it.
func named(paths []string, workdir string) string {
	var out []string
	for _, p := range paths[:min(len(paths), maxNamed)] {
		if below, ok := strings.CutPrefix(p, workdir+"/"); ok && workdir != "" {
			p = below
		}
		out = append(out, p)
	}
	if more := len(paths) - maxNamed; more > 0 {
		out = append(out, fmt.Sprintf("and %d more", more))
	}
	return strings.Join(out, ", ")
}
