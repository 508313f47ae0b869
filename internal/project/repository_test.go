package project

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// evil is a configuration that runs a program.
const evil = `printf '[core]\n\tfsmonitor = "touch pwned; false"\n' >>`

func TestBypass47_NewRepositories(t *testing.T) {
	for name, c := range map[string]struct {
		before, script string
		want           []string
	}{
		"plain": {
			"git init -q ../src; git -C ../src commit -q --allow-empty -m x",
			"git init -q .; git init -q --bare bare.git; git clone -q ../src clone; git clone -q --bare ../src c.git; git clone -q --mirror ../src m.git; git -C clone worktree add -q ../tree 2>/dev/null",
			nil,
		},
		"submodule": {
			"git init -q ../src; git -C ../src commit -q --allow-empty -m x",
			`git init -q new; cd new; git submodule --quiet add "$PWD/../../src" deps/lib; git commit -q -m x; cd ..; git clone -q --recurse-submodules new clone`,
			nil,
		},
		"sparse and partial": {
			"git init -q ../src; git -C ../src commit -q --allow-empty -m x; git -C ../src config uploadpack.allowfilter true",
			`git clone -q --filter=blob:none --sparse "file://$PWD/../src" clone`, nil,
		},
		"hooks":         {"true", "git init -q a; echo EVIL >a/.git/hooks/pre-commit", []string{"moved a/.git/hooks"}},
		"a linked hook": {"true", "git init -q a; rm a/.git/hooks/*; ln -s /bin/sh a/.git/hooks/x.sample", []string{"moved a/.git/hooks"}},
		"linked hooks":  {"true", "git init -q a; rm -r a/.git/hooks; ln -s .. a/.git/hooks", []string{"moved a/.git/hooks"}},
		"missing hooks": {"git init -q .; rm -r .git/hooks", "mkdir .git/hooks; echo EVIL >.git/hooks/post-commit", []string{"moved .git/hooks"}},
		"fsmonitor":     {"true", "git init -q a; " + evil + "a/.git/config", []string{"cleaned a/.git/config core.fsmonitor"}},
		"bare":          {"true", "git init -q --bare a; " + evil + "a/config", []string{"cleaned a/config core.fsmonitor"}},
		"in the top itself": {
			"mkdir objects", "git init -q --bare x; mv x/HEAD x/refs x/config .; " + evil + "config", []string{"cleaned config core.fsmonitor"},
		},
		"many settings": {
			"true", `git init -q a; cd a; git config alias.st '!evil'; git config filter.x.clean evil; git config core.hooksPath /x; git config include.path ../x
				git config diff.external evil; git config core.sshCommand evil; git config user.name Ann; git config remote.o.url 'https://o.test/"x'; git config remote.o.uploadpack evil
				git config submodule.x.update '!evil'; git config core.worktree /; git config 'branch.a b.remote' o`,
			[]string{"cleaned a/.git/config alias.st core.hookspath core.sshcommand core.worktree diff.external filter.x.clean include.path remote.o.uploadpack submodule.x.update"},
		},
		"no configuration":     {"true", "git init -q a; echo '[core' >>a/.git/config; git init -q b; rm b/.git/config; mkfifo b/.git/config; git init -q c; mv c/.git/config x; ln -s ../../x c/.git/config", []string{"moved a/.git/config", "moved b/.git/config", "moved c/.git/config"}},
		"another name":         {"true", "git init -q a; ln a/.git/config x", []string{"cleaned a/.git/config"}},
		"worktree's settings":  {"true", "git init -q a; " + evil + "a/.git/config.worktree; git -C a config extensions.worktreeConfig true", []string{"cleaned a/.git/config.worktree core.fsmonitor"}},
		"commondir":            {"git init -q .", "cp -r .git evil; " + evil + "evil/config; echo ../evil >.git/commondir", []string{"cleaned evil/config core.fsmonitor", "moved .git/commondir"}},
		"commondir of a new":   {"true", "git init -q a; git init -q b; " + evil + "b/.git/config; echo ../../b/.git >a/.git/commondir", []string{"cleaned b/.git/config core.fsmonitor", "moved a/.git/commondir"}},
		"link out":             {"git init -q ../out", "echo 'gitdir: ../out/.git' >.git; mkdir a; echo \"gitdir: $PWD/../out/.git\" >a/.git; mkdir b; ln -s ../../out/.git b/.git", []string{"moved .git", "moved a/.git", "moved b/.git"}},
		"link through a link":  {"git init -q ../out", "ln -s ../out x; echo 'gitdir: x/.git' >.git", []string{"moved .git"}},
		"link to dependencies": {"true", "git init -q node_modules/x; " + evil + "node_modules/x/.git/config; echo 'gitdir: node_modules/x/.git' >.git", []string{"cleaned node_modules/x/.git/config core.fsmonitor"}},
		"an old link":          {"echo 'gitdir: node_modules/x/.git' >.git", "git init -q node_modules/x; " + evil + "node_modules/x/.git/config", []string{"cleaned node_modules/x/.git/config core.fsmonitor"}},
		"new submodule":        {"git init -q .", "git init -q a; mkdir .git/modules; mv a/.git .git/modules/a; echo 'gitdir: ../.git/modules/a' >a/.git; " + evil + ".git/modules/a/config", []string{"cleaned .git/modules/a/config core.fsmonitor"}},
		"renamed above": {
			"git init -q a; git init -q b", "cp -r a x; mv a c; mv x a; " + evil + "a/.git/config; echo EVIL >a/.git/hooks/pre-commit",
			[]string{"cleaned a/.git/config core.fsmonitor", "moved a/.git/hooks"},
		},
		"moved":           {"git init -q a; echo MINE >a/.git/hooks/pre-commit; git -C a config core.pager mine", "mv a b", nil},
		"without rights":  {"true", "git init -q x/a; " + evil + "x/a/.git/config; chmod 0 x/a/.git/config; chmod 555 x/a/.git; chmod 0 x", []string{"cleaned x/a/.git/config core.fsmonitor"}},
		"old and unusual": {"git init -q .; git config core.pager mine; echo MINE >.git/hooks/pre-commit", "git commit -q --allow-empty -n -m x", nil},
	} {
		t.Run(name, func(t *testing.T) {
			m := makeProject(t, c.before)
			if name == "without rights" && os.Geteuid() != 0 {
				c.want = []string{"moved x/a/.git/config"} // what cannot be read cannot be cleaned
			}
			same(t, c.want, m.after(c.script))
			if name == "without rights" {
				m.sh("test $(stat -c %a x) = 0; chmod 700 x; test $(stat -c %a x/a/.git) = 555; chmod 700 x/a/.git")
			}
			same(t, nil, m.after("true"))
			m.sh(`find . -name .git -not -path '*/b/.git' | while read g; do (cd "$(dirname "$g")" && git status >/dev/null 2>&1) || true; done; test -z "$(find . -name pwned)"`)
		})
	}
}

func TestCleanedConfigurationIsInTheArchiveAsItWas(t *testing.T) {
	m := makeProject(t, "true")
	same(t, []string{"cleaned a/.git/config core.pager"}, m.after("git init -q a; git -C a config core.pager evil; git -C a config remote.o.url x"))
	text, err := os.ReadFile(filepath.Join(m.root, "a/.git/config"))
	if err != nil || strings.Contains(string(text), "evil") {
		t.Errorf("%v: %s", err, text)
	}
	m.sh(`test "$(git -C a config remote.o.url)" = x; git -C a status >/dev/null`)
	if got := m.archived(); len(got) != 1 || !strings.Contains(got[0], "pager = evil") {
		t.Errorf("the archive has %q", got)
	}
}

// What was not searched before a run is judged by its time of change.
func TestWhatWasNotSearchedIsJudgedByItsTime(t *testing.T) {
	m := makeProject(t, "mkdir -p closed/.vscode; git init -q closed/a; echo MINE >closed/a/.git/hooks/pre-commit")
	later(t, m.root)
	s := m.look()
	for i := range s.Trees { // as if it could not be read
		s.Trees[i].Closed, s.Trees[i].Entries = []string{"closed"}, nil
	}
	started := time.Now()
	m.sh("mkdir closed/.idea .vscode")
	same(t, []string{"moved .vscode", "moved closed/.idea"}, m.aside(s, started))
}

// later waits until what is made has a time of change that is past the margin.
func later(t *testing.T, root string) {
	t.Helper()
	for made := time.Now(); ; {
		name := filepath.Join(root, "clock")
		if err := os.WriteFile(name, nil, 0o600); err != nil {
			t.Fatal(err)
		}
		info, err := os.Stat(name)
		if err != nil {
			t.Fatal(err)
		}
		if info.ModTime().After(made.Add(2 * margin)) {
			return
		}
	}
}
