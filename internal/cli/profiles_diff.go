package cli

import (
	"strings"

	"github.com/spf13/cobra"

	"github.com/fractalboxdev/sbx/internal/profile"
	"github.com/fractalboxdev/sbx/internal/term"
)

func newProfilesDiff(e *environment) *cobra.Command {
	var allow, asJSON bool
	cmd := &cobra.Command{
		Use: "diff OLD NEW", Short: "Say which requests became possible or impossible", Args: exactly("OLD", "NEW"),
		Long: "Say in words which requests became possible or impossible from OLD to NEW, each a file or the name of a built-in\n" +
			"profile. The rules themselves are compared: what is not reported as possible was possible before. What cannot\n" +
			"be decided is reported as maybe. The exit status is 1 when something became possible, or may have.",
		Example: "  sbx profiles diff old.toml new.toml\n  sbx profiles diff js-install x-install.toml",
		RunE: func(_ *cobra.Command, args []string) error {
			return e.diffProfiles(args[0], args[1], allow, asJSON)
		},
	}
	cmd.Flags().BoolVar(&allow, "allow-widening", false, "exit 0 also when requests became possible")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return cmd
}

// fileOrName reads a profile file, or takes a built-in profile by its name. What
// could be both is a name; "./name" is the file.
func fileOrName(arg string) (profile.Set, error) {
	if !strings.ContainsAny(arg, "./") {
		set, err := builtinProfiles()
		if err != nil {
			return profile.Set{}, err
		}
		return set.Only(arg)
	}
	text, err := readProfileFile(arg)
	if err != nil {
		return profile.Set{}, err
	}
	return profile.Parse(text, arg)
}

func (e *environment) diffProfiles(before, after string, allow, asJSON bool) error {
	was, err := fileOrName(before)
	if err != nil {
		return err
	}
	is, err := fileOrName(after)
	if err != nil {
		return err
	}
	changes, err := profile.Diff(was, is)
	if err != nil {
		return err
	}
	wider := false
	for _, c := range changes {
		wider = wider || c.Wider()
	}
	if asJSON {
		err := e.printJSON(struct {
			Wider   bool             `json:"wider"`
			Changes []profile.Change `json:"changes"`
		}{wider, append([]profile.Change{}, changes...)})
		if err != nil {
			return err
		}
	} else {
		e.printChanges(changes, wider)
	}
	if wider && !allow {
		return &exitError{code: exitNegative}
	}
	return nil
}

func (e *environment) printChanges(changes []profile.Change, wider bool) {
	var rows [][]term.Cell
	for _, c := range changes {
		tone := term.Plain
		if c.Wider() {
			tone = term.Bad
		}
		what := strings.TrimSpace(strings.Join(c.Methods, " ") + " " + c.Target)
		if c.Text != "" {
			what = strings.TrimPrefix(what+": "+c.Text, ": ")
		}
		place := c.Profile
		if c.Rule != "" {
			place += "/" + c.Rule
		}
		rows = append(rows, []term.Cell{{Text: string(c.Kind), Tone: tone}, {Text: place}, {Text: what}})
	}
	if len(rows) > 0 {
		e.out.Table([]string{"WHAT", "RULE", "REQUESTS"}, rows)
	}
	if !wider {
		e.out.Raw("nothing became possible\n")
	}
}
