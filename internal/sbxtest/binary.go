package sbxtest

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
)

// Binary builds the release binary, once for the test process, and returns
// the path of a copy that every user of a lab can execute.
func Binary(t testing.TB) string {
	t.Helper()
	path, err := builtBinary()
	if err != nil {
		t.Fatal(err)
	}
	return path
}

// BrokenBinary is Binary for the build whose walls SBX_BREAK takes away, for
// tests of the canary (internal/fence, tag sbxbreak).
func BrokenBinary(t testing.TB) string {
	t.Helper()
	path, err := brokenBinary()
	if err != nil {
		t.Fatal(err)
	}
	return path
}

// VersionedBinary is Binary for a build that calls itself v1.2.3.
func VersionedBinary(t testing.TB) string {
	t.Helper()
	path, err := versionedBinary()
	if err != nil {
		t.Fatal(err)
	}
	return path
}

var (
	versionedBinary = sync.OnceValues(func() (string, error) { return build("sbx-v1.2.3", "--version", "v1.2.3") })

	builtBinary  = sync.OnceValues(func() (string, error) { return build("sbx") })
	brokenBinary = sync.OnceValues(func() (string, error) { return build("sbx-broken", "--broken") })
)

// build makes bin/NAME and returns the path of its copy.
func build(name string, flags ...string) (string, error) {
	root, err := Root()
	if err != nil {
		return "", err
	}
	build := exec.CommandContext(context.Background(), filepath.Join(root, ".ci/build"), flags...)
	build.Dir = root
	if output, err := build.CombinedOutput(); err != nil {
		return "", fmt.Errorf("building %s: %w\n%s", name, err, output)
	}
	place := labRoot + "/bin/" + name
	if err := os.MkdirAll(filepath.Dir(place), 0o755); err != nil {
		return "", fmt.Errorf("placing the binary: %w", err)
	}
	if err := copyFile(filepath.Join(root, "bin", name), place, 0o755); err != nil {
		return "", fmt.Errorf("placing the binary: %w", err)
	}
	return place, nil
}

// Root is the top of the source tree that the test runs in.
func Root() (string, error) {
	dir, err := os.Getwd()
	if err != nil {
		return "", fmt.Errorf("finding the source tree: %w", err)
	}
	for start := dir; ; dir = filepath.Dir(dir) {
		if _, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil {
			return dir, nil
		}
		if dir == filepath.Dir(dir) {
			return "", fmt.Errorf("finding the source tree: no go.mod above %s", start)
		}
	}
}
