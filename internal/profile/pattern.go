package profile

import (
	"regexp"
	"sync"
)

// pattern is a regular expression that is compiled at its first use. Every sbx
// process would pay for it at start, and most never need one.
type pattern struct {
	compiled func() *regexp.Regexp
}

func lazily(text string) pattern {
	return pattern{compiled: sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(text) })}
}

func (p pattern) MatchString(s string) bool { return p.compiled().MatchString(s) }

func (p pattern) FindStringSubmatch(s string) []string { return p.compiled().FindStringSubmatch(s) }

func (p pattern) FindAllStringSubmatch(s string, n int) [][]string {
	return p.compiled().FindAllStringSubmatch(s, n)
}
