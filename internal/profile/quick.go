package profile

import (
	"slices"
	"strings"

	"github.com/fractalboxdev/sbx/internal/grant"
)

// Resolve parses a file that was reviewed with the binary and resolves some of
// its profiles. It is on the start-up path of every run, so only those profiles
// are parsed, as long as nothing is wrong; anything else takes the long way,
// whose refusals know all the names. Files from elsewhere go through Parse.
func Resolve(text, file string, names []string, inputs map[string]string, endpoints EndpointSource) (grant.Grant, error) {
	set, err := Parse(only(text, names), file)
	if err == nil {
		if g, err := set.Resolve(names, inputs, endpoints); err == nil {
			return g, nil
		}
	}
	set, err = Parse(text, file)
	if err != nil {
		return grant.Grant{}, err
	}
	return set.Resolve(names, inputs, endpoints)
}

// only keeps the tables of the named profiles: those between a line that begins
// such a table and the next that begins another's.
func only(text string, names []string) string {
	var kept strings.Builder
	keep := false
	for line := range strings.Lines(text) {
		table, isTable := strings.CutPrefix(strings.TrimLeft(line, "["), "profiles.")
		if isTable && line[0] == '[' {
			end := strings.IndexAny(table, ".]")
			keep = end > 0 && slices.Contains(names, table[:end])
		}
		if keep {
			kept.WriteString(line)
		}
	}
	return kept.String()
}
