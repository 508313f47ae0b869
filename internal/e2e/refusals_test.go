package e2e

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/fractalboxdev/sbx/internal/event"
	"github.com/fractalboxdev/sbx/internal/sbxtest"
)

// typed runs sbx exec for machines, both ways, and returns its refusal.
func typed(t *testing.T, lab *sbxtest.Lab, who sbxtest.User, args ...string) *event.Refusal {
	t.Helper()
	got := run(t, lab, who, append([]string{"--json", "--outcome", "../outcome.json"}, args...)...)
	file := lab.Run(t, who, "sh", "-c", "cat ../outcome.json && rm ../outcome.json")
	o := decoded(t, got.Stdout)
	r := o.Receipt.Result.Refusal
	var raw struct {
		Result struct{ Refusal map[string]any }
	}
	if err := json.Unmarshal([]byte(got.Stdout), &raw); err != nil || file.Stdout != got.Stdout {
		t.Errorf("%q: %v; stdout has %s, the file %s", args, err, got.Stdout, file.Stdout)
	}
	if got.Exit != 125 || o.Exit != 125 || r == nil {
		t.Fatalf("%q: exit status %d, %+v", args, got.Exit, o)
	}
	if raw.Result.Refusal["_tag"] != string(r.Kind) || r.Name == "" || r.Name != o.Run || r.Step == "" || r.Message == "" || r.Next == "" || !strings.Contains(got.Stderr, "\n  next: ") {
		t.Errorf("%q: the refusal is %+v\n%s", args, raw.Result.Refusal, got.Stderr)
	}
	return r
}

func TestVector46_WhatMeansNothingIsRejected(t *testing.T) {
	lab := sbxtest.NewLab(t)
	everyone(t, func(t *testing.T, who sbxtest.User) {
		reviewer(t, lab, who)
		repo := func(value string) []string {
			return []string{"--profile", "public-repo-read", "--input", "repo=" + value, "--", "touch", "ran"}
		}
		for _, row := range []struct {
			code, step string
			args       []string
		}{
			{"empty-command", "command", []string{"--", ""}},
			{"empty-command", "command", []string{"--", " \t"}},
			{"bad-key", "idempotency", []string{"--key", strings.Repeat("k", 201), "--", "touch", "ran"}},
			{"bad-input", "grant", repo("a/b/c")},
			{"bad-input", "grant", repo("a//b")},
			{"bad-input", "grant", repo("a")},
			{"unknown-profile", "grant", []string{"--profile", "js-instal", "--", "touch", "ran"}},
			{"bad-usage", "usage", []string{"--ordinal", "-2", "--", "touch", "ran"}},
			{"bad-usage", "usage", []string{"--position", "odd", "--", "touch", "ran"}},
			{"bad-usage", "usage", []string{"-C", "nowhere", "--", "touch", "ran"}},
		} {
			if r := typed(t, lab, who, row.args...); r.Kind != event.RefusedRecipe || r.Code != row.code || r.Step != row.step {
				t.Errorf("%q: %+v", row.args, r)
			}
		}
		if r := typed(t, lab, who, "--key", strings.Repeat("k", 200), "--profile", "nonsense", "--", "true"); r.Code != "unknown-profile" {
			t.Errorf("a key of 200 characters: %+v", r)
		}
		for _, version := range []string{"-1", "0"} {
			lab.Write(who, "x.toml", strings.NewReplacer("NAME", "x-v", "VERSION", version, "DIR", "wide").Replace(custom))
			for _, args := range [][]string{{"sbx", "profiles", "approve", "x.toml", "--key", "../key"}, {"sbx", "profiles", "lint", "x.toml"}} {
				if got := lab.Run(t, who, args...); got.Exit == 0 || !strings.Contains(got.Stdout+got.Stderr, "version") {
					t.Errorf("%q of version %s: exit status %d, %s%s", args, version, got.Exit, got.Stdout, got.Stderr)
				}
			}
		}
		nothingRan(t, lab, who)
	})
}

// TestBypass48_WhatSbxWritesFollowsNoPlantedLink: the command leaves links under the names
// that sbx is about to write, and for the directories on the way.
func TestBypass48_WhatSbxWritesFollowsNoPlantedLink(t *testing.T) {
	lab := sbxtest.NewLab(t)
	everyone(t, func(t *testing.T, who sbxtest.User) {
		reviewer(t, lab, who)
		victims := filepath.Join(lab.Home(who), "victims")
		lab.Run(t, who, "sh", "-c", `mkdir ../victims && for f in a.json x.toml.approval o.json receipt.json; do echo precious >../victims/$f; done`)
		lab.Write(who, "x.toml", strings.NewReplacer("NAME", "x-l", "VERSION", "1", "DIR", "wide").Replace(custom))
		succeeded(t, shell(t, lab, who, `for f in a.json x.toml.approval o.json; do ln -s `+victims+`/$f $f; done; ln -s `+victims+` dir`))
		for _, row := range []struct {
			exit int // 125: sbx does not do it, 0: in the place of the link
			args []string
		}{
			{125, []string{"sbx", "exec", "--outcome", "o.json", "--", "touch", "ran"}},
			{125, []string{"sbx", "exec", "--outcome", "dir/new.json", "--", "touch", "ran"}},
			{125, []string{"sbx", "exec", "--artifacts", "dir", "--", "touch", "ran"}},
			{125, []string{"sbx", "exec", "--artifacts", "dir/new", "--", "touch", "ran"}},
			{125, []string{"sbx", "approve", "--key", "../key", "--yes", "-o", "a.json", "--", "git", "push"}},
			{0, []string{"sbx", "profiles", "approve", "x.toml", "--key", "../key"}},
		} {
			if got := lab.Run(t, who, row.args...); got.Exit != row.exit {
				t.Errorf("%q: exit status %d, %s%s", row.args, got.Exit, got.Stdout, got.Stderr)
			}
		}
		nothingRan(t, lab, who)
		if info, err := os.Lstat(filepath.Join(lab.Project(who), "x.toml.approval")); err != nil || !info.Mode().IsRegular() {
			t.Errorf("the approval is %v, %v", info, err)
		}
		for name, text := range tree(t, victims) {
			if name != "." && !strings.Contains(text, "precious") && !strings.HasSuffix(contents(t, filepath.Join(victims, name)), "precious\n") {
				t.Errorf("%s was written: %s", name, text)
			}
		}
		if entries, err := os.ReadDir(victims); err != nil || len(entries) != 4 {
			t.Errorf("behind the link there are %v, %v", entries, err)
		}
	})
}

// TestBypass50_CachesOfSomebodyElseAreRefused: what a cache holds is run by the next
// command that uses it.
func TestBypass50_CachesOfSomebodyElseAreRefused(t *testing.T) {
	lab := sbxtest.NewLab(t)
	lab.Configure(npmRegistry)
	everyone(t, func(t *testing.T, who sbxtest.User) {
		cached := func(args ...string) sbxtest.Result {
			return run(t, lab, who, append(append([]string{"--profile", "js-install"}, args...), "--", "true")...)
		}
		succeeded(t, cached())
		base := filepath.Join(lab.Home(who), ".cache/sbx")
		leaves, err := filepath.Glob(base + "/*/js-install/*")
		if err != nil || len(leaves) == 0 {
			t.Fatal(leaves, err)
		}
		for _, dir := range []string{base, filepath.Dir(filepath.Dir(leaves[0])), filepath.Dir(leaves[0])} {
			must(t, os.Chmod(dir, 0o777))
			refused(t, cached(), "others may write the cache directory "+dir, "--no-cache")
			succeeded(t, cached("--no-cache"))
			must(t, os.Chmod(dir, 0o700))
		}
		// Its own mode is the command's to change, and is taken back.
		must(t, os.Chmod(leaves[0], 0o777))
		succeeded(t, cached())
		if mode := modeOf(t, leaves[0]); mode != 0o700 {
			t.Errorf("the cache has mode %o", mode)
		}
		if os.Geteuid() != 0 {
			return // only root can give it away
		}
		for _, dir := range []string{leaves[0], base} {
			must(t, os.Chown(dir, lab.UID(who)+1, -1))
			got := cached()
			if got.Exit != 125 {
				t.Errorf("%s of somebody else: exit status %d, %s", dir, got.Exit, got.Stderr)
			}
			must(t, os.Chown(dir, lab.UID(who), -1))
		}
		succeeded(t, cached())
	})
}
