package e2e

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/fractalboxdev/sbx/internal/sbxtest"
)

// TestBypass62_LandlockIsAWallOfItsOwn tries the sandbox's Landlock code without the
// sandbox: where no mount is read-only, it alone refuses.
func TestBypass62_LandlockIsAWallOfItsOwn(t *testing.T) {
	abi := landlockABI()
	if abi < 2 {
		t.Skip("this kernel has no Landlock of version 2 or newer")
	}
	program := compiled(t, "restrict.c", "../sandbox/stage/landlock.c")
	for version := 2; version <= min(abi, 7); version++ {
		t.Run(fmt.Sprint("version ", version), func(t *testing.T) { restricted(t, program, version) })
	}
}

func restricted(t *testing.T, program string, version int) {
	t.Helper()
	dir := t.TempDir()
	for _, name := range []string{"w/a/", "w/b/", "r/d/"} {
		if err := os.MkdirAll(filepath.Join(dir, name), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range []string{"w/a/f", "r/f", "r/g", "r/only"} {
		if err := os.WriteFile(filepath.Join(dir, name), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	listener, err := net.Listen("unix", "@"+filepath.Base(dir))
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	scoped := "EPERM"
	if version < 6 {
		scoped = "ok"
	}
	attempts := []attempt{
		{"reading", "ok", "read r/f"},
		{"writing", "EACCES", "write r/f"},
		{"writing a file that is writable alone", "ok", "write r/only"},
		{"making", "EACCES", "make r/new"},
		{"making a directory", "EACCES", "mkdir r/new"},
		{"making a pipe", "EACCES", "mkfifo r/new"},
		{"making a link", "EACCES", "symlink r/new"},
		{"removing", "EACCES", "remove r/g"},
		{"removing a directory", "EACCES", "remove r/d"},
		{"renaming", "EACCES", "rename r/f r/h"},
		{"renaming into what is writable", "EACCES", "rename r/f w/h"},
		{"renaming out of it", "EXDEV|EACCES", "rename w/a/f r/h"},
		{"linking into it", "EXDEV|EACCES", "link r/f w/h"},
		{"writing inside", "ok", "write w/a/f"},
		{"making inside", "ok", "make w/new"},
		{"moving between directories inside", "ok", "rename w/a/f w/b/f"},
		{"linking between directories inside", "ok", "link w/b/f w/a/f"},
		{"removing inside", "ok", "remove w/b/f"},
		{"a pipe inside", "ok", "mkfifo w/pipe"},
		{"a signal to somebody else", scoped, fmt.Sprint("kill ", os.Getpid())},
		{"a signal to itself", "ok", "kill 0"},
		{"somebody else's abstract socket", scoped, "abstract " + filepath.Base(dir)},
	}
	cmd := exec.CommandContext(t.Context(), program, fmt.Sprint(version), "w", "r/only", "absent")
	cmd.Dir, cmd.Stdin, cmd.Stderr = dir, strings.NewReader(spoken(attempts)), os.Stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	answered(t, attempts, string(out))
}

// TestBypass61_TheReceiptSaysWhetherLandlockWasApplied: as the kernel has it, and with
// the reason where it has not.
func TestBypass61_TheReceiptSaysWhetherLandlockWasApplied(t *testing.T) {
	lab := sbxtest.NewLab(t)
	everyone(t, func(t *testing.T, who sbxtest.User) {
		got := run(t, lab, who, "--", "true")
		succeeded(t, got)
		m := measure(t, got, "landlock")
		if m.Applied != (landlockABI() >= 2) || !m.Applied && m.Detail == "" || m.Applied && !strings.HasPrefix(m.Detail, fmt.Sprintf("ABI %d: ", landlockABI())) {
			t.Errorf("%+v", m)
		}
	})
}
