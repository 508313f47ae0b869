package cli

import (
	"runtime"
	"runtime/debug"
	"strconv"

	"github.com/spf13/cobra"

	"github.com/fractalboxdev/sbx/internal/sandbox"
	"github.com/fractalboxdev/sbx/internal/term"
)

// ContractVersion is the version of what sbx promises: exit codes, JSON forms,
// the order of the fence. It changes when any of them breaks.
const ContractVersion = 1

// versionInfo is the answer of "sbx version".
type versionInfo struct {
	Version    string `json:"version"`
	Commit     string `json:"commit"` // "" when the build did not know it
	Go         string `json:"go"`
	Libseccomp string `json:"libseccomp"` // "" when built without
	Contract   int    `json:"contract"`
}

func newVersionCommand(e *environment) *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use: "version", Short: "Print the versions of sbx and of what it was built with", Args: exactly(),
		RunE: func(*cobra.Command, []string) error { return e.printVersion(asJSON) },
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return cmd
}

func (e *environment) printVersion(asJSON bool) error {
	info := versionInfo{Version: e.build.Version, Commit: e.build.Commit, Go: runtime.Version(), Contract: ContractVersion}
	if info.Commit == "" {
		info.Commit = builtCommit()
	}
	if version, ok := libseccomp(); ok {
		info.Libseccomp = version
	}
	if asJSON {
		return e.printJSON(info)
	}
	rows := [][]term.Cell{
		term.Cells("sbx", info.Version), term.Cells("commit", orUnknown(info.Commit)), term.Cells("go", info.Go),
		term.Cells("libseccomp", orNone(info.Libseccomp)), term.Cells("contract", strconv.Itoa(info.Contract)),
	}
	e.out.Table(nil, rows)
	return nil
}

// builtCommit is what the go command noted, if it was let.
func builtCommit() string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return ""
	}
	for _, s := range info.Settings {
		if s.Key == "vcs.revision" {
			return s.Value
		}
	}
	return ""
}

func libseccomp() (version string, ok bool) {
	if sandbox.CheckSeccomp() != nil {
		return "", false
	}
	return sandbox.SeccompVersion(), true
}

func orUnknown(s string) string {
	if s == "" {
		return "unknown"
	}
	return s
}

func orNone(s string) string {
	if s == "" {
		return "none: this binary cannot run anything"
	}
	return s
}
