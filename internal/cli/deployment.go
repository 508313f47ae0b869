package cli

import (
	"bytes"
	"context"
	"fmt"
	"os/exec"
	"strings"
	"syscall"
	"time"

	sbx "github.com/fractalboxdev/sbx"
	"github.com/fractalboxdev/sbx/internal/config"
	"github.com/fractalboxdev/sbx/internal/deploy"
	"github.com/fractalboxdev/sbx/internal/event"
	"github.com/fractalboxdev/sbx/internal/fence"
	"github.com/fractalboxdev/sbx/internal/store"
)

// deployment is what verdicts are about, with where they are kept.
type deployment struct {
	config config.Config
	state  string
	store  *store.Store
	id     string
}

func (e *environment) configFiles() []string {
	return []string{config.SystemFile, config.UserFile(e.getenv)}
}

// openDeployment reads the configuration, opens the store and computes which
// deployment this is.
func (e *environment) openDeployment(ctx context.Context) (*deployment, error) {
	c, err := e.loadConfig()
	if err != nil {
		return nil, err
	}
	state, err := e.stateDir(c)
	if err != nil {
		return nil, err
	}
	s, err := e.storeIn(state)()
	if err != nil {
		return nil, err
	}
	return e.identify(ctx, c, state, s)
}

func (e *environment) identify(ctx context.Context, c config.Config, state string, s *store.Store) (*deployment, error) {
	d, err := deploy.Identify(ctx, s, e.deployOptions())
	if err != nil {
		return nil, err
	}
	return &deployment{config: c, state: state, store: s, id: d.ID()}, nil
}

// options are what the fence is told of every run that sbx makes for itself. Such a run
// never queues, whatever the operator wants of others: whoever asked for it tries again.
func (d *deployment) options(e *environment, consumer string) fence.Options {
	return fence.Options{
		Self: e.build.Self, Env: e.env, Grace: d.config.Grace.V, StateDir: d.state, Consumer: consumer,
		Config: e.configFiles(), Version: e.build.Version, OnSwept: e.sweptLines, Classes: d.config.Definition,
		Store: func() (*store.Store, error) { return d.store, nil }, Class: d.config.DefaultClass.V, Pools: waiting{queueGiven: true}.apply(e.poolsOf(d.config)),
	}
}

func (e *environment) deployOptions() deploy.Options {
	version, _ := libseccomp()
	return deploy.Options{Profiles: sbx.BuiltinProfiles, Config: e.configFiles(), Libseccomp: version, Binary: e.binary}
}

// requireCanary refuses a run unless the floor of this deployment has been proved
// lately.
func (e *environment) requireCanary(ctx context.Context) error {
	d, err := e.openDeployment(ctx)
	if err != nil {
		return err
	}
	known, err := deploy.Recall(ctx, d.store, d.id)
	if err != nil {
		return err
	}
	if why := deploy.Cleared(known, d.id, time.Now()); why != "" {
		return &event.Refusal{
			Kind: event.RefusedSandbox, Code: "canary-required",
			Message: "this run needs a fresh pass of the canary: " + why, Next: "run: sbx canary --fresh",
		}
	}
	return nil
}

// endWithin is how long one of sbx's own commands may take to take everything back, once
// it has been asked to end.
const endWithin = 20 * time.Second

// again runs one of sbx's own commands in a process of its own: a fencing sbx is split
// before it starts. It returns what the command printed; the error has what it said. The
// command is asked to end with the context, and when this process dies.
func (e *environment) again(ctx context.Context, argv ...string) ([]byte, error) {
	cmd := exec.CommandContext(ctx, "/proc/self/exe", argv...) //nolint:gosec // one of our own commands
	cmd.Args[0], cmd.Env = "sbx", e.env
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGTERM}
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.WaitDelay = endWithin
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		return stdout.Bytes(), fmt.Errorf("%w: %s", err, strings.TrimSpace(stderr.String()))
	}
	return stdout.Bytes(), nil
}
