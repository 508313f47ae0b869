package profile

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/fractalboxdev/sbx/internal/egress"
	"github.com/fractalboxdev/sbx/internal/grant"
)

// checkExamples compiles each rule alone, with the inputs' example values and a
// stand-in endpoint for registries, and judges its examples with it. It also
// proves that the rule compiles at all.
func checkExamples(p *Profile) error {
	f, err := exampleFilling(p)
	if err != nil {
		return err
	}
	for _, rule := range p.Rules {
		results, err := runExamples(rule, f)
		if err != nil {
			return fmt.Errorf("rule %s: %w", quote(rule.ID), err)
		}
		for _, r := range results {
			if r.Reason != "" {
				return fmt.Errorf("rule %s: example %q in %s fails: %s", quote(rule.ID), r.Text, r.List, r.Reason)
			}
		}
	}
	return nil
}

// exampleFilling has the inputs' example values, every flag set, and the
// stand-in endpoint.
func exampleFilling(p *Profile) (filling, error) {
	f := filling{values: map[string][]string{}, endpoints: standIn, overrides: p.Overrides}
	for _, in := range p.Inputs {
		if in.Kind == KindFlag {
			f.values[in.Name] = []string{"true"}
			continue
		}
		values, err := in.values(in.Example)
		if err != nil {
			return f, fmt.Errorf("input %s: %w", in.Name, err)
		}
		f.values[in.Name] = values
	}
	return f, nil
}

// Example is one example of a rule and what became of it.
type Example struct {
	Profile string `json:"profile"`
	Rule    string `json:"rule"`
	List    string `json:"list"` // allow, deny
	Text    string `json:"example"`
	Line    int    `json:"line"`   // from 1; 0 when unknown
	Reason  string `json:"reason"` // why it fails; "" when it passes
}

// runExamples judges every example of a rule; the error is about the rule itself.
func runExamples(rule Rule, f filling) ([]Example, error) {
	expanded, err := f.expand(rule)
	if err != nil {
		return nil, err
	}
	if len(expanded) == 0 {
		return nil, errors.New("it grants nothing with the inputs' examples")
	}
	policy, err := egress.Compile(expanded, denyFloor)
	if err != nil {
		return nil, err
	}
	var results []Example
	for _, text := range rule.Allow {
		d, err := judgeExample(policy, expanded[0], text)
		results = append(results, Example{Rule: rule.ID, List: "allow", Text: text, Reason: failure(d, egress.Allow, err)})
	}
	for _, text := range rule.Deny {
		d, err := judgeExample(policy, expanded[0], text)
		results = append(results, Example{Rule: rule.ID, List: "deny", Text: text, Reason: failure(d, egress.Deny, err)})
	}
	return results, nil
}

// failure says why a decision is not the wanted one, "" when it is.
func failure(d egress.Decision, want egress.Verdict, err error) string {
	switch {
	case err != nil:
		return err.Error()
	case d.Verdict == want:
		return ""
	case want == egress.Deny:
		return "the rule allows it"
	}
	return d.Reason
}

// standIn is the endpoint of examples, with a base path so that rules which
// forget that there is one fail at once.
func standIn(ecosystem string) ([]grant.Endpoint, error) {
	host, err := egress.ParseHost("registry.test")
	if err != nil {
		return nil, err
	}
	return []grant.Endpoint{{
		Ecosystem: ecosystem, URL: "https://registry.test/base", Source: "the examples' stand-in",
		Endpoint: egress.Endpoint{Protocol: egress.ProtocolHTTPS, Host: host, Port: 443, BasePath: "/base"},
	}}, nil
}

// judgeExample judges "METHOD URL" or "METHOD /path", the latter on the rule's
// first host and, for registries, below the stand-in's base path. A third word is
// length=BYTES, or body=TEXT for a JSON body.
func judgeExample(policy *egress.Policy, rule egress.Rule, text string) (egress.Decision, error) {
	words := strings.SplitN(text, " ", 3)
	if len(words) < 2 {
		if rule.Protocol != egress.ProtocolTCP && !rule.Tunnel {
			return egress.Decision{}, errors.New("METHOD and URL are wanted")
		}
		return judgeOpaque(policy, text)
	}
	req, err := exampleRequest(rule, words[0], words[1])
	if err != nil || len(words) == 2 {
		return policy.Decide(req), err
	}
	if body, ok := strings.CutPrefix(words[2], "body="); ok {
		return policy.DecideBody(req, []byte(body), "", "application/json"), nil
	}
	length, ok := strings.CutPrefix(words[2], "length=")
	req.BodyLength, err = strconv.ParseInt(length, 10, 64)
	if !ok || err != nil {
		return egress.Decision{}, errors.New("the third word is length=BYTES or body=TEXT")
	}
	return policy.Decide(req), nil
}

func exampleRequest(rule egress.Rule, method, target string) (egress.Request, error) {
	if strings.Contains(target, "://") {
		req, err := egress.ParseURL(target)
		req.Method = method
		return req, err
	}
	if rule.Registry {
		target = "/base" + target
	}
	p, q, err := egress.ParseTarget(target)
	host, _ := rule.Host.Exact()
	port := rule.Protocol.DefaultPort()
	if len(rule.Ports) > 0 {
		port = slices.Min(rule.Ports)
	}
	return egress.Request{Protocol: rule.Protocol, Host: host, Port: port, Method: method, Path: p, Query: q}, err
}

// judgeOpaque judges "host:port" for rules that police nothing else.
func judgeOpaque(policy *egress.Policy, text string) (egress.Decision, error) {
	host, port, err := egress.ParseAuthority(text, 0)
	if err != nil {
		return egress.Decision{}, err
	}
	return policy.Decide(egress.Request{Protocol: egress.ProtocolTCP, Host: host, Port: port}), nil
}
