package proxy

import "fmt"

// Position says what becomes of a request that the policy would refuse.
type Position uint8

// Enforce refuses it. Report records what Enforce would have done and forwards it
// untouched. Legacy forwards everything and only logs. Malformed requests and
// internal addresses are refused in every position.
const (
	Enforce Position = iota
	Report
	Legacy
)

// String returns enforce, report or legacy.
func (p Position) String() string {
	switch p {
	case Enforce:
	case Report:
		return "report"
	case Legacy:
		return "legacy"
	}
	return "enforce"
}

// ParsePosition reads what String writes; "" is Enforce.
func ParsePosition(text string) (Position, error) {
	for _, p := range []Position{Enforce, Report, Legacy} {
		if text == p.String() || text == "" {
			return p, nil
		}
	}
	return Enforce, fmt.Errorf("parsing position %q: one of enforce, report, legacy is wanted", text)
}
