package store

import (
	"context"
	"path/filepath"
	"testing"
)

// BenchmarkRun is what one run costs, in the order of a run: each iteration opens
// the store anew, as each run does.
func BenchmarkRun(b *testing.B) {
	dir := filepath.Join(b.TempDir(), "state")
	ctx := context.Background()
	for b.Loop() {
		s, err := Open(ctx, Options{Dir: dir})
		if err != nil {
			b.Fatal(err)
		}
		if _, err := s.FreeDead(ctx); err != nil {
			b.Fatal(err)
		}
		lease, _, _, err := s.Claim(ctx, claim("a", "lean", 8))
		if err != nil {
			b.Fatal(err)
		}
		if err := lease.Release(ctx); err != nil {
			b.Fatal(err)
		}
		b.StopTimer()
		if err := s.Close(); err != nil {
			b.Fatal(err)
		}
		b.StartTimer()
	}
}

// BenchmarkOpen is the part of BenchmarkRun that a run does beside other things.
func BenchmarkOpen(b *testing.B) {
	dir := filepath.Join(b.TempDir(), "state")
	ctx := context.Background()
	for b.Loop() {
		s, err := Open(ctx, Options{Dir: dir})
		if err != nil {
			b.Fatal(err)
		}
		b.StopTimer()
		if err := s.Close(); err != nil {
			b.Fatal(err)
		}
		b.StartTimer()
	}
}

func BenchmarkClaimAndRelease(b *testing.B) {
	ctx := context.Background()
	s, err := Open(ctx, Options{Dir: filepath.Join(b.TempDir(), "state")})
	if err != nil {
		b.Fatal(err)
	}
	for b.Loop() {
		lease, _, _, err := s.Claim(ctx, claim("a", "lean", 8))
		if err != nil {
			b.Fatal(err)
		}
		if err := lease.Release(ctx); err != nil {
			b.Fatal(err)
		}
	}
}
