package verdict

import (
	"strings"
	"testing"
	"time"
)

// whole is what a canary sees where everything holds.
func whole() Evidence {
	legs := []Leg{
		{Name: "https, verified", TLS: true, Verified: true, Status: 520, Recorded: true},
		{Name: "https, unverified", TLS: true, Status: 520, Recorded: true},
		{Name: "http", Status: 520, Recorded: true},
		{Name: "https by proxy, verified", TLS: true, Verified: true, Explicit: true, Status: 520, Recorded: true},
	}
	return Evidence{
		Unlisted: legs, Granted: Leg{Status: 200},
		Refused: Leg{Status: 403, Recorded: true}, Guarded: Leg{Status: 403, Recorded: true},
	}
}

func TestVector38_VerdictTable(t *testing.T) {
	silent := func(e *Evidence, legs ...int) {
		for _, i := range legs {
			e.Unlisted[i].Status, e.Unlisted[i].Recorded = 0, false
		}
	}
	for name, row := range map[string]struct {
		change func(*Evidence)
		want   Outcome
		says   string
	}{
		"HTTPS and HTTP refused":             {func(*Evidence) {}, Passed, "gate refused"},
		"only the explicit proxy refused":    {func(e *Evidence) { silent(e, 0, 1, 2) }, Inconclusive, "HTTPS does not reach"},
		"only HTTPS refused":                 {func(e *Evidence) { silent(e, 2) }, Passed, "gate refused"},
		"only HTTP refused":                  {func(e *Evidence) { silent(e, 0, 1) }, Inconclusive, "CA"},
		"HTTPS refused only unverified":      {func(e *Evidence) { silent(e, 0) }, Inconclusive, "CA is not trusted"},
		"nothing answered":                   {func(e *Evidence) { silent(e, 0, 1, 2, 3) }, Inconclusive, "nothing answered"},
		"301 over HTTP":                      {func(e *Evidence) { e.Unlisted[2].Status = 301 }, Failed, "301"},
		"301 over unverified HTTPS":          {func(e *Evidence) { e.Unlisted[1].Status = 301 }, Failed, "301"},
		"200 over HTTPS, nothing over HTTP":  {func(e *Evidence) { silent(e, 2); e.Unlisted[0].Status = 200 }, Failed, "200"},
		"520 without the gate's record":      {func(e *Evidence) { e.Unlisted[0].Recorded = false }, Inconclusive, "record"},
		"502 over HTTPS":                     {func(e *Evidence) { silent(e, 1, 2, 3); e.Unlisted[0].Status = 502 }, Inconclusive, "502"},
		"granted path silent":                {func(e *Evidence) { e.Granted = Leg{Error: "timeout"} }, Inconclusive, "timeout"},
		"granted path refused":               {func(e *Evidence) { e.Granted.Status = 403 }, Inconclusive, "403"},
		"refused path answers":               {func(e *Evidence) { e.Refused.Status = 200 }, Failed, "no rule allows"},
		"refused path not recorded":          {func(e *Evidence) { e.Refused.Recorded = false }, Inconclusive, "no rule allows"},
		"guarded name answers":               {func(e *Evidence) { e.Guarded.Status = 200 }, Failed, "address guard"},
		"guarded name is a broken upstream":  {func(e *Evidence) { e.Guarded.Status = 502 }, Inconclusive, "502"},
		"a datagram left":                    {func(e *Evidence) { e.Left = []string{"a datagram left"} }, Failed, "datagram"},
		"a wall is missing":                  {func(e *Evidence) { e.Walls = []string{"no seccomp"} }, Failed, "seccomp"},
		"a probe could not be made":          {func(e *Evidence) { e.Missing = []string{"UDP"} }, Inconclusive, "UDP"},
		"open wins over what is unproven":    {func(e *Evidence) { silent(e, 0, 1); e.Left = []string{"left"} }, Failed, "left"},
		"the zero value is not a pass":       {func(e *Evidence) { *e = Evidence{} }, Inconclusive, "nothing answered"},
		"refused answer is not unlisted one": {func(e *Evidence) { e.Unlisted = nil }, Inconclusive, "nothing answered"},
	} {
		t.Run(name, func(t *testing.T) {
			e := whole()
			row.change(&e)
			got, why := Judge(e)
			if got != row.want || !strings.Contains(why, row.says) {
				t.Errorf("%s: %q; want %s with %q", got, why, row.want, row.says)
			}
		})
	}
}

func TestVector39_RecordsGrowOld(t *testing.T) {
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	for _, row := range []struct {
		outcome    Outcome
		deployment string
		age        time.Duration
		want       bool
	}{
		{Passed, "d", 0, true},
		{Passed, "d", 24*time.Hour - 1, true},
		{Passed, "d", 24 * time.Hour, false},
		{Failed, "d", 24*time.Hour - 1, true},
		{Failed, "d", 24 * time.Hour, false},
		{Inconclusive, "d", 10*time.Minute - 1, true},
		{Inconclusive, "d", 10 * time.Minute, false},
		{Deferred, "d", 0, false},
		{Passed, "other", 0, false},
		{Passed, "", 0, false},
		{Passed, "d", -time.Second, false},
	} {
		r := Record{Deployment: row.deployment, Outcome: row.outcome, At: now.Add(-row.age)}
		if got := r.Fresh("d", now); got != row.want {
			t.Errorf("%s of %q, %s old: fresh is %v", row.outcome, row.deployment, row.age, got)
		}
	}
	if (Record{Outcome: Passed, At: now}).Fresh("", now) {
		t.Error("a record without deployment is fresh for a deployment without id")
	}
}

func TestOnlyAFreshFailureOutweighsWhatCouldNotTell(t *testing.T) {
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	for _, row := range []struct {
		was, later Outcome
		deployment string
		age        time.Duration
		want       bool
	}{
		{Failed, Inconclusive, "d", time.Hour, true},
		{Failed, Inconclusive, "d", 24 * time.Hour, false},
		{Failed, Inconclusive, "d", -time.Second, false},
		{Failed, Inconclusive, "other", time.Hour, false},
		{Failed, Passed, "d", time.Hour, false},
		{Failed, Failed, "d", time.Hour, false},
		{Passed, Inconclusive, "d", time.Hour, false},
		{Inconclusive, Inconclusive, "d", time.Minute, false},
	} {
		was := Record{Deployment: row.deployment, Outcome: row.was, At: now.Add(-row.age)}
		if got := was.Outweighs(Record{Deployment: "d", Outcome: row.later, At: now}); got != row.want {
			t.Errorf("%s of %q, %s old, and then %s: %v", row.was, row.deployment, row.age, row.later, got)
		}
	}
}

func TestEveryPartOfADeploymentChangesItsID(t *testing.T) {
	whole := func() Deployment {
		return Deployment{
			Binary: "b", Profiles: "p", Config: map[string]string{"f": "1"}, Libseccomp: "2.5", Who: "user",
			Host: map[string]string{"kernel": "6.1"},
		}
	}
	seen := map[string]string{whole().ID(): "nothing"}
	if first, second := whole(), whole(); first.ID() != second.ID() || len(first.ID()) != 64 {
		t.Errorf("id is %s", whole().ID())
	}
	for name, change := range map[string]func(*Deployment){
		"binary": func(d *Deployment) { d.Binary = "c" }, "profiles": func(d *Deployment) { d.Profiles = "q" },
		"configuration": func(d *Deployment) { d.Config["f"] = "2" }, "another file": func(d *Deployment) { d.Config["g"] = "" },
		"libseccomp": func(d *Deployment) { d.Libseccomp = "2.6" }, "who": func(d *Deployment) { d.Who = "root" },
		"kernel": func(d *Deployment) { d.Host["kernel"] = "6.2" }, "a sysctl": func(d *Deployment) { d.Host["sysctl"] = "0" },
	} {
		d := whole()
		change(&d)
		if other, twice := seen[d.ID()]; twice {
			t.Errorf("%s: the same id as %s", name, other)
		}
		seen[d.ID()] = name
	}
}
