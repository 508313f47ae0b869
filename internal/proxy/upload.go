package proxy

import (
	"errors"
	"io"
	"sync"

	"github.com/fractalboxdev/sbx/internal/egress"
)

// stream is a body that is counted on its way upstream and cut at its limits.
// One goroutine reads; others may look at how far it came.
type stream struct {
	r    io.Reader
	snap *snapshot
	rule *egress.Rule // nil: neither cap nor budget
	soft bool         // limits are noted, and nothing is cut

	mu   sync.Mutex
	left int64
	sent int64
	err  error
	late error // the first limit that was passed, where limits are soft
}

var (
	errOverCap    = errors.New("the body is larger than its rule allows")
	errOverBudget = errors.New("the rule's upload budget is spent")
)

// state returns how much went up, and why it ended.
func (b *stream) state() (sent int64, err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.sent, b.err
}

// passed returns the first limit that a soft stream went over.
func (b *stream) passed() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.late
}

// pass notes a limit that was gone over.
func (b *stream) pass(err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.late == nil {
		b.late = err
	}
}

// Read never returns a byte beyond the cap. Its failures stay, because what
// carries the body wraps or drops them.
func (b *stream) Read(p []byte) (int, error) {
	if b.err != nil {
		return 0, b.err
	}
	// One byte more than allowed, to tell a body that fits from one that does not.
	if !b.soft && int64(len(p)) > b.left+1 {
		p = p[:b.left+1]
	}
	n, err := b.r.Read(p)
	b.mu.Lock()
	defer b.mu.Unlock()
	if over := b.limit(int64(n)); over != nil {
		if b.late == nil {
			b.late = over
		}
		if !b.soft {
			n, err = 0, over
		}
	}
	b.left -= int64(n)
	b.sent += int64(n)
	b.err = err
	return n, err
}

// limit returns the limit that n more bytes pass.
func (b *stream) limit(n int64) error {
	switch {
	case b.rule == nil || n == 0:
		return nil
	case n > b.left:
		return errOverCap
	case !b.snap.budgets.bytes(b.rule, n):
		return errOverBudget
	}
	return nil
}
