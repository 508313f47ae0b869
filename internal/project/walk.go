package project

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/fractalboxdev/sbx/internal/guard"
)

// Bounds of the searches, in directories; node_modules and git's object stores are
// not among them. A directory costs some eight microseconds.
const (
	maxBefore = 20_000
	maxAfter  = 500_000 // more than were there: what the command made
	maxLarge  = 100_000 // afterwards, of a tree that was too large beforehand: the receipt says so
)

// Nothing below a root is reached through a link, nor by going up.
const beneath = unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_MAGICLINKS

// find is one guarded name that a search met.
type find struct {
	path string
	kind kind
	stat unix.Stat_t
}

// kind says what is done about a find.
type kind byte

const (
	entry     kind = 'e' // guarded as a whole
	generated kind = 'p' // guarded, and shown as private memory
	way       kind = 'w' // a directory that must not be renamed
	gitDir    kind = 'g' // a repository's directory; what matters in it is found by itself
	gitLink   kind = 'l' // a file that says where the repository is
	absent    kind = 'a' // was not there, and must not appear
	linked    kind = 'h' // a regular file with further names, whose content is remembered
)

// place is a directory that is still to be searched.
type place struct {
	path  string
	kind  guard.Kind // of its own name, where that matters
	inGit bool       // below a .git directory
	quiet bool       // only repositories matter
	top   bool       // of a project or repository
	ci    []string   // names that matter only at a top
}

// search goes through a tree, level by level.
type search struct {
	root   int
	limit  int
	skip   func(p string) bool // what is read-only inside, and what the caller gave up
	open   func(s *search, p string) (int, error)
	queue  []place
	pushed int
	dirs   int
	finds  []find
	closed []string // directories that could not be read
	whole  bool     // nothing was left out for the limit
	buffer []byte
}

func newSearch(root, limit int, skip func(string) bool) *search {
	return &search{root: root, limit: limit, skip: skip, open: openToRead, whole: true, buffer: make([]byte, 32<<10)}
}

// maxFinds bounds what one search may meet: each is remembered.
const maxFinds = 50_000

// run searches a directory and what is below until nothing is left, or the limit is
// reached: shallow directories come first.
func (s *search) run(from string) error {
	s.push(place{path: from})
	for len(s.queue) > 0 {
		next := s.queue[0]
		s.queue = s.queue[1:]
		s.dirs++
		if err := s.directory(next); err != nil {
			return fmt.Errorf("searching %.200q: %w", next.path, err)
		}
		if len(s.finds) > maxFinds {
			return fmt.Errorf("there are over %d files that programs outside would run or obey", maxFinds)
		}
	}
	return nil
}

func openToRead(s *search, p string) (int, error) {
	return openBeneath(s.root, p, unix.O_RDONLY|unix.O_DIRECTORY)
}

// openBeneath opens a path below a held directory without following any link.
func openBeneath(root int, p string, flags uint64) (int, error) {
	for {
		fd, err := unix.Openat2(root, p, &unix.OpenHow{Flags: flags | unix.O_NOFOLLOW | unix.O_CLOEXEC, Resolve: beneath})
		if !errors.Is(err, unix.EINTR) && !errors.Is(err, unix.EAGAIN) {
			return fd, err
		}
	}
}

// gone means that a directory was replaced or removed since it was listed.
func gone(err error) bool {
	return errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENOTDIR) || errors.Is(err, unix.ELOOP)
}

func (s *search) directory(at place) error {
	fd, err := s.open(s, at.path)
	switch {
	case gone(err):
		return nil
	case errors.Is(err, unix.EACCES) || errors.Is(err, unix.EPERM) || errors.Is(err, unix.ENAMETOOLONG):
		s.closed = append(s.closed, at.path)
		return nil
	case err != nil:
		return err
	}
	defer unix.Close(fd)
	var repository marks
	at.top = at.top || at.path == "."
	err = s.list(fd, func(name []byte, kind uint8) {
		repository.see(name)
		s.name(fd, &at, name, kind)
	})
	if err == nil && repository.complete() {
		s.finds = append(s.finds, find{path: at.path, kind: gitDir})
	}
	for _, name := range at.ci {
		switch of := guard.Of([]byte(name)); {
		case !at.top:
			s.ordinary(fd, &at, []byte(name), unix.DT_UNKNOWN, guard.Plain)
		case of == guard.CIParts:
			s.parts(fd, &at, name, of)
		default:
			s.guarded(fd, at.path, name, entry)
		}
	}
	return err
}

// marks are the names by which git takes a directory for a repository's
// (gitrepository-layout(5)), whatever it is called.
type marks struct{ head, objects, refs, common bool }

func (m *marks) see(name []byte) {
	switch string(name) {
	case "HEAD", "head":
		m.head = true
	case "objects":
		m.objects = true
	case "refs":
		m.refs = true
	case "commondir":
		m.common = true
	}
}

func (m *marks) complete() bool { return m.head && (m.objects && m.refs || m.common) }

// list calls see with each name of a directory and its type, as in linux_dirent64
// (getdents64(2)): inode and offset of 8 bytes, length of 2, type, name.
func (s *search) list(fd int, see func(name []byte, kind uint8)) error {
	for {
		n, err := unix.Getdents(fd, s.buffer)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil || n == 0 {
			return err
		}
		for b := s.buffer[:n]; len(b) >= 19; {
			length := int(binary.NativeEndian.Uint16(b[16:]))
			if length < 19 || length > len(b) {
				return errors.New("the kernel's list of names is malformed")
			}
			name := b[19:length]
			for i, c := range name {
				if c == 0 {
					name = name[:i]
					break
				}
			}
			if string(name) != "." && string(name) != ".." {
				see(name, b[18])
			}
			b = b[length:]
		}
	}
}

// name decides about one name of a directory.
func (s *search) name(dir int, at *place, name []byte, kind uint8) {
	if at.inGit { // submodules may have any name
		if !isStore(name) && isType(dir, name, kind, unix.DT_DIR, unix.S_IFDIR) {
			s.push(place{path: path.Join(at.path, string(name)), inGit: true})
		}
		return
	}
	of := guard.Of(name)
	switch {
	case of == guard.Git:
		at.top = true
		s.git(dir, at.path, string(name))
	case at.quiet || of == guard.Plain || of == guard.Quiet:
		s.ordinary(dir, at, name, kind, of)
	case at.kind == guard.Children:
		s.guarded(dir, at.path, string(name), childKind(string(name)))
	case of == guard.Whole:
		s.guarded(dir, at.path, string(name), entry)
	case of == guard.CI || of == guard.CIParts:
		at.ci = append(at.ci, string(name))
	case of == guard.Parts || of == guard.Children:
		s.parts(dir, at, string(name), of)
	}
}

// ordinary is a name without a meaning of its own.
func (s *search) ordinary(dir int, at *place, name []byte, kind uint8, of guard.Kind) {
	switch {
	case of == guard.Skip:
	case at.kind == guard.Children:
		s.guarded(dir, at.path, string(name), childKind(string(name)))
	case (at.kind == guard.Parts || at.kind == guard.CIParts) && guard.Part(path.Base(at.path), string(name)):
		s.guarded(dir, at.path, string(name), entry)
	case isType(dir, name, kind, unix.DT_DIR, unix.S_IFDIR):
		s.push(place{path: path.Join(at.path, string(name)), quiet: at.quiet || of == guard.Quiet})
	}
}

// parts goes on with a directory of which some names are guarded. Where it is no
// directory, it is guarded itself.
func (s *search) parts(dir int, at *place, name string, of guard.Kind) {
	if isType(dir, []byte(name), unix.DT_UNKNOWN, unix.DT_DIR, unix.S_IFDIR) {
		s.push(place{path: path.Join(at.path, name), kind: of})
		return
	}
	s.guarded(dir, at.path, name, entry)
}

func childKind(name string) kind {
	if guard.Generated(name) {
		return generated
	}
	return entry
}

// isStore: where git keeps what it neither runs nor obeys.
func isStore(name []byte) bool {
	switch string(name) {
	case "objects", "refs", "logs", "lfs", "hooks", "info":
		return true
	}
	return false
}

func (s *search) push(p place) {
	if s.skip != nil && s.skip(p.path) {
		return
	}
	if s.pushed >= s.limit {
		s.whole = false
		return
	}
	s.pushed++
	s.queue = append(s.queue, p)
}

// isType asks the file system where the directory's list does not say.
func isType(dir int, name []byte, kind, want uint8, mode uint32) bool {
	if kind != unix.DT_UNKNOWN {
		return kind == want
	}
	var stat unix.Stat_t
	return unix.Fstatat(dir, string(name), &stat, unix.AT_SYMLINK_NOFOLLOW) == nil && stat.Mode&unix.S_IFMT == mode
}

// guarded notes a find, unless it is gone or given up.
func (s *search) guarded(dir int, at, name string, kind kind) {
	p := path.Join(at, name)
	if s.skip != nil && s.skip(p) {
		return
	}
	f := find{path: p, kind: kind}
	if len(s.finds) <= maxFinds && unix.Fstatat(dir, name, &f.stat, unix.AT_SYMLINK_NOFOLLOW) == nil {
		s.finds = append(s.finds, f)
	}
}

// git notes a .git: a repository's directory, in which submodules and worktrees are
// searched for further ones, or a link to one.
func (s *search) git(dir int, at, name string) {
	f := find{path: path.Join(at, name), kind: gitDir}
	if s.skip != nil && s.skip(f.path) {
		return
	}
	if unix.Fstatat(dir, name, &f.stat, unix.AT_SYMLINK_NOFOLLOW) != nil {
		return
	}
	if f.stat.Mode&unix.S_IFMT != unix.S_IFDIR {
		f.kind = gitLink
	} else {
		for _, below := range []string{"modules", "worktrees"} {
			s.push(place{path: path.Join(f.path, below), inGit: true})
		}
	}
	s.finds = append(s.finds, f)
}

// maxWalked bounds what one guarded directory may hold, in files and directories.
const maxWalked = 20_000

var errTooMuch = errors.New("there is too much in it")

// walk calls visit for a path and, where that is a directory, for all in it, a
// directory before what it holds. Links are not followed.
func walk(root int, p string, visit func(p string, stat unix.Stat_t) error) error {
	s := newSearch(root, 0, nil)
	left := maxWalked
	return s.walk(p, &left, visit)
}

func (s *search) walk(p string, left *int, visit func(p string, stat unix.Stat_t) error) error {
	fd, err := openBeneath(s.root, p, unix.O_PATH)
	if err != nil {
		return fmt.Errorf("looking at %q: %w", p, err)
	}
	var stat unix.Stat_t
	err = unix.Fstat(fd, &stat)
	_ = unix.Close(fd)
	if err != nil {
		return fmt.Errorf("looking at %q: %w", p, err)
	}
	if *left--; *left < 0 {
		return fmt.Errorf("looking at %q: %w", p, errTooMuch)
	}
	if err := visit(p, stat); err != nil || stat.Mode&unix.S_IFMT != unix.S_IFDIR {
		return err
	}
	names, err := s.names(p)
	if err != nil {
		return fmt.Errorf("reading %q: %w", p, err)
	}
	for _, name := range names {
		if err := s.walk(path.Join(p, name), left, visit); err != nil {
			return err
		}
	}
	return nil
}

// names lists a directory, in order.
func (s *search) names(p string) (names []string, err error) {
	fd, err := s.open(s, p)
	if err != nil {
		return nil, err
	}
	defer unix.Close(fd)
	err = s.list(fd, func(name []byte, _ uint8) {
		if len(names) <= maxWalked {
			names = append(names, string(name))
		}
	})
	slices.Sort(names)
	return names, err
}

// openRoot holds a root. No part of its path may be a link.
func openRoot(root string) (*os.File, error) {
	fd, err := unix.Openat2(unix.AT_FDCWD, root, &unix.OpenHow{
		Flags: unix.O_RDONLY | unix.O_DIRECTORY | unix.O_CLOEXEC, Resolve: unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_MAGICLINKS,
	})
	if err != nil {
		return nil, fmt.Errorf("opening %s: %w", root, err)
	}
	return os.NewFile(uintptr(fd), root), nil
}
