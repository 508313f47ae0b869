package sandbox

import (
	"maps"
	"path"
	"slices"
	"strings"
)

// inherited are the variables of the caller that the command may see, besides
// those named with --env. Everything else, secrets above all, stays outside.
var inherited = []string{
	"TERM", "COLORTERM", "NO_COLOR", "FORCE_COLOR", "CLICOLOR", "CLICOLOR_FORCE", "COLUMNS", "LINES",
	"LANG", "LANGUAGE", "TZ", "SHELL", "CI", "NODE_ENV", "DEBIAN_FRONTEND", "SOURCE_DATE_EPOCH", "MAKEFLAGS",
	"JAVA_HOME", "GOROOT", "GOOS", "GOARCH", "GOAMD64", "GOARM64", "GOTOOLCHAIN", "CGO_ENABLED",
	"PYENV_ROOT", "PYENV_VERSION", "NVM_DIR", "RUSTUP_HOME", "RUSTUP_TOOLCHAIN", "VOLTA_HOME", "ASDF_DIR",
}

// EnvironmentRequest is what a run's environment is made of.
type EnvironmentRequest struct {
	Caller []string          // the caller's environment, KEY=VALUE
	Set    map[string]string // set by sbx: trust, proxy, clients, profile; wins over the caller's
	Extra  []string          // --env KEY or KEY=VALUE; wins over everything
	Home   string
	User   string
	Shell  string
	Path   []string // directories that exist inside, in the caller's order
	Dir    string   // the working directory
}

// Environment returns the command's environment, sorted. It is pure.
func Environment(r EnvironmentRequest) []string {
	caller := map[string]string{}
	for _, kv := range r.Caller {
		key, value, _ := strings.Cut(kv, "=")
		caller[key] = value
	}
	env := map[string]string{"SHELL": r.Shell}
	for key, value := range caller {
		if slices.Contains(inherited, key) || strings.HasPrefix(key, "LC_") {
			env[key] = value
		}
	}
	env["HOME"], env["USER"], env["LOGNAME"] = r.Home, r.User, r.User
	env["PATH"], env["PWD"], env["TMPDIR"] = strings.Join(r.Path, ":"), r.Dir, "/tmp"
	maps.Copy(env, r.Set)
	for _, kv := range r.Extra {
		key, value, given := strings.Cut(kv, "=")
		if !given {
			if value, given = caller[key]; !given {
				continue
			}
		}
		env[key] = value
	}
	out := make([]string, 0, len(env))
	for key, value := range env {
		out = append(out, key+"="+value)
	}
	slices.Sort(out)
	return out
}

// defaultPath is used where the caller has no PATH that shows inside.
var defaultPath = []string{"/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin"}

// SearchPath keeps the entries of the caller's PATH that exist inside.
func SearchPath(f Facts, searchPath string) []string {
	var out []string
	for dir := range strings.SplitSeq(searchPath, ":") {
		if !path.IsAbs(dir) {
			continue
		}
		if dir = path.Clean(dir); (visible(dir, f) || covered(dir, f.ToolRoots)) && !slices.Contains(out, dir) {
			out = append(out, dir)
		}
	}
	if len(out) == 0 {
		return defaultPath
	}
	return out
}
