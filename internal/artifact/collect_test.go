package artifact

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/fractalboxdev/sbx/internal/event"
	"github.com/fractalboxdev/sbx/internal/secret"
)

// openRun opens a run in a new state directory, with one secret.
func openRun(t *testing.T) *Run {
	t.Helper()
	token, err := secret.Parse("hunter2hunter2")
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	if err := os.Chmod(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	run, err := Open(Options{StateDir: dir, RunID: NewID(time.Now()), Redact: secret.NewRedactor(token)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(run.Close)
	return run
}

func scriptIn(t *testing.T, dir, script string) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "bash", "-ec", script)
	cmd.Dir = dir
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
}

func TestBypass49_OnlyRegularFilesOfTheOutboxAreCollected(t *testing.T) {
	run := openRun(t)
	outbox, err := run.Scratch()
	if err != nil {
		t.Fatal(err)
	}
	scriptIn(t, outbox, `
		mkdir -p a/b locked repo.git/objects repo.git/refs .vscode x/.git; echo one >one; echo two >a/b/two; echo "token hunter2hunter2." >masked
		ln -s /etc/passwd link; ln -s /etc dir; ln -s one inside; mkfifo pipe; ln one hard; echo x >locked/x; chmod 0 locked/x locked
		echo x >repo.git/HEAD; echo x >repo.git/config; echo x >.vscode/x; echo x >.netrc; echo x >$'new\nline'; echo x >x/.git/config; truncate -s 2T huge; echo x >receipt.json
		mkdir $'\xe4'; echo x >$'\xe4/\xe5'; echo x >$'\xe2\x80\xae.txt'; mkdir $'\xc2\x9b31m'`)
	got, err := run.Collect()
	if err != nil {
		t.Fatal(err)
	}
	skipped := map[string]string{}
	for _, s := range got.Skipped {
		skipped[s.Path] = s.Why
	}
	if diff := cmp.Diff(map[string]string{
		"link": "not a regular file", "dir": "not a regular file", "inside": "not a regular file", "pipe": "not a regular file",
		"repo.git/config": "programs outside would run or obey it", ".vscode": "programs outside would run or obey it", "x/.git": "programs outside would run or obey it",
		".netrc": "it holds credentials", "new\nline": "its name has control characters", "\u202e.txt": "its name has control characters", "\u009b31m": "its name has control characters", "huge": "over 1073741824 bytes in all",
	}, skipped); diff != "" {
		t.Error(diff)
	}
	want := map[string]string{"one": "one\n", "hard": "one\n", "a/b/two": "two\n", "masked": "token " + secret.Masked + ".\n", "locked/x": "x\n", "repo.git/HEAD": "x\n", "receipt.json": "x\n", "\xe4/\xe5": "x\n"}
	check := func(dir string) {
		t.Helper()
		if diff := cmp.Diff(want, readTree(t, dir)); diff != "" {
			t.Error(diff)
		}
	}
	check(filepath.Join(run.Dir(), FilesDir))
	if got.Files != len(want) {
		t.Errorf("%d files, want %d", got.Files, len(want))
	}

	target := filepath.Join(t.TempDir(), "out")
	held, err := HoldTarget(target)
	if err != nil {
		t.Fatal(err)
	}
	defer held.Close()
	if err := run.Finish(event.Receipt{Collected: got}); err != nil {
		t.Fatal(err)
	}
	if err := run.CopyTo(held); err != nil {
		t.Fatal(err)
	}
	check(filepath.Join(target, FilesDir))
}

func readTree(t *testing.T, dir string) map[string]string {
	t.Helper()
	out := map[string]string{}
	err := filepath.WalkDir(dir, func(p string, d os.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		text, err := os.ReadFile(p)
		out[strings.TrimPrefix(p, dir+"/")] = string(text)
		if info, err := d.Info(); err != nil || info.Mode() != 0o600 {
			t.Errorf("%s has mode %s (%v)", p, info.Mode(), err)
		}
		return err
	})
	if err != nil {
		t.Error(err)
	}
	return out
}

func TestCollectionIsBounded(t *testing.T) {
	run := openRun(t)
	outbox, err := run.Scratch()
	if err != nil {
		t.Fatal(err)
	}
	scriptIn(t, outbox, `d=.; for i in $(seq 40); do d=$d/d; done; mkdir -p $d many; touch $d/x; cd many; seq -f f%.0f 10010 | xargs touch`)
	got, err := run.Collect()
	if err != nil {
		t.Fatal(err)
	}
	if got.Files != maxCollectedFile || len(got.Skipped) != 11 || got.Left != 0 {
		t.Errorf("%d files, %d skipped, %d besides", got.Files, len(got.Skipped), got.Left)
	}
}

// A directory that a link stands for is refused, in the target of a copy, too.
func TestBypass48_CopiesFollowNoLink(t *testing.T) {
	run := openRun(t)
	outbox, err := run.Scratch()
	if err != nil {
		t.Fatal(err)
	}
	scriptIn(t, outbox, "echo x >x")
	if _, err := run.Collect(); err != nil {
		t.Fatal(err)
	}
	victim, target := t.TempDir(), t.TempDir()
	if err := os.Symlink(victim, filepath.Join(target, FilesDir)); err != nil {
		t.Fatal(err)
	}
	held, err := HoldTarget(target)
	if err != nil {
		t.Fatal(err)
	}
	defer held.Close()
	if err := run.Finish(event.Receipt{}); err != nil {
		t.Fatal(err)
	}
	if err := run.CopyTo(held); err == nil {
		t.Error("the copy went through a link")
	}
	if left, err := os.ReadDir(victim); err != nil || len(left) > 0 {
		t.Errorf("the link was followed: %v %v", left, err)
	}
}
