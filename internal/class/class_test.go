package class

import (
	"testing"
	"time"
)

func TestSizes(t *testing.T) {
	good := map[string]int64{"1": 1, "512MiB": 512 << 20, "2g": 2 << 30, "1048576": 1 << 20, "3KB": 3 << 10, "1TiB": 1 << 40, "7b": 7}
	for text, want := range good {
		if got, err := ParseSize(text); err != nil || got != want {
			t.Errorf("%q: %d, %v, want %d", text, got, err, want)
		}
		if again, err := ParseSize(FormatSize(want)); err != nil || again != want {
			t.Errorf("%d is written as %q, which reads as %d, %v", want, FormatSize(want), again, err)
		}
	}
	for _, text := range []string{"", "0", "-1", "g", "1x", "1 g", "1.5g", "9223372036854775807k", "1gg", "1ib", "0x10"} {
		if got, err := ParseSize(text); err == nil {
			t.Errorf("%q is %d", text, got)
		}
	}
}

func TestProcessors(t *testing.T) {
	for in, want := range map[float64]int{2: 2000, 0.5: 500, 0.01: 10} {
		if got, err := CPUOf(in); err != nil || got != want {
			t.Errorf("%v: %d, %v", in, got, err)
		}
	}
	nan := 0.0
	for _, in := range []float64{0, -1, 0.001, 1e9, nan / nan} {
		if got, err := CPUOf(in); err == nil {
			t.Errorf("%v: %d", in, got)
		}
	}
	if got := FormatCPU(1500); got != "1.5" {
		t.Error(got)
	}
}

func TestAFlagOnlyLowers(t *testing.T) {
	bound := Limits{Memory: 100, Time: time.Minute}
	if name, over := (Limits{Memory: 101, Processes: 9}).Over(bound); !over || name != Memory {
		t.Errorf("%s %v", name, over)
	}
	if name, over := (Limits{Memory: 100, Processes: 9}).Over(bound); over {
		t.Errorf("%s is over", name)
	}
	got := Limits{Memory: 50, Processes: 9}.Under(bound)
	if want := (Limits{Memory: 50, Processes: 9, Time: time.Minute}); got != want {
		t.Errorf("%+v, want %+v", got, want)
	}
}

func TestEveryLimitHasAValue(t *testing.T) {
	all := Limits{Memory: 1, Processes: 1, CPU: 1, Files: 1, Disk: 1, Time: 1}
	for _, name := range LimitNames() {
		if l := Limit(name); !l.Valid() || !all.Has(l) || all.Text(l) == "" || (Limits{}).Has(l) || (Limits{}).Text(l) != "" {
			t.Errorf("%s", name)
		}
	}
	if Limit("memroy").Valid() || Name("lena").Valid() {
		t.Error("a misspelt name is valid")
	}
	for _, name := range Names() {
		if !Name(name).Valid() {
			t.Error(name)
		}
	}
}
