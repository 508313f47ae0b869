package profile

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/fractalboxdev/sbx/internal/egress"
)

// ChangeKind says what a change is for what may leave.
type ChangeKind string

// The kinds of changes. Both of the first two are widenings: the second is one
// that could not be ruled out.
const (
	ChangePossible   ChangeKind = "possible"   // requests became possible
	ChangeMaybe      ChangeKind = "maybe"      // requests may have become possible
	ChangeImpossible ChangeKind = "impossible" // requests became impossible, or may have
	ChangeNote       ChangeKind = "note"       // nothing that concerns requests
)

// Change is one difference between two profiles, in words.
type Change struct {
	Kind    ChangeKind `json:"kind"`
	Profile string     `json:"profile"`
	Rule    string     `json:"rule,omitempty"` // of the profile that permits it
	Methods []string   `json:"methods,omitempty"`
	Target  string     `json:"target,omitempty"` // hosts and paths
	Text    string     `json:"text"`             // the circumstances; all of it where there is no target
}

// Wider reports whether a request may be possible that was not before.
func (c Change) Wider() bool { return c.Kind == ChangePossible || c.Kind == ChangeMaybe }

// Diff compares two sets of profiles. Without a change that is Wider, everything
// that the later one allows, the earlier one allowed with the same inputs and
// endpoints, wherever those are known, and treated in the same way or more freely:
// that is decided on the rules, never by trying requests. What cannot be decided
// is a ChangeMaybe.
func Diff(before, after Set) ([]Change, error) {
	var changes []Change
	for _, pair := range pairs(before, after) {
		more, err := diffProfile(pair[0], pair[1])
		if err != nil {
			return nil, err
		}
		changes = append(changes, more...)
	}
	order := []ChangeKind{ChangePossible, ChangeMaybe, ChangeImpossible, ChangeNote}
	slices.SortStableFunc(changes, func(a, b Change) int { return slices.Index(order, a.Kind) - slices.Index(order, b.Kind) })
	return changes, nil
}

// pairs returns profiles of the same name, or the only one of each set.
func pairs(before, after Set) [][2]Profile {
	if len(before.profiles) == 1 && len(after.profiles) == 1 {
		return [][2]Profile{{before.profiles[before.Names()[0]], after.profiles[after.Names()[0]]}}
	}
	names := append(before.Names(), after.Names()...)
	slices.Sort(names)
	var found [][2]Profile
	for _, name := range slices.Compact(names) {
		found = append(found, [2]Profile{before.profiles[name], after.profiles[name]})
	}
	return found
}

func diffProfile(before, after Profile) ([]Change, error) {
	mark := unused(before, after)
	was, err := atoms(before, mark)
	if err != nil {
		return nil, err
	}
	is, err := atoms(after, mark)
	if err != nil {
		return nil, err
	}
	d := differ{name: after.Name}
	if d.name == "" {
		d.name = before.Name
	}
	d.more(is, was, ChangePossible, ChangeMaybe, "now ")
	d.more(was, is, ChangeImpossible, ChangeImpossible, "no longer ")
	d.sockets(before, after)
	d.inputs(before, after)
	d.order(was, is)
	d.notes(before, after)
	return d.changes, nil
}

type differ struct {
	name    string
	changes []Change
}

func (d *differ) add(kind ChangeKind, format string, args ...any) {
	d.changes = append(d.changes, Change{Kind: kind, Profile: d.name, Text: fmt.Sprintf(format, args...)})
}

// more reports each atom of a that no single atom of b contains.
func (d *differ) more(a, b []atom, certain, uncertain ChangeKind, word string) {
	for _, x := range a {
		near, best, contained := nearestAtom(x, b)
		if contained {
			continue
		}
		c := Change{Kind: certain, Profile: d.name, Rule: x.rule.ID, Target: x.target()}
		if x.method != "" {
			c.Methods = []string{x.method}
		}
		c.Text = strings.TrimSpace(x.circumstances())
		if near {
			c.Text = word + strings.Join(best, ", "+word)
		}
		if near && overlapping(x, b) > 1 || !near && slices.ContainsFunc(b, x.allowsPlainest) {
			c.Kind = uncertain
		}
		d.join(c)
	}
}

// join adds a method to a change that is otherwise the same.
func (d *differ) join(c Change) {
	for i, have := range d.changes {
		if have.Kind == c.Kind && have.Rule == c.Rule && have.Target == c.Target && have.Text == c.Text && len(have.Methods) > 0 {
			if !slices.Contains(have.Methods, c.Methods[0]) {
				d.changes[i].Methods = append(d.changes[i].Methods, c.Methods[0])
			}
			return
		}
	}
	d.changes = append(d.changes, c)
}

// nearestAtom looks for an atom that contains x. Failing that, it says what x has
// beyond the one that comes nearest, if any is about the same requests.
func nearestAtom(x atom, all []atom) (near bool, beyond []string, contained bool) {
	for _, y := range all {
		if !x.reaches(y) {
			continue
		}
		more := x.beyond(y)
		if len(more) == 0 {
			return true, nil, true
		}
		if !near || len(more) < len(beyond) {
			near, beyond = true, more
		}
	}
	return near, beyond, false
}

func overlapping(x atom, all []atom) int {
	n := 0
	for _, y := range all {
		if x.overlaps(y) {
			n++
		}
	}
	return n
}

// circumstances is all that an atom says besides its target.
func (a atom) circumstances() string {
	p := a.rule.Permission
	var parts []string
	if a.rule.When != "" {
		parts = append(parts, "with the input "+a.rule.When)
	}
	for _, q := range p.Query {
		parts = append(parts, "with the query "+q.Key+"="+q.Value)
	}
	if limit := p.BodyCap(a.method); limit > 0 && a.method != "" {
		parts = append(parts, fmt.Sprintf("with a body of up to %d bytes", limit))
	}
	for _, j := range p.Body.JSON {
		parts = append(parts, "in which "+j.Pointer+" is "+strings.Join(j.OneOf, " or "))
	}
	if p.Body.Git != "" {
		parts = append(parts, "of git's "+p.Body.Git)
	}
	parts = append(parts, beyondModes(a, atom{})...)
	parts = append(parts, beyondSecret(a, atom{})...)
	if p.OddPaths {
		parts = append(parts, "paths with dot and empty segments")
	}
	return strings.Join(parts, ", ")
}

// inputs reports what inputs may stand for beyond what they did.
func (d *differ) inputs(before, after Profile) {
	for _, was := range before.Inputs {
		is, ok := after.Input(was.Name)
		if was.Required && (!ok || !is.Required) && after.Name != "" {
			d.add(ChangePossible, "the profile can be used without the input %s", was.Name)
		}
		if !ok {
			d.add(ChangeNote, "the input %s is gone", was.Name)
			continue
		}
		d.input(was, is)
	}
	for _, is := range after.Inputs {
		if _, ok := before.Input(is.Name); !ok {
			d.add(ChangeNote, "the input %s is new", is.Name)
		}
	}
}

func (d *differ) input(was, is Input) {
	if is.Kind != was.Kind {
		d.add(ChangeMaybe, "the input %s is a %s, and was a %s", is.Name, is.Kind, was.Kind)
	}
	if is.Many && !was.Many {
		d.add(ChangePossible, "the input %s may have several values", is.Name)
	}
	if is.Env != "" && is.Env != was.Env {
		d.add(ChangePossible, "the variable %s may give the input %s", is.Env, is.Name)
	}
	if len(was.Match) > 0 && (len(is.Match) == 0 || !allWithin(is.Match, was.Match)) {
		d.add(ChangePossible, "the input %s may be hosts that do not match %s", is.Name, joinPatterns(was.Match))
	}
	if len(is.Match) > 0 && (len(was.Match) == 0 || !allWithin(was.Match, is.Match)) {
		d.add(ChangeImpossible, "the input %s has to match %s", is.Name, joinPatterns(is.Match))
	}
	if is.Required && !was.Required {
		d.add(ChangeImpossible, "the profile cannot be used without the input %s", is.Name)
	}
}

func allWithin(a, b []egress.HostPattern) bool {
	for _, p := range a {
		if !slices.ContainsFunc(b, p.Within) {
			return false
		}
	}
	return true
}

// order reports rules for the same requests that treat them differently, where
// not the same pairs of them stand in the same order: another one may win.
func (d *differ) order(was, is []atom) {
	before, after := conflicts(was), conflicts(is)
	for _, key := range slices.Sorted(maps.Keys(after)) {
		if _, ok := before[key]; !ok {
			d.conflict(after[key], "is asked before")
		}
	}
	for _, key := range slices.Sorted(maps.Keys(before)) {
		if _, ok := after[key]; !ok && treatsAnew(before[key], is) {
			d.conflict(before[key], "was asked before")
		}
	}
}

// treatsAnew reports whether some atom may now win where the first of a conflict did.
func treatsAnew(c conflict, is []atom) bool {
	return slices.ContainsFunc(is, func(n atom) bool {
		return n.overlaps(c.first) && n.overlaps(c.second) && n.treatment() != c.first.treatment()
	})
}

func (d *differ) conflict(c conflict, word string) {
	change := Change{
		Kind: ChangeMaybe, Profile: d.name, Rule: c.first.rule.ID, Target: c.first.target(),
		Text: fmt.Sprintf("rule %s %s rule %s, which treats some of the same requests differently", c.first.rule.ID, word, c.second.rule.ID),
	}
	if c.first.method != "" {
		change.Methods = []string{c.first.method}
		d.join(change)
		return
	}
	d.changes = append(d.changes, change)
}

// notes reports what concerns no request.
func (d *differ) notes(before, after Profile) {
	switch {
	case before.Name == "":
		d.add(ChangeNote, "the profile is new")
		return
	case after.Name == "":
		d.add(ChangeNote, "the profile is gone")
		return
	case before.Name != after.Name:
		d.add(ChangeNote, "the profile was called %s", before.Name)
	}
	if after.Version < before.Version {
		d.add(ChangeNote, "the version went down from %d to %d", before.Version, after.Version)
	} else if after.Version == before.Version && after.Digest != before.Digest {
		d.add(ChangeNote, "the version is still %d", after.Version)
	}
	d.class(before, after)
	if !slices.Equal(before.Env, after.Env) {
		d.add(ChangeNote, "the variables that are set inside changed")
	}
	before.Caches = slices.Clone(before.Caches)
	for i := range before.Caches {
		before.Caches[i].Profile = after.Name
	}
	if !slices.Equal(before.Caches, after.Caches) {
		d.add(ChangeNote, "the directories that are kept between runs changed")
	}
}
