package cli

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/fractalboxdev/sbx/internal/egress"
	"github.com/fractalboxdev/sbx/internal/event"
	"github.com/fractalboxdev/sbx/internal/grant"
	"github.com/fractalboxdev/sbx/internal/report"
	"github.com/fractalboxdev/sbx/internal/term"
)

// outcomes of judging a recorded decision again.
const (
	replaySame      = "same"
	replayDiffers   = "differs"
	replayUndecided = "undecided" // the record does not have what the verdict hangs on
)

// legacy is the position in which records hold no verdicts.
const legacy = "legacy"

// maxReplayed bounds the rows of one answer.
const maxReplayed = 1000

// judgement is a verdict with its reason.
type judgement struct {
	Verdict string `json:"verdict"`
	Code    string `json:"code"`
	Rule    string `json:"rule,omitempty"`
	Reason  string `json:"reason,omitempty"`
}

// replayed is one recorded decision beside today's.
type replayed struct {
	Row      uint64    `json:"row"` // id of the request in the run
	Request  string    `json:"request"`
	Outcome  string    `json:"outcome"` // same, differs, undecided
	Recorded judgement `json:"recorded"`
	Today    judgement `json:"today"`
	Why      []string  `json:"why"`
}

// replayAnswer is the answer of "sbx explain --from".
type replayAnswer struct {
	Run           string     `json:"run"`
	RecordedGrant string     `json:"recorded_grant_digest"`
	Grant         string     `json:"grant_digest"`
	Differences   []string   `json:"differences"` // between the run's grant and today's
	Requests      []replayed `json:"requests"`
}

// splitRow takes RUN:ROW apart; zero is every row.
func splitRow(arg string) (run string, row uint64) {
	i := strings.LastIndexByte(arg, ':')
	if i < 0 {
		return arg, 0
	}
	n, err := strconv.ParseUint(arg[i+1:], 10, 64)
	if err != nil || n == 0 {
		return arg, 0
	}
	return arg[:i], n
}

// replay judges again what a run decided.
func (e *environment) replay(o explainOptions) error {
	if o.body != "" || o.length != 0 {
		return &usageError{"--from is given with a body", "records have no bodies: name METHOD and URL instead of --from"}
	}
	run, row := splitRow(o.from)
	dir, err := e.runDirectory(run)
	if err != nil {
		return err
	}
	rows, err := recordedRows(dir, run, row)
	if err != nil {
		return err
	}
	receipt, _, err := readReceipt(dir)
	if err != nil {
		return err
	}
	s := o.selection.orFrom(receipt)
	r, err := e.grant(s)
	if err != nil {
		return fmt.Errorf("making today's grant of %s: %w", oneLine(strings.Join(s.profiles, ", ")), err)
	}
	answer := replayAnswer{
		Run: oneLine(receipt.Run), RecordedGrant: oneLine(receipt.GrantDigest), Grant: r.grant.Digest(),
		Differences: e.differences(receipt, r.grant), Requests: []replayed{},
	}
	for _, row := range rows {
		answer.Requests = append(answer.Requests, replayRow(row, r.grant, receipt.GrantDigest, answer.Differences))
	}
	return e.printReplay(answer, row != 0, o.json)
}

// recordedRows returns the rows of a run, or the one that is wanted.
func recordedRows(dir, run string, row uint64) ([]event.Request, error) {
	rows, broken, err := readRequests(dir)
	if err != nil {
		return nil, err
	}
	if row != 0 {
		rows = slices.DeleteFunc(rows, func(r event.Request) bool { return r.ID != row })
		if len(rows) != 1 {
			return nil, &usageError{fmt.Sprintf("%s has %d requests with the id %d", run, len(rows), row), "the ids stand in requests.jsonl"}
		}
	}
	if len(rows) == 0 {
		return nil, &usageError{fmt.Sprintf("%s has no recorded requests, and %d malformed rows", run, broken), "name another run"}
	}
	if len(rows) > maxReplayed {
		return nil, &usageError{fmt.Sprintf("%s has %d requests, over %d", run, len(rows), maxReplayed), "name one: --from RUN:ROW"}
	}
	return rows, nil
}

// orFrom is the selection, or what the receipt says of the run's where nothing
// is selected.
func (s selection) orFrom(r event.Receipt) selection {
	if s.empty() {
		s.profiles = r.Profiles
		for _, in := range r.Inputs {
			s.inputs = append(s.inputs, in.Name+"="+in.Value)
		}
		s.inputs = joined(s.inputs)
	}
	return s
}

// joined makes one value of several of an input.
func joined(inputs []string) []string {
	var names []string
	values := map[string][]string{}
	for _, text := range inputs {
		name, value, _ := strings.Cut(text, "=")
		if values[name] == nil {
			names = append(names, name)
		}
		if !slices.Contains(values[name], value) {
			values[name] = append(values[name], value)
		}
	}
	out := make([]string, len(names))
	for i, name := range names {
		out[i] = name + "=" + strings.Join(values[name], ",")
	}
	return out
}

// differences says in what the run's grant and today's differ.
func (e *environment) differences(r event.Receipt, g grant.Grant) []string {
	found := []string{}
	if r.GrantDigest == "" {
		return append(found, "the run has no receipt: its grant is not known")
	}
	if r.GrantDigest == g.Digest() {
		if r.Version != "" && r.Version != e.build.Version {
			found = append(found, fmt.Sprintf("the grant is the same, but the run's sbx was version %s, and this is %s", oneLine(r.Version), e.build.Version))
		}
		return found
	}
	found = append(found, "the grant's digest differs")
	var names []string
	for _, p := range g.Profiles() {
		names = append(names, p.Name)
	}
	if !slices.Equal(names, r.Profiles) {
		found = append(found, fmt.Sprintf("profiles: %s in the run, %s today", dash(oneLine(strings.Join(r.Profiles, " "))), dash(strings.Join(names, " "))))
	}
	before, now := endpointsOf(r, g)
	if !slices.Equal(before, now) {
		found = append(found, fmt.Sprintf("endpoints: %s in the run, %s today", dash(oneLine(strings.Join(before, " "))), dash(strings.Join(now, " "))))
	}
	if was, is := inputsOf(r, g); !slices.Equal(was, is) {
		found = append(found, fmt.Sprintf("inputs: %s in the run, %s today", dash(oneLine(strings.Join(was, " "))), dash(strings.Join(is, " "))))
	}
	if len(found) == 1 {
		found = append(found, "profiles, inputs and endpoints have the same names: a definition changed")
	}
	return found
}

func endpointsOf(r event.Receipt, g grant.Grant) (before, now []string) {
	for _, x := range r.Endpoints {
		before = append(before, x.Ecosystem+"="+x.URL)
	}
	for _, x := range g.Endpoints() {
		now = append(now, x.Ecosystem+"="+x.URL)
	}
	slices.Sort(before)
	slices.Sort(now)
	return before, now
}

func inputsOf(r event.Receipt, g grant.Grant) (before, now []string) {
	for _, x := range r.Inputs {
		before = append(before, x.Profile+"/"+x.Name+"="+x.Value)
	}
	for _, x := range g.Inputs() {
		now = append(now, x.Profile+"/"+x.Name+"="+x.Value)
	}
	slices.Sort(before)
	slices.Sort(now)
	return before, now
}

// replayRow judges one row again.
func replayRow(row event.Request, g grant.Grant, recorded string, differences []string) replayed {
	row = report.Clean(row)
	x := replayed{
		Row: row.ID, Outcome: replayUndecided, Why: []string{},
		Recorded: judgement{Verdict: verdictDeny, Code: row.Code, Rule: row.Rule, Reason: row.Reason},
		Request:  strings.TrimSpace(row.Method + " " + report.Target(event.Denial{Host: row.Host, Port: row.Port, Protocol: row.Protocol, Path: row.Path})),
	}
	if !row.Denied() {
		x.Recorded.Verdict, x.Recorded.Reason = verdictAllow, ""
	}
	if row.Position == legacy {
		x.Why = append(x.Why, "the run's position was legacy: nothing was judged")
		return x
	}
	req, err := requestOf(row)
	if err != nil {
		x.Why = append(x.Why, "the record cannot be judged again: "+err.Error())
		return x
	}
	d := g.Policy().Decide(req)
	x.Today = judgement{Verdict: verdictDeny, Code: string(d.Code), Rule: d.Nearest, Reason: d.Reason}
	if d.Verdict == egress.Allow {
		x.Today = judgement{Verdict: verdictAllow, Code: string(d.Code)}
		if d.Rule != nil {
			x.Today.Rule = d.Rule.ID
		}
	}
	x.compare(d, differences)
	if x.Outcome == replaySame && d.Verdict == egress.Allow && recorded != g.Digest() && d.Rule.BodyCap(req.Method) > 0 {
		x.Outcome = replayUndecided
		x.Why = append(x.Why, "the grant differs, and the body, which it may judge otherwise, is not recorded")
	}
	return x
}

// compare decides whether both verdicts agree, as far as the record goes.
func (x *replayed) compare(d egress.Decision, differences []string) {
	switch {
	case x.Recorded.Verdict == x.Today.Verdict && (x.Today.Verdict == verdictAllow || x.Recorded.Code == x.Today.Code):
		x.Outcome = replaySame
	case hangsOn(d.Code) != "":
		x.Why = append(x.Why, "today's verdict hangs on the "+hangsOn(d.Code)+", which is not recorded")
	case hangsOn(egress.Code(x.Recorded.Code)) != "":
		x.Why = append(x.Why, "the recorded verdict hung on the "+hangsOn(egress.Code(x.Recorded.Code))+", which is not recorded")
	default:
		x.Outcome = replayDiffers
		x.Why = append(x.Why, differences...)
		if len(x.Why) == 0 {
			x.Why = append(x.Why, "the grant is the same: the record was made by something else than the policy, or was changed")
		}
	}
}

// hangsOn names what a code is about that records do not have.
func hangsOn(code egress.Code) string {
	switch code {
	case egress.CodeQuery:
		return "query"
	case egress.CodeBodyTooLarge, egress.CodeBodyNotGranted, egress.CodeBodyEncoding, egress.CodeBodyAssertion, egress.CodeUploadBudget:
		return "body"
	case egress.CodeMalformed, egress.CodeAuthorityMismatch, egress.CodeNotHTTP, egress.CodeNotTLS, egress.CodePlaceholder, egress.CodeUpgrade:
		return "message itself"
	case egress.CodeAddressRefused:
		return "address that the name had"
	case egress.CodeSecretMissing:
		return "secret"
	case egress.CodeGrantNotApplied, egress.CodeRecordFailed:
		return "state of the run"
	case egress.CodeRedirect, egress.CodeRedirectHops:
		return "answer that redirected"
	case egress.CodeSecretEchoed:
		return "answer"
	}
	if code.IsBound() {
		return "state of the run"
	}
	return ""
}

// requestOf makes the request of a row: without query and body.
func requestOf(row event.Request) (egress.Request, error) {
	switch row.Protocol {
	case "https", "http":
		target := event.Denial{Host: row.Host, Port: row.Port, Protocol: row.Protocol, Path: row.Path}
		if len(row.Path) >= report.MaxPath-len("...") {
			return egress.Request{}, fmt.Errorf("the path may have been cut when it was recorded")
		}
		req, err := egress.ParseURL(report.Target(target))
		req.Method = row.Method
		return req, err
	case "tcp":
		host, err := egress.ParseHost(row.Host)
		return egress.Request{Protocol: egress.ProtocolTCP, Host: host, Port: row.Port}, err
	}
	return egress.Request{}, fmt.Errorf("%s is not judged by rules", dash(row.Protocol))
}

func (e *environment) printReplay(x replayAnswer, detail, asJSON bool) error {
	switch {
	case asJSON:
		if err := e.printJSON(x); err != nil {
			return err
		}
	case detail:
		e.printReplayed(x, x.Requests[0])
	default:
		e.printReplays(x)
	}
	if slices.ContainsFunc(x.Requests, func(r replayed) bool { return r.Outcome == replayDiffers }) {
		return &exitError{code: exitNegative}
	}
	return nil
}

func (e *environment) printReplays(x replayAnswer) {
	rows := make([][]term.Cell, len(x.Requests))
	for i, r := range x.Requests {
		rows[i] = []term.Cell{
			{Text: strconv.FormatUint(r.Row, 10)}, {Text: r.Outcome, Tone: replayTone(r.Outcome)}, {Text: r.Recorded.short()}, {Text: r.Today.short()}, {Text: r.Request},
		}
	}
	e.out.Table([]string{"ROW", "OUTCOME", "RECORDED", "TODAY", "REQUEST"}, rows)
	for _, d := range x.Differences {
		e.out.Raw(term.Escape(d) + "\n")
	}
}

func (j judgement) short() string { return dash(strings.TrimSpace(j.Verdict + " " + j.Code)) }

func replayTone(outcome string) term.Tone {
	if outcome == replayDiffers {
		return term.Bad
	}
	return term.Plain
}

func (e *environment) printReplayed(x replayAnswer, r replayed) {
	rows := [][]term.Cell{{{Text: r.Outcome, Tone: replayTone(r.Outcome)}, {Text: r.Request}}}
	add := func(key, value string) {
		if value != "" {
			rows = append(rows, term.Cells(key, value))
		}
	}
	for _, side := range []struct {
		name, grant string
		j           judgement
	}{{"recorded", x.RecordedGrant, r.Recorded}, {"today", x.Grant, r.Today}} {
		add(side.name, side.j.short())
		add("  rule", side.j.Rule)
		add("  reason", side.j.Reason)
		add("  grant", side.grant)
	}
	for _, why := range r.Why {
		add("why", why)
	}
	e.out.Table(nil, rows)
}
