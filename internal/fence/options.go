package fence

import (
	"context"
	"os"
	"time"

	"github.com/fractalboxdev/sbx/internal/admission"
	"github.com/fractalboxdev/sbx/internal/class"
	"github.com/fractalboxdev/sbx/internal/event"
	"github.com/fractalboxdev/sbx/internal/floor"
	"github.com/fractalboxdev/sbx/internal/grant"
	"github.com/fractalboxdev/sbx/internal/proxy"
	"github.com/fractalboxdev/sbx/internal/sandbox"
	"github.com/fractalboxdev/sbx/internal/sandbox/stage"
	"github.com/fractalboxdev/sbx/internal/secret"
	"github.com/fractalboxdev/sbx/internal/store"
)

// Derived is what the reviewed definitions and vetted inputs of a run came to.
type Derived struct {
	Grant     grant.Grant
	ClientEnv []grant.EnvVar   // points clients at the endpoints, without userinfo
	Files     []sandbox.File   // client configuration for the private home directory
	Approvals []event.Approval // of the profiles that are not built in
}

// Options are everything that one pass through the fence is told.
type Options struct {
	Self    stage.Self
	Argv    []string
	Workdir string         // absolute
	Paths   []sandbox.Wish // what --ro, --rw and --hide name
	Env     []string       // of the caller
	Extra   []string       // --env KEY or KEY=VALUE
	Timeout time.Duration  // unless Limits has a time
	Grace   time.Duration
	NoTTY   bool
	NoCache bool

	WaitChildren bool // the run lasts until the last process inside has ended
	WithParent   bool // the run ends when the process that started sbx does
	RawTerminal  bool // what the command writes reaches the terminal unfiltered

	// Classes defines a class. Limits are the caller's own, and only lower what it says.
	Classes func(class.Name) class.Definition
	Limits  class.Limits
	Bounds  Bounds // of what sbx itself holds

	Key         string // of idempotency, "" for none
	StdinDigest string // of what Stdin has, with a Key

	StateDir  string
	Config    []string // the operator's configuration files, whether or not they exist
	Artifacts string
	Consumer  string
	Version   string
	Position  proxy.Position // zero: enforce; without PositionGiven, a rollout of RunName replaces it
	// PositionGiven says that the person wants Position for this run.
	PositionGiven bool
	RunName       string  // "" for a run that has no part in any rollout
	Consent       Consent // for a command of the floor list

	Class class.Name      // of runs whose profiles name none; "": class.Default
	Pools admission.Pools // of the classes

	Stdin, Stdout, Stderr *os.File

	// Store opens what sbx remembers, once; no run goes without it.
	Store func() (*store.Store, error)
	// Derive computes the grant; its error refuses the run.
	Derive func(context.Context) (Derived, error)
	// Require is what has to be proved before anything is made; nil for nothing. Its
	// error refuses the run.
	Require func(context.Context) error
	// OnPosition is told the run's position, and its rollout if it has one, before
	// anything is made.
	OnPosition func(proxy.Position, *event.Rollout)
	// OnDenial is told each new denial as it happens.
	OnDenial func(event.Denial)
	// OnJoin is told the run that this call follows, since it is the same.
	OnJoin func(run string)
	// OnSwept is told what earlier runs had left behind.
	OnSwept func([]event.Swept)
	// OnLimits is told how the limits of the run are held, before it starts.
	OnLimits func([]event.Limit)
	// OnSetAside is told what the command had put where programs outside would run or
	// obey it, and the file that has it now.
	OnSetAside func(event.Aside, string)
	// OnSecrets is given what masks the run's secrets, before anything runs: whatever
	// the caller prints of the run goes through it.
	OnSecrets func(*secret.Redactor)
	// OnRequest is told each request once it stands in the run's record.
	OnRequest func(event.Request)
	// StandIn stands in for the world, in a canary's run.
	StandIn *StandIn
	// Busy is told when the command has the terminal to itself, and when it has not.
	Busy func(bool)
}

// Bounds are what one run can make sbx itself hold. Zero fields are the defaults of
// docs/receipt.md.
type Bounds struct {
	Names        int // looked up
	Connections  int // at once
	Streams      int // HTTP/2 requests at once
	Certificates int // hosts with a leaf
	Destinations int // of refused packets
	Rows         int // recorded requests
	HeadBytes    int64
	BodyBytes    int64
	Responses    int64 // bytes of responses that are searched
	Output       int64 // bytes kept
}

func (b Bounds) proxy() proxy.Limits {
	return proxy.Limits{Connections: b.Connections, Streams: b.Streams, HeadBytes: b.HeadBytes, BufferedBytes: b.BodyBytes, SearchedBytes: b.Responses}
}

// Outcome is how a run ended.
type Outcome struct {
	Exit    int
	Receipt event.Receipt
	Denials []event.Denial
	Dir     string // the run's directory, or where it was copied
}

// Exit codes of sbx itself (docs/cli.md).
const (
	ExitTimeout       = 124
	ExitRefused       = 125
	ExitNotExecutable = 126
	ExitNotFound      = 127
	ExitKilled        = 128 + 15 // by sbx kill, as by SIGTERM
	ExitStream        = 255
)

// Preview is what a run would be given.
type Preview struct {
	Floor []string        `json:"floor_list"` // rules that the command matches: it needs an attestation
	Grant grant.Grant     `json:"grant"`
	Tree  []sandbox.Entry `json:"tree"`
	Env   []string        `json:"env"`
	Dir   string          `json:"workdir"`
	UID   uint32          `json:"uid"`
	Class class.Name      `json:"class"`
}

// DryRun computes what Run would set up, and sets up nothing.
func DryRun(ctx context.Context, o Options) (Preview, error) {
	f := &fence{o: o, id: "dry-run"}
	f.beginSurvey()
	defer f.closeSurvey()
	d, err := o.Derive(ctx)
	if err != nil {
		return Preview{}, err
	}
	f.derived = d
	for _, c := range d.Grant.Credentials() { // no secret is read, so none is known to be set
		f.secrets = append(f.secrets, heldSecret{Credential: c, placeholder: "(a random placeholder, where the secret is set)"})
	}
	if err := f.chooseLimits(); err != nil {
		return Preview{}, f.refusal(stepGrant, err)
	}
	facts, who, err := f.look()
	if err != nil {
		return Preview{}, f.refusal(stepEnsure, err)
	}
	caches, err := f.caches(facts)
	if err != nil {
		return Preview{}, f.refusal(stepEnsure, err)
	}
	spec := f.describe(facts, who, caches)
	return Preview{Floor: append([]string{}, floor.Match(o.Argv)...), Grant: d.Grant, Tree: spec.Tree, Env: spec.Env, Dir: spec.Workdir, UID: spec.UID, Class: f.limits.class.Name}, nil
}
