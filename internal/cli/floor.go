package cli

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/fractalboxdev/sbx/internal/floor"
	"github.com/fractalboxdev/sbx/internal/term"
)

const floorHelp = `The floor list has the commands that cannot be taken back: "exec" runs one only
with an attestation (see "sbx approve --help"). It is matched on a command's
words, on the scripts among them and on its raw text. It guards ordinary paths:
a script that hides what it does is not on it. What guards against hostile
commands is the sandbox, which lets nothing out that was not granted.`

func newFloorCommand(e *environment) *cobra.Command {
	cmd := group("floor", "The commands that need a person's approval")
	cmd.Long = floorHelp
	cmd.AddCommand(newFloorList(e), newFloorCheck(e))
	return cmd
}

// floorEntry is a row of "sbx floor list".
type floorEntry struct {
	Rule      string   `json:"rule"`
	Spellings []string `json:"spellings"`
}

func newFloorList(e *environment) *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use: "list", Short: "Print the list", Args: exactly(), Long: floorHelp + "\n\nIn a spelling, * stands for any word, and + follows the shortest abbreviation.",
		RunE: func(*cobra.Command, []string) error { return e.floorList(asJSON) },
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return cmd
}

func (e *environment) floorList(asJSON bool) error {
	var entries []floorEntry
	var rows [][]term.Cell
	for _, entry := range floor.List() {
		spellings := make([]string, len(entry.Spellings))
		for i, words := range entry.Spellings {
			spellings[i] = strings.Join(words, " ")
		}
		entries = append(entries, floorEntry{entry.Rule, spellings})
		rows = append(rows, term.Cells(entry.Rule, strings.Join(spellings, ", ")))
	}
	if asJSON {
		return e.printJSON(struct {
			Version int          `json:"version"`
			Rules   []floorEntry `json:"rules"`
		}{floor.Version, entries})
	}
	e.out.Table([]string{fmt.Sprintf("RULE (list %d)", floor.Version), "MATCHES"}, rows)
	return nil
}

// floorAnswer is what "sbx floor check" says of a command.
type floorAnswer struct {
	Version int      `json:"version"`
	Matched []string `json:"matched"`
	Text    string   `json:"command_text"`
	SHA256  string   `json:"command_sha256"`
}

func newFloorCheck(e *environment) *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use: "check -- COMMAND [ARGUMENT]...", Short: "Say what a command matches",
		Long: floorHelp + "\n\nThe exit status is 1 when the command needs approval. The SHA-256 that is printed is that of the\ncommand's text, which an attestation names.",
		Args: command, SilenceErrors: true, SilenceUsage: true,
		Example: "  sbx floor check -- git push origin main",
		RunE:    func(_ *cobra.Command, args []string) error { return e.floorCheck(args, asJSON) },
	}
	cmd.Flags().SetInterspersed(false)
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return cmd
}

// command demands a command line of the user's own.
func command(cmd *cobra.Command, args []string) error {
	if len(args) == 0 || strings.TrimSpace(args[0]) == "" {
		return &usageError{plainPath(cmd) + " wants a command", "type: " + cmd.UseLine()}
	}
	return nil
}

func (e *environment) floorCheck(argv []string, asJSON bool) error {
	a := floorAnswer{floor.Version, append([]string{}, floor.Match(argv)...), floor.Text(argv), floor.Sum(argv)}
	if asJSON {
		if err := e.printJSON(a); err != nil {
			return err
		}
	} else {
		verdict := "not on the floor list"
		if len(a.Matched) > 0 {
			verdict = "needs approval: " + strings.Join(a.Matched, ", ")
		}
		e.out.Table(nil, append([][]term.Cell{term.Cells("verdict", verdict)}, commandRows(argv)...))
	}
	if len(a.Matched) > 0 {
		return &exitError{code: exitNegative}
	}
	return nil
}

// commandRows shows a command so that no other looks like it.
func commandRows(argv []string) [][]term.Cell {
	rows := [][]term.Cell{term.Cells("command", floor.Shown(argv))}
	if ascii := floor.ASCII(argv); ascii != floor.Shown(argv) {
		rows = append(rows, term.Cells("in ASCII", ascii))
	}
	return append(rows, term.Cells("sha256", floor.Sum(argv)))
}
