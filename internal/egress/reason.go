package egress

import (
	"fmt"
	"strings"
	"unicode/utf8"
)

func gateDenial(req *Request, code Code, profiles string) Decision {
	why := "host is on the deny floor"
	if code == CodeHostNotGranted {
		why = "host is not granted: no profile is in force"
		if profiles != "" {
			why = "host is not granted by " + profiles
		}
	}
	return Decision{Stage: StageGate, Code: code, Reason: Describe(*req) + ": " + why}
}

func handlerDenial(req *Request, best attempt) Decision {
	return Decision{
		Stage:   StageHandler,
		Code:    best.code,
		Nearest: best.rule.ID,
		Reason:  Describe(*req) + ": " + complaint(req, best),
	}
}

func complaint(req *Request, best attempt) string {
	rule, id := best.rule, best.rule.ID
	switch best.code {
	case CodeProtocol:
		return fmt.Sprintf("%s is not granted, %s grants %s", req.Protocol, id, protocolText(rule))
	case CodePort:
		return fmt.Sprintf("port %d is not granted, %s grants %s", req.Port, id, portsText(rule.Ports))
	case CodeMethod:
		return fmt.Sprintf("method is not granted, %s grants %s", id, strings.Join(rule.Methods, ", "))
	case CodePathMalformed:
		return "path is refused: " + req.Path.odd
	case CodePath:
		return fmt.Sprintf("path is not granted, %s grants %s", id, rule.Path)
	case CodeQuery:
		return fmt.Sprintf("query is not granted, %s wants exactly one %s", id, queryText(rule.Query))
	case CodeBodyNotGranted:
		return fmt.Sprintf("a body is not granted by %s", id)
	case CodeBodyTooLarge:
		return fmt.Sprintf("body is too large, %s grants %d bytes", id, rule.BodyCap(req.Method))
	}
	return fmt.Sprintf("body is not granted by %s: %s", id, best.detail)
}

func protocolText(rule *Rule) string {
	if rule.Tunnel {
		return "a tunnel"
	}
	return rule.Protocol.String()
}

func portsText(ports []uint16) string {
	return strings.Trim(strings.ReplaceAll(fmt.Sprint(ports), " ", ", "), "[]")
}

func queryText(query []QueryMatch) string {
	texts := make([]string, len(query))
	for i, q := range query {
		texts[i] = q.Key + "=" + q.Value
	}
	return strings.Join(texts, " and ")
}

// Describe names a request for people, as in "GET https://api.test/v1": without
// the query, default ports left out, control characters escaped.
func Describe(req Request) string {
	var b strings.Builder
	if req.Method != "" {
		b.WriteString(CleanPath(req.Method) + " ")
	}
	b.WriteString(req.Protocol.String() + "://" + req.Host.InURL())
	if req.Port != req.Protocol.DefaultPort() {
		fmt.Fprintf(&b, ":%d", req.Port)
	}
	b.WriteString(CleanPath(req.Path.raw))
	return b.String()
}

// maxRecordedPath bounds paths in records, in bytes (semantics of denial events).
const maxRecordedPath = 512

// CleanPath returns text of a request as records show it: at most 512 bytes,
// everything but printable ASCII escaped as \xNN.
func CleanPath(s string) string {
	if len(s) <= maxRecordedPath && isPrintable(s) {
		return s
	}
	var b strings.Builder
	for i := range len(s) {
		width := 1
		if !printable(s[i]) {
			width = 4
		}
		if b.Len()+width > maxRecordedPath {
			break
		}
		if width == 1 {
			b.WriteByte(s[i])
		} else {
			fmt.Fprintf(&b, `\x%02x`, s[i])
		}
	}
	return b.String()
}

func isPrintable(s string) bool {
	for i := range len(s) {
		if !printable(s[i]) {
			return false
		}
	}
	return true
}

func printable(c byte) bool { return c > ' ' && c < utf8.RuneSelf && c != 0x7f }
