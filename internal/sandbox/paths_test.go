package sandbox

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// makeFiles makes files, and directories where a name ends in a slash, below a new
// directory.
func makeFiles(t *testing.T, names ...string) string {
	t.Helper()
	base, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range names {
		name, text, _ := strings.Cut(name, "=")
		p := filepath.Join(base, name)
		if err := os.MkdirAll(filepath.Dir(p), 0o750); err != nil {
			t.Fatal(err)
		}
		if strings.HasSuffix(name, "/") {
			err = os.MkdirAll(p, 0o750)
		} else {
			err = os.WriteFile(p, []byte(strings.ReplaceAll(text, "BASE", base)), 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	return base
}

func TestBypass51_OnlyWhatWasNamedIsWritable(t *testing.T) {
	base := makeFiles(t, "app/docs/out/", "app/src/", "data/x/", "up/app/", "file")
	for name, c := range map[string]struct {
		workdir        string
		wishes         []Wish
		roots, locked  []string
		writable, over string
	}{
		"nothing":        {"app", nil, []string{"app"}, nil, "app/x", "data/x"},
		"read-only":      {"app", []Wish{{".", ReadOnly}}, nil, []string{"app"}, "", "app/x"},
		"part of it":     {"app", []Wish{{"docs", ReadOnly}}, []string{"app"}, []string{"app/docs"}, "app/src/x", "app/docs/x"},
		"part of a part": {"app", []Wish{{"docs", ReadOnly}, {"docs/out", Writable}}, []string{"app", "app/docs/out"}, []string{"app/docs"}, "app/docs/out/x", "app/docs/x"},
		"only a part":    {"app", []Wish{{".", ReadOnly}, {"docs/out", Writable}}, []string{"app/docs/out"}, []string{"app"}, "app/docs/out/x", "app/docs"},
		"another":        {"app", []Wish{{"../data", Writable}, {"../data/x", Writable}}, []string{"app", "data"}, nil, "data/x/y", "up/x"},
		"above":          {"up/app", []Wish{{"..", Writable}, {".", ReadOnly}}, []string{"up"}, []string{"up/app"}, "up/x", "up/app/x"},
		"a file":         {"app", []Wish{{"../file", Writable}}, []string{"app"}, nil, "file", "data"},
	} {
		t.Run(name, func(t *testing.T) {
			p, err := ResolvePaths(filepath.Join(base, c.workdir), c.wishes)
			if err != nil {
				t.Fatal(err)
			}
			relative := func(list []string) (out []string) {
				for _, s := range list {
					out = append(out, strings.TrimPrefix(s, base+"/"))
				}
				return out
			}
			if diff := cmp.Diff(c.roots, relative(p.Roots())); diff != "" {
				t.Errorf("roots: %s", diff)
			}
			if diff := cmp.Diff(c.locked, relative(p.Locked())); diff != "" {
				t.Errorf("locked: %s", diff)
			}
			if c.writable != "" && !p.Writable(filepath.Join(base, c.writable)) {
				t.Errorf("%s is not writable", c.writable)
			}
			if p.Writable(filepath.Join(base, c.over)) {
				t.Errorf("%s is writable", c.over)
			}
		})
	}
}

func TestBypass45_PathsThatGiveAwayTooMuchAreRefused(t *testing.T) {
	base := makeFiles(t, "home/app/.git/", "home/app/.vscode/", "home/.config/git/", "home/.config/app/", "home/.ssh/", "home/data/", "home/out/", "home/app/x")
	home := base + "/home"
	f := Facts{Home: home, HomeReal: home, Account: "/root", Workdir: home + "/app"}
	for wish, refused := range map[Wish]string{
		{"/", ReadOnly}: "belongs to the system", {"/", Writable}: "system", {"/", Hidden}: "system",
		{"..", ReadOnly}: "home directory", {"..", Writable}: "home directory", {"/root", ReadOnly}: "home directory",
		{"/proc", ReadOnly}: "system", {"/proc/self", Writable}: "system", {"/sys/fs", ReadOnly}: "system", {"/dev/null", ReadOnly}: "device",
		{"/dev", ReadOnly}: "system", {"/run", ReadOnly}: "system", {"/etc", Writable}: "system", {"/etc/ssl", ReadOnly}: "system",
		{"/tmp", Writable}: "system", {"/var", ReadOnly}: "system", {"/var/tmp", ReadOnly}: "system",
		{"/usr", Writable}: "system", {"/usr/lib", Writable}: "system", {"/usr/share", ReadOnly}: "", {"/etc/passwd", Hidden}: "",
		{"../.config/git", Writable}: "obeyed by programs outside", {"../.ssh", Writable}: "obeyed", {"../.config", Writable}: "obeyed", {"../.config/app", Writable}: "", {"../.ssh", ReadOnly}: "", {"../data", Writable}: "",
		{".git", Writable}: "repository's own directory", {".vscode", Writable}: "", {"x", Hidden}: "", {".", Hidden}: "is the working directory",
		{"missing", ReadOnly}: "does not exist", {"missing", Hidden}: "does not exist", {"", Writable}: "is empty",
	} {
		p, err := ResolvePaths(f.Workdir, []Wish{wish})
		if err == nil {
			err = CheckPaths(f, p)
		}
		refusal, ok := errors.AsType[*Refusal](err)
		if (refused != "") != ok || ok && (!strings.Contains(refusal.What, refused) || refusal.Next == "") {
			t.Errorf("%+v: %v, want %q", wish, err, refused)
		}
	}
	if _, err := ResolvePaths(f.Workdir, []Wish{{"../data", ReadOnly}, {home + "/data", Writable}}); err == nil {
		t.Error("one directory was both read-only and writable")
	}
}

// A link in what a command can write may be that of an earlier one.
func TestBypass51_PlantedLinksAreNotFollowed(t *testing.T) {
	base := makeFiles(t, "app/src/", "secret/", "data/x/", "real/")
	for from, to := range map[string]string{"app/out": "../secret", "app/alias": "src", "data/out": "../secret", "link": "real", "app2": "app"} {
		if err := os.Symlink(to, filepath.Join(base, from)); err != nil {
			t.Fatal(err)
		}
	}
	data := Wish{"../data", Writable}
	for _, c := range []struct {
		workdir string
		wishes  []Wish
		refused bool
	}{
		{"app", []Wish{{"out", Writable}}, true},
		{"app", []Wish{{"out", ReadOnly}}, true},
		{"app", []Wish{{"out", Hidden}}, true},
		{"app", []Wish{{".", ReadOnly}, {"out", Writable}}, true},
		{"app", []Wish{{"alias", Writable}}, true},
		{"app2", []Wish{{"out", Writable}}, true},
		{"app2", []Wish{{base + "/app/out", Writable}}, true},
		{"app", []Wish{data, {"../data/out", ReadOnly}}, true},
		{"app", []Wish{{"../data/out", ReadOnly}, data}, true},
		{"app", []Wish{{"../data/out", ReadOnly}}, false},
		{"app", []Wish{{"../link", Writable}}, false},
		{"app", []Wish{{"src", ReadOnly}, data, {"../data/x", ReadOnly}}, false},
		{"app2", []Wish{{"src", ReadOnly}, {base + "/app/src", ReadOnly}}, false},
	} {
		_, err := ResolvePaths(filepath.Join(base, c.workdir), c.wishes)
		if refusal, ok := errors.AsType[*Refusal](err); ok != c.refused || ok && !strings.Contains(refusal.What, "leads through a link") {
			t.Errorf("%s, %v: %v", c.workdir, c.wishes, err)
		}
	}
}

func TestRepositoryAroundIsShownAsFarAsItIsOnesOwn(t *testing.T) {
	base := makeFiles(
		t, "repo/.git/objects/", "repo/.git/refs/", "repo/.git/HEAD=ref: x", "repo/sub/deep/", "repo/.git/worktrees/tree/gitdir=BASE/tree/.git\n",
		"tree/.git=gitdir: BASE/repo/.git/worktrees/tree\n", "tree/sub/", "repo/lib/.git=gitdir: ../.git/modules/lib\n", "repo/lib/src/",
		"repo/.git/modules/lib/HEAD=x", "repo/.git/modules/lib/objects/", "repo/.git/modules/lib/refs/", "repo/.git/modules/lib/config=[core]\n\tworktree = ../../../lib\n",
		"home/.git/objects/", "home/app/", "forged/.git=gitdir: BASE/secret\n", "secret/HEAD=x", "secret/objects/", "secret/refs/", "secret/config=[core]\nworktree = BASE/other\n",
		"other/.git=gitdir: BASE/repo/.git/worktrees/tree\n", "none/", "linked/.git=gitdir: BASE/away/worktrees/w\n", "away/worktrees/w/gitdir=BASE/linked/.git", "away/HEAD=x",
	)
	for workdir, want := range map[string]Repository{
		"repo": {}, "none": {}, "home/app": {}, "forged": {}, "other": {}, "linked": {},
		"repo/sub/deep": {Top: "repo"},
		"tree":          {GitDirs: []string{"repo/.git"}},
		"tree/sub":      {Top: "tree", GitDirs: []string{"repo/.git"}},
		"repo/lib":      {GitDirs: []string{"repo/.git/modules/lib"}},
		"repo/lib/src":  {Top: "repo/lib", GitDirs: []string{"repo/.git/modules/lib"}},
	} {
		got := readRepository(Facts{Workdir: filepath.Join(base, workdir), Home: base + "/home", HomeReal: base + "/home"})
		got.Top = strings.TrimPrefix(got.Top, base+"/")
		for i := range got.GitDirs {
			got.GitDirs[i] = strings.TrimPrefix(got.GitDirs[i], base+"/")
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s: %s", workdir, diff)
		}
	}
}
