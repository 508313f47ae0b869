package cli

import (
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/fractalboxdev/sbx/internal/artifact"
	"github.com/fractalboxdev/sbx/internal/term"
)

func newPsCommand(e *environment) *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use: "ps", Short: "List the runs that are under way",
		Long: "List the runs that are under way: those of the caller's own state directory.\n" +
			"A run is listed for as long as its sbx lives.",
		Args: exactly(),
		RunE: func(*cobra.Command, []string) error { return e.ps(asJSON, time.Now()) },
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return cmd
}

func (e *environment) ps(asJSON bool, now time.Time) error {
	runs, _, err := e.living()
	if err != nil {
		return err
	}
	if asJSON {
		return e.printJSON(struct {
			Runs []artifact.Living `json:"runs"`
		}{append([]artifact.Living{}, runs...)})
	}
	if len(runs) == 0 {
		e.out.Raw("no run is under way\n")
		return nil
	}
	rows := make([][]term.Cell, 0, len(runs))
	for _, r := range runs {
		rows = append(rows, []term.Cell{
			{Text: r.Run},
			{Text: pid(r)},
			{Text: r.Consumer},
			{Text: since(r.StartedAt, now)},
			{Text: orDash(strings.Join(r.Profiles, ","))},
			{Text: strings.Join(r.Command, " ")},
		})
	}
	e.out.Table([]string{"RUN", "PID", "CONSUMER", "STARTED", "PROFILES", "COMMAND"}, rows)
	return nil
}

// living lists the caller's runs, and says in which state directory they are.
func (e *environment) living() (runs []artifact.Living, state string, err error) {
	if state, err = e.configuredState(); err != nil {
		return nil, "", err
	}
	runs, err = artifact.List(state)
	for i := range runs {
		runs[i].Profiles = append([]string{}, runs[i].Profiles...)
		runs[i].Command = append([]string{}, runs[i].Command...)
	}
	return runs, state, err
}

func pid(r artifact.Living) string {
	if r.SameProcesses() != nil {
		return "-" // of another container, or not said yet
	}
	return fmt.Sprint(r.PID)
}

func orDash(s string) string {
	if s == "" {
		return "-"
	}
	return s
}

// since says how long ago something began, in two units at most.
func since(then, now time.Time) string {
	if then.IsZero() {
		return "-"
	}
	ago := max(0, now.Sub(then)).Truncate(time.Second)
	switch {
	case ago < time.Minute:
		return fmt.Sprintf("%ds ago", int(ago.Seconds()))
	case ago < time.Hour:
		return fmt.Sprintf("%dm%02ds ago", int(ago.Minutes()), int(ago.Seconds())%60)
	}
	return fmt.Sprintf("%dh%02dm ago", int(ago.Hours()), int(ago.Minutes())%60)
}
