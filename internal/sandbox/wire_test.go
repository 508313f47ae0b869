package sandbox

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func exampleSpec() Spec {
	return Spec{
		Run: "r1", UID: 1, GID: 2, Mapping: &Mapping{3, 4, 5, 6}, Tree: Layout(exampleFacts(), exampleRequest()),
		Workdir: "/w\xff", Argv: []string{"a\xffb", ""}, Env: []string{"K=\x01"},
		Stdio:        Stdio{TTY: [3]bool{true, false, true}, Null: [3]bool{false, true, false}, Rows: 24, Cols: 80},
		Probe:        Probe{V4: [4]byte{1, 2, 3, 4}, V6: [16]byte{5, 15: 6}, Port: 80, Nonce: strings.Repeat("n", 32)},
		WaitChildren: true, UserNamespaces: true, Landlock: 7, PrivateSize: 1 << 33,
		Limits: ResourceLimits{Files: 1, FileSize: 1<<40 + 1, Processes: 3, Data: 4},
	}
}

func TestSpecificationArrivesByteForByte(t *testing.T) {
	for _, want := range []Spec{exampleSpec(), {}, {Run: "r2", Tree: []Entry{{Kind: Dev}}}} {
		got, err := DecodeSpec(want.Encode())
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Error(diff)
		}
	}
}

func TestBrokenSpecificationIsRefused(t *testing.T) {
	whole := exampleSpec().Encode()
	for n := range whole {
		if _, err := DecodeSpec(whole[:n]); err == nil {
			t.Fatalf("its first %d of %d bytes were accepted", n, len(whole))
		}
	}
	if _, err := DecodeSpec(append(whole, 0)); err == nil {
		t.Error("trailing bytes were accepted")
	}
}
