package sandbox

import (
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
)

// companions are directories below HOME that belong to a toolchain whose programs
// lie in the key.
var companions = map[string][]string{
	".cargo/bin": {".cargo", ".rustup"},
	".local/bin": {
		".local/bin", ".local/lib", ".local/share/uv/python", ".local/share/uv/tools", ".local/share/pipx/venvs",
		".local/share/mise/installs", ".local/share/fnm/node-versions",
	},
	".pyenv/bin": {".pyenv"}, ".pyenv/shims": {".pyenv"}, ".rbenv/bin": {".rbenv"}, ".rbenv/shims": {".rbenv"},
	".volta/bin": {".volta/bin", ".volta/tools"}, ".asdf/shims": {".asdf"}, ".asdf/bin": {".asdf"},
	"go/bin": {"go/bin"},
	"bin":    {"bin"},
}

// toolParts are the parts of an installation that its programs need. Nothing else of
// the directory above a bin shows: it may be somebody's home, or hold a token.
var toolParts = []string{
	"bin", "sbin", "shims", "lib", "lib32", "lib64", "libexec", "share", "include", "versions", "toolchains", "conf", "jmods", "legal", "release",
}

// goParts are what a Go root has besides (a directory with go.env is one).
var goParts = []string{"src", "pkg", "go.env", "VERSION"}

// secretFiles may hold credentials; they are hidden wherever they stand at the top
// of what shows or in its etc.
var secretFiles = []string{
	"credentials", "credentials.toml", "credentials.json", "config.toml", "config.json", "config.yml", "config.yaml",
	".npmrc", ".netrc", ".pypirc", ".git-credentials", "auth.json", "hosts.yml", ".env", "etc/npmrc", "etc/pip.conf",
}

// readTools finds the toolchains that PATH names outside the system directories
// and the working directory.
func readTools(f Facts, searchPath string) (tools []Tool, credentials []string) {
	seen := map[string]bool{}
	for dir := range strings.SplitSeq(searchPath, ":") {
		if !path.IsAbs(dir) || !isDirectory(dir) {
			continue
		}
		for _, root := range toolRoots(path.Clean(dir), f) {
			if covered(root, tools) || seen[root] {
				continue
			}
			seen[root] = true
			source, err := filepath.EvalSymlinks(root)
			if err != nil || tooWide(source, f) || Within(source, f.Workdir) {
				continue
			}
			tools = append(tools, Tool{Source: source, Target: root})
			credentials = append(credentials, secretsOf(root)...)
		}
	}
	return tools, credentials
}

func covered(root string, tools []Tool) bool {
	for _, t := range tools {
		if Within(root, t.Target) {
			return true
		}
	}
	return false
}

// toolRoots returns what has to be visible for the programs in dir to run.
func toolRoots(dir string, f Facts) []string {
	if visible(dir, f) {
		return nil
	}
	if inside, ok := strings.CutPrefix(dir, f.Home+"/"); ok {
		if list, ok := companions[inside]; ok {
			return existing(f.Home, list)
		}
	}
	parent := path.Dir(dir)
	switch path.Base(dir) {
	case "bin", "sbin", "shims":
		if !tooWide(parent, f) {
			return installation(parent)
		}
	}
	return []string{dir}
}

func installation(root string) []string {
	parts := toolParts
	if _, err := os.Lstat(path.Join(root, "go.env")); err == nil {
		parts = append(slices.Clone(parts), goParts...)
	}
	var out []string
	for _, name := range parts {
		if p := path.Join(root, name); exists(p) {
			out = append(out, p)
		}
	}
	return out
}

func exists(name string) bool {
	_, err := os.Stat(name)
	return err == nil
}

// visible reports whether the system directories already show dir.
func visible(dir string, f Facts) bool {
	top, _, _ := strings.Cut(strings.TrimPrefix(dir, "/"), "/")
	return systemTop[top] || Within(dir, f.Workdir)
}

// tooWide reports whether binding dir would show more than a toolchain: a
// directory at the top, or one that holds HOME or the working directory.
func tooWide(dir string, f Facts) bool {
	return strings.Count(dir, "/") < 2 || Within(f.Home, dir) || Within(f.HomeReal, dir) || Within(f.Workdir, dir)
}

func existing(home string, names []string) (out []string) {
	for _, name := range names {
		if p := path.Join(home, name); isDirectory(p) {
			out = append(out, p)
		}
	}
	return out
}

func secretsOf(root string) (out []string) {
	for _, name := range secretFiles {
		p := path.Join(root, name)
		if _, err := os.Lstat(p); err != nil {
			continue
		}
		// A link's target is what has to be hidden; one that leads out does not show.
		real, err := filepath.EvalSymlinks(p)
		if base, rerr := filepath.EvalSymlinks(root); err == nil && rerr == nil && Within(real, base) {
			out = append(out, path.Join(root, strings.TrimPrefix(real, base)))
		}
	}
	return out
}
