package guard

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestKindsOfNames(t *testing.T) {
	for name, want := range map[string]Kind{
		".git": Git, ".GIT": Git, ".gitignore": Plain, ".github": CIParts, ".vscode": Whole, ".VSCode": Whole, "node_modules": Skip, "vendor": Quiet,
		".gitlab-ci.yml": CI, "Jenkinsfile": CI, "Makefile": Plain, "package.json": Plain, ".env": Plain, ".envrc": Whole, ".husky": Children, ".claude": Parts,
		"CLAUDE.md": Plain, ".mcp.json": Whole, "x.code-workspace": Whole, strings.Repeat("x", 200) + ".CODE-Workspace": Whole, "": Plain, "\xff": Plain,
	} {
		if got := Of([]byte(name)); got != want {
			t.Errorf("%q: %d, want %d", name, got, want)
		}
	}
}

func TestPrefixes(t *testing.T) {
	for p, want := range map[string]string{
		"a/b": "", ".vscode": ".vscode", "a/.vscode/x/y": "a/.vscode", ".config": ".config", ".config/app": "", ".config/git/x": ".config/git",
		".github/workflows/x.yml": ".github/workflows", ".github/x": "", ".husky/_/h": ".husky/_", ".husky": ".husky", "": "", "x/.config/app/.envrc": "x/.config/app/.envrc",
	} {
		if got := Prefix(p); got != want {
			t.Errorf("%q: %q, want %q", p, got, want)
		}
	}
}

func TestConfigurationsAreReadAsGitReadsThem(t *testing.T) {
	text := "\ufeff; comment\n[core]\n\tbare = false # comment\n[Remote \"o\\\"r \\\\x\"] url = \"a;b\" c ; no\n\tfetch = +refs/heads/*:\\\n  refs/x\n[Branch.Main]\nMerge\n[user] name = \"A\\tB\\n\\\"C\\\"\"  \r\n"
	got, err := ParseConfig(text)
	if err != nil {
		t.Fatal(err)
	}
	want := []Setting{
		{"core", "", "bare", "false"},
		{"remote", `o"r \x`, "url", "a;b c"},
		{"remote", `o"r \x`, "fetch", "+refs/heads/*:  refs/x"},
		{"branch", "main", "merge", "true"},
		{"user", "", "name", "A\tB\n\"C\""},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	for _, bad := range []string{
		"key = x", "[core", "[core \"x]\n", "[core \"x\ny\"]\n", "[core]\nbare = \"x\ny\"\n", "[core]\n1x = y\n", "[core]\nbare = \\x\n", "[core]\nbare = x\\",
		"[]\n", "[core]\nx # y\n", "[core]\nx = \x00\n", "[co re]\n", "[core\"x\"]\x00\n", "[core] = x\n",
	} {
		if got, err := ParseConfig(bad); err == nil {
			t.Errorf("%q was read as %v", bad, got)
		}
	}
}

func TestCleanConfigKeepsWhatIsHarmless(t *testing.T) {
	const text = "[core]\n\tbare = false\n\tworktree = ../../../lib\n\tfsmonitor = true\n[core]\n\tfsmonitor = evil\n\tworktree = ../../../../out\n[branch \"a b\"]\n\tremote = o\n" +
		"[include]\n\tpath = x\n[includeIf \"gitdir:/\"]\n\tpath = x\n[alias]\n\tx = -c core.pager=evil log\n[filter \"x\"]\n\tsmudge = evil\n[credential]\n\thelper = evil\n[submodule \"m\"]\n\tupdate = !evil\n\tupdate = rebase\n" +
		"[remote \"o\"]\n\turl = x\n\tuploadpack = evil\n\tproxy = x\n[gc]\n\tauto = 0\n\trecentObjectsHook = evil\n[http]\n\tproxy = x\n[init]\n\ttemplateDir = x\n"
	clean, dropped, err := CleanConfig(text, ".git/modules/lib")
	if err != nil {
		t.Fatal(err)
	}
	want := "[core]\n\tbare = \"false\"\n\tworktree = \"../../../lib\"\n\tfsmonitor = \"true\"\n[branch \"a b\"]\n\tremote = \"o\"\n[submodule \"m\"]\n\tupdate = \"rebase\"\n[remote \"o\"]\n\turl = \"x\"\n[gc]\n\tauto = \"0\"\n"
	if diff := cmp.Diff(want, clean); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff([]string{
		"alias.x", "core.fsmonitor", "core.worktree", "credential.helper", "filter.x.smudge", "gc.recentobjectshook", "http.proxy",
		"include.path", "includeif.gitdir:/.path", "init.templatedir", "remote.o.proxy", "remote.o.uploadpack", "submodule.m.update",
	}, dropped); diff != "" {
		t.Error(diff)
	}
}

// What is kept of any text is harmless, and stays so.
func FuzzCleanConfig(f *testing.F) {
	for _, seed := range []string{
		"[core]\n\tbare = false\n", "[remote \"o\"]\n\turl = \"x\\\"\"\n", "[a.b] c = d # e\n", "[core]\nfsmonitor = x\n[branch \"\\\\\"]\nmerge\n", "[user]\nname = a\\\nb\n",
	} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		clean, _, err := CleanConfig(text, ".git")
		if err != nil {
			return
		}
		again, dropped, err := CleanConfig(clean, ".git")
		if err != nil || len(dropped) > 0 || again != clean {
			t.Errorf("%q became %q, and then %q, without %v: %v", text, clean, again, dropped, err)
		}
	})
}
