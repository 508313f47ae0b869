package sandbox

import (
	"path"
	"slices"
	"strings"
)

// Guard adds the program sbx to what is protected, where the command could write it:
// the caller would run what it left there. What lies in the sandbox for the init is the
// same file on a read-only mount, so nothing leads to it from there (CVE-2019-5736).
// Parents come before what lies in them.
func Guard(protected []Protected, program string, writable func(string) bool) []Protected {
	covered := slices.ContainsFunc(protected, func(p Protected) bool { return p.Private && Within(program, p.Path) })
	if !writable(program) || covered {
		return protected
	}
	protected = append(slices.Clone(protected), Protected{Path: program})
	for dir := path.Dir(program); writable(path.Dir(dir)) && dir != "/"; dir = path.Dir(dir) {
		protected = append(protected, Protected{Path: dir, Pin: true})
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
