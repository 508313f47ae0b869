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

// Facts are what the host's file system says about one run. ReadFacts collects
// them; Layout decides what they mean.
type Facts struct {
	Top         []TopEntry  // system directories and links at /
	System      []Tool      // further system paths that exist
	Home        string      // as the caller names it, where it can be private
	HomeReal    string      // without symlinks
	Account     string      // the account's own home directory, whatever HOME says
	Workdir     string      // without symlinks
	ToolRoots   []Tool      // toolchains on PATH outside the system directories
	Credentials []string    // files below tool roots that may hold secrets, as they appear inside
	Protected   []Protected // git's own files in the working directory that run code outside
	GitDirs     []string    // a linked worktree's own and common git directory, verified
	Passwd      string
	Group       string
	Nsswitch    string
}

// TopEntry is one entry of /. Link is empty for a directory.
type TopEntry struct{ Name, Link string }

// Tool is a toolchain's directory: where it lies and under which path PATH names it.
type Tool struct{ Source, Target string }

// Protected is an existing path below the working directory that becomes
// read-only, or (Pin) only a mount point, so that it cannot be renamed away.
type Protected struct {
	Path string
	Pin  bool
}

// Refusal says why no sandbox can be made of what was asked, and what to do.
type Refusal struct{ What, Next string }

// Error returns what was refused.
func (r *Refusal) Error() string { return r.What }

// FactsRequest names what to look at.
type FactsRequest struct {
	Home    string
	Account string // home directory of the account, "" if unknown
	Path    string // the caller's PATH
	Workdir string // absolute
}

// systemTop are the directories of / that hold programs and their data.
var systemTop = map[string]bool{
	"bin": true, "sbin": true, "lib": true, "lib32": true, "lib64": true, "libx32": true, "usr": true, "opt": true,
}

// optionalSystem are paths outside those directories that programs read. Of /nix
// and /gnu only the stores: beside them lie the daemons' sockets.
var optionalSystem = []string{"/var/lib/dpkg", "/sys/devices/system/cpu", "/nix/store", "/gnu/store"}

// ReadFacts looks at the host. It follows no symlink below the working directory.
func ReadFacts(r FactsRequest) (Facts, error) {
	f := Facts{Home: privateHome(r.Home), Account: r.Account}
	var err error
	if f.Workdir, err = filepath.EvalSymlinks(r.Workdir); err != nil {
		return f, fmt.Errorf("finding the working directory: %w", err)
	}
	if f.HomeReal, err = filepath.EvalSymlinks(f.Home); err != nil {
		f.HomeReal = f.Home // a home that does not exist is private and empty inside all the same
	}
	if f.Top, err = readTop(); err != nil {
		return f, err
	}
	for _, p := range optionalSystem {
		if source, err := filepath.EvalSymlinks(p); err == nil {
			f.System = append(f.System, Tool{Source: source, Target: p})
		}
	}
	f.ToolRoots, f.Credentials = readTools(f, r.Path)
	if f.Protected, err = readProtected(f.Workdir); err != nil {
		return f, err
	}
	f.GitDirs = readGitDirs(f.Workdir)
	f.Passwd, f.Group, f.Nsswitch = readText("/etc/passwd"), readText("/etc/group"), readText("/etc/nsswitch.conf")
	return f, nil
}

// privateHome is where the private home directory lies: where the caller's is, but
// never over a directory that the system needs.
func privateHome(home string) string {
	home = path.Clean(home)
	if top := strings.TrimPrefix(home, "/"); path.IsAbs(home) && top != "" && !systemTop[top] && !occupied[top] {
		return home
	}
	return "/home/sbx"
}

// occupied are directories of / that the mount tree fills itself.
var occupied = map[string]bool{"dev": true, "etc": true, "proc": true, "run": true, "sys": true, "tmp": true, "var": true, "home": true}

func readTop() ([]TopEntry, error) {
	entries, err := os.ReadDir("/")
	if err != nil {
		return nil, fmt.Errorf("reading /: %w", err)
	}
	var out []TopEntry
	for _, e := range entries {
		if !systemTop[e.Name()] {
			continue
		}
		top := TopEntry{Name: e.Name()}
		if e.Type()&fs.ModeSymlink != 0 {
			if top.Link, err = os.Readlink("/" + e.Name()); err != nil {
				return nil, fmt.Errorf("reading the link /%s: %w", e.Name(), err)
			}
		}
		out = append(out, top)
	}
	return out, nil
}

// readText returns a small system file, or nothing where there is none.
func readText(name string) string {
	b, err := os.ReadFile(name)
	if err != nil {
		return ""
	}
	return string(b)
}

func isDirectory(name string) bool {
	info, err := os.Stat(name)
	return err == nil && info.IsDir()
}

// Within reports whether p is dir or lies below it. Both must be clean and absolute.
func Within(p, dir string) bool {
	return p == dir || dir == "/" || strings.HasPrefix(p, dir+"/")
}

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
