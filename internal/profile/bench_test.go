package profile_test

import (
	"testing"

	sbx "github.com/fractalboxdev/sbx"
	"github.com/fractalboxdev/sbx/internal/profile"
)

// Parsing and resolving are on the start-up path of every run with a profile.
func BenchmarkResolve(b *testing.B) {
	b.ReportAllocs()
	for b.Loop() {
		if _, err := profile.Resolve(sbx.BuiltinProfiles, "profiles.toml", []string{"js-install"}, nil, nil, endpoints); err != nil {
			b.Fatal(err)
		}
	}
}
