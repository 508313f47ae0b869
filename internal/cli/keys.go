package cli

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/fractalboxdev/sbx/internal/fence"
	"github.com/fractalboxdev/sbx/internal/store"
	"github.com/fractalboxdev/sbx/internal/term"
)

// maxStdin bounds --stdin, in bytes: it is held in memory, so that what was digested
// is what the command reads.
const maxStdin = 256 << 20

// applyKey sets what --key and --stdin say.
func (o *execOptions) applyKey(e *environment, f *fence.Options) error {
	if o.key == "" && o.keyGiven {
		return &usageError{"--key \"\" is no idempotency key", "name one, or leave --key out: a variable may be unset"}
	}
	if o.key == "" {
		if o.stdin != "" {
			return &usageError{"--stdin needs --key", "redirect it instead: sbx exec ... < " + o.stdin}
		}
		return nil
	}
	f.Key = o.key
	f.OnJoin = func(run string) {
		e.say.Line("the same call is under way as run " + run + ": following it")
	}
	name := o.stdin
	if name == "" {
		name = os.DevNull
	}
	var err error
	f.Stdin, f.StdinDigest, err = holdStdin(name)
	return err
}

// holdStdin copies a file to memory of its own and digests the copy.
func holdStdin(name string) (*os.File, string, error) {
	in, err := os.Open(name)
	if err != nil {
		return nil, "", fmt.Errorf("opening --stdin: %w", err)
	}
	if name == os.DevNull {
		return in, "", nil
	}
	defer in.Close()
	fd, err := unix.MemfdCreate("stdin", unix.MFD_CLOEXEC)
	if err != nil {
		return nil, "", fmt.Errorf("holding --stdin: %w", err)
	}
	held := os.NewFile(uintptr(fd), name)
	hash := sha256.New()
	n, err := io.Copy(io.MultiWriter(held, hash), io.LimitReader(in, maxStdin+1))
	if err == nil && n > maxStdin {
		err = fmt.Errorf("it is larger than %d bytes", maxStdin)
	}
	if err == nil {
		_, err = held.Seek(0, io.SeekStart)
	}
	if err != nil {
		return nil, "", errors.Join(fmt.Errorf("reading --stdin %s: %w", name, err), held.Close())
	}
	return held, hex.EncodeToString(hash.Sum(nil)), nil
}

func newKeysCommand(e *environment) *cobra.Command {
	keys := group("keys", "Idempotency keys: what was called under them")
	var consumer string
	keys.PersistentFlags().StringVar(&consumer, "consumer", "", "`name` of whose keys (default: the user's)")
	scope := func() string { return fence.KeyScope(consumerOr(consumer), "") }
	var asJSON bool
	list := &cobra.Command{
		Use: "list", Short: "List keys, with what became of each call", Args: exactly(),
		RunE: func(cmd *cobra.Command, _ []string) error { return e.listKeys(cmd, scope(), asJSON) },
	}
	list.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	forget := &cobra.Command{
		Use: "forget KEY", Short: "Let a key be used again: you know what became of its call", Args: exactly("a key"),
		RunE: func(cmd *cobra.Command, args []string) error { return e.forgetKey(cmd, scope(), args[0]) },
	}
	keys.AddCommand(list, forget)
	return keys
}

// keyJSON is one row of "sbx keys list --json".
type keyJSON struct {
	Key          string    `json:"key"`
	State        string    `json:"state"` // finished, begun, launched
	Run          string    `json:"run"`
	Payload      string    `json:"payload"`
	Irreversible bool      `json:"irreversible"`
	BegunAt      time.Time `json:"begun_at"`
	FinishedAt   time.Time `json:"finished_at,omitzero"`
}

func (e *environment) openStore(ctx context.Context) (*store.Store, error) {
	state, err := e.configuredState()
	if err != nil {
		return nil, err
	}
	return store.Open(ctx, store.Options{Dir: state})
}

func (e *environment) listKeys(cmd *cobra.Command, scope string, asJSON bool) error {
	s, err := e.openStore(cmd.Context())
	if err != nil {
		return err
	}
	rows := []keyJSON{}
	err = s.View(cmd.Context(), func(t *store.Tx) error {
		calls, err := t.Calls(scope)
		for _, c := range calls {
			rows = append(rows, keyJSON{c.Key, callState(s.Dir(), c), c.Run, c.Payload, c.Irreversible, c.BegunAt, c.FinishedAt})
		}
		return err
	})
	if err != nil {
		return err
	}
	if asJSON {
		return e.printJSON(struct {
			Keys []keyJSON `json:"keys"`
		}{rows})
	}
	cells := make([][]term.Cell, 0, len(rows))
	for _, r := range rows {
		cells = append(cells, term.Cells(r.Key, r.State, r.Run, r.BegunAt.Format(time.RFC3339)))
	}
	e.out.Table([]string{"KEY", "STATE", "RUN", "BEGUN"}, cells)
	return nil
}

// callState says how far a call came. A launched one that does not run was cut off, unless
// its receipt says that it ended: that answers the next call.
func callState(state string, c store.Call) string {
	switch {
	case !c.FinishedAt.IsZero():
		return "finished"
	case c.LaunchedAt.IsZero():
		return "begun"
	}
	if ended, _, err := fence.Ended(state, c.Run); ended != nil && err == nil {
		return "finished"
	}
	return "launched"
}

func (e *environment) forgetKey(cmd *cobra.Command, scope, key string) error {
	s, err := e.openStore(cmd.Context())
	if err != nil {
		return err
	}
	was, err := s.Decide(cmd.Context(), scope, key)
	if err != nil {
		return err
	}
	if was == nil {
		return &usageError{fmt.Sprintf("there is no key %q of this consumer", key), "\"sbx keys list\" has all"}
	}
	line := "forgotten: the next call under " + key + " runs again; run " + was.Run + " had it"
	if ended, result, err := fence.Ended(s.Dir(), was.Run); ended != nil && err == nil {
		line += fmt.Sprintf(", and its command had ended with status %d", result.Status)
	}
	e.say.Line(line)
	return nil
}
