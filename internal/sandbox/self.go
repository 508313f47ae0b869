package sandbox

import (
	"path"
	"slices"
	"strings"
)

// Guard adds the program sbx to what is protected, where the command could write it:
// the caller would run what it left there. What lies in the sandbox for the init is the
// same file on a read-only mount, so nothing leads to it from there (CVE-2019-5736).
func Guard(protected []Protected, program string, writable func(string) bool) []Protected {
	if !writable(program) || inPrivate(protected, program) {
		return protected
	}
	return pinned(append(slices.Clone(protected), Protected{Path: program}), program, writable)
}

// Pin adds the directories on the way to paths that the caller named, so that the command
// cannot put others in their place: a later run would hide or keep those.
func Pin(protected []Protected, paths []string, writable func(string) bool) []Protected {
	protected = slices.Clone(protected)
	for _, p := range paths {
		if !inPrivate(protected, p) {
			protected = pinned(protected, p, writable)
		}
	}
	return protected
}

func inPrivate(protected []Protected, name string) bool {
	return slices.ContainsFunc(protected, func(p Protected) bool { return p.Private && Within(name, p.Path) })
}

// pinned adds the directories on the way to a path. Parents come before what lies in them.
func pinned(protected []Protected, name string, writable func(string) bool) []Protected {
	for dir := path.Dir(name); writable(path.Dir(dir)) && dir != "/"; dir = path.Dir(dir) {
		if writable(dir) { // else it is a mount already
			protected = append(protected, Protected{Path: dir, Pin: true})
		}
	}
	// The stricter of two on the same path comes first, and stays.
	slices.SortStableFunc(protected, func(a, b Protected) int {
		if order := strings.Compare(a.Path, b.Path); order != 0 || a.Pin == b.Pin {
			return order
		} else if b.Pin {
			return -1
		}
		return 1
	})
	return slices.CompactFunc(protected, func(a, b Protected) bool { return a.Path == b.Path })
}
