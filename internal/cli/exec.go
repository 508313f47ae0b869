package cli

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/user"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/fractalboxdev/sbx/internal/class"
	"github.com/fractalboxdev/sbx/internal/config"
	"github.com/fractalboxdev/sbx/internal/event"
	"github.com/fractalboxdev/sbx/internal/fence"
	"github.com/fractalboxdev/sbx/internal/floor"
	"github.com/fractalboxdev/sbx/internal/proxy"
	"github.com/fractalboxdev/sbx/internal/registry"
	"github.com/fractalboxdev/sbx/internal/report"
	"github.com/fractalboxdev/sbx/internal/sandbox"
	"github.com/fractalboxdev/sbx/internal/secret"
)

// exitDenied is the status of a command that succeeded although something was
// denied, with --fail-on-denial.
const exitDenied = 123

// execOptions are the flags of exec.
type execOptions struct {
	selection
	dir          string
	paths        wishes
	timeout      time.Duration
	limits       limitFlags
	bounds       boundFlags
	grace        time.Duration
	artifacts    string
	env          []string
	quiet        bool
	dryRun       bool
	json         bool
	outcome      string
	failOnDenial bool
	noTTY        bool
	noCache      bool
	needCanary   bool
	waitChildren bool
	rawTerminal  bool
	withParent   bool
	key          string
	keyGiven     bool
	stdin        string
	consumer     string
	position     string
	runName      string
	consent      fence.Consent
	waiting      waiting
	mask         *secret.Redactor // of what is printed about the run
}

// summaryRows is how many denials the summary shows; the rest is counted.
const summaryRows = 20

const execHelp = `Run one command in a sandbox of its own: the working directory is writable,
toolchains are read-only, everything else of the host is absent. Without a
profile there is no network. What was denied is said on stderr and kept in the
run's directory.

A command that cannot be taken back ("sbx floor list") needs a person's approval
("sbx approve"). That list guards ordinary paths; what guards against hostile
commands is that nothing leaves the sandbox but what was granted.

Exit status: the command's own, 128+n for a signal, 123 denied (only with
--fail-on-denial), 124 timeout, 125 sbx refused or failed, 126 not executable,
127 not found, 255 the output could not be passed on.`

func newExecCommand(e *environment) *cobra.Command {
	o := &execOptions{}
	cmd := &cobra.Command{
		Use: "exec [flags] -- COMMAND [ARGUMENT]...", Short: "Run one command in the sandbox", Long: execHelp,
		Example:       "  sbx exec -- make test\n  sbx exec --profile js-install -- npm ci",
		SilenceErrors: true, SilenceUsage: true,
		RunE: func(cmd *cobra.Command, args []string) error {
			o.waiting.queueGiven, o.waiting.waitGiven = cmd.Flags().Changed("queue"), cmd.Flags().Changed("wait")
			o.keyGiven = cmd.Flags().Changed("key")
			return o.run(cmd.Context(), e, args)
		},
	}
	o.addFlags(cmd)
	return cmd
}

func (o *execOptions) addFlags(cmd *cobra.Command) {
	o.addTo(cmd)
	f := cmd.Flags()
	f.SetInterspersed(false)
	f.StringVarP(&o.dir, "directory", "C", "", "run in this `directory`")
	o.paths.addTo(f)
	f.DurationVar(&o.timeout, "timeout", 0, "end the command after this `duration` (default: none)")
	o.limits.addTo(f)
	o.bounds.addTo(f)
	f.DurationVar(&o.grace, "grace", 0, "time between SIGTERM and SIGKILL (default: operator configuration, else 5s)")
	f.StringVar(&o.artifacts, "artifacts", "", "copy the run's records into this `directory` when everything is dead")
	f.StringArrayVar(&o.env, "env", nil, "pass on a variable, as `NAME` or NAME=VALUE; may be given several times")
	f.BoolVar(&o.quiet, "quiet", false, "no lines about denials while the command runs, no summary")
	f.BoolVar(&o.dryRun, "dry-run", false, "print grant, mounts and environment, and run nothing")
	f.BoolVar(&o.json, "json", false, "print the outcome as one JSON object on stdout; the command's stdout goes to stderr")
	f.StringVar(&o.outcome, "outcome", "", "write the outcome as JSON into this new `file`")
	f.BoolVar(&o.failOnDenial, "fail-on-denial", false, "exit 123 when the command succeeded although something was denied")
	f.BoolVar(&o.noTTY, "no-tty", false, "no terminal for the command, also where sbx has one")
	f.BoolVar(&o.noCache, "no-cache", false, "do not keep the profile's caches")
	f.BoolVar(&o.waitChildren, "wait-children", false, "wait for what the command leaves running, instead of ending it")
	f.BoolVar(&o.withParent, "die-with-parent", false, "end the run as by SIGTERM when the process that started sbx ends")
	f.BoolVar(&o.rawTerminal, "raw-terminal", false, "pass terminal commands on that reach the clipboard, or make the terminal type")
	f.BoolVar(&o.needCanary, "require-canary", false, "run nothing unless a canary of this deployment passed lately")
	f.StringVar(&o.key, "key", "", "idempotency `key`: the same call under it is answered from the first one's receipt, or follows it while it runs")
	f.StringVar(&o.stdin, "stdin", "", "with --key: the command's stdin is this `file`, else nothing")
	f.StringVar(&o.position, "position", "", "`what` becomes of requests that are not granted: enforce refuses, report forwards and records, legacy forwards (default: that of the run name's rollout, else enforce)")
	f.StringVar(&o.runName, "run-name", "", "`name` of the rollout that the run has a part in (default: the profiles, joined by +)")
	f.StringVar(&o.consent.File, "attestation", "", "`file` that \"sbx approve\" wrote, for a command that cannot be taken back")
	f.StringVar(&o.consent.Task, "task", "", "`id` of the task that the attestation has to name")
	f.IntVar(&o.consent.Ordinal, "ordinal", -1, "`number` within the task that the attestation has to name")
	f.BoolVar(&o.consent.AcceptReplay, "accept-replay", false, "take an attestation also where the store may forget what was spent")
	f.BoolVar(&o.waiting.queue, "queue", false, "where the pool of the run's class is full, wait for a slot (default: operator configuration)")
	f.DurationVar(&o.waiting.wait, "wait", 0, "wait for a slot for this `duration` at most (default: operator configuration, else 10m)")
	f.StringVar(&o.consumer, "consumer", "", "`name` of who asks (default: the user's)")
}

func (o *execOptions) run(ctx context.Context, e *environment, argv []string) error {
	c, f, err := o.prepare(e, argv)
	if err != nil {
		return o.refuseEarly(e, argv, err)
	}
	if o.dryRun {
		return o.preview(ctx, e, f)
	}
	outcome, err := openOutcome(o.outcome)
	if err != nil {
		return err
	}
	if !o.quiet && !c.Quiet.V {
		f.OnDenial, f.OnLimits = e.say.DenialLine, e.unheldLines
	}
	f.OnSwept = func(swept []event.Swept) { e.sweptLines(swept) }
	f.OnSetAside = func(a event.Aside, archive string) {
		for _, line := range asideLines(a, sandbox.Resolve(f.Workdir), archive) {
			e.say.Line(line)
		}
	}
	f.OnSecrets = func(r *secret.Redactor) { o.mask = r; e.say.Mask(r.Text) }
	f.OnPosition = func(p proxy.Position, r *event.Rollout) {
		if p != proxy.Enforce {
			e.say.Line(positionWarning(p, r))
		}
	}
	f.Busy = func(busy bool) {
		if busy {
			e.say.Hold()
		} else {
			e.say.Release()
		}
	}
	out := fence.Run(ctx, f)
	return o.conclude(e, c, out, outcome)
}

// prepare is what comes before the fence.
func (o *execOptions) prepare(e *environment, argv []string) (c config.Config, f fence.Options, err error) {
	if err = o.paths.check(argv); err != nil {
		return c, f, err
	}
	if c, err = e.loadConfig(); err != nil {
		return c, f, err
	}
	f, err = o.fenceOptions(e, c, argv)
	return c, f, err
}

// fenceOptions turns flags and configuration into what the fence is told.
func (o *execOptions) fenceOptions(e *environment, c config.Config, argv []string) (fence.Options, error) {
	dir, err := workingDirectory(o.dir)
	if err != nil {
		return fence.Options{}, err
	}
	state, err := e.stateDir(c)
	if err != nil {
		return fence.Options{}, err
	}
	position, err := parsePosition(o.position)
	if err != nil {
		return fence.Options{}, err
	}
	name, err := runName(o.runName, o.profiles)
	if err != nil {
		return fence.Options{}, err
	}
	f := fence.Options{
		Position: position, PositionGiven: o.position != "", RunName: name,
		Self: e.build.Self, Argv: argv, Workdir: dir, Paths: o.paths.list, Env: e.env,
		Extra: slices.Concat(c.EnvAllow.V, o.env), Timeout: o.timeout, Grace: o.grace, NoTTY: o.noTTY, NoCache: o.noCache,
		WaitChildren: o.waitChildren, RawTerminal: o.rawTerminal, WithParent: o.withParent,
		StateDir: state, Config: e.configFiles(), Consumer: consumerOr(o.consumer), Version: e.build.Version,
		Classes: c.Definition,
		Stdin:   e.stdin, Stdout: e.stdout, Stderr: e.stderr,
		Store: e.storeIn(state), Class: c.DefaultClass.V, Pools: o.waiting.apply(e.poolsOf(c)),
		Derive: func(context.Context) (fence.Derived, error) { return o.derive(e, c, dir) },
	}
	if f.Consent, err = o.consentOf(e, c, dir, argv); err != nil {
		return fence.Options{}, err
	}
	if f.Limits, err = o.limits.parse(o.timeout); err != nil {
		return fence.Options{}, err
	}
	if f.Bounds, err = o.bounds.parse(); err != nil {
		return fence.Options{}, err
	}
	if o.artifacts != "" {
		if f.Artifacts, err = filepath.Abs(o.artifacts); err != nil {
			return fence.Options{}, fmt.Errorf("finding --artifacts %s: %w", o.artifacts, err)
		}
	}
	if o.json {
		f.Stdout = e.stderr
	}
	if err := o.applyKey(e, &f); err != nil {
		return fence.Options{}, err
	}
	if o.needCanary || c.CanaryFirst.V {
		f.Require = e.requireCanary
	}
	if f.Timeout == 0 {
		f.Timeout = c.Timeout.V
	}
	if f.Grace == 0 {
		f.Grace = c.Grace.V
	}
	return f, nil
}

// consentOf is what was given for an irreversible command, and who may give it.
func (o *execOptions) consentOf(e *environment, c config.Config, dir string, argv []string) (fence.Consent, error) {
	consent := o.consent
	var task string
	if consent.Ordinal < -1 {
		return consent, &usageError{fmt.Sprintf("--ordinal %d is none", consent.Ordinal), "count from 0"}
	}
	if consent.Ordinal >= 0 {
		task = fmt.Sprintf("--ordinal %d ", consent.Ordinal)
	}
	var err error
	if consent.File != "" {
		consent.Gate, err = e.approvalOptions(c, dir)
	}
	consent.HowTo = func() string {
		return "sbx approve " + o.selection.flags() + flag("-C", o.dir) + flag("--position", o.position) + flag("--run-name", o.runName) +
			flag("--task", consent.Task) + task + "-- " + floor.Shown(argv) + "; then add to this command: --attestation FILE"
	}
	return consent, err
}

// parsePosition reads --position; nothing is enforce.
func parsePosition(text string) (proxy.Position, error) {
	if text == "" {
		return proxy.Enforce, nil
	}
	position, err := proxy.ParsePosition(text)
	if err != nil {
		return position, &usageError{fmt.Sprintf("--position %s is none", text), "name one of enforce, report, legacy"}
	}
	return position, nil
}

func workingDirectory(dir string) (string, error) {
	if dir == "" {
		wd, err := os.Getwd()
		if err != nil {
			return "", fmt.Errorf("finding the working directory: %w", err)
		}
		return wd, nil
	}
	abs, err := filepath.Abs(dir)
	if err != nil {
		return "", fmt.Errorf("finding the directory %s: %w", dir, err)
	}
	info, err := os.Stat(abs)
	if err != nil || !info.IsDir() {
		return "", &usageError{fmt.Sprintf("-C %s is not a directory", dir), "name an existing directory"}
	}
	return abs, nil
}

// consumerOr is the consumer that was named, else the user who gives the command.
func consumerOr(named string) string {
	if named != "" {
		return named
	}
	return whoami()
}

// whoami is the user who gives the command.
func whoami() string {
	if u, err := user.Current(); err == nil {
		return u.Username
	}
	return fmt.Sprintf("uid-%d", os.Geteuid())
}

// derive makes the grant and what points the clients at its endpoints.
func (o *execOptions) derive(e *environment, c config.Config, dir string) (fence.Derived, error) {
	if o.selection.empty() {
		return fence.Derived{}, nil // no profile, no network: nothing to read
	}
	r, err := e.resolve(o.selection, c, dir)
	if err != nil {
		return fence.Derived{}, recipeRefusal(err)
	}
	if !o.dryRun {
		if err := r.remember(); err != nil {
			return fence.Derived{}, recipeRefusal(err)
		}
	}
	d := fence.Derived{Grant: r.grant, Approvals: r.approvals}
	for _, ecosystem := range r.grant.Ecosystems() {
		if err := addClient(&d, r.endpoints, ecosystem); err != nil {
			return fence.Derived{}, err
		}
	}
	return d, nil
}

func addClient(d *fence.Derived, endpoints *registry.Resolver, ecosystem string) error {
	env, err := endpoints.ClientEnv(ecosystem)
	if err != nil {
		return fmt.Errorf("pointing %s clients at their endpoints: %w", ecosystem, err)
	}
	files, err := endpoints.ClientFiles(ecosystem)
	if err != nil {
		return fmt.Errorf("pointing %s clients at their endpoints: %w", ecosystem, err)
	}
	d.ClientEnv = append(d.ClientEnv, env...)
	for _, f := range files {
		d.Files = append(d.Files, sandbox.File{Path: f.Path, Content: f.Content})
	}
	return nil
}

// conclude says what is left to say and maps the outcome to the exit status.
func (o *execOptions) conclude(e *environment, c config.Config, out fence.Outcome, outcome *outcomeFile) error {
	e.say.Release()
	if !o.quiet && c.Summary.V {
		e.say.Summary(report.Summarise(out.Receipt.Run, out.Dir, out.Denials, summaryRows))
	}
	if !o.quiet {
		e.limitLines(out.Receipt.Limits)
	}
	if out.Exit == 0 && out.Receipt.Result.Denials > 0 && (o.failOnDenial || c.FailOnDenial.V) {
		out.Exit = exitDenied
	}
	if err := o.write(e, out, outcome); err != nil {
		return err
	}
	if r := out.Receipt.Rollout; r != nil && r.Problem != "" {
		e.say.Line("what this run would have been denied could not be noted for the rollout " + r.Name + ", whose window the next run opens anew: " + r.Problem)
	}
	if a := out.Receipt.Attestation; a != nil && a.Use == event.AttestationUnneeded && !o.quiet {
		e.say.Line("the command is not on the floor list: the attestation was neither read nor spent")
	}
	if r := out.Receipt.Result.Refusal; r != nil {
		return &exitError{out.Exit, r}
	}
	if s := out.Receipt.Result.Stream; s != "" {
		return &exitError{out.Exit, errors.New(s)}
	}
	if out.Receipt.Result.TimedOut {
		return &exitError{out.Exit, fmt.Errorf("the command was ended after %s", limitOf(out.Receipt.Limits, class.Time))}
	}
	if out.Receipt.Result.Killed {
		return &exitError{out.Exit, errors.New("the run was ended by sbx kill")}
	}
	if out.Exit != 0 {
		return &exitError{code: out.Exit}
	}
	return nil
}

// limitOf returns the value of a limit of the run.
func limitOf(limits []event.Limit, name class.Limit) string {
	for _, l := range limits {
		if l.Name == string(name) {
			return l.Value
		}
	}
	return "no time"
}

// sweptLines says what earlier runs had left behind.
func (e *environment) sweptLines(swept []event.Swept) {
	for _, s := range swept {
		line := fmt.Sprintf("swept run %s, whose sbx was killed: %s", s.Run, orNothing(s))
		if s.Freed != "" && s.Detail != "" {
			line += "; freed " + s.Freed
		}
		if len(s.SetAside)+s.Left > 0 {
			line += "; set aside in its directory: " + named(s.SetAside, s.Left, "")
		}
		e.say.Line(line)
	}
}

func orNothing(s event.Swept) string {
	switch {
	case s.Detail != "":
		return s.Detail
	case s.Freed != "":
		return "freed " + s.Freed
	case len(s.Removed) > 0:
		return "removed " + strings.Join(s.Removed, ", ")
	}
	return "its receipt says interrupted, nothing was left"
}
