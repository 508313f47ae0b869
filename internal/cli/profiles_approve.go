package cli

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/fractalboxdev/sbx/internal/approval"
	"github.com/fractalboxdev/sbx/internal/profile"
	"github.com/fractalboxdev/sbx/internal/sshsig"
	"github.com/fractalboxdev/sbx/internal/term"
)

// defaultLifetime is how long an approval holds.
const defaultLifetime = "90d"

func newProfilesApprove(e *environment) *cobra.Command {
	var key, expires string
	var asJSON bool
	cmd := &cobra.Command{
		Use: "approve FILE --key KEY", Short: "Sign a profile file, so that runs may use it", Args: exactly("FILE"),
		Long: "Sign name, version, digest and expiry of a profile file with an SSH key, and put the approval beside it as\n" +
			"FILE.approval. The file must have no lint findings, and the key must be one of the operator's allowed_signers.\n" +
			"KEY is a private key, or the public key of one that the SSH agent holds. Changing a byte of the file ends the\n" +
			"approval: read the file, and \"sbx profiles diff\" from the one that is in use, before you sign.",
		Example: "  sbx profiles approve x-widget.toml --key ~/.ssh/id_ed25519 --expires 30d",
		RunE: func(cmd *cobra.Command, args []string) error {
			if key == "" {
				return &usageError{"profiles approve wants --key", "type: " + cmd.UseLine()}
			}
			lifetime, err := parseDays(expires)
			if err != nil {
				return err
			}
			opt, err := e.approvalOptionsHere()
			if err != nil {
				return err
			}
			done, err := approval.Approve(cmd.Context(), args[0], e.signingKey(key), lifetime, opt)
			if err != nil {
				return err
			}
			return e.printApproved(done, asJSON)
		},
	}
	cmd.Flags().StringVar(&key, "key", "", "`file` of the SSH key to sign with")
	cmd.Flags().StringVar(&expires, "expires", defaultLifetime, "how long the approval holds: `days` as in 30d, or hours as in 12h; at most 366d")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return cmd
}

// signingKey gives ssh-keygen, where it is needed, what it asks with and no more
// of the caller's environment.
func (e *environment) signingKey(file string) sshsig.Key {
	k := sshsig.Key{File: file, Agent: e.vars["SSH_AUTH_SOCK"], Env: []string{"PATH=/usr/bin:/bin"}, Prompt: e.stderr}
	for _, name := range []string{"HOME", "TERM", "SSH_AUTH_SOCK", "SSH_ASKPASS", "SSH_ASKPASS_REQUIRE", "DISPLAY", "WAYLAND_DISPLAY", "XAUTHORITY"} {
		if value, ok := e.vars[name]; ok {
			k.Env = append(k.Env, name+"="+value)
		}
	}
	return k
}

// parseDays reads a duration that may be in days.
func parseDays(text string) (time.Duration, error) {
	if days, ok := strings.CutSuffix(text, "d"); ok {
		n, err := strconv.ParseUint(days, 10, 16)
		if err == nil {
			return time.Duration(n) * 24 * time.Hour, nil
		}
	}
	d, err := time.ParseDuration(text)
	if err != nil {
		return 0, &usageError{fmt.Sprintf("--expires %q is no time", text), "give days or hours, as in 30d or 12h"}
	}
	return d, nil
}

func (e *environment) printApproved(a approval.Approved, asJSON bool) error {
	if asJSON {
		return e.printJSON(a)
	}
	rows := [][]term.Cell{term.Cells("approved", a.File)}
	for _, p := range a.Profiles {
		rows = append(rows, term.Cells("profile", p))
	}
	rows = append(
		rows, term.Cells("digest", a.Digest), term.Cells("key", a.Fingerprint), term.Cells("signer", dash(a.Signer)),
		term.Cells("expires", a.Expires.UTC().Format(time.RFC3339)), term.Cells("approval", a.Approval),
	)
	e.out.Table(nil, rows)
	if a.Signer == "" {
		e.say.Line("allowed_signers is not set here, so nothing on this machine will load the file")
	}
	return nil
}

func newProfilesRevoke(e *environment) *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use: "revoke NAME", Short: "Refuse all approvals of a custom profile up to now", Args: exactly("NAME"),
		Long: "Refuse, on this machine, every approval of a custom profile that was issued up to now. An approval that is made\n" +
			"later counts again.",
		RunE: func(_ *cobra.Command, args []string) error { return e.revokeProfile(args[0], asJSON) },
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return cmd
}

func (e *environment) revokeProfile(name string, asJSON bool) error {
	if !profile.CustomName(name) {
		return &usageError{fmt.Sprintf("%q is no name of a custom profile", name), "their names begin with x-; built-in profiles have no approvals"}
	}
	opt, err := e.approvalOptionsHere()
	if err != nil {
		return err
	}
	known, err := approval.Known(opt)
	if err != nil {
		return err
	}
	if err := approval.Revoke(name, opt); err != nil {
		return err
	}
	if !slices.Contains(known, name) {
		note := fmt.Sprintf("profile %s was never used on this machine; it is revoked all the same", name)
		if near := profile.Nearest(name, known); near != "" {
			note += fmt.Sprintf(" (did you mean %s?)", near)
		}
		e.say.Line(note)
	}
	if asJSON {
		return e.printJSON(struct {
			Profile   string    `json:"profile"`
			RevokedAt time.Time `json:"revoked_at"`
		}{name, opt.Now.UTC()})
	}
	e.out.Raw("revoked " + name + ": approvals issued up to " + opt.Now.UTC().Format(time.RFC3339) + " no longer count\n")
	return nil
}
