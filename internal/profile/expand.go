package profile

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/fractalboxdev/sbx/internal/egress"
	"github.com/fractalboxdev/sbx/internal/grant"
)

// filling is what turns the rules of a profile into those of a grant.
type filling struct {
	values    map[string][]string // vetted inputs by name
	endpoints func(ecosystem string) ([]grant.Endpoint, error)
	overrides []egress.Host
}

// expand fills one rule in: every host or endpoint with every path.
func (f filling) expand(rule Rule) ([]egress.Rule, error) {
	if rule.When != "" && len(f.values[rule.When]) == 0 {
		return nil, nil
	}
	patterns, err := f.paths(rule)
	if err != nil {
		return nil, err
	}
	var out []egress.Rule
	for _, text := range rule.Hosts {
		more, err := f.expandHost(rule, text, patterns)
		if err != nil {
			return nil, err
		}
		out = append(out, more...)
	}
	return out, nil
}

func (f filling) expandHost(rule Rule, text string, patterns []egress.PathPattern) ([]egress.Rule, error) {
	if ecosystem, ok := ecosystemOf(text); ok {
		return f.expandRegistry(rule, ecosystem, patterns)
	}
	hosts, err := f.hosts(text)
	if err != nil {
		return nil, err
	}
	var out []egress.Rule
	for _, host := range hosts {
		exact, _ := host.Exact()
		for _, protocol := range rule.Protocols {
			for _, pattern := range patterns {
				r := rule.Permission.Clone()
				r.Protocol, r.Host, r.Path = protocol, host, pattern
				r.OverridesFloor = slices.Contains(f.overrides, exact)
				out = append(out, r)
			}
		}
	}
	return out, nil
}

// hosts reads a host pattern, or fills in an input.
func (f filling) hosts(text string) ([]egress.HostPattern, error) {
	texts := []string{text}
	if match := inputUse.FindStringSubmatch(text); match != nil {
		if match[0] != text {
			return nil, fmt.Errorf("host %q: an input stands for the whole host", text)
		}
		texts = f.values[match[1]]
	}
	hosts := make([]egress.HostPattern, 0, len(texts))
	for _, t := range texts {
		host, err := egress.ParseHostPattern(t)
		if err != nil {
			return nil, err
		}
		hosts = append(hosts, host)
	}
	return hosts, nil
}

// paths fills inputs into path patterns. An input without a value cannot occur
// here but in an optional one, whose rule then grants nothing.
func (f filling) paths(rule Rule) ([]egress.PathPattern, error) {
	if len(rule.Paths) == 0 {
		return []egress.PathPattern{{}}, nil
	}
	var patterns []egress.PathPattern
	for _, text := range rule.Paths {
		for _, filled := range f.fill(text) {
			pattern, err := egress.ParsePathPattern(filled, rule.Permission.EncodedSlash)
			if err != nil {
				return nil, err
			}
			patterns = append(patterns, pattern)
		}
	}
	return patterns, nil
}

func (f filling) fill(text string) []string {
	texts := []string{text}
	for _, match := range inputUse.FindAllStringSubmatch(text, -1) {
		if match[1] == "hex32" {
			continue
		}
		var filled []string
		for _, t := range texts {
			for _, value := range f.values[match[1]] {
				filled = append(filled, strings.ReplaceAll(t, match[0], egress.EscapeSegment(value)))
			}
		}
		texts = filled
	}
	return texts
}

// expandRegistry makes rules relative to the endpoints' base paths. A credential
// goes to the default endpoint only: scoped registries belong to others.
func (f filling) expandRegistry(rule Rule, ecosystem string, patterns []egress.PathPattern) ([]egress.Rule, error) {
	endpoints, err := f.endpoints(ecosystem)
	if err != nil {
		return nil, err
	}
	var out []egress.Rule
	for _, e := range endpoints {
		for _, pattern := range patterns {
			r, err := registryRule(rule, e, pattern)
			if err != nil {
				return nil, err
			}
			out = append(out, r)
		}
	}
	return out, nil
}

func registryRule(rule Rule, e grant.Endpoint, pattern egress.PathPattern) (egress.Rule, error) {
	if e.Endpoint.Host.IsZero() || e.Endpoint.Port == 0 {
		return egress.Rule{}, errors.New("an endpoint has no host or port")
	}
	if !slices.Contains(rule.Protocols, e.Endpoint.Protocol) {
		return egress.Rule{}, fmt.Errorf("%s from %s is refused: rule %s does not allow %s; configure an endpoint with another scheme",
			e.URL, e.Source, rule.Permission.ID, e.Endpoint.Protocol)
	}
	under, err := pattern.Under(e.Endpoint.BasePath)
	if err != nil {
		return egress.Rule{}, fmt.Errorf("%s from %s: %w", e.URL, e.Source, err)
	}
	r := rule.Permission.Clone()
	r.Protocol, r.Host, r.Path, r.Registry = e.Endpoint.Protocol, egress.ExactHost(e.Endpoint.Host), under, true
	r.Ports = []uint16{e.Endpoint.Port}
	if e.Role != "" {
		r.Credential = ""
	}
	return r, nil
}
