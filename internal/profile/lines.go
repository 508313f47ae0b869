package profile

import (
	"strings"
)

// outline is where the tables and keys of a profile file stand. It reads the
// text line by line, so text that hides headers in long strings can mislead it:
// it says where to look, and nothing is judged by it.
type outline struct {
	lines  []string
	places []place
}

// place is one header or key.
type place struct {
	table string // dotted, without quotes
	index int    // of an array of tables, from 0
	key   string // "" for the header itself
	line  int    // from 1
}

var keyLine = lazily(`^\s*["']?([A-Za-z0-9_-]+)["']?\s*[.=]`)

func outlineOf(text string) outline {
	o := outline{lines: strings.Split(text, "\n")}
	table, index, seen := "", 0, map[string]int{}
	for i, line := range o.lines {
		if match := header.FindStringSubmatch(line); match != nil {
			table = plainTable(match[1])
			index = seen[table]
			seen[table]++
			o.places = append(o.places, place{table, index, "", i + 1})
			continue
		}
		if match := keyLine.FindStringSubmatch(line); match != nil {
			o.places = append(o.places, place{table, index, match[1], i + 1})
		}
	}
	return o
}

// plainTable takes spaces and quotes off the parts of a dotted name.
func plainTable(name string) string {
	parts := strings.Split(name, ".")
	for i, part := range parts {
		parts[i] = strings.Trim(strings.TrimSpace(part), `"'`)
	}
	return strings.Join(parts, ".")
}

// profile returns the first line about a profile, or about one of its keys where
// that has a line; 0 when there is none.
func (o outline) profile(name, key string) int {
	first := 0
	table := "profiles." + name
	for _, p := range o.places {
		if p.table != table && !strings.HasPrefix(p.table, table+".") {
			continue
		}
		if first == 0 {
			first = p.line
		}
		if key != "" && (p.table == table && p.key == key || p.key == "" && p.table == table+"."+key) {
			return p.line
		}
	}
	return first
}

// rule returns the line of a rule's key, else of the rule, else of the profile.
func (o outline) rule(name string, index int, key string) int {
	table, found := "profiles."+name+".rules", 0
	for _, p := range o.places {
		if p.table != table || p.index != index {
			continue
		}
		if p.key == key {
			return p.line
		}
		if p.key == "" {
			found = p.line
		}
	}
	if found == 0 {
		return o.profile(name, "rules")
	}
	return found
}

// example returns the line of a rule that holds an example's text, else that of its list.
func (o outline) example(name string, index int, list, text string) int {
	from := o.rule(name, index, list)
	escaped := strings.NewReplacer(`\`, `\\`, `"`, `\"`).Replace(text)
	for i := max(from, 1) - 1; i < o.after(from); i++ {
		if strings.Contains(o.lines[i], `"`+escaped+`"`) || strings.Contains(o.lines[i], `'`+text+`'`) {
			return i + 1
		}
	}
	return from
}

// after returns the number of lines up to the next header behind a line.
func (o outline) after(line int) int {
	for _, p := range o.places {
		if p.key == "" && p.line > line {
			return p.line - 1
		}
	}
	return len(o.lines)
}
