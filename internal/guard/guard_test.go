package guard

import (
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestKindsOfNames(t *testing.T) {
	for name, want := range map[string]Kind{
		".git": Git, ".GIT": Git, ".gitignore": Plain, ".github": CIParts, ".vscode": Whole, ".VSCode": Whole, "node_modules": Skip, "vendor": Quiet,
		".hg": Parts, ".sl": Parts, ".gitlab-ci.yml": CI, "Jenkinsfile": CI, "Makefile": Plain, "package.json": Plain, ".env": Plain, ".envrc": Whole, ".husky": Children, ".claude": Parts,
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
		".github/workflows/x.yml": ".github/workflows", ".github/x": "", ".husky/_/h": ".husky/_", ".husky": ".husky", "a/.hg/hgrc": "a/.hg/hgrc", "a/.hg/store/x": "", "": "", "x/.config/app/.envrc": "x/.config/app/.envrc",
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

// What git and this package both read, they read alike. The texts are mutations, the
// same ones each time.
func TestBypass47_ConfigurationsAreReadAsGitDoes(t *testing.T) {
	seeds := []string{
		"[core]\n\tbare = false\n\tfsmonitor = x\n", "[remote \"o\"]\n\turl = \"x\\\"\"\n", "[a.b] c = d # e\n[core] x\n",
		"[user]\nname = a\\\nb ; x\n\tk = \" a \" b  \r\n", "[a \"b c\"]k=v\n#c\n;d\n",
	}
	const letters = "\"\\[]=;# \t\r\nabN1.-\x00\v"
	random := rand.New(rand.NewPCG(1, 2))
	file, both := filepath.Join(t.TempDir(), "config"), 0
	for range 1500 {
		text := []byte(seeds[random.IntN(len(seeds))] + seeds[random.IntN(len(seeds))])
		for range 1 + random.IntN(4) {
			at := random.IntN(len(text))
			text = slices.Replace(text, at, at+random.IntN(2), letters[random.IntN(len(letters))])
		}
		mine, err := ParseConfig(string(text))
		if err != nil {
			continue
		}
		if err := os.WriteFile(file, text, 0o600); err != nil {
			t.Fatal(err)
		}
		out, err := exec.CommandContext(t.Context(), "git", "config", "-f", file, "--list", "-z").Output()
		if err != nil {
			continue // git refuses it: nothing of it counts
		}
		both++
		if diff := cmp.Diff(asGit(mine), withValues(string(out))); diff != "" {
			t.Errorf("%q: %s", text, diff)
		}
	}
	if both < 100 {
		t.Errorf("only %d texts were read by both", both)
	}
}

func asGit(settings []Setting) (out string) {
	for _, s := range settings {
		out += s.Name() + "\n" + s.Value + "\x00"
	}
	return out
}

// withValues spells out that a key alone is true.
func withValues(list string) (out string) {
	for item := range strings.SplitSeq(strings.TrimSuffix(list, "\x00"), "\x00") {
		if item != "" && !strings.Contains(item, "\n") {
			item += "\ntrue"
		}
		if item != "" {
			out += item + "\x00"
		}
	}
	return out
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
