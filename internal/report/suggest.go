package report

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/fractalboxdev/sbx/internal/egress"
	"github.com/fractalboxdev/sbx/internal/event"
)

// CodeOverflow is the code of the one row that counts what MaxRows left out.
const CodeOverflow = string(egress.CodeBound)

// Target writes what was asked the way a person would type it: a URL, or
// host:port where the protocol has no paths. Default ports are left out.
func Target(d event.Denial) string {
	host := d.Host
	if strings.Contains(host, ":") && !strings.HasPrefix(host, "[") {
		host = "[" + host + "]"
	}
	if d.Port != 0 && d.Port != defaultPort(d.Protocol) {
		host += ":" + strconv.Itoa(int(d.Port))
	}
	switch d.Protocol {
	case "https", "http":
		return d.Protocol + "://" + host + d.Path
	case "":
		return host + d.Path
	}
	return d.Protocol + "://" + host
}

// Why returns the reason without the request that it may begin with, and
// without a period, for lines that name the request anyway. It is never empty.
func Why(d event.Denial) string {
	why := strings.TrimSuffix(strings.TrimPrefix(d.Reason, asked(d)+": "), ".")
	if why == "" {
		return "refused"
	}
	return why
}

func defaultPort(protocol string) uint16 {
	switch protocol {
	case "https":
		return 443
	case "http":
		return 80
	case "dns":
		return 53
	}
	return 0
}

// Suggest says in one line what would have to be granted for the request to
// pass, or why nothing can grant it. It ends without a period.
func Suggest(d event.Denial) string {
	if s, ok := needsRule(d); ok {
		return s
	}
	if s, ok := needsSetting(d); ok {
		return s
	}
	return "nothing grants this: " + never(egress.Code(d.Code))
}

// needsRule covers the denials that a rule of some profile would turn.
func needsRule(d event.Denial) (string, bool) {
	switch egress.Code(d.Code) {
	case egress.CodeHostNotGranted, egress.CodeProtocol, egress.CodePort, egress.CodeMethod,
		egress.CodePath, egress.CodeRedirect:
		return "a rule for " + asked(d) + nearest(d), true
	case egress.CodeNameNotGranted:
		return "a rule for host " + d.Host, true
	case egress.CodeQuery:
		return "a rule for " + asked(d) + " that names this query" + nearest(d), true
	case egress.CodeConnect:
		return "a tcp rule for " + hostPort(d), true
	case egress.CodeNotTLS, egress.CodeNotHTTP:
		return "a tcp rule for " + hostPort(d) + ", which polices host and port only", true
	case egress.CodeHostFloor:
		return "a profile that overrides the deny floor for " + d.Host + " and has a rule for " + asked(d), true
	}
	return "", false
}

// needsSetting covers the denials that another key of the nearest rule, a flag
// or the environment would turn.
func needsSetting(d event.Denial) (string, bool) {
	rule := d.Rule
	if rule == "" {
		rule = "the rule for " + d.Host
	}
	switch egress.Code(d.Code) {
	case egress.CodeBodyTooLarge:
		return "a larger max_body in " + rule, true
	case egress.CodeBodyNotGranted:
		return "a max_body in " + rule, true
	case egress.CodeBodyAssertion:
		return "another body assertion in " + rule, true
	case egress.CodeUploadBudget:
		return "a larger upload_budget in " + rule, true
	case egress.CodeUpgrade:
		return "websocket = true in " + rule, true
	case egress.CodeAddressRefused:
		return "internal = true in " + rule + ", if " + d.Host + " is meant to lie in an internal network", true
	case egress.CodeSecretMissing:
		return "the secret that " + rule + " requires", true
	}
	if code := egress.Code(d.Code); code.IsBound() && code != egress.CodeBoundPackets {
		return "a higher bound for this run", true
	}
	return "", false
}

// never says why no grant helps.
func never(code egress.Code) string {
	switch code {
	case egress.CodeMalformed:
		return "the request is malformed"
	case egress.CodeAuthorityMismatch:
		return "the request names more than one host"
	case egress.CodePathMalformed:
		return "the path has dot segments, empty segments or a second encoding"
	case egress.CodeBodyEncoding:
		return "the body has a content coding whose decoded size cannot be told; send it without one"
	case egress.CodeRedirectHops:
		return "a chain of redirects has at most five hops"
	case egress.CodeUDP:
		return "UDP never leaves the sandbox; use TCP"
	case egress.CodeICMP:
		return "ICMP never leaves the sandbox"
	case egress.CodeBoundPackets:
		return "UDP and ICMP never leave the sandbox, however many packets there are"
	case egress.CodeGrantNotApplied:
		return "the grant was not applied at that moment"
	case egress.CodeRecordFailed:
		return "the request could not be recorded; look at the disk of the run's directory"
	case egress.CodePlaceholder:
		return "a placeholder was sent outside its slot"
	case egress.CodeSecretEchoed:
		return "the response held the secret that was sent with the request"
	}
	return "sbx knows no grant for code " + string(code)
}

// asked is method and target.
func asked(d event.Denial) string {
	return strings.TrimSpace(d.Method + " " + Target(d))
}

func hostPort(d event.Denial) string {
	return fmt.Sprintf("%s port %d", d.Host, d.Port)
}

func nearest(d event.Denial) string {
	if d.Rule == "" {
		return ""
	}
	return " (nearest: " + d.Rule + ")"
}
