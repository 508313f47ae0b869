package profile_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/fractalboxdev/sbx/internal/class"
	"github.com/fractalboxdev/sbx/internal/profile"
)

// of is the smallest profile with a line more.
func of(name, line string) string {
	return strings.Replace(strings.ReplaceAll(minimal, "profiles.x-a", "profiles."+name), "version = 1", "version = 1\n"+line, 1)
}

func TestClassesAreCheckedStrictly(t *testing.T) {
	for line, want := range map[string]string{
		`class = "brwoser"`:      `class: there is no "brwoser" (did you mean browser?)`,
		`class = "heavyweight"`:  `class: there is no "heavyweight" (known: agent, browser, lean, task)`,
		`require = ["memroy"]`:   `require: there is no "memroy" (did you mean memory?)`,
		`klass = "task"`:         `unknown key profiles.x-a.klass (did you mean class?)`,
		`require = "memory"`:     `require`,
		`class = ["task"]`:       `class`,
		`require = ["", "disk"]`: `require: there is no ""`,
	} {
		if _, err := profile.Parse(of("x-a", line), "x.toml"); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %s", line, err, want)
		}
	}
}

func TestClassesOfProfilesHaveToAgree(t *testing.T) {
	set := mustParse(t, of("x-a", `class = "browser"`+"\n"+`require = ["memory"]`))
	others := mustParse(t, of("x-b", `class = "agent"`))
	plain := mustParse(t, of("x-c", `require = ["disk", "memory", "disk"]`))
	all, err := set.With(others, plain)
	if err != nil {
		t.Fatal(err)
	}
	g, err := all.Resolve([]string{"x-a", "x-c"}, nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	if got := g.Require(); g.Class() != class.Browser || len(got) != 2 || got[0] != class.Disk || got[1] != class.Memory {
		t.Errorf("class %s, require %v", g.Class(), got)
	}
	plainGrant, err := all.Resolve([]string{"x-c"}, nil, nil)
	if err != nil || plainGrant.Class() != "" || plainGrant.Digest() == g.Digest() {
		t.Errorf("%v, class %q", err, plainGrant.Class())
	}
	_, err = all.Resolve([]string{"x-a", "x-b"}, nil, nil)
	if refusal, ok := errors.AsType[*profile.Refusal](err); !ok || refusal.Code != profile.CodeBadGrant || !strings.Contains(err.Error(), "different classes") {
		t.Errorf("%v", err)
	}
}

func TestDiffOfClasses(t *testing.T) {
	for _, c := range []struct{ old, new, want string }{
		{"", `class = "browser"`, "maybe    runs are of the class browser, which may make user namespaces inside"},
		{`class = "browser"`, `class = "lean"`, "note    the class of runs changed from browser to lean"},
		{`class = "lean"`, "", "note    the class of runs changed from lean to the operator's default"},
		{`require = ["memory"]`, "", "maybe    runs no longer need a limit of memory"},
		{"", `require = ["cpu"]`, "impossible    runs need a limit of cpu"},
	} {
		if got := changes(t, of("x-a", c.old), of("x-a", c.new)); !strings.Contains(got, c.want) {
			t.Errorf("%q to %q: %s", c.old, c.new, got)
		}
	}
}
