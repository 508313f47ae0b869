package cli

import (
	"fmt"
	"os"

	"github.com/spf13/cobra"

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
	method, url string
	length      int64
	json        bool
}

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
		Use: "explain METHOD URL", Short: "Say whether a request would be let pass, and why",
		Long: "Say whether a request would be let pass under the given profiles, and why: the verdict, reason and rule\n" +
			"are those of a run. The exit status is 0 when it is allowed and 1 when it is denied.",
		Example: "  sbx explain GET https://github.com/acme/widget/archive/v1.tar.gz --profile public-repo-read --input repo=acme/widget",
		Args:    exactly("METHOD", "URL"),
		RunE: func(_ *cobra.Command, args []string) error {
			o.method, o.url = args[0], args[1]
			return e.explain(o)
		},
	}
	o.addTo(cmd)
	cmd.Flags().Int64Var(&o.length, "body-length", 0, "size of the request's body in `bytes`")
	cmd.Flags().BoolVar(&o.json, "json", false, "print JSON")
	return cmd
}

func (e *environment) explain(o explainOptions) error {
	req, err := egress.ParseURL(o.url)
	if err != nil {
		return &usageError{err.Error(), "name the method and an absolute URL, as in: sbx explain GET https://host.test/path"}
	}
	if o.length < 0 {
		return &usageError{"--body-length is negative", "give the size in bytes"}
	}
	req.Method, req.BodyLength = o.method, o.length
	c, err := e.loadConfig()
	if err != nil {
		return err
	}
	workdir, err := os.Getwd()
	if err != nil {
		return fmt.Errorf("finding the working directory: %w", err)
	}
	g, _, err := e.resolve(o.selection, c, workdir)
	if err != nil {
		return err
	}
	answer := explainDecision(req, g.Policy().Decide(req))
	answer.Grant = g.Digest()
	if err := e.printExplanation(answer, o.json); err != nil {
		return err
	}
	if answer.Verdict != "allow" {
		return &exitError{code: exitNegative}
	}
	return nil
}

func explainDecision(req egress.Request, d egress.Decision) explanation {
	x := explanation{Verdict: "deny", Request: egress.Describe(req), Code: d.Code, Nearest: d.Nearest}
	if d.Verdict == egress.Allow {
		x.Verdict = "allow"
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
	if x.Verdict == "allow" {
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
