// Package project looks at a project's files from outside the sandbox: before a
// run, for what the command must not change since programs outside would run or
// obey it, and after it, for what the command has put there in such places.
package project

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/fractalboxdev/sbx/internal/guard"
)

// Request says what a run may write.
type Request struct {
	Roots  []string // directories that will be writable: absolute, without links, none in another
	Locked []string // paths below them that will not be writable
	Lifted []string // guarded paths that the caller gave up by name
	Home   string   // where the caller's own git configuration lies; "" for none
	XDG    string   // XDG_CONFIG_HOME; "" for the default
}

// Survey is what was found before a run. It is also what a later run needs to set
// aside what this one has left, if its supervisor dies.
type Survey struct {
	Trees []Tree
}

// Tree is one writable directory. It is held open, so that it is found again whatever
// becomes of its path.
type Tree struct {
	Root    string
	Entries []Entry
	Closed  []string // directories that could not be read
	Skipped []string // paths that were not searched: read-only inside, or given up
	Whole   bool     // all of it was searched
	Dirs    int      // directories that were searched

	id  identity
	dir *os.File
}

// Close lets the trees go.
func (s Survey) Close() {
	for _, t := range s.Trees {
		if t.dir != nil {
			_ = t.dir.Close()
		}
	}
}

// Entry is one guarded path that was there, or must not appear.
type Entry struct {
	Path   string // relative to its root
	kind   kind
	id     identity
	parent uint64 // inode of its directory
	sum    string // SHA-256, of kind linked
}

// Mount is how an entry is to be shown inside.
type Mount struct {
	Path    string // absolute
	Pin     bool   // writable, but it cannot be renamed
	Private bool   // memory in its place
}

// maxMounts bounds the guarded paths of a run. Each is a mount.
const maxMounts = 4000

// Refusal says why a project cannot be guarded, and what to do.
type Refusal struct{ What, Next string }

// Error returns what was refused.
func (r *Refusal) Error() string { return r.What }

// Look searches what a run may write. It changes nothing. The survey has to be closed,
// also with an error.
func Look(r Request) (Survey, error) {
	var s Survey
	mounts := 0
	for _, root := range r.Roots {
		t, err := lookAt(root, r)
		s.Trees = append(s.Trees, t)
		if err != nil {
			return s, err
		}
		mounts += len(t.Entries)
	}
	if mounts > maxMounts {
		return s, &Refusal{
			What: fmt.Sprintf("%d files that git, editors, CI or shells obey would have to be guarded; the bound is %d", mounts, maxMounts),
			Next: "start sbx in a smaller directory",
		}
	}
	return s, nil
}

// Mounts lists how the entries are to be shown, a directory before what is in it.
func (s Survey) Mounts() []Mount {
	var out []Mount
	for _, t := range s.Trees {
		for _, e := range t.Entries {
			m := Mount{Path: path.Join(t.Root, e.Path), Pin: e.kind == way, Private: e.kind == generated && e.id.isDir()}
			if e.mounted() {
				out = append(out, m)
			}
		}
	}
	return out
}

// mounted reports whether the entry itself is a mount inside, so that the command can
// neither change nor replace it.
func (e Entry) mounted() bool {
	shown := e.kind == entry || e.kind == generated || e.kind == way || e.kind == gitLink
	return shown && (e.id.isDir() || e.id.isRegular())
}

// Complete reports whether every tree was searched as a whole, and how many
// directories were.
func (s Survey) Complete() (whole bool, dirs int) {
	whole = true
	for _, t := range s.Trees {
		whole = whole && t.Whole
		dirs += t.Dirs
	}
	return whole, dirs
}

// survey collects the entries of one tree.
type survey struct {
	root  *os.File
	tree  *Tree
	seen  map[string]bool
	users string // core.hooksPath of the caller's own git configuration

	lifted []string
}

func lookAt(root string, r Request) (Tree, error) {
	t := Tree{Root: root, Skipped: append(below(root, r.Locked), guardedPrefixes(below(root, r.Lifted))...)}
	dir, err := openRoot(root)
	if err != nil {
		return t, err
	}
	t.dir = dir
	if t.id, err = identify(int(dir.Fd()), "."); err != nil {
		return t, fmt.Errorf("looking at %s: %w", root, err)
	}
	s := newSearch(int(dir.Fd()), maxBefore, skipper(t.Skipped))
	if err := s.run("."); err != nil {
		return t, err
	}
	t.Closed, t.Whole, t.Dirs = s.closed, s.whole, s.dirs
	v := survey{root: dir, tree: &t, seen: map[string]bool{}, users: usersHooks(r), lifted: below(root, r.Lifted)}
	for _, f := range s.finds {
		if err := v.take(f); err != nil {
			return t, err
		}
	}
	slices.SortFunc(t.Entries, func(a, b Entry) int { return strings.Compare(a.Path, b.Path) })
	return t, nil
}

// below returns those of the absolute paths that lie in root, relative to it.
func below(root string, paths []string) (out []string) {
	for _, p := range paths {
		if rest, ok := strings.CutPrefix(p, root+"/"); ok {
			out = append(out, rest)
		}
	}
	return out
}

// guardedPrefixes are the guarded directories or files that lie in, or around, paths
// that the caller gave up by name. Naming an ordinary directory gives up nothing in it.
func guardedPrefixes(paths []string) (out []string) {
	for _, p := range paths {
		if prefix := guard.Prefix(p); prefix != "" {
			out = append(out, prefix)
		}
	}
	return out
}

func skipper(skipped []string) func(string) bool {
	if len(skipped) == 0 {
		return nil
	}
	return func(p string) bool {
		return slices.ContainsFunc(skipped, func(s string) bool { return within(p, s) })
	}
}

// within reports whether the clean relative path p is dir or lies in it.
func within(p, dir string) bool { return dir == "." || p == dir || strings.HasPrefix(p, dir+"/") }

func (v *survey) take(f find) error {
	if f.kind == gitDir {
		return v.repository(f)
	}
	if f.kind == gitLink && f.path == ".git" && f.stat.Mode&unix.S_IFMT != unix.S_IFREG {
		return &Refusal{
			What: fmt.Sprintf("%s is neither a directory nor a file", path.Join(v.tree.Root, f.path)),
			Next: "replace the link or special file .git by the repository itself",
		}
	}
	return v.add(f.path, f.kind)
}

// add takes a path into the tree's entries. A link is remembered, and what it leads
// to in this tree is guarded.
func (v *survey) add(p string, kind kind) error {
	if v.seen[p] {
		return nil
	}
	v.seen[p] = true
	id, err := v.identify(p)
	if errors.Is(err, unix.ENOENT) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("looking at %q: %w", p, err)
	}
	parent, err := v.identify(path.Dir(p))
	if err != nil {
		return fmt.Errorf("looking at %q: %w", path.Dir(p), err)
	}
	v.ways(p)
	v.tree.Entries = append(v.tree.Entries, Entry{Path: p, kind: kind, id: id, parent: parent.ino})
	switch {
	case id.isLink():
		return v.target(p, kind)
	case kind == entry:
		return v.otherNames(p)
	}
	return nil
}

// otherNames remembers the content of what has further names (hard links): the
// command could change it through one of them.
func (v *survey) otherNames(p string) error {
	err := walk(int(v.root.Fd()), p, func(p string, stat unix.Stat_t) error {
		if id := identityOf(stat); id.isRegular() && id.links > 1 {
			v.tree.Entries = append(v.tree.Entries, Entry{Path: p, kind: linked, id: id, sum: sum(int(v.root.Fd()), p)})
		}
		return nil
	})
	if errors.Is(err, unix.EACCES) || errors.Is(err, errTooMuch) || gone(err) {
		return nil // what cannot be read from here is not read by programs outside either
	}
	return err
}

// sum is of a file's content; "" where it is too large or cannot be read.
func sum(root int, p string) string {
	text := readSmall(root, p)
	if text == "" {
		return ""
	}
	digest := sha256.Sum256([]byte(text))
	return hex.EncodeToString(digest[:])
}

// target guards what a link leads to, where that lies in the tree. The link itself
// can be replaced inside; that is noticed afterwards.
func (v *survey) target(p string, kind kind) error {
	fd, err := unix.Openat2(int(v.root.Fd()), p, &unix.OpenHow{
		Flags: unix.O_PATH | unix.O_CLOEXEC, Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_MAGICLINKS,
	})
	if err != nil {
		return nil // it leads nowhere, or out: the command cannot write there
	}
	defer unix.Close(fd)
	real, err := os.Readlink(fmt.Sprintf("/proc/self/fd/%d", fd))
	rest, ok := strings.CutPrefix(real, v.tree.Root+"/")
	if err != nil || !ok {
		return nil // as above
	}
	return v.add(rest, kind)
}

// ways makes the directories on the way to a path mount points where a rename would
// take it away: in a repository's own directory, and in those few directories of
// which only parts are guarded. Elsewhere renames stay what they are outside, and a
// replaced directory is noticed afterwards.
func (v *survey) ways(p string) {
	dir := path.Dir(p)
	if dir == "." || v.seen[dir] {
		return
	}
	kind := guard.Of([]byte(path.Base(dir)))
	inGit := strings.Contains("/"+dir+"/", "/.git/")
	if !inGit && kind != guard.Parts && kind != guard.CIParts && kind != guard.Children {
		return
	}
	_ = v.add(dir, way) // a directory has no hard links, and was there just now
}

// repository guards what git runs or obeys in one of its directories.
func (v *survey) repository(f find) error {
	if isGit(f.path) {
		if err := v.add(f.path, way); err != nil {
			return err
		}
	}
	for _, name := range gitNames {
		if err := v.add(path.Join(f.path, name), entry); err != nil {
			return err
		}
	}
	if id, err := v.identify(f.path); err == nil {
		v.tree.Entries = append(v.tree.Entries, Entry{Path: f.path, kind: gitDir, id: id})
	}
	return v.named(f.path)
}

// isGit reports whether a path ends in .git, also on file systems that ignore case.
func isGit(p string) bool { return guard.Of([]byte(path.Base(p))) == guard.Git }

// gitNames are what git runs or obeys in a repository's directory, or finds the
// repository by.
var gitNames = [...]string{"hooks", "config", "config.worktree", "commondir", "gitdir"}

// named guards what a repository's configuration names in the tree: the hooks'
// directory, further configurations, and programs. Hooks and programs count from the
// work tree (git-config(1), core.hooksPath), further configurations from the file that
// names them (include.path).
func (v *survey) named(dir string) error {
	top := dir // of a bare repository
	if isGit(dir) {
		top = path.Dir(dir)
	}
	config := path.Join(dir, "config")
	hooks, err := v.configured(top, config, 0)
	if err != nil {
		return err
	}
	if hooks == "" && isGit(dir) {
		hooks = v.users
	}
	return v.must(top, hooks)
}

// maxIncludes bounds how deep configurations may include others.
const maxIncludes = 5

// configured goes through one configuration and returns its core.hooksPath.
func (v *survey) configured(top, config string, depth int) (hooks string, err error) {
	settings, err := guard.ParseConfig(readSmall(int(v.root.Fd()), config))
	if err != nil || depth > maxIncludes {
		return "", nil // git does not read it either, or it includes itself
	}
	for _, s := range settings {
		switch s.Kind() {
		case guard.NamesHooks:
			hooks = s.Value
		case guard.NamesConfig:
			if err := v.must(path.Dir(config), s.Value); err != nil {
				return "", err
			}
			if p, ok := v.inTree(path.Dir(config), s.Value); ok {
				if more, err := v.configured(top, p, depth+1); err != nil || more != "" {
					hooks = more
				}
			}
		case guard.NamesProgram:
			for word := range strings.FieldsSeq(s.Value) {
				if p, ok := v.inTree(top, strings.Trim(word, `"'!;&|()`)); ok && v.isFile(p) {
					err = errors.Join(err, v.add(p, entry))
				}
			}
		case guard.NamesNothing:
		}
	}
	return hooks, err
}

func (v *survey) isFile(p string) bool {
	id, err := v.identify(p)
	return err == nil && id.isRegular()
}

// inTree returns where a path that a configuration names lies, if that is in the tree.
func (v *survey) inTree(from, named string) (string, bool) {
	p := path.Join(from, named)
	if path.IsAbs(named) {
		rest, ok := strings.CutPrefix(path.Clean(named), v.tree.Root+"/")
		if !ok {
			return "", false
		}
		p = rest
	}
	outside := named == "" || !filepath.IsLocal(p) || p == "."
	return p, !outside && !slices.Contains(v.lifted, p)
}

// must guards what is named, or that it does not appear.
func (v *survey) must(from, named string) error {
	p, ok := v.inTree(from, named)
	if !ok || underChildren(p) {
		return nil // outside; or husky's, whose entries are guarded one by one
	}
	if _, err := v.identify(p); err == nil {
		return v.add(p, entry)
	}
	if !v.seen[p] {
		v.seen[p] = true
		v.tree.Entries = append(v.tree.Entries, Entry{Path: p, kind: absent})
	}
	return nil
}

func underChildren(p string) bool {
	for dir := p; dir != "."; dir = path.Dir(dir) {
		if guard.Of([]byte(path.Base(dir))) == guard.Children {
			return true
		}
	}
	return false
}

// usersHooks is the core.hooksPath of the caller's own git configuration.
func usersHooks(r Request) string {
	if r.Home == "" {
		return ""
	}
	xdg := r.XDG
	if xdg == "" {
		xdg = path.Join(r.Home, ".config")
	}
	if own := guard.HooksPath(readOwn(path.Join(r.Home, ".gitconfig"))); own != "" {
		return own
	}
	return guard.HooksPath(readOwn(path.Join(xdg, "git/config")))
}

// maxConfig bounds a git configuration, in bytes.
const maxConfig = 1 << 20

// readSmall reads a regular file below a held directory without following a link,
// or nothing.
func readSmall(root int, name string) string {
	fd, err := openBeneath(root, name, unix.O_RDONLY|unix.O_NONBLOCK|unix.O_NOCTTY)
	if err != nil {
		return ""
	}
	return readAll(fd, name)
}

// readOwn reads a file of the caller's own by its path.
func readOwn(name string) string {
	fd, err := unix.Open(name, unix.O_RDONLY|unix.O_NONBLOCK|unix.O_NOCTTY|unix.O_CLOEXEC, 0)
	if err != nil {
		return ""
	}
	return readAll(fd, name)
}

func readAll(fd int, name string) string {
	f := os.NewFile(uintptr(fd), name)
	defer f.Close()
	if info, err := f.Stat(); err != nil || !info.Mode().IsRegular() || info.Size() > maxConfig {
		return ""
	}
	text, err := io.ReadAll(io.LimitReader(f, maxConfig))
	if err != nil {
		return ""
	}
	return string(text)
}

// identity tells a file from another that was put in its place.
type identity struct {
	dev, ino uint64
	changed  int64 // status change, nanoseconds: no program can set it
	size     int64
	mode     uint32
	links    uint64
}

func (v *survey) identify(p string) (identity, error) { return identify(int(v.root.Fd()), p) }

// identify looks at a path below a held directory; the last part may be a link.
func identify(root int, p string) (identity, error) {
	fd, err := openBeneath(root, p, unix.O_PATH)
	if errors.Is(err, unix.ELOOP) || errors.Is(err, unix.ENOTDIR) {
		return identity{}, unix.ENOENT // there is a link on the way: it is not below the root
	}
	if err != nil {
		return identity{}, err
	}
	defer unix.Close(fd)
	var stat unix.Stat_t
	if err := unix.Fstat(fd, &stat); err != nil {
		return identity{}, err
	}
	return identityOf(stat), nil
}

func identityOf(s unix.Stat_t) identity {
	return identity{
		dev: s.Dev, ino: s.Ino, changed: s.Ctim.Nano(), size: s.Size, mode: s.Mode, links: uint64(s.Nlink), //nolint:unconvert // 32 bits elsewhere
	}
}

func (a identity) isDir() bool     { return a.mode&unix.S_IFMT == unix.S_IFDIR }
func (a identity) isRegular() bool { return a.mode&unix.S_IFMT == unix.S_IFREG }
func (a identity) isLink() bool    { return a.mode&unix.S_IFMT == unix.S_IFLNK }

// same reports whether b is the file that a was. Where inode numbers are made up, as
// on some network file systems, an unchanged time of change says it.
func (a identity) same(b identity) bool {
	if a.mode&unix.S_IFMT != b.mode&unix.S_IFMT {
		return false
	}
	return a.dev == b.dev && a.ino == b.ino || a.changed == b.changed && a.size == b.size
}
