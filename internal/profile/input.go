package profile

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/fractalboxdev/sbx/internal/egress"
)

// InputKind is the pattern of an input's values.
type InputKind string

// The kinds of inputs: owner/name of a repository, a host name, true or false.
const (
	KindRepo InputKind = "repo"
	KindHost InputKind = "host"
	KindFlag InputKind = "flag"
)

// Input is what a profile wants to be told.
type Input struct {
	Name     string               `json:"name"`
	Kind     InputKind            `json:"kind"`
	Summary  string               `json:"summary"`
	Required bool                 `json:"required,omitempty"`
	Many     bool                 `json:"many,omitempty"`  // several values, separated by commas
	Match    []egress.HostPattern `json:"match,omitempty"` // hosts: a value has to match one, unless empty
	Env      string               `json:"env,omitempty"`   // variable that may give the value
	Example  string               `json:"example,omitempty"`
}

// repoValue is owner/name as hosts of repositories write it.
var repoValue = lazily(`^[A-Za-z0-9](?:[A-Za-z0-9-]{0,38})/[A-Za-z0-9._-]{1,100}$`)

// values vets a value and returns what it stands for; flags that are false give none.
func (in Input) values(value string) ([]string, error) {
	parts := []string{value}
	if in.Many {
		parts = strings.Split(value, ",")
	}
	var vetted []string
	for _, part := range parts {
		v, err := in.vet(part)
		if err != nil {
			return nil, err
		}
		if v != "" && !slices.Contains(vetted, v) {
			vetted = append(vetted, v)
		}
	}
	return vetted, nil
}

func (in Input) vet(value string) (string, error) {
	switch in.Kind {
	case KindRepo:
		return vetRepo(value)
	case KindHost:
		return in.vetHost(value)
	case KindFlag:
		switch value {
		case "true":
			return value, nil
		case "false":
			return "", nil
		}
		return "", errors.New("true or false is wanted")
	}
	return "", fmt.Errorf("inputs of kind %q are not known", in.Kind)
}

func vetRepo(value string) (string, error) {
	_, name, _ := strings.Cut(value, "/")
	if !repoValue.MatchString(value) || name == "." || name == ".." {
		return "", errors.New("owner/name is wanted")
	}
	if strings.HasSuffix(strings.ToLower(name), ".git") {
		return "", errors.New("owner/name without .git is wanted")
	}
	return value, nil
}

func (in Input) vetHost(value string) (string, error) {
	host, err := egress.ParseHost(value)
	if err != nil || strings.HasSuffix(value, ".") {
		return "", errors.New("one exact host name is wanted, without scheme, port and wildcard")
	}
	if _, isAddr := host.Addr(); isAddr || !strings.Contains(host.String(), ".") {
		return "", errors.New("a host name with a domain is wanted")
	}
	if slices.Contains(DenyFloor(), host) {
		return "", errors.New("the host is on the deny floor")
	}
	if len(in.Match) > 0 && !slices.ContainsFunc(in.Match, func(p egress.HostPattern) bool { return p.Matches(host) }) {
		return "", fmt.Errorf("a host that matches %s is wanted", joinPatterns(in.Match))
	}
	return host.String(), nil
}

func joinPatterns(patterns []egress.HostPattern) string {
	texts := make([]string, len(patterns))
	for i, p := range patterns {
		texts[i] = p.String()
	}
	return strings.Join(texts, " or ")
}
