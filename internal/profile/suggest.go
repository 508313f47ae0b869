package profile

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/fractalboxdev/sbx/internal/egress"
)

// Seen is a denied request as a record has it. Every field may be hostile text.
type Seen struct {
	Protocol, Host, Method, Path string
	Port                         uint16
	Code                         string
	Rule                         string // the rule that came nearest
	Count                        int
}

// maxSuggested bounds the rules of a draft: what nobody can review is no draft.
const maxSuggested = 300

// maxSkipped bounds the comments about what is left out.
const maxSkipped = 200

// maxSeenPath is where a recorded path may have been cut, in bytes.
const maxSeenPath = 480

// suggestedBody is the cap of a drafted POST, PUT or PATCH, in bytes: records do
// not have the size of a refused body.
const suggestedBody = "64KiB"

// errDraft is a draft that does what it must not; it is a fault of this package.
var errDraft = errors.New("the draft is not what was seen")

// Suggest drafts a profile that allows the requests that were seen, and nothing
// else: same scheme, host, port, method and path, no wildcard, no credential.
// What it leaves out stands in comments, with the reason. The draft is checked:
// it has no lint findings. Without any request to allow the text is comments.
func Suggest(name string, seen []Seen) (string, error) {
	if !CustomName(name) {
		return "", &Refusal{Code: CodeUnknownProfile, Subject: name, Detail: "the name of a custom profile begins with " + customPrefix + ", then lower-case letters, digits and hyphens"}
	}
	shapes, skipped := sift(seen)
	d := draft{name: name}
	d.write(shapes, skipped)
	if len(shapes) == 0 {
		return d.text.String(), nil
	}
	if found := Lint(d.text.String(), "the draft", true); len(found) > 0 {
		return "", fmt.Errorf("checking the draft: %w: %s", errDraft, found[0])
	}
	return d.text.String(), nil
}

// shape is one request that can be granted as it was seen.
type shape struct {
	protocol egress.Protocol
	host     egress.Host
	port     uint16
	method   string
	path     string // percent-encoded, as a literal pattern
	encoded  bool   // has an encoded slash
	count    int
}

type skip struct{ request, why string }

// sift turns rows into shapes, each once, sorted, and says why others are none.
func sift(seen []Seen) ([]shape, []skip) {
	var shapes []shape
	var skipped []skip
	for _, s := range seen {
		sh, err := s.shape()
		if err != nil {
			skipped = append(skipped, skip{s.describe(), err.Error()})
			continue
		}
		if i := slices.IndexFunc(shapes, sh.same); i >= 0 {
			shapes[i].count += sh.count
			continue
		}
		if len(shapes) == maxSuggested {
			skipped = append(skipped, skip{s.describe(), fmt.Sprintf("a draft has at most %d requests", maxSuggested)})
			continue
		}
		shapes = append(shapes, sh)
	}
	slices.SortStableFunc(shapes, func(a, b shape) int {
		return cmp.Or(
			strings.Compare(a.host.String(), b.host.String()), cmp.Compare(a.port, b.port), cmp.Compare(a.protocol, b.protocol),
			strings.Compare(a.method, b.method), strings.Compare(a.path, b.path),
		)
	})
	return shapes, skipped
}

func (s shape) same(t shape) bool {
	t.count = s.count
	return s == t
}

func (s Seen) describe() string {
	text := s.Method + " " + s.Protocol + "://" + s.Host
	if s.Port != 0 {
		text += fmt.Sprintf(":%d", s.Port)
	}
	return text + s.Path
}

// shape vets a row. Nothing of it is trusted: it was written down while hostile
// code ran, and may have been edited since.
func (s Seen) shape() (shape, error) {
	if err := s.grantable(); err != nil {
		return shape{}, err
	}
	sh := shape{port: s.Port, method: s.Method, count: s.Count}
	var err error
	if sh.protocol, err = egress.ParseProtocol(s.Protocol); err != nil || sh.protocol == egress.ProtocolTCP {
		return shape{}, errors.New("only https and http have rules with paths; whether host and port are enough is for a person to say")
	}
	if sh.host, err = egress.ParseHost(s.Host); err != nil {
		return shape{}, errors.New("the host is malformed")
	}
	if _, raw := sh.host.Addr(); raw {
		return shape{}, errors.New("it went to a raw IP address: let the program use the name")
	}
	if slices.Contains(denyFloor, sh.host) {
		return shape{}, errors.New("the host is on the deny floor: a person has to write the override")
	}
	if !slices.Contains(knownMethods, s.Method) {
		return shape{}, errors.New("the method is not known")
	}
	if sh.port == 0 {
		sh.port = sh.protocol.DefaultPort()
	}
	sh.path, sh.encoded, err = literalPath(s.Path)
	return sh, err
}

// grantable refuses what a rule for host, method and path would not grant, or
// would grant more widely than it was asked.
func (s Seen) grantable() error {
	switch egress.Code(s.Code) {
	case egress.CodeHostNotGranted, egress.CodeProtocol, egress.CodePort, egress.CodeMethod, egress.CodePath, egress.CodeRedirect:
		return nil
	case egress.CodeHostFloor:
		return errors.New("the host is on the deny floor: a person has to write the override")
	case egress.CodeQuery:
		return errors.New("the rule that came nearest wants a certain query, and queries are not recorded")
	case egress.CodeBodyTooLarge, egress.CodeBodyNotGranted, egress.CodeBodyAssertion, egress.CodeUploadBudget:
		return errors.New("it was the body that was refused: whether more is wanted is for a person to say")
	case egress.CodeNameNotGranted:
		return errors.New("the name was only looked up, nothing was asked of it")
	case egress.CodeUpgrade:
		return errors.New("it wanted a WebSocket: whether what it carries need not be judged is for a person to say")
	case egress.CodeConnect, egress.CodeNotTLS, egress.CodeNotHTTP:
		return errors.New("it cannot be intercepted: whether host and port are enough is for a person to say")
	}
	return errors.New("no rule grants it")
}

// literalPath returns the pattern that matches a recorded path and no other.
func literalPath(path string) (pattern string, encoded bool, err error) {
	switch {
	case strings.Contains(path, "?"):
		return "", false, errors.New("it has a query, which may hold credentials")
	case len(path) >= maxSeenPath:
		return "", false, errors.New("the path may have been cut when it was recorded")
	}
	parsed, _, err := egress.ParseTarget(path)
	if err != nil || parsed.Raw() != path {
		return "", false, errors.New("the path is malformed")
	}
	if odd := parsed.Odd(); odd != "" {
		return "", false, errors.New("the path is refused: " + odd)
	}
	pattern = strings.NewReplacer("*", "%2A", "{", "%7B", "}", "%7D").Replace(path)
	encoded = strings.Contains(strings.ToLower(pattern), "%2f")
	literal, err := egress.ParsePathPattern(pattern, encoded)
	if err != nil || !literal.Matches(parsed) {
		return "", false, errors.New("the path cannot be written as a pattern")
	}
	return pattern, encoded, nil
}

// draft writes TOML. Only vetted text reaches values, and all of it is quoted.
type draft struct {
	name  string
	text  strings.Builder
	rules int
}

func (d *draft) line(format string, args ...any) { fmt.Fprintf(&d.text, format+"\n", args...) }

func (d *draft) write(shapes []shape, skipped []skip) {
	d.line("# A draft from what one run was denied: to be read, cut down and approved by a person.")
	d.line("# It allows the very requests that were seen, whatever their query.")
	for _, s := range skipped[:min(len(skipped), maxSkipped)] {
		d.line("# left out: %s: %s", comment(s.request), comment(s.why))
	}
	if more := len(skipped) - maxSkipped; more > 0 {
		d.line("# and %d more are left out", more)
	}
	if len(shapes) == 0 {
		d.line("# Nothing is left to be granted.")
		return
	}
	d.line("\n[profiles.%s]\nversion = 1\nsummary = %s", d.name, tomlString(fmt.Sprintf("drafted from %d denied requests", total(shapes))))
	for i := 0; i < len(shapes); {
		n := i + 1
		for n < len(shapes) && shapes[i].together(shapes[n]) {
			n++
		}
		d.rule(shapes[i:n], shapes)
		i = n
	}
}

func total(shapes []shape) int {
	n := 0
	for _, s := range shapes {
		n += max(1, s.count)
	}
	return n
}

// together reports whether two shapes differ in their path alone, so that one
// rule with both paths allows no more than both.
func (s shape) together(t shape) bool {
	t.path, t.count = s.path, s.count
	return s == t
}

func (d *draft) rule(of, all []shape) {
	s := of[0]
	d.line("\n[[profiles.%s.rules]]", d.name)
	d.rules++
	d.line("id = %s", tomlString(fmt.Sprintf("seen-%d", d.rules)))
	d.line("host = %s", tomlString(s.host.String()))
	if s.protocol != egress.ProtocolHTTPS {
		d.line("protocol = %s", tomlString(s.protocol.String()))
	}
	if s.port != s.protocol.DefaultPort() {
		d.line("ports = [%d]", s.port)
	}
	d.line("methods = [%s]", tomlString(s.method))
	d.list("path", of, func(s shape) string { return s.path })
	if s.encoded {
		d.line("encoded_slash = true")
	}
	length := ""
	if slices.Contains([]string{"POST", "PUT", "PATCH"}, s.method) {
		d.line("max_body = %s # a guess: the sizes of refused bodies are not recorded", tomlString(suggestedBody))
		length = " length=1"
	}
	base := s.method + " " + s.protocol.String() + "://" + s.host.InURL()
	if s.port != s.protocol.DefaultPort() {
		base += fmt.Sprintf(":%d", s.port)
	}
	d.list("allow", of, func(s shape) string { return base + s.path + length })
	d.line("deny = [%s]", tomlString(base+unseen(s, all)+length))
}

func (d *draft) list(key string, of []shape, text func(shape) string) {
	d.line("%s = [", key)
	for _, s := range of {
		d.line("  %s,", tomlString(text(s)))
	}
	d.line("]")
}

// unseen is a path below the shape's own that was not asked for.
func unseen(s shape, all []shape) string {
	path := longer(s.path)
	for slices.ContainsFunc(all, func(t shape) bool { return t.path == path }) {
		path += "x"
	}
	return path
}

// tomlString writes a basic string (TOML 1.0): printable ASCII as it is, all else
// as \uXXXX or \UXXXXXXXX.
func tomlString(s string) string {
	var b strings.Builder
	b.WriteByte('"')
	for _, c := range s {
		switch {
		case c == '"' || c == '\\':
			b.WriteByte('\\')
			b.WriteRune(c)
		case c >= ' ' && c < 0x7f:
			b.WriteRune(c)
		case c > 0xffff:
			fmt.Fprintf(&b, `\U%08X`, c)
		default:
			fmt.Fprintf(&b, `\u%04X`, c)
		}
	}
	b.WriteByte('"')
	return b.String()
}

// comment makes a text of one line of printable ASCII, at most 600 bytes.
func comment(s string) string {
	quoted := quote(s[:min(len(s), 600)])
	return quoted[1 : len(quoted)-1]
}
