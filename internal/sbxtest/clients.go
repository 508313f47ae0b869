package sbxtest

import (
	"embed"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"testing"
)

//go:embed testdata/clients/package.json testdata/clients/package-lock.json
var clientsProject embed.FS

// clientsDir is laid out as a prefix of npm's is: programs in bin, packages in lib.
const clientsDir = labRoot + "/clients"

// clientPrograms is what stands behind each command, below lib/node_modules; a
// pattern where the name has the architecture in it.
var clientPrograms = map[string]string{
	"bun":       "@oven/bun-linux-*/bin/bun",
	"pnpm":      "@pnpm/exe.linux-*/pnpm",
	"pnpm10":    "pnpm-10/bin/pnpm.cjs",
	"yarn":      "yarn/bin/yarn.js",
	"yarnberry": "@yarnpkg/cli-dist/bin/yarn.js",
}

// Clients installs the package clients that npm has, once for the test process,
// from where the machine's own npm asks, and returns the directory of their
// commands: bun, pnpm, pnpm10, yarn (the classic line) and yarnberry. Every user
// of a lab can execute them.
func Clients(t testing.TB) string {
	t.Helper()
	bin := filepath.Join(clientsDir, "bin")
	if _, err := os.Stat(bin); err == nil {
		return bin
	}
	lib := filepath.Join(clientsDir, "lib")
	if err := layClients(lib); err != nil {
		t.Fatalf("installing the package clients: %v", err)
	}
	install := exec.CommandContext(t.Context(), "npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund")
	install.Dir, install.Env = lib, os.Environ()
	NewLab(t, RealNetwork()).Within(t, func() error {
		if out, err := install.CombinedOutput(); err != nil {
			return fmt.Errorf("installing the package clients: %w\n%s", err, out)
		}
		return nil
	})
	if err := linkClients(lib, bin); err != nil {
		t.Fatalf("installing the package clients: %v", err)
	}
	return bin
}

func layClients(lib string) error {
	if err := os.MkdirAll(lib, 0o755); err != nil {
		return err
	}
	for _, name := range []string{"package.json", "package-lock.json"} {
		text, err := clientsProject.ReadFile("testdata/clients/" + name)
		if err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(lib, name), text, 0o644); err != nil {
			return err
		}
	}
	return nil
}

// linkClients makes the commands; bin appears with all of them or not at all.
func linkClients(lib, bin string) error {
	work := bin + ".new"
	if err := errors.Join(os.RemoveAll(work), os.MkdirAll(work, 0o755)); err != nil {
		return err
	}
	for name, pattern := range clientPrograms {
		found, err := filepath.Glob(filepath.Join(lib, "node_modules", pattern))
		if err != nil || len(found) != 1 {
			return fmt.Errorf("%s for %s: %d programs match %s: %w", name, runtime.GOARCH, len(found), pattern, errors.Join(err, os.ErrNotExist))
		}
		target, err := filepath.Rel(bin, found[0])
		if err != nil {
			return err
		}
		if err := errors.Join(os.Chmod(found[0], 0o755), os.Symlink(target, filepath.Join(work, name))); err != nil {
			return err
		}
	}
	return os.Rename(work, bin)
}
