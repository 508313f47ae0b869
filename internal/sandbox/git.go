package sandbox

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// protectedNames are what git runs or obeys, in a repository and in each of its
// submodules' and worktrees' directories.
var protectedNames = []string{"hooks", "config", "config.worktree"}

// readProtected lists git's files in the working directory that run code outside:
// the repository's own and, below .git/modules, those of its submodules.
func readProtected(workdir string) ([]Protected, error) {
	root, err := os.OpenRoot(workdir)
	if err != nil {
		return nil, fmt.Errorf("opening the working directory: %w", err)
	}
	defer root.Close()
	info, err := root.Lstat(".git")
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("looking for .git: %w", err)
	case info.Mode().IsRegular():
		return []Protected{{Path: ".git"}}, nil
	case !info.IsDir():
		return nil, &Refusal{
			What: fmt.Sprintf("working directory %s: .git is neither a directory nor a file", workdir),
			Next: "replace the link or special file .git by the repository itself",
		}
	}
	found := gitFiles(root, ".git")
	found = append(found, submodules(root, ".git/modules", 0)...)
	found = append(found, worktrees(root)...)
	return pinned(append(found, gitlinks(root)...)), nil
}

// pinned adds the directories on the way to what is protected: a directory that is
// no mount point could be renamed away, with what is mounted in it, and replaced.
func pinned(found []string) []Protected {
	out := []Protected{{Path: ".git", Pin: true}}
	seen := map[string]bool{".git": true, ".": true}
	for _, p := range found {
		var way []string
		for dir := path.Dir(p); !seen[dir]; dir = path.Dir(dir) {
			seen[dir] = true
			way = append(way, dir)
		}
		slices.Reverse(way)
		for _, dir := range way {
			out = append(out, Protected{Path: dir, Pin: true})
		}
		out = append(out, Protected{Path: p})
	}
	return out
}

func gitFiles(root *os.Root, dir string) (out []string) {
	for _, name := range protectedNames {
		p := path.Join(dir, name)
		if info, err := root.Lstat(p); err == nil && (info.IsDir() || info.Mode().IsRegular()) {
			out = append(out, p)
		}
	}
	return out
}

// maxModuleDepth bounds the walk below .git/modules: submodules' names may have
// slashes, and submodules may nest.
const maxModuleDepth = 8

func submodules(root *os.Root, dir string, depth int) (out []string) {
	for _, name := range directories(root, dir) {
		if depth > maxModuleDepth || name == "objects" || name == "refs" || name == "hooks" {
			continue
		}
		below := path.Join(dir, name)
		out = append(append(out, gitFiles(root, below)...), submodules(root, below, depth+1)...)
	}
	return out
}

// worktrees are what makes a linked worktree find its repository and its own
// configuration.
func worktrees(root *os.Root) (out []string) {
	for _, name := range directories(root, ".git/worktrees") {
		for _, file := range []string{"commondir", "gitdir", "config.worktree"} {
			p := path.Join(".git/worktrees", name, file)
			if info, err := root.Lstat(p); err == nil && info.Mode().IsRegular() {
				out = append(out, p)
			}
		}
	}
	return out
}

// maxGitmodules bounds .gitmodules, in bytes.
const maxGitmodules = 1 << 20

// gitlinks are the files in submodules' worktrees that name their repositories. The
// paths come from .gitmodules, which only ever adds to what is protected.
func gitlinks(root *os.Root) (out []string) {
	file, err := root.Open(".gitmodules")
	if err != nil {
		return nil
	}
	defer file.Close()
	text, err := io.ReadAll(io.LimitReader(file, maxGitmodules))
	if err != nil {
		return nil
	}
	for line := range strings.Lines(string(text)) {
		key, value, ok := strings.Cut(line, "=")
		p := path.Join(strings.TrimSpace(value), ".git")
		if !ok || strings.TrimSpace(key) != "path" || !filepath.IsLocal(p) || p == ".git" {
			continue
		}
		if info, err := root.Lstat(p); err == nil && info.Mode().IsRegular() && !slices.Contains(out, p) {
			out = append(out, p)
		}
	}
	return out
}

func directories(root *os.Root, dir string) (names []string) {
	d, err := root.Open(dir)
	if err != nil {
		return nil
	}
	defer d.Close()
	entries, err := d.ReadDir(-1)
	if err != nil {
		return nil
	}
	for _, e := range entries {
		if e.IsDir() {
			names = append(names, e.Name())
		}
	}
	slices.Sort(names)
	return names
}

// readGitDirs finds the git directories of a linked worktree. Its .git file lies
// where hostile code may have written it, so it counts only if git's own link back
// (gitrepository-layout(5), worktrees/<id>/gitdir) names this very worktree.
func readGitDirs(workdir string) []string {
	line, ok := strings.CutPrefix(smallFile(path.Join(workdir, ".git")), "gitdir: ")
	own := strings.TrimSpace(line)
	if !ok || !path.IsAbs(own) || path.Base(path.Dir(own)) != "worktrees" {
		return nil
	}
	own, err := filepath.EvalSymlinks(own)
	if err != nil {
		return nil
	}
	back := strings.TrimSpace(smallFile(path.Join(own, "gitdir")))
	common := path.Dir(path.Dir(own))
	repository := path.Base(path.Dir(own)) == "worktrees" && isDirectory(path.Join(common, "objects")) &&
		isDirectory(path.Join(common, "refs")) && smallFile(path.Join(common, "HEAD")) != ""
	// An earlier run in a directory above could have written all of it there.
	if back != path.Join(workdir, ".git") || !repository || Within(workdir, common) || Within(common, workdir) {
		return nil
	}
	return []string{common}
}

// smallFile reads a one-line file without following a link.
func smallFile(name string) string {
	fd, err := unix.Open(name, unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return ""
	}
	defer unix.Close(fd)
	b := make([]byte, 4096)
	n, err := unix.Read(fd, b)
	if err != nil || n == len(b) {
		return ""
	}
	return string(b[:n])
}

// appearing are names that make git run or obey something once they exist.
var appearing = []string{"hooks", "config", "config.worktree", "commondir"}

// SetAside renames what has appeared in the git directories that were there before
// the run and that would run code outside: a mount cannot protect what does not
// exist. It returns the paths as they were, below the working directory. Everything
// that ran inside must be dead.
func SetAside(f Facts, run string) ([]string, error) {
	before := map[string]bool{}
	var dirs []string
	for _, p := range f.Protected {
		before[p.Path] = true
		if p.Pin && Within(p.Path, ".git") {
			dirs = append(dirs, p.Path)
		}
	}
	if len(dirs) == 0 {
		return nil, nil
	}
	root, err := os.OpenRoot(f.Workdir)
	if err != nil {
		return nil, fmt.Errorf("looking for new git files: %w", err)
	}
	defer root.Close()
	var out []string
	for _, dir := range dirs {
		for _, name := range appearing {
			p := path.Join(dir, name)
			if _, err := root.Lstat(p); err != nil || before[p] {
				continue
			}
			if err := root.Rename(p, path.Join(dir, "sbx-set-aside-"+run+"-"+name)); err != nil {
				return out, fmt.Errorf("setting aside %s: %w", p, err)
			}
			out = append(out, p)
		}
	}
	return out, nil
}
