package verdict

import (
	"strings"
	"testing"
)

func TestDogfoodTable(t *testing.T) {
	whole := func() Rehearsal {
		return Rehearsal{
			Want: "c1", First: Pass{Ran: true, Run: "r1", Output: "c1"}, Second: Pass{Ran: true, Run: "r1", Output: "c1", Deduped: true}, Clone: "c1", Clones: 1,
		}
	}
	for name, row := range map[string]struct {
		change func(*Rehearsal)
		want   Outcome
		says   string
	}{
		"all of it":                    {func(*Rehearsal) {}, Passed, "cloned"},
		"a repository of somebody's":   {func(r *Rehearsal) { r.Want = "" }, Passed, "cloned"},
		"pool full":                    {func(r *Rehearsal) { r.First = Pass{Full: true} }, Deferred, "full"},
		"pool full at the second call": {func(r *Rehearsal) { r.Second = Pass{Full: true} }, Deferred, "full"},
		"refused":                      {func(r *Rehearsal) { r.First = Pass{Error: "no namespaces"} }, Inconclusive, "no namespaces"},
		"answered at once":             {func(r *Rehearsal) { r.First.Deduped = true }, Failed, "new key"},
		"clone failed":                 {func(r *Rehearsal) { r.First.Exit, r.First.Error = 128, "fatal" }, Failed, "fatal"},
		"another commit":               {func(r *Rehearsal) { r.First.Output, r.Clone = "c2", "c2" }, Failed, "c2"},
		"no clone outside":             {func(r *Rehearsal) { r.Clone = "" }, Failed, "outside"},
		"no clone of somebody's":       {func(r *Rehearsal) { r.Want, r.Clone = "", "" }, Failed, "outside"},
		"second refused":               {func(r *Rehearsal) { r.Second = Pass{Error: "why"} }, Failed, "why"},
		"ran twice":                    {func(r *Rehearsal) { r.Second.Deduped = false }, Failed, "ran again"},
		"cloned twice":                 {func(r *Rehearsal) { r.Clones = 2 }, Failed, "ran again"},
		"another run":                  {func(r *Rehearsal) { r.Second.Run = "r2" }, Failed, "differs"},
		"other output":                 {func(r *Rehearsal) { r.Second.Output = "" }, Failed, "differs"},
		"other status":                 {func(r *Rehearsal) { r.Second.Exit = 1 }, Failed, "differs"},
		"the zero value":               {func(r *Rehearsal) { *r = Rehearsal{} }, Inconclusive, "refused"},
	} {
		t.Run(name, func(t *testing.T) {
			r := whole()
			row.change(&r)
			if got, why := JudgeDogfood(r); got != row.want || !strings.Contains(why, row.says) {
				t.Errorf("%s: %q; want %s with %q", got, why, row.want, row.says)
			}
		})
	}
}
