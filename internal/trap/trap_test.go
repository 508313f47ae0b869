package trap

import (
	"errors"
	"runtime"
	"strings"
	"testing"
)

func TestPanicsAreCaughtWithTheirPlace(t *testing.T) {
	var m map[string]int
	var list []int
	for name, do := range map[string]func(){
		"by hand":        func() { panic("odd") },
		"by the runtime": func() { clear(m); m[t.Name()]++ },
		"out of range":   func() { list[len(t.Name())]++ },
	} {
		told := make(chan *Panic, 1)
		Trap(func(p *Panic) { told <- p }).Go(do)
		p := <-told
		if !strings.HasPrefix(p.Where, "trap/trap_test.go:") || !strings.Contains(p.Error(), p.Where) {
			t.Errorf("%s: %v", name, p)
		}
		if _, ok := errors.AsType[runtime.Error](error(p)); ok != (name != "by hand") {
			t.Errorf("%s: %v is a runtime error: %v", name, p, ok)
		}
	}
}

func TestCallReturnsErrorsAndPanics(t *testing.T) {
	odd := errors.New("odd")
	if err := Call(func() error { return odd }); !errors.Is(err, odd) {
		t.Errorf("%v", err)
	}
	var p *Panic
	err := Call(func() error { panic(odd) })
	if !errors.As(err, &p) || !errors.Is(err, odd) || !strings.HasPrefix(p.Where, "trap/trap_test.go:") {
		t.Errorf("%v", err)
	}
	again := Call(func() error { panic(p) })
	if !errors.Is(again, p) {
		t.Errorf("raised again it is %v", again)
	}
}

func TestNoTrapCatchesNothing(t *testing.T) {
	defer func() {
		if recover() == nil {
			t.Error("the panic was swallowed")
		}
	}()
	func() {
		defer Trap(nil).Catch()
		panic("odd")
	}()
}
