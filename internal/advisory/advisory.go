// Package advisory has the operator's signed word on which versions of sbx may still
// be relied on. Values only.
package advisory

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/mod/semver"
)

// Advisory is the content of the signed file.
type Advisory struct {
	MinSupported  string    `json:"min_supported"`  // older versions are unsupported; "" for none
	LostBelow     string    `json:"lost_below"`     // the floor of older versions is known not to hold; "" for none
	ComponentOnly bool      `json:"component_only"` // it concerns a part that health does not speak for, as the action
	Issued        time.Time `json:"issued"`
	Expires       time.Time `json:"expires"`
	Serial        int64     `json:"serial"` // grows with every advisory
}

// State is what an advisory says about one version.
type State string

// The states. None does not block; Unknown leaves a deployment unverified.
const (
	None        State = "none"
	Supported   State = "supported"
	Unsupported State = "unsupported"
	Component   State = "component-only" // it would be unsupported, but the advisory concerns a part
	Unknown     State = "unknown"
)

// Parse reads an advisory strictly: keys that are unknown, in other case or there twice,
// versions that are none and a validity that is empty are errors.
func Parse(text []byte) (Advisory, error) {
	var a Advisory
	if err := checkKeys(text); err != nil {
		return Advisory{}, fmt.Errorf("parsing the advisory: %w", err)
	}
	d := json.NewDecoder(bytes.NewReader(text))
	d.DisallowUnknownFields()
	if err := d.Decode(&a); err != nil {
		return Advisory{}, fmt.Errorf("parsing the advisory: %w", err)
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return Advisory{}, errors.New("parsing the advisory: something follows it")
	}
	for name, version := range map[string]string{"min_supported": a.MinSupported, "lost_below": a.LostBelow} {
		if version != "" && canonical(version) == "" {
			return Advisory{}, fmt.Errorf("parsing the advisory: %s is %q, which is no version as in v1.2.3", name, version)
		}
	}
	switch {
	case a.Serial <= 0:
		return Advisory{}, errors.New("parsing the advisory: serial is missing or not positive")
	case a.Issued.IsZero() || !a.Expires.After(a.Issued):
		return Advisory{}, errors.New("parsing the advisory: it has to expire after it was issued")
	}
	return a, nil
}

var keys = []string{"min_supported", "lost_below", "component_only", "issued", "expires", "serial"}

// checkKeys demands each key as it is written here and at most once. The decoder would
// take another case for it, and the last of two: somebody who reads the file may have
// signed the first.
func checkKeys(text []byte) error {
	d := json.NewDecoder(bytes.NewReader(text))
	if begin, err := d.Token(); err != nil || begin != json.Delim('{') {
		return errors.New("it is no JSON object")
	}
	seen := map[string]bool{}
	for d.More() {
		token, err := d.Token()
		if err != nil {
			return err
		}
		key, _ := token.(string)
		switch {
		case !slices.Contains(keys, key):
			return fmt.Errorf("the key %q is unknown; there are %s", key, strings.Join(keys, ", "))
		case seen[key]:
			return fmt.Errorf("the key %q is there twice", key)
		}
		seen[key] = true
		if err := d.Decode(new(json.RawMessage)); err != nil {
			return err
		}
	}
	return nil
}

// described is what git adds to a version for later commits.
var described = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`-\d+-g[0-9a-f]+(-dirty)?$|-dirty$`) })

// canonical is the version with a v, without what git adds to it; "" for none.
func canonical(version string) string {
	v := "v" + strings.TrimPrefix(described().ReplaceAllString(version, ""), "v")
	if !semver.IsValid(v) {
		return ""
	}
	return v
}

// Judge says what the advisory means for a version at the time now. Seen is the
// highest serial that this machine has met.
func (a Advisory) Judge(version string, now time.Time, seen int64) (State, string) {
	v := canonical(version)
	switch {
	case a.Serial < seen:
		return Unknown, fmt.Sprintf("its serial is %d, and %d was seen before: an old advisory was put back", a.Serial, seen)
	case !now.Before(a.Expires):
		return Unknown, "it expired at " + a.Expires.Format(time.RFC3339)
	case now.Before(a.Issued):
		return Unknown, "it is issued at " + a.Issued.Format(time.RFC3339) + ", which is to come"
	case v == "":
		return Unknown, fmt.Sprintf("this sbx has no version to compare (%q)", version)
	}
	below := func(limit string) bool { return limit != "" && semver.Compare(v, canonical(limit)) < 0 }
	var why string
	switch {
	case below(a.LostBelow):
		why = fmt.Sprintf("the floor of versions below %s is known not to hold; this is %s", a.LostBelow, version)
	case below(a.MinSupported):
		why = fmt.Sprintf("versions below %s are not supported any more; this is %s", a.MinSupported, version)
	default:
		return Supported, ""
	}
	if a.ComponentOnly {
		return Component, why
	}
	return Unsupported, why
}
