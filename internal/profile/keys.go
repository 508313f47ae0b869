package profile

import (
	"fmt"
	"reflect"
	"regexp"
	"strings"

	"github.com/BurntSushi/toml"
)

// ParseError says what is wrong in a profile file and where.
type ParseError struct {
	File string
	Line int // from 1; 0 when unknown
	What string
	Err  error // the cause, if there is one
}

func (e *ParseError) Error() string {
	if e.Line == 0 {
		return fmt.Sprintf("%s: %s", e.File, e.What)
	}
	return fmt.Sprintf("%s:%d: %s", e.File, e.Line, e.What)
}

func (e *ParseError) Unwrap() error { return e.Err }

// unknownKey makes the error for a key that no profile has, with the nearest one
// that exists at its place.
func unknownKey(text, file string, key toml.Key) error {
	key, nearest := outermostUnknown(key)
	what := fmt.Sprintf("unknown key %s", key)
	if nearest != "" {
		what += fmt.Sprintf(" (did you mean %s?)", nearest)
	}
	return &ParseError{File: file, Line: lineOf(text, key), What: what}
}

// outermostUnknown returns the part of an unknown key that is the one to mend,
// and the nearest key at its place.
func outermostUnknown(key toml.Key) (unknown toml.Key, nearest string) {
	for i := range key {
		if typeAt(key[:i+1]) == nil {
			key = key[:i+1]
			break
		}
	}
	return key, Nearest(key[len(key)-1], knownKeys(key[:len(key)-1]))
}

// typeAt returns the type of a key's value, nil for one that no profile has.
func typeAt(key toml.Key) reflect.Type {
	at := reflect.TypeFor[document]()
	for _, name := range key {
		if at = child(at, name); at == nil {
			return nil
		}
	}
	return at
}

// knownKeys returns the keys that a table has.
func knownKeys(table toml.Key) []string {
	at := typeAt(table)
	if at == nil {
		return nil
	}
	at = element(at)
	if at.Kind() != reflect.Struct {
		return nil
	}
	names := make([]string, 0, at.NumField())
	for field := range at.Fields() {
		names = append(names, field.Tag.Get("toml"))
	}
	return names
}

func child(at reflect.Type, name string) reflect.Type {
	at = element(at)
	if at.Kind() == reflect.Map {
		return at.Elem()
	}
	if at.Kind() != reflect.Struct {
		return nil
	}
	for field := range at.Fields() {
		if field.Tag.Get("toml") == name {
			return field.Type
		}
	}
	return nil
}

// element goes through pointers and slices.
func element(at reflect.Type) reflect.Type {
	for at.Kind() == reflect.Pointer || at.Kind() == reflect.Slice {
		at = at.Elem()
	}
	return at
}

var header = lazily(`^\s*\[\[?\s*([^\]]+?)\s*\]`)

// lineOf finds the line that sets a key: in the table it belongs to, else the
// first line that begins with it or, for inline tables, mentions it.
func lineOf(text string, key toml.Key) int {
	name := regexp.QuoteMeta(key[len(key)-1])
	begins := regexp.MustCompile(`^\s*["']?` + name + `["']?\s*[.=]`)
	mentions := regexp.MustCompile(`(^|[^\w-])["']?` + name + `["']?\s*[.=\]]`)
	table, parent := "", key[:len(key)-1].String()
	first, mention := 0, 0
	for i, line := range strings.Split(text, "\n") {
		if match := header.FindStringSubmatch(line); match != nil {
			table = match[1]
		}
		switch {
		case begins.MatchString(line) && table == parent:
			return i + 1
		case first == 0 && begins.MatchString(line):
			first = i + 1
		case mention == 0 && mentions.MatchString(line):
			mention = i + 1
		}
	}
	if first != 0 {
		return first
	}
	return mention
}
