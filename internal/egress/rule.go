// Package egress judges requests against the rules of a grant: pure functions
// without I/O or clock, whose zero value denies.
package egress

import (
	"fmt"
	"slices"
	"strings"
)

// Protocol is the kind of traffic that a rule is about. The zero value matches nothing.
type Protocol uint8

// The protocols of rules and requests.
const (
	ProtocolNone Protocol = iota
	ProtocolHTTPS
	ProtocolHTTP
	ProtocolTCP
)

// HeaderMode says which request headers travel upstream.
type HeaderMode uint8

// HeadersMinimal passes a short list of headers; HeadersPreserve passes all but
// hop-by-hop, credential-bearing and override headers.
const (
	HeadersMinimal HeaderMode = iota
	HeadersPreserve
)

// RedirectMode says who follows a granted redirect.
type RedirectMode uint8

// RedirectPass hands a judged 3xx to the client; RedirectFollow lets the proxy
// follow it, at most five hops.
const (
	RedirectPass RedirectMode = iota
	RedirectFollow
)

// String returns the name used in profiles and records: https, http, tcp or none.
func (p Protocol) String() string {
	switch p {
	case ProtocolHTTPS:
		return "https"
	case ProtocolHTTP:
		return "http"
	case ProtocolTCP:
		return "tcp"
	case ProtocolNone:
	}
	return "none"
}

// ParseProtocol reads what String writes; "none" and everything else is an error.
func ParseProtocol(s string) (Protocol, error) {
	for _, p := range []Protocol{ProtocolHTTPS, ProtocolHTTP, ProtocolTCP} {
		if s == p.String() {
			return p, nil
		}
	}
	return ProtocolNone, fmt.Errorf("parsing protocol %q: one of https, http, tcp is wanted", clip(s))
}

// MarshalText writes String.
func (p Protocol) MarshalText() ([]byte, error) { return []byte(p.String()), nil }

// DefaultPort returns 443 for https, 80 for http and 0 for everything else.
func (p Protocol) DefaultPort() uint16 {
	switch p {
	case ProtocolHTTPS:
		return 443
	case ProtocolHTTP:
		return 80
	case ProtocolTCP, ProtocolNone:
	}
	return 0
}

// MarshalText writes minimal or preserve.
func (m HeaderMode) MarshalText() ([]byte, error) {
	if m == HeadersPreserve {
		return []byte("preserve"), nil
	}
	return []byte("minimal"), nil
}

// MarshalText writes pass or follow.
func (m RedirectMode) MarshalText() ([]byte, error) {
	if m == RedirectFollow {
		return []byte("follow"), nil
	}
	return []byte("pass"), nil
}

// Endpoint is one address of a registry: where its clients really ask.
type Endpoint struct {
	Protocol Protocol
	Host     Host
	Port     uint16
	BasePath string // without trailing slash; rule paths are relative to it
}

// QueryMatch is a key that must occur exactly once with the given value.
type QueryMatch struct {
	Key   string `json:"key"`
	Value string `json:"value"`
}

// JSONAssertion says that the value at a JSON pointer (RFC 6901) must be one of OneOf.
type JSONAssertion struct {
	Pointer string   `json:"pointer"`
	OneOf   []string `json:"one_of"`
}

// BodyRule is what must hold for a buffered request body. Its zero value asserts nothing.
type BodyRule struct {
	JSON []JSONAssertion `json:"json,omitempty"`
	Git  string          `json:"git,omitempty"` // "upload-pack": only ls-refs and fetch commands
}

// Asserts reports whether the body has to be buffered and judged.
func (b BodyRule) Asserts() bool { return len(b.JSON) > 0 || b.Git != "" }

// Budget bounds what a rule may send upstream in one run. Zero fields are unlimited.
type Budget struct {
	Bytes    int64 `json:"bytes,omitempty"`
	Requests int64 `json:"requests,omitempty"`
}

// Rule is one reviewed permission. Rules are immutable once compiled into a Policy.
type Rule struct {
	ID             string       `json:"id"` // "profile/rule"; shared by what one reviewed rule expands to (paths, endpoints)
	Protocol       Protocol     `json:"protocol"`
	Host           HostPattern  `json:"host"`
	Ports          []uint16     `json:"ports,omitempty"`   // sorted; never empty after Compile
	Methods        []string     `json:"methods,omitempty"` // upper case; HEAD is implied by GET
	Path           PathPattern  `json:"path"`
	Query          []QueryMatch `json:"query,omitempty"`
	MaxBody        int64        `json:"max_body,omitempty"` // bytes; 0 forbids a body
	Body           BodyRule     `json:"body,omitzero"`
	Headers        HeaderMode   `json:"headers"`
	Cookies        bool         `json:"cookies,omitempty"`
	Redirects      RedirectMode `json:"redirects"`
	Credential     string       `json:"credential,omitempty"` // "profile/credential", "" for none
	Internal       bool         `json:"internal,omitempty"`   // host may resolve to private addresses
	Registry       bool         `json:"registry,omitempty"`   // host comes from a registry endpoint: private and documentation ranges, nothing nearer
	WebSocket      bool         `json:"websocket,omitempty"`
	Tunnel         bool         `json:"tunnel,omitempty"` // tls = "tunnel": host, port and SNI are all that is policed
	UploadBudget   Budget       `json:"upload_budget,omitzero"`
	EncodedSlash   bool         `json:"encoded_slash,omitempty"`   // %2F counts as part of its segment
	OddPaths       bool         `json:"odd_paths,omitempty"`       // dot and empty segments are allowed and matched literally
	OverridesFloor bool         `json:"overrides_floor,omitempty"` // reaches its exact host although that is on the deny floor
}

// Clone returns a copy that shares nothing with r that could change.
func (r Rule) Clone() Rule {
	r.Ports = slices.Clone(r.Ports)
	r.Methods = slices.Clone(r.Methods)
	r.Query = slices.Clone(r.Query)
	r.Body.JSON = slices.Clone(r.Body.JSON)
	for i := range r.Body.JSON {
		r.Body.JSON[i].OneOf = slices.Clone(r.Body.JSON[i].OneOf)
	}
	return r
}

// BodyCap returns how many body bytes, encoded and decoded alike, a request with
// this method may carry; 0 forbids a body.
func (r *Rule) BodyCap(method string) int64 {
	switch method {
	case "GET", "HEAD", "DELETE":
		return 0
	}
	return r.MaxBody
}

// allowsMethod implies HEAD where GET is. Methods are case-sensitive (RFC 9110 section 9.1).
func (r *Rule) allowsMethod(method string) bool {
	return slices.Contains(r.Methods, method) || method == "HEAD" && slices.Contains(r.Methods, "GET")
}

// Request is one request in the only form that is ever compared with rules.
type Request struct {
	Protocol   Protocol
	Host       Host
	Port       uint16
	Method     string
	Path       Path
	Query      Query
	BodyLength int64 // declared bytes; 0 none, -1 unknown
	Coded      bool  // the body has a content coding: it may be decoded to more than BodyLength
}

// Verdict is the outcome of judging. The zero value denies.
type Verdict uint8

// The verdicts.
const (
	Deny Verdict = iota
	Allow
)

// Stage is the place where a request dies: gate or handler.
type Stage uint8

// StageGate answers 520 without a body; StageHandler answers 403 naming only the rule or code.
const (
	StageGate Stage = iota
	StageHandler
)

// Decision is a verdict with its reason. The zero value is a denial at the gate.
type Decision struct {
	Verdict Verdict
	Stage   Stage
	Code    Code   // always set by Decide
	Rule    *Rule  // the rule that allows, nil when denied
	Nearest string // id of the rule that came closest, when denied at the handler
	Reason  string // one sentence for people: what was asked and what is missing
}

// Code names a reason. The list is closed.
type Code string

// The reason codes of decisions, in the order of judging.
const (
	CodeAllowed           Code = "allowed"
	CodeMalformed         Code = "malformed-request"
	CodeAuthorityMismatch Code = "authority-mismatch"
	CodeAddressRefused    Code = "address-refused"
	CodeHostFloor         Code = "host-on-deny-floor"
	CodeHostNotGranted    Code = "host-not-granted"
	CodeGrantNotApplied   Code = "grant-not-applied"
	CodeProtocol          Code = "protocol-not-granted"
	CodePort              Code = "port-not-granted"
	CodeMethod            Code = "method-not-granted"
	CodePathMalformed     Code = "path-refused"
	CodePath              Code = "path-not-granted"
	CodeQuery             Code = "query-not-granted"
	CodeBodyTooLarge      Code = "body-too-large"
	CodeBodyNotGranted    Code = "body-not-granted"
	CodeBodyEncoding      Code = "body-encoding"
	CodeBodyAssertion     Code = "body-assertion"
	CodeUploadBudget      Code = "upload-budget"
	CodeRedirect          Code = "redirect-not-granted"
	CodeRedirectHops      Code = "redirect-hops"
	CodeUpgrade           Code = "upgrade-not-granted"
	CodeConnect           Code = "connect-not-granted"
	CodeNotTLS            Code = "not-tls"
	CodeNotHTTP           Code = "not-http"
	CodeNameNotGranted    Code = "name-ungranted"
	CodeUDP               Code = "udp-refused"
	CodeICMP              Code = "icmp-refused"
	CodeRecordFailed      Code = "record-failed"
	CodeBound             Code = "bound-reached" // of the report itself: the rest is only counted
	CodeBoundConnections  Code = "bound-connections"
	CodeBoundStreams      Code = "bound-streams"
	CodeBoundHeads        Code = "bound-heads"
	CodeBoundBodies       Code = "bound-bodies"
	CodeBoundResponses    Code = "bound-responses"
	CodeBoundLeaves       Code = "bound-certificates"
	CodeBoundNames        Code = "bound-names"
	CodeBoundRows         Code = "bound-rows"
	CodeBoundDestinations Code = "bound-destinations"
	CodeBoundPackets      Code = "bound-packets" // of the kernel's queue: what it had no room for is only counted
	CodeSecretMissing     Code = "credential-missing"
	CodePlaceholder       Code = "placeholder-misplaced"
	CodeSecretEchoed      Code = "credential-echoed"
)

// IsBound reports whether the code says that a bound of the run was reached.
func (c Code) IsBound() bool { return strings.HasPrefix(string(c), "bound-") }

// AddressAllowance says which special addresses a rule's host may resolve to.
type AddressAllowance uint8

// AllowPublic is the default; AllowRegistry adds private and documentation
// ranges; AllowInternal adds everything but metadata and unspecified addresses.
const (
	AllowPublic AddressAllowance = iota
	AllowRegistry
	AllowInternal
)

// Allowance returns what the rule permits its host to resolve to.
func (r *Rule) Allowance() AddressAllowance {
	switch {
	case r.Internal:
		return AllowInternal
	case r.Registry:
		return AllowRegistry
	}
	return AllowPublic
}
