package report

import (
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/fractalboxdev/sbx/internal/event"
)

// Ended is what is told of a run that has ended.
type Ended struct {
	Run       string
	Directory string
	Exit      int // what sbx exited with
	Refusal   *event.Refusal
	Denials   []event.Denial
}

// Bounds of what is written for GitHub, in bytes and rows. A step's summary may have
// 1 MiB; an annotation is one line of the log.
const (
	maxAnnotation  = 1000
	maxCell        = 200
	maxSummaryRows = 50
)

// Annotations are workflow commands for GitHub's runner, each one line without its end:
// an error for a refusal, a warning for each row of denials, a notice for what would
// have been denied. What they say is the command's to choose, so it is escaped as the
// runner unescapes it (actions/toolkit, "workflow commands").
func Annotations(e Ended) []string {
	var out []string
	if r := e.Refusal; r != nil {
		text := r.Message
		if r.Next != "" {
			text += "; next: " + r.Next
		}
		out = append(out, annotation("error", "sbx refused: "+string(r.Kind), text))
	}
	for _, d := range e.Denials {
		level, title := "warning", "sbx denied: "+d.Code
		if d.WouldDeny {
			level, title = "notice", "sbx would deny: "+d.Code
		}
		text := d.Method + " " + Target(d) + ": " + Why(d)
		if d.Count > 1 {
			text += fmt.Sprintf(" (%d times)", d.Count)
		}
		out = append(out, annotation(level, title, text+"; "+Suggest(d)))
	}
	return out
}

func annotation(level, title, text string) string {
	return "::" + level + " title=" + escapeProperty(Text(title, maxCell)) + "::" + escapeData(Text(strings.TrimSpace(text), maxAnnotation))
}

func escapeData(s string) string {
	return strings.NewReplacer("%", "%25", "\r", "%0D", "\n", "%0A").Replace(s)
}

func escapeProperty(s string) string {
	return strings.NewReplacer("%", "%25", "\r", "%0D", "\n", "%0A", ":", "%3A", ",", "%2C").Replace(s)
}

// StepSummary is the run as Markdown for a step's summary. Whatever the command chose is
// written with character references, so that none of it is markup.
func StepSummary(e Ended) string {
	s := Summarise(e.Run, e.Directory, e.Denials, maxSummaryRows)
	var b strings.Builder
	fmt.Fprintf(&b, "### sbx run %s\n\n", literal(e.Run))
	if r := e.Refusal; r != nil {
		fmt.Fprintf(&b, "Refused (%s): %s\n\n", literal(string(r.Kind)), literal(r.Message))
	}
	fmt.Fprintf(&b, "Exit status %d, %d requests denied", e.Exit, s.Denied)
	if s.WouldDeny > 0 {
		fmt.Fprintf(&b, ", %d that would have been", s.WouldDeny)
	}
	b.WriteString(".\n\n")
	if len(s.Rows) == 0 {
		return b.String()
	}
	b.WriteString("| method | host and path | why | times | to grant it |\n| --- | --- | --- | --- | --- |\n")
	for _, r := range s.Rows {
		why := r.Reason
		if r.WouldDeny {
			why += " (forwarded)"
		}
		fmt.Fprintf(&b, "| %s | %s | %s | %d | %s |\n", literal(r.Method), literal(r.Host+r.Path), literal(why), r.Count, literal(r.Grant))
	}
	if s.Hidden > 0 {
		fmt.Fprintf(&b, "\n%d rows more are in denials.jsonl.\n", s.Hidden)
	}
	return b.String() + "\n"
}

// literal writes text that Markdown and HTML show as it is.
func literal(s string) string {
	var b strings.Builder
	for _, c := range []byte(Text(s, maxCell)) {
		switch {
		case 'a' <= c && c <= 'z', 'A' <= c && c <= 'Z', '0' <= c && c <= '9', c == ' ':
			b.WriteByte(c)
		default:
			fmt.Fprintf(&b, "&#%d;", c)
		}
	}
	return b.String()
}

// ErrDelimiter is a value that has the delimiter which is to end it.
var ErrDelimiter = errors.New("the delimiter stands in the value")

// StepOutputs are the run's facts as lines for GITHUB_OUTPUT, each value between two
// delimiters that nobody could foresee.
func StepOutputs(e Ended, delimiter string) (string, error) {
	s := Summarise(e.Run, e.Directory, e.Denials, 0)
	refusal := ""
	if e.Refusal != nil {
		refusal = string(e.Refusal.Kind)
	}
	var b strings.Builder
	for _, o := range [...][2]string{
		{"run", e.Run},
		{"directory", e.Directory},
		{"exit", strconv.Itoa(e.Exit)},
		{"refusal", refusal},
		{"denials", strconv.Itoa(s.Denied)},
		{"would-deny", strconv.Itoa(s.WouldDeny)},
	} {
		if strings.Contains(o[1], delimiter) || delimiter == "" || strings.ContainsAny(delimiter, "\r\n") {
			return "", fmt.Errorf("writing the output %s: %w", o[0], ErrDelimiter)
		}
		fmt.Fprintf(&b, "%s<<%s\n%s\n%s\n", o[0], delimiter, o[1], delimiter)
	}
	return b.String(), nil
}
