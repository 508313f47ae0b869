// Package grant has what one run may do: the union of the selected profiles with
// their inputs filled in. Values only; a grant never changes once made.
package grant

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"slices"

	"github.com/fractalboxdev/sbx/internal/class"
	"github.com/fractalboxdev/sbx/internal/egress"
)

// ProfileRef names a profile that went into a grant.
type ProfileRef struct {
	Name    string `json:"name"`
	Version int    `json:"version"`
	Digest  string `json:"digest"` // SHA-256 of the profile's canonical definition, in hexadecimal
}

// Input is a vetted input with its value.
type Input struct {
	Profile string `json:"profile"`
	Name    string `json:"name"`
	Value   string `json:"value"`
}

// Endpoint is an address of a registry with where it was learnt.
type Endpoint struct {
	Ecosystem string          `json:"ecosystem"` // npm, yarn, go, debian, python
	Role      string          `json:"role"`      // "" for the default index, else "@scope", "checksums" or "files"
	Endpoint  egress.Endpoint `json:"-"`
	URL       string          `json:"url"`    // without userinfo, query and trailing slash
	Source    string          `json:"source"` // for people, as in "~/.npmrc line 3"
}

// EnvVar is a non-secret variable of the command's environment.
type EnvVar struct {
	Name  string `json:"name"`
	Value string `json:"value"`
}

// Cache is a directory that is kept per profile and project.
type Cache struct {
	Profile string `json:"profile"`
	Name    string `json:"name"`          // unique within the profile; one path segment
	Path    string `json:"path"`          // relative to HOME inside
	Env     string `json:"env,omitempty"` // variable that points the client at it, "" for none
}

// UnixSocket is a socket of the host that the command may connect to.
type UnixSocket struct {
	Profile string `json:"profile"`
	Path    string `json:"path"`
}

// Spec is everything a grant is made of.
type Spec struct {
	Profiles    []ProfileRef  `json:"profiles"`
	Inputs      []Input       `json:"inputs"`
	Rules       []egress.Rule `json:"rules"`
	Endpoints   []Endpoint    `json:"endpoints"`
	Env         []EnvVar      `json:"env"`
	Caches      []Cache       `json:"caches"`
	Credentials []Credential  `json:"credentials"`
	DenyFloor   []egress.Host `json:"deny_floor"`        // refused, but for rules that override it
	Overrides   []egress.Host `json:"overrides"`         // hosts of the floor that a selected profile opened
	Class       class.Name    `json:"class,omitempty"`   // that the profiles name, "" for none
	Require     []class.Limit `json:"require,omitempty"` // limits without which nothing runs, sorted
	UnixSockets []UnixSocket  `json:"unix_sockets,omitempty"`
}

// Grant is an immutable Spec with its compiled policy and digest. The zero value
// allows nothing.
type Grant struct {
	spec   Spec
	policy *egress.Policy
	digest string
}

// New compiles a spec. Overrides only lists for people what the rules open. A
// placeholder for a host that some rule reaches without interception is refused.
func New(spec Spec) (Grant, error) {
	spec = spec.clone()
	policy, err := egress.Compile(spec.Rules, spec.DenyFloor)
	if err != nil {
		return Grant{}, fmt.Errorf("compiling the grant: %w", err)
	}
	digest, err := digestOf(spec)
	if err != nil {
		return Grant{}, err
	}
	g := Grant{spec: spec, policy: policy, digest: digest}
	if err := g.checkPlaceholders(); err != nil {
		return Grant{}, err
	}
	return g, nil
}

// Policy returns the compiled rules, nil for the zero Grant.
func (g Grant) Policy() *egress.Policy { return g.policy }

// Digest returns the SHA-256 of the canonical form in hexadecimal. Two grants
// with the same digest allow the same requests and set up the same inside.
func (g Grant) Digest() string {
	if g.digest == "" {
		digest, _ := digestOf(Spec{}) // nothing in an empty spec can fail to encode
		return digest
	}
	return g.digest
}

// Spec returns a copy of what the grant is made of.
func (g Grant) Spec() Spec { return g.spec.clone() }

// IsZero reports whether no profile was selected.
func (g Grant) IsZero() bool { return g.policy == nil }

// Profiles returns the selected profiles, sorted by name.
func (g Grant) Profiles() []ProfileRef { return slices.Clone(g.spec.Profiles) }

// Inputs returns the vetted inputs, sorted by profile and name.
func (g Grant) Inputs() []Input { return slices.Clone(g.spec.Inputs) }

// Rules returns the rules of all profiles.
func (g Grant) Rules() []egress.Rule { return cloneRules(g.spec.Rules) }

// Endpoints returns the registry endpoints with their sources.
func (g Grant) Endpoints() []Endpoint { return slices.Clone(g.spec.Endpoints) }

// Ecosystems returns the ecosystems of the endpoints, each once, sorted.
func (g Grant) Ecosystems() []string {
	var names []string
	for _, e := range g.spec.Endpoints {
		names = append(names, e.Ecosystem)
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// Env returns the variables that the profiles set inside, sorted by name.
func (g Grant) Env() []EnvVar { return slices.Clone(g.spec.Env) }

// Class returns the class of runs that the profiles name, "" for none.
func (g Grant) Class() class.Name { return g.spec.Class }

// Require returns the limits without which nothing may run, sorted.
func (g Grant) Require() []class.Limit { return slices.Clone(g.spec.Require) }

// UnixSockets returns the sockets of the host that the command may connect to.
func (g Grant) UnixSockets() []UnixSocket { return slices.Clone(g.spec.UnixSockets) }

// Caches returns the directories to keep.
func (g Grant) Caches() []Cache { return slices.Clone(g.spec.Caches) }

// MarshalJSON writes the spec and its digest.
func (g Grant) MarshalJSON() ([]byte, error) {
	return json.Marshal(struct {
		Digest string `json:"digest"`
		Spec
	}{g.Digest(), g.spec})
}

// digestOf hashes the JSON form, whose field order is fixed; lists are kept in
// the order in which they were resolved, which is sorted. Where an endpoint was
// learnt is left out: it changes nothing that is allowed.
func digestOf(spec Spec) (string, error) {
	spec.Endpoints = slices.Clone(spec.Endpoints)
	for i := range spec.Endpoints {
		spec.Endpoints[i].Source = ""
	}
	text, err := json.Marshal(spec)
	if err != nil {
		return "", fmt.Errorf("encoding the grant for its digest: %w", err)
	}
	sum := sha256.Sum256(append([]byte("sbx-grant-v1\n"), text...))
	return hex.EncodeToString(sum[:]), nil
}

func (s Spec) clone() Spec {
	s.Profiles = slices.Clone(s.Profiles)
	s.Inputs = slices.Clone(s.Inputs)
	s.Rules = cloneRules(s.Rules)
	s.Endpoints = slices.Clone(s.Endpoints)
	s.Env = slices.Clone(s.Env)
	s.Caches = slices.Clone(s.Caches)
	s.Credentials = slices.Clone(s.Credentials)
	s.DenyFloor = slices.Clone(s.DenyFloor)
	s.Overrides = slices.Clone(s.Overrides)
	s.Require = slices.Clone(s.Require)
	s.UnixSockets = slices.Clone(s.UnixSockets)
	return s
}

func cloneRules(rules []egress.Rule) []egress.Rule {
	out := slices.Clone(rules)
	for i := range out {
		out[i] = out[i].Clone()
	}
	return out
}
