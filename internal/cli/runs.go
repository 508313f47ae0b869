package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/fractalboxdev/sbx/internal/artifact"
	"github.com/fractalboxdev/sbx/internal/event"
	"github.com/fractalboxdev/sbx/internal/fence"
	"github.com/fractalboxdev/sbx/internal/store"
	"github.com/fractalboxdev/sbx/internal/term"
)

func newRunsCommand(e *environment) *cobra.Command {
	runs := group("runs", "The records of runs: what was done, denied and written")
	runs.AddCommand(newRunsListCommand(e), newRunsShowCommand(e), newRunsLogsCommand(e), newRunsAnnotateCommand(e), newRunsGCCommand(e))
	return runs
}

// history is the runs of the caller's state directory.
type history struct {
	state string
	store func() (*store.Store, error)
	ids   []string // newest first
}

func (e *environment) history() (*history, error) {
	state, err := e.configuredState()
	if err != nil {
		return nil, err
	}
	ids, err := artifact.History(state)
	return &history{state, e.storeIn(state), ids}, err
}

func (h *history) dir(id string) string { return filepath.Join(h.state, "runs", id) }

// find returns the run that an id, or a beginning that is its alone, names.
func (h *history) find(name string) (string, error) {
	var matching []string
	for _, id := range h.ids {
		if id == name {
			return id, nil
		}
		if strings.HasPrefix(id, name) {
			matching = append(matching, id)
		}
	}
	switch len(matching) {
	case 1:
		return matching[0], nil
	case 0:
		return "", &usageError{fmt.Sprintf("there is no run %q", name), "\"sbx runs list\" has all"}
	}
	return "", &usageError{fmt.Sprintf("%d runs begin with %q", len(matching), name), "type more of it: " + strings.Join(matching[:min(3, len(matching))], ", ")}
}

// runNamed is which run a command is about: by id, or by the key of a consumer.
type runNamed struct{ key, consumer string }

func (n *runNamed) flags(cmd *cobra.Command) {
	cmd.Flags().StringVar(&n.key, "key", "", "the run that an idempotency `key` stands for")
	cmd.Flags().StringVar(&n.consumer, "consumer", "", "with --key: `name` of whose key it is (default: the user's)")
}

// resolve finds the run. Another consumer's key is another key.
func (n *runNamed) resolve(ctx context.Context, h *history, args []string) (string, error) {
	if (n.key == "") == (len(args) == 0) {
		return "", &usageError{"name a run, or a key with --key", "type: sbx runs show RUN"}
	}
	if n.key == "" {
		return h.find(args[0])
	}
	s, err := h.store()
	if err != nil {
		return "", err
	}
	var call *store.Call
	scope := fence.KeyScope(consumerOr(n.consumer), "")
	err = s.View(ctx, func(t *store.Tx) (err error) { call, err = t.Call(scope, n.key); return err })
	if err != nil {
		return "", err
	}
	if call == nil {
		return "", &usageError{fmt.Sprintf("there is no key %q of this consumer", n.key), "\"sbx keys list\" has all"}
	}
	return h.find(call.Run)
}

func atMostOneRun(_ *cobra.Command, args []string) error {
	if len(args) > 1 {
		return &usageError{fmt.Sprintf("there is one run too many: %q", args[1]), "name one"}
	}
	return nil
}

// runRow is one line of "sbx runs list".
type runRow struct {
	Run       string    `json:"run"`
	Consumer  string    `json:"consumer"`
	State     string    `json:"state"` // running, finished, refused, interrupted, unreadable
	Exit      int       `json:"exit"`  // -1 when nobody knows
	Denials   int       `json:"denials"`
	StartedAt time.Time `json:"started_at,omitzero"`
	Command   []string  `json:"command"`
	Problem   string    `json:"problem,omitempty"` // why the receipt is unreadable
}

func newRunsListCommand(e *environment) *cobra.Command {
	var asJSON bool
	var limit int
	var consumer string
	cmd := &cobra.Command{
		Use: "list", Short: "List runs, newest first", Args: exactly(),
		RunE: func(*cobra.Command, []string) error { return e.listRuns(limit, consumer, asJSON) },
	}
	cmd.Flags().IntVarP(&limit, "limit", "n", 20, "at most so `many`; 0: all")
	cmd.Flags().StringVar(&consumer, "consumer", "", "only those of this consumer, by `name`")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return cmd
}

func (e *environment) listRuns(limit int, consumer string, asJSON bool) error {
	h, err := e.history()
	if err != nil {
		return err
	}
	rows := []runRow{}
	for _, id := range h.ids {
		if limit > 0 && len(rows) == limit {
			break
		}
		row := h.row(id)
		if row.Problem != "" {
			e.say.Line(row.Problem)
		}
		// Whose an unreadable run is may be unknown: it is shown rather than missed.
		if consumer == "" || row.Consumer == consumer || row.Consumer == "" && row.Problem != "" {
			rows = append(rows, row)
		}
	}
	if asJSON {
		return e.printJSON(struct {
			Runs []runRow `json:"runs"`
		}{rows})
	}
	cells := make([][]term.Cell, 0, len(rows))
	for _, r := range rows {
		cells = append(cells, term.Cells(r.Run, r.State, r.known(r.Exit), r.known(r.Denials), orDash(r.Consumer), shortened(strings.Join(r.Command, " "))))
	}
	e.out.Table([]string{"RUN", "STATE", "EXIT", "DENIED", "CONSUMER", "COMMAND"}, cells)
	return nil
}

// maxCommand is how much of a command a list shows, in characters.
const maxCommand = 60

func shortened(s string) string {
	if runes := []rune(s); len(runes) > maxCommand {
		return string(runes[:maxCommand-3]) + "..."
	}
	return s
}

// known is a number of the receipt, where there is one.
func (r runRow) known(n int) string {
	if r.State == "running" || r.State == "unreadable" {
		return "-"
	}
	return fmt.Sprint(n)
}

// row reads what a run's receipt says. One without a receipt is under way, or its sbx
// was killed and no later one has swept it.
func (h *history) row(id string) runRow {
	r, found, err := readReceipt(h.dir(id))
	if err != nil {
		return h.unreadable(id, err)
	}
	row := runRow{
		Run: id, Consumer: r.Consumer, State: "finished", Exit: r.Result.Exit, Denials: r.Result.Denials, StartedAt: r.StartedAt,
		Command: append([]string{}, r.Command...),
	}
	switch {
	case !found && artifact.CheckLiving(h.state, id) == nil:
		row.State = "running"
	case !found || r.Interrupted:
		row.State = "interrupted"
	case r.Result.Refusal != nil:
		row.State = "refused"
	}
	return row
}

// unreadable lists a run whose receipt cannot be read, with what was known at its start.
func (h *history) unreadable(id string, why error) runRow {
	row := runRow{Run: id, State: "unreadable", Exit: -1, Command: []string{}, Problem: fmt.Sprintf("run %s cannot be shown: %v", id, why)}
	var started event.Receipt
	text, err := readRegular(filepath.Join(h.dir(id), artifact.StartedFile), artifact.MaxReceipt)
	if err != nil || json.NewDecoder(strings.NewReader(text)).Decode(&started) != nil {
		return row
	}
	row.Consumer, row.StartedAt, row.Command = started.Consumer, started.StartedAt, append(row.Command, started.Command...)
	return row
}

func newRunsShowCommand(e *environment) *cobra.Command {
	var named runNamed
	var asJSON bool
	cmd := &cobra.Command{
		Use: "show [RUN]", Short: "Show a run's receipt and what it was denied", Args: atMostOneRun,
		RunE: func(cmd *cobra.Command, args []string) error { return e.showRun(cmd.Context(), named, args, asJSON) },
	}
	named.flags(cmd)
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return cmd
}

func (e *environment) showRun(ctx context.Context, named runNamed, args []string, asJSON bool) error {
	h, err := e.history()
	if err != nil {
		return err
	}
	id, err := named.resolve(ctx, h, args)
	if err != nil {
		return err
	}
	r, found, err := readReceipt(h.dir(id))
	if err != nil {
		return err
	}
	if !found {
		return &usageError{"run " + id + " has no receipt yet: it is under way, or its sbx was killed", "\"sbx ps\" lists what is under way; the next \"sbx exec\" sweeps the rest"}
	}
	denials, broken, err := readDenied(h.dir(id))
	if err != nil {
		return err
	}
	if asJSON {
		return e.printJSON(struct {
			Receipt event.Receipt  `json:"receipt"`
			Denials []event.Denial `json:"denials"`
			Broken  int            `json:"broken"` // lines of denials.jsonl that are none
		}{r, append([]event.Denial{}, denials...), broken})
	}
	e.printRun(r, h.dir(id))
	e.printDenials(denials)
	return nil
}

// printRun shows what a person asks of a receipt first.
func (e *environment) printRun(r event.Receipt, dir string) {
	rows := [][]term.Cell{
		term.Cells("run", r.Run), term.Cells("command", strings.Join(r.Command, " ")), term.Cells("workdir", r.Workdir),
		term.Cells("consumer", r.Consumer), term.Cells("profiles", orDash(strings.Join(r.Profiles, ", "))), term.Cells("position", r.Position),
		term.Cells("started", r.StartedAt.Format(time.RFC3339)), term.Cells("took", r.FinishedAt.Sub(r.StartedAt).Round(time.Millisecond).String()),
		{{Text: "exit"}, {Text: fmt.Sprint(r.Result.Exit), Tone: toneOf(r.Result.Exit == 0)}},
	}
	if refusal := r.Result.Refusal; refusal != nil {
		rows = append(rows, term.Cells("refused", fmt.Sprintf("%s at %s: %s", refusal.Kind, refusal.Step, refusal.Message)))
	}
	var missing []string
	for _, m := range r.Applied {
		if !m.Applied {
			missing = append(missing, m.Name)
		}
	}
	rows = append(rows, term.Cells("not applied", orDash(strings.Join(missing, ", "))))
	for _, c := range r.Revoke {
		text := "verified"
		if !c.Verified {
			text = "NOT verified: " + c.Detail
		}
		rows = append(rows, []term.Cell{{Text: "revoke: " + c.What}, {Text: text, Tone: toneOf(c.Verified)}})
	}
	e.out.Table(nil, append(rows, term.Cells("records", dir)))
}

func toneOf(good bool) term.Tone {
	if good {
		return term.Good
	}
	return term.Bad
}

func (e *environment) printDenials(denials []event.Denial) {
	if len(denials) == 0 {
		return
	}
	rows := make([][]term.Cell, 0, len(denials))
	for _, d := range denials {
		rows = append(rows, term.Cells(fmt.Sprint(d.Count), d.Method, d.Host, d.Path, d.Code))
	}
	e.out.Raw("\n")
	e.out.Table([]string{"COUNT", "METHOD", "HOST", "PATH", "CODE"}, rows)
}

func newRunsGCCommand(e *environment) *cobra.Command {
	var older time.Duration
	var keep int
	var dry bool
	cmd := &cobra.Command{
		Use: "gc", Short: "Remove the records of old runs",
		Long: "Remove the records of runs that ended long ago. What is under way or still copies its\n" +
			"records (--artifacts) stays, and so do runs that an idempotency key may still be\n" +
			"answered from.",
		Args: exactly(),
		RunE: func(cmd *cobra.Command, _ []string) error { return e.collectRuns(cmd.Context(), older, keep, dry) },
	}
	cmd.Flags().DurationVar(&older, "older", 30*24*time.Hour, "runs that began before this `time` ago")
	cmd.Flags().IntVar(&keep, "keep", 100, "the newest so `many` stay, however old they are")
	cmd.Flags().BoolVar(&dry, "dry-run", false, "only say what would be removed")
	return cmd
}

func (e *environment) collectRuns(ctx context.Context, older time.Duration, keep int, dry bool) error {
	if older < 0 || keep < 0 {
		return &usageError{"--older and --keep cannot be negative", "leave them out for 720h and 100"}
	}
	h, err := e.history()
	if err != nil {
		return err
	}
	s, err := h.store()
	if err != nil {
		return err
	}
	var needed []string
	err = s.View(ctx, func(t *store.Tx) (err error) { needed, err = t.NeededRuns(time.Now()); return err })
	if err != nil {
		return err
	}
	limit := artifact.NewID(time.Now().UTC().Add(-older))[:15] // the time that ids begin with
	removed := 0
	var errs []error
	for _, id := range h.ids[min(keep, len(h.ids)):] {
		if id[:min(15, len(id))] >= limit || slices.Contains(needed, id) {
			continue
		}
		if !dry {
			err := artifact.Remove(h.state, id)
			if errors.Is(err, artifact.ErrActive) {
				continue
			}
			errs = append(errs, err)
		}
		removed++
	}
	what := "removed the records of %d runs, %d stay"
	if dry {
		what = "would remove the records of %d runs, %d stay"
	}
	e.out.Raw(fmt.Sprintf(what+"\n", removed, len(h.ids)-removed))
	return errors.Join(errs...)
}
