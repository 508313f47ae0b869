package sandbox

import (
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestTheProgramIsGuardedWhereItCanBeWritten(t *testing.T) {
	writable := func(p string) bool { return Within(p, "/w") }
	before := []Protected{{Path: "/w/out/bin/.git"}, {Path: "/w/a", Private: true}, {Path: "/w/out/bin", Pin: true}}
	if diff := cmp.Diff(before, Guard(before, "/usr/bin/sbx", writable)); diff != "" {
		t.Error(diff)
	}
	want := []Protected{
		{Path: "/w/a", Private: true},
		{Path: "/w/out", Pin: true},
		{Path: "/w/out/bin", Pin: true},
		{Path: "/w/out/bin/.git"},
		{Path: "/w/out/bin/sbx"},
	}
	if diff := cmp.Diff(want, Guard(before, "/w/out/bin/sbx", writable)); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff(before, Guard(before, "/w/a/sbx", writable)); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff([]Protected{{Path: "/w/sbx"}}, Guard(nil, "/w/sbx", writable)); diff != "" {
		t.Error(diff)
	}
}

func TestWhatWasNamedStaysInItsPlace(t *testing.T) {
	writable := func(p string) bool { return Within(p, "/w") && !Within(p, "/w/a/b/read-only") }
	before := []Protected{{Path: "/w/a/b/.idea"}, {Path: "/w/p", Private: true}}
	want := []Protected{{Path: "/w/a", Pin: true}, {Path: "/w/a/b", Pin: true}, {Path: "/w/a/b/.idea"}, {Path: "/w/p", Private: true}}
	if diff := cmp.Diff(want, Pin(before, []string{"/w/a/b/read-only/hidden", "/w/a/b/read-only", "/w/p/x", "/w/x", "/etc/x"}, writable)); diff != "" {
		t.Error(diff)
	}
}
