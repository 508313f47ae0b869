package cli

import (
	"fmt"
	"os"

	"github.com/spf13/cobra"

	"github.com/fractalboxdev/sbx/internal/coding"
	"github.com/fractalboxdev/sbx/internal/egress"
	"github.com/fractalboxdev/sbx/internal/event"
	"github.com/fractalboxdev/sbx/internal/report"
	"github.com/fractalboxdev/sbx/internal/term"
)

// The statuses that a client inside would see (docs/cli.md).
const (
	statusGate    = 520
	statusHandler = 403
)

type explainOptions struct {
	selection
	method, url       string
	length            int64
	body              string // file
	encoding, content string // of the body
	from              string // run directory or id, and a row
	json              bool
}

// maxExplainedBody bounds what --body reads, in bytes: what a run would buffer.
const maxExplainedBody = 64 << 20

// explanation is the answer of "sbx explain".
type explanation struct {
	Verdict string      `json:"verdict"` // allow, deny
	Request string      `json:"request"`
	Code    egress.Code `json:"code"`
	Reason  string      `json:"reason,omitempty"`  // why it is denied
	Rule    string      `json:"rule,omitempty"`    // the rule that allows
	Nearest string      `json:"nearest,omitempty"` // the rule that came closest
	Status  int         `json:"status,omitempty"`  // what the client would see, when denied
	Allow   string      `json:"to_allow,omitempty"`
	Grant   string      `json:"grant_digest"`
	Body    bool        `json:"body_judged,omitempty"` // the body has to pass as well, which is not known here
}

func newExplainCommand(e *environment) *cobra.Command {
	var o explainOptions
	cmd := &cobra.Command{
		Use: "explain METHOD URL | --from RUN[:ROW]", Short: "Say whether a request would be let pass, and why",
		Long: "Say whether a request would be let pass under the given profiles, and why: the verdict, reason and rule\n" +
			"are those of a run. The exit status is 0 when it is allowed and 1 when it is denied.\n\n" +
			"With --from, judge again what a run decided, and say where today's verdict differs and why. The exit status\n" +
			"is 1 when one differs. Profiles and inputs are those of the run's receipt unless others are given.",
		Example: "  sbx explain GET https://github.com/acme/widget/archive/v1.tar.gz --profile public-repo-read --input repo=acme/widget\n" +
			"  sbx explain --from artifacts/run:17",
		Args: func(cmd *cobra.Command, args []string) error {
			if o.from != "" {
				return exactly()(cmd, args)
			}
			return exactly("METHOD", "URL")(cmd, args)
		},
		RunE: func(_ *cobra.Command, args []string) error {
			if o.from != "" {
				return e.replay(o)
			}
			o.method, o.url = args[0], args[1]
			return e.explain(o)
		},
	}
	o.addTo(cmd)
	f := cmd.Flags()
	f.Int64Var(&o.length, "body-length", 0, "size of the request's body in `bytes`")
	f.StringVar(&o.body, "body", "", "`file` with the request's body, which is judged as well")
	f.StringVar(&o.content, "content-type", "application/json", "`type` of the body")
	f.StringVar(&o.encoding, "content-encoding", "", "`coding` of the body, as in gzip")
	f.StringVar(&o.from, "from", "", "judge again what this `RUN[:ROW]` decided: an id or a directory, and the id of a request")
	f.BoolVar(&o.json, "json", false, "print JSON")
	return cmd
}

// request reads the request of the command line.
func (o explainOptions) request() (egress.Request, []byte, error) {
	req, err := egress.ParseURL(o.url)
	if err != nil {
		return req, nil, &usageError{err.Error(), "name the method and an absolute URL, as in: sbx explain GET https://host.test/path"}
	}
	if o.length < 0 {
		return req, nil, &usageError{"--body-length is negative", "give the size in bytes"}
	}
	req.Method, req.BodyLength = o.method, o.length
	req.Coded = coding.Grows(coding.Parse(o.encoding))
	if o.body == "" {
		return req, nil, nil
	}
	if o.length != 0 {
		return req, nil, &usageError{"--body and --body-length are given", "the size of --body is that of its file"}
	}
	text, err := readRegular(o.body, maxExplainedBody)
	return req, []byte(text), err
}

// grant resolves the selection as a run in this directory would.
func (e *environment) grant(s selection) (resolved, error) {
	c, err := e.loadConfig()
	if err != nil {
		return resolved{}, err
	}
	workdir, err := os.Getwd()
	if err != nil {
		return resolved{}, fmt.Errorf("finding the working directory: %w", err)
	}
	return e.resolve(s, c, workdir)
}

func (e *environment) explain(o explainOptions) error {
	req, body, err := o.request()
	if err != nil {
		return err
	}
	r, err := e.grant(o.selection)
	if err != nil {
		return err
	}
	answer := explainDecision(req, judgeAsked(r.grant.Policy(), req, body, o.encoding, o.content))
	answer.Grant = r.grant.Digest()
	answer.Body = answer.Body && body == nil
	if err := e.printExplanation(answer, o.json); err != nil {
		return err
	}
	if answer.Verdict != verdictAllow {
		return &exitError{code: exitNegative}
	}
	return nil
}

// judgeAsked is the decision of a run about a request; body is nil where only its
// length is known.
func judgeAsked(p *egress.Policy, req egress.Request, body []byte, encoding, content string) egress.Decision {
	if body == nil {
		return p.Decide(req)
	}
	d := p.DecideBody(req, body, encoding, content)
	if d.Verdict != egress.Allow {
		return d
	}
	if limit := d.Rule.UploadBudget.Bytes; limit > 0 && int64(len(body)) > limit {
		return egress.Decision{
			Stage: egress.StageHandler, Code: egress.CodeUploadBudget, Nearest: d.Rule.ID,
			Reason: fmt.Sprintf("%s: the upload budget of %s is %d bytes", egress.Describe(req), d.Rule.ID, limit),
		}
	}
	return d
}

// The verdicts of explanations and records.
const (
	verdictAllow = "allow"
	verdictDeny  = "deny"
)

func explainDecision(req egress.Request, d egress.Decision) explanation {
	x := explanation{Verdict: verdictDeny, Request: egress.Describe(req), Code: d.Code, Nearest: d.Nearest}
	if d.Verdict == egress.Allow {
		x.Verdict = verdictAllow
		if d.Rule != nil {
			x.Rule, x.Body = d.Rule.ID, d.Rule.Body.Asserts()
		}
		return x
	}
	x.Status = statusHandler
	if d.Stage == egress.StageGate {
		x.Status = statusGate
	}
	row := event.Denial{
		Host: req.Host.String(), Method: req.Method, Path: egress.CleanPath(req.Path.Raw()), Code: string(d.Code),
		Rule: d.Nearest, Port: req.Port, Protocol: req.Protocol.String(), Reason: d.Reason,
	}
	x.Reason, x.Allow = report.Why(row), report.Suggest(row)
	return x
}

func (e *environment) printExplanation(x explanation, asJSON bool) error {
	if asJSON {
		return e.printJSON(x)
	}
	tone := term.Bad
	if x.Verdict == verdictAllow {
		tone = term.Good
	}
	rows := [][]term.Cell{{{Text: x.Verdict, Tone: tone}, {Text: x.Request}}}
	for _, r := range [][2]string{
		{"code", string(x.Code)}, {"reason", x.Reason}, {"rule", x.Rule}, {"nearest", x.Nearest}, {"to allow", x.Allow},
	} {
		if r[1] != "" {
			rows = append(rows, term.Cells(r[0], r[1]))
		}
	}
	if x.Status != 0 {
		rows = append(rows, term.Cells("inside", fmt.Sprintf("the client sees status %d", x.Status)))
	}
	if x.Body {
		rows = append(rows, term.Cells("body", "is judged as well"))
	}
	e.out.Table(nil, rows)
	return nil
}
