package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	sbx "github.com/fractalboxdev/sbx"
	"github.com/fractalboxdev/sbx/internal/approval"
	"github.com/fractalboxdev/sbx/internal/class"
	"github.com/fractalboxdev/sbx/internal/config"
	"github.com/fractalboxdev/sbx/internal/credential"
	"github.com/fractalboxdev/sbx/internal/grant"
	"github.com/fractalboxdev/sbx/internal/host"
	"github.com/fractalboxdev/sbx/internal/preflight"
	"github.com/fractalboxdev/sbx/internal/profile"
	"github.com/fractalboxdev/sbx/internal/sandbox"
	"github.com/fractalboxdev/sbx/internal/store"
)

// survey is one preflight under way.
type survey struct {
	e       *environment
	wanted  selection
	look    bool
	workdir string
	config  config.Config
	state   string
	grant   grant.Grant // of the selection, once it could be made
	found   []preflight.Finding
}

// preflight looks at everything. What it finds missing is a finding; the error is one
// of its own making.
func (e *environment) preflight(ctx context.Context, o *preflightOptions, workdir string) ([]preflight.Finding, error) {
	s := &survey{e: e, wanted: o.selection, look: o.look, workdir: workdir}
	done := e.say.Progress("looking at the host")
	s.found = preflight.Host(host.New(host.Options{Inside: []string{"sbx", "doctor", "--inside"}, Libseccomp: libseccomp}).Facts())
	done()
	usable := s.configuration()
	s.builtin()
	if !usable {
		s.add("trial", host.Fact{
			Name: "a run in a sandbox", Need: host.Required, State: host.No, Detail: "not tried: configuration or store cannot be used",
			Cost: "no command can be run", Fix: "mend those first, then: sbx preflight",
		})
		return s.found, nil
	}
	s.signers()
	s.selected()
	s.registries()
	s.secrets(ctx)
	return s.found, s.trial(ctx)
}

func (s *survey) add(group string, f host.Fact) {
	s.found = append(s.found, preflight.Finding{Group: group, Fact: f})
}

// failed turns a fact into a missing one, for the reason and with the next step that
// the error knows.
func failed(f host.Fact, err error, orElse string) host.Fact {
	f.State, f.Detail = host.No, err.Error()
	if f.Fix = nextStep(err); f.Fix == "" {
		f.Fix = orElse
	}
	return f
}

// configuration reports whether there are a configuration and a store to go on with.
func (s *survey) configuration() bool {
	fact := s.e.configFact()
	s.add("configuration", fact)
	if fact.State != host.Yes {
		return false
	}
	var err error
	if s.config, err = s.e.loadConfig(); err != nil {
		return false
	}
	if s.state, err = s.e.stateDir(s.config); err != nil {
		s.add("store", failed(host.Fact{Name: "state directory", Need: host.Required}, err, "set HOME, or state_dir in the operator's configuration"))
		return false
	}
	fact = s.e.stateFact()
	s.add("store", fact)
	return fact.State == host.Yes && s.store()
}

// store looks at what sbx remembers, as it is.
func (s *survey) store() bool {
	f := host.Fact{Name: "store", Need: host.Required, State: host.Yes, Cost: "no command can be run: keys, slots and attestations could not be kept"}
	r, err := checkStore(s.state)
	switch {
	case errors.Is(err, store.ErrMissing):
		f.Detail, f.Cost = "there is none yet; the first run makes it", ""
	case err != nil:
		f = failed(f, err, "sbx state check")
	case len(r.Problems) > 0:
		f.State, f.Detail, f.Fix = host.No, strings.Join(r.Problems, "; "), "sbx state check"
	case r.Schema != r.Known:
		f.State, f.Detail, f.Fix = host.No, fmt.Sprintf("it has taken %d of %d migrations", r.Schema, r.Known), "sbx state migrate"
	default:
		f.Detail, f.Cost = fmt.Sprintf("%s, schema %d", r.Path, r.Schema), ""
	}
	s.add("store", f)
	return f.State == host.Yes
}

func checkStore(dir string) (r store.Report, err error) {
	ctx := context.Background()
	opened, err := store.Open(ctx, store.Options{Dir: dir, Existing: true, AsIs: true})
	if err != nil {
		return r, err
	}
	defer func() { err = errors.Join(err, opened.Close()) }()
	return opened.Check(ctx)
}

func (s *survey) builtin() {
	f := host.Fact{Name: "built-in profiles", Need: host.Required, State: host.Yes, Fix: "take a released binary"}
	set, err := builtinProfiles()
	findings := profile.Lint(sbx.BuiltinProfiles, builtinFile, false)
	switch {
	case err != nil:
		f = failed(f, err, f.Fix)
	case len(findings) > 0:
		f.State, f.Detail = host.No, fmt.Sprintf("%d findings, the first: %s", len(findings), findings[0])
	default:
		f.Detail, f.Fix = fmt.Sprintf("%d, without findings", len(set.Names())), ""
	}
	s.add("profiles", f)
}

// signers looks at who may approve. Nobody has to, unless a file of profiles is selected
// or an advisory is configured.
func (s *survey) signers() {
	f := host.Fact{Name: "signers", Need: host.Info, State: host.Yes, Cost: "nothing can be approved"}
	if len(s.wanted.files) > 0 || s.config.Advisory.V != "" || s.config.Signers.V != "" {
		f.Need = host.Required
	}
	opt, err := s.e.approvalOptions(s.config, s.workdir)
	var count int
	if err == nil {
		count, err = approval.CountSigners(opt)
	}
	switch {
	case err != nil:
		f = failed(f, err, "sbx config show")
	case count == 0:
		f.State, f.Detail, f.Fix = host.No, opt.Signers+" lists nobody", "add a line, as ssh-keygen(1) describes it under ALLOWED SIGNERS"
	default:
		f.Detail, f.Cost = fmt.Sprintf("%d in %s", count, opt.Signers), ""
	}
	s.add("signers", f)
}

// selected makes the grant as a run would get it.
func (s *survey) selected() {
	if s.wanted.empty() {
		return
	}
	f := host.Fact{Name: "the selected profiles", Need: host.Required, State: host.Yes, Cost: "such a run is refused"}
	r, err := s.e.resolve(s.wanted, s.config, s.workdir)
	if err != nil {
		f = failed(f, err, "sbx profiles list")
	} else {
		s.grant = r.grant
		f.Detail, f.Cost = strings.Join(s.wanted.profiles, " ")+", grant "+r.grant.Digest(), ""
	}
	s.add("profiles", f)
}

// registries looks for the endpoints of the selected profiles, else of all that are
// built in.
func (s *survey) registries() {
	need, ecosystems := host.Required, s.ecosystems()
	if s.wanted.empty() {
		need = host.Info
	}
	endpoints := s.e.endpoints(s.config, s.workdir)
	for _, name := range ecosystems {
		f := host.Fact{Name: "registry:" + name, Need: need, State: host.Yes, Cost: "profiles with this registry are refused"}
		found, err := endpoints.Endpoints(name)
		if err != nil {
			f = failed(f, err, "name it in the operator's configuration, as in: [registries] "+name+` = ["https://..."]`)
		} else {
			var all []string
			for _, at := range found {
				all = append(all, fmt.Sprintf("%s (%s)", at.URL, at.Source))
			}
			f.Detail, f.Cost = strings.Join(all, ", "), ""
		}
		s.add("registries", f)
	}
}

// ecosystems of the selected profiles, also where no grant could be made of them.
func (s *survey) ecosystems() []string {
	set, err := builtinProfiles()
	if err != nil {
		return nil
	}
	names := s.wanted.profiles
	if s.wanted.empty() {
		names = set.Names()
	}
	all := s.grant.Ecosystems()
	for _, name := range names {
		if p, err := set.Get(name); err == nil {
			all = append(all, p.Ecosystems()...)
		}
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// secrets looks whether each secret of the grant is there. Only names are said.
func (s *survey) secrets(ctx context.Context) {
	reader := credential.Reader{Env: s.e.env, Home: s.e.vars["HOME"], Forbidden: s.e.writable(s.workdir), RootID: sandbox.RootUID()}
	reader.Forbidden = append(reader.Forbidden, sandbox.Resolve(s.workdir))
	for _, c := range s.grant.Credentials() {
		f := host.Fact{Name: c.SecretName(), Need: host.Better, State: host.Yes, Detail: c.Source() + ": it is set", Cost: "requests go out without it"}
		if c.Required {
			f.Need, f.Cost = host.Required, "requests that need it are refused"
		}
		value, err := reader.Read(ctx, c)
		switch {
		case err != nil:
			f = failed(f, err, howToSet(c))
		case value.IsZero():
			f.State, f.Detail, f.Fix = host.No, c.Source()+": it is not set", howToSet(c)
		default:
			f.Cost = ""
		}
		s.add("secrets", f)
	}
}

func howToSet(c grant.Credential) string {
	switch {
	case c.Env != "":
		return "export " + c.Env + "=..."
	case c.File != "":
		return "write it to " + c.File + ", where only you can read and write"
	}
	return "make the command print it: " + strings.Join(c.Command.Split(), " ")
}

// clients are those of which a built-in profile, or one with an ecosystem, needs one.
var clients = map[string][]string{
	"public-repo-read": {"git"}, "rust-install": {"cargo"},
	"registry:npm": {"npm", "pnpm", "yarn", "bun"}, "registry:yarn": {"yarn", "npm", "pnpm", "bun"}, "registry:go": {"go"},
	"registry:python": {"pip", "uv"}, "registry:debian": {"apt-get"},
}

func (s *survey) clients() map[string][]string {
	out := map[string][]string{}
	for _, p := range s.grant.Profiles() {
		if list, ok := clients[p.Name]; ok {
			out[p.Name] = list
		}
	}
	for _, ecosystem := range s.grant.Ecosystems() {
		if list, ok := clients["registry:"+ecosystem]; ok {
			out["registry:"+ecosystem] = list
		}
	}
	return out
}

// trial makes one run in a sandbox of its own.
func (s *survey) trial(ctx context.Context) error {
	argv := []string{preflight.TrialCommand, "--directory", s.workdir, "--class", string(s.grant.Class())}
	if s.look {
		argv = append(argv, "--look")
	}
	done := s.e.say.Progress("trying toolchains in a sandbox")
	text, err := s.e.again(ctx, argv...)
	done()
	if err != nil {
		return fmt.Errorf("trying a run: %w", err)
	}
	var t preflight.Trial
	if err := json.Unmarshal(text, &t); err != nil {
		return fmt.Errorf("reading what the trial came to: %w", err)
	}
	s.found = append(s.found, t.Findings(s.clients())...)
	return nil
}

// preflightTrial is the trial, in a process of its own.
func (e *environment) preflightTrial(ctx context.Context, dir, name string, requests bool) error {
	d, err := e.openDeployment(ctx)
	if err != nil {
		return err
	}
	f := d.options(e, "preflight")
	f.Workdir, f.Extra = dir, d.config.EnvAllow.V
	if name != "" {
		f.Class = class.Name(name)
	}
	t, err := preflight.Try(ctx, f, requests)
	if err != nil {
		return err
	}
	return e.printJSON(t)
}
