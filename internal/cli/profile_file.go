package cli

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/fractalboxdev/sbx/internal/approval"
	"github.com/fractalboxdev/sbx/internal/config"
	"github.com/fractalboxdev/sbx/internal/event"
	"github.com/fractalboxdev/sbx/internal/fence"
	"github.com/fractalboxdev/sbx/internal/grant"
	"github.com/fractalboxdev/sbx/internal/profile"
	"github.com/fractalboxdev/sbx/internal/registry"
	"github.com/fractalboxdev/sbx/internal/sandbox"
)

// resolved is what a selection came to.
type resolved struct {
	grant     grant.Grant
	endpoints *registry.Resolver // knows where the registries of the grant are
	approvals []event.Approval   // of the selected custom profiles
	loaded    []approval.Loaded
}

// remember notes the versions of custom profiles before a run uses them.
func (r resolved) remember() error {
	for _, l := range r.loaded {
		if err := l.Remember(); err != nil {
			return err
		}
	}
	return nil
}

// customProfiles loads the approved files of a selection. A file only makes names
// known: --profile selects, so that a file that was exchanged for another
// approved one does not grant what nobody named.
func (e *environment) customProfiles(s selection, c config.Config, workdir string) (resolved, []profile.Set, error) {
	if len(s.files) == 0 {
		return resolved{}, nil, nil
	}
	opt, err := e.approvalOptions(c, workdir)
	if err != nil {
		return resolved{}, nil, err
	}
	var r resolved
	var sets []profile.Set
	for _, file := range s.files {
		l, err := approval.Load(file, opt)
		if err != nil {
			return resolved{}, nil, err
		}
		wanted := slices.DeleteFunc(slices.Clone(l.Approvals), func(a event.Approval) bool { return !slices.Contains(s.profiles, a.Profile) })
		if len(wanted) == 0 {
			return resolved{}, nil, &usageError{
				fmt.Sprintf("--profile-file %s is given, but none of its profiles is selected", file),
				"add --profile " + strings.Join(l.Profiles.Names(), " or --profile "),
			}
		}
		l.Approvals = wanted
		r.approvals, r.loaded, sets = append(r.approvals, wanted...), append(r.loaded, l), append(sets, l.Profiles)
	}
	return r, sets, nil
}

// approvalOptions is where the review gate looks.
func (e *environment) approvalOptions(c config.Config, workdir string) (approval.Options, error) {
	state, err := e.stateDir(c)
	if err != nil {
		return approval.Options{}, err
	}
	return approval.Options{
		Signers: c.Signers.V, StateDir: state, UID: os.Geteuid(), RootUID: sandbox.RootUID(), Forbidden: e.writable(workdir), Now: time.Now(),
		Store: e.storeIn(state),
	}, nil
}

// approvalOptionsHere is approvalOptions for a command that runs nothing, so that
// no working directory is written by what it judges.
func (e *environment) approvalOptionsHere() (approval.Options, error) {
	c, err := e.loadConfig()
	if err != nil {
		return approval.Options{}, err
	}
	return e.approvalOptions(c, "")
}

// writable is what sandboxes may write of the host: the working directory, and
// the caches that runs keep.
func (e *environment) writable(workdir string) []string {
	var paths []string
	if workdir != "" {
		paths = append(paths, filepath.Clean(workdir))
	}
	if dir, ok := fence.CacheDirectory(e.env); ok {
		paths = append(paths, dir)
	}
	return paths
}

// customSet loads the approved profiles of files for looking at them.
func (e *environment) customSet(files []string) (profile.Set, error) {
	opt, err := e.approvalOptionsHere()
	if err != nil {
		return profile.Set{}, err
	}
	var all profile.Set
	for _, file := range files {
		l, err := approval.Load(file, opt)
		if err != nil {
			return profile.Set{}, err
		}
		if all, err = all.With(l.Profiles); err != nil {
			return profile.Set{}, err
		}
	}
	return all, nil
}
