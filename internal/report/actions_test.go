package report

import (
	"errors"
	"html"
	"strings"
	"testing"

	"github.com/fractalboxdev/sbx/internal/event"
)

// hostile is text that a command could have sent as a path, a host or a method.
const hostile = "/a%0A::error::x\r\n::stop-commands::t\n|`<b>@user [x](https://evil.test) \x1b[2J\u2028::add-mask::y"

func hostileRow() event.Denial {
	return event.Denial{Host: "evil.test" + hostile, Method: "GET" + hostile, Path: hostile, Code: "host-not-granted,x::y", Reason: hostile, Count: 3, Protocol: "https"}
}

func TestAnnotationsAreOneLineEach(t *testing.T) {
	row := hostileRow()
	would := row
	would.WouldDeny = true
	got := Annotations(Ended{Refusal: &event.Refusal{Kind: "recipe-rejected", Message: hostile, Next: hostile}, Denials: []event.Denial{row, would}})
	if len(got) != 3 {
		t.Fatalf("%d annotations: %q", len(got), got)
	}
	for i, level := range []string{"error", "warning", "notice"} {
		line := got[i]
		if !strings.HasPrefix(line, "::"+level+" title=") || strings.ContainsAny(line, "\r\n\x1b\u2028") {
			t.Errorf("%q", line)
		}
		// The runner takes the command up to the second "::", and undoes % in what follows.
		properties, text, _ := strings.Cut(strings.TrimPrefix(line, "::"), "::")
		if strings.ContainsAny(strings.TrimPrefix(properties, level+" title="), ",:") || strings.Contains(text, "%0A") || strings.Contains(text, "%0D") {
			t.Errorf("%q, %q", properties, text)
		}
	}
	if !strings.Contains(got[1], "(3 times)") || !strings.Contains(got[1], "%250A") {
		t.Errorf("%q", got[1])
	}
}

func TestSummaryHasNoMarkupOfTheCommands(t *testing.T) {
	got := StepSummary(Ended{Run: "r1", Exit: 1, Denials: []event.Denial{hostileRow()}})
	for line := range strings.SplitSeq(got, "\n") {
		if strings.Contains(line, "evil") && strings.Count(line, "|") != 6 {
			t.Errorf("a row with other columns: %q", line)
		}
		if strings.ContainsAny(line, "<>`@[]*\x1b\r") {
			t.Errorf("markup: %q", line)
		}
	}
	if !strings.Contains(html.UnescapeString(got), "evil.test/a") || !strings.Contains(got, "3 requests denied") {
		t.Errorf("%s", got)
	}
}

func TestSummaryIsBounded(t *testing.T) {
	row := hostileRow()
	row.Path = strings.Repeat("/<", 1000)
	var rows []event.Denial
	for range 1000 {
		rows = append(rows, row)
	}
	got := StepSummary(Ended{Denials: rows})
	if len(got) > 1<<20 || !strings.Contains(got, "950 rows more") {
		t.Errorf("%d bytes, ending in %q", len(got), got[len(got)-100:])
	}
}

func TestOutputsEndOnlyWhereTheyShould(t *testing.T) {
	e := Ended{Run: "r1", Directory: "/x\nexit<<y\n0\ny", Exit: 123, Denials: []event.Denial{hostileRow()}}
	got, err := StepOutputs(e, "d1")
	if err != nil || !strings.Contains(got, "exit<<d1\n123\nd1\n") || !strings.Contains(got, "denials<<d1\n3\nd1\n") || strings.Count(got, "<<d1\n") != 6 {
		t.Errorf("%v: %s", err, got)
	}
	for _, delimiter := range []string{"", "exit", "a\nb"} {
		if _, err := StepOutputs(e, delimiter); !errors.Is(err, ErrDelimiter) {
			t.Errorf("%q: %v", delimiter, err)
		}
	}
}

// Whatever a row says, an annotation is one line, and its text unescapes to printable
// ASCII.
func FuzzAnnotationsStayInTheirLine(f *testing.F) {
	f.Add(hostile, hostile, hostile)
	f.Fuzz(func(t *testing.T, host, path, reason string) {
		for _, line := range Annotations(Ended{Denials: []event.Denial{{Host: host, Path: path, Reason: reason, Code: reason, Method: path, Count: 1}}}) {
			if strings.ContainsAny(line, "\r\n\x00\x1b") || !strings.HasPrefix(line, "::warning title=") || len(line) > 4*(maxAnnotation+maxCell) {
				t.Errorf("%q", line)
			}
			_, text, found := strings.Cut(strings.TrimPrefix(line, "::"), "::")
			if plain := strings.NewReplacer("%25", "%", "%0D", "\r", "%0A", "\n").Replace(text); !found || strings.ContainsAny(plain, "\r\n") {
				t.Errorf("%q", plain)
			}
		}
	})
}
