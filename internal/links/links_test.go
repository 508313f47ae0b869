package links

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
)

func TestFollow(t *testing.T) {
	world := map[string]string{
		"/a": "", "/a/b": "", "/a/b/c": "",
		"/abs": "/a/b", "/a/rel": "b", "/a/up": "../a/b/../b", "/a/slashes": "//a//b/./",
		"/chain": "abs", "/loop": "loop",
	}
	for i := range Max + 1 {
		world[fmt.Sprintf("/n%d", i)] = fmt.Sprintf("n%d", i+1)
	}
	world[fmt.Sprintf("/n%d", Max+1)] = ""
	failed := errors.New("failed")
	for path, want := range map[string]string{
		"/": "/", "/a/b/c": "/a/b/c", "//a/./b//c/": "/a/b/c", "/a/b/../b/c": "/a/b/c", "/../a": "/a",
		"/abs/c": "/a/b/c", "/a/rel/c": "/a/b/c", "/a/up/c": "/a/b/c", "/a/slashes/c": "/a/b/c", "/chain/c": "/a/b/c",
		"/abs/../b": "/a/b", // "..", as the kernel reads it: of where the link leads
		"/loop":     "unfollowed", "/n1": fmt.Sprintf("/n%d", Max+1), "/n0": "unfollowed",
		"/a/missing": "failed", "/missing/../a": "failed",
	} {
		var asked []string
		got, err := Follow(path, func(at string) (bool, error) {
			asked = append(asked, at)
			target, ok := world[at]
			if !ok && at != "/" {
				return false, failed
			}
			return target != "", nil
		}, func(at string) (string, error) { return world[at], nil })
		switch {
		case errors.Is(err, failed):
			got = "failed"
		case errors.Is(err, ErrUnfollowed):
			got = "unfollowed"
		case err != nil:
			t.Fatal(err)
		}
		if got != want {
			t.Errorf("%s leads to %q, want %q; asked %q", path, got, want, asked)
		}
		if i := slices.IndexFunc(asked, func(at string) bool { return !strings.HasPrefix(at, "/") || strings.Contains(at, "..") }); i >= 0 {
			t.Errorf("%s: asked of %q", path, asked[i])
		}
	}
}
