package egress

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"
)

// maxJSONDepth bounds nesting; no client of a granted interface comes near it.
const maxJSONDepth = 64

// judgeJSON demands one JSON text (RFC 8259) without duplicate keys in which
// every assertion holds.
func judgeJSON(body []byte, contentType string, assertions []JSONAssertion) error {
	if err := checkJSONType(contentType); err != nil {
		return err
	}
	value, err := parseJSON(body)
	if err != nil {
		return err
	}
	for _, a := range assertions {
		found, ok := lookUp(value, a.Pointer)
		text, isText := found.(string)
		if !ok || !isText || !slices.Contains(a.OneOf, text) {
			return fmt.Errorf("%s has to be %s", a.Pointer, strings.Join(a.OneOf, " or "))
		}
	}
	return nil
}

// checkJSONType refuses types under which an origin would read the bytes as something else.
func checkJSONType(contentType string) error {
	kind, params, err := mime.ParseMediaType(contentType)
	if err != nil || kind != "application/json" && !(strings.HasPrefix(kind, "application/") && strings.HasSuffix(kind, "+json")) {
		return errors.New("the content type is not JSON")
	}
	if charset, ok := params["charset"]; ok && !strings.EqualFold(charset, "utf-8") {
		return errors.New("the charset is not UTF-8")
	}
	return nil
}

func parseJSON(body []byte) (any, error) {
	if !utf8.Valid(body) {
		return nil, errors.New("the body is not UTF-8")
	}
	decoder := json.NewDecoder(bytes.NewReader(body))
	decoder.UseNumber()
	value, err := parseValue(decoder, 0)
	if err != nil {
		return nil, err
	}
	if _, err := decoder.Token(); !errors.Is(err, io.EOF) {
		return nil, errors.New("something follows the JSON text")
	}
	return value, nil
}

func parseValue(decoder *json.Decoder, depth int) (any, error) {
	token, err := decoder.Token()
	if err != nil || depth > maxJSONDepth {
		return nil, errors.New("the body is not JSON")
	}
	switch token {
	case json.Delim('{'):
		return parseObject(decoder, depth)
	case json.Delim('['):
		return parseArray(decoder, depth)
	}
	return token, nil
}

// parseObject refuses keys that are equal but for case, too: some origins do not
// tell those apart.
func parseObject(decoder *json.Decoder, depth int) (any, error) {
	object, seen := map[string]any{}, map[string]bool{}
	for decoder.More() {
		token, err := decoder.Token()
		key, isText := token.(string)
		if err != nil || !isText {
			return nil, errors.New("the body is not JSON")
		}
		folded := strings.ToLower(strings.ToUpper(key))
		if seen[folded] {
			return nil, errors.New("an object has a key twice")
		}
		seen[folded] = true
		if object[key], err = parseValue(decoder, depth+1); err != nil {
			return nil, err
		}
	}
	return object, closeDelim(decoder)
}

func parseArray(decoder *json.Decoder, depth int) (any, error) {
	array := []any{}
	for decoder.More() {
		value, err := parseValue(decoder, depth+1)
		if err != nil {
			return nil, err
		}
		array = append(array, value)
	}
	return array, closeDelim(decoder)
}

func closeDelim(decoder *json.Decoder) error {
	if _, err := decoder.Token(); err != nil {
		return errors.New("the body is not JSON")
	}
	return nil
}

// lookUp follows a JSON pointer (RFC 6901).
func lookUp(value any, pointer string) (any, bool) {
	if pointer == "" {
		return value, true
	}
	for name := range strings.SplitSeq(strings.TrimPrefix(pointer, "/"), "/") {
		name = strings.NewReplacer("~1", "/", "~0", "~").Replace(name)
		switch at := value.(type) {
		case map[string]any:
			next, ok := at[name]
			if !ok {
				return nil, false
			}
			value = next
		case []any:
			i, err := strconv.Atoi(name)
			if err != nil || i < 0 || i >= len(at) || strconv.Itoa(i) != name {
				return nil, false
			}
			value = at[i]
		default:
			return nil, false
		}
	}
	return value, true
}
