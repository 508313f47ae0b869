package cli

import (
	"bufio"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/fractalboxdev/sbx/internal/approval"
	"github.com/fractalboxdev/sbx/internal/artifact"
	"github.com/fractalboxdev/sbx/internal/config"
	"github.com/fractalboxdev/sbx/internal/floor"
	"github.com/fractalboxdev/sbx/internal/grant"
	"github.com/fractalboxdev/sbx/internal/proxy"
	"github.com/fractalboxdev/sbx/internal/sshsig"
	"github.com/fractalboxdev/sbx/internal/store"
	"github.com/fractalboxdev/sbx/internal/term"
)

const approveHelp = `Approve one run of a command that cannot be taken back. What is signed is the
exact command, the directory, the grant, the position and the store that spends
it, for at most an hour; "sbx exec --attestation FILE" with the same flags then
runs it once. The key is a private key, or the public key of one that the SSH
agent holds, and has to be listed in the operator's allowed_signers.

It is the command that is approved, not what the files around it say: whoever can
write the directory can change what a push pushes.`

// approveOptions are the flags of approve.
type approveOptions struct {
	selection
	dir, key, by, task string
	position, runName  string
	out                string
	ordinal            int
	expires            time.Duration
	dryRun, unsigned   bool
	yes, json          bool
}

func newApproveCommand(e *environment) *cobra.Command {
	o := &approveOptions{}
	cmd := &cobra.Command{
		Use: "approve [flags] -- COMMAND [ARGUMENT]...", Short: "Approve one run of an irreversible command", Long: approveHelp,
		Example: "  sbx approve --profile public-repo-read --input repo=acme/widget -- git push origin main\n" +
			"  sbx approve --unsigned --by ops@widget.test --out push.json -- git push\n" +
			"  ssh-keygen -Y sign -n " + floor.Namespace + " -f ~/.ssh/id_ed25519 push.json",
		Args: command, SilenceErrors: true, SilenceUsage: true,
		RunE: func(cmd *cobra.Command, args []string) error { return o.run(cmd.Context(), e, args) },
	}
	o.addTo(cmd)
	f := cmd.Flags()
	f.SetInterspersed(false)
	f.StringVarP(&o.dir, "directory", "C", "", "the command is to run in this `directory`")
	f.StringVar(&o.position, "position", "", "`position` of the run, as for exec")
	f.StringVar(&o.runName, "run-name", "", "`name` of the run, as for exec")
	f.StringVar(&o.key, "key", "", "`file` of the SSH key to sign with (default: the first of ~/.ssh/id_ed25519, id_ecdsa, id_rsa)")
	f.StringVar(&o.by, "by", "", "`name` of who approves, a principal of the key (default: its only one)")
	f.StringVar(&o.task, "task", "", "`id` of what the run is a part of (default: a new one)")
	f.IntVar(&o.ordinal, "ordinal", 0, "`number` of the run within the task; each is good for one run")
	f.DurationVar(&o.expires, "expires", floor.DefaultLifetime, "how long the approval holds, at most "+floor.MaxLifetime.String())
	f.StringVarP(&o.out, "out", "o", "", "write the attestation to this new `file` (default: attestation-XXXXXXXX.json)")
	f.BoolVar(&o.dryRun, "dry-run", false, "print what would be approved, and sign nothing")
	f.BoolVar(&o.unsigned, "unsigned", false, "write the statement without a signature, for ssh-keygen to sign")
	f.BoolVarP(&o.yes, "yes", "y", false, "do not ask")
	f.BoolVar(&o.json, "json", false, "print JSON on stdout, and what is approved on stderr")
	return cmd
}

func (o *approveOptions) run(ctx context.Context, e *environment, argv []string) error {
	if len(floor.Match(argv)) == 0 {
		return &usageError{"the command is not on the floor list", "run it with \"sbx exec\": it needs no approval"}
	}
	if o.expires <= 0 || o.expires > floor.MaxLifetime {
		return &usageError{fmt.Sprintf("--expires %s is none", o.expires), "give a duration of at most " + floor.MaxLifetime.String() + ", as in 15m"}
	}
	c, err := e.loadConfig()
	if err != nil {
		return err
	}
	a, gate, err := o.statement(ctx, e, c, argv)
	if err != nil {
		return err
	}
	if err := o.show(e, argv, a); err != nil || o.dryRun {
		return err
	}
	if err := o.confirm(e); err != nil {
		return err
	}
	return o.sign(ctx, e, argv, a, gate)
}

// statement says what is to be signed: what a run with these flags would be.
func (o *approveOptions) statement(ctx context.Context, e *environment, c config.Config, argv []string) (floor.Attestation, approval.Options, error) {
	none := floor.Attestation{}
	dir, err := workingDirectory(o.dir)
	if err == nil {
		dir, err = filepath.EvalSymlinks(dir)
	}
	if err != nil {
		return none, approval.Options{}, err
	}
	gate, err := e.approvalOptions(c, dir)
	if err != nil {
		return none, gate, err
	}
	g, err := o.grant(e, c, dir)
	if err != nil {
		return none, gate, err
	}
	s, err := gate.Store()
	if err != nil {
		return none, gate, err
	}
	position, err := o.positionOf(ctx, s)
	if err != nil {
		return none, gate, err
	}
	a := floor.Attestation{
		TaskID: o.task, Ordinal: o.ordinal, CommandSHA256: floor.Sum(argv), ApprovedAt: gate.Now.UTC().Truncate(time.Second), Rules: floor.Match(argv),
		Nonce: rand.Text(), Audience: s.ID(), GrantDigest: g.Digest(), Workdir: dir,
	}
	a.ExpiresAt = a.ApprovedAt.Add(o.expires)
	if position != proxy.Enforce {
		a.Position = position.String()
	}
	if a.TaskID == "" {
		a.TaskID = "task-" + strings.ToLower(rand.Text()[:12])
	}
	a.ApprovedBy, err = o.approver(e, gate)
	return a, gate, errors.Join(err, s.Close())
}

// positionOf is the position that a run with these flags would have.
func (o *approveOptions) positionOf(ctx context.Context, s *store.Store) (proxy.Position, error) {
	name, err := runName(o.runName, o.profiles)
	if err != nil || o.position != "" {
		given, wrong := parsePosition(o.position)
		return given, errors.Join(err, wrong)
	}
	return rolloutPosition(ctx, s, name)
}

// grant is what a run with these flags would be granted.
func (o *approveOptions) grant(e *environment, c config.Config, dir string) (grant.Grant, error) {
	if o.selection.empty() {
		return grant.Grant{}, nil
	}
	r, err := e.resolve(o.selection, c, dir)
	if err != nil {
		return grant.Grant{}, recipeRefusal(err)
	}
	return r.grant, nil
}

// approver finds the key, and who signs with it.
func (o *approveOptions) approver(e *environment, gate approval.Options) (string, error) {
	if o.key == "" {
		o.key = e.defaultKey()
	}
	if o.key == "" && !o.unsigned && !o.dryRun {
		return "", &usageError{"there is no SSH key to sign with", "name one with --key, or write the statement for ssh-keygen with --unsigned"}
	}
	if o.by != "" {
		return o.by, nil
	}
	who, err := "", fmt.Errorf("%w: there is no key", approval.ErrWho)
	if o.key != "" {
		who, err = approval.Approver(sshsig.Key{File: o.key}, gate)
	}
	if errors.Is(err, approval.ErrWho) {
		return "", &usageError{err.Error(), "name who approves with --by, as allowed_signers has it"}
	}
	return who, err
}

// defaultKey is the first of the user's keys that ssh would try, "" for none.
func (e *environment) defaultKey() string {
	for _, name := range []string{"id_ed25519", "id_ecdsa", "id_rsa"} {
		file := filepath.Join(e.vars["HOME"], ".ssh", name)
		if _, err := os.Stat(file); err == nil && e.vars["HOME"] != "" {
			return file
		}
	}
	return ""
}

// show prints everything that is going to be signed.
func (o *approveOptions) show(e *environment, argv []string, a floor.Attestation) error {
	to := e.out
	if o.json {
		to = e.say
	}
	one := func(text string) string { return floor.Shown([]string{text}) }
	rows := append(commandRows(argv), term.Cells("words", strconv.Itoa(len(argv))), term.Cells("floor list", strings.Join(a.Rules, ", ")),
		term.Cells("directory", one(a.Workdir)), term.Cells("sandbox", "one of the run's own"), term.Cells("profiles", dash(strings.Join(o.profiles, " "))))
	for _, input := range o.inputs {
		rows = append(rows, term.Cells("input", one(input)))
	}
	position := []term.Cell{{Text: "position"}, {Text: proxy.Enforce.String()}}
	if a.Position != "" {
		position[1] = term.Cell{Text: a.Position + ": the grant is NOT enforced", Tone: term.Bad}
	}
	rows = append(rows, term.Cells("grant", a.GrantDigest), position, term.Cells("store", a.Audience),
		term.Cells("task", one(a.TaskID)+" "+strconv.Itoa(a.Ordinal)), term.Cells("approved by", one(a.ApprovedBy)), term.Cells("key", dash(o.key)),
		term.Cells("expires", a.ExpiresAt.Format(time.RFC3339)+" (in "+o.expires.String()+")"))
	to.Table(nil, rows)
	if floor.ASCII(argv) != floor.Shown(argv) {
		e.say.Line("the command has characters beyond ASCII, which can look like others or like nothing: read its form in ASCII")
	}
	if o.json && o.dryRun {
		return e.printStatement(a, "", "")
	}
	return nil
}

// confirm asks the person, unless that was said on the command line.
func (o *approveOptions) confirm(e *environment) error {
	if o.yes || o.unsigned {
		return nil
	}
	if !term.Interactive(e.stdin) {
		return &usageError{"there is no terminal to ask on", "read what is to be approved with --dry-run, then add --yes"}
	}
	e.say.Raw("sbx: approve one run of this command? type yes: ")
	answer, err := bufio.NewReader(e.stdin).ReadString('\n')
	if err != nil || strings.TrimSpace(answer) != "yes" {
		return errors.New("nothing was approved")
	}
	return nil
}

func (o *approveOptions) sign(ctx context.Context, e *environment, argv []string, a floor.Attestation, gate approval.Options) error {
	text, fingerprint, err := o.text(ctx, e, a, gate)
	if err != nil {
		return err
	}
	file, err := o.write(a, text)
	if err != nil {
		return err
	}
	next := "sbx exec --attestation " + floor.Shown([]string{file}) + " " + o.flags() + floor.Shown(argv)
	if o.unsigned {
		next = "ssh-keygen -Y sign -n " + floor.Namespace + " -f KEY " + floor.Shown([]string{file}) + ", then: " + next
	}
	if o.json {
		return e.printStatement(a, file, fingerprint)
	}
	e.out.Raw(term.Escape("written to "+floor.Shown([]string{file})) + "\n" + term.Escape("run it: "+next) + "\n")
	if gate.Signers == "" {
		e.say.Line("allowed_signers is not set here, so nothing on this machine will take the attestation")
	}
	return nil
}

func (o *approveOptions) text(ctx context.Context, e *environment, a floor.Attestation, gate approval.Options) (text []byte, fingerprint string, err error) {
	if o.unsigned {
		text, err = a.Encode()
		return text, "", err
	}
	text, attested, err := approval.Attest(ctx, a, e.signingKey(o.key), gate)
	return text, attested.Fingerprint, err
}

// write makes a new file. The directory may be one that a sandbox writes: what is
// there under the name is not touched.
func (o *approveOptions) write(a floor.Attestation, text []byte) (string, error) {
	name := o.out
	if name == "" {
		name = "attestation-" + strings.ToLower(a.Nonce[:8]) + ".json"
	}
	dir, err := filepath.EvalSymlinks(filepath.Dir(name))
	if err == nil {
		dir, err = filepath.Abs(dir)
	}
	if err != nil {
		return "", fmt.Errorf("finding the directory of %s: %w", name, err)
	}
	target, err := artifact.HoldTarget(dir)
	if err != nil {
		return "", err
	}
	defer target.Close()
	base := filepath.Base(name)
	if exists, err := target.Has(base); err != nil || exists {
		return "", errors.Join(err, &usageError{fmt.Sprintf("--out %s exists already", name), "name a new file, or remove the old one"})
	}
	return name, target.Write(base, text)
}

// flags repeats those that exec needs as well.
func (o *approveOptions) flags() string {
	return o.selection.flags() + flag("-C", o.dir) + flag("--position", o.position) + flag("--run-name", o.runName) + "-- "
}

// printStatement prints an attestation as JSON; file is "" when nothing was written.
func (e *environment) printStatement(a floor.Attestation, file, fingerprint string) error {
	text, err := a.Encode()
	if err != nil {
		return err
	}
	return e.printJSON(struct {
		File        string `json:"file"`
		Fingerprint string `json:"fingerprint"`
		Statement   string `json:"statement"` // the text that is signed
	}{file, fingerprint, string(text)})
}

// flags writes the selection as flags.
func (s *selection) flags() string {
	var b strings.Builder
	for _, value := range s.profiles {
		b.WriteString(flag("--profile", value))
	}
	for _, value := range s.files {
		b.WriteString(flag("--profile-file", value))
	}
	for _, value := range s.inputs {
		b.WriteString(flag("--input", value))
	}
	return b.String()
}

// flag writes a flag for a shell, "" when it has no value.
func flag(name, value string) string {
	if value == "" {
		return ""
	}
	return name + " " + floor.Shown([]string{value}) + " "
}
