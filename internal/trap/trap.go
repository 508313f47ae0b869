// Package trap catches the panics of goroutines. One that nobody catches ends the
// process at once; caught, whoever runs a sandbox can still take everything back.
package trap

import (
	"fmt"
	"path"
	"runtime"
	"strings"
)

// Trap is told of each panic of the goroutines that it guards, on the very goroutine:
// it must not block. A nil Trap catches nothing.
type Trap func(*Panic)

// Panic is an error: a fault in sbx itself.
type Panic struct {
	Value any    // what was given to panic
	Where string // package, file and line, as in "proxy/relay.go:163"
}

// Error says what happened and where.
func (p *Panic) Error() string { return fmt.Sprintf("panic at %s: %v", p.Where, p.Value) }

// Unwrap returns the value where it is an error, so that runtime.Error can be found.
func (p *Panic) Unwrap() error {
	err, _ := p.Value.(error)
	return err
}

// Go starts a goroutine that is guarded.
func (t Trap) Go(do func()) {
	go func() {
		defer t.Catch()
		do()
	}()
}

// Catch is to be deferred as the first thing of a goroutine.
func (t Trap) Catch() {
	if t == nil {
		return
	}
	if value := recover(); value != nil {
		t(caught(value))
	}
}

// Call runs do and returns its panic as an error.
func Call(do func() error) (err error) {
	defer func() {
		if value := recover(); value != nil {
			err = caught(value)
		}
	}()
	return do()
}

// caught finds the line that panicked: the first one above the runtime's own, while the
// stack still stands. A panic that was raised again keeps its first line.
func caught(value any) *Panic {
	if p, ok := value.(*Panic); ok {
		return p
	}
	var pcs [64]uintptr
	frames := runtime.CallersFrames(pcs[:runtime.Callers(2, pcs[:])])
	p, panicking := &Panic{Value: value, Where: "an unknown place"}, false
	for {
		frame, more := frames.Next()
		switch {
		case frame.Function == "runtime.gopanic":
			panicking = true
		case panicking && !strings.HasPrefix(frame.Function, "runtime."):
			p.Where = fmt.Sprintf("%s/%s:%d", path.Base(path.Dir(frame.File)), path.Base(frame.File), frame.Line)
			return p
		}
		if !more {
			return p
		}
	}
}
