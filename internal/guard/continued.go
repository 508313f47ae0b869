package guard

import (
	"slices"
	"strings"
)

// State is a directory of a repository in which git keeps what is left to do of a
// rebase or cherry-pick, and the files in it that could make git run something when a
// person continues it (git-rebase(1), INTERACTIVE MODE).
type State struct {
	Dir   string
	Files []string
}

// States are all of them.
func States() []State {
	return []State{
		{Dir: "rebase-merge", Files: []string{todoFile, strategyFile}},
		{Dir: "sequencer", Files: []string{optionsFile}},
	}
}

// Files of a state.
const (
	todoFile     = "git-rebase-todo"
	strategyFile = "strategy"
	optionsFile  = "opts"
)

// RunsContinued reports whether a file of a state makes git run a command line, or a
// merge strategy of another's: that is a program, and its name may be a path.
func RunsContinued(file, text string) bool {
	switch file {
	case todoFile:
		for line := range strings.Lines(text) {
			if words := strings.Fields(line); len(words) > 0 && (words[0] == "x" || words[0] == "exec") {
				return true
			}
		}
	case strategyFile:
		return !ownStrategy(strings.TrimSpace(text))
	case optionsFile:
		settings, err := ParseConfig(text)
		return err != nil || slices.ContainsFunc(settings, func(s Setting) bool { return s.Key == "strategy" && !ownStrategy(s.Value) })
	}
	return false
}

// ownStrategy: git's own, git-merge(1).
func ownStrategy(name string) bool {
	switch name {
	case "", "ort", "recursive", "resolve", "octopus", "ours", "subtree":
		return true
	}
	return false
}
