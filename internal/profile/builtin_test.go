package profile_test

import (
	"testing"

	sbx "github.com/fractalboxdev/sbx"
	"github.com/fractalboxdev/sbx/internal/profile"
)

func TestBuiltinProfilesLoad(t *testing.T) {
	set, err := profile.Parse(sbx.BuiltinProfiles, "profiles.toml")
	if err != nil {
		t.Fatal(err)
	}
	t.Log(set.Names())
}
