package report

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/fractalboxdev/sbx/internal/egress"
	"github.com/fractalboxdev/sbx/internal/event"
)

var noon = time.Date(2026, 1, 2, 12, 0, 0, 0, time.UTC)

func denied(host, method, path, code string) event.Request {
	return event.Request{
		Time: noon, Run: "r1", Source: event.SourceGate, Protocol: "https", Host: host, Port: 443,
		Method: method, Path: path, Verdict: "deny", Code: code, Reason: "host is not granted",
	}
}

func TestVector28_SameDenialThreeTimesIsOneRow(t *testing.T) {
	var f Fold
	for i := range 3 {
		r := denied("evil.test", "GET", "/x", "host-not-granted")
		r.Time = noon.Add(time.Duration(i) * time.Second)
		row, isNew := f.Add(r)
		if isNew != (i == 0) || row.Count != i+1 {
			t.Errorf("add %d: new %v, count %d", i, isNew, row.Count)
		}
	}
	want := []event.Denial{{
		Host: "evil.test", Method: "GET", Path: "/x", Reason: "host is not granted", Count: 3,
		Source: event.SourceGate, Code: "host-not-granted", Port: 443, Protocol: "https",
		FirstAt: noon, LastAt: noon.Add(2 * time.Second), Run: "r1",
	}}
	if diff := cmp.Diff(want, f.Denials()); diff != "" {
		t.Errorf("rows (-want +got):\n%s", diff)
	}
}

func TestRowsDifferByEachPartOfTheKey(t *testing.T) {
	var f Fold
	base := denied("a.test", "GET", "/", "path-not-granted")
	variants := []func(*event.Request){
		func(r *event.Request) {},
		func(r *event.Request) { r.Host = "b.test" },
		func(r *event.Request) { r.Method = "PUT" },
		func(r *event.Request) { r.Path = "/b" },
		func(r *event.Request) { r.Code = "method-not-granted" },
		func(r *event.Request) { r.Verdict, r.WouldDeny = "allow", true },
	}
	for i, change := range variants {
		r := base
		change(&r)
		if _, isNew := f.Add(r); !isNew {
			t.Errorf("variant %d: folded into another row", i)
		}
	}
	if f.Total() != len(variants)-1 || f.WouldDeny() != 1 {
		t.Errorf("total %d and %d, want %d and 1", f.Total(), f.WouldDeny(), len(variants)-1)
	}
}

func TestAllowedRequestsLeaveNoRow(t *testing.T) {
	var f Fold
	row, isNew := f.Add(event.Request{Host: "ok.test", Verdict: "allow", Code: "allowed"})
	if isNew || row.Count != 0 || len(f.Denials()) != 0 || f.Total() != 0 {
		t.Errorf("an allowed request was reported: %+v", row)
	}
}

func TestZeroVerdictIsADenial(t *testing.T) {
	var f Fold
	if _, isNew := f.Add(event.Request{Host: "x.test"}); !isNew {
		t.Error("a request without verdict must be reported as denied")
	}
}

func TestCase65_ReportIsBounded(t *testing.T) {
	var f Fold
	news := 0
	for i := range 10_000 {
		if _, isNew := f.Add(denied(fmt.Sprintf("h%d.test", i), "GET", "/", "host-not-granted")); isNew {
			news++
		}
	}
	rows := f.Denials()
	if len(rows) != MaxRows+1 || news != MaxRows+1 {
		t.Fatalf("%d rows, %d announced; want %d", len(rows), news, MaxRows+1)
	}
	last := rows[MaxRows]
	if last.Count != 10_000-MaxRows || last.Code != string(egress.CodeBound) || last.Host != "" {
		t.Errorf("overflow row: %+v", last)
	}
	if _, isNew := f.Add(denied("h5.test", "GET", "/", "host-not-granted")); isNew {
		t.Error("a known row was announced again after the overflow")
	}
	if f.Total() != 10_001 {
		t.Errorf("total %d", f.Total())
	}
}

// A row that says what is missing has room however full the report is.
func TestBoundsAreSaidInAFullReport(t *testing.T) {
	var f Fold
	for i := range 2 * MaxRows {
		f.Add(denied(fmt.Sprintf("h%d.test", i), "GET", "/", "host-not-granted"))
		f.Add(denied(fmt.Sprintf("h%d.test", i), "GET", "/", "bound-heads")) // a host is chosen inside
		f.Add(denied("", "", "", "bound-packets"))
	}
	if row, isNew := f.Add(denied("", "", "", "bound-destinations")); !isNew || row.Code != "bound-destinations" || row.Count != 1 {
		t.Errorf("%+v, new: %v", row, isNew)
	}
	rows := f.Denials()
	if last := rows[len(rows)-1]; len(rows) != MaxRows+3 || last.Code != "bound-reached" || last.Count != 3*MaxRows {
		t.Errorf("%d rows, the last is %+v", len(rows), last)
	}
}

func TestCase65_HostileTextIsNeutralised(t *testing.T) {
	long := strings.Repeat("a", 4000)
	in := event.Request{
		Verdict: "deny", Host: "EVIL\x1b[31m.test.", Method: "GET\nfake", Path: "/a\x00\u202eb?token=1",
		Code: "x", Reason: "said \"hi\"\r\n\x1b]0;t\x07 \u2028 \U0001f600 \xff", Process: "sh\x9b",
		Protocol: "https", RedirectedFrom: "GET\n https://a.test/b c?secret=1", Authorities: []string{"a\tb"},
	}
	got := Clean(in)
	want := event.Request{
		Verdict: "deny", Host: "evil%1b[31m.test", Method: "GET%0Afake", Path: "/a%00%E2%80%AEb",
		Code: "x", Reason: `said "hi"\x0d\x0a\x1b]0;t\x07 \u2028 \U0001f600 \xff`, Process: `sh\x9b`,
		Protocol: "https", RedirectedFrom: "GET%0A https://a.test/b%20c", Authorities: []string{"a%09b"},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("cleaned (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(got, Clean(got)); diff != "" {
		t.Errorf("cleaning twice changed:\n%s", diff)
	}
	if p := Clean(event.Request{Path: "/" + long}).Path; len(p) != MaxPath || !strings.HasSuffix(p, "...") {
		t.Errorf("long path: %d bytes, ends %q", len(p), p[len(p)-5:])
	}
	many := Clean(event.Request{Authorities: make([]string, 100)})
	if len(many.Authorities) > maxAuthorities {
		t.Errorf("%d authorities kept", len(many.Authorities))
	}
}

func FuzzCleanIsBoundedPrintableAndStable(f *testing.F) {
	f.Add("/a\x1b%2f", 10)
	f.Add(strings.Repeat("\xff", 300), 512)
	f.Fuzz(func(t *testing.T, s string, limit int) {
		if limit < 3 || limit > 5000 {
			return // limits are constants between 64 and 1024
		}
		for _, clean := range []func(string, int) string{Part, Text} {
			got := clean(s, limit)
			if len(got) > limit {
				t.Fatalf("%d bytes, limit %d", len(got), limit)
			}
			for _, b := range []byte(got) {
				if b < ' ' || b > '~' {
					t.Fatalf("byte %#x left in %q", b, got)
				}
			}
			if again := clean(got, limit); again != got {
				t.Fatalf("not stable: %q, then %q", got, again)
			}
		}
	})
}

func TestSuggestNamesWhatIsMissing(t *testing.T) {
	cases := []struct {
		name string
		d    event.Denial
		want string
	}{
		{
			"host",
			event.Denial{Code: "host-not-granted", Protocol: "https", Host: "evil.test", Port: 443, Method: "GET", Path: "/x"},
			"a rule for GET https://evil.test/x",
		},
		{
			"other port",
			event.Denial{Code: "port-not-granted", Protocol: "https", Host: "a.test", Port: 8443, Method: "GET", Path: "/", Rule: "p/r"},
			"a rule for GET https://a.test:8443/ (nearest: p/r)",
		},
		{
			"raw TCP",
			event.Denial{Code: "host-not-granted", Protocol: "tcp", Host: "192.0.2.1", Port: 22},
			"a rule for tcp://192.0.2.1:22",
		},
		{
			"v6",
			event.Denial{Code: "host-not-granted", Protocol: "http", Host: "2001:db8::1", Port: 80, Method: "GET", Path: "/"},
			"a rule for GET http://[2001:db8::1]/",
		},
		{"body", event.Denial{Code: "body-too-large", Host: "a.test", Rule: "p/up"}, "a larger max_body in p/up"},
		{"not TLS", event.Denial{Code: "not-tls", Host: "a.test", Port: 22}, "a tcp rule for a.test port 22, which polices host and port only"},
		{
			"UDP",
			event.Denial{Code: "udp-refused", Protocol: "udp", Host: "192.0.2.1", Port: 443},
			"nothing grants this: UDP never leaves the sandbox; use TCP",
		},
		{"dns", event.Denial{Code: "name-ungranted", Host: "a.test"}, "a rule for host a.test"},
		{"unheard of", event.Denial{Code: "new"}, "nothing grants this: sbx knows no grant for code new"},
	}
	for _, c := range cases {
		if got := Suggest(c.d); got != c.want {
			t.Errorf("%s:\n got %s\nwant %s", c.name, got, c.want)
		}
	}
}

func TestSummaryCountsAndHides(t *testing.T) {
	rows := []event.Denial{
		{Host: "a.test", Code: "host-not-granted", Count: 3},
		{Host: "b.test", Code: "host-not-granted", Count: 2, WouldDeny: true},
		{Host: "c.test", Code: "host-not-granted", Count: 1},
	}
	s := Summarise("r1", "/d", rows, 2)
	if s.Denied != 4 || s.WouldDeny != 2 || s.Hidden != 1 || len(s.Rows) != 2 {
		t.Errorf("summary: %+v", s)
	}
	if all := Summarise("r1", "/d", rows, 0); len(all.Rows) != 3 || all.Hidden != 0 {
		t.Errorf("without limit: %+v", all)
	}
}
