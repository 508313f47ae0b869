package sandbox

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
)

func TestPrivilegedFilesInTheProjectAreRefused(t *testing.T) {
	dir := t.TempDir()
	owner := uint32(os.Geteuid())
	deep := filepath.Join(dir, "a", "b")
	if err := errors.Join(os.MkdirAll(deep, 0o750), os.WriteFile(filepath.Join(deep, "tool"), nil, 0o600)); err != nil {
		t.Fatal(err)
	}
	if err := CheckPrivilegeBits(dir, owner); err != nil {
		t.Errorf("nothing privileged: %v", err)
	}
	for _, bit := range []os.FileMode{os.ModeSetuid, os.ModeSetgid} {
		if err := os.Chmod(filepath.Join(deep, "tool"), 0o755|bit); err != nil {
			t.Fatal(err)
		}
		if _, ok := errors.AsType[*Refusal](CheckPrivilegeBits(dir, owner)); !ok {
			t.Errorf("%v was not noticed", bit)
		}
		if err := CheckPrivilegeBits(dir, owner+1); err != nil {
			t.Errorf("somebody else's file: %v", err)
		}
	}
}

func TestResolveFollowsLinksAsFarAsThePathExists(t *testing.T) {
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(os.Mkdir(filepath.Join(dir, "real"), 0o750), os.Symlink("real", filepath.Join(dir, "link"))); err != nil {
		t.Fatal(err)
	}
	if got, want := Resolve(filepath.Join(dir, "link", "state", "sbx")), filepath.Join(dir, "real", "state", "sbx"); got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}
