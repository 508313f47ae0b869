package artifact

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

// deepTree makes directories in one another, with something in each, deeper than a path
// can say.
func deepTree(t *testing.T, dir string, depth int) {
	t.Helper()
	at, err := unix.Open(dir, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	for i := 0; i < depth && err == nil; i++ {
		next := -1
		err = errors.Join(unix.Symlinkat("/etc", at, "link"), unix.Mkdirat(at, "side", 0o500), unix.Mkdirat(at, "d", 0o700))
		if err == nil {
			next, err = unix.Openat(at, "d", unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
			err = errors.Join(err, unix.Fchmodat(at, "d", 0o300, 0))
		}
		_ = unix.Close(at)
		at = next
	}
	if err != nil {
		t.Fatal(err)
	}
	_ = unix.Close(at)
}

// What is deeper than this process has descriptors goes as well.
func TestTreesAreRemovedHoweverDeep(t *testing.T) {
	dir := t.TempDir()
	root, err := os.OpenRoot(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer root.Close()
	for _, remove := range []func(*os.Root, string) error{takeApart, removeTree} {
		if err := root.Mkdir("tree", 0o700); err != nil {
			t.Fatal(err)
		}
		deepTree(t, filepath.Join(dir, "tree"), 600)
		var was unix.Rlimit
		if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &was); err != nil {
			t.Fatal(err)
		}
		few := was
		few.Cur = 256
		if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &few); err != nil {
			t.Fatal(err)
		}
		err := remove(root, "tree")
		if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &was); err != nil {
			t.Fatal(err)
		}
		if err != nil {
			t.Error(err)
		}
		if _, err := root.Lstat("tree"); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("it is still there: %v", err)
		}
	}
}
