package deploy

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/fractalboxdev/sbx/internal/advisory"
	"github.com/fractalboxdev/sbx/internal/host"
	"github.com/fractalboxdev/sbx/internal/verdict"
)

var now = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

func record(kind verdict.Kind, outcome verdict.Outcome, deployment string, age time.Duration) *verdict.Record {
	return &verdict.Record{Deployment: deployment, Kind: kind, Outcome: outcome, Diagnosis: "why", At: now.Add(-age)}
}

func TestVector39_HealthNeedsAFreshPassOfThisDeployment(t *testing.T) {
	pass := record(verdict.Canary, verdict.Passed, "d", time.Hour)
	for name, row := range map[string]struct {
		known    Known
		problem  error
		advisory advisory.State
		want     Status
	}{
		"fresh pass":                       {Known{Canary: pass}, nil, "", OK},
		"attack passed, no canary":         {Known{Attack: record(verdict.Attack, verdict.Passed, "d", time.Hour)}, nil, "", OK},
		"nothing known":                    {Known{}, nil, "", Unverified},
		"pass of another deployment":       {Known{Canary: record(verdict.Canary, verdict.Passed, "e", time.Hour)}, nil, "", Unverified},
		"pass of 24 hours ago":             {Known{Canary: record(verdict.Canary, verdict.Passed, "d", 24*time.Hour)}, nil, "", Unverified},
		"inconclusive":                     {Known{Canary: record(verdict.Canary, verdict.Inconclusive, "d", time.Minute)}, nil, "", Unverified},
		"failed":                           {Known{Canary: record(verdict.Canary, verdict.Failed, "d", time.Hour)}, nil, "", Misconfigured},
		"canary passed, attack failed":     {Known{Canary: pass, Attack: record(verdict.Attack, verdict.Failed, "d", time.Hour)}, nil, "", Misconfigured},
		"attack failed long ago":           {Known{Canary: pass, Attack: record(verdict.Attack, verdict.Failed, "d", 25*time.Hour)}, nil, "", OK},
		"dogfood failed":                   {Known{Canary: pass, Dogfood: record(verdict.Dogfood, verdict.Failed, "d", time.Hour)}, nil, "", OK},
		"configuration is broken":          {Known{Canary: pass}, errors.New("broken"), "", Misconfigured},
		"the binary was replaced":          {Known{Canary: pass}, fmt.Errorf("x: %w", host.ErrReplaced), "", Unverified},
		"advisory: below":                  {Known{Canary: pass}, nil, advisory.Unsupported, Unsupported},
		"advisory: unknown":                {Known{Canary: pass}, nil, advisory.Unknown, Unverified},
		"advisory: none":                   {Known{Canary: pass}, nil, advisory.None, OK},
		"advisory: of a component":         {Known{Canary: pass}, nil, advisory.Component, OK},
		"a failed canary is not unknown":   {Known{Canary: record(verdict.Canary, verdict.Failed, "d", time.Hour)}, nil, advisory.Unknown, Misconfigured},
		"unsupported beats a failed proof": {Known{Canary: record(verdict.Canary, verdict.Failed, "d", time.Hour)}, nil, advisory.Unsupported, Unsupported},
	} {
		t.Run(name, func(t *testing.T) {
			h := Health{Deployment: "d", Advisory: Advisory{State: row.advisory, Detail: "why"}}
			h.Judge(row.problem, row.known, now)
			if h.Status != row.want || (h.Why == "") != (row.want == OK) {
				t.Errorf("%s: %q; want %s", h.Status, h.Why, row.want)
			}
		})
	}
}

// target answers from lists, one answer a question.
type target struct {
	probes map[verdict.Kind][]verdict.Outcome
	health []Status
	store  StoreHealth
	err    error
	asked  []string
	ids    []string // of the deployments that the answers are about; the last one goes on, "d" for none
}

func (f *target) about() string {
	id := "d"
	if len(f.ids) > 0 {
		id = f.ids[0]
		f.ids = f.ids[min(1, len(f.ids)-1):]
	}
	return id
}

func (f *target) Probe(_ context.Context, kind verdict.Kind) (verdict.Record, error) {
	f.asked = append(f.asked, string(kind))
	if f.err != nil {
		return verdict.Record{}, f.err
	}
	next := f.probes[kind][0]
	f.probes[kind] = f.probes[kind][1:]
	return verdict.Record{Deployment: f.about(), Outcome: next}, nil
}

func (f *target) Health(context.Context) (Health, error) {
	f.asked = append(f.asked, "health")
	h := Health{Deployment: f.about(), Store: f.store, Status: f.health[0]}
	if len(f.health) > 1 {
		f.health = f.health[1:]
	}
	return h, f.err
}

func TestVerifyRetriesOnlyWhatMayChange(t *testing.T) {
	const passed, failed, deferred, inconclusive = verdict.Passed, verdict.Failed, verdict.Deferred, verdict.Inconclusive
	for name, row := range map[string]struct {
		checks []Check
		target target
		want   bool
		asked  string
	}{
		"all of it": {
			AllChecks(),
			target{probes: map[verdict.Kind][]verdict.Outcome{"canary": {passed}, "dogfood": {passed}}, health: []Status{OK}},
			true,
			"health canary health dogfood",
		},
		"deferred, then passed": {[]Check{CheckCanary}, target{probes: map[verdict.Kind][]verdict.Outcome{"canary": {deferred, deferred, passed}}}, true, "canary canary canary"},
		"always deferred":       {[]Check{CheckCanary}, target{probes: map[verdict.Kind][]verdict.Outcome{"canary": {deferred, deferred, deferred, passed}}}, false, "canary canary canary"},
		"failed":                {[]Check{CheckCanary}, target{probes: map[verdict.Kind][]verdict.Outcome{"canary": {failed, passed}}}, false, "canary"},
		"inconclusive":          {[]Check{CheckCanary}, target{probes: map[verdict.Kind][]verdict.Outcome{"canary": {inconclusive, passed}}}, false, "canary"},
		"unverified, then ok":   {[]Check{CheckHealth}, target{health: []Status{Unverified, OK}}, true, "health health"},
		"misconfigured":         {[]Check{CheckHealth}, target{health: []Status{Misconfigured, OK}}, false, "health"},
		"unsupported":           {[]Check{CheckHealth}, target{health: []Status{Unsupported, OK}}, false, "health"},
		"migrations pending":    {AllChecks(), target{health: []Status{OK}, store: StoreHealth{Schema: 1, Known: 2}}, false, "health"},
		"cannot be asked":       {[]Check{CheckCanary}, target{err: errors.New("refused")}, false, "canary"},
		"stops at the first":    {AllChecks(), target{probes: map[verdict.Kind][]verdict.Outcome{"canary": {failed}}, health: []Status{OK}}, false, "health canary"},
		"unknown check":         {[]Check{"other"}, target{}, false, ""},
	} {
		t.Run(name, func(t *testing.T) {
			_, got, err := Verify(t.Context(), &row.target, row.checks, Verification{Attempts: 3})
			if err != nil || got != row.want || strings.Join(row.target.asked, " ") != row.asked {
				t.Errorf("passed %v, asked %q (%v); want %v, %q", got, row.target.asked, err, row.want, row.asked)
			}
		})
	}
}

func TestVerifyWantsOneDeployment(t *testing.T) {
	for name, row := range map[string]struct {
		ids    []string
		expect string
		want   bool
		asked  string
	}{
		"one":                       {nil, "", true, "health canary health dogfood"},
		"the expected":              {nil, "d", true, "health canary health dogfood"},
		"not the expected":          {nil, "e", false, "health"},
		"another canary":            {[]string{"d", "e"}, "", false, "health canary"},
		"another health":            {[]string{"d", "d", "e"}, "", false, "health canary health"},
		"another dogfood":           {[]string{"d", "d", "d", "e"}, "", false, "health canary health dogfood"},
		"none":                      {[]string{""}, "", false, "health"},
		"none, and one is expected": {[]string{""}, "d", false, "health"},
		"a canary of none":          {[]string{"d", ""}, "", false, "health canary"},
	} {
		t.Run(name, func(t *testing.T) {
			f := &target{ids: row.ids, health: []Status{OK}, probes: map[verdict.Kind][]verdict.Outcome{"canary": {verdict.Passed}, "dogfood": {verdict.Passed}}}
			_, got, err := Verify(t.Context(), f, AllChecks(), Verification{Attempts: 3, Deployment: row.expect})
			if err != nil || got != row.want || strings.Join(f.asked, " ") != row.asked {
				t.Errorf("passed %v, asked %q (%v); want %v, %q", got, f.asked, err, row.want, row.asked)
			}
		})
	}
}

func TestVerifyEndsWithItsContext(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	f := &target{health: []Status{Unverified}}
	v := Verification{Attempts: 100, Interval: time.Hour, OnAnswer: func(Check, Answer, bool) { cancel() }}
	if _, passed, err := Verify(ctx, f, []Check{CheckHealth}, v); passed || !errors.Is(err, context.Canceled) {
		t.Errorf("passed %v, %v", passed, err)
	}
}
