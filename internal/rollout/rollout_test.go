package rollout

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/fractalboxdev/sbx/internal/class"
)

var noon = time.Date(2026, 1, 2, 12, 0, 0, 0, time.UTC)

func hour(n int) time.Time { return noon.Add(time.Duration(n) * time.Hour) }

func started(t *testing.T, position string) Record {
	t.Helper()
	r, err := Start(Record{}, "ci", position, class.Lean, WindowOf(class.Lean), "ops", noon)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func row(path string) Row {
	return Row{Host: "a.test", Method: "GET", Path: path, Code: "host-not-granted"}
}

// lacks demands that the next step up is refused for this.
func lacks(t *testing.T, r Record, now time.Time, what ...string) {
	t.Helper()
	after, err := Graduate(r, "ops", now)
	if !errors.Is(err, ErrStep) || after.Position != r.Position {
		t.Fatalf("%s at %s: %v", r.Position, now, err)
	}
	for _, w := range what {
		if !strings.Contains(err.Error(), w) {
			t.Errorf("%v does not say %q", err, w)
		}
	}
}

func TestGraduatingNeedsAQuietWindowAndAPerson(t *testing.T) {
	r := started(t, Legacy)
	r, err := Graduate(r, "ops", hour(1))
	if err != nil || r.Position != Report {
		t.Fatalf("%+v, %v", r, err)
	}
	lacks(t, r, hour(1000), "a run under report", " and a person's confirmation")
	if _, err := Confirmed(r, r, "ops", hour(1)); !errors.Is(err, ErrStep) {
		t.Errorf("confirmed before anything ran: %v", err)
	}
	r, news := Observe(r, "g1", []Row{row("/a"), row("/a")}, true, hour(2))
	if news != 1 || len(r.Rows) != 1 || !r.Opened.Equal(hour(2)) {
		t.Fatalf("%d, %+v", news, r)
	}
	lacks(t, r, hour(3), "2026-01-03T14:00:00Z if nothing new comes, a run in the report window", " and a person's confirmation")
	r, news = Observe(r, "g1", []Row{row("/a")}, true, hour(3))
	if news != 0 || r.Runs != 1 || !r.Opened.Equal(hour(2)) {
		t.Fatalf("%d, %+v", news, r)
	}
	lacks(t, r, hour(25), "2026-01-03T14:00:00Z", "confirmation")
	lacks(t, r, hour(26), "confirmation")
	if r, err = Confirmed(r, r, "ops", hour(4)); err != nil {
		t.Fatal(err)
	}
	lacks(t, r, hour(25), "report window")
	r, err = Graduate(r, "ops", hour(26))
	if err != nil || r.Position != Enforce || r.By != "ops" {
		t.Fatalf("%+v, %v", r, err)
	}
	lacks(t, r, hour(27), "already")
	if len(r.Changes) != 4 {
		t.Errorf("%+v", r.Changes)
	}
}

// ready is a rollout that could graduate at hour 26.
func ready(t *testing.T) Record {
	t.Helper()
	r, _ := Observe(started(t, Report), "g1", []Row{row("/a")}, true, hour(2))
	r, _ = Observe(r, "g1", []Row{row("/a")}, true, hour(3))
	r, err := Confirmed(r, r, "ops", hour(3))
	if err != nil || r.Missing(hour(26)) != nil {
		t.Fatalf("%v: %q", err, r.Missing(hour(26)))
	}
	return r
}

func TestNewsOpenTheWindowAnewAndTakeTheConfirmationBack(t *testing.T) {
	for name, c := range map[string]struct {
		grant    string
		rows     []Row
		complete bool
		why      string
	}{
		"new path":             {"g1", []Row{row("/a"), row("/b")}, true, "a new row"},
		"same path, new code":  {"g1", []Row{{Host: "a.test", Method: "GET", Path: "/a", Code: "name-ungranted"}}, true, "a new row"},
		"other grant":          {"g2", nil, true, "the profiles or their inputs changed"},
		"rows that were lost":  {"g1", []Row{row("/a")}, false, "a new row"},
		"other grant, old row": {"g2", []Row{row("/a")}, true, "a new row"},
	} {
		r, _ := Observe(ready(t), c.grant, c.rows, c.complete, hour(20))
		if !r.Opened.Equal(hour(20)) || r.Confirm != nil || r.Why != c.why {
			t.Errorf("%s: %+v", name, r)
		}
		lacks(t, r, hour(26), "report window", "confirmation")
		if r, err := Confirmed(r, r, "ops", hour(21)); err != nil {
			t.Errorf("%s: %v", name, err)
		} else {
			lacks(t, r, hour(44), "a run in the report window") // the one that opened it says nothing of it
		}
	}
	r := Interrupted(ready(t), hour(20))
	if !r.Opened.Equal(hour(20)) || r.Confirm == nil {
		t.Errorf("%+v", r)
	}
	lacks(t, r, hour(44), "a run in the report window")
	if r, news := Observe(ready(t), "g1", []Row{row("/a")}, true, hour(20)); news != 0 || r.Missing(hour(26)) != nil {
		t.Errorf("a known row: %d, %q", news, r.Missing(hour(26)))
	}
}

// What came while a person looked was not shown, so it is not confirmed.
func TestAConfirmationIsForWhatWasShown(t *testing.T) {
	shown, _ := Observe(started(t, Report), "g1", []Row{row("/a")}, true, hour(2))
	same, _ := Observe(shown, "g1", []Row{{Host: "a.test", Method: "GET", Path: "/a", Code: "host-not-granted", FirstAt: hour(3)}}, true, hour(3))
	if r, err := Confirmed(same, shown, "ops", hour(4)); err != nil || r.Confirm == nil {
		t.Errorf("nothing new: %v", err)
	}
	again, _ := Start(shown, "ci", Report, class.Lean, day, "ops", hour(3))
	for name, c := range map[string]struct {
		r        Record
		grant    string
		rows     []Row
		complete bool
	}{
		"a new row":     {shown, "g1", []Row{row("/b")}, true},
		"other grant":   {shown, "g2", []Row{row("/a")}, true},
		"lost rows":     {shown, "g1", nil, false},
		"started again": {again, "g1", []Row{row("/a")}, true},
	} {
		now, _ := Observe(c.r, c.grant, c.rows, c.complete, hour(3))
		if r, err := Confirmed(now, shown, "ops", hour(4)); !errors.Is(err, ErrStep) || !strings.Contains(err.Error(), "what was shown") || r.Confirm != nil {
			t.Errorf("%s: %v, %+v", name, err, r.Confirm)
		}
		if _, err := Confirmed(now, now, "ops", hour(4)); err != nil {
			t.Errorf("%s, looked at again: %v", name, err)
		}
	}
}

// Where not every row is kept, none can be told from a new one.
func TestLostRowsNeverGraduateBesideOthers(t *testing.T) {
	var rows []Row
	for n := range maxRows + 1 {
		rows = append(rows, row(fmt.Sprintf("/%d", n)))
	}
	r, _ := Observe(started(t, Report), "g1", rows, true, hour(1))
	if len(r.Rows) != maxRows || !r.Lost {
		t.Fatalf("%d rows, lost %v", len(r.Rows), r.Lost)
	}
	r, _ = Observe(r, "g1", rows[:1], true, hour(2))
	if !r.Opened.Equal(hour(2)) {
		t.Errorf("opened %s by %s", r.Opened, r.Why)
	}
	if r, _ = Observe(r, "g1", nil, true, hour(3)); !r.Opened.Equal(hour(2)) || r.Runs != 1 {
		t.Errorf("a quiet run opened the window: %+v", r.Opened)
	}
}

// A window in which nothing ran shows nothing.
func TestTheRunThatOpensAWindowIsNoneInIt(t *testing.T) {
	for name, first := range map[string][]Row{"with a row": {row("/a")}, "without one": nil} {
		r, _ := Observe(started(t, Report), "g1", first, true, hour(1))
		r, err := Confirmed(r, r, "ops", hour(2))
		if err != nil || r.Runs != 0 {
			t.Fatalf("%s: %d runs, %v", name, r.Runs, err)
		}
		lacks(t, r, hour(1000), "a run in the report window")
		r, _ = Observe(r, "g1", first, true, hour(3))
		if r, err = Graduate(r, "ops", hour(25)); err != nil || r.Position != Enforce {
			t.Errorf("%s: %+v, %v", name, r, err)
		}
	}
}

func TestTheWayDownIsToStart(t *testing.T) {
	r := ready(t)
	r, err := Graduate(r, "ops", hour(26))
	if err != nil {
		t.Fatal(err)
	}
	down, err := Start(r, "ci", Report, class.Task, WindowOf(class.Task), "dev", hour(30))
	if err != nil || down.From != Enforce || down.Rows != nil || down.Grant != "" || !down.Opened.IsZero() || down.Confirm != nil || down.By != "dev" {
		t.Errorf("%+v, %v", down, err)
	}
	if fresh := started(t, Legacy); fresh.From != Enforce {
		t.Errorf("a name without a record is enforced, so it moved down: %+v", fresh)
	}
	up, err := Start(started(t, Legacy), "ci", Report, class.Task, day, "dev", hour(1))
	if err != nil || up.From != "" {
		t.Errorf("%+v, %v", up, err)
	}
	for name, call := range map[string]func() error{
		"to enforce": func() error { _, err := Start(r, "ci", Enforce, class.Task, day, "x", noon); return err },
		"nowhere":    func() error { _, err := Start(r, "ci", "", class.Task, day, "x", noon); return err },
		"no window":  func() error { _, err := Start(r, "ci", Report, class.Task, time.Minute, "x", noon); return err },
		"confirm":    func() error { _, err := Confirmed(r, r, "x", noon); return err },
	} {
		if err := call(); !errors.Is(err, ErrStep) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestOnlyReportIsObserved(t *testing.T) {
	for _, r := range []Record{started(t, Legacy), {Position: Enforce}} {
		if after, news := Observe(r, "g1", []Row{row("/a")}, true, hour(2)); news != 0 || after.Runs != 0 || after.Rows != nil {
			t.Errorf("%s: %+v", r.Position, after)
		}
	}
}
