package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/fractalboxdev/sbx/internal/sbxtest"
)

// asideOf lists what a run's receipt says was set aside, below the project.
func asideOf(t *testing.T, lab *sbxtest.Lab, who sbxtest.User, got sbxtest.Result) []string {
	t.Helper()
	list, ok := got.Receipt(t)["set_aside"].([]any)
	if !ok {
		t.Fatalf("the receipt has %v", got.Receipt(t)["set_aside"])
	}
	var out []string
	for _, p := range list {
		out = append(out, strings.TrimPrefix(fmt.Sprint(p), lab.Project(who)+"/"))
	}
	slices.Sort(out)
	return out
}

// What the command makes where git, editors, CI, shells and agents look is moved to the
// run's records before sbx exits, and said.
func TestBypass46_WhatProgramsOutsideWouldRunIsSetAside(t *testing.T) {
	lab := sbxtest.NewLab(t)
	everyone(t, func(t *testing.T, who sbxtest.User) {
		succeeded(t, outside(t, lab, who, "git init -q . && rm -rf .git/hooks && mkdir -p .github pkg"))
		got := shell(t, lab, who, `
			mkdir -p .git/hooks .vscode .github/workflows pkg/.claude node_modules/x/.vscode
			echo EVIL >.git/hooks/pre-commit; echo EVIL >.git/commondir; echo EVIL >.vscode/tasks.json; echo EVIL >.github/workflows/x.yml
			echo EVIL >.envrc; ln -s /etc/passwd .mcp.json; mkfifo .bashrc; echo EVIL >pkg/.claude/settings.json; echo mine >pkg/file
			git init -q pkg/new; git -C pkg/new config core.fsmonitor 'touch pwned'; chmod 0 pkg/.claude/settings.json pkg/.claude`)
		succeeded(t, got)
		want := []string{".bashrc", ".envrc", ".git/commondir", ".git/hooks", ".github/workflows", ".mcp.json", ".vscode", "pkg/.claude/settings.json"}
		if list := asideOf(t, lab, who, got); !slices.Equal(list, want) {
			t.Errorf("the receipt has %v", list)
		}
		says(t, got.Stderr, ".git/hooks", ".envrc", "set-aside.tar", "pkg/new/.git/config: core.fsmonitor")
		archive := filepath.Join(got.RunDir, "set-aside.tar")
		listed := outside(t, lab, who, "tar -tf "+archive+"; stat -c '%a %u' "+archive)
		says(t, listed.Stdout, strings.TrimPrefix(lab.Project(who), "/")+"/.git/hooks/pre-commit\n", ".vscode/tasks.json\n", fmt.Sprintf("600 %d\n", lab.UID(who)))
		for _, name := range want {
			if _, err := os.Lstat(filepath.Join(lab.Project(who), name)); err == nil {
				t.Errorf("%s is still there", name)
			}
		}
		succeeded(t, outside(t, lab, who, `test -f pkg/file && test -d node_modules/x/.vscode && git status && (cd pkg/new && git status && git config core.bare && ! test -e pwned); stat -c %a pkg/.claude | grep -x 0; chmod 700 pkg/.claude`))
		if next := run(t, lab, who, "--", "true"); next.Stderr != "" || len(asideOf(t, lab, who, next)) > 0 {
			t.Errorf("the next run said %q", next.Stderr)
		}
	})
}

// What was there is read-only, in nested repositories and worktrees, too.
func TestBypass47_WhatProgramsOutsideObeyIsReadOnly(t *testing.T) {
	lab := sbxtest.NewLab(t)
	everyone(t, func(t *testing.T, who sbxtest.User) {
		succeeded(t, outside(t, lab, who, repository+`
			cd ..; mkdir -p .vscode .github/workflows .husky/_ a/.idea nested; touch .vscode/tasks.json .github/workflows/x.yml .envrc .husky/pre-commit .husky/_/h a/.idea/x
			git init -q nested/repo; mkdir nested/repo/.circleci; touch .vscode/old; git init -q --bare mirror`))
		guarded := []string{
			".vscode", ".github/workflows", ".envrc", ".husky/pre-commit", "a/.idea", "nested/repo/.git/config", "nested/repo/.git/hooks", "nested/repo/.circleci",
			"main/.git/config", "main/.git/modules/lib/config", "main/.git/worktrees/tree/gitdir", "main/lib/.git", "tree/.git", "mirror/config", "mirror/hooks",
		}
		before := tree(t, lab.Project(who))
		script := ""
		for _, name := range guarded {
			script += fmt.Sprintf(`
				if test -d %[1]s; then touch %[1]s/evil && echo "%[1]s: made"; rm -rf %[1]s/* ; else echo EVIL >>%[1]s && echo "%[1]s: written"; fi
				rm -rf %[1]s; perl -e 'rename "%[1]s", "other" or exit 1' && echo "%[1]s: moved"; chmod 777 %[1]s && echo "%[1]s: mode"; ln %[1]s linked && echo "%[1]s: linked"`, name)
		}
		got := shell(t, lab, who, "exec 2>/dev/null"+script+"\necho new >.husky/_/h; touch .husky/_/more; mkdir main/.git/x; echo x >main/file; true")
		printed(t, got, "")
		if list := asideOf(t, lab, who, got); len(list) > 0 || got.Stderr != "" {
			t.Errorf("set aside: %v; %s", list, got.Stderr)
		}
		after := tree(t, lab.Project(who))
		delete(after, "main/.git/x")
		delete(after, "main/file")
		same(t, before, after)
	})
}

// A directory above a guarded one can be replaced; what is then in its place is new.
func TestBypass52_ReplacedDirectories(t *testing.T) {
	lab := sbxtest.NewLab(t)
	everyone(t, func(t *testing.T, who sbxtest.User) {
		succeeded(t, outside(t, lab, who, "mkdir -p pkg/.vscode; echo mine >pkg/.vscode/settings.json; echo x >one; ln one .envrc; git init -q sub"))
		got := shell(t, lab, who, `mv pkg old; cp -r old pkg; echo EVIL >pkg/.vscode/settings.json; echo EVIL >one
			mv sub sub2; cp -r sub2 sub; git -C sub config core.pager EVIL; ln -s pkg /tmp/x; chown -h 0 /tmp/x 2>/dev/null; ln old/.vscode/settings.json hard 2>/dev/null && echo linked`)
		if got.Stdout != "" {
			t.Errorf("stdout is %q", got.Stdout)
		}
		if list := asideOf(t, lab, who, got); !slices.Equal(list, []string{".envrc", "pkg/.vscode"}) {
			t.Errorf("set aside: %v", list)
		}
		says(t, got.Stderr, "sub/.git/config: core.pager")
		printed(t, outside(t, lab, who, "cat old/.vscode/settings.json; git -C sub2 config core.bare; git -C sub config core.bare"), "mine\nfalse\nfalse\n")
	})
}

// What an sbx that was killed could not set aside, the next one does.
func TestBypass46_WhatAKilledRunLeftIsSetAside(t *testing.T) {
	lab := sbxtest.NewLab(t)
	everyone(t, func(t *testing.T, who sbxtest.User) {
		cmd := lab.Command(t, who, "sbx", "exec", "--", "bash", "-c", "mkdir .vscode; echo EVIL >.vscode/tasks.json; echo made; sleep 1000")
		stdout := newOutput()
		cmd.Stdout, cmd.Stderr = stdout, newOutput()
		lab.Start(t, cmd)
		stdout.until(t, "made\n")
		if err := cmd.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		sbxtest.Wait(t, cmd)
		got := run(t, lab, who, "-C", lab.Home(who)+"/project", "--", "ls", "-A")
		printed(t, got, "")
		says(t, got.Stderr, "swept run", "set aside", ".vscode")
		swept, ok := got.Receipt(t)["swept"].([]any)
		if !ok || len(swept) != 1 || !strings.Contains(fmt.Sprint(swept[0]), ".vscode") {
			t.Errorf("the receipt has %v", swept)
		}
		printed(t, outside(t, lab, who, "tar -xOf "+filepath.Dir(got.RunDir)+"/*/set-aside.tar --wildcards '*tasks.json'"), "EVIL\n")
	})
}

// Hundreds of processes wait for one directory when sbx is killed: each still writes to
// it, once, after it was told to die.
func TestBypass46_WhatDyingProcessesWriteIsSetAside(t *testing.T) {
	const crowd = `import os
for i in range(600):
    if os.fork() == 0:
        while True:
            name = 'file%d' % os.getpid()
            os.close(os.open(name, os.O_CREAT | os.O_WRONLY, 0o644))
            os.rename(name, '.envrc')
print('made', flush=True)
os.wait()`
	lab := sbxtest.NewLab(t)
	everyone(t, func(t *testing.T, who sbxtest.User) {
		cmd := lab.Command(t, who, "sbx", "exec", "--", "python3", "-c", crowd)
		stdout := newOutput()
		cmd.Stdout, cmd.Stderr = stdout, newOutput()
		lab.Start(t, cmd)
		stdout.until(t, "made\n")
		if err := cmd.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		sbxtest.Wait(t, cmd)
		next := run(t, lab, who, "-C", lab.Home(who)+"/project", "--", "true")
		succeeded(t, next)
		says(t, next.Stderr, "swept run", "set aside", ".envrc")
		printed(t, outside(t, lab, who, "ls -A .envrc 2>/dev/null; rm -f file*"), "")
	})
}
