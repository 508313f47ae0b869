package floor

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strconv"
	"time"
)

// field is a key with its value: a string, an int, or a list of strings.
type field struct {
	key   string
	value any
}

func appendObject(b []byte, fields []field) []byte {
	b = append(b, '{')
	for i, f := range fields {
		if i > 0 {
			b = append(b, ',')
		}
		b = append(appendString(b, f.key), ':')
		b = appendValue(b, f.value)
	}
	return append(b, '}')
}

func appendValue(b []byte, value any) []byte {
	switch v := value.(type) {
	case int:
		return strconv.AppendInt(b, int64(v), 10)
	case []any:
		b = append(b, '[')
		for i, item := range v {
			if i > 0 {
				b = append(b, ',')
			}
			b = appendValue(b, item)
		}
		return append(b, ']')
	case string:
		return appendString(b, v)
	}
	panic(fmt.Sprintf("bug: a %T in an attestation", value))
}

// appendString escapes what RFC 8785 section 3.2.2.2 says and nothing more. The
// standard library's encoder escapes U+2028 and U+2029 as well.
func appendString(b []byte, s string) []byte {
	b = append(b, '"')
	for i := range len(s) {
		switch c := s[i]; {
		case c == '"' || c == '\\':
			b = append(b, '\\', c)
		case c >= ' ':
			b = append(b, c)
		case bytes.IndexByte([]byte("\b\t\n\f\r"), c) >= 0:
			b = append(b, '\\', map[byte]byte{'\b': 'b', '\t': 't', '\n': 'n', '\f': 'f', '\r': 'r'}[c])
		default:
			b = fmt.Appendf(b, `\u%04x`, c)
		}
	}
	return append(b, '"')
}

// decode reads the fields; whether they stood there in the only form, the caller
// finds out by writing them again.
func decode(text []byte) (Attestation, error) {
	var raw struct {
		ApprovedAt    string   `json:"approvedAt"`
		ApprovedBy    string   `json:"approvedBy"`
		Audience      string   `json:"audience"`
		CommandSHA256 string   `json:"commandSha256"`
		ExpiresAt     string   `json:"expiresAt"`
		GrantDigest   string   `json:"grantDigest"`
		Nonce         string   `json:"nonce"`
		Ordinal       int      `json:"ordinal"`
		Position      string   `json:"position"`
		Rules         []string `json:"rules"`
		Sandbox       string   `json:"sandbox"`
		TaskID        string   `json:"taskId"`
		Workdir       string   `json:"workdir"`
	}
	decoder := json.NewDecoder(bytes.NewReader(text))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(&raw); err != nil {
		return Attestation{}, fmt.Errorf("%w: %w", ErrMalformed, err)
	}
	a := Attestation{
		TaskID: raw.TaskID, Ordinal: raw.Ordinal, CommandSHA256: raw.CommandSHA256, ApprovedBy: raw.ApprovedBy, Rules: raw.Rules,
		Nonce: raw.Nonce, Audience: raw.Audience, Sandbox: raw.Sandbox, GrantDigest: raw.GrantDigest, Workdir: raw.Workdir, Position: raw.Position,
	}
	var err error
	if a.ApprovedAt, err = time.Parse(timeLayout, raw.ApprovedAt); err != nil {
		return a, malformed("approvedAt is not a time in UTC to the second, as in %s", timeLayout)
	}
	if a.ExpiresAt, err = time.Parse(timeLayout, raw.ExpiresAt); err != nil {
		return a, malformed("expiresAt is not a time in UTC to the second, as in %s", timeLayout)
	}
	return a, nil
}
