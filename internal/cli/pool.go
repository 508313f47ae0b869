package cli

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/fractalboxdev/sbx/internal/admission"
	"github.com/fractalboxdev/sbx/internal/config"
	"github.com/fractalboxdev/sbx/internal/term"
)

func newPoolCommand(e *environment) *cobra.Command {
	cmd := group("pool", "Show who holds the slots of the classes, and who waits for one")
	var asJSON bool
	status := &cobra.Command{
		Use: "status", Short: "Print each class's cap, who holds its slots, and its queue", Args: exactly(),
		RunE: func(cmd *cobra.Command, _ []string) error { return e.poolStatus(cmd.Context(), asJSON) },
	}
	status.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	cmd.AddCommand(status)
	return cmd
}

func (e *environment) poolStatus(ctx context.Context, asJSON bool) error {
	c, err := e.loadConfig()
	if err != nil {
		return err
	}
	dir, err := e.stateDir(c)
	if err != nil {
		return err
	}
	status, err := admission.Look(ctx, dir, c.Caps())
	if err != nil {
		return err
	}
	if asJSON {
		return e.printJSON(struct {
			Ceiling int `json:"ceiling"`
			admission.Status
		}{c.Ceiling.V, status})
	}
	e.printPools(c, status)
	return nil
}

func (e *environment) printPools(c config.Config, status admission.Status) {
	var rows [][]term.Cell
	for _, p := range status.Pools {
		var who []string
		for _, consumer := range p.Consumers {
			who = append(who, consumerText(consumer))
		}
		busy := term.Cell{Text: strconv.Itoa(p.Busy)}
		if p.Busy >= p.Cap {
			busy.Tone = term.Unsure
		}
		rows = append(rows, []term.Cell{
			{Text: string(p.Class)}, {Text: strconv.Itoa(p.Cap)}, busy, {Text: strconv.Itoa(p.Queued)}, {Text: dash(strings.Join(who, ", "))},
		})
	}
	e.out.Table([]string{"CLASS", "CAP", "BUSY", "QUEUED", "CONSUMERS"}, rows)
	e.out.Raw(fmt.Sprintf("ceiling %d (%s)\n", c.Ceiling.V, c.Ceiling.Source))
	if len(status.Holders) > 0 {
		e.printHolders(status.Holders)
	}
}

func consumerText(c admission.Consumer) string {
	text := fmt.Sprintf("%s %d", c.Name, c.Busy)
	if c.Queued > 0 {
		text += fmt.Sprintf("+%d", c.Queued)
	}
	return text
}

func (e *environment) printHolders(holders []admission.Holder) {
	var rows [][]term.Cell
	for _, h := range holders {
		state := "holds a slot"
		if h.Waiting {
			state = fmt.Sprintf("waits, %d ahead", h.Ahead)
		}
		rows = append(rows, term.Cells(h.Run, string(h.Class), h.Consumer, state, time.Since(h.Since).Round(time.Second).String()))
	}
	e.out.Table([]string{"RUN", "CLASS", "CONSUMER", "STATE", "FOR"}, rows)
}
