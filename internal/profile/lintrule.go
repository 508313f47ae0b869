package profile

import (
	"fmt"
	"net/url"
	"slices"
	"strings"

	"golang.org/x/net/publicsuffix"

	"github.com/fractalboxdev/sbx/internal/egress"
)

// ruleLint checks one rule.
type ruleLint struct {
	*linter
	profile *Profile
	doc     *ruleDoc
	index   int
}

func (r ruleLint) say(check Check, key, format string, args ...any) {
	r.sayNearest(check, key, "", format, args...)
}

func (r ruleLint) sayNearest(check Check, key, nearest, format string, args ...any) {
	r.add(Finding{
		Line: r.at.rule(r.profile.Name, r.index, key), Profile: r.profile.Name, Rule: r.doc.ID,
		Check: check, Message: fmt.Sprintf(format, args...), Nearest: nearest,
	})
}

// opaque reports whether only host and port are policed.
func (r ruleLint) opaque() bool {
	return r.doc.TLS == "tunnel" || slices.Contains(r.doc.Protocol, "tcp")
}

// build adds the rule to the profile, or says why it cannot be built.
func (r ruleLint) build() bool {
	rule, err := r.doc.build(r.profile)
	switch {
	case slices.Contains(r.doc.Host, "*"):
		r.say(CheckWildcard, "host", "a bare * is every host there is: name the hosts")
		return false
	case err != nil && len(r.doc.Allow) == 0 && strings.Contains(err.Error(), "in allow is missing"):
		// said by examples
		return false
	case err != nil:
		r.say(CheckDefinition, "id", "%v", err)
		return false
	case slices.ContainsFunc(r.profile.Rules, func(have Rule) bool { return have.ID == rule.ID }):
		r.say(CheckDefinition, "id", "the id is used twice")
		return false
	}
	r.profile.Rules = append(r.profile.Rules, rule)
	return true
}

// check is everything about a rule that its being built does not prove.
func (r ruleLint) check(f filling) {
	r.examplesPresent()
	r.hosts()
	if !r.opaque() {
		r.methods()
		r.bodies()
		r.paths(f)
	}
	i := slices.IndexFunc(r.profile.Rules, func(have Rule) bool { return have.ID == r.doc.ID })
	if i < 0 || !r.opaque() && (len(r.doc.Methods) == 0 || len(r.doc.Path) == 0) {
		return // does not compile, which was said
	}
	r.compiled(r.profile.Rules[i], f)
}

func (r ruleLint) examplesPresent() {
	if len(r.doc.Allow) == 0 {
		r.say(CheckExamples, "id", "no example in allow shows what the rule is for")
	}
	if len(r.doc.Deny) == 0 {
		r.say(CheckExamples, "id", "no example in deny shows where the rule ends")
	}
}

func (r ruleLint) hosts() {
	for _, text := range r.doc.Host {
		pattern, err := egress.ParseHostPattern(text)
		if err != nil {
			continue // an input, a registry, or said by compiling
		}
		base, wildcard := strings.CutPrefix(pattern.String(), "*.")
		if !wildcard {
			r.address(pattern)
			continue
		}
		if suffix, _ := publicsuffix.PublicSuffix(base); suffix == base {
			r.say(CheckPublicSuffix, "host", "%s covers names that anybody can register, since %s is a public suffix: name the hosts", text, base)
		}
		if !r.namesApex(base) {
			r.say(CheckApex, "host", "%s does not match %s itself: add it to host, or a deny example such as %q to say so", text, base, "GET https://"+base+"/")
		}
		for _, floor := range denyFloor {
			if pattern.Matches(floor) {
				r.say(CheckFloor, "host", "%s does not reach %s, which is on the deny floor: no wildcard does", text, floor)
			}
		}
	}
}

// address reports literals that no connection may go to.
func (r ruleLint) address(pattern egress.HostPattern) {
	host, _ := pattern.Exact()
	if name := host.String(); name == "localhost" || strings.HasSuffix(name, ".localhost") {
		r.say(CheckNever, "host", "%s is the loopback of the sandbox, which never passes the proxy", name)
	}
	addr, ok := host.Addr()
	if !ok {
		return
	}
	allowance := egress.AllowPublic
	if r.doc.Internal {
		allowance = egress.AllowInternal
	}
	if err := egress.CheckAddress(addr, allowance); err != nil {
		r.say(CheckNever, "host", "no connection goes to %s: %v", host, err)
	}
}

// namesApex reports whether the profile says anything about the name under a star.
func (r ruleLint) namesApex(base string) bool {
	for _, rule := range r.profile.Rules {
		if slices.ContainsFunc(rule.Hosts, func(h string) bool { return sameHost(h, base) }) {
			return true
		}
	}
	return slices.ContainsFunc(r.doc.Deny, func(example string) bool {
		words := wordsOf(example)
		return len(words) > 0 && sameHost(hostOf(words[min(1, len(words)-1)]), base)
	})
}

// wordsOf splits an example where examples are split: other white space than a blank is
// part of a path.
func wordsOf(example string) []string {
	return strings.FieldsFunc(example, func(c rune) bool { return c == ' ' })
}

func sameHost(text, base string) bool {
	host, err := egress.ParseHost(text)
	return err == nil && host.String() == base
}

// hostOf returns the host of a URL or of host:port.
func hostOf(text string) string {
	if req, err := egress.ParseURL(text); err == nil {
		return req.Host.String()
	}
	host, _, _ := egress.ParseAuthority(text, 0)
	return host.String()
}

// knownMethods are those of RFC 9110 and RFC 5789, of WebDAV (RFC 4918, RFC 3253,
// RFC 5323), and QUERY.
var knownMethods = []string{
	"GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS", "PATCH", "TRACE", "QUERY", "PROPFIND", "PROPPATCH", "MKCOL", "COPY", "MOVE",
	"LOCK", "UNLOCK", "REPORT", "SEARCH", "MKACTIVITY", "CHECKOUT", "MERGE", "PURGE",
}

func (r ruleLint) methods() {
	if len(r.doc.Methods) == 0 {
		r.say(CheckMethod, "methods", "methods are missing")
	}
	for _, m := range r.doc.Methods {
		switch {
		case slices.Contains(knownMethods, m):
		case slices.Contains(knownMethods, strings.ToUpper(m)):
			r.sayNearest(CheckMethod, "methods", strings.ToUpper(m), "method %s never occurs: methods are case-sensitive", quote(m))
		case m == "CONNECT":
			r.say(CheckMethod, "methods", "CONNECT cannot be granted: every connection is judged by what it carries")
		default:
			r.sayNearest(CheckMethod, "methods", Nearest(strings.ToUpper(m), knownMethods), "method %s is not known", quote(m))
		}
	}
}

// bodies checks that caps and methods go together, as switches of a pair do.
func (r ruleLint) bodies() {
	withBody := 0
	for _, m := range r.doc.Methods {
		if hasBody(m) {
			withBody++
		}
		if slices.Contains([]string{"POST", "PUT", "PATCH"}, m) && r.doc.MaxBody == 0 {
			r.say(CheckBody, "methods", "%s without max_body: a body has to be capped, and without a cap none is let pass", m)
		}
	}
	if withBody > 0 || len(r.doc.Methods) == 0 {
		r.webSocket()
		return
	}
	for key, set := range map[string]bool{
		"max_body": r.doc.MaxBody > 0, "body": len(r.doc.Body.JSON) > 0 || r.doc.Body.Git != "",
		"upload_budget": r.doc.UploadBudget.Bytes > 0,
	} {
		if set {
			r.say(CheckNever, key, "%s has no effect: none of the methods has a body", key)
		}
	}
	r.webSocket()
}

func hasBody(method string) bool {
	return !slices.Contains([]string{"GET", "HEAD", "DELETE", "OPTIONS", "TRACE"}, method)
}

func (r ruleLint) webSocket() {
	if r.doc.WebSocket && !slices.Contains(r.doc.Methods, "GET") {
		r.say(CheckNever, "websocket", "websocket has no effect without the method GET, with which every WebSocket begins")
	}
}

func (r ruleLint) paths(f filling) {
	if len(r.doc.Path) == 0 {
		r.say(CheckPath, "path", `a path is missing: "/**" is any`)
	}
	exact, shown := "", false
	for _, text := range r.doc.Path {
		if strings.Contains(strings.TrimSuffix(text, "/**"), "**") {
			r.say(CheckPrefix, "path", "%s: ** stands for whole segments and only at the end, as in %s", quote(text), quote(wholeSegments(text)))
			continue
		}
		for _, filled := range f.fill(text) {
			pattern, err := egress.ParsePathPattern(filled, r.doc.EncodedSlash)
			if err != nil {
				r.say(CheckPath, "path", "%v", err)
				break
			}
			if !pattern.EndsOpen() {
				exact, shown = text, shown || r.showsEnd(filled, pattern)
			}
		}
	}
	if exact != "" && !shown {
		r.say(CheckPrefix, "path", "%s matches itself alone and is no prefix: write %s for what is below it, or add a deny example such as %q to say so",
			quote(exact), quote(strings.TrimSuffix(exact, "/")+"/**"), "GET "+longer(f.fill(exact)[0]))
	}
}

// wholeSegments is what a pattern with a star in the wrong place probably means.
func wholeSegments(text string) string {
	before, _, _ := strings.Cut(text, "*")
	return strings.TrimSuffix(before, "/") + "/**"
}

// longer is a path that a prefix would match as well.
func longer(path string) string {
	if strings.HasSuffix(path, "/") {
		return path + "x"
	}
	return path + "/x"
}

// showsEnd reports whether some deny example is a path that a prefix would match
// as well: one below it, or one whose last segment goes on.
func (r ruleLint) showsEnd(exact string, pattern egress.PathPattern) bool {
	below, err := egress.ParsePathPattern(strings.TrimSuffix(exact, "/")+"/**", r.doc.EncodedSlash)
	if err != nil {
		return false // what is below an exact path can be written
	}
	return slices.ContainsFunc(r.doc.Deny, func(example string) bool {
		words := wordsOf(example)
		if len(words) < 2 {
			return false
		}
		target := words[1]
		if req, err := egress.ParseURL(target); err == nil {
			target = req.Path.Raw()
		}
		path, _, err := egress.ParseTarget(target)
		if err != nil || pattern.Matches(path) {
			return false
		}
		return below.Matches(path) || strings.HasPrefix(path.Raw(), exact)
	})
}

// compiled judges the examples, and for each thing that the rule expands to one
// request that it has to allow if it is to allow any.
func (r ruleLint) compiled(rule Rule, f filling) {
	results, err := runExamples(rule, f)
	if err != nil {
		r.say(CheckDefinition, "id", "%v", err)
		return
	}
	for _, e := range results {
		if e.Reason != "" {
			r.add(Finding{
				Line: r.at.example(r.profile.Name, r.index, e.List, e.Text), Profile: r.profile.Name, Rule: rule.ID,
				Check: CheckExamples, Message: fmt.Sprintf("example %s in %s fails: %s", quote(e.Text), e.List, e.Reason),
			})
		}
	}
	r.assertions(rule)
	expanded, err := f.expand(rule)
	if err != nil {
		return // runExamples did the same before
	}
	for _, e := range expanded {
		if d, err := judgeWitness(e); err != nil || d.Verdict != egress.Allow {
			r.say(CheckNever, "id", "it can never match: %s", failure(d, egress.Allow, err))
			return
		}
	}
}

// judgeWitness judges the plainest request that a rule is about.
func judgeWitness(rule egress.Rule) (egress.Decision, error) {
	policy, err := egress.Compile([]egress.Rule{rule}, denyFloor)
	if err != nil {
		return egress.Decision{}, err
	}
	req, err := witness(rule)
	return policy.Decide(req), err
}

// witness makes the plainest request that a rule is about, without a body.
func witness(rule egress.Rule) (egress.Request, error) {
	req := egress.Request{Protocol: rule.Protocol, Host: rule.Host.Witness(), Port: rule.Protocol.DefaultPort()}
	if len(rule.Ports) > 0 {
		req.Port = slices.Min(rule.Ports)
	}
	if rule.Tunnel || rule.Protocol == egress.ProtocolTCP {
		req.Protocol = egress.ProtocolTCP
		return req, nil
	}
	req.Method = rule.Methods[0]
	query := url.Values{}
	for _, q := range rule.Query {
		query.Add(q.Key, q.Value)
	}
	target := rule.Path.Witness()
	if len(query) > 0 {
		target += "?" + query.Encode()
	}
	var err error
	req.Path, req.Query, err = egress.ParseTarget(target)
	return req, err
}

// assertions reports those that contradict one another.
func (r ruleLint) assertions(rule Rule) {
	list := rule.Permission.Body.JSON
	for i, a := range list {
		for _, b := range list[:i] {
			switch {
			case a.Pointer == b.Pointer && !slices.ContainsFunc(a.OneOf, func(v string) bool { return slices.Contains(b.OneOf, v) }):
				r.say(CheckNever, "body", "no body passes: %s cannot have two values", a.Pointer)
			case strings.HasPrefix(a.Pointer, b.Pointer+"/") || strings.HasPrefix(b.Pointer, a.Pointer+"/"):
				r.say(CheckNever, "body", "no body passes: %s and %s cannot both be texts", b.Pointer, a.Pointer)
			}
		}
	}
}
