package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os/signal"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/fractalboxdev/sbx/internal/deploy"
	"github.com/fractalboxdev/sbx/internal/dogfood"
	"github.com/fractalboxdev/sbx/internal/fence"
	"github.com/fractalboxdev/sbx/internal/verdict"
)

const dogfoodHelp = `Rehearse with sbx what it is for: clone a repository in a sandbox under an
idempotency key, and make the same call once more, which has to be answered from the
receipt of the first. The repository is a small one that sbx serves itself, or with
--repo a public one.

The verdict is kept for this deployment, as that of the canary is; with --repo only
one that passed, and it is always made anew.

Exit status: 0 passed; 1 failed, inconclusive or deferred; 125 sbx could not try.`

// dogfoodConsumer owns the keys of rehearsals.
const dogfoodConsumer = "dogfood"

func newDogfoodCommand(e *environment) *cobra.Command {
	o := &dogfoodOptions{}
	cmd := &cobra.Command{
		Use: "dogfood", Short: "Rehearse a clone in a sandbox, twice under one key", Long: dogfoodHelp,
		SilenceErrors: true, SilenceUsage: true, Args: exactly(),
		RunE: func(cmd *cobra.Command, _ []string) error { return o.run(cmd.Context(), e) },
	}
	f := cmd.Flags()
	f.StringVar(&o.repo, "repo", "", "clone this public repository, as in `owner/name`")
	f.BoolVar(&o.fresh, "fresh", false, "rehearse again, also where a fresh verdict is known")
	f.BoolVar(&o.json, "json", false, "print JSON")
	return cmd
}

func newDogfoodPassCommand(e *environment) *cobra.Command {
	var repo string
	cmd := &cobra.Command{
		Use: dogfood.Command + " PLAN", Short: "One pass of a rehearsal", Hidden: true,
		SilenceErrors: true, SilenceUsage: true, Args: exactly("a plan"),
		RunE: func(cmd *cobra.Command, args []string) error { return e.dogfoodPass(cmd.Context(), repo, args[0]) },
	}
	cmd.Flags().StringVar(&repo, "repo", "", "as of dogfood")
	return cmd
}

type dogfoodOptions struct {
	repo        string
	fresh, json bool
}

func (o *dogfoodOptions) run(ctx context.Context, e *environment) error {
	d, err := e.openDeployment(ctx)
	if err != nil {
		return err
	}
	if !o.fresh && o.repo == "" {
		known, err := deploy.Fresh(ctx, d.store, d.id, verdict.Dogfood, time.Now())
		if err != nil {
			return err
		}
		if known != nil {
			return e.conclude(canaryJSON{Record: *known, Cached: true}, nil, o.json)
		}
	}
	// A rehearsal that is asked to end, or whose reader has gone, still takes back what it has.
	ctx, stop := signal.NotifyContext(ctx, unix.SIGINT, unix.SIGTERM, unix.SIGHUP, unix.SIGQUIT, unix.SIGPIPE)
	defer stop()
	done := e.say.Progress("rehearsing")
	r, err := dogfood.Run(ctx, dogfood.Options{
		Repo: o.repo,
		Pass: func(ctx context.Context, plan string) (verdict.Pass, error) { return e.startPass(ctx, o.repo, plan) },
		Forget: func(ctx context.Context, key string) error {
			_, err := d.store.Decide(context.WithoutCancel(ctx), fence.KeyScope(dogfoodConsumer, ""), key)
			return err
		},
	})
	done()
	if err != nil {
		return err
	}
	r.Deployment = d.id
	// A public repository that is gone, or a network that is, says nothing of the deployment.
	if o.repo == "" || r.Outcome == verdict.Passed {
		if err := deploy.Remember(ctx, d.store, r); err != nil {
			return err
		}
	}
	return e.conclude(canaryJSON{Record: r}, nil, o.json)
}

// startPass makes one pass in a process of its own.
func (e *environment) startPass(ctx context.Context, repo, plan string) (p verdict.Pass, err error) {
	text, err := e.again(ctx, dogfood.Command, "--repo", repo, "--", plan)
	if err != nil {
		return p, fmt.Errorf("rehearsing: %w", err)
	}
	if err := json.Unmarshal(text, &p); err != nil {
		return p, fmt.Errorf("reading what a pass came to: %w", err)
	}
	return p, nil
}

func (e *environment) dogfoodPass(ctx context.Context, repo, plan string) error {
	d, err := e.openDeployment(ctx)
	if err != nil {
		return err
	}
	o := execOptions{selection: selection{profiles: []string{"public-repo-read"}, inputs: []string{"repo=" + repo}}}
	f := d.options(e, dogfoodConsumer)
	f.Timeout = 10 * time.Minute
	f.Derive = func(context.Context) (fence.Derived, error) {
		if repo == "" {
			return fence.Derived{}, errors.New("a rehearsal has neither a repository nor an origin")
		}
		return o.derive(e, d.config, "/")
	}
	p, err := dogfood.MakePass(ctx, f, plan)
	if err != nil {
		return err
	}
	return e.printJSON(p)
}
