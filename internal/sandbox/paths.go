package sandbox

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"github.com/fractalboxdev/sbx/internal/guard"
)

// Access is how a path is to be shown.
type Access string

// The ways to show a path.
const (
	ReadOnly Access = "read-only"
	Writable Access = "writable"
	Hidden   Access = "hidden"
)

// Wish is a path that the caller named with --ro, --rw or --hide, relative to the
// working directory.
type Wish struct {
	Path   string
	Access Access
}

// Shown is a wish that was looked up.
type Shown struct {
	Path   string // absolute, as it was named
	Real   string // without links
	Access Access
}

// Paths are the working directory and what else was asked for.
type Paths struct {
	Workdir  string // without links
	ReadOnly bool   // the working directory is
	Shown    []Shown
}

// ResolvePaths looks up what the caller named. A read-only wish for the working
// directory itself is its own.
func ResolvePaths(workdir string, wishes []Wish) (Paths, error) {
	real, err := filepath.EvalSymlinks(workdir)
	if err != nil {
		return Paths{}, fmt.Errorf("finding the working directory: %w", err)
	}
	p := Paths{Workdir: real}
	for _, w := range wishes {
		s, err := resolve(workdir, w)
		if err != nil {
			return p, err
		}
		switch {
		case s.Real != real:
			p.Shown = append(p.Shown, s)
		case s.Access == Hidden:
			return p, refuse(s, "is the working directory", "hide what is in it, or start in another one")
		case s.Access == ReadOnly:
			p.ReadOnly = true
		}
	}
	return p, errors.Join(conflict(p.Shown), planted(workdir, p))
}

// planted refuses a path that leads through a link which an earlier command may have
// made: it would give away what that one chose.
func planted(workdir string, p Paths) error {
	dirs := []Shown{{Path: workdir, Real: p.Workdir}}
	for _, s := range p.Shown {
		if s.Access == Writable {
			dirs = append(dirs, s)
		}
	}
	for _, s := range p.Shown {
		for _, dir := range dirs {
			for _, name := range []string{dir.Path, dir.Real} {
				if rest, below := strings.CutPrefix(s.Path, name+"/"); below && s.Real != path.Join(dir.Real, rest) {
					return refuse(s, "leads through a link in "+name+", to "+s.Real+": a command may have made it", "name the real path, if it is what you want")
				}
			}
		}
	}
	return nil
}

// String is the option by which the path was named.
func (s Shown) String() string {
	switch s.Access {
	case ReadOnly:
		return "--ro=" + s.Path
	case Writable:
		return "--rw " + s.Path
	case Hidden:
	}
	return "--hide " + s.Path
}

func refuse(s Shown, what, next string) *Refusal {
	return &Refusal{What: s.String() + ": it " + what, Next: next}
}

func resolve(workdir string, w Wish) (Shown, error) {
	s := Shown{Path: w.Path, Access: w.Access}
	if s.Path == "" {
		return s, refuse(s, "is empty", "name a file or directory")
	}
	if !path.IsAbs(s.Path) {
		s.Path = path.Join(workdir, s.Path)
	}
	s.Path = path.Clean(s.Path)
	real, err := filepath.EvalSymlinks(s.Path)
	if errors.Is(err, fs.ErrNotExist) {
		return s, refuse(s, "does not exist", "make it first, or leave the option out: sbx makes nothing outside its own directories")
	}
	if err != nil {
		return s, fmt.Errorf("finding %s: %w", s.Path, err)
	}
	s.Real = real
	info, err := os.Lstat(real)
	if err != nil {
		return s, fmt.Errorf("looking at %s: %w", real, err)
	}
	if !info.IsDir() && !info.Mode().IsRegular() {
		return s, refuse(s, "is a socket, pipe or device: what listens there runs outside", "name files and directories only")
	}
	if s.Access == Hidden && info.Mode().IsRegular() && linksOf(info) > 1 {
		return s, refuse(s, "has other names (hard links), by which it would still be seen", "hide a directory that holds all of them, or give it a copy of its own")
	}
	return s, nil
}

func conflict(shown []Shown) error {
	seen := map[string]Shown{}
	for _, s := range shown {
		if before, ok := seen[s.Real]; ok && before.Access != s.Access {
			return refuse(s, "is also named with "+before.String(), "decide for one of them")
		}
		seen[s.Real] = s
	}
	return nil
}

// access is what a path gets from the deepest of the named paths that it lies in.
func (p Paths) access(of string, beneath bool) (Access, bool) {
	deepest, access, found := "", ReadOnly, false
	consider := func(dir string, a Access) {
		if a != Hidden && Within(of, dir) && (!beneath || of != dir) && (!found || len(dir) > len(deepest)) {
			deepest, access, found = dir, a, true
		}
	}
	consider(p.Workdir, p.workdirAccess())
	for _, s := range p.Shown {
		consider(s.Real, s.Access)
	}
	return access, found
}

func (p Paths) workdirAccess() Access {
	if p.ReadOnly {
		return ReadOnly
	}
	return Writable
}

// Writable reports whether the command could write a path without links.
func (p Paths) Writable(of string) bool {
	access, found := p.access(of, false)
	return found && access == Writable
}

// Roots are the directories below which all is writable but what Locked names, none
// of them in another.
func (p Paths) Roots() (out []string) {
	named := []Shown{{Real: p.Workdir, Access: p.workdirAccess()}}
	for _, s := range append(named, p.Shown...) {
		around, found := p.access(s.Real, true)
		if s.Access == Writable && (!found || around != Writable) && isDirectory(s.Real) && !slices.Contains(out, s.Real) {
			out = append(out, s.Real)
		}
	}
	return out
}

// Everything is the roots, and the writable files besides.
func (p Paths) Everything() []string {
	out := p.Roots()
	for _, s := range p.Shown {
		if s.Access == Writable && !isDirectory(s.Real) {
			out = append(out, s.Real)
		}
	}
	return out
}

// Locked are the paths that are not writable although they may lie in one that is.
func (p Paths) Locked() (out []string) {
	if p.ReadOnly {
		out = append(out, p.Workdir)
	}
	for _, s := range p.Shown {
		if s.Access == ReadOnly {
			out = append(out, s.Real)
		}
	}
	return out
}

// Kept are the paths that have to stay what they are and where they are, although the
// command may write around them.
func (p Paths) Kept() (out []string) {
	for _, s := range p.Shown {
		if s.Access != Writable {
			out = append(out, s.Real)
		}
	}
	return out
}

// Lifted are the writable paths below the working directory that were named.
func (p Paths) Lifted() (out []string) {
	for _, s := range p.Shown {
		if s.Access == Writable && Within(s.Real, p.Workdir) {
			out = append(out, s.Real)
		}
	}
	return out
}

// machinery are the places inside that a run fills itself, or that show what the
// host's kernel and daemons do.
var machinery = []string{"/proc", "/sys", "/dev", "/run", "/etc", "/tmp", "/var/tmp"}

// inMachinery reports whether a path is, holds or lies in such a place. In the places
// for temporary files others may lie.
func inMachinery(p string) bool {
	for _, own := range machinery {
		if Within(own, p) || Within(p, own) && own != "/tmp" && own != "/var/tmp" {
			return true
		}
	}
	return false
}

// CheckPaths refuses what would give away too much, or would not be what was asked for.
func CheckPaths(f Facts, p Paths) error {
	if err := CheckWorkdir(f, p.ReadOnly); err != nil {
		return err
	}
	for _, s := range p.Shown {
		if err := checkShown(f, p, s); err != nil {
			return err
		}
	}
	return nil
}

func checkShown(f Facts, p Paths, s Shown) error {
	switch {
	case s.Access == Hidden && strings.HasPrefix(s.Real, "/etc/"):
		return nil
	case inMachinery(s.Real):
		return refuse(s, "is, holds or lies in a directory that belongs to the system: "+strings.Join(machinery, ", "), "name what the command needs below it; of /etc everything shows, of the others nothing")
	case s.Access == Hidden:
		return nil
	case f.holdsHome(s.Real):
		return refuse(s, "holds the home directory, with all keys and tokens in it", "name the directories in it that the command needs")
	case s.Access == ReadOnly:
		return nil
	}
	return checkWritable(f, p, s)
}

// checkWritable refuses to let the command write what the system needs or what
// programs outside run or obey. Of the project, the caller may give up all but git's.
func checkWritable(f Facts, paths Paths, s Shown) error {
	outside := f
	outside.Workdir = s.Real
	if CheckWorkdir(outside, false) != nil {
		return refuse(s, "belongs to the system", "show it read-only, with --ro="+s.Path)
	}
	if strings.Contains(s.Real+"/", "/.git/") {
		return refuse(s, "lies in a repository's own directory: what git runs stays read-only", "leave it out; everything else in .git is writable where the project is")
	}
	if p := guard.Prefix(strings.TrimPrefix(s.Real, "/")); p != "" && !Within(s.Real, paths.Workdir) {
		return refuse(s, "is obeyed by programs outside (/"+p+")", "show it read-only, with --ro="+s.Path)
	}
	return nil
}
