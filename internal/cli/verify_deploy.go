package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os/exec"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/fractalboxdev/sbx/internal/deploy"
	"github.com/fractalboxdev/sbx/internal/profile"
	"github.com/fractalboxdev/sbx/internal/remote"
	"github.com/fractalboxdev/sbx/internal/term"
	"github.com/fractalboxdev/sbx/internal/verdict"
)

const verifyHelp = `Gate a deploy: migrations, canary, health and dogfood in this order, or one of them.
The first that does not pass ends it. What may change by waiting, a deferred probe or
an unverified health, is tried again; everything else decides at once.

All answers have to be about one deployment. Behind --socket it has to be this sbx's own,
which a server that runs since before an upgrade is not, unless --deployment says another
("any": whatever answers); behind --url any will do unless --deployment says which.

Exit status: 0 passed; 1 decided otherwise, or tried in vain; 2 the command line means nothing.`

// exitUsage is what verify-deploy exits with when its command line means nothing.
const exitUsage = 2

func newVerifyDeployCommand(e *environment) *cobra.Command {
	o := &verifyOptions{}
	cmd := &cobra.Command{
		Use: "verify-deploy [migrations|canary|health|dogfood]", Short: "Gate a deploy by what was proved of it", Long: verifyHelp,
		SilenceErrors: true, SilenceUsage: true, Args: cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, args []string) error { return o.run(cmd.Context(), e, args) },
	}
	f := cmd.Flags()
	f.StringVar(&o.socket, "socket", "", "ask the sbx that serves on this unix socket `path`")
	f.StringVar(&o.url, "url", "", "ask the sbx that serves at this `URL`")
	f.StringVar(&o.deployment, "deployment", "", "the `ID` of the deployment that has to answer, as health prints it, or any (default: with --socket this sbx's own)")
	f.IntVar(&o.attempts, "attempts", 10, "how often a check is tried at most")
	f.DurationVar(&o.interval, "interval", 30*time.Second, "`time` between two tries")
	f.BoolVar(&o.json, "json", false, "print JSON")
	cmd.SetFlagErrorFunc(func(c *cobra.Command, err error) error { return &exitError{exitUsage, flagError(c, err)} })
	return cmd
}

type verifyOptions struct {
	socket, url string
	deployment  string
	attempts    int
	interval    time.Duration
	json        bool
}

func (o *verifyOptions) run(ctx context.Context, e *environment, args []string) error {
	checks, target, err := o.plan(e, args)
	if err != nil {
		return &exitError{exitUsage, err}
	}
	expected, err := o.expected(ctx, e)
	if err != nil {
		return &exitError{exitNegative, err}
	}
	v := deploy.Verification{Attempts: o.attempts, Interval: o.interval, Deployment: expected, OnAnswer: o.tell(e)}
	answers, passed, err := deploy.Verify(ctx, target, checks, v)
	if err != nil {
		return &exitError{exitNegative, err}
	}
	if o.json {
		err := e.printJSON(struct {
			Passed  bool            `json:"passed"`
			Answers []deploy.Answer `json:"answers"`
		}{passed, answers})
		if err != nil {
			return err
		}
	}
	if !passed {
		return &exitError{code: exitNegative}
	}
	return nil
}

// anyDeployment is what --deployment says of a server that may be another build.
const anyDeployment = "any"

// expected is the id of the deployment that has to answer, "" for any.
func (o *verifyOptions) expected(ctx context.Context, e *environment) (string, error) {
	switch {
	case o.deployment == anyDeployment, o.deployment == "" && o.socket == "":
		return "", nil
	case o.deployment != "":
		return o.deployment, nil
	}
	h := e.health(ctx)
	if h.Deployment == "" {
		return "", fmt.Errorf("telling which deployment this sbx is, as the server has to be the same (unless --deployment says another): %s", h.Why)
	}
	return h.Deployment, nil
}

// plan reads the command line. Every error of it is one of usage.
func (o *verifyOptions) plan(e *environment, args []string) ([]deploy.Check, deploy.Target, error) {
	checks, err := checksOf(args)
	if err != nil {
		return nil, nil, err
	}
	switch {
	case o.socket != "" && o.url != "":
		return nil, nil, &usageError{"--socket and --url exclude each other", "choose one"}
	case o.attempts < 1 || o.interval < 0:
		return nil, nil, &usageError{"--attempts has to be at least 1, and --interval not negative", "leave them out for 10 tries, 30s apart"}
	case o.deployment != "" && o.deployment != anyDeployment && !isDigest(o.deployment):
		return nil, nil, &usageError{fmt.Sprintf("--deployment is %q, which is no id", o.deployment), "take the 64 digits that \"sbx health\" prints, or any"}
	case o.socket != "":
		state, _ := e.configuredState() // without one, no place is known to be hidden
		c, err := remote.NewSocket(o.socket, state)
		return checks, deploy.Remote{Client: c}, err
	case o.url != "":
		c, err := remote.NewURL(o.url)
		return checks, deploy.Remote{Client: c}, err
	}
	return checks, &localTarget{e}, nil
}

// isDigest reports whether text is a SHA-256 in hexadecimal, as an id is.
func isDigest(text string) bool {
	return len(text) == 64 && strings.Trim(text, "0123456789abcdef") == ""
}

func checksOf(args []string) ([]deploy.Check, error) {
	all := deploy.AllChecks()
	if len(args) == 0 {
		return all, nil
	}
	var known []string
	for _, c := range all {
		if args[0] == string(c) && len(args) == 1 {
			return []deploy.Check{c}, nil
		}
		known = append(known, string(c))
	}
	what := fmt.Sprintf("verify-deploy does not know %q", strings.Join(args, " "))
	if near := profile.Nearest(args[0], known); near != "" && len(args) == 1 {
		what += fmt.Sprintf(" (did you mean %q?)", near)
	}
	return nil, &usageError{what, "name one of " + strings.Join(known, ", ") + ", or none for all"}
}

// tell prints each answer as it comes.
func (o *verifyOptions) tell(e *environment) func(deploy.Check, deploy.Answer, bool) {
	return func(c deploy.Check, a deploy.Answer, again bool) {
		line := fmt.Sprintf("%s: %s", c, a.Said)
		if a.Detail != "" {
			line += ": " + term.Escape(a.Detail)
		}
		if again {
			e.say.Line(fmt.Sprintf("%s; trying again in %s (%d of %d)", line, o.interval, a.Tries, o.attempts))
			return
		}
		if !o.json {
			e.out.Raw(line + "\n")
		}
	}
}

// localTarget is the sbx of this binary. Each probe is a process of its own: a
// fencing sbx is split before it starts.
type localTarget struct{ e *environment }

// Health tells what is known of this deployment.
func (t *localTarget) Health(ctx context.Context) (deploy.Health, error) { return t.e.health(ctx), nil }

// Probe makes a probe, or shows the fresh verdict of an earlier one. The process that does
// would run the binary of this one, also where that was replaced.
func (t *localTarget) Probe(ctx context.Context, kind verdict.Kind) (verdict.Record, error) {
	if err := t.e.binary.Check(); err != nil {
		return verdict.Record{}, fmt.Errorf("unverified: %w", err)
	}
	text, err := t.e.again(ctx, string(kind), "--json")
	exit, ended := errors.AsType[*exec.ExitError](err)
	if err != nil && (!ended || exit.ExitCode() != exitNegative) {
		return verdict.Record{}, fmt.Errorf("probing this deployment: %w", err)
	}
	var r verdict.Record
	if err := json.Unmarshal(text, &r); err != nil {
		return verdict.Record{}, fmt.Errorf("reading the probe's verdict: %w", err)
	}
	return r, nil
}

// answer is Probe for the server.
func (t *localTarget) answer(ctx context.Context, kind verdict.Kind) (any, int) {
	r, err := t.Probe(ctx, kind)
	if err != nil {
		return struct {
			Error string `json:"error"`
		}{err.Error()}, http.StatusInternalServerError
	}
	return r, http.StatusOK
}
