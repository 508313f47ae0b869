package profile

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/fractalboxdev/sbx/internal/egress"
)

// maxAsserted bounds bodies that are buffered to be judged, in bytes.
const maxAsserted = 16 << 20

var ruleID = lazily(`^[a-z][a-z0-9-]{0,62}$`)

// ecosystemOf takes "registry:npm" apart.
func ecosystemOf(host string) (string, bool) { return strings.CutPrefix(host, "registry:") }

func (d *profileDoc) buildRules(p *Profile) error {
	for i := range d.Rules {
		rule, err := d.Rules[i].build(p)
		if err != nil {
			return fmt.Errorf("rule %s: %w", quote(d.Rules[i].ID), err)
		}
		if slices.ContainsFunc(p.Rules, func(r Rule) bool { return r.ID == rule.ID }) {
			return fmt.Errorf("rule %s: the id is used twice", quote(rule.ID))
		}
		p.Rules = append(p.Rules, rule)
	}
	return nil
}

func (d *ruleDoc) build(p *Profile) (Rule, error) {
	rule := Rule{
		ID: d.ID, Summary: d.Summary, When: d.When, Hosts: d.Host, Paths: d.Path,
		NoSecret: d.Credential == "never", Allow: d.Allow, Deny: d.Deny,
		Permission: egress.Rule{
			ID: p.Name + "/" + d.ID, Ports: d.Ports, Methods: d.Methods, MaxBody: int64(d.MaxBody),
			Cookies: d.Cookies, Internal: d.Internal, WebSocket: d.WebSocket,
			UploadBudget: egress.Budget{Bytes: int64(d.UploadBudget.Bytes), Requests: d.UploadBudget.Requests},
			EncodedSlash: d.EncodedSlash, OddPaths: d.OddPaths,
		},
	}
	for _, step := range []func(*Rule) error{d.checkNames, d.setProtocols, d.setModes, d.setQuery, d.setBody} {
		if err := step(&rule); err != nil {
			return rule, err
		}
	}
	return rule, d.setCredential(p, &rule)
}

func (d *ruleDoc) checkNames(rule *Rule) error {
	switch {
	case !ruleID.MatchString(d.ID):
		return errors.New("an id has lower-case letters, digits and hyphens")
	case len(d.Host) == 0:
		return errors.New("a host is missing")
	case len(d.Allow) == 0:
		return errors.New("an example in allow is missing")
	case slices.Contains(d.Host, "*"):
		return errors.New("a bare * is not a host")
	case d.UploadBudget.Requests < 0:
		return errors.New("upload_budget is negative")
	}
	return nil
}

func (d *ruleDoc) setProtocols(rule *Rule) error {
	names := d.Protocol
	if len(names) == 0 {
		names = stringList{"https"}
	}
	for _, name := range names {
		protocol, err := egress.ParseProtocol(name)
		if err != nil {
			return err
		}
		if protocol == egress.ProtocolTCP && len(names) > 1 {
			return errors.New("tcp stands alone")
		}
		rule.Protocols = append(rule.Protocols, protocol)
	}
	if len(names) > 1 && len(d.Ports) > 0 {
		return errors.New("several protocols with ports of their own need a rule each")
	}
	return nil
}

func (d *ruleDoc) setModes(rule *Rule) error {
	var ok [3]bool
	rule.Permission.Headers, ok[0] = pick(d.Headers, "minimal", egress.HeadersMinimal, "preserve", egress.HeadersPreserve)
	rule.Permission.Redirects, ok[1] = pick(d.Redirects, "pass", egress.RedirectPass, "follow", egress.RedirectFollow)
	rule.Permission.Tunnel, ok[2] = pick(d.TLS, "intercept", false, "tunnel", true)
	if ok != [3]bool{true, true, true} {
		return errors.New("headers is minimal or preserve, redirects is pass or follow, tls is intercept or tunnel")
	}
	return nil
}

// pick returns the value of a word; an empty word is the first one.
func pick[T any](word, first string, a T, second string, b T) (T, bool) {
	switch word {
	case "", first:
		return a, true
	case second:
		return b, true
	}
	return a, false
}

func (d *ruleDoc) setQuery(rule *Rule) error {
	for _, key := range slices.Sorted(maps.Keys(d.Query)) {
		if key == "" {
			return errors.New("a query key is empty")
		}
		rule.Permission.Query = append(rule.Permission.Query, egress.QueryMatch{Key: key, Value: d.Query[key]})
	}
	return nil
}

func (d *ruleDoc) setBody(rule *Rule) error {
	body := egress.BodyRule{Git: d.Body.Git}
	for _, j := range d.Body.JSON {
		values := j.OneOf
		if j.Equals != "" {
			values = append([]string{j.Equals}, values...)
		}
		if !strings.HasPrefix(j.Pointer, "/") || len(values) == 0 || j.Equals != "" && len(j.OneOf) > 0 {
			return errors.New("a JSON assertion needs a pointer that begins with a slash, and equals or one_of")
		}
		body.JSON = append(body.JSON, egress.JSONAssertion{Pointer: j.Pointer, OneOf: values})
	}
	if body.Git != "" && body.Git != egress.GitUploadPack {
		return fmt.Errorf("git is %s or nothing", egress.GitUploadPack)
	}
	if body.Git != "" && len(body.JSON) > 0 {
		return errors.New("a body is either JSON or git's")
	}
	if body.Asserts() && (d.MaxBody == 0 || d.MaxBody > maxAsserted) {
		return errors.New("assertions need max_body from 1 byte to 16 MiB")
	}
	rule.Permission.Body = body
	return nil
}

// setCredential resolves the name of a credential; it has to be meant for the rule's host.
func (d *ruleDoc) setCredential(p *Profile, rule *Rule) error {
	if d.Credential == "" || rule.NoSecret {
		return nil
	}
	name := p.Name + "/" + d.Credential
	for _, c := range p.Credentials {
		if c.Name != name {
			continue
		}
		want := c.Host.String()
		if c.Registry != "" {
			want = "registry:" + c.Registry
		}
		if !slices.Equal(rule.Hosts, []string{want}) || !slices.Equal(rule.Protocols, []egress.Protocol{egress.ProtocolHTTPS}) {
			return fmt.Errorf("credential %s goes to %s over https only", d.Credential, want)
		}
		rule.Permission.Credential = name
		return checkSecretRule(rule.Permission)
	}
	return fmt.Errorf("credential %s is not declared", quote(d.Credential))
}

var inputUse = lazily(`\{([a-z][a-z0-9_]*)\}`)

// checkUses demands that every input that a rule uses is declared, and every
// declared input used.
func checkUses(p *Profile) error {
	used := map[string]InputKind{}
	for _, rule := range p.Rules {
		if rule.When != "" {
			used[rule.When] = KindFlag
		}
		for _, host := range rule.Hosts {
			if match := inputUse.FindStringSubmatch(host); match != nil {
				used[match[1]] = KindHost
			}
		}
		for _, text := range rule.Paths {
			for _, match := range inputUse.FindAllStringSubmatch(text, -1) {
				if match[1] != "hex32" {
					used[match[1]] = KindRepo
				}
			}
		}
	}
	for name, kind := range used {
		if in, ok := p.Input(name); !ok || in.Kind != kind {
			return fmt.Errorf("input %s of kind %s is used but not declared", quote(name), kind)
		}
	}
	for _, in := range p.Inputs {
		if _, ok := used[in.Name]; !ok {
			return fmt.Errorf("input %s is not used by any rule", in.Name)
		}
	}
	return nil
}

// checkOverrides demands rules for every overridden host, and an override for
// every rule about a host of the floor, which could not do anything otherwise.
func checkOverrides(p *Profile) error {
	var named []egress.Host
	for _, rule := range p.Rules {
		for _, text := range rule.Hosts {
			if host, err := egress.ParseHost(text); err == nil && slices.Contains(denyFloor, host) {
				named = append(named, host)
			}
		}
	}
	for _, host := range named {
		if !slices.Contains(p.Overrides, host) {
			return fmt.Errorf("%s is on the deny floor and not in overrides", host)
		}
	}
	for _, host := range p.Overrides {
		if !slices.Contains(named, host) {
			return fmt.Errorf("overrides has %s, but no rule is about it", host)
		}
	}
	return nil
}
