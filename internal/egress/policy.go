package egress

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/fractalboxdev/sbx/internal/coding"
)

// Policy is a compiled set of rules, indexed by host. It is immutable and safe
// for concurrent use; nil denies everything at the gate.
type Policy struct {
	exact    map[string][]*Rule // by Host.String
	wildcard map[string][]*Rule // by the name under the star
	floor    map[string]struct{}
	profiles string // names for reasons, as in "js-install and cf-api"
}

// Compile checks and indexes rules. Hosts on the deny floor are refused, but for
// rules with OverridesFloor.
func Compile(rules []Rule, denyFloor []Host) (*Policy, error) {
	p := &Policy{
		exact:    make(map[string][]*Rule),
		wildcard: make(map[string][]*Rule),
		floor:    make(map[string]struct{}),
	}
	for i := range rules {
		rule, err := prepare(rules[i])
		if err != nil {
			return nil, fmt.Errorf("compiling rule %s: %w", rules[i].ID, err)
		}
		index := p.exact
		if rule.Host.wildcard {
			index = p.wildcard
		}
		index[rule.Host.host.text] = append(index[rule.Host.host.text], rule)
	}
	for _, index := range []map[string][]*Rule{p.exact, p.wildcard} {
		for _, list := range index {
			slices.SortStableFunc(list, widerFirst)
		}
	}
	for _, h := range denyFloor {
		p.floor[h.text] = struct{}{}
		p.exact[h.text] = slices.DeleteFunc(p.exact[h.text], func(r *Rule) bool { return !r.OverridesFloor })
	}
	p.profiles = profileNames(rules)
	return p, nil
}

// widerFirst makes the union of rules on one host hold without asking each for
// the body: what asserts nothing and takes larger bodies comes first.
func widerFirst(a, b *Rule) int {
	if a.Body.Asserts() != b.Body.Asserts() {
		if a.Body.Asserts() {
			return 1
		}
		return -1
	}
	return cmp.Compare(b.MaxBody, a.MaxBody)
}

// prepare returns a copy with defaults filled in, or says what is missing.
func prepare(r Rule) (*Rule, error) {
	if r.ID == "" || r.Host.host.IsZero() {
		return nil, errors.New("a rule needs an id and a host")
	}
	if _, exact := r.Host.Exact(); r.OverridesFloor && !exact {
		return nil, errors.New("a wildcard cannot override the deny floor")
	}
	r = r.Clone()
	if port := r.Protocol.DefaultPort(); len(r.Ports) == 0 && port != 0 {
		r.Ports = []uint16{port}
	}
	slices.Sort(r.Ports)
	if len(r.Ports) == 0 || r.Ports[0] == 0 {
		return nil, errors.New("a rule needs ports")
	}
	switch {
	case r.Protocol == ProtocolNone:
		return nil, errors.New("a rule needs a protocol")
	case r.Protocol == ProtocolTCP || r.Tunnel:
		return prepareOpaque(r)
	}
	return prepareHTTP(r)
}

func prepareOpaque(r Rule) (*Rule, error) {
	if r.Tunnel && r.Protocol != ProtocolHTTPS {
		return nil, errors.New("only https can be tunnelled")
	}
	if len(r.Methods) > 0 || r.Path.text != "" || len(r.Query) > 0 || r.Body.Asserts() || r.Credential != "" {
		return nil, errors.New("what is not intercepted has neither methods, path, query, body nor credential")
	}
	return &r, nil
}

func prepareHTTP(r Rule) (*Rule, error) {
	if len(r.Methods) == 0 || r.Path.text == "" {
		return nil, errors.New("a rule needs methods and a path")
	}
	for _, m := range r.Methods {
		if m == "" || m == "CONNECT" || strings.Trim(m, "ABCDEFGHIJKLMNOPQRSTUVWXYZ-") != "" {
			return nil, fmt.Errorf("method %q cannot be granted", m)
		}
	}
	if r.MaxBody < 0 {
		return nil, errors.New("max_body is negative")
	}
	return &r, nil
}

func profileNames(rules []Rule) string {
	var names []string
	for i := range rules {
		name, _, _ := strings.Cut(rules[i].ID, "/")
		if !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	if len(names) < 2 {
		return strings.Join(names, "")
	}
	last := len(names) - 1
	return strings.Join(names[:last], ", ") + " or " + names[last]
}

// GrantsHost reports whether some rule is about the host and the deny floor is not.
func (p *Policy) GrantsHost(h Host) bool {
	if p == nil || h.IsZero() {
		return false
	}
	exact, wild := p.rulesFor(h)
	return len(exact)+len(wild) > 0
}

// HostAllowance returns the widest allowance of the rules about a host.
func (p *Policy) HostAllowance(h Host) AddressAllowance {
	widest := AllowPublic
	if !p.GrantsHost(h) {
		return widest
	}
	exact, wild := p.rulesFor(h)
	for _, rules := range [2][]*Rule{exact, wild} {
		for _, r := range rules {
			widest = max(widest, r.Allowance())
		}
	}
	return widest
}

// Unopened returns a rule that lets connections to a host through without looking
// inside, on any port; nil for none.
func (p *Policy) Unopened(h Host) *Rule {
	if p == nil || h.IsZero() {
		return nil
	}
	exact, wild := p.rulesFor(h)
	for _, rules := range [2][]*Rule{exact, wild} {
		if i := slices.IndexFunc(rules, opaque); i >= 0 {
			return rules[i]
		}
	}
	return nil
}

// CredentialPorts returns the ports of a host to which rules send a credential, sorted.
func (p *Policy) CredentialPorts(h Host, credential string) []uint16 {
	if p == nil || h.IsZero() {
		return nil
	}
	var ports []uint16
	exact, wild := p.rulesFor(h)
	for _, rules := range [2][]*Rule{exact, wild} {
		for _, r := range rules {
			if r.Credential == credential {
				ports = append(ports, r.Ports...)
			}
		}
	}
	slices.Sort(ports)
	return slices.Compact(ports)
}

// rulesFor returns the rules about a host; no wildcard reaches the deny floor.
func (p *Policy) rulesFor(h Host) (exact, wild []*Rule) {
	if p.onFloor(h) {
		return p.exact[h.text], nil
	}
	return p.exact[h.text], p.wildcard[parentOf(h)]
}

func (p *Policy) onFloor(h Host) bool {
	_, found := p.floor[h.text]
	return found
}

// Decide judges one request, in the order gate, protocol, port, method, path,
// query, body length; a request passes when one rule lets it pass. Of several rules
// that take a body whose size only shows later, the one that takes most counts. A connection
// that is to be relayed unseen is judged as ProtocolTCP, which only rules for tcp
// and tunnels allow; a decrypted request is never allowed by those. A rule with
// body assertions allows a request subject to DecideBody.
func (p *Policy) Decide(req Request) Decision {
	return p.decide(&req, nil)
}

// DecideBody judges a request again with its whole body, as received, against
// all rules that would take it: the decision that counts when Decide allowed it
// by a rule with body assertions. req.BodyLength is taken from body.
func (p *Policy) DecideBody(req Request, body []byte, contentEncoding, contentType string) Decision {
	req.BodyLength = int64(len(body))
	return p.decide(&req, &bodyInput{body: body, encoding: contentEncoding, contentType: contentType})
}

func (p *Policy) gateCode(h Host) Code {
	if p.onFloor(h) {
		return CodeHostFloor
	}
	return CodeHostNotGranted
}

type bodyInput struct {
	body                  []byte
	encoding, contentType string

	tried int64 // the limit up to which it was decoded, plus 1
	size  int64 // decoded, as far as it was
	err   error // why it cannot be
}

// fits reports whether the body is decoded to at most limit bytes.
func (b *bodyInput) fits(limit int64) error {
	if len(b.body) == 0 {
		return nil
	}
	if b.tried == 0 || b.err == nil && b.size >= b.tried && limit >= b.tried {
		b.tried = limit + 1
		b.size, b.err = coding.Size(b.body, coding.Parse(b.encoding), limit)
	}
	if b.err == nil && b.size > limit {
		return errBodySize
	}
	return b.err
}

func (p *Policy) decide(req *Request, body *bodyInput) Decision {
	if p == nil {
		return gateDenial(req, CodeHostNotGranted, "")
	}
	if !p.GrantsHost(req.Host) {
		return gateDenial(req, p.gateCode(req.Host), p.profiles)
	}
	exact, wild := p.rulesFor(req.Host)
	best, open := attempt{}, body == nil && (req.BodyLength < 0 || req.Coded && req.BodyLength > 0)
	var widest *Rule
	for _, rules := range [2][]*Rule{exact, wild} {
		for _, rule := range rules {
			try := judge(rule, req, body)
			if try.code == CodeAllowed && open {
				if widest == nil || rule.takesMore(widest, req.Method) {
					widest = rule
				}
				continue
			}
			if try.code == CodeAllowed {
				return Decision{Verdict: Allow, Stage: StageHandler, Code: CodeAllowed, Rule: rule}
			}
			if try.depth > best.depth {
				best = try
			}
		}
	}
	if widest != nil {
		return Decision{Verdict: Allow, Stage: StageHandler, Code: CodeAllowed, Rule: widest}
	}
	return handlerDenial(req, best)
}

// attempt says how far one rule went along with a request.
type attempt struct {
	rule   *Rule
	code   Code
	depth  int
	detail string
}

func judge(rule *Rule, req *Request, body *bodyInput) attempt {
	code, depth := judgeHead(rule, req)
	if code != CodeAllowed || opaque(rule) {
		return attempt{rule: rule, code: code, depth: depth}
	}
	limit := rule.BodyCap(req.Method)
	switch {
	case req.BodyLength != 0 && limit == 0:
		return attempt{rule: rule, code: CodeBodyNotGranted, depth: 6}
	case req.BodyLength > limit:
		return attempt{rule: rule, code: CodeBodyTooLarge, depth: 7}
	case body == nil || limit == 0:
	case rule.Body.Asserts(): // which no body does not fulfil
		code, detail := rule.JudgeBody(body.body, body.encoding, body.contentType)
		return attempt{rule: rule, code: code, depth: 8, detail: detail}
	default:
		if err := body.fits(limit); err != nil {
			return attempt{rule: rule, code: bodyCode(err), depth: 7, detail: err.Error()}
		}
	}
	return attempt{rule: rule, code: CodeAllowed}
}

// takesMore reports whether a body of any size that other lets pass fits r as well,
// and fewer of them have to be asked for what they say.
func (r *Rule) takesMore(other *Rule, method string) bool {
	mine, its := r.BodyCap(method), other.BodyCap(method)
	return mine > its || mine == its && other.Body.Asserts() && !r.Body.Asserts()
}

func opaque(rule *Rule) bool { return rule.Tunnel || rule.Protocol == ProtocolTCP }

// judgeHead returns the first check that fails, and its depth from 1.
func judgeHead(rule *Rule, req *Request) (Code, int) {
	seen := rule.Protocol
	if rule.Tunnel {
		seen = ProtocolTCP
	}
	switch {
	case req.Protocol != seen || seen == ProtocolNone:
		return CodeProtocol, 1
	case !slices.Contains(rule.Ports, req.Port):
		return CodePort, 2
	case opaque(rule):
		return CodeAllowed, 0
	case !rule.allowsMethod(req.Method):
		return CodeMethod, 3
	case req.Path.odd != "" && !rule.OddPaths:
		return CodePathMalformed, 4
	case !rule.Path.Matches(req.Path):
		return CodePath, 4
	}
	for i := range rule.Query {
		if !req.Query.Has(rule.Query[i].Key, rule.Query[i].Value) {
			return CodeQuery, 5
		}
	}
	return CodeAllowed, 0
}
