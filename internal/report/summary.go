package report

import "github.com/fractalboxdev/sbx/internal/event"

// Row is one line of the summary, ready to be written.
type Row struct {
	Host, Method, Path string
	Reason             string
	Code               string
	Count              int
	WouldDeny          bool
	Grant              string // what would have to be granted
}

// Summary is what a person reads at the end of a run.
type Summary struct {
	Run       string
	Directory string
	Rows      []Row
	Denied    int // requests refused
	WouldDeny int // requests forwarded that enforce would have refused
	Hidden    int // rows left out
}

// Summarise makes a summary of the first limit rows, in the order of their
// happening; limit 0 keeps all of them.
func Summarise(run, directory string, denials []event.Denial, limit int) Summary {
	s := Summary{Run: run, Directory: directory}
	for _, d := range denials {
		if d.WouldDeny {
			s.WouldDeny += d.Count
		} else {
			s.Denied += d.Count
		}
		if limit > 0 && len(s.Rows) >= limit {
			s.Hidden++
			continue
		}
		s.Rows = append(s.Rows, row(d))
	}
	return s
}

func row(d event.Denial) Row {
	return Row{
		Host: d.Host, Method: d.Method, Path: d.Path, Reason: Why(d), Code: d.Code,
		Count: d.Count, WouldDeny: d.WouldDeny, Grant: Suggest(d),
	}
}
