package profile

import (
	"fmt"
	"strconv"
	"strings"
)

// document is the TOML form of a profile file.
type document struct {
	Profiles map[string]*profileDoc `toml:"profiles"`
}

type profileDoc struct {
	Version     int                       `toml:"version"`
	Summary     string                    `toml:"summary"`
	Overrides   []string                  `toml:"overrides"` // hosts of the deny floor, sockets that give away more than the rules
	Inputs      map[string]*inputDoc      `toml:"inputs"`
	Env         map[string]string         `toml:"env"`
	Caches      []cacheDoc                `toml:"caches"`
	Credentials map[string]*credentialDoc `toml:"credentials"`
	Rules       []ruleDoc                 `toml:"rules"`
	// Left out of the digest where they are: profiles without them keep theirs.
	Class   string   `toml:"class" json:",omitempty"`
	Require []string `toml:"require" json:",omitempty"` // limits without which nothing runs
	// Sockets of the host that the command may connect to.
	UnixSockets []string `toml:"unix_sockets" json:",omitempty"`
}

type inputDoc struct {
	Kind     string   `toml:"kind"` // repo, host, flag
	Summary  string   `toml:"summary"`
	Required bool     `toml:"required"`
	Many     bool     `toml:"many"`    // several values, separated by commas
	Match    []string `toml:"match"`   // for hosts: the patterns a value has to match one of
	Env      string   `toml:"env"`     // variable that may give the value
	Example  string   `toml:"example"` // value for checking the examples of rules
}

type cacheDoc struct {
	Name string `toml:"name"`
	Path string `toml:"path"`
	Env  string `toml:"env"`
}

type credentialDoc struct {
	Env         string   `toml:"env"`
	File        string   `toml:"file"`
	Command     []string `toml:"command"`
	Host        string   `toml:"host"`
	Header      string   `toml:"header"`
	Template    string   `toml:"template"`
	Basic       bool     `toml:"basic"`
	Username    string   `toml:"username"`
	QueryKey    string   `toml:"query_key"`
	Required    bool     `toml:"required"`
	Placeholder string   `toml:"placeholder"`
}

type ruleDoc struct {
	ID           string            `toml:"id"`
	Summary      string            `toml:"summary"`
	When         string            `toml:"when"` // name of a flag that has to be set
	Protocol     stringList        `toml:"protocol"`
	Host         stringList        `toml:"host"`
	Ports        []uint16          `toml:"ports"`
	Methods      []string          `toml:"methods"`
	Path         stringList        `toml:"path"`
	Query        map[string]string `toml:"query"`
	MaxBody      byteSize          `toml:"max_body"`
	Body         bodyDoc           `toml:"body"`
	Headers      string            `toml:"headers"`
	Cookies      bool              `toml:"cookies"`
	Redirects    string            `toml:"redirects"`
	Credential   string            `toml:"credential"`
	Internal     bool              `toml:"internal"`
	WebSocket    bool              `toml:"websocket"`
	TLS          string            `toml:"tls"`
	UploadBudget budgetDoc         `toml:"upload_budget"`
	EncodedSlash bool              `toml:"encoded_slash"`
	OddPaths     bool              `toml:"odd_paths"`
	Allow        []string          `toml:"allow"`
	Deny         []string          `toml:"deny"`
}

type bodyDoc struct {
	JSON []jsonDoc `toml:"json"`
	Git  string    `toml:"git"`
}

type jsonDoc struct {
	Pointer string   `toml:"pointer"`
	Equals  string   `toml:"equals"`
	OneOf   []string `toml:"one_of"`
}

type budgetDoc struct {
	Bytes    byteSize `toml:"bytes"`
	Requests int64    `toml:"requests"`
}

// stringList is one string or a list of strings.
type stringList []string

// UnmarshalTOML takes a string or an array of strings.
func (l *stringList) UnmarshalTOML(value any) error {
	switch v := value.(type) {
	case string:
		*l = stringList{v}
		return nil
	case []any:
		for _, item := range v {
			text, ok := item.(string)
			if !ok {
				return fmt.Errorf("a list of strings has a %T", item)
			}
			*l = append(*l, text)
		}
		return nil
	}
	return fmt.Errorf("a string or a list of strings is wanted, not %T", value)
}

// byteSize is a number of bytes, as an integer or as text like "256KiB" or "16MiB".
type byteSize int64

// UnmarshalTOML takes an integer or text with a unit.
func (s *byteSize) UnmarshalTOML(value any) error {
	switch v := value.(type) {
	case int64:
		*s = byteSize(v)
		return checkSize(v)
	case string:
		return s.parse(v)
	}
	return fmt.Errorf("a number of bytes is wanted, not %T", value)
}

func (s *byteSize) parse(text string) error {
	for unit, factor := range map[string]int64{"KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30} {
		digits, ok := strings.CutSuffix(text, unit)
		if !ok {
			continue
		}
		n, err := strconv.ParseInt(digits, 10, 32)
		if err != nil {
			return fmt.Errorf("size %q is not a number and a unit", text)
		}
		*s = byteSize(n * factor)
		return checkSize(n)
	}
	return fmt.Errorf("size %q needs one of the units KiB, MiB, GiB", text)
}

func checkSize(n int64) error {
	if n < 0 {
		return fmt.Errorf("size %d is negative", n)
	}
	return nil
}
