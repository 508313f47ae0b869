package floor

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
	"unicode/utf8"
)

// Namespace keeps signatures of attestations apart from all others (OpenSSH's
// PROTOCOL.sshsig).
const Namespace = "sbx-attestation-v1"

// How long an attestation holds.
const (
	DefaultLifetime = 15 * time.Minute
	MaxLifetime     = time.Hour
)

// MaxSkew is how far the clocks of who approves and who runs may be apart.
const MaxSkew = 2 * time.Minute

// Attestation is a person's consent to one run of one irreversible command. It
// says nothing before its signature is checked.
type Attestation struct {
	TaskID        string // of what the run is a part of; with Ordinal it is spent once per store
	Ordinal       int    // from 0 on
	CommandSHA256 string // of Text of the command, in hexadecimal
	ApprovedBy    string // a principal of the signer
	ApprovedAt    time.Time
	ExpiresAt     time.Time
	Rules         []string // of the floor list
	Nonce         string
	Audience      string // id of the store that spends it
	Sandbox       string // key of the sandbox, "" for one that the run makes
	GrantDigest   string // in hexadecimal
	Workdir       string // absolute, without symbolic links
	Position      string // "" for enforce
}

// timeLayout is RFC 3339 in UTC, to the second.
const timeLayout = "2006-01-02T15:04:05Z"

// ErrMalformed is a text that is no attestation.
var ErrMalformed = errors.New("not a well-formed attestation")

func malformed(format string, args ...any) error {
	return fmt.Errorf("%w: %s", ErrMalformed, fmt.Sprintf(format, args...))
}

// fields are the attestation's keys in their order.
func (a Attestation) fields() []field {
	rules := make([]any, len(a.Rules))
	for i, rule := range a.Rules {
		rules[i] = rule
	}
	all := []field{
		{"approvedAt", a.ApprovedAt.UTC().Format(timeLayout)},
		{"approvedBy", a.ApprovedBy},
		{"audience", a.Audience},
		{"commandSha256", a.CommandSHA256},
		{"expiresAt", a.ExpiresAt.UTC().Format(timeLayout)},
		{"grantDigest", a.GrantDigest},
		{"nonce", a.Nonce},
		{"ordinal", a.Ordinal},
		{"position", a.Position},
		{"rules", rules},
		{"sandbox", a.Sandbox},
		{"taskId", a.TaskID},
		{"workdir", a.Workdir},
	}
	return slices.DeleteFunc(all, func(f field) bool { return f.key == "position" && a.Position == "" })
}

// Encode writes the attestation in its only form: one JSON object on one line,
// keys sorted, no blanks, nothing escaped that need not be (RFC 8785).
func (a Attestation) Encode() ([]byte, error) {
	if err := a.check(); err != nil {
		return nil, err
	}
	return append(appendObject(nil, a.fields()), '\n'), nil
}

// Parse reads what Encode writes, with or without the line's end, and nothing else:
// no other order, no unknown, missing or repeated key.
func Parse(text []byte) (Attestation, error) {
	a, err := decode(text)
	if err != nil {
		return Attestation{}, err
	}
	if err := a.check(); err != nil {
		return Attestation{}, err
	}
	want := string(appendObject(nil, a.fields()))
	if got := strings.TrimSuffix(string(text), "\n"); got != want {
		return Attestation{}, malformed("it is not in canonical form: one line, keys sorted, no blanks, each key once, as \"jq -cS\" writes it")
	}
	return a, nil
}

// check looks at each field by itself, and at the times together.
func (a Attestation) check() error {
	for _, c := range []struct {
		key, value string
		most       int
		good       func(rune) bool
	}{
		{"taskId", a.TaskID, 128, graphic},
		{"commandSha256", a.CommandSHA256, 64, hexadecimal},
		{"approvedBy", a.ApprovedBy, 256, graphic},
		{"nonce", a.Nonce, 128, graphic},
		{"audience", a.Audience, 128, graphic},
		{"grantDigest", a.GrantDigest, 64, hexadecimal},
		{"workdir", a.Workdir, 4096, func(c rune) bool { return c != 0 }},
	} {
		if c.value == "" || len(c.value) > c.most || !all(c.value, c.good) {
			return malformed("%s is missing, too long, or has characters that it may not have", c.key)
		}
	}
	switch {
	case len(a.CommandSHA256) != 64 || len(a.GrantDigest) != 64:
		return malformed("a SHA-256 has 64 hexadecimal digits")
	case len(a.Nonce) < minNonce:
		return malformed("nonce has fewer than %d characters", minNonce)
	case a.Ordinal < 0 || a.Ordinal > maxOrdinal:
		return malformed("ordinal is not from 0 to %d", maxOrdinal)
	case len(a.Sandbox) > 63 || !all(a.Sandbox, graphic):
		return malformed("sandbox is no key of a sandbox")
	case a.Workdir[0] != '/':
		return malformed("workdir is not absolute")
	case !slices.Contains([]string{"", "enforce", "report", "legacy"}, a.Position):
		return malformed("position is none of enforce, report, legacy")
	}
	if err := a.checkRules(); err != nil {
		return err
	}
	return a.checkTimes()
}

// Bounds of fields.
const (
	minNonce   = 16
	maxOrdinal = 1<<31 - 1
	maxRules   = 64
)

func (a Attestation) checkRules() error {
	if len(a.Rules) == 0 || len(a.Rules) > maxRules {
		return malformed("rules has none or more than %d", maxRules)
	}
	for i, rule := range a.Rules {
		if rule == "" || len(rule) > 64 || !all(rule, func(c rune) bool { return c == ' ' || graphic(c) }) || slices.Contains(a.Rules[:i], rule) {
			return malformed("rules has one twice, or one that is no rule")
		}
	}
	return nil
}

func (a Attestation) checkTimes() error {
	switch lifetime := a.ExpiresAt.Sub(a.ApprovedAt); {
	case lifetime <= 0:
		return malformed("expiresAt is not later than approvedAt")
	case lifetime > MaxLifetime:
		return malformed("it holds for %s, which is longer than %s", lifetime, MaxLifetime)
	}
	return nil
}

func all(s string, good func(rune) bool) bool {
	return utf8.ValidString(s) && strings.IndexFunc(s, func(c rune) bool { return !good(c) }) < 0
}

func graphic(c rune) bool { return c > ' ' && c <= '~' }

func hexadecimal(c rune) bool { return c >= '0' && c <= '9' || c >= 'a' && c <= 'f' }

// Uncovered returns the rules that the attestation does not name.
func (a Attestation) Uncovered(matched []string) []string {
	var missing []string
	for _, rule := range matched {
		if !slices.Contains(a.Rules, rule) {
			missing = append(missing, rule)
		}
	}
	return missing
}
