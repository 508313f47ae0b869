// Package guard knows by name which files of a project make programs outside a
// sandbox run or obey something, without anybody having asked for it: those of
// git, editors, CI, shells and coding agents. It also takes a git configuration
// apart. It touches no file.
package guard

import "strings"

// Kind says what a name means in a directory of a project.
type Kind uint8

// The kinds of names.
const (
	Plain    Kind = iota
	Whole         // the entry itself, with all that is in it
	Parts         // a directory of which some names are guarded: see Part
	Children      // a directory of which each entry is guarded by itself
	CI            // as Whole, at the top of a project or repository only: nobody reads it elsewhere
	CIParts       // as Parts, at the top only
	Git           // .git: a repository, or the link to one
	Quiet         // dependencies and what builds make: nothing but repositories matters below
	Skip          // never searched
)

// maxName is the length of the longest name that Of knows, in bytes.
const maxName = 32

// workspaceSuffix ends the names of VS Code's workspace files.
const workspaceSuffix = ".code-workspace"

// Of returns the kind of a name. Letters are compared without case: on a file
// system that ignores case .VSCode is .vscode.
func Of(name []byte) Kind {
	if len(name) > maxName {
		return suffixed(name)
	}
	var buffer [maxName]byte
	lower := buffer[:copy(buffer[:], name)]
	for i, c := range lower {
		if 'A' <= c && c <= 'Z' {
			lower[i] = c + 'a' - 'A'
		}
	}
	switch string(lower) {
	case ".git":
		return Git
	case "node_modules":
		return Skip
	case ".husky":
		return Children
	case ".claude", ".config", ".hg", ".sl":
		return Parts
	case ".github", ".gitea", ".forgejo":
		return CIParts
	}
	switch {
	case isEditor(lower), isShell(lower), isHookManager(lower), isAgent(lower):
		return Whole
	case isCI(lower):
		return CI
	case isQuiet(lower):
		return Quiet
	}
	return suffixed(lower)
}

// isQuiet: directories that nobody opens as a project. Installs and builds write and
// remove what they like there, as other people's packages bring it.
func isQuiet(name []byte) bool {
	switch string(name) {
	case "vendor", "site-packages", ".venv", "venv", ".tox", ".nox", "bower_components", "dist", "build", "out", "target",
		".next", ".nuxt", ".output", ".turbo", ".cache", ".gradle", ".pnpm-store", "coverage", "tmp", "temp", ".tmp":
		return true
	}
	return false
}

func suffixed(name []byte) Kind {
	if n := len(name) - len(workspaceSuffix); n >= 0 && strings.EqualFold(string(name[n:]), workspaceSuffix) {
		return Whole
	}
	return Plain
}

// isEditor: settings that name programs, tasks that run when a folder is opened.
func isEditor(name []byte) bool {
	switch string(name) {
	case ".vscode", ".idea", ".fleet", ".zed", ".helix", ".devcontainer", ".devcontainer.json",
		".vimrc", ".exrc", ".nvimrc", ".nvim.lua", ".dir-locals.el", ".dir-locals-2.el", ".gdbinit", ".lldbinit":
		return true
	}
	return false
}

// isCI: what a CI service runs, with its secrets, once it is pushed.
func isCI(name []byte) bool {
	switch string(name) {
	case ".gitlab-ci.yml", ".circleci", ".travis.yml", ".buildkite", ".drone.yml", ".woodpecker", ".woodpecker.yml", ".woodpecker.yaml",
		".cirrus.yml", ".semaphore", ".teamcity", "appveyor.yml", ".appveyor.yml", "azure-pipelines.yml", "bitbucket-pipelines.yml", "jenkinsfile":
		return true
	}
	return false
}

// isShell: what a shell, a login or a prompt runs when it starts or enters the directory.
func isShell(name []byte) bool {
	switch string(name) {
	case ".envrc", "mise.toml", ".mise.toml", "mise.local.toml", ".mise.local.toml",
		".profile", ".bashrc", ".bash_profile", ".bash_login", ".bash_logout", ".bash_aliases",
		".zshrc", ".zshenv", ".zprofile", ".zlogin", ".zlogout", ".kshrc", ".mkshrc", ".cshrc", ".tcshrc", ".login", ".logout",
		".xprofile", ".xinitrc", ".xsession", ".xsessionrc", ".pam_environment", ".inputrc", ".tmux.conf", ".screenrc", ".gitconfig", ".ssh":
		return true
	}
	return false
}

// isHookManager: what the hooks of an installed manager read.
func isHookManager(name []byte) bool {
	switch string(name) {
	case ".pre-commit-config.yaml", ".pre-commit-config.yml", ".overcommit.yml",
		"lefthook.yml", "lefthook.yaml", "lefthook.toml", "lefthook.json", "lefthook-local.yml", "lefthook-local.yaml",
		".lefthook.yml", ".lefthook.yaml", ".lefthook.toml", ".lefthook.json", ".lefthook-local.yml", ".lefthook-local.yaml":
		return true
	}
	return false
}

// isAgent: settings of coding agents, which may hold hooks and servers to start.
func isAgent(name []byte) bool {
	switch string(name) {
	case ".mcp.json", ".cursor", ".codex", ".gemini", ".windsurf", ".continue", ".kiro", ".amazonq", ".roo",
		".opencode", "opencode.json", "opencode.jsonc", ".aider.conf.yml", ".claude.json":
		return true
	}
	return false
}

// Part reports whether a name in a directory of the kind Parts or CIParts is guarded.
func Part(dir, name string) bool {
	name = strings.ToLower(name)
	switch strings.ToLower(dir) {
	case ".github":
		return name == "workflows" || name == "actions"
	case ".gitea", ".forgejo":
		return name == "workflows"
	case ".claude":
		return isClaude(name)
	case ".config":
		return isConfig(name)
	case ".hg", ".sl":
		return isMercurial(name)
	}
	return false
}

// isMercurial: hooks and aliases of a Mercurial or Sapling repository, which prompts run
// on entering a directory (hgrc(5)), and the file that leads to those of another one.
func isMercurial(name string) bool {
	switch name {
	case "hgrc", "hgrc-not-shared", "config", "sharedpath":
		return true
	}
	return false
}

func isClaude(name string) bool {
	switch name {
	case "settings.json", "settings.local.json", "hooks", "commands", "agents", "skills", "plugins":
		return true
	}
	return false
}

func isConfig(name string) bool {
	switch name {
	case "autostart", "systemd", "environment.d", "fish", "git", "nvim", "mise", "lefthook.yml", "lefthook.yaml", "lefthook.toml", "lefthook.json":
		return true
	}
	return false
}

// Generated reports whether an entry of a directory of the kind Children is made
// anew by each install, and so may be shown as private memory: husky's "_".
func Generated(name string) bool { return name == "_" }

// Prefix returns the shortest part of a relative path that is guarded by its name, or
// that guarded names are in; "" when nothing of it is.
func Prefix(p string) string {
	end := 0
	for {
		name, rest, more := strings.Cut(p[end:], "/")
		next, _, _ := strings.Cut(rest, "/")
		switch kind := Of([]byte(name)); {
		case kind == Whole || kind == CI || !more && (kind == Parts || kind == CIParts || kind == Children):
			return p[:end+len(name)]
		case kind == Children || (kind == Parts || kind == CIParts) && Part(name, next):
			return p[:end+len(name)+1+len(next)]
		case !more:
			return ""
		}
		end += len(name) + 1
	}
}
