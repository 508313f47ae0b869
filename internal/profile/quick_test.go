package profile_test

import (
	"errors"
	"maps"
	"slices"
	"strings"
	"testing"

	sbx "github.com/fractalboxdev/sbx"
	"github.com/fractalboxdev/sbx/internal/profile"
)

// The short way makes the same grants and the same refusals as the long one.
func TestResolveIsParseAndResolve(t *testing.T) {
	set := builtin(t)
	inputs := map[string]map[string]string{"public-repo-read": {"repo": "acme/widget", "lfs": "true"}, "browser-fetch": {"target": "a.test"}}
	for _, names := range append([][]string{nil, set.Names()[1:4]}, slices.Collect(slices.Chunk(set.Names(), 1))...) {
		values := map[string]string{}
		for _, name := range names {
			maps.Copy(values, inputs[name])
		}
		want, wantErr := set.Resolve(names, values, endpoints)
		got, err := profile.Resolve(sbx.BuiltinProfiles, "profiles.toml", names, values, nil, endpoints)
		if got.Digest() != want.Digest() || err != nil || wantErr != nil {
			t.Errorf("%v: %v, %v", names, err, wantErr)
		}
	}
	_, err := profile.Resolve(sbx.BuiltinProfiles, "profiles.toml", []string{"js-instal"}, nil, nil, endpoints)
	if refusal, ok := errors.AsType[*profile.Refusal](err); !ok || refusal.Nearest != "js-install" {
		t.Errorf("%v", err)
	}
	_, err = profile.Resolve(sbx.BuiltinProfiles, "profiles.toml", []string{"js-install"}, map[string]string{"target": "a.test"}, nil, endpoints)
	if err == nil || err.Error() != `no selected profile takes the input "target"; profile browser-fetch does` {
		t.Errorf("%v", err)
	}
}

// A variable gives an input only where the profile names it and nothing else does.
func TestInputsOfVariables(t *testing.T) {
	text := strings.Replace(minimal, "[[profiles.x-a.rules]]", `
[profiles.x-a.inputs.repo]
kind = "repo"
summary = "s"
env = "THE_REPO"
example = "a/b"

[[profiles.x-a.rules]]`, 1)
	text = strings.Replace(text, `"/x/**"`, `["/x/**", "/{repo}/**"]`, 1)
	vars := map[string]string{"THE_REPO": "acme/widget", "repo": "evil/evil", "": "evil/evil"}
	for _, c := range []struct {
		inputs, vars map[string]string
		want         string
	}{
		{nil, vars, "acme/widget"},
		{map[string]string{"repo": "other/one"}, vars, "other/one"},
		{nil, map[string]string{"THE_REPO": ""}, ""},
		{nil, nil, ""},
	} {
		g, err := profile.Resolve(text, "x.toml", []string{"x-a"}, c.inputs, c.vars, nil)
		if err != nil {
			t.Fatal(err)
		}
		got := ""
		for _, in := range g.Inputs() {
			got += in.Value
		}
		if got != c.want {
			t.Errorf("%v, %v: %q, want %q", c.inputs, c.vars, got, c.want)
		}
	}
	if _, err := profile.Resolve(text, "x.toml", []string{"x-a"}, nil, map[string]string{"THE_REPO": "../.."}, nil); err == nil {
		t.Error("a variable's value is not vetted")
	}
}
