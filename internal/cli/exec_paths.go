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
	if len(a.SetAside)+a.SetAsideLeft > 0 {
		parts = append(parts, named(a.SetAside, a.SetAsideLeft, workdir)+" moved to "+archive)
	}
	for _, r := range a.Renamed {
		parts = append(parts, shortPath(r.Path, workdir)+" renamed to "+filepath.Base(r.To))
	}
	for _, c := range a.Cleaned {
		settings := named(c.Settings, c.Left, "")
		if settings == "" {
			settings = "its other names"
		}
		parts = append(parts, "taken from "+shortPath(c.Path, workdir)+": "+settings)
	}
	left := a.RenamedLeft + a.CleanedLeft // in no list
	if all := len(parts); all > maxNamed {
		parts, left = parts[:maxNamed], left+all-maxNamed
	}
	if left > 0 {
		parts = append(parts, fmt.Sprintf("and %d more renamed or cleaned: see the receipt", left))
	}
	if len(parts) > 0 {
		lines = append(lines, "the command made what programs outside would run or obey: "+strings.Join(parts, "; "))
	}
	if len(a.Replaced)+a.ReplacedLeft > 0 {
		lines = append(lines, "changed from outside while the command ran, and not guarded from then on: "+named(a.Replaced, a.ReplacedLeft, workdir)+"; look at it before you use it")
	}
	return lines
}

// named lists paths, those of the working directory below it. left is how many there
// are besides.
func named(paths []string, left int, workdir string) string {
	var out []string
	for _, p := range paths[:min(len(paths), maxNamed)] {
		out = append(out, shortPath(p, workdir))
	}
	if more := len(paths) - len(out) + left; more > 0 {
		out = append(out, fmt.Sprintf("and %d more", more))
	}
	return strings.Join(out, ", ")
}

// maxShortPath is how much of a path a line has, in bytes: the command chose it.
const maxShortPath = 240

// shortPath is a path as a line names it: of a long one its beginning and its end.
func shortPath(p, workdir string) string {
	if below, ok := strings.CutPrefix(p, workdir+"/"); ok && workdir != "" {
		p = below
	}
	if len(p) > maxShortPath {
		p = p[:maxShortPath/2] + "[...]" + p[len(p)-maxShortPath/2:]
	}
	return p
}
