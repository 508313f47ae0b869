package profile

import (
	"maps"
	"slices"
	"strings"

	"github.com/fractalboxdev/sbx/internal/grant"
)

// Resolve parses a file that was reviewed with the binary and resolves some of
// its profiles, and of custom ones that were approved. It is on the start-up path
// of every run, so only the named profiles are parsed, as long as nothing is
// wrong; anything else takes the long way, whose refusals know all the names.
// Files from elsewhere go through Parse. vars is the caller's environment, where
// inputs may name variables.
func Resolve(text, file string, names []string, inputs, vars map[string]string, endpoints EndpointSource, custom ...Set) (grant.Grant, error) {
	set, err := Parse(only(text, names), file)
	if err == nil {
		set, err = set.With(custom...)
	}
	if err == nil {
		if g, err := set.Resolve(names, set.WithVars(names, inputs, vars), endpoints); err == nil {
			return g, nil
		}
	}
	if set, err = Parse(text, file); err != nil {
		return grant.Grant{}, err
	}
	if set, err = set.With(custom...); err != nil {
		return grant.Grant{}, err
	}
	return set.Resolve(names, set.WithVars(names, inputs, vars), endpoints)
}

// With adds the profiles of other sets, whose names have to be new.
func (s Set) With(others ...Set) (Set, error) {
	all := Set{profiles: map[string]Profile{}}
	maps.Copy(all.profiles, s.profiles)
	for _, other := range others {
		for name, p := range other.profiles {
			if _, twice := all.profiles[name]; twice {
				return Set{}, &Refusal{Code: CodeBadGrant, Subject: name, Detail: "there are two profiles called " + quote(name)}
			}
			all.profiles[name] = p
		}
	}
	return all, nil
}

// WithVars returns inputs and, for those left out, the values of the variables
// that the selected profiles name for them. Empty means unset.
func (s Set) WithVars(names []string, inputs, vars map[string]string) map[string]string {
	all := maps.Clone(inputs)
	if all == nil {
		all = map[string]string{}
	}
	for _, name := range names {
		for _, in := range s.profiles[name].Inputs {
			_, given := all[in.Name]
			if value := vars[in.Env]; in.Env != "" && value != "" && !given {
				all[in.Name] = value
			}
		}
	}
	return all
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
