package cli

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/fractalboxdev/sbx/internal/profile"
	"github.com/fractalboxdev/sbx/internal/report"
)

func newProfilesSuggest(e *environment) *cobra.Command {
	var name string
	cmd := &cobra.Command{
		Use: "suggest RUN", Short: "Draft a profile from what a run was denied", Args: exactly("RUN"),
		Long: "Draft a profile, as TOML on stdout, that allows what a run was denied and nothing else: the same hosts, methods\n" +
			"and paths, no wildcard, no credential. What cannot be granted that way stands in comments, with the reason.\n" +
			"RUN is a run's id, or a directory with its denials.jsonl or requests.jsonl. The draft is for a person to read,\n" +
			"cut down and approve.",
		Example: "  sbx profiles suggest 20260102t030405678-1a2b3c4d > x-widget.toml",
		RunE:    func(_ *cobra.Command, args []string) error { return e.suggestProfile(args[0], name) },
	}
	cmd.Flags().StringVar(&name, "name", "x-draft", "`name` of the profile; it begins with x-")
	return cmd
}

func (e *environment) suggestProfile(run, name string) error {
	dir, err := e.runDirectory(run)
	if err != nil {
		return err
	}
	rows, broken, err := readDenied(dir)
	if err != nil {
		return err
	}
	seen := make([]profile.Seen, 0, len(rows))
	uncounted := 0
	for _, r := range rows {
		if r.Code == report.CodeOverflow && r.Host == "" {
			uncounted += r.Count
			continue
		}
		seen = append(seen, profile.Seen{
			Protocol: r.Protocol, Host: r.Host, Method: r.Method, Path: r.Path, Port: r.Port, Code: r.Code, Rule: r.Rule, Count: r.Count,
		})
	}
	text, err := profile.Suggest(name, seen)
	if err != nil {
		return err
	}
	e.out.Raw(text)
	if broken > 0 {
		e.out.Raw(fmt.Sprintf("# left out: %d rows that are malformed\n", broken))
	}
	if uncounted > 0 {
		e.out.Raw(fmt.Sprintf("# left out: %d denials beyond the bound of the run's report, which are only counted there\n", uncounted))
	}
	return nil
}
