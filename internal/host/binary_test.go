package host

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
)

func TestABinaryThatWasReplacedIsNoticed(t *testing.T) {
	if err := RunningBinary().Check(); err != nil {
		t.Errorf("the running one: %v", err)
	}
	dir := t.TempDir()
	running, err := os.Readlink("/proc/self/exe")
	if err != nil {
		t.Fatal(err)
	}
	link, other := filepath.Join(dir, "link"), filepath.Join(dir, "other")
	if err := errors.Join(os.Symlink(running, link), os.WriteFile(other, []byte("x"), 0o700)); err != nil {
		t.Fatal(err)
	}
	if err := (Binary{link}).Check(); err != nil {
		t.Errorf("another way to it: %v", err)
	}
	for what, b := range map[string]Binary{"another file": {other}, "no file": {filepath.Join(dir, "none")}, "no path": {}} {
		if err := b.Check(); !errors.Is(err, ErrReplaced) {
			t.Errorf("%s: %v", what, err)
		}
	}
}
