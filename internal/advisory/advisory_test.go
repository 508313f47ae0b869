package advisory

import (
	"fmt"
	"strings"
	"testing"
	"time"
)

var now = time.Date(2026, 6, 1, 0, 0, 0, 0, time.UTC)

func signed(change func(*Advisory)) Advisory {
	a := Advisory{MinSupported: "v1.2.0", LostBelow: "v1.0.5", Issued: now.Add(-time.Hour), Expires: now.Add(time.Hour), Serial: 7}
	if change != nil {
		change(&a)
	}
	return a
}

func TestAdvisoryJudges(t *testing.T) {
	for name, row := range map[string]struct {
		change  func(*Advisory)
		version string
		seen    int64
		want    State
		says    string
	}{
		"at the limit":            {nil, "v1.2.0", 7, Supported, ""},
		"without the v":           {nil, "1.2.0", 0, Supported, ""},
		"later commits":           {nil, "v1.2.0-3-gabc1234-dirty", 0, Supported, ""},
		"before the limit":        {nil, "v1.2.0-rc.1", 0, Unsupported, "not supported"},
		"older":                   {nil, "v1.1.9", 0, Unsupported, "not supported"},
		"lost":                    {nil, "v1.0.4", 0, Unsupported, "known not to hold"},
		"a part only":             {func(a *Advisory) { a.ComponentOnly = true }, "v1.0.4", 0, Component, "known not to hold"},
		"no limits":               {func(a *Advisory) { a.MinSupported, a.LostBelow = "", "" }, "v0.0.1", 0, Supported, ""},
		"put back":                {nil, "v1.2.0", 8, Unknown, "seen before"},
		"expired":                 {func(a *Advisory) { a.Expires = now }, "v1.2.0", 0, Unknown, "expired"},
		"to come":                 {func(a *Advisory) { a.Issued = now.Add(1) }, "v1.2.0", 0, Unknown, "to come"},
		"a build without version": {nil, "dev", 0, Unknown, "no version"},
		"put back beats support":  {nil, "v9.0.0", 8, Unknown, "seen before"},
	} {
		t.Run(name, func(t *testing.T) {
			got, why := signed(row.change).Judge(row.version, now, row.seen)
			if got != row.want || !strings.Contains(why, row.says) {
				t.Errorf("%s: %q; want %s with %q", got, why, row.want, row.says)
			}
		})
	}
}

func TestAdvisoryIsParsedStrictly(t *testing.T) {
	const good = `{"min_supported":"v1.2.0","lost_below":"","component_only":false,"issued":"2026-01-01T00:00:00Z","expires":"2027-01-01T00:00:00Z","serial":3}`
	if a, err := Parse([]byte(good)); err != nil || a.Serial != 3 || a.MinSupported != "v1.2.0" {
		t.Fatalf("%+v, %v", a, err)
	}
	for name, change := range map[string][2]string{
		"unknown key": {`"serial"`, `"seriall"`}, "no serial": {`"serial":3`, `"serial":0`}, "no version": {`v1.2.0`, `one`},
		"empty validity": {"2027", "2025"}, "trailing text": {`3}`, `3}{}`}, "not JSON": {`{`, ``}, "no expiry": {`"expires":"2027-01-01T00:00:00Z",`, ``},
		"a key twice": {`"serial":3`, `"serial":3,"serial":3`}, "a key in other case": {`"min_supported"`, `"MIN_SUPPORTED"`},
		"a key twice, once in other case": {`"serial":3`, `"serial":3,"Serial":4`}, "a key twice, once escaped": {`"serial":3`, `"serial":3,"seri\u0061l":4`}, "a list": {`{`, `[{`},
	} {
		if _, err := Parse([]byte(strings.Replace(good, change[0], change[1], 1))); err == nil {
			t.Errorf("%s: parsed", name)
		}
	}
}

func FuzzParseNeverPanics(f *testing.F) {
	f.Add([]byte(fmt.Sprintf("%+v", signed(nil))), "v1.2.3")
	f.Fuzz(func(_ *testing.T, text []byte, version string) {
		if a, err := Parse(text); err == nil {
			a.Judge(version, now, 0)
		}
	})
}
