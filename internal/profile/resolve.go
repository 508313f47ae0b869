package profile

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/fractalboxdev/sbx/internal/egress"
	"github.com/fractalboxdev/sbx/internal/grant"
)

// Resolve makes the grant of some profiles: the union of their rules with the
// inputs filled in. Without names it is a grant that allows nothing. Every
// failure is a *Refusal. The endpoint source is asked once for each registry
// that a rule names; nil knows none.
func (s Set) Resolve(names []string, inputs map[string]string, endpoints EndpointSource) (grant.Grant, error) {
	selected, err := s.selected(names)
	if err != nil {
		return grant.Grant{}, err
	}
	vetted, err := s.vetInputs(selected, inputs)
	if err != nil {
		return grant.Grant{}, err
	}
	spec := grant.Spec{DenyFloor: DenyFloor()}
	cached := &endpointCache{source: endpoints, known: map[string][]grant.Endpoint{}}
	for _, p := range selected {
		if err := s.add(&spec, p, vetted[p.Name], cached); err != nil {
			return grant.Grant{}, err
		}
	}
	if err := finish(&spec, selected, cached); err != nil {
		return grant.Grant{}, err
	}
	g, err := grant.New(spec)
	if err != nil {
		return grant.Grant{}, &Refusal{Code: CodeBadGrant, Detail: err.Error(), Err: err}
	}
	return g, nil
}

// selected returns the named profiles, sorted, each once.
func (s Set) selected(names []string) ([]Profile, error) {
	names = slices.Compact(slices.Sorted(slices.Values(names)))
	profiles := make([]Profile, 0, len(names))
	for _, name := range names {
		p, err := s.Get(name)
		if err != nil {
			return nil, err
		}
		profiles = append(profiles, p)
	}
	return profiles, nil
}

// vetInputs returns the vetted values by profile and input.
func (s Set) vetInputs(selected []Profile, inputs map[string]string) (map[string]map[string][]string, error) {
	for _, name := range slices.Sorted(maps.Keys(inputs)) {
		if err := s.checkDeclared(selected, name); err != nil {
			return nil, err
		}
	}
	vetted := map[string]map[string][]string{}
	for _, p := range selected {
		values := map[string][]string{}
		for _, in := range p.Inputs {
			v, err := vetInput(p, in, inputs)
			if err != nil {
				return nil, err
			}
			values[in.Name] = v
		}
		vetted[p.Name] = values
	}
	return vetted, nil
}

func vetInput(p Profile, in Input, inputs map[string]string) ([]string, error) {
	value, given := inputs[in.Name]
	if !given {
		if in.Required {
			return nil, &Refusal{
				Code: CodeMissingInput, Subject: in.Name,
				Detail: fmt.Sprintf("profile %s needs the input %s: %s", p.Name, in.Name, in.Summary),
			}
		}
		return nil, nil
	}
	values, err := in.values(value)
	if err != nil {
		return nil, &Refusal{
			Code: CodeBadInput, Subject: in.Name, Err: err,
			Detail: fmt.Sprintf("input %s of profile %s cannot be %s: %v", in.Name, p.Name, quote(value), err),
		}
	}
	return values, nil
}

// checkDeclared refuses an input that no selected profile declares, and says
// which profile would take it.
func (s Set) checkDeclared(selected []Profile, name string) error {
	var known []string
	for _, p := range selected {
		for _, in := range p.Inputs {
			if in.Name == name {
				return nil
			}
			known = append(known, in.Name)
		}
	}
	refusal := &Refusal{Code: CodeUnknownInput, Subject: name, Nearest: Nearest(name, known)}
	refusal.Detail = fmt.Sprintf("no selected profile takes the input %s", quote(name))
	for _, other := range s.Names() {
		if _, ok := s.profiles[other].Input(name); ok {
			refusal.Detail += fmt.Sprintf("; profile %s does", other)
			refusal.Nearest = ""
			break
		}
	}
	return refusal
}

// endpointCache asks the source once for each ecosystem.
type endpointCache struct {
	source EndpointSource
	known  map[string][]grant.Endpoint
}

func (c *endpointCache) get(ecosystem string) ([]grant.Endpoint, error) {
	if found, ok := c.known[ecosystem]; ok {
		return found, nil
	}
	refusal := &Refusal{Code: CodeUnknownEndpoint, Subject: ecosystem}
	if c.source == nil {
		refusal.Detail = "the endpoints of registry:" + ecosystem + " are not known"
		return nil, refusal
	}
	found, err := c.source(ecosystem)
	if err != nil || len(found) == 0 {
		refusal.Detail, refusal.Err = fmt.Sprintf("the endpoints of registry:%s are not known: %v", ecosystem, err), err
		return nil, refusal
	}
	c.known[ecosystem] = found
	return found, nil
}

func (s Set) add(spec *grant.Spec, p Profile, values map[string][]string, endpoints *endpointCache) error {
	f := filling{values: values, endpoints: endpoints.get, overrides: p.Overrides}
	for _, rule := range p.Rules {
		rules, err := f.expand(rule)
		if err != nil {
			return refusalOf(p, rule, err)
		}
		spec.Rules = append(spec.Rules, rules...)
	}
	spec.Profiles = append(spec.Profiles, grant.ProfileRef{Name: p.Name, Version: p.Version, Digest: p.Digest})
	for _, in := range p.Inputs {
		for _, v := range values[in.Name] {
			spec.Inputs = append(spec.Inputs, grant.Input{Profile: p.Name, Name: in.Name, Value: v})
		}
	}
	spec.Caches = append(spec.Caches, p.Caches...)
	spec.Credentials = append(spec.Credentials, p.Credentials...)
	spec.Overrides = append(spec.Overrides, p.Overrides...)
	addSockets(spec, p)
	if err := addClass(spec, p); err != nil {
		return err
	}
	return addEnv(spec, p)
}

func refusalOf(p Profile, rule Rule, err error) error {
	if refusal, ok := err.(*Refusal); ok { //nolint:errorlint // only one made by the cache itself is passed on unchanged
		return refusal
	}
	return &Refusal{
		Code: CodeBadGrant, Subject: p.Name, Err: err,
		Detail: fmt.Sprintf("rule %s/%s cannot be granted: %v", p.Name, rule.ID, err),
	}
}

// addEnv joins variables; two profiles that want different values cannot both be right.
func addEnv(spec *grant.Spec, p Profile) error {
	for _, v := range p.Env {
		i := slices.IndexFunc(spec.Env, func(have grant.EnvVar) bool { return have.Name == v.Name })
		switch {
		case i < 0:
			spec.Env = append(spec.Env, v)
		case spec.Env[i].Value != v.Value:
			return &Refusal{
				Code: CodeBadGrant, Subject: p.Name,
				Detail: fmt.Sprintf("two of the selected profiles set %s to different values", v.Name),
			}
		}
	}
	return nil
}

// finish sorts what was joined and checks credentials across profiles.
func finish(spec *grant.Spec, selected []Profile, endpoints *endpointCache) error {
	slices.SortFunc(spec.Env, func(a, b grant.EnvVar) int { return strings.Compare(a.Name, b.Name) })
	for _, ecosystem := range slices.Sorted(maps.Keys(endpoints.known)) {
		spec.Endpoints = append(spec.Endpoints, endpoints.known[ecosystem]...)
	}
	if err := checkPlaceholders(spec); err != nil {
		return err
	}
	return checkCredentials(spec.Rules, noSecretRules(selected))
}

// checkPlaceholders refuses a variable that would hold two things.
func checkPlaceholders(spec *grant.Spec) error {
	seen := map[string]string{}
	for _, v := range spec.Env {
		seen[v.Name] = "a profile's env"
	}
	for _, c := range spec.Caches {
		seen[c.Env] = "the cache " + c.Name
	}
	for _, c := range spec.Credentials {
		if c.Placeholder == "" {
			continue
		}
		if other := seen[c.Placeholder]; other != "" {
			return &Refusal{
				Code: CodeBadGrant, Subject: c.Profile,
				Detail: fmt.Sprintf("%s would hold the placeholder of %s and the value of %s", c.Placeholder, c.Name, other),
			}
		}
		seen[c.Placeholder] = c.Name
	}
	return nil
}

func noSecretRules(selected []Profile) map[string]bool {
	ids := map[string]bool{}
	for _, p := range selected {
		for _, rule := range p.Rules {
			if rule.NoSecret {
				ids[rule.Permission.ID] = true
			}
		}
	}
	return ids
}

// checkCredentials refuses two different credentials on one host, and any on a
// host that a rule wants without.
func checkCredentials(rules []egress.Rule, noSecret map[string]bool) error {
	for i := range rules {
		if rules[i].Credential == "" {
			continue
		}
		for j := range rules {
			other := rules[j].Credential
			differs := other != "" && other != rules[i].Credential || noSecret[rules[j].ID]
			if differs && overlap(rules[i].Host, rules[j].Host) {
				return &Refusal{
					Code: CodeCredentialConflict, Subject: rules[i].Host.String(),
					Detail: fmt.Sprintf("rules %s and %s want different credentials on %s", rules[i].ID, rules[j].ID, rules[i].Host),
				}
			}
		}
	}
	return nil
}

func overlap(a, b egress.HostPattern) bool {
	if a == b {
		return true
	}
	if host, ok := a.Exact(); ok {
		return b.Matches(host)
	}
	host, ok := b.Exact()
	return ok && a.Matches(host)
}
