package admission

import (
	"time"

	"github.com/fractalboxdev/sbx/internal/class"
)

// Pools are the operator's rules for all classes.
type Pools struct {
	Caps   map[class.Name]int
	Queue  bool          // wait where a pool is full
	Wait   time.Duration // at most; 0: without end
	OnWait func(Position)
}

// For returns the rules for a run of the class. A class without a cap has no slots.
func (p Pools) For(name class.Name) Rules {
	return Rules{Class: name, Cap: p.Caps[name], Queue: p.Queue, Wait: p.Wait, OnWait: p.OnWait}
}
