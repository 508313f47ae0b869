package cli

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/spf13/cobra"

	"github.com/fractalboxdev/sbx/internal/admission"
	"github.com/fractalboxdev/sbx/internal/approval"
	"github.com/fractalboxdev/sbx/internal/config"
	"github.com/fractalboxdev/sbx/internal/deploy"
	"github.com/fractalboxdev/sbx/internal/sandbox"
	"github.com/fractalboxdev/sbx/internal/store"
	"github.com/fractalboxdev/sbx/internal/term"
	"github.com/fractalboxdev/sbx/internal/verdict"
)

const healthHelp = `Say in one word whether this deployment may let hostile code in, and why.

ok             its canary passed within the last 24 hours, and nothing failed
unverified     no fresh pass of this very deployment, a binary that was replaced since it
               started, or an advisory that cannot be believed
misconfigured  configuration or store cannot be used, or a probe failed
unsupported    the operator's advisory says so

Exit status: 0 for ok only, else 1.`

func newHealthCommand(e *environment) *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use: "health", Short: "Say whether this deployment may let hostile code in", Long: healthHelp,
		SilenceErrors: true, SilenceUsage: true, Args: exactly(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			h := e.health(cmd.Context())
			if err := e.printHealth(h, asJSON); err != nil {
				return err
			}
			if h.Status != deploy.OK {
				return &exitError{code: exitNegative}
			}
			return nil
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return cmd
}

// health asks everything; whatever cannot be asked is the report's problem.
func (e *environment) health(ctx context.Context) deploy.Health {
	h := deploy.Health{
		Version: e.build.Version, Contract: ContractVersion, Pools: []admission.Pool{},
		Store: deploy.StoreHealth{Known: store.Known()},
	}
	known, err := e.examine(ctx, &h)
	h.Judge(err, known, time.Now())
	return h
}

func (e *environment) examine(ctx context.Context, h *deploy.Health) (deploy.Known, error) {
	c, err := e.loadConfig()
	if err != nil {
		return deploy.Known{}, err
	}
	state, err := e.stateDir(c)
	if err != nil {
		return deploy.Known{}, err
	}
	s, err := openToLook(ctx, state)
	if err != nil {
		h.Store.Error = err.Error()
		return deploy.Known{}, err
	}
	h.Store.Schema = s.Schema()
	if h.Store.Schema != h.Store.Known {
		return deploy.Known{}, fmt.Errorf("the store has taken %d of %d migrations; run: sbx state migrate", h.Store.Schema, h.Store.Known)
	}
	d, err := e.identify(ctx, c, state, s)
	if err != nil {
		return deploy.Known{}, err
	}
	h.Deployment, h.Ceiling = d.id, c.Ceiling.V
	pools, err := admission.Look(ctx, state, c.Caps())
	if err != nil {
		return deploy.Known{}, err
	}
	h.Pools = pools.Pools
	h.Advisory = deploy.ReadAdvisory(ctx, s, c.Advisory.V, e.build.Version, e.signerOptions(c, state))
	return deploy.Recall(ctx, s, d.id)
}

// openToLook opens the store as it is; a machine that has none yet gets one.
func openToLook(ctx context.Context, state string) (*store.Store, error) {
	s, err := store.Open(ctx, store.Options{Dir: state, Existing: true, AsIs: true})
	if errors.Is(err, store.ErrMissing) {
		return store.Open(ctx, store.Options{Dir: state})
	}
	return s, err
}

func (e *environment) signerOptions(c config.Config, state string) approval.Options {
	return approval.Options{
		Signers: c.Signers.V, StateDir: state, UID: os.Geteuid(), RootUID: sandbox.RootUID(), Forbidden: e.writable(""), Now: time.Now(),
	}
}

var statusTones = map[deploy.Status]term.Tone{deploy.OK: term.Good, deploy.Unverified: term.Unsure, deploy.Misconfigured: term.Bad, deploy.Unsupported: term.Bad}

func (e *environment) printHealth(h deploy.Health, asJSON bool) error {
	if asJSON {
		return e.printJSON(h)
	}
	rows := [][]term.Cell{
		{{Text: "status"}, {Text: string(h.Status), Tone: statusTones[h.Status]}},
		term.Cells("version", h.Version), term.Cells("contract", fmt.Sprint(h.Contract)), term.Cells("deployment", h.Deployment),
	}
	if h.Why != "" {
		rows = append(rows[:1:1], append([][]term.Cell{term.Cells("why", h.Why)}, rows[1:]...)...)
	}
	for _, r := range []*verdict.Record{h.Canary, h.Attack, h.Dogfood} {
		if r != nil {
			rows = append(rows, term.Cells(string(r.Kind), fmt.Sprintf("%s at %s: %s", r.Outcome, r.At.Format(time.RFC3339), r.Diagnosis)))
		}
	}
	rows = append(rows, term.Cells("advisory", withDetail(string(h.Advisory.State), h.Advisory.Detail)))
	if len(h.Pools) > 0 {
		rows = append(rows, term.Cells("ceiling", bound(h.Ceiling)+" at a time over all classes"))
	}
	for _, p := range h.Pools {
		rows = append(rows, term.Cells("class "+string(p.Class), fmt.Sprintf("%d of %s busy", p.Busy, bound(p.Cap))))
	}
	e.out.Table(nil, rows)
	return nil
}

func withDetail(state, detail string) string {
	switch {
	case state == "":
		return "not read"
	case detail == "":
		return state
	}
	return state + ": " + detail
}

func bound(limit int) string {
	if limit == 0 {
		return "any number"
	}
	return fmt.Sprint(limit)
}
