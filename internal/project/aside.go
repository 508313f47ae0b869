package project

import (
	"errors"
	"fmt"
	"os"
	"path"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fractalboxdev/sbx/internal/guard"
)

// Result is what became of what a run left in guarded places. Paths are absolute.
type Result struct {
	Moved    []string  // into the archive
	Renamed  []Renamed // in place: the archive could not take them
	Cleaned  []Cleaned // configurations of new repositories; the archive has them as they were
	Replaced []string  // guarded files that somebody outside replaced meanwhile
}

// Renamed is what was only renamed, and to what.
type Renamed struct{ Path, To string }

// Cleaned is a git configuration from which settings were taken.
type Cleaned struct {
	Path     string
	Settings []string
}

// IsZero reports whether there is nothing to say.
func (r Result) IsZero() bool {
	return len(r.Moved)+len(r.Renamed)+len(r.Cleaned)+len(r.Replaced) == 0
}

// SetAside looks for what a run has put where programs outside would run or obey it,
// and moves it into the archive. Everything that ran inside must be dead. Its errors
// mean that something may still be there.
func (s Survey) SetAside(run string, started time.Time, to *Archive) (Result, error) {
	var out Result
	var errs []error
	for _, t := range s.Trees {
		errs = append(errs, t.setAside(run, started, to, &out))
	}
	return out, errors.Join(errs...)
}

// margin is how far the file systems' clock may be behind: it ticks (time(7)).
const margin = 50 * time.Millisecond

// cleaner works on one tree.
type cleaner struct {
	root    *os.File
	tree    Tree
	run     string
	started int64
	archive *Archive
	out     *Result
	known   map[string]Entry
	files   map[file]bool
	sums    map[string]string // of guarded files with further names
	done    map[string]bool
	opened  []opened
	later   []string // renamed directories, which have not been searched
	errs    []error
	left    int // errors besides
}

// file is a guarded file, wherever it lies now. Moving the directory that it is in
// does not change it.
type file struct {
	dev, ino uint64
	changed  int64
}

func fileOf(id identity) file { return file{id.dev, id.ino, id.changed} }

// opened is a directory that was given rights to be searched.
type opened struct {
	path string
	mode uint32
}

func (t Tree) setAside(run string, started time.Time, to *Archive, out *Result) error {
	c := &cleaner{
		root: t.dir, tree: t, run: run, archive: to, out: out, started: started.Add(-margin).UnixNano(),
		known: map[string]Entry{}, files: map[file]bool{}, sums: map[string]string{}, done: map[string]bool{},
	}
	for _, e := range t.Entries {
		if e.kind == linked {
			c.sums[e.Path] = e.sum
			continue
		}
		c.known[e.Path] = e
		if e.kind != absent {
			c.files[fileOf(e.id)] = true
		}
	}
	defer c.close()
	c.search(".")
	c.rest()
	for len(c.later) > 0 {
		next := c.later[0]
		c.later = c.later[1:]
		c.search(next)
	}
	if c.left > 0 {
		c.errs = append(c.errs, fmt.Errorf("and %d more such errors", c.left))
	}
	return errors.Join(c.errs...)
}

// maxErrors bounds what is said of one tree: the command chooses how much cannot be
// dealt with.
const maxErrors = 20

func (c *cleaner) note(err error) {
	if len(c.errs) < maxErrors {
		c.errs = append(c.errs, err)
	} else {
		c.left++
	}
}

// search goes through a part of the tree as it is now, and deals with what it finds
// also where it could not look everywhere: else one place too many would save the rest.
func (c *cleaner) search(from string) {
	limit := c.tree.Dirs + maxAfter
	if !c.tree.Whole {
		limit = maxLarge
	}
	s := newSearch(c.fd(), limit, skipper(c.tree.Skipped))
	s.open = c.openUp
	if err := errors.Join(s.run(from), c.unsearched(s)); err != nil {
		c.note(fmt.Errorf("looking for what the command left in %s: %w", c.tree.Root, err))
	}
	slices.SortFunc(s.finds, func(a, b find) int { return strings.Compare(a.path, b.path) })
	for _, f := range s.finds {
		c.judge(f)
	}
}

// unsearched says where a search has not been that it should have.
func (c *cleaner) unsearched(s *search) error {
	if !s.whole && c.tree.Whole {
		return fmt.Errorf("there are over %d directories more than before", maxAfter)
	}
	for _, p := range s.closed {
		if !slices.ContainsFunc(c.tree.Closed, func(before string) bool { return within(p, before) }) {
			return fmt.Errorf("%.200q cannot be read", p)
		}
	}
	return nil
}

func (c *cleaner) fd() int { return int(c.root.Fd()) }

// openUp opens a directory that the command left without the rights to, too.
func (c *cleaner) openUp(s *search, p string) (int, error) {
	fd, err := openToRead(s, p)
	if !errors.Is(err, unix.EACCES) {
		return fd, err
	}
	id, statErr := identify(s.root, p)
	if statErr != nil || !id.isDir() || allow(s.root, p, 0o700) != nil {
		return -1, err
	}
	c.opened = append(c.opened, opened{p, id.mode & 0o7777})
	return openToRead(s, p)
}

// close takes back the rights that were given.
func (c *cleaner) close() {
	for _, o := range slices.Backward(c.opened) {
		fd, err := openBeneath(c.fd(), o.path, unix.O_PATH|unix.O_DIRECTORY)
		if err != nil {
			continue // set aside meanwhile
		}
		_ = unix.Chmod(fmt.Sprintf("/proc/self/fd/%d", fd), o.mode)
		_ = unix.Close(fd)
	}
}

// searched reports whether the first search has been where p is.
func (c *cleaner) searched(p string) bool {
	return c.tree.Whole && !slices.ContainsFunc(c.tree.Closed, func(dir string) bool { return within(p, dir) })
}

// verdict is what a guarded path is now.
type verdict byte

const (
	original verdict = iota // what was there before
	replaced                // something else, by somebody outside
	fresh                   // the command's
)

// compare tells what the command made from what was there.
func (c *cleaner) compare(p string, now identity) verdict {
	before, known := c.known[p]
	switch {
	case known && before.kind != absent && before.id.same(now):
		return c.touched(p, before.id, now)
	case c.files[fileOf(now)] && !now.isLink():
		return original // it came here with its directory
	case !c.searched(p) && now.changed < c.started:
		return original
	case known && before.mounted() && c.sameParent(before):
		return replaced // the command cannot have done it: the old one was a mount
	}
	return fresh
}

// touched decides about a file that has its old number.
func (c *cleaner) touched(p string, before, now identity) verdict {
	_, otherNames := c.sums[p]
	switch {
	case now.isDir() || now.changed == before.changed || c.unchanged(p):
		return original
	case otherNames || !now.isRegular():
		return fresh // changed through one of them; or not a mount inside, and another got its number
	}
	return replaced // changed in place, or another file that got its number
}

// unchanged reports whether a file with further names still has its content.
func (c *cleaner) unchanged(p string) bool {
	before := c.sums[p]
	return before != "" && sum(c.fd(), p) == before
}

func (c *cleaner) sameParent(e Entry) bool {
	parent, err := identify(c.fd(), path.Dir(e.Path))
	return err == nil && parent.ino == e.parent
}

func (c *cleaner) judge(f find) {
	switch f.kind {
	case gitDir:
		c.repository(f.path)
	case gitLink:
		c.link(f)
	case entry, generated, way, absent, linked:
		c.guarded(f.path, identityOf(f.stat))
	}
}

func (c *cleaner) guarded(p string, now identity) {
	switch c.compare(p, now) {
	case original:
	case replaced:
		c.out.Replaced = append(c.out.Replaced, c.absolute(p))
	case fresh:
		c.move(p)
	}
}

func (c *cleaner) absolute(p string) string { return path.Join(c.tree.Root, p) }

// rest looks at what no search meets: paths that must not appear, and files that
// could be changed through another name.
func (c *cleaner) rest() {
	for _, e := range c.tree.Entries {
		if e.kind != absent && e.kind != linked {
			continue
		}
		now, err := identify(c.fd(), e.Path)
		switch {
		case err != nil:
		case e.kind == absent:
			c.guarded(e.Path, now)
		case now.changed != e.id.changed && !c.unchanged(e.Path):
			c.move(e.Path)
		}
	}
}

// repository looks at what git runs or obeys in one of its directories.
func (c *cleaner) repository(dir string) {
	if c.done[dir] {
		return
	}
	c.done[dir] = true
	for _, name := range gitNames {
		p := path.Join(dir, name)
		now, err := identify(c.fd(), p)
		if errors.Is(err, unix.ENOENT) {
			continue
		}
		if err != nil {
			c.fail(p, err)
			continue
		}
		switch c.compare(p, now) {
		case original:
		case replaced:
			c.out.Replaced = append(c.out.Replaced, c.absolute(p))
		case fresh:
			c.gitFile(dir, name, now)
		}
	}
	c.unfinished(dir)
}

// gitFile decides about one of git's own files that the command made.
func (c *cleaner) gitFile(dir, name string, now identity) {
	p := path.Join(dir, name)
	switch name {
	case "hooks":
		if !c.onlySamples(p, now) {
			c.move(p)
		}
	case "commondir":
		// Of a linked worktree that was added: its repository is the directory above.
		_, before := c.known[dir]
		inPlace := path.Base(path.Dir(dir)) == "worktrees" && strings.TrimSpace(readSmall(c.fd(), p)) == "../.."
		if before || !inPlace {
			c.move(p)
		}
	case "config", "config.worktree":
		c.config(dir, p, now)
	}
}

// onlySamples reports whether a directory of hooks has none that git would run.
func (c *cleaner) onlySamples(p string, now identity) bool {
	if !now.isDir() {
		return false
	}
	only := true
	err := c.walk(p, func(name string, stat unix.Stat_t) error {
		hook := name != p && (path.Dir(name) != p || !strings.HasSuffix(name, ".sample") || stat.Mode&unix.S_IFMT != unix.S_IFREG)
		only = only && !hook
		return nil
	})
	return err == nil && only
}

// config takes from a new repository's configuration what is not known to be
// harmless. One that has another name is replaced by a copy: a later run could
// change it through that name.
func (c *cleaner) config(dir, p string, now identity) {
	text := readSmall(c.fd(), p)
	if !now.isRegular() || text == "" && now.size > 0 {
		c.move(p)
		return
	}
	clean, dropped, err := guard.CleanConfig(text, dir)
	switch {
	case err != nil:
		c.move(p)
		return
	case len(dropped) == 0 && now.links == 1:
		return
	case len(dropped) == 0:
		clean = text
	}
	moved, renamed := len(c.out.Moved), len(c.out.Renamed)
	c.move(p)
	if len(c.out.Renamed) == renamed && len(c.out.Moved) > moved {
		c.out.Moved = c.out.Moved[:moved] // it is said as a cleaned one
	}
	err = c.in(path.Dir(p), func(dir int) error { return create(dir, path.Base(p), clean, now.mode&0o666) })
	if err != nil {
		c.fail(p, err)
		return
	}
	c.out.Cleaned = append(c.out.Cleaned, Cleaned{Path: c.absolute(p), Settings: dropped})
}

// create makes a file where there is none.
func create(dir int, name, text string, mode uint32) error {
	fd, err := unix.Openat(dir, name, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW|unix.O_CLOEXEC, mode|0o600)
	if err != nil {
		return err
	}
	f := os.NewFile(uintptr(fd), name)
	_, err = f.WriteString(text)
	return errors.Join(err, f.Close())
}

// maxLink bounds a .git file, in bytes: as much as git reads.
const maxLink = 8192

// link looks at a file that says where a repository is. It must be one of this tree:
// the command can write elsewhere only what is nobody's to run.
func (c *cleaner) link(f find) {
	now := identityOf(f.stat)
	verdict := c.compare(f.path, now)
	if verdict == replaced {
		c.out.Replaced = append(c.out.Replaced, c.absolute(f.path))
	}
	text := readSmall(c.fd(), f.path)
	target, ok := strings.CutPrefix(text, "gitdir: ")
	p, inside := c.relative(path.Dir(f.path), strings.TrimRight(target, "\r\n"))
	switch {
	case ok && len(text) <= maxLink && inside && c.reaches(p):
		if c.exists(p) {
			c.repository(p)
		}
	case verdict == fresh:
		c.move(f.path)
	}
}

// relative makes a path that git would read in dir one of this tree.
func (c *cleaner) relative(dir, p string) (string, bool) {
	if path.IsAbs(p) {
		rest, ok := strings.CutPrefix(path.Clean(p), c.tree.Root+"/")
		return rest, ok
	}
	p = path.Join(dir, p)
	return p, p != ".." && !strings.HasPrefix(p, "../")
}

// reaches reports whether no link lies on the way to p, or nothing at all.
func (c *cleaner) reaches(p string) bool {
	fd, err := openBeneath(c.fd(), p, unix.O_PATH|unix.O_DIRECTORY)
	if err != nil {
		return errors.Is(err, unix.ENOENT)
	}
	return unix.Close(fd) == nil
}

func (c *cleaner) exists(p string) bool {
	_, err := identify(c.fd(), p)
	return err == nil
}

// move takes a path out of the tree: into the archive or, where that cannot be, to a
// name beside it that means nothing.
func (c *cleaner) move(p string) {
	if c.done[p] {
		return
	}
	c.done[p] = true
	err := c.archive.put(c.root, p, c.walk)
	if err == nil {
		err = c.remove(p)
	}
	if err == nil {
		c.out.Moved = append(c.out.Moved, c.absolute(p))
		return
	}
	to, failed := c.rename(p)
	if failed != nil {
		c.fail(p, errors.Join(err, failed))
		return
	}
	c.out.Renamed = append(c.out.Renamed, Renamed{Path: c.absolute(p), To: c.absolute(to)})
	c.later = append(c.later, to)
}

// walk is the package's, and opens up what the command has closed.
func (c *cleaner) walk(p string, visit func(p string, stat unix.Stat_t) error) error {
	s := newSearch(c.fd(), 0, nil)
	s.open = c.openUp
	left := maxWalked
	return s.walk(p, &left, visit)
}

func (c *cleaner) fail(p string, err error) {
	c.note(fmt.Errorf("setting aside %.200q in %s: %w", p, c.tree.Root, err))
}

// maxRenamed bounds how much of a name is kept, in bytes: with what is put before it,
// it has to be a name.
const maxRenamed = 100

// rename gives a path another name beside it. The command may have taken the first.
func (c *cleaner) rename(p string) (to string, err error) {
	base := path.Base(p)
	for i := range 100 {
		name := fmt.Sprintf("sbx-set-aside-%s-%s", c.run, base[:min(len(base), maxRenamed)])
		if i > 0 || guard.Of([]byte(name)) != guard.Plain { // what its end says counts, too
			name = fmt.Sprintf("%s-%d", name, i)
		}
		to = path.Join(path.Dir(p), name)
		err = c.in(path.Dir(p), func(dir int) error { return unix.Renameat2(dir, base, dir, name, unix.RENAME_NOREPLACE) })
		if !errors.Is(err, unix.EEXIST) {
			break
		}
	}
	return to, err
}

// in does something in a directory. One that the command made unwritable is opened up.
func (c *cleaner) in(p string, do func(dir int) error) error {
	dir, err := openBeneath(c.fd(), p, unix.O_PATH|unix.O_DIRECTORY)
	if err != nil {
		return err
	}
	defer unix.Close(dir)
	if err = do(dir); !errors.Is(err, unix.EACCES) {
		return err
	}
	var stat unix.Stat_t
	if unix.Fstat(dir, &stat) != nil || allow(c.fd(), p, 0o700) != nil {
		return err
	}
	c.opened = append(c.opened, opened{p, stat.Mode & 0o7777})
	return do(dir)
}

// remove deletes a path and all in it, what is deepest first.
func (c *cleaner) remove(p string) error {
	var all []string
	var flags []int
	err := c.walk(p, func(p string, stat unix.Stat_t) error {
		flag := 0
		if stat.Mode&unix.S_IFMT == unix.S_IFDIR {
			flag = unix.AT_REMOVEDIR
		}
		all, flags = append(all, p), append(flags, flag)
		return nil
	})
	if err != nil {
		return err
	}
	for i, p := range slices.Backward(all) {
		err := c.in(path.Dir(p), func(dir int) error { return unix.Unlinkat(dir, path.Base(p), flags[i]) })
		if err != nil {
			return fmt.Errorf("removing %.200q: %w", p, err)
		}
	}
	return nil
}
