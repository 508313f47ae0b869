package cli

import (
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"os"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/fractalboxdev/sbx/internal/artifact"
	"github.com/fractalboxdev/sbx/internal/report"
)

const annotateHelp = `Tell GitHub's runner of a run that has ended, from the file that "sbx exec --outcome"
wrote: a workflow command for each row of denials, on stdout; with --summary its
summary as Markdown, with --output its facts (run, directory, exit, refusal, denials,
would-deny), appended to the files that GITHUB_STEP_SUMMARY and GITHUB_OUTPUT name.
Everything that the command chose is escaped.`

func newRunsAnnotateCommand(e *environment) *cobra.Command {
	var summary, output string
	cmd := &cobra.Command{
		Use: "annotate OUTCOME", Short: "Tell GitHub's runner of a run that has ended", Long: annotateHelp, Args: exactly("OUTCOME"),
		SilenceErrors: true, SilenceUsage: true,
		RunE: func(_ *cobra.Command, args []string) error { return e.annotate(args[0], summary, output) },
	}
	cmd.Flags().StringVar(&summary, "summary", "", "append the run's summary to this `file`")
	cmd.Flags().StringVar(&output, "output", "", "append the run's facts to this `file`")
	return cmd
}

func (e *environment) annotate(outcome, summary, output string) error {
	text, err := readRegular(outcome, artifact.MaxReceipt)
	if err != nil {
		return err
	}
	var o outcomeJSON
	if err := json.Unmarshal([]byte(text), &o); err != nil {
		return fmt.Errorf("reading the outcome %s: %w", outcome, err)
	}
	ended := report.Ended{Run: o.Run, Directory: o.Directory, Exit: o.Exit, Refusal: o.Result.Refusal, Denials: o.Denials}
	for _, line := range report.Annotations(ended) {
		e.out.Raw(line + "\n")
	}
	facts, err := report.StepOutputs(ended, "sbx-"+rand.Text())
	if err != nil {
		return err
	}
	return errors.Join(appendTo(summary, report.StepSummary(ended)), appendTo(output, facts))
}

// appendTo adds text to a file of the runner's, which others write to as well; "" is no
// file.
func appendTo(name, text string) (err error) {
	if name == "" {
		return nil
	}
	f, err := os.OpenFile(name, os.O_WRONLY|os.O_APPEND|os.O_CREATE|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_CLOEXEC, 0o600) //nolint:forbidigo // appends
	if err != nil {
		return fmt.Errorf("appending to %s: %w", name, err)
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	if info, err := f.Stat(); err != nil || !info.Mode().IsRegular() {
		return errors.Join(fmt.Errorf("appending to %s: it is not a regular file", name), err)
	}
	if _, err := f.WriteString(text); err != nil {
		return fmt.Errorf("appending to %s: %w", name, err)
	}
	return nil
}
