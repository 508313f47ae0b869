package cli

import (
	"os"

	"github.com/spf13/cobra"

	"github.com/fractalboxdev/sbx/internal/artifact"
	"github.com/fractalboxdev/sbx/internal/config"
	"github.com/fractalboxdev/sbx/internal/term"
)

func newConfigCommand(e *environment) *cobra.Command {
	cmd := group("config", "Show the operator's configuration")
	var asJSON bool
	show := &cobra.Command{
		Use: "show", Short: "Print every setting with the file and line that set it", Args: exactly(),
		RunE: func(*cobra.Command, []string) error { return e.showConfig(asJSON) },
	}
	show.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	cmd.AddCommand(show)
	return cmd
}

func (e *environment) showConfig(asJSON bool) error {
	c, err := e.loadConfig()
	if err != nil {
		return err
	}
	dir, err := e.stateDir(c)
	if err != nil {
		return err
	}
	c.StateDir.V = dir
	rows := c.Explain()
	if asJSON {
		files := append([]string{}, c.Files...)
		return e.printJSON(struct {
			Files    []string     `json:"files"`
			Settings []config.Row `json:"settings"`
		}{files, rows})
	}
	var table [][]term.Cell
	for _, r := range rows {
		table = append(table, term.Cells(r.Key, r.Value, r.Source))
	}
	e.out.Table([]string{"SETTING", "VALUE", "SOURCE"}, table)
	return nil
}

// stateDir is where records are kept: the configuration's choice, else the
// user's own state directory.
func (e *environment) stateDir(c config.Config) (string, error) {
	if c.StateDir.V != "" {
		return c.StateDir.V, nil
	}
	return artifact.DefaultStateDir(e.getenv, os.Geteuid())
}
