package project

import (
	"archive/tar"
	"bytes"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// made is a project in which scripts are run as a sandboxed command would.
type made struct {
	t    *testing.T
	root string
	home string
	tar  bytes.Buffer
}

func makeProject(t *testing.T, script string) *made {
	t.Helper()
	base, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	m := &made{t: t, root: filepath.Join(base, "project"), home: filepath.Join(base, "home")}
	for _, dir := range []string{m.root, m.home} {
		if err := os.Mkdir(dir, 0o750); err != nil {
			t.Fatal(err)
		}
	}
	m.sh(script)
	return m
}

// sh runs a script in the project, with git's own settings only.
func (m *made) sh(script string) {
	m.t.Helper()
	cmd := exec.CommandContext(m.t.Context(), "bash", "-ec", script)
	cmd.Dir = m.root
	cmd.Env = []string{
		"PATH=/usr/bin:/bin", "HOME=" + m.home, "GIT_CONFIG_NOSYSTEM=1", "GIT_AUTHOR_NAME=x", "GIT_AUTHOR_EMAIL=x@git.test",
		"GIT_COMMITTER_NAME=x", "GIT_COMMITTER_EMAIL=x@git.test", "GIT_CONFIG_COUNT=2",
		"GIT_CONFIG_KEY_0=protocol.file.allow", "GIT_CONFIG_VALUE_0=always", "GIT_CONFIG_KEY_1=init.defaultBranch", "GIT_CONFIG_VALUE_1=main",
	}
	if out, err := cmd.CombinedOutput(); err != nil {
		m.t.Fatalf("%s: %v: %s", script, err, out)
	}
}

type nopCloser struct{ io.Writer }

func (nopCloser) Close() error { return nil }

func (m *made) look(changes ...func(*Request)) Survey {
	m.t.Helper()
	r := Request{Roots: []string{m.root}, Home: m.home}
	for _, change := range changes {
		change(&r)
	}
	s, err := Look(r)
	if err != nil {
		m.t.Fatal(err)
	}
	m.t.Cleanup(s.Close)
	return s
}

// after runs a script between two looks and returns what was set aside, below the
// project's directory, each with a letter for what became of it.
func (m *made) after(script string, changes ...func(*Request)) []string {
	m.t.Helper()
	s := m.look(changes...)
	started := time.Now()
	m.sh(script)
	return m.aside(s, started)
}

func (m *made) aside(s Survey, started time.Time) []string {
	m.t.Helper()
	archive := &Archive{Open: func() (io.WriteCloser, error) { return nopCloser{&m.tar}, nil }}
	result, err := s.SetAside("r1", started, archive)
	if err := errors.Join(err, archive.Close()); err != nil {
		m.t.Fatal(err)
	}
	return m.lines(result)
}

func (m *made) lines(r Result) []string {
	var out []string
	add := func(what, p string, more ...string) {
		out = append(out, strings.Join(append([]string{what, strings.TrimPrefix(p, m.root+"/")}, more...), " "))
	}
	for _, p := range r.Moved {
		add("moved", p)
	}
	for _, p := range r.Renamed {
		add("renamed", p.Path, filepath.Base(p.To))
	}
	for _, p := range r.Cleaned {
		add("cleaned", p.Path, p.Settings...)
	}
	for _, p := range r.Replaced {
		add("replaced", p)
	}
	slices.Sort(out)
	return out
}

// archived lists what is in the archive.
func (m *made) archived() (names []string) {
	m.t.Helper()
	for r := tar.NewReader(&m.tar); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return names
		}
		if err != nil {
			m.t.Fatal(err)
		}
		content, err := io.ReadAll(r)
		if err != nil {
			m.t.Fatal(err)
		}
		name := strings.TrimPrefix(h.Name, strings.TrimPrefix(m.root, "/")+"/")
		names = append(names, strings.TrimSpace(name+" "+h.Linkname+string(content)))
	}
}

func (m *made) mounts(changes ...func(*Request)) (out []string) {
	m.t.Helper()
	for _, e := range m.look(changes...).Mounts() {
		line := strings.TrimPrefix(e.Path, m.root+"/")
		if e.Pin {
			line += " pin"
		}
		if e.Private {
			line += " private"
		}
		out = append(out, line)
	}
	return out
}

func same(t *testing.T, want, got []string) {
	t.Helper()
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestBypass47_WhatProgramsOutsideObeyIsGuarded(t *testing.T) {
	m := makeProject(t, `
		git init -q .; git init -q nested/repo; git init -q --bare mirror.git; rm -r .git/hooks nested/repo/.git/hooks mirror.git/hooks
		git -C nested/repo commit -q --allow-empty -m x
		mkdir -p .vscode .github/workflows .github/ISSUE_TEMPLATE nested/.github/workflows .husky/_ .claude/x pkg/.idea pkg/.github vendor/lib/.vscode dist/.vscode
		touch .envrc .husky/pre-commit .claude/settings.json .claude/x/y .gitlab-ci.yml nested/.travis.yml nested/repo/.travis.yml App.Code-Workspace
		mkdir -p node_modules/x/.vscode; git init -q node_modules/x; git init -q vendor/lib; rm -r vendor/lib/.git/hooks; rm -rf .git/hooks`)
	same(t, []string{
		".claude pin", ".claude/settings.json", ".envrc", ".git pin", ".git/config", ".github pin", ".github/workflows", ".gitlab-ci.yml",
		".husky pin", ".husky/_ private", ".husky/pre-commit", ".vscode", "App.Code-Workspace", "mirror.git/config",
		"nested/repo/.git pin", "nested/repo/.git/config", "nested/repo/.travis.yml", "pkg/.idea",
		"vendor/lib/.git pin", "vendor/lib/.git/config",
	}, m.mounts())
	same(t, []string{"sub/.git pin", "sub/.git/config"}, makeProject(t, "git init -q sub; rm -r sub/.git/hooks").mounts())
}

func TestBypass47_SubmodulesAndWorktreesAreGuarded(t *testing.T) {
	m := makeProject(t, `
		git init -q .; git commit -q --allow-empty -m x; git init -q ../lib; git -C ../lib commit -q --allow-empty -m x
		git submodule --quiet add "$PWD/../lib" deps/lib; git worktree add -q tree 2>/dev/null; find . -name hooks | xargs rm -r`)
	same(t, []string{
		".git pin", ".git/config", ".git/modules pin", ".git/modules/deps pin", ".git/modules/deps/lib pin", ".git/modules/deps/lib/config",
		".git/worktrees pin", ".git/worktrees/tree pin", ".git/worktrees/tree/commondir", ".git/worktrees/tree/gitdir",
		"deps/lib/.git", "tree/.git",
	}, m.mounts())
	same(t, nil, m.after("git -C tree commit -q --allow-empty -m y; git commit -q --allow-empty -m y; git -C deps/lib status"))
}

func TestWhatTheCallerGaveUpIsNotGuarded(t *testing.T) {
	m := makeProject(t, "git init -q .; rm -r .git/hooks; git config core.hooksPath ci; mkdir -p ci .vscode .idea pkg/.vscode .github/workflows locked/.vscode")
	same(t, []string{".git pin", ".git/config", ".idea", "pkg/.vscode"}, m.mounts(func(r *Request) {
		for _, p := range []string{"ci", ".vscode/settings.json", "pkg", ".github/workflows/x.yml"} {
			r.Lifted = append(r.Lifted, m.root+"/"+p)
		}
		r.Locked = []string{m.root + "/locked"}
	}))
}

func TestHooksPathIsGuarded(t *testing.T) {
	m := makeProject(t, "git init -q .; rm -r .git/hooks; git config core.hooksPath ci/hooks; mkdir -p ci/hooks; touch ci/hooks/pre-commit")
	same(t, []string{".git pin", ".git/config", "ci/hooks"}, m.mounts())
	m = makeProject(t, "git init -q .; rm -r .git/hooks; git config --global core.hooksPath .githooks")
	same(t, []string{"moved .githooks"}, m.after("mkdir .githooks; echo EVIL >.githooks/pre-commit"))
}

func TestCase09_LookingChangesNothing(t *testing.T) {
	m := makeProject(t, "git init -q .; mkdir .vscode closed; chmod 0 closed")
	before, err := os.Stat(m.root)
	if err != nil {
		t.Fatal(err)
	}
	m.look()
	after, err := os.Stat(m.root)
	if err != nil || !after.ModTime().Equal(before.ModTime()) {
		t.Errorf("%v: changed at %s, and at %s", err, before.ModTime(), after.ModTime())
	}
	m.sh("chmod 700 closed")
}

func TestBypass46_WhatTheCommandMadeIsMoved(t *testing.T) {
	for name, c := range map[string]struct {
		before, script string
		want           []string
	}{
		"nothing": {"git init -q .", "touch x; mkdir y; git add x; git commit -q -m x", nil},
		"editor, CI, shell, agents": {
			"git init -q .", "mkdir -p .vscode .github/workflows .claude sub/.idea; touch .vscode/tasks.json .github/workflows/x.yml .envrc .claude/settings.json .claude/notes sub/.idea/x .mcp.json",
			[]string{"moved .claude/settings.json", "moved .envrc", "moved .github/workflows", "moved .mcp.json", "moved .vscode", "moved sub/.idea"},
		},
		"not in dependencies and what builds make": {
			"git init -q .", "mkdir -p node_modules/x/.vscode vendor/x/.vscode dist/.vscode .venv/.github; touch node_modules/.envrc; git init -q node_modules/y; echo EVIL >node_modules/y/.git/hooks/pre-commit", nil,
		},
		"Mercurial":       {"mkdir -p mine/.hg; touch mine/.hg/hgrc", "mkdir -p .hg/store; touch .hg/hgrc .hg/requires; mkdir sub sub/.hg; echo ../../evil >sub/.hg/sharedpath; touch mine/.hg/dirstate", []string{"moved .hg/hgrc", "moved sub/.hg/sharedpath"}},
		"another case":    {"true", "mkdir .VSCode .Idea; touch .ENVRC", []string{"moved .ENVRC", "moved .Idea", "moved .VSCode"}},
		"a new part":      {"mkdir -p .github/workflows; git init -q .", "mkdir .github/actions", []string{"moved .github/actions"}},
		"a new child":     {"mkdir .husky; touch .husky/pre-commit", "touch .husky/commit-msg; mkdir .husky/_", []string{"moved .husky/_", "moved .husky/commit-msg"}},
		"links":           {"mkdir evil", "ln -s evil .vscode; ln -s /etc .idea; ln -s .vscode .envrc; ln -s nowhere .husky", []string{"moved .envrc", "moved .husky", "moved .idea", "moved .vscode"}},
		"special files":   {"true", "mkfifo .envrc; mkdir .vscode; mkfifo .vscode/tasks.json", []string{"moved .envrc", "moved .vscode"}},
		"hard links":      {"touch x", "ln x .envrc; mkdir .vscode; ln x .vscode/tasks.json", []string{"moved .envrc", "moved .vscode"}},
		"without rights":  {"true", "mkdir -p a/.vscode/b; touch a/.vscode/b/c; chmod 0 a/.vscode/b/c a/.vscode/b a/.vscode a", []string{"moved a/.vscode"}},
		"a copy":          {"mkdir -p a/.vscode", "cp -r a b", []string{"moved b/.vscode"}},
		"moved along":     {"mkdir -p a/.vscode b/.idea; touch b/.idea/x", "mv a c; mv b a; mv c b", nil},
		"in its place":    {"mkdir -p a/.vscode", "mv a b; mkdir -p a/.vscode; touch a/.vscode/tasks.json", []string{"moved a/.vscode"}},
		"a replaced link": {"mkdir real; ln -s real .vscode", "rm .vscode; mkdir .vscode", []string{"moved .vscode"}},
		"the last link":   {"mkdir real; ln -s real .vscode", "true", nil},
		"a link with an old number": {
			"ln -s real .vscode; ln -s real .envrc; mkfifo .idea", "rm .vscode .envrc .idea; ln -s evil .vscode; ln -s evil .envrc; mkfifo .idea",
			[]string{"moved .envrc", "moved .idea", "moved .vscode"},
		},
		"strange names": {"true", `mkdir -p $'a\nb/\x1b[31m'/.vscode $'\xff\xfe'; touch $'\xff\xfe/.envrc'`, []string{"moved a\nb/\x1b[31m/.vscode", "moved \xff\xfe/.envrc"}},
	} {
		t.Run(name, func(t *testing.T) {
			m := makeProject(t, c.before)
			same(t, c.want, m.after(c.script))
			for _, line := range c.want {
				if _, err := os.Lstat(filepath.Join(m.root, strings.TrimPrefix(line, "moved "))); err == nil {
					t.Errorf("%s: it is still there", line)
				}
			}
			same(t, nil, m.after("true"))
		})
	}
}

// What the repository's own configuration names in the tree is guarded with it.
func TestBypass47_WhatTheConfigurationNames(t *testing.T) {
	m := makeProject(t, `git init -q .; rm -r .git/hooks; mkdir tools; touch tools/monitor tools/merge.js tools/unused
		git config include.path ../shared.cfg; printf '[core]\n\tfsmonitor = tools/monitor\n\thooksPath = ci/hooks\n[include]\n\tpath = more.cfg\n' >shared.cfg
		git config merge.x.driver 'node "tools/merge.js" %O %A'; git config alias.x '!tools/missing'; git config core.editor /bin/vi`)
	same(t, []string{".git pin", ".git/config", "shared.cfg", "tools/merge.js", "tools/monitor"}, m.mounts())
	same(t, []string{"moved ci/hooks", "moved more.cfg"}, m.after("mkdir -p ci/hooks; touch ci/hooks/pre-commit more.cfg other"))
}

func TestSearchesAreBounded(t *testing.T) {
	m := makeProject(t, "true")
	s := m.look()
	attempt := func(script, want string) {
		t.Helper()
		m.sh(script)
		archive := &Archive{Open: func() (io.WriteCloser, error) { return nopCloser{io.Discard}, nil }}
		result, err := s.SetAside("r1", time.Now(), archive)
		if err == nil || !strings.Contains(err.Error(), want) || len(err.Error()) > 500 {
			t.Errorf("%v", err)
		}
		// What was found is moved all the same.
		if !slices.Contains(m.lines(result), "moved .envrc") {
			t.Error("what could be found was left")
		}
	}
	attempt("touch .envrc; mkdir many; cd many; seq -f %.0f.code-workspace 50001 | xargs touch", "over 50000 files")
	// Nobody can look where the path is longer than the kernel takes.
	attempt("rm -r many; touch .envrc; perl -e 'for (1..30) { mkdir \"x\" x 200; chdir \"x\" x 200 }'", "cannot be read")
	m.sh("rm -r x*")
	limited := newSearch(int(s.Trees[0].dir.Fd()), 3, nil)
	m.sh("mkdir -p a/.vscode b c/.vscode d")
	if err := limited.run("."); err != nil || limited.whole || limited.dirs != 3 {
		t.Errorf("%v; %d directories, whole = %v", err, limited.dirs, limited.whole)
	}
}

// What cannot be dealt with is a failure, of which the first ones are said.
func TestErrorsAreBounded(t *testing.T) {
	m := makeProject(t, "true")
	s := m.look()
	// Repositories whose path is as long as the kernel takes, so that nothing in them is reached.
	m.sh(`perl -e 'for (1..20) { mkdir "x" x 200; chdir "x" x 200 } for (100..199) { $d = $_ . "r" x 67; mkdir $d; mkdir "$d/$_" for qw(objects refs); open F, ">", "$d/HEAD" }'`)
	archive := &Archive{Open: func() (io.WriteCloser, error) { return nopCloser{io.Discard}, nil }}
	_, err := s.SetAside("r1", time.Now(), archive)
	if err == nil || !strings.Contains(err.Error(), "more such errors") || len(err.Error()) > 20_000 {
		t.Errorf("%.2000v", err)
	}
	m.sh("rm -r x*")
}

// A user edits what is theirs while the command runs.
func TestWhatSomebodyOutsideReplacesIsOnlyNamed(t *testing.T) {
	m := makeProject(t, "git init -q .; mkdir .vscode; touch .envrc .vscode/settings.json")
	same(t, []string{"replaced .envrc", "replaced .git/config"},
		m.after("git config user.name x; echo >x; mv x .envrc; echo more >>.vscode/settings.json; touch .vscode/new"))
}

func TestBypass52_AnotherNameOfAGuardedFile(t *testing.T) {
	m := makeProject(t, "git init -q .; mkdir .vscode .idea; echo x >other; ln other .envrc; ln other .vscode/tasks.json; echo y >pnpm; ln pnpm .idea/y; ln pnpm .gitlab-ci.yml")
	same(t, []string{"moved .envrc", "moved .vscode/tasks.json"}, m.after("echo EVIL >other; ln pnpm third; rm pnpm"))
	same(t, []string{".envrc EVIL", ".vscode/tasks.json EVIL"}, m.archived())
}

func TestWhatTheArchiveCannotTakeIsRenamed(t *testing.T) {
	m := makeProject(t, "true")
	same(t, []string{
		"cleaned sbx-set-aside-r1-.vscode/repo/.git/config core.pager", "moved .envrc", "renamed .idea sbx-set-aside-r1-.idea-1", "renamed .vscode sbx-set-aside-r1-.vscode",
	}, m.after(`
		mkdir .vscode .idea sbx-set-aside-r1-.idea; truncate -s 1G .vscode/big; touch .envrc; git init -q .vscode/repo; git -C .vscode/repo config core.pager evil
		cd .idea; seq 20001 | xargs touch`))
	m.sh("rm -r sbx-set-aside-r1-*")
}

// Many empty files are many names.
func TestTheArchiveIsBounded(t *testing.T) {
	m := makeProject(t, "true")
	s := m.look()
	m.sh("mkdir a b; mkdir {a,b}/.vscode; touch a/.vscode/{1..100} b/.vscode/{1..300}")
	archive := &Archive{Open: func() (io.WriteCloser, error) { return nopCloser{&m.tar}, nil }, size: maxArchive - 300*entrySize}
	result, err := s.SetAside("r1", time.Now(), archive)
	if err := errors.Join(err, archive.Close()); err != nil {
		t.Fatal(err)
	}
	same(t, []string{"moved a/.vscode", "renamed b/.vscode sbx-set-aside-r1-.vscode"}, m.lines(result))
	if written := m.tar.Len(); written > 101*entrySize {
		t.Errorf("the archive has %d bytes", written)
	}
}

func TestLongNamesAreRenamed(t *testing.T) {
	m := makeProject(t, "true")
	name := strings.Repeat("\u00e4", 120) + ".code-workspace"
	same(t, []string{"renamed " + name + " sbx-set-aside-r1-" + name[:maxRenamed]}, m.after("truncate -s 17M "+name))
	same(t, []string{"renamed x.Code-Workspace sbx-set-aside-r1-x.Code-Workspace-0"}, m.after("truncate -s 17M x.Code-Workspace"))
}

// A person who sees a rebase that was left unfinished continues it.
func TestBypass46_UnfinishedRebases(t *testing.T) {
	const commits = "git init -q .; rm -r .git/hooks; for x in a b c; do echo $x >x; git add x; git commit -q -m $x; done; "
	for name, c := range map[string]struct {
		before, script string
		want           []string
	}{
		"git's own":         {"true", "! git rebase -q HEAD~ --onto HEAD~2; ! git cherry-pick HEAD~2 HEAD~", nil},
		"with a command":    {"true", "! git rebase -q HEAD~ --onto HEAD~2; echo 'exec evil' >>.git/rebase-merge/git-rebase-todo", []string{"moved .git/rebase-merge/git-rebase-todo"}},
		"with a short one":  {"true", `mkdir .git/rebase-merge; printf '\t x evil\n' >.git/rebase-merge/git-rebase-todo`, []string{"moved .git/rebase-merge/git-rebase-todo"}},
		"with a strategy":   {"true", "mkdir .git/rebase-merge; echo x/../evil >.git/rebase-merge/strategy", []string{"moved .git/rebase-merge/strategy"}},
		"in a cherry-pick":  {"true", `mkdir .git/sequencer; printf '[options]\nstrategy = x/../evil\n' >.git/sequencer/opts`, []string{"moved .git/sequencer/opts"}},
		"behind a link":     {"true", "ln -s ../evil .git/rebase-merge; ln -s ../evil .git/sequencer", []string{"moved .git/rebase-merge", "moved .git/sequencer"}},
		"behind a file's":   {"true", "mkdir .git/rebase-merge; ln -s ../../evil .git/rebase-merge/git-rebase-todo", []string{"moved .git/rebase-merge/git-rebase-todo"}},
		"in a work tree":    {"git worktree add -q tree 2>/dev/null", "mkdir .git/worktrees/tree/rebase-merge; echo x evil >.git/worktrees/tree/rebase-merge/git-rebase-todo", []string{"moved .git/worktrees/tree/rebase-merge/git-rebase-todo"}},
		"of the person's":   {"mkdir .git/rebase-merge; echo x make >.git/rebase-merge/git-rebase-todo; sleep 0.1", "true", nil},
		"too large to look": {"true", "mkdir .git/rebase-merge; truncate -s 2M .git/rebase-merge/git-rebase-todo", []string{"moved .git/rebase-merge/git-rebase-todo"}},
	} {
		t.Run(name, func(t *testing.T) { same(t, c.want, makeProject(t, commits+c.before).after(c.script)) })
	}
}

// What a look finds is what a later run reads.
func TestSnapshotComesBack(t *testing.T) {
	m := makeProject(t, `git init -q .; git config core.hooksPath ci; mkdir .vscode $'a\n\xff' closed; touch $'a\n\xff/.envrc' .vscode/x; ln .vscode/x y; ln -s y .mcp.json; chmod 0 closed`)
	started := time.Now()
	s := m.look(func(r *Request) { r.Lifted = []string{m.root + "/.idea"} })
	again, err := Decode(s.Encode())
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(s.Encode()), string(again.Encode())); diff != "" {
		t.Error(diff)
	}
	m.sh("mkdir ci .idea; touch ci/pre-commit .husky; chmod 700 closed; mkdir closed/.vscode")
	if lost := again.Reopen(); lost != nil {
		t.Errorf("lost: %v", lost)
	}
	t.Cleanup(again.Close)
	same(t, []string{"moved .husky", "moved ci", "moved closed/.vscode"}, m.aside(again, started))
	m.sh("cd ..; mv project old; mkdir project")
	again, err = Decode(s.Encode())
	if lost := again.Reopen(); err != nil || !slices.Equal(lost, []string{m.root}) {
		t.Errorf("another directory in its place: %v %v", lost, err)
	}
	for _, bad := range []string{"entry e 1 - 1 1 1 1 1 1 \"x\"\n", "tree x\n", "what\n", "tree true 1 1 1 1 1 1 1 \"/x\"\nentry\n"} {
		if _, err := Decode([]byte(bad)); err == nil {
			t.Errorf("%q was read", bad)
		}
	}
}
