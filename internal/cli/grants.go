package cli

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	sbx "github.com/fractalboxdev/sbx"
	"github.com/fractalboxdev/sbx/internal/config"
	"github.com/fractalboxdev/sbx/internal/profile"
	"github.com/fractalboxdev/sbx/internal/registry"
	"github.com/fractalboxdev/sbx/internal/sandbox"
)

// selection is what --profile, --profile-file and --input say.
type selection struct {
	profiles []string
	files    []string // of custom profiles
	inputs   []string
}

// addTo makes the flags.
func (s *selection) addTo(cmd *cobra.Command) {
	cmd.Flags().StringArrayVar(&s.profiles, "profile", nil, "grant what this `profile` allows; may be given several times")
	cmd.Flags().StringArrayVar(&s.files, "profile-file", nil, "also know the profiles of this approved `file`; may be given several times")
	cmd.Flags().StringArrayVar(&s.inputs, "input", nil, "value of a profile's input, as `KEY=VALUE`; may be given several times")
}

// empty reports whether nothing is selected.
func (s *selection) empty() bool { return len(s.profiles)+len(s.files)+len(s.inputs) == 0 }

// values parses the inputs. The same input twice is an error unless both say the same.
func (s *selection) values() (map[string]string, error) {
	values := make(map[string]string, len(s.inputs))
	for _, text := range s.inputs {
		key, value, ok := strings.Cut(text, "=")
		if !ok || key == "" {
			return nil, &usageError{fmt.Sprintf("--input %q is not KEY=VALUE", text), "type it as in: --input repo=owner/name"}
		}
		if old, twice := values[key]; twice && old != value {
			return nil, &usageError{fmt.Sprintf("--input %s is given twice with different values", key), "several hosts are one value, joined with commas"}
		}
		values[key] = value
	}
	return values, nil
}

// builtinProfiles parses the profiles of the binary.
func builtinProfiles() (profile.Set, error) {
	set, err := profile.Parse(sbx.BuiltinProfiles, builtinFile)
	if err != nil {
		return profile.Set{}, fmt.Errorf("loading the built-in profiles: %w", err)
	}
	return set, nil
}

// loadConfig reads the operator's configuration.
func (e *environment) loadConfig() (config.Config, error) {
	return config.Load(config.Options{
		SystemFile: config.SystemFile,
		UserFile:   config.UserFile(e.getenv),
		UID:        os.Geteuid(),
		RootUID:    sandbox.RootUID(),
	})
}

// resolve makes the grant of a selection as a run in workdir would get it.
func (e *environment) resolve(s selection, c config.Config, workdir string) (resolved, error) {
	values, err := s.values()
	if err != nil {
		return resolved{}, err
	}
	r, custom, err := e.customProfiles(s, c, workdir)
	if err != nil {
		return resolved{}, err
	}
	r.endpoints = e.endpoints(c, workdir)
	r.grant, err = profile.Resolve(sbx.BuiltinProfiles, builtinFile, s.profiles, values, e.vars, r.endpoints.Endpoints, custom...)
	return r, err
}

// endpoints makes the resolver of registry addresses. No file counts that a
// sandbox may have written: in the project that workdir is of, of which an
// earlier run may have had more, or in the caches that runs keep.
func (e *environment) endpoints(c config.Config, workdir string) *registry.Resolver {
	forbidden := e.writable(workdir)
	if top := projectTop(workdir, e.vars["HOME"]); top != "" {
		forbidden = append(forbidden, top)
	}
	opt := registry.Options{
		Home: e.vars["HOME"], UserID: os.Geteuid(), RootID: sandbox.RootUID(), Operator: operatorEndpoints(c),
		Env: e.vars, ClientEnvAllowed: c.ClientEnv.V, AskDefault: e.askDefault, Forbidden: forbidden,
	}
	return registry.New(opt)
}

// projectMarks are what the top directory of a project has.
var projectMarks = []string{".git", "package.json", "pyproject.toml", "go.mod", "go.work", "Cargo.toml"}

// projectTop is the highest directory above workdir that looks like a project's;
// "" when none does. The home directory and what is above it never are.
func projectTop(workdir, home string) (top string) {
	if real, err := filepath.EvalSymlinks(workdir); err == nil {
		workdir = real
	}
	for dir := filepath.Clean(workdir); filepath.IsAbs(dir) && dir != "/" && !sandbox.Within(filepath.Clean(home), dir); dir = filepath.Dir(dir) {
		for _, mark := range projectMarks {
			if _, err := os.Lstat(filepath.Join(dir, mark)); err == nil {
				top = dir
				break
			}
		}
	}
	return top
}

// operatorEndpoints writes the configuration the way the registry package reads
// it: further roles are marked, as in "files=https://files.test".
func operatorEndpoints(c config.Config) map[string][]string {
	out := make(map[string][]string)
	for name, v := range c.Registries {
		out[name] = slices.Clone(v.V)
	}
	for role, table := range map[string]map[string]config.Value[[]string]{"files": c.FileHosts, "checksums": c.Checksums} {
		for name, v := range table {
			for _, u := range v.V {
				out[name] = append(out[name], role+"="+u)
			}
		}
	}
	return out
}
