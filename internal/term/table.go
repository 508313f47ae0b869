package term

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/charmbracelet/lipgloss"

	"github.com/fractalboxdev/sbx/internal/report"
)

// Tone is what a cell means; the text says it as well.
type Tone uint8

// The tones.
const (
	Plain Tone = iota
	Strong
	Faint
	Good
	Bad
	Unsure
)

// Cell is one field of a table.
type Cell struct {
	Text string
	Tone Tone
}

// Cells makes plain cells.
func Cells(texts ...string) []Cell {
	cells := make([]Cell, len(texts))
	for i, t := range texts {
		cells[i].Text = t
	}
	return cells
}

// Table writes rows in aligned columns under a header, two spaces apart. An
// empty header is left out.
func (p *Printer) Table(header []string, rows [][]Cell) {
	p.look()
	p.write(p.table("", header, rows))
}

func (p *Printer) table(indent string, header []string, rows [][]Cell) string {
	if len(header) > 0 {
		head := Cells(header...)
		for i := range head {
			head[i].Tone = Strong
		}
		rows = append([][]Cell{head}, rows...)
	}
	widths := columnWidths(rows)
	var b strings.Builder
	for _, row := range rows {
		b.WriteString(indent + p.row(row, widths) + "\n")
	}
	return b.String()
}

func columnWidths(rows [][]Cell) []int {
	var widths []int
	for _, row := range rows {
		for i, c := range row {
			if i == len(widths) {
				widths = append(widths, 0)
			}
			widths[i] = max(widths[i], lipgloss.Width(Escape(c.Text)))
		}
	}
	return widths
}

// row joins the cells; the last one is not padded.
func (p *Printer) row(row []Cell, widths []int) string {
	var b strings.Builder
	for i, c := range row {
		text := Escape(c.Text)
		b.WriteString(p.paint(c.Tone, text))
		if i < len(row)-1 {
			b.WriteString(strings.Repeat(" ", widths[i]-lipgloss.Width(text)+2))
		}
	}
	return strings.TrimRight(b.String(), " ")
}

func (p *Printer) paint(t Tone, text string) string {
	switch t {
	case Plain:
	case Strong:
		return p.styles.bold.Render(text)
	case Faint:
		return p.styles.faint.Render(text)
	case Good:
		return p.styles.good.Render(text)
	case Bad:
		return p.styles.bad.Render(text)
	case Unsure:
		return p.styles.unsure.Render(text)
	}
	return text
}

// maxPathColumn is how much of a path the summary shows, in columns; the run's
// directory has all of it.
const maxPathColumn = 60

// Summary writes what was denied and what would have to be granted, and where
// the records are. It writes nothing when nothing was denied.
func (p *Printer) Summary(s report.Summary) {
	if s.Denied == 0 && s.WouldDeny == 0 {
		return
	}
	p.look()
	var b strings.Builder
	b.WriteString(p.styles.bold.Render("sbx:") + " " + headline(s) + "\n")
	b.WriteString(p.summaryRows(s.Rows))
	if s.Hidden > 0 {
		fmt.Fprintf(&b, "  and %s, in denials.jsonl\n", plural(s.Hidden, "more row"))
	}
	if s.Directory != "" {
		b.WriteString("  records: " + Escape(s.Directory) + "\n")
	}
	p.write(b.String())
}

func headline(s report.Summary) string {
	var parts []string
	if s.Denied > 0 {
		parts = append(parts, plural(s.Denied, "request")+" denied")
	}
	if s.WouldDeny > 0 {
		parts = append(parts, plural(s.WouldDeny, "request")+" would be denied")
	}
	return strings.Join(parts, ", ")
}

// summaryRows puts what to grant under its row: beside it no terminal is wide enough.
func (p *Printer) summaryRows(rows []report.Row) string {
	cells := make([][]Cell, 0, len(rows))
	for _, r := range rows {
		reason := r.Reason + " (" + r.Code + ")"
		if r.WouldDeny {
			reason = "would be denied: " + reason
		}
		cells = append(cells, Cells(orDash(r.Host), orDash(r.Method), truncate(orDash(ascii(r.Path)), maxPathColumn),
			strconv.Itoa(r.Count), reason))
	}
	table := p.table("  ", []string{"HOST", "METHOD", "PATH", "COUNT", "REASON"}, cells)
	lines := strings.SplitAfter(strings.TrimSuffix(table, "\n"), "\n")
	var b strings.Builder
	b.WriteString(lines[0])
	for i, r := range rows {
		b.WriteString(strings.TrimSuffix(lines[i+1], "\n") + "\n")
		b.WriteString("    " + p.styles.faint.Render("to allow: "+ascii(r.Grant)) + "\n")
	}
	return b.String()
}

func orDash(s string) string {
	if s == "" {
		return "-"
	}
	return s
}

func plural(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return strconv.Itoa(n) + " " + what + "s"
}
