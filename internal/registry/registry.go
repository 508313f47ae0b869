// Package registry learns where the package clients of this machine ask, from
// their own user and global files: never from the project, never by running them.
package registry

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"sync"

	"github.com/fractalboxdev/sbx/internal/grant"
)

// Ecosystems are the names that rules may use after "registry:".
var Ecosystems = []string{"debian", "go", "npm", "python", "yarn"}

// Options says whose files are read and what else counts.
type Options struct {
	// Home is the caller's home directory. Files below it are read; absolute.
	Home string
	// UserID is the caller's numeric user: files have to belong to it or to root.
	UserID int
	// RootID is the uid that root's files show, 0 but in some user namespaces.
	RootID int
	// Operator has endpoints from operator configuration, by ecosystem; they win.
	Operator map[string][]string
	// Forbidden are paths that some sandbox can write: no file below them counts.
	Forbidden []string
	// Env is the caller's environment. Only PATH and XDG_CONFIG_HOME are used,
	// and the clients' own variables when ClientEnvAllowed says so.
	Env map[string]string
	// ClientEnvAllowed lets variables like npm_config_registry and GOPROXY count.
	ClientEnvAllowed bool
	// Root is put before every absolute path: "" for the machine's own root.
	Root string
	// AskDefault asks a client for its built-in default where no file tells it;
	// nil when there is nobody to ask. It returns URLs, the default index first.
	AskDefault func(ctx context.Context, ecosystem string) ([]string, error)
}

// ErrUnknown is wrapped when no file tells an ecosystem's endpoints.
var ErrUnknown = errors.New("endpoints are not known")

// File is a client configuration to lay into the private HOME.
type File struct {
	Path    string // relative to HOME
	Content string
}

// answer is what is known about one ecosystem.
type answer struct {
	endpoints []grant.Endpoint
	env       []grant.EnvVar
	files     []File
}

// Resolver answers for one caller. It reads files at most once per ecosystem and
// is safe for concurrent use.
type Resolver struct {
	opts     Options
	writable []fs.FileInfo // the identities of Options.Forbidden
	mu       sync.Mutex
	answers  map[string]*answer
	checked  map[string]bool // directories that passed, by resolved path
}

// New makes a resolver; no file is read yet.
func New(opts Options) *Resolver {
	return &Resolver{opts: opts, writable: identify(opts), answers: map[string]*answer{}, checked: map[string]bool{}}
}

// Endpoints returns the endpoints of an ecosystem, the default index first; it
// is a profile.EndpointSource.
func (r *Resolver) Endpoints(ecosystem string) ([]grant.Endpoint, error) {
	a, err := r.answer(ecosystem)
	if err != nil {
		return nil, err
	}
	return slices.Clone(a.endpoints), nil
}

// ClientEnv returns the variables that make the ecosystem's clients ask the
// resolved endpoints from a private HOME; no value holds userinfo.
func (r *Resolver) ClientEnv(ecosystem string) ([]grant.EnvVar, error) {
	a, err := r.answer(ecosystem)
	if err != nil {
		return nil, err
	}
	return slices.Clone(a.env), nil
}

// ClientFiles returns files for the private HOME, for what no variable can say,
// such as scoped registries.
func (r *Resolver) ClientFiles(ecosystem string) ([]File, error) {
	a, err := r.answer(ecosystem)
	if err != nil {
		return nil, err
	}
	return slices.Clone(a.files), nil
}

func (r *Resolver) answer(ecosystem string) (*answer, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.locked(ecosystem)
}

func (r *Resolver) locked(ecosystem string) (*answer, error) {
	if known, ok := r.answers[ecosystem]; ok {
		return known, nil
	}
	find := map[string]func() (*answer, error){
		"debian": r.debian, "go": r.golang, "npm": r.npm, "python": r.python, "yarn": r.yarn,
	}[ecosystem]
	if find == nil {
		return nil, fmt.Errorf("resolving registry:%s: %w: the ecosystems are %v", ecosystem, ErrUnknown, Ecosystems)
	}
	a, err := find()
	if err != nil {
		return nil, fmt.Errorf("resolving registry:%s: %w", ecosystem, err)
	}
	r.answers[ecosystem] = a
	return a, nil
}
