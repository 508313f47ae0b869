package deploy

import (
	"context"
	"fmt"
	"time"

	"github.com/fractalboxdev/sbx/internal/verdict"
)

// Check is one gate of a deploy.
type Check string

// The gates, in the order in which a deploy passes them.
const (
	CheckMigrations Check = "migrations"
	CheckCanary     Check = "canary"
	CheckHealth     Check = "health"
	CheckDogfood    Check = "dogfood"
)

// AllChecks is every gate, in order. That dogfood is one of them is stricter than
// health, which does without.
func AllChecks() []Check {
	return []Check{CheckMigrations, CheckCanary, CheckHealth, CheckDogfood}
}

// Target is the sbx that is to be verified: this one, or one that serves.
type Target interface {
	Probe(ctx context.Context, kind verdict.Kind) (verdict.Record, error)
	Health(ctx context.Context) (Health, error)
}

// Verification is how Verify goes about it.
type Verification struct {
	Attempts int           // for each check, at least 1
	Interval time.Duration // between them
	// Deployment is the id of the one that has to answer, "" for any: the first that answers.
	Deployment string
	// OnAnswer is told every answer; again says that the check will be tried once more.
	OnAnswer func(c Check, a Answer, again bool)
}

// Answer is what one check came to.
type Answer struct {
	Check  Check  `json:"check"`
	Passed bool   `json:"passed"`
	Said   string `json:"said"`   // outcome or status
	Detail string `json:"detail"` // why
	Tries  int    `json:"tries"`
	// Deployment is the id of what the answer is about; "" where it does not say.
	Deployment string `json:"deployment"`
}

// Verify makes the checks one after another and stops at the first that does not
// pass. Only what may change by waiting is tried again: a deferred probe, a health
// that is unverified. All of them have to be about one deployment: the pass of one says
// nothing of another. The error is one of the context.
func Verify(ctx context.Context, t Target, checks []Check, v Verification) (answers []Answer, passed bool, err error) {
	for _, c := range checks {
		a, err := v.check(ctx, t, c)
		answers = append(answers, a)
		if err != nil || !a.Passed {
			return answers, false, err
		}
		v.Deployment = a.Deployment
	}
	return answers, true, nil
}

func (v Verification) check(ctx context.Context, t Target, c Check) (a Answer, err error) {
	for try := 1; ; try++ {
		var wait bool
		a, wait = ask(ctx, t, c)
		a = v.about(a)
		a.Check, a.Tries = c, try
		again := wait && try < v.Attempts
		if v.OnAnswer != nil {
			v.OnAnswer(c, a, again)
		}
		if !again {
			return a, nil
		}
		select {
		case <-ctx.Done():
			return a, fmt.Errorf("waiting to try %s again: %w", c, ctx.Err())
		case <-time.After(v.Interval):
		}
	}
}

// about turns a pass of another deployment, or of none, into an error.
func (v Verification) about(a Answer) Answer {
	switch {
	case !a.Passed:
	case a.Deployment == "":
		a.Passed, a.Said, a.Detail = false, "error", "the answer does not say which deployment it is about"
	case v.Deployment != "" && a.Deployment != v.Deployment:
		a.Passed, a.Said, a.Detail = false, "another deployment", fmt.Sprintf(
			"the answer is about %s, not %s: binary, configuration or the serving process differ; restart serve after an upgrade, or name the one you mean with --deployment", a.Deployment, v.Deployment)
	}
	return a
}

// ask makes one check once; wait says that a later answer may be another.
func ask(ctx context.Context, t Target, c Check) (a Answer, wait bool) {
	switch c {
	case CheckCanary, CheckDogfood:
		r, err := t.Probe(ctx, verdict.Kind(c))
		if err != nil {
			return Answer{Said: "error", Detail: err.Error()}, false
		}
		return Answer{Passed: r.Outcome == verdict.Passed, Said: string(r.Outcome), Detail: r.Diagnosis, Deployment: r.Deployment}, r.Outcome == verdict.Deferred
	case CheckHealth, CheckMigrations:
		h, err := t.Health(ctx)
		if err != nil {
			return Answer{Said: "error", Detail: err.Error()}, false
		}
		if c == CheckMigrations {
			if a = h.Store.answer(); a.Passed && h.Deployment == "" {
				a = Answer{Said: string(h.Status), Detail: h.Why} // why it cannot tell which one it is
			}
			a.Deployment = h.Deployment
			return a, false
		}
		return Answer{Passed: h.Status == OK, Said: string(h.Status), Detail: h.Why, Deployment: h.Deployment}, h.Status == Unverified
	}
	return Answer{Said: "error", Detail: fmt.Sprintf("there is no check %q", c)}, false
}

// StoreHealth says whether the store has the schema that this sbx knows.
type StoreHealth struct {
	Schema int    `json:"schema"` // steps that were taken
	Known  int    `json:"known"`  // steps that there are
	Error  string `json:"error,omitempty"`
}

func (s StoreHealth) answer() Answer {
	switch {
	case s.Error != "":
		return Answer{Said: "error", Detail: s.Error}
	case s.Schema != s.Known:
		return Answer{Said: "pending", Detail: fmt.Sprintf("the store has taken %d of %d migrations; run: sbx state migrate", s.Schema, s.Known)}
	}
	return Answer{Passed: true, Said: "current", Detail: fmt.Sprintf("schema %d", s.Schema)}
}
