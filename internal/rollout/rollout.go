// Package rollout knows how a grant comes to be enforced step by step: legacy, where
// nothing is refused, report, where it is recorded what would be, then enforce. Values
// only: whoever calls has the clock, and keeps the records.
package rollout

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/fractalboxdev/sbx/internal/class"
)

// The positions, from below.
const (
	Legacy  = "legacy"
	Report  = "report"
	Enforce = "enforce"
)

// Record is one rollout. A run whose name has none is enforced.
type Record struct {
	Name     string        `json:"name"`
	Position string        `json:"position"`
	Since    time.Time     `json:"since"`
	By       string        `json:"by"`                  // who set the position
	From     string        `json:"moved_down_from"`     // the position before, when it was a higher one; "" otherwise
	Kind     class.Name    `json:"kind"`                // of its runs
	Window   time.Duration `json:"window_ns"`           // how long a report has to stay without news
	Opened   time.Time     `json:"window_opened"`       // zero before the first run under report
	Why      string        `json:"window_opened_by"`    // what opened the window, as in "a new row"
	Runs     int           `json:"runs"`                // that ended in the window, without the one that opened it
	Grant    string        `json:"grant_digest"`        // of the runs in the window
	Rows     []Row         `json:"rows"`                // what would have been denied, ever since the grant is this one
	Lost     bool          `json:"rows_lost"`           // there were more rows than are kept
	Confirm  *Confirmation `json:"confirmed,omitempty"` // that Rows may be refused
	Changes  []Change      `json:"changes"`             // the last ones
}

// Row is a kind of request that enforce would refuse.
type Row struct {
	Host    string    `json:"host"`
	Method  string    `json:"method"`
	Path    string    `json:"path"`
	Code    string    `json:"code"`
	FirstAt time.Time `json:"first_at"`
}

// Confirmation is a person's word that what the runs need is granted.
type Confirmation struct {
	By string    `json:"by"`
	At time.Time `json:"at"`
}

// Change is a step that somebody took.
type Change struct {
	At   time.Time `json:"at"`
	By   string    `json:"by"`
	What string    `json:"what"`
}

// Bounds of what a record keeps.
const (
	maxRows    = 5000
	maxChanges = 50
)

// MinWindow is the shortest report window.
const MinWindow = time.Hour

const day = 24 * time.Hour

// WindowOf is how long runs of a kind are watched when nobody says how long: the more
// they differ from each other, the longer.
func WindowOf(kind class.Name) time.Duration {
	switch kind {
	case class.Lean:
		return day
	case class.Browser:
		return 3 * day
	case class.Agent, class.Task:
	}
	return 7 * day
}

// ErrStep is a step that cannot be taken now.
var ErrStep = errors.New("the rollout cannot take this step")

func wrong(format string, args ...any) error {
	return fmt.Errorf("%w: %s", ErrStep, fmt.Sprintf(format, args...))
}

// Start begins a rollout, or moves one to a position from the start, which is the only
// way down. The zero Record is that of a name which is enforced.
func Start(r Record, name, position string, kind class.Name, window time.Duration, by string, now time.Time) (Record, error) {
	if position != Legacy && position != Report {
		return r, wrong("it starts at %s or %s, and comes to %s by graduating", Legacy, Report, Enforce)
	}
	if window < MinWindow {
		return r, wrong("a report window of %s is shorter than %s", window, MinWindow)
	}
	before := r.Position
	if before == "" {
		before = Enforce
	}
	next := Record{
		Name: name, Position: position, Since: now, By: by, Kind: kind, Window: window,
		Changes: r.Changes,
	}
	if height(before) > height(position) {
		next.From = before
	}
	return next.changed(by, now, "start at "+position), nil
}

func height(position string) int {
	return slices.Index([]string{Legacy, Report, Enforce}, position)
}

func (r Record) changed(by string, now time.Time, what string) Record {
	r.Changes = append(slices.Clone(r.Changes), Change{At: now, By: by, What: what})
	r.Changes = r.Changes[max(0, len(r.Changes)-maxChanges):]
	return r
}

// Observe takes the rows of a run under report that ended. Another grant, and every row
// that is new, opens the window anew, and takes the confirmation back; such a run is not
// counted in the window that it opens. Complete is false when the run had rows that
// nobody has.
func Observe(r Record, grant string, rows []Row, complete bool, now time.Time) (next Record, news int) {
	if r.Position != Report {
		return r, 0
	}
	opens := "" // why this run does
	if r.Grant != grant {
		opens = "the profiles or their inputs changed"
		if r.Grant == "" {
			opens = "the first run"
		}
		r.Grant, r.Rows, r.Lost = grant, nil, false
	}
	fresh := r.fresh(rows)
	lost := !complete || len(r.Rows)+len(fresh) > maxRows
	switch {
	case len(fresh) > 0 || lost:
		opens = "a new row"
		r.Lost = r.Lost || lost
		r.Rows = append(slices.Clone(r.Rows), fresh[:min(len(fresh), maxRows-len(r.Rows))]...)
	case len(rows) > 0 && r.Lost:
		opens = "rows that nobody can tell from new ones"
	}
	if opens != "" {
		return r.reopened(now, opens), len(fresh) // it brought the news: another run has to show that there are no more
	}
	r.Runs++
	return r, 0
}

func (r Record) fresh(rows []Row) []Row {
	known := make(map[Row]bool, len(r.Rows))
	for _, row := range r.Rows {
		known[row.plain()] = true
	}
	var fresh []Row
	for _, row := range rows {
		if !known[row.plain()] {
			known[row.plain()] = true
			fresh = append(fresh, row)
		}
	}
	return fresh
}

// plain is the kind of request without its time.
func (row Row) plain() Row {
	row.FirstAt = time.Time{}
	return row
}

func (r Record) reopened(now time.Time, why string) Record {
	r.Opened, r.Why, r.Runs, r.Confirm = now, why, 0, nil
	return r
}

// Interrupted takes a run under report that was killed, or whose end could not be noted:
// what it would have been denied is not known for sure.
func Interrupted(r Record, now time.Time) Record {
	if r.Position != Report || r.Opened.IsZero() {
		return r
	}
	confirmed := r.Confirm
	r = r.reopened(now, "a run that was killed or could not tell its rows")
	r.Confirm = confirmed
	return r
}

// Confirmed notes a person's word, which is for what the person was shown and nothing else.
func Confirmed(r, shown Record, by string, now time.Time) (Record, error) {
	switch {
	case r.Position != Report:
		return r, wrong("there is nothing to confirm at %s", r.Position)
	case r.Opened.IsZero():
		return r, wrong("no run under %s has ended yet, so nothing is known of what it asks for", Report)
	case !r.asksLike(shown):
		return r, wrong("the grant of its runs, or what they would be denied, is not what was shown any more; confirm it again, which shows it as it is now")
	}
	r.Confirm = &Confirmation{By: by, At: now}
	return r.changed(by, now, "confirm"), nil
}

// asksLike reports whether what enforce would refuse is the same in both.
func (r Record) asksLike(other Record) bool {
	same := func(a, b Row) bool { return a.plain() == b.plain() }
	return r.Since.Equal(other.Since) && r.Grant == other.Grant && r.Lost == other.Lost && slices.EqualFunc(r.Rows, other.Rows, same)
}

// Missing says what has to come before the next step up, nothing when it may be taken.
func (r Record) Missing(now time.Time) []string {
	if r.Position != Report {
		return nil
	}
	var missing []string
	if ends := r.Opened.Add(r.Window); !r.Opened.IsZero() && now.Before(ends) {
		missing = append(missing, "a report window without news, which ends at "+ends.UTC().Format(time.RFC3339)+" if nothing new comes")
	}
	switch {
	case r.Opened.IsZero():
		missing = append(missing, "a run under report")
	case r.Runs == 0:
		missing = append(missing, "a run in the report window after the one that opened it")
	}
	if r.Confirm == nil {
		missing = append(missing, "a person's confirmation that what the runs need is granted")
	}
	return missing
}

// Graduate takes the next step up.
func Graduate(r Record, by string, now time.Time) (Record, error) {
	if missing := r.Missing(now); len(missing) > 0 {
		return r, wrong("it lacks %s", join(missing))
	}
	switch r.Position {
	case Legacy:
		r.Position = Report
	case Report:
		r.Position = Enforce
	default:
		return r, wrong("it is at %s already", r.Position)
	}
	r.Since, r.By, r.From = now, by, ""
	if r.Position == Report {
		r.Opened, r.Why, r.Runs, r.Grant, r.Rows, r.Lost, r.Confirm = time.Time{}, "", 0, "", nil, false, nil
	}
	return r.changed(by, now, "graduate to "+r.Position), nil
}

func join(words []string) string {
	last := len(words) - 1
	if last == 0 {
		return words[0]
	}
	return strings.Join(words[:last], ", ") + " and " + words[last]
}
