package sshsig

import (
	"bytes"
	"encoding/base64"
	"errors"
	"fmt"
	"strings"
	"time"

	"golang.org/x/crypto/ssh"
)

// ErrUnknownSigner is a signature of a key that is not listed for it.
var ErrUnknownSigner = errors.New("the signer is not allowed")

// Signers are the entries of an allowed_signers file. The zero value allows nobody.
type Signers struct{ list []signer }

type signer struct {
	principals    string
	key           []byte // in SSH's wire form
	authority     bool   // signs certificates, which are not taken
	namespaces    string // pattern list, "" for any
	after, before time.Time
	line          int
}

// ParseSigners reads the allowed_signers format of ssh-keygen(1), strictly: a
// line that is not understood is an error with its number, since it might be
// meant to restrict. Times without a Z are in the given location.
func ParseSigners(text []byte, local *time.Location) (Signers, error) {
	var s Signers
	n := 0
	for line := range bytes.Lines(text) {
		n++
		entry := strings.TrimSpace(string(line))
		if entry == "" || strings.HasPrefix(entry, "#") {
			continue
		}
		one, err := parseSigner(entry, local)
		if err != nil {
			return Signers{}, fmt.Errorf("line %d: %w", n, err)
		}
		one.line = n
		s.list = append(s.list, one)
	}
	return s, nil
}

// parseSigner reads: principals [options] key-type base64-key [comment].
func parseSigner(entry string, local *time.Location) (signer, error) {
	principals, rest, err := word(entry)
	if err != nil || principals == "" {
		return signer{}, errors.New("principals are missing, or their quote is not closed")
	}
	s := signer{principals: strings.Trim(principals, `"`)}
	first, after, err := word(rest)
	if err != nil {
		return signer{}, err
	}
	if s.key, err = parseKey(first, after); err == nil {
		return s, nil
	}
	kind, encoded, wordErr := word(after)
	if wordErr != nil {
		return signer{}, wordErr
	}
	if s.key, err = parseKey(kind, encoded); err != nil {
		return signer{}, err
	}
	return s, s.setOptions(first, local)
}

// word takes the text up to the next blank outside of double quotes.
func word(s string) (first, rest string, err error) {
	quoted := false
	for i := range len(s) {
		switch {
		case s[i] == '"':
			quoted = !quoted
		case !quoted && (s[i] == ' ' || s[i] == '\t'):
			return s[:i], strings.TrimLeft(s[i:], " \t"), nil
		}
	}
	if quoted {
		return "", "", errors.New("a quote is not closed")
	}
	return s, "", nil
}

func parseKey(kind, rest string) ([]byte, error) {
	encoded, _, _ := strings.Cut(strings.ReplaceAll(rest, "\t", " "), " ")
	blob, err := base64.StdEncoding.DecodeString(encoded)
	if err != nil {
		return nil, errors.New("a key type and a key in base64 are wanted")
	}
	key, err := ssh.ParsePublicKey(blob)
	if err != nil || key.Type() != kind {
		return nil, errors.New("a public key of the type that stands before it is wanted")
	}
	return key.Marshal(), nil
}

func (s *signer) setOptions(text string, local *time.Location) error {
	seen := map[string]bool{}
	for _, option := range splitOptions(text) {
		name, value, hasValue := strings.Cut(option, "=")
		name = strings.ToLower(name)
		quoted := len(value) >= 2 && strings.HasPrefix(value, `"`) && strings.HasSuffix(value, `"`)
		if seen[name] || hasValue != quoted {
			return fmt.Errorf("option %q is given twice, or its value does not stand in quotes", clip(name))
		}
		seen[name] = true
		if err := s.setOption(name, strings.Trim(value, `"`), hasValue, local); err != nil {
			return err
		}
	}
	if !s.after.IsZero() && !s.before.IsZero() && !s.after.Before(s.before) {
		return errors.New("valid-before is not later than valid-after")
	}
	return nil
}

func (s *signer) setOption(name, value string, hasValue bool, local *time.Location) (err error) {
	switch {
	case name == "cert-authority" && !hasValue:
		s.authority = true
	case name == "namespaces" && value != "":
		s.namespaces = value
	case name == "valid-after" && hasValue:
		s.after, err = parseTime(value, local)
	case name == "valid-before" && hasValue:
		s.before, err = parseTime(value, local)
	default:
		return fmt.Errorf("option %q is not known: cert-authority, namespaces, valid-after and valid-before are", clip(name))
	}
	return err
}

// splitOptions cuts at commas outside of quotes.
func splitOptions(text string) []string {
	var options []string
	quoted, start := false, 0
	for i := range len(text) {
		switch {
		case text[i] == '"':
			quoted = !quoted
		case text[i] == ',' && !quoted:
			options, start = append(options, text[start:i]), i+1
		}
	}
	return append(options, text[start:])
}

// parseTime reads YYYYMMDD or YYYYMMDDHHMM[SS], in UTC with a Z at the end.
func parseTime(text string, local *time.Location) (time.Time, error) {
	digits, utc := strings.CutSuffix(text, "Z")
	if utc {
		local = time.UTC
	}
	layout, ok := map[int]string{8: "20060102", 12: "200601021504", 14: "20060102150405"}[len(digits)]
	t, err := time.ParseInLocation(layout, digits, local)
	if !ok || err != nil {
		return t, fmt.Errorf("time %q is not YYYYMMDD or YYYYMMDDHHMM[SS], with or without Z", clip(text))
	}
	return t, nil
}

// Len is how many lines there are.
func (s Signers) Len() int { return len(s.list) }

// Allow returns the principals of the first entry that lets the signature's key
// sign for its namespace at that time. The error says why none does; it wraps
// ErrUnknownSigner.
func (s Signers) Allow(sig *Signature, now time.Time) (principals string, err error) {
	return s.allow(sig, func(string) bool { return true }, now)
}

// AllowAs is Allow for one principal, as "ssh-keygen -Y verify -I" asks for it: only
// entries whose principals match it count.
func (s Signers) AllowAs(sig *Signature, principal string, now time.Time) (principals string, err error) {
	if principal == "" {
		return "", fmt.Errorf("%w: no principal is named", ErrUnknownSigner)
	}
	return s.allow(sig, func(principals string) bool { return matchList(principal, principals) }, now)
}

func (s Signers) allow(sig *Signature, counts func(principals string) bool, now time.Time) (principals string, err error) {
	why := "its key " + sig.Fingerprint() + " is not listed"
	for _, one := range s.list {
		if one.authority || !bytes.Equal(one.key, sig.key.Marshal()) {
			continue
		}
		switch {
		case !counts(one.principals):
			why = fmt.Sprintf("line %d lists its key for %s only", one.line, one.principals)
		case one.namespaces != "" && !matchList(sig.namespace, one.namespaces):
			why = fmt.Sprintf("line %d lists its key for namespaces %s only", one.line, one.namespaces)
		case !one.after.IsZero() && now.Before(one.after):
			why = fmt.Sprintf("line %d lists its key from %s on", one.line, one.after.UTC().Format(time.RFC3339))
		case !one.before.IsZero() && now.After(one.before):
			why = fmt.Sprintf("line %d listed its key until %s", one.line, one.before.UTC().Format(time.RFC3339))
		default:
			return one.principals, nil
		}
	}
	return "", fmt.Errorf("%w: %s", ErrUnknownSigner, why)
}

// Principals returns those of the first entry that lists the key, "" when none does.
func (s Signers) Principals(k Key) (string, error) {
	public, err := k.public()
	if err != nil {
		return "", err
	}
	for _, one := range s.list {
		if !one.authority && bytes.Equal(one.key, public.Marshal()) {
			return one.principals, nil
		}
	}
	return "", nil
}

// matchList matches a list of patterns with * and ? as ssh_config(5) describes
// it: one has to match, and none of those with an exclamation mark may.
func matchList(text, list string) bool {
	matched := false
	for pattern := range strings.SplitSeq(list, ",") {
		bare, negated := strings.CutPrefix(pattern, "!")
		if !matchPattern(text, bare) {
			continue
		}
		if negated {
			return false
		}
		matched = true
	}
	return matched
}

// matchPattern remembers the last star, so that no pattern takes long.
func matchPattern(text, pattern string) bool {
	t, p, star, mark := 0, 0, -1, 0
	for t < len(text) {
		switch {
		case p < len(pattern) && pattern[p] == '*':
			star, mark = p, t
			p++
		case p < len(pattern) && (pattern[p] == '?' || pattern[p] == text[t]):
			t, p = t+1, p+1
		case star >= 0:
			mark++
			t, p = mark, star+1
		default:
			return false
		}
	}
	return strings.Trim(pattern[p:], "*") == ""
}
