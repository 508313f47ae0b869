package profile

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/BurntSushi/toml"
)

// Finding is one thing that lint has to say about a profile file.
type Finding struct {
	File    string `json:"file"`
	Line    int    `json:"line"` // from 1; 0 when unknown
	Profile string `json:"profile,omitempty"`
	Rule    string `json:"rule,omitempty"`
	Check   Check  `json:"check"`
	Message string `json:"message"`
	Nearest string `json:"nearest,omitempty"` // the known name that was perhaps meant
}

// String returns file, line, place and message on one line.
func (f Finding) String() string {
	at := f.File
	if f.Line > 0 {
		at = fmt.Sprintf("%s:%d", f.File, f.Line)
	}
	switch {
	case f.Rule != "":
		at += ": rule " + f.Profile + "/" + f.Rule
	case f.Profile != "":
		at += ": profile " + f.Profile
	}
	text := at + ": " + f.Message
	if f.Nearest != "" {
		text += " (did you mean " + f.Nearest + "?)"
	}
	return text
}

// Check names what lint looks at. The list is closed.
type Check string

// The checks of lint.
const (
	CheckSyntax       Check = "syntax"
	CheckUnknownKey   Check = "unknown-key"
	CheckName         Check = "name"
	CheckDefinition   Check = "definition" // anything without which the file does not load
	CheckMethod       Check = "method"
	CheckPath         Check = "path"
	CheckPrefix       Check = "ambiguous-prefix"
	CheckApex         Check = "hidden-apex"
	CheckWildcard     Check = "bare-wildcard"
	CheckPublicSuffix Check = "public-suffix"
	CheckBody         Check = "body"
	CheckFloor        Check = "deny-floor"
	CheckExamples     Check = "examples"
	CheckNever        Check = "never-matches"
	CheckSocket       Check = "socket"
)

// customPrefix begins the name of every profile that is not built in.
const customPrefix = "x-"

// CustomName reports whether a profile that is not built in may have that name.
func CustomName(name string) bool {
	return profileName.MatchString(name) && strings.HasPrefix(name, customPrefix)
}

// Lint returns everything that a reviewer would have to object to, in the order
// of lines. custom demands the names of profiles that are not built in. A file
// without findings loads.
func Lint(text, file string, custom bool) []Finding {
	l := &linter{file: file, text: text, at: outlineOf(text), custom: custom}
	if len(text) > maxText {
		l.add(Finding{Check: CheckSyntax, Message: "the file is larger than 1 MiB"})
		return l.found
	}
	var doc document
	meta, err := toml.Decode(text, &doc)
	if err != nil {
		l.syntax(err)
		return l.found
	}
	l.unknownKeys(meta.Undecoded())
	if len(doc.Profiles) == 0 {
		l.add(Finding{Check: CheckDefinition, Message: "the file has no profile: a table [profiles." + customPrefix + "NAME] is wanted"})
	}
	for _, name := range slices.Sorted(maps.Keys(doc.Profiles)) {
		l.profile(name, doc.Profiles[name])
	}
	slices.SortStableFunc(l.found, func(a, b Finding) int { return a.Line - b.Line })
	return l.found
}

type linter struct {
	file, text string
	at         outline
	custom     bool
	found      []Finding
}

func (l *linter) add(f Finding) {
	f.File = l.file
	l.found = append(l.found, f)
}

func (l *linter) syntax(err error) {
	f := Finding{Check: CheckSyntax, Message: err.Error()}
	if parse, ok := errors.AsType[*ParseError](syntaxError(l.file, err)); ok {
		f.Line, f.Message = parse.Line, parse.What
	}
	l.add(f)
}

// unknownKeys reports each unknown key once, by its outermost part.
func (l *linter) unknownKeys(keys []toml.Key) {
	seen := map[string]bool{}
	for _, key := range keys {
		key, nearest := outermostUnknown(key)
		line := lineOf(l.text, key)
		id := fmt.Sprint(line, key)
		if seen[id] {
			continue
		}
		seen[id] = true
		l.add(Finding{Line: line, Check: CheckUnknownKey, Message: "unknown key " + key.String(), Nearest: nearest})
	}
}

// profile checks a definition part by part and goes on after each fault.
func (l *linter) profile(name string, doc *profileDoc) {
	p := Profile{Name: name, Version: doc.Version}
	l.names(name, doc)
	l.step(&p, CheckDefinition, "class", doc.buildClass)
	inputs := l.step(&p, CheckDefinition, "inputs", doc.buildInputs)
	l.step(&p, CheckDefinition, "env", doc.buildEnv)
	l.step(&p, CheckDefinition, "caches", doc.buildCaches)
	l.step(&p, CheckDefinition, "credentials", doc.buildCredentials)
	l.step(&p, CheckSocket, "unix_sockets", doc.buildSockets)
	l.step(&p, CheckFloor, "overrides", doc.buildOverrides)
	whole := inputs
	for i := range doc.Rules {
		r := ruleLint{linter: l, profile: &p, doc: &doc.Rules[i], index: i}
		whole = r.build() && whole
	}
	if whole {
		l.step(&p, CheckDefinition, "inputs", checkUses)
		l.step(&p, CheckFloor, "overrides", checkOverrides)
	}
	if !inputs {
		return
	}
	f, err := exampleFilling(&p)
	if err != nil {
		return // said by the step of inputs
	}
	for i := range doc.Rules {
		r := ruleLint{linter: l, profile: &p, doc: &doc.Rules[i], index: i}
		r.check(f)
	}
}

func (l *linter) names(name string, doc *profileDoc) {
	say := func(check Check, key, message string) {
		l.add(Finding{Line: l.at.profile(name, key), Profile: name, Check: check, Message: message})
	}
	switch {
	case !profileName.MatchString(name):
		say(CheckName, "", "a name has lower-case letters, digits and hyphens")
	case l.custom && !strings.HasPrefix(name, customPrefix):
		say(CheckName, "", "names of custom profiles begin with "+customPrefix+": call it "+customPrefix+name)
	}
	if doc.Version < 1 {
		say(CheckDefinition, "version", "a version from 1 is missing")
	}
	if doc.Summary == "" {
		say(CheckDefinition, "summary", "a summary is missing")
	}
	if len(doc.Rules) == 0 && len(doc.UnixSockets) == 0 {
		say(CheckDefinition, "", "it has no rules")
	}
}

func (l *linter) step(p *Profile, check Check, key string, do func(*Profile) error) bool {
	err := do(p)
	if err != nil {
		l.add(Finding{Line: l.at.profile(p.Name, key), Profile: p.Name, Check: check, Message: err.Error()})
	}
	return err == nil
}

// Examples judges every example of a file's profiles. The error says why the
// file does not load for another reason.
func Examples(text, file string) ([]Example, error) {
	doc, err := decode(text, file)
	if err != nil {
		return nil, err
	}
	at := outlineOf(text)
	results := []Example{}
	for _, name := range slices.Sorted(maps.Keys(doc.Profiles)) {
		more, err := doc.Profiles[name].examples(name, at)
		if err != nil {
			return nil, &ParseError{File: file, Line: at.profile(name, ""), What: fmt.Sprintf("profile %s: %v", quote(name), err), Err: err}
		}
		results = append(results, more...)
	}
	return results, nil
}

func (d *profileDoc) examples(name string, at outline) ([]Example, error) {
	p, err := d.assemble(name)
	if err != nil {
		return nil, err
	}
	f, err := exampleFilling(&p)
	if err != nil {
		return nil, err
	}
	var all []Example
	for i, rule := range p.Rules {
		results, err := runExamples(rule, f)
		if err != nil {
			return nil, fmt.Errorf("rule %s: %w", quote(rule.ID), err)
		}
		for _, r := range results {
			r.Profile, r.Line = name, at.example(name, i, r.List, r.Text)
			all = append(all, r)
		}
	}
	return all, nil
}
