package cli

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/fractalboxdev/sbx/internal/admission"
	"github.com/fractalboxdev/sbx/internal/config"
	"github.com/fractalboxdev/sbx/internal/store"
)

// storeIn returns a function that opens the store of the process's state directory,
// once. It stays open until the process ends.
func (e *environment) storeIn(dir string) func() (*store.Store, error) {
	if e.opened == nil {
		e.opened = sync.OnceValues(func() (*store.Store, error) {
			return store.Open(context.Background(), store.Options{Dir: dir})
		})
	}
	return e.opened
}

// poolsOf is what the operator says of all classes.
func (e *environment) poolsOf(c config.Config) admission.Pools {
	return admission.Pools{Caps: c.Caps(), Queue: c.Queue.V, Wait: c.Wait.V, OnWait: e.queueLine}
}

// waiting says whether and how long a run waits, where flags say so.
type waiting struct {
	queue, queueGiven bool
	wait              time.Duration
	waitGiven         bool
}

// apply puts the flags in place of the configuration. --wait alone means --queue.
func (w waiting) apply(p admission.Pools) admission.Pools {
	if w.waitGiven {
		p.Wait, p.Queue = w.wait, true
	}
	if w.queueGiven {
		p.Queue = w.queue
	}
	return p
}

// queueLine says where a run stands in the queue.
func (e *environment) queueLine(p admission.Position) {
	if p.Since.IsZero() {
		e.say.Status("")
		return
	}
	text := fmt.Sprintf("waiting for a slot of class %s: next in the queue", p.Class)
	if p.Ahead > 0 {
		text = fmt.Sprintf("waiting for a slot of class %s: %d ahead in the queue", p.Class, p.Ahead)
	}
	e.say.Status(text)
}
