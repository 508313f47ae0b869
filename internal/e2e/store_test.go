package e2e

import (
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/fractalboxdev/sbx/internal/sbxtest"
)

// storeFault is one way in which the store can be unusable.
type storeFault struct {
	code  string // of the refusal
	needs string // "root" to bring it about, "home" for a state directory below a home
	spoil func(t *testing.T, lab *sbxtest.Lab, who sbxtest.User, file string)
}

// possible tells whether the test's own user can bring the fault about for another.
func (f storeFault) possible(lab *sbxtest.Lab, who sbxtest.User) bool {
	return (f.needs != "root" || os.Geteuid() == 0) && (f.needs != "home" || strings.HasPrefix(lab.StateDir(who), lab.Home(who)))
}

// must fails the test on the first error.
func must(t *testing.T, errs ...error) {
	t.Helper()
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
}

// storeFaults are also the rows 48 (links on the way) and 50 (a state directory of
// somebody else) of the bypasses.
var storeFaults = map[string]storeFault{
	"damaged": {"store-damaged", "", func(t *testing.T, _ *sbxtest.Lab, _ sbxtest.User, file string) {
		must(t, os.WriteFile(file, []byte("not a database, but as long as the header of one would be: 100 bytes, of which these are the first ones"), 0o600))
	}},
	"emptied": {"store-damaged", "", func(t *testing.T, _ *sbxtest.Lab, _ sbxtest.User, file string) {
		must(t, os.Truncate(file, 0))
	}},
	"made by a newer sbx": {"store-newer", "", func(t *testing.T, lab *sbxtest.Lab, who sbxtest.User, _ string) {
		inStore(t, lab, who, "PRAGMA user_version = 1000")
	}},
	"a link": {"store-foreign", "", func(t *testing.T, _ *sbxtest.Lab, _ sbxtest.User, file string) {
		must(t, os.Rename(file, file+".real"), os.Symlink(file+".real", file))
	}},
	"with another name": {"store-foreign", "", func(t *testing.T, _ *sbxtest.Lab, _ sbxtest.User, file string) {
		must(t, os.Link(file, file+".too"))
	}},
	"readable by others": {"store-foreign", "", func(t *testing.T, _ *sbxtest.Lab, _ sbxtest.User, file string) {
		must(t, os.Chmod(file, 0o644))
	}},
	"its directory readable by others": {"", "", func(t *testing.T, _ *sbxtest.Lab, _ sbxtest.User, file string) {
		must(t, os.Chmod(filepath.Dir(file), 0o755))
	}},
	"its directory in one that everybody may change": {"store-foreign", "home", func(t *testing.T, _ *sbxtest.Lab, _ sbxtest.User, file string) {
		must(t, os.Chmod(filepath.Dir(filepath.Dir(file)), 0o777))
	}},
	"of somebody else": {"store-foreign", "root", func(t *testing.T, lab *sbxtest.Lab, who sbxtest.User, file string) {
		must(t, os.Chown(file, lab.UID(who)+1, -1))
	}},
	"its directory of somebody else": {"", "root", func(t *testing.T, lab *sbxtest.Lab, who sbxtest.User, file string) {
		must(t, os.Chown(filepath.Dir(file), lab.UID(who)+1, -1))
	}},
	"read-only": {"", "root", func(t *testing.T, lab *sbxtest.Lab, who sbxtest.User, _ string) {
		dir := statePath(t, lab, who)
		lab.Within(t, func() error {
			return errors.Join(unix.Mount(dir, dir, "", unix.MS_BIND, ""), unix.Mount("", dir, "", unix.MS_BIND|unix.MS_REMOUNT|unix.MS_RDONLY, ""))
		})
		t.Cleanup(func() { lab.Within(t, func() error { return unix.Unmount(dir, unix.MNT_DETACH) }) })
	}},
	"on a full disk": {"", "root", func(t *testing.T, lab *sbxtest.Lab, who sbxtest.User, _ string) {
		dir := statePath(t, lab, who)
		lab.Within(t, func() error {
			return errors.Join(unix.Mount("sbx-full", dir, "tmpfs", 0, "size=12k,mode=0700"), os.Chown(dir, lab.UID(who), -1))
		})
		t.Cleanup(func() { lab.Within(t, func() error { return unix.Unmount(dir, unix.MNT_DETACH) }) })
	}},
}

// statePath is the state directory as sbx sees it.
func statePath(t *testing.T, lab *sbxtest.Lab, who sbxtest.User) string {
	t.Helper()
	got := lab.Run(t, who, "sbx", "state", "path")
	succeeded(t, got)
	return strings.TrimSpace(got.Stdout)
}

// What cannot be recorded is not run, and the refusal says what to do.
func TestBypass50_NothingRunsWithoutASafeStore(t *testing.T) {
	for name, fault := range storeFaults {
		t.Run(name, func(t *testing.T) {
			lab := sbxtest.NewLab(t)
			everyone(t, func(t *testing.T, who sbxtest.User) {
				if !fault.possible(lab, who) {
					return
				}
				succeeded(t, run(t, lab, who, "--", "true"))
				fault.spoil(t, lab, who, filepath.Join(lab.StateDir(who), "store.db"))
				got := run(t, lab, who, "--json", "--", "touch", "ran")
				refused(t, got, "next: ")
				var outcome struct {
					Result struct{ Refusal struct{ Code string } }
				}
				if err := json.Unmarshal([]byte(got.Stdout), &outcome); err != nil {
					t.Fatalf("%v in %s", err, got.Stdout)
				}
				if code := outcome.Result.Refusal.Code; fault.code != "" && code != fault.code {
					t.Errorf("the code is %q, want %q: %s", code, fault.code, got.Stderr)
				}
				if _, err := os.Stat(filepath.Join(lab.Project(who), "ran")); !errors.Is(err, fs.ErrNotExist) {
					t.Errorf("the command ran: %v", err)
				}
				nobodyRuns(t)
			})
		})
	}
}

// The store can be looked after without running anything.
func TestStateCommands(t *testing.T) {
	lab := sbxtest.NewLab(t)
	everyone(t, func(t *testing.T, who sbxtest.User) {
		if got := statePath(t, lab, who); got != lab.StateDir(who) && got != "/var/lib/sbx" {
			t.Errorf("the state directory is %q", got)
		}
		got := lab.Run(t, who, "sbx", "state", "check")
		succeeded(t, got)
		says(t, got.Stdout, "there is no store yet")
		got = lab.Run(t, who, "sbx", "state", "migrate")
		succeeded(t, got)
		says(t, got.Stdout, "migrated from version 0")
		succeeded(t, run(t, lab, who, "--", "true"))
		succeeded(t, lab.Run(t, who, "sbx", "state", "check"))
		inStore(t, lab, who, "UPDATE migrations SET name = 'other' WHERE version = 1")
		if got = lab.Run(t, who, "sbx", "state", "check", "--json"); got.Exit != 1 {
			t.Errorf("exit status %d, %s", got.Exit, got.Stdout)
		}
		says(t, got.Stdout, `step 1 of its schema is \"other\"`)
		must(t, os.WriteFile(filepath.Join(lab.StateDir(who), "store.db"), []byte("x"), 0o600))
		if got = lab.Run(t, who, "sbx", "state", "check"); got.Exit != 1 {
			t.Errorf("exit status %d, %s", got.Exit, got.Stdout)
		}
		says(t, got.Stderr, "damaged")
	})
}
