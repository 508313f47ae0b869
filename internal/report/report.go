// Package report folds the requests of a run into denial rows and says what
// would have to be granted: pure functions over event values.
package report

import (
	"github.com/fractalboxdev/sbx/internal/egress"
	"github.com/fractalboxdev/sbx/internal/event"
)

// MaxRows is how many denial rows one run has at most, before the overflow row. Rows
// that say that a bound was reached are not among them: they come last, and are few.
const MaxRows = 1000

// key is what makes two denials the same row.
type key struct {
	host, method, path, code string
	wouldDeny                bool
}

// Fold collects denied requests into rows. Its zero value is ready. It is not
// safe for concurrent use and holds at most MaxRows+1 rows and one for each bound,
// whatever it is fed.
type Fold struct {
	rows     []event.Denial
	index    map[key]int
	bounds   int // of the rows, those of a bound
	overflow event.Denial
	total    int
	would    int
}

// Add counts the request, if it was denied, and returns its row. isNew reports
// that the row did not exist before; allowed requests give a zero row. All text
// of the row is cleaned (see Clean).
func (f *Fold) Add(r event.Request) (row event.Denial, isNew bool) {
	if !r.Denied() {
		return event.Denial{}, false
	}
	r = Clean(r)
	if r.WouldDeny {
		f.would++
	} else {
		f.total++
	}
	k := key{r.Host, r.Method, r.Path, r.Code, r.WouldDeny}
	if i, ok := f.index[k]; ok {
		count(&f.rows[i], r)
		return f.rows[i], false
	}
	if ofBound(r) {
		f.bounds++
	} else if len(f.rows)-f.bounds >= MaxRows {
		return f.addOverflow(r)
	}
	if f.index == nil {
		f.index = make(map[key]int)
	}
	f.index[k] = len(f.rows)
	f.rows = append(f.rows, newRow(r))
	return f.rows[len(f.rows)-1], true
}

// ofBound reports whether the row says that a bound was reached, and nothing that the
// code inside chooses.
func ofBound(r event.Request) bool {
	return egress.Code(r.Code).IsBound() && r.Host == "" && r.Method == "" && r.Path == ""
}

// Denials returns a copy of the rows in the order in which they first
// happened, the overflow row last.
func (f *Fold) Denials() []event.Denial {
	rows := append([]event.Denial(nil), f.rows...)
	if f.overflow.Count > 0 {
		rows = append(rows, f.overflow)
	}
	return rows
}

// Total returns how many refused requests were added.
func (f *Fold) Total() int { return f.total }

// WouldDeny returns how many were added that were forwarded and that enforce would
// have refused.
func (f *Fold) WouldDeny() int { return f.would }

func (f *Fold) addOverflow(r event.Request) (event.Denial, bool) {
	if f.overflow.Count > 0 {
		count(&f.overflow, r)
		return f.overflow, false
	}
	f.overflow = event.Denial{
		Reason: "further denials are only counted: the report holds 1,000 rows", Count: 1,
		Code: CodeOverflow, Source: r.Source, FirstAt: r.Time, LastAt: r.Time, Run: r.Run,
	}
	return f.overflow, true
}

// count adds one occurrence to the row. Times may arrive out of order, since
// requests are judged side by side.
func count(row *event.Denial, r event.Request) {
	row.Count++
	if r.Time.Before(row.FirstAt) {
		row.FirstAt = r.Time
	}
	if r.Time.After(row.LastAt) {
		row.LastAt = r.Time
	}
}

func newRow(r event.Request) event.Denial {
	return event.Denial{
		Host: r.Host, Method: r.Method, Path: r.Path, Reason: r.Reason, Count: 1,
		Source: r.Source, Code: r.Code, Rule: r.Rule, Port: r.Port, Protocol: r.Protocol,
		WouldDeny: r.WouldDeny, FirstAt: r.Time, LastAt: r.Time, Run: r.Run,
		RedirectedFrom: r.RedirectedFrom, Process: r.Process,
	}
}
