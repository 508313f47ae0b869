// Package profile turns reviewed TOML text into profiles, and profiles with
// vetted inputs into grants. Pure: text in, values out.
package profile

import (
	"maps"
	"slices"

	"github.com/fractalboxdev/sbx/internal/class"
	"github.com/fractalboxdev/sbx/internal/egress"
	"github.com/fractalboxdev/sbx/internal/grant"
)

// Profile is a named, reviewed set of rules. Profiles are not changed after Parse.
type Profile struct {
	Name        string             `json:"name"`
	Version     int                `json:"version"`
	Summary     string             `json:"summary"`
	Digest      string             `json:"digest"` // SHA-256 of the definition, in hexadecimal
	Inputs      []Input            `json:"inputs,omitempty"`
	Env         []grant.EnvVar     `json:"env,omitempty"`
	Caches      []grant.Cache      `json:"caches,omitempty"`
	Credentials []grant.Credential `json:"credentials,omitempty"`
	Overrides   []egress.Host      `json:"overrides,omitempty"` // hosts of the deny floor
	Rules       []Rule             `json:"rules"`
	Class       class.Name         `json:"class,omitempty"`        // "" leaves it to the operator
	Require     []class.Limit      `json:"require,omitempty"`      // limits without which nothing runs, sorted
	UnixSockets []string           `json:"unix_sockets,omitempty"` // of the host, sorted
}

// Rule is a rule before inputs and endpoints are filled in.
type Rule struct {
	ID         string            `json:"id"`
	Summary    string            `json:"summary,omitempty"`
	When       string            `json:"when,omitempty"` // flag that has to be set
	Hosts      []string          `json:"hosts"`          // hosts, "registry:ecosystem" or "{input}"
	Paths      []string          `json:"paths,omitempty"`
	Protocols  []egress.Protocol `json:"protocols"`
	NoSecret   bool              `json:"no_secret,omitempty"` // no credential of any profile may go to these hosts
	Allow      []string          `json:"allow"`
	Deny       []string          `json:"deny,omitempty"`
	Permission egress.Rule       `json:"-"` // all the rest: methods, query, body, modes
}

// Ecosystems returns the registries that the profile's rules name, sorted.
func (p Profile) Ecosystems() []string {
	var names []string
	for _, r := range p.Rules {
		for _, h := range r.Hosts {
			if name, ok := ecosystemOf(h); ok {
				names = append(names, name)
			}
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// Input returns the declared input of that name.
func (p Profile) Input(name string) (Input, bool) {
	i := slices.IndexFunc(p.Inputs, func(in Input) bool { return in.Name == name })
	if i < 0 {
		return Input{}, false
	}
	return p.Inputs[i], true
}

// Set is the profiles of one file. The zero value has none.
type Set struct{ profiles map[string]Profile }

// Names returns the names of the profiles, sorted.
func (s Set) Names() []string { return slices.Sorted(maps.Keys(s.profiles)) }

// Get returns a profile, or a *Refusal with the nearest name.
func (s Set) Get(name string) (Profile, error) {
	p, ok := s.profiles[name]
	if !ok {
		return Profile{}, &Refusal{
			Code: CodeUnknownProfile, Subject: name,
			Detail: "there is no profile called " + quote(name), Nearest: Nearest(name, s.Names()),
		}
	}
	return p, nil
}

// DenyFloor returns the hosts that are write sinks for anybody: refused unless a
// profile both declares the override and has rules for the host.
func DenyFloor() []egress.Host { return slices.Clone(denyFloor) }

var denyFloor = mustHosts("api.github.com", "gist.github.com", "uploads.github.com")

func mustHosts(names ...string) []egress.Host {
	hosts := make([]egress.Host, len(names))
	for i, name := range names {
		host, err := egress.ParseHost(name)
		if err != nil {
			panic(err) // a constant of this package is wrong
		}
		hosts[i] = host
	}
	return hosts
}

// Only returns the set of one profile, or a *Refusal with the nearest name.
func (s Set) Only(name string) (Set, error) {
	p, err := s.Get(name)
	if err != nil {
		return Set{}, err
	}
	return Set{profiles: map[string]Profile{name: p}}, nil
}
