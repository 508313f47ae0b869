package cli

import (
	"context"
	"errors"
	"net"
	"net/http"
	"os/signal"
	"path/filepath"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/fractalboxdev/sbx/internal/deploy"
	"github.com/fractalboxdev/sbx/internal/sandbox"
	"github.com/fractalboxdev/sbx/internal/serve"
	"github.com/fractalboxdev/sbx/internal/verdict"
)

const serveHelp = `Answer questions about this deployment over HTTP: GET /health, POST /canary,
POST /dogfood. The verdict that is kept is the rate limit: a fresh one is served as
it is, and there is one probe at a time.

By default on a unix socket that only you can use. --listen takes a literal loopback
address; whoever is on this machine can then ask. Requests that a web page could have
sent get 403.`

func newServeCommand(e *environment) *cobra.Command {
	var socket, listen string
	cmd := &cobra.Command{
		Use: "serve", Short: "Answer questions about this deployment over HTTP", Long: serveHelp,
		SilenceErrors: true, SilenceUsage: true, Args: exactly(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if socket != "" && listen != "" {
				return &usageError{"--socket and --listen exclude each other", "choose one"}
			}
			return e.serve(cmd.Context(), socket, listen)
		},
	}
	cmd.Flags().StringVar(&socket, "socket", "", "listen on this unix socket `path` (default: serve.sock in XDG_RUNTIME_DIR/sbx, else in the state directory)")
	cmd.Flags().StringVar(&listen, "listen", "", "listen on a loopback `address` with port instead, as in 127.0.0.1:7080")
	return cmd
}

func (e *environment) serve(ctx context.Context, socket, listen string) error {
	ctx, stop := signal.NotifyContext(ctx, unix.SIGINT, unix.SIGTERM)
	defer stop()
	l, err := e.listenFor(ctx, socket, listen)
	if err != nil {
		return err
	}
	e.say.Line("serving on " + l.Addr().String())
	target := &localTarget{e}
	err = serve.Run(ctx, l, serve.Answers{
		Canary:  func(ctx context.Context) (any, int) { return target.answer(ctx, verdict.Canary) },
		Dogfood: func(ctx context.Context) (any, int) { return target.answer(ctx, verdict.Dogfood) },
		Health: func(ctx context.Context) (any, int) {
			h := e.health(ctx)
			if h.Status != deploy.OK {
				return h, http.StatusServiceUnavailable
			}
			return h, http.StatusOK
		},
	})
	if errors.Is(err, context.Canceled) {
		return nil
	}
	return err
}

func (e *environment) listenFor(ctx context.Context, socket, listen string) (net.Listener, error) {
	if listen != "" {
		return serve.ListenLoopback(ctx, listen)
	}
	if socket == "" {
		var err error
		if socket, err = e.defaultSocket(); err != nil {
			return nil, err
		}
	}
	return serve.ListenUnix(ctx, socket, sandbox.RootUID())
}

// defaultSocket is where serve listens and verify-deploy --socket finds it.
func (e *environment) defaultSocket() (string, error) {
	if dir := e.getenv("XDG_RUNTIME_DIR"); filepath.IsAbs(dir) {
		return filepath.Join(dir, "sbx", "serve.sock"), nil
	}
	state, err := e.configuredState()
	return filepath.Join(state, "serve.sock"), err
}
