package host

import (
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// Each part of a machine that a proof of the floor rests on changes its identity, and
// nothing else of the identity.
func TestVector39_EveryPartOfTheHostIsItsIdentity(t *testing.T) {
	root := t.TempDir()
	write := func(path, text string) {
		t.Helper()
		full := filepath.Join(root, path)
		if err := os.MkdirAll(filepath.Dir(full), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(full, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	namespace := func(name string) {
		t.Helper()
		link := filepath.Join(root, "proc/self/ns/user")
		_ = os.Remove(link)
		if err := os.MkdirAll(filepath.Dir(link), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.Symlink(name, link); err != nil {
			t.Fatal(err)
		}
	}
	files := map[string]string{
		"security modules": "sys/kernel/security/lsm", "confinement": "proc/self/attr/current",
		"user ids": "proc/self/uid_map", "group ids": "proc/self/gid_map",
	}
	for _, name := range identifying {
		files["sysctl "+strings.ReplaceAll(name, "/", ".")] = "proc/sys/" + name
	}
	for _, path := range files {
		write(path, "0\n")
	}
	write("proc/self/status", "Seccomp:\t0\nCapEff:\t0000000000000000\n")
	namespace(initialUserNamespace)
	h := New(Options{Root: root})
	before := h.Identity()
	differs := func(what string) {
		t.Helper()
		after := h.Identity()
		changed := []string{}
		for key := range maps.Keys(after) {
			if before[key] != after[key] {
				changed = append(changed, key)
			}
		}
		if len(changed) != 1 || changed[0] != what || len(after) != len(before) {
			t.Errorf("changing %s changed %q", what, changed)
		}
		before = after
	}
	for what, path := range files {
		write(path, "1\n")
		differs(what)
	}
	write("proc/self/status", "Seccomp:\t2\nCapEff:\t0000000000000000\n")
	differs("seccomp")
	write("proc/self/status", "Seccomp:\t2\nCapEff:\t0000000000001000\n")
	differs("capabilities")
	namespace("user:[4026532000]")
	differs("user namespace")
	write("sys/fs/cgroup/cgroup.controllers", "")
	differs("cgroup")
	for _, key := range []string{"kernel", "landlock"} { // asked of the kernel itself
		if before[key] == "" {
			t.Errorf("%s is not told", key)
		}
	}
}
