package proxy

import (
	"sync"

	"github.com/fractalboxdev/sbx/internal/egress"
)

// budgets counts what rules have uploaded under one grant. Rules with one id
// share one budget.
type budgets struct {
	mu   sync.Mutex
	used map[string]*egress.Budget
}

// request takes one request with n body bytes from the rule's budget, or nothing.
func (b *budgets) request(rule *egress.Rule, n int64) bool {
	return b.take(rule, n, 1)
}

// bytes takes n body bytes from the rule's budget, or nothing.
func (b *budgets) bytes(rule *egress.Rule, n int64) bool {
	if rule.UploadBudget.Bytes == 0 {
		return true
	}
	return b.take(rule, n, 0)
}

func (b *budgets) take(rule *egress.Rule, bytes, requests int64) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.used == nil {
		b.used = make(map[string]*egress.Budget)
	}
	used := b.used[rule.ID]
	if used == nil {
		used = new(egress.Budget)
		b.used[rule.ID] = used
	}
	limit := rule.UploadBudget
	if limit.Bytes > 0 && used.Bytes+bytes > limit.Bytes || limit.Requests > 0 && used.Requests+requests > limit.Requests {
		return false
	}
	used.Bytes += bytes
	used.Requests += requests
	return true
}
