package profile_test

import (
	"errors"
	"slices"
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
			for k, v := range inputs[name] {
				values[k] = v
			}
		}
		want, wantErr := set.Resolve(names, values, endpoints)
		got, err := profile.Resolve(sbx.BuiltinProfiles, "profiles.toml", names, values, endpoints)
		if got.Digest() != want.Digest() || err != nil || wantErr != nil {
			t.Errorf("%v: %v, %v", names, err, wantErr)
		}
	}
	_, err := profile.Resolve(sbx.BuiltinProfiles, "profiles.toml", []string{"js-instal"}, nil, endpoints)
	if refusal, ok := errors.AsType[*profile.Refusal](err); !ok || refusal.Nearest != "js-install" {
		t.Errorf("%v", err)
	}
	_, err = profile.Resolve(sbx.BuiltinProfiles, "profiles.toml", []string{"js-install"}, map[string]string{"target": "a.test"}, endpoints)
	if err == nil || err.Error() != `no selected profile takes the input "target"; profile browser-fetch does` {
		t.Errorf("%v", err)
	}
}
