package cli

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	sbx "github.com/fractalboxdev/sbx"
	"github.com/fractalboxdev/sbx/internal/profile"
	"github.com/fractalboxdev/sbx/internal/term"
)

// builtinFile is how messages name the profiles of the binary.
const builtinFile = "profiles.toml"

// maxProfileFile bounds a profile file, in bytes.
const maxProfileFile = 1 << 20

// readProfileFile reads one regular file of at most maxProfileFile bytes.
func readProfileFile(path string) (string, error) {
	text, err := readRegular(path, maxProfileFile)
	if errors.Is(err, errTooLarge) {
		return "", &usageError{fmt.Sprintf("%s is larger than 1 MiB", path), "name a profile file"}
	}
	return text, err
}

var errTooLarge = errors.New("the file is too large")

// readRegular reads a file without waiting for the other end of a pipe.
func readRegular(path string, limit int64) (string, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0) //nolint:forbidigo // needs the flags; nothing is created
	if err != nil {
		return "", fmt.Errorf("reading: %w", err)
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return "", fmt.Errorf("reading: %w", err)
	}
	if !info.Mode().IsRegular() {
		return "", &usageError{path + " is not a regular file", "name a regular file"}
	}
	text, err := io.ReadAll(io.LimitReader(f, limit+1))
	if err != nil {
		return "", fmt.Errorf("reading %s: %w", path, err)
	}
	if int64(len(text)) > limit {
		return "", fmt.Errorf("reading %s: %w", path, errTooLarge)
	}
	return string(text), nil
}

// fileOrBuiltin returns the text of the file that is named, or of the profiles
// of the binary.
func fileOrBuiltin(args []string) (text, file string, custom bool, err error) {
	if len(args) == 0 {
		return sbx.BuiltinProfiles, builtinFile, false, nil
	}
	text, err = readProfileFile(args[0])
	return text, args[0], true, err
}

// atMostOne allows one argument.
func atMostOne(name string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if len(args) > 1 {
			return exactly(name)(cmd, args)
		}
		return nil
	}
}

func newProfilesLint(e *environment) *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use: "lint [FILE]", Short: "Say what a reviewer would object to in a profile file", Args: atMostOne("FILE"),
		Long: "Say what a reviewer would object to in a profile file, or in the built-in profiles: keys and values that mean\n" +
			"nothing or can never match, prefixes and wildcards that match something else than they seem to, bodies without\n" +
			"a cap, examples that are missing or fail. The exit status is 1 when there is a finding.",
		RunE: func(_ *cobra.Command, args []string) error { return e.lintProfiles(args, asJSON) },
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return cmd
}

func (e *environment) lintProfiles(args []string, asJSON bool) error {
	text, file, custom, err := fileOrBuiltin(args)
	if err != nil {
		return err
	}
	found := profile.Lint(text, file, custom)
	if asJSON {
		err := e.printJSON(struct {
			Findings []profile.Finding `json:"findings"`
		}{append([]profile.Finding{}, found...)})
		if err != nil {
			return err
		}
	} else {
		for _, f := range found {
			e.out.Raw(term.Escape(f.String()) + " [" + string(f.Check) + "]\n")
		}
	}
	if len(found) > 0 {
		return &exitError{code: exitNegative}
	}
	return nil
}

func newProfilesTest(e *environment) *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use: "test [FILE]", Short: "Run the examples of a profile file", Args: atMostOne("FILE"),
		Long: "Run all examples of a profile file, or of the built-in profiles, and say which failed and why. The exit status\n" +
			"is 1 when one failed.",
		RunE: func(_ *cobra.Command, args []string) error { return e.testProfiles(args, asJSON) },
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return cmd
}

func (e *environment) testProfiles(args []string, asJSON bool) error {
	text, file, _, err := fileOrBuiltin(args)
	if err != nil {
		return err
	}
	results, err := profile.Examples(text, file)
	if err != nil {
		return &exitError{exitNegative, err}
	}
	failed := 0
	for _, r := range results {
		if r.Reason != "" {
			failed++
		}
	}
	if asJSON {
		err := e.printJSON(struct {
			Passed   int               `json:"passed"`
			Failed   int               `json:"failed"`
			Examples []profile.Example `json:"examples"`
		}{len(results) - failed, failed, results})
		if err != nil {
			return err
		}
	} else {
		e.printExamples(file, results, failed)
	}
	if failed > 0 {
		return &exitError{code: exitNegative}
	}
	return nil
}

func (e *environment) printExamples(file string, results []profile.Example, failed int) {
	for _, r := range results {
		if r.Reason == "" {
			continue
		}
		at := file
		if r.Line > 0 {
			at += ":" + strconv.Itoa(r.Line)
		}
		e.out.Raw(term.Escape(fmt.Sprintf("%s: rule %s/%s: example %q in %s fails: %s", at, r.Profile, r.Rule, r.Text, r.List, r.Reason)) + "\n")
	}
	e.out.Raw(fmt.Sprintf("%d passed, %d failed\n", len(results)-failed, failed))
}
