package project

import (
	"os"
	"testing"
	"time"
)

// BenchmarkLook searches the directory that SBX_BENCH_TREE names.
func BenchmarkLook(b *testing.B) {
	root := os.Getenv("SBX_BENCH_TREE")
	if root == "" {
		root = b.TempDir()
	}
	for b.Loop() {
		s, err := Look(Request{Roots: []string{root}, Home: "/nonexistent"})
		if err != nil {
			b.Fatal(err)
		}
		b.ReportMetric(float64(s.Trees[0].Dirs), "dirs")
		if os.Getenv("SBX_BENCH_AFTER") != "" {
			if _, err := s.SetAside("r", time.Now(), &Archive{}); err != nil {
				b.Fatal(err)
			}
		}
		s.Close()
	}
}
