// Package links follows symbolic links one by one, so that everything on the way to a
// file can be looked at before the file is believed.
package links

import (
	"errors"
	"path/filepath"
	"slices"
	"strings"
)

// Max bounds the links on one way, as the kernel does (path_resolution(7)).
const Max = 40

// ErrUnfollowed is a way that has more links than Max, or one that cannot be read.
var ErrUnfollowed = errors.New("its symbolic links cannot be followed")

// Follow returns where an absolute path leads, without any link in it. look is asked of
// each place on the way, from the root on, whether it is a symbolic link; its error ends
// the way and comes back as it is. read returns the target of a link, as os.Readlink does.
func Follow(path string, look func(at string) (link bool, err error), read func(at string) (target string, err error)) (string, error) {
	done, rest := "/", split(path)
	for followed := 0; len(rest) > 0; {
		at := filepath.Join(done, rest[0])
		link, err := look(at)
		if err != nil {
			return "", err
		}
		rest = rest[1:]
		if !link {
			done = at
			continue
		}
		target, err := read(at)
		if followed++; err != nil || followed > Max {
			return "", ErrUnfollowed
		}
		if filepath.IsAbs(target) {
			done = "/"
		}
		rest = append(split(target), rest...)
	}
	return done, nil
}

// split keeps "..", which filepath.Join resolves against what was reached.
func split(path string) []string {
	return slices.DeleteFunc(strings.Split(path, "/"), func(s string) bool { return s == "" || s == "." })
}
