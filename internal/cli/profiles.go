package cli

import (
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/fractalboxdev/sbx/internal/egress"
	"github.com/fractalboxdev/sbx/internal/grant"
	"github.com/fractalboxdev/sbx/internal/profile"
	"github.com/fractalboxdev/sbx/internal/term"
)

func newProfilesCommand(e *environment) *cobra.Command {
	cmd := group("profiles", "Show the reviewed sets of rules that a run can be granted")
	cmd.AddCommand(
		newProfilesList(e), newProfilesShow(e), newProfilesLint(e), newProfilesTest(e), newProfilesDiff(e), newProfilesSuggest(e),
		newProfilesApprove(e), newProfilesRevoke(e),
	)
	return cmd
}

func newProfilesList(e *environment) *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use: "list", Short: "List the profiles", Args: exactly(),
		RunE: func(*cobra.Command, []string) error { return e.listProfiles(asJSON) },
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return cmd
}

func (e *environment) listProfiles(asJSON bool) error {
	set, err := builtinProfiles()
	if err != nil {
		return err
	}
	var all []profile.Profile
	var rows [][]term.Cell
	for _, name := range set.Names() {
		p, err := set.Get(name)
		if err != nil {
			return err
		}
		all = append(all, p)
		rows = append(rows, term.Cells(p.Name, strconv.Itoa(p.Version), inputNames(p), p.Summary))
	}
	if asJSON {
		return e.printJSON(struct {
			Profiles []profile.Profile `json:"profiles"`
		}{all})
	}
	e.out.Table([]string{"PROFILE", "VERSION", "INPUTS", "WHAT IT IS FOR"}, rows)
	return nil
}

func inputNames(p profile.Profile) string {
	var names []string
	for _, in := range p.Inputs {
		name := in.Name
		if !in.Required {
			name = "[" + name + "]"
		}
		names = append(names, name)
	}
	if len(names) == 0 {
		return "-"
	}
	return strings.Join(names, " ")
}

func newProfilesShow(e *environment) *cobra.Command {
	var asJSON bool
	var files []string
	cmd := &cobra.Command{
		Use: "show NAME", Short: "Print a profile's rules and where its registries are", Args: exactly("NAME"),
		RunE: func(_ *cobra.Command, args []string) error { return e.showProfile(args[0], files, asJSON) },
	}
	cmd.Flags().StringArrayVar(&files, "profile-file", nil, "also know the profiles of this approved `file`; may be given several times")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return cmd
}

// endpointView is one registry of a profile as this machine has it.
type endpointView struct {
	grant.Endpoint
	Error string `json:"error,omitempty"` // why it is not known; URL is empty then
}

// ruleView is a rule with all that it permits.
type ruleView struct {
	profile.Rule
	Permission egress.Rule `json:"permission"`
}

func (e *environment) showProfile(name string, files []string, asJSON bool) error {
	set, err := builtinProfiles()
	if err != nil {
		return err
	}
	custom, err := e.customSet(files)
	if err != nil {
		return err
	}
	if set, err = set.With(custom); err != nil {
		return err
	}
	p, err := set.Get(name)
	if err != nil {
		return err
	}
	endpoints, err := e.viewEndpoints(p)
	if err != nil {
		return err
	}
	if asJSON {
		rules := make([]ruleView, len(p.Rules))
		for i, r := range p.Rules {
			rules[i] = ruleView{r, r.Permission}
		}
		return e.printJSON(struct {
			Profile   profile.Profile `json:"profile"`
			Rules     []ruleView      `json:"rules"`
			Endpoints []endpointView  `json:"endpoints"`
		}{p, rules, endpoints})
	}
	e.printProfile(p, endpoints)
	return nil
}

// viewEndpoints asks for every registry of the profile. One that is not known is
// shown as such: the profile can be read without it.
func (e *environment) viewEndpoints(p profile.Profile) ([]endpointView, error) {
	c, err := e.loadConfig()
	if err != nil {
		return nil, err
	}
	workdir, err := os.Getwd()
	if err != nil {
		return nil, fmt.Errorf("finding the working directory: %w", err)
	}
	resolver := e.endpoints(c, workdir)
	views := []endpointView{}
	for _, ecosystem := range p.Ecosystems() {
		found, err := resolver.Endpoints(ecosystem)
		if err != nil {
			views = append(views, endpointView{grant.Endpoint{Ecosystem: ecosystem}, err.Error()})
		}
		for _, f := range found {
			views = append(views, endpointView{Endpoint: f})
		}
	}
	return views, nil
}

func (e *environment) printProfile(p profile.Profile, endpoints []endpointView) {
	e.out.Table(nil, [][]term.Cell{
		term.Cells("profile", p.Name+" (version "+strconv.Itoa(p.Version)+")"),
		term.Cells("what it is for", p.Summary),
		term.Cells("class", dash(string(p.Class))),
		term.Cells("digest", p.Digest),
	})
	e.section("INPUT", inputRows(p), "KIND", "NEEDED", "WHAT IT IS")
	var rules [][]term.Cell
	for _, r := range p.Rules {
		rules = append(rules, term.Cells(r.ID, protocols(r), strings.Join(r.Hosts, " "), dash(strings.Join(r.Permission.Methods, " ")),
			dash(strings.Join(r.Paths, " ")), conditions(r)))
	}
	e.section("RULE", rules, "PROTOCOL", "HOST", "METHODS", "PATH", "AND")
	var registries [][]term.Cell
	for _, v := range endpoints {
		source := v.Source
		if v.Error != "" {
			source = v.Error
		}
		registries = append(registries, term.Cells("registry:"+v.Ecosystem, dash(v.Role), dash(v.URL), source))
	}
	e.section("REGISTRY", registries, "ROLE", "URL", "SOURCE")
	e.section("HOST'S SOCKET", socketRows(p), "NEEDS AN OVERRIDE")
	e.section("SECRET", secretRows(p), "READ FROM", "SENT TO", "AS", "NEEDED")
}

// section writes a table after an empty line, or nothing when it has no rows.
func (e *environment) section(first string, rows [][]term.Cell, header ...string) {
	if len(rows) == 0 {
		return
	}
	e.out.Raw("\n")
	e.out.Table(append([]string{first}, header...), rows)
}

func inputRows(p profile.Profile) [][]term.Cell {
	var rows [][]term.Cell
	for _, in := range p.Inputs {
		rows = append(rows, term.Cells(in.Name, string(in.Kind), yesNo(in.Required), in.Summary))
	}
	return rows
}

func secretRows(p profile.Profile) [][]term.Cell {
	var rows [][]term.Cell
	for _, c := range p.Credentials {
		to := c.Host.String()
		if c.Registry != "" {
			to = "registry:" + c.Registry
		}
		rows = append(rows, term.Cells(c.SecretName(), c.Source(), to, c.Slot(), yesNo(c.Required)))
	}
	return rows
}

func socketRows(p profile.Profile) [][]term.Cell {
	var rows [][]term.Cell
	for _, s := range p.UnixSockets {
		rows = append(rows, term.Cells(s, yesNo(profile.PowerfulSocket(s))))
	}
	return rows
}

func protocols(r profile.Rule) string {
	names := make([]string, len(r.Protocols))
	for i, p := range r.Protocols {
		names[i] = p.String()
	}
	return strings.Join(names, " ")
}

// conditions is everything else that a rule says.
func conditions(r profile.Rule) string {
	p := r.Permission
	var parts []string
	add := func(when bool, text string) {
		if when {
			parts = append(parts, text)
		}
	}
	add(r.When != "", "with input "+r.When)
	for _, host := range r.Hosts {
		apex, wildcard := strings.CutPrefix(host, "*.")
		add(wildcard, "not "+apex+" itself")
	}
	add(slices.ContainsFunc(r.Paths, func(path string) bool { return !strings.HasSuffix(path, "*") }), "nothing below a path without **")
	for _, q := range p.Query {
		add(true, q.Key+"="+q.Value)
	}
	add(p.MaxBody > 0, "body up to "+strconv.FormatInt(p.MaxBody, 10)+" bytes")
	for _, j := range p.Body.JSON {
		add(true, "body "+j.Pointer+" is "+strings.Join(j.OneOf, " or "))
	}
	add(p.Body.Git != "", "git "+p.Body.Git+" commands")
	add(p.Credential != "", "sends "+p.Credential)
	add(p.Redirects == egress.RedirectFollow, "redirects followed")
	add(p.WebSocket, "WebSocket")
	add(p.Tunnel, "TLS not opened: host, port and SNI are all that is policed")
	add(p.Internal, "internal addresses")
	add(p.Cookies, "cookies")
	return dash(strings.Join(parts, "; "))
}

func yesNo(b bool) string {
	if b {
		return "yes"
	}
	return "no"
}

func dash(s string) string {
	if s == "" {
		return "-"
	}
	return s
}
