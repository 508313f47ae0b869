package cli

import (
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/fractalboxdev/sbx/internal/profile"
)

// newRootCommand makes the tree of commands. "init" can never be one of them:
// libcontainer starts the binary again under that name.
func newRootCommand(e *environment, args []string) *cobra.Command {
	root := group("sbx", "Run a command in a sandbox, behind a proxy that lets pass what was granted")
	root.SetOut(e.stdout)
	root.SetErr(e.stderr)
	root.CompletionOptions.DisableDefaultCmd = true
	root.SetFlagErrorFunc(flagError)
	root.AddCommand(newExecCommand(e))
	if len(args) > 0 && args[0] == "exec" {
		return root // the flags of all the others take time that each run would pay
	}
	root.AddCommand(
		newProfilesCommand(e),
		newExplainCommand(e),
		newFloorCommand(e),
		newApproveCommand(e),
		newRolloutCommand(e),
		newConfigCommand(e),
		newDoctorCommand(e),
		newPoolCommand(e),
		newStateCommand(e),
		newKeysCommand(e),
		newRunsCommand(e),
		newCanaryCommand(e),
		newCanaryProbeCommand(e),
		newPreflightCommand(e),
		newPreflightTrialCommand(e),
		newPreflightProbeCommand(e),
		newDogfoodCommand(e),
		newDogfoodPassCommand(e),
		newHealthCommand(e),
		newVerifyDeployCommand(e),
		newServeCommand(e),
		newPsCommand(e),
		newKillCommand(e),
		newVersionCommand(e),
	)
	return root
}

// group is a command that only has others below it.
func group(use, short string) *cobra.Command {
	return &cobra.Command{
		Use: use, Short: short,
		SilenceErrors: true, SilenceUsage: true, DisableSuggestions: true,
		Args: cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				return cmd.Help()
			}
			return unknownCommand(cmd, args[0])
		},
	}
}

func unknownCommand(cmd *cobra.Command, name string) error {
	var known []string
	for _, c := range cmd.Commands() {
		if !c.Hidden {
			known = append(known, c.Name())
		}
	}
	what := fmt.Sprintf("there is no command %q", plainPath(cmd, name))
	if near := profile.Nearest(name, known); near != "" {
		what += fmt.Sprintf(" (did you mean %q?)", near)
	}
	return &usageError{what, fmt.Sprintf("%q lists the commands", cmd.CommandPath()+" --help")}
}

// flagError adds the nearest flag to what pflag says about an unknown one.
func flagError(cmd *cobra.Command, err error) error {
	help := fmt.Sprintf("%q lists the flags", cmd.CommandPath()+" --help")
	var unknown *pflag.NotExistError
	if !errors.As(err, &unknown) {
		return &usageError{err.Error(), help}
	}
	name := unknown.GetSpecifiedName()
	what := fmt.Sprintf("%s has no flag %s", plainPath(cmd), dashed(name))
	var known []string
	cmd.Flags().VisitAll(func(f *pflag.Flag) {
		if !f.Hidden {
			known = append(known, f.Name)
		}
	})
	if near := profile.Nearest(name, known); near != "" && len(name) > 1 {
		what += fmt.Sprintf(" (did you mean --%s?)", near)
	}
	return &usageError{what, help}
}

// plainPath is the command without the program's name, which begins the line
// anyway; the program itself keeps it.
func plainPath(cmd *cobra.Command, more ...string) string {
	words := append(strings.Fields(cmd.CommandPath()), more...)
	if len(words) > 1 {
		words = words[1:]
	}
	return strings.Join(words, " ")
}

func dashed(name string) string {
	if len(name) == 1 {
		return "-" + name
	}
	return "--" + name
}

// exactly demands the arguments that the usage line names.
func exactly(names ...string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if len(args) == len(names) {
			return nil
		}
		next := "type: " + cmd.UseLine()
		if len(args) < len(names) {
			return &usageError{fmt.Sprintf("%s wants %s", plainPath(cmd), strings.Join(names, " and ")), next}
		}
		return &usageError{fmt.Sprintf("%s does not know what to do with %q", plainPath(cmd), args[len(names)]), next}
	}
}
