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
	f := filling{values: map[string][]string{}, endpoints: standIn, overrides: p.Overrides}
	for _, in := range p.Inputs {
		if in.Kind == KindFlag {
			f.values[in.Name] = []string{"true"}
			continue
		}
		values, err := in.values(in.Example)
		if err != nil {
			return fmt.Errorf("input %s: %w", in.Name, err)
		}
		f.values[in.Name] = values
	}
	for _, rule := range p.Rules {
		if err := checkRule(rule, f); err != nil {
			return fmt.Errorf("rule %s: %w", quote(rule.ID), err)
		}
	}
	return nil
}

func checkRule(rule Rule, f filling) error {
	expanded, err := f.expand(rule)
	if err != nil {
		return err
	}
	if len(expanded) == 0 {
		return errors.New("it grants nothing with the inputs' examples")
	}
	policy, err := egress.Compile(expanded, denyFloor)
	if err != nil {
		return err
	}
	for _, text := range rule.Allow {
		if d, err := judgeExample(policy, expanded[0], text); err != nil || d.Verdict != egress.Allow {
			return exampleError("allow", text, err, d.Reason)
		}
	}
	for _, text := range rule.Deny {
		if d, err := judgeExample(policy, expanded[0], text); err != nil || d.Verdict == egress.Allow {
			return exampleError("deny", text, err, "the rule allows it")
		}
	}
	return nil
}

func exampleError(list, text string, err error, reason string) error {
	if err != nil {
		return fmt.Errorf("example %q in %s: %w", text, list, err)
	}
	return fmt.Errorf("example %q in %s fails: %s", text, list, reason)
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
