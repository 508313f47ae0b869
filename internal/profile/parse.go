package profile

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"path"
	"slices"
	"strconv"
	"strings"

	"github.com/BurntSushi/toml"

	"github.com/fractalboxdev/sbx/internal/egress"
	"github.com/fractalboxdev/sbx/internal/grant"
)

// maxText bounds a profile file, in bytes.
const maxText = 1 << 20

// Parse reads a profile file strictly: unknown keys, rules that could not be
// compiled and examples that fail are errors that name the file and, where the
// TOML has one, the line. The file's name is used in messages only.
func Parse(text, file string) (Set, error) {
	doc, err := decode(text, file)
	if err != nil {
		return Set{}, err
	}
	set := Set{profiles: make(map[string]Profile, len(doc.Profiles))}
	for _, name := range slices.Sorted(maps.Keys(doc.Profiles)) {
		p, err := doc.Profiles[name].build(name)
		if err != nil {
			line := lineOf(text, toml.Key{"profiles", name})
			return Set{}, &ParseError{File: file, Line: line, What: fmt.Sprintf("profile %s: %v", quote(name), err), Err: err}
		}
		set.profiles[name] = p
	}
	return set, nil
}

// decode reads the TOML strictly.
func decode(text, file string) (document, error) {
	var doc document
	if len(text) > maxText {
		return doc, &ParseError{File: file, What: "the file is larger than 1 MiB"}
	}
	meta, err := toml.Decode(text, &doc)
	if err != nil {
		return doc, syntaxError(file, err)
	}
	if unknown := meta.Undecoded(); len(unknown) > 0 {
		return doc, unknownKey(text, file, unknown[0])
	}
	return doc, nil
}

// typed is how the TOML library words a value of the wrong type.
var typed = lazily(`^toml: line ([0-9]+) \(last key "([^"]*)"\): (.*)$`)

func syntaxError(file string, err error) error {
	if syntax, ok := errors.AsType[toml.ParseError](err); ok {
		return &ParseError{File: file, Line: syntax.Position.Line, What: syntax.Message, Err: err}
	}
	if match := typed.FindStringSubmatch(err.Error()); match != nil {
		line, _ := strconv.Atoi(match[1]) // digits; too many leave the line unknown
		return &ParseError{File: file, Line: line, What: match[2] + ": " + match[3], Err: err}
	}
	return &ParseError{File: file, What: err.Error(), Err: err}
}

var (
	profileName = lazily(`^[a-z][a-z0-9-]{0,62}$`)
	inputName   = lazily(`^[a-z][a-z0-9_]{0,30}$`)
	envName     = lazily(`^[A-Za-z_][A-Za-z0-9_]*$`)
	cacheName   = lazily(`^[a-z][a-z0-9-]{0,30}$`)
	headerName  = lazily(`^[A-Za-z][A-Za-z0-9-]*$`)
)

// build checks a definition part by part, its examples last; the first thing
// wrong is the error.
func (d *profileDoc) build(name string) (Profile, error) {
	p, err := d.assemble(name)
	if err != nil {
		return p, err
	}
	return p, checkExamples(&p)
}

// assemble checks everything but the examples.
func (d *profileDoc) assemble(name string) (Profile, error) {
	p := Profile{Name: name, Version: d.Version, Summary: d.Summary}
	if !profileName.MatchString(name) {
		return p, errors.New("a name has lower-case letters, digits and hyphens")
	}
	if d.Version < 1 || d.Summary == "" || len(d.Rules) == 0 && len(d.UnixSockets) == 0 {
		return p, errors.New("a profile needs a version from 1, a summary and rules or unix_sockets")
	}
	digest, err := d.digest(name)
	if err != nil {
		return p, err
	}
	p.Digest = digest
	for _, step := range []func(*Profile) error{
		d.buildClass, d.buildInputs, d.buildEnv, d.buildCaches, d.buildCredentials, d.buildSockets, d.buildOverrides,
		d.buildRules, checkOverrides, checkUses,
	} {
		if err := step(&p); err != nil {
			return p, err
		}
	}
	return p, nil
}

// digest hashes the definition in a form that comments and layout do not change.
func (d *profileDoc) digest(name string) (string, error) {
	text, err := json.Marshal(d)
	if err != nil {
		return "", fmt.Errorf("encoding the definition for its digest: %w", err)
	}
	sum := sha256.Sum256(append([]byte("sbx-profile-v1\n"+name+"\n"), text...))
	return hex.EncodeToString(sum[:]), nil
}

func (d *profileDoc) buildInputs(p *Profile) error {
	for _, name := range slices.Sorted(maps.Keys(d.Inputs)) {
		doc := d.Inputs[name]
		in := Input{
			Name: name, Kind: InputKind(doc.Kind), Summary: doc.Summary, Required: doc.Required,
			Many: doc.Many, Env: doc.Env, Example: doc.Example,
		}
		for _, text := range doc.Match {
			pattern, err := egress.ParseHostPattern(text)
			if err != nil {
				return fmt.Errorf("input %s: %w", name, err)
			}
			in.Match = append(in.Match, pattern)
		}
		if err := in.check(); err != nil {
			return fmt.Errorf("input %s: %w", name, err)
		}
		p.Inputs = append(p.Inputs, in)
	}
	return nil
}

func (in Input) check() error {
	switch {
	case !inputName.MatchString(in.Name) || in.Name == "hex32":
		return errors.New("a name has lower-case letters, digits and underscores")
	case in.Kind != KindRepo && in.Kind != KindHost && in.Kind != KindFlag:
		return fmt.Errorf("kind %q is none of repo, host, flag", in.Kind)
	case in.Summary == "":
		return errors.New("a summary is missing")
	case len(in.Match) > 0 && in.Kind != KindHost:
		return errors.New("only hosts have match")
	case in.Kind == KindFlag && (in.Required || in.Many):
		return errors.New("a flag is neither required nor several")
	case in.Env != "" && !envName.MatchString(in.Env):
		return fmt.Errorf("env %q is not the name of a variable", in.Env)
	case in.Kind == KindFlag:
		return nil
	}
	if _, err := in.values(in.Example); err != nil {
		return fmt.Errorf("example %q: %w", in.Example, err)
	}
	return nil
}

func (d *profileDoc) buildEnv(p *Profile) error {
	for _, name := range slices.Sorted(maps.Keys(d.Env)) {
		value := d.Env[name]
		if !envName.MatchString(name) || strings.ContainsAny(value, "\x00\n\r") {
			return fmt.Errorf("variable %q is malformed", name)
		}
		p.Env = append(p.Env, grant.EnvVar{Name: name, Value: value})
	}
	return nil
}

func (d *profileDoc) buildCaches(p *Profile) error {
	seen := map[string]bool{}
	for _, c := range d.Caches {
		if !cacheName.MatchString(c.Name) || seen[c.Name] {
			return fmt.Errorf("cache %q needs a name of its own in lower-case letters, digits and hyphens", c.Name)
		}
		seen[c.Name] = true
		if c.Path == "" || path.Clean(c.Path) != c.Path || path.IsAbs(c.Path) || c.Path == "." || c.Path == ".." || strings.HasPrefix(c.Path, "../") {
			return fmt.Errorf("cache %s: path %q is not a clean path below HOME", c.Name, c.Path)
		}
		if c.Env != "" && !envName.MatchString(c.Env) {
			return fmt.Errorf("cache %s: env %q is not the name of a variable", c.Name, c.Env)
		}
		p.Caches = append(p.Caches, grant.Cache{Profile: p.Name, Name: c.Name, Path: c.Path, Env: c.Env})
	}
	return nil
}

func (d *profileDoc) buildCredentials(p *Profile) error {
	for _, name := range slices.Sorted(maps.Keys(d.Credentials)) {
		c, err := d.Credentials[name].build(p.Name + "/" + name)
		if err != nil {
			return fmt.Errorf("credential %s: %w", name, err)
		}
		c.Profile = p.Name
		p.Credentials = append(p.Credentials, c)
	}
	return nil
}

func (d *profileDoc) buildOverrides(p *Profile) error {
	for _, text := range d.Overrides {
		if isSocket(text) {
			if err := d.overrideSocket(text); err != nil {
				return err
			}
			continue
		}
		host, err := egress.ParseHost(text)
		if err != nil {
			return fmt.Errorf("overrides: %w", err)
		}
		if !slices.Contains(denyFloor, host) {
			return fmt.Errorf("overrides: %s is not on the deny floor", host)
		}
		p.Overrides = append(p.Overrides, host)
	}
	return nil
}
