package sandbox

import (
	"os"
	"path"
	"path/filepath"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/fractalboxdev/sbx/internal/guard"
)

// Repository is what git needs to see of the repository that the working directory
// is part of, read-only.
type Repository struct {
	Top     string   // its work tree's top, where that is above the working directory
	GitDirs []string // a linked worktree's common directory, or a submodule's own; verified
}

// readRepository finds the repository as git does: the nearest .git at or above the
// working directory, on the same file system (git(1), GIT_DISCOVERY_ACROSS_FILESYSTEM).
// A top that holds the home directory or belongs to the system or to somebody else
// is not shown.
func readRepository(f Facts) Repository {
	top, link := findTop(f.Workdir)
	if top == "" || top != f.Workdir && (tooWideToShow(top, f) || !ownedByCaller(top)) {
		return Repository{}
	}
	r := Repository{}
	if top != f.Workdir {
		r.Top = top
	}
	if link {
		r.GitDirs = readGitDirs(top, f.Workdir)
	}
	return r
}

// findTop returns the directory whose .git is nearest, and whether that is a file.
func findTop(workdir string) (top string, link bool) {
	var at, here unix.Stat_t
	if unix.Lstat(workdir, &here) != nil {
		return "", false
	}
	for dir := workdir; ; dir = path.Dir(dir) {
		if unix.Lstat(dir, &at) != nil || at.Dev != here.Dev {
			return "", false
		}
		if info, err := os.Lstat(path.Join(dir, ".git")); err == nil && (info.IsDir() || info.Mode().IsRegular()) {
			return dir, info.Mode().IsRegular()
		}
		if dir == "/" {
			return "", false
		}
	}
}

func ownedByCaller(dir string) bool {
	info, err := os.Lstat(dir)
	if err != nil {
		return false
	}
	stat, ok := info.Sys().(*syscall.Stat_t)
	return ok && int(stat.Uid) == os.Geteuid()
}

// readGitDirs finds the directories of a linked worktree or a submodule. The .git file
// lies where hostile code may have written it, so it counts only if git's own link
// back names this very work tree.
func readGitDirs(top, workdir string) []string {
	line, ok := strings.CutPrefix(smallFile(path.Join(top, ".git")), "gitdir: ")
	own := strings.TrimRight(line, "\r\n")
	if !ok {
		return nil
	}
	if !path.IsAbs(own) {
		own = path.Join(top, own)
	}
	own, err := filepath.EvalSymlinks(own)
	if err != nil {
		return nil
	}
	found := own // a submodule's
	switch {
	case path.Base(path.Dir(own)) == "worktrees":
		found = path.Dir(path.Dir(own))
		back := strings.TrimSpace(smallFile(path.Join(own, "gitdir")))
		if !path.IsAbs(back) {
			back = path.Join(own, back)
		}
		ok = back == path.Join(top, ".git")
	default:
		ok = worktreeOf(own) == top
	}
	repository := isDirectory(path.Join(found, "objects")) && isDirectory(path.Join(found, "refs")) && smallFile(path.Join(found, "HEAD")) != ""
	// An earlier run in a directory above could have written all of it there.
	if !ok || !repository || Within(workdir, found) || Within(found, workdir) || Within(found, top) {
		return nil
	}
	return []string{found}
}

// worktreeOf is what a submodule's repository says its work tree is.
func worktreeOf(dir string) string {
	settings, err := guard.ParseConfig(smallFile(path.Join(dir, "config")))
	if err != nil {
		return ""
	}
	worktree := ""
	for _, s := range settings {
		if s.Name() == "core.worktree" {
			worktree = s.Value
		}
	}
	if worktree == "" {
		return ""
	}
	if !path.IsAbs(worktree) {
		worktree = path.Join(dir, worktree)
	}
	real, err := filepath.EvalSymlinks(worktree)
	if err != nil {
		return ""
	}
	return real
}

// maxSmall bounds the small files that are read of a repository, in bytes.
const maxSmall = 64 << 10

// smallFile reads a small file without following a link.
func smallFile(name string) string {
	fd, err := unix.Open(name, unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return ""
	}
	defer unix.Close(fd)
	var stat unix.Stat_t
	if unix.Fstat(fd, &stat) != nil || stat.Mode&unix.S_IFMT != unix.S_IFREG || stat.Size > maxSmall {
		return ""
	}
	b := make([]byte, stat.Size)
	n, err := unix.Read(fd, b)
	if err != nil {
		return ""
	}
	return string(b[:n])
}
