package artifact

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"
	"unicode"

	"golang.org/x/sys/unix"

	"github.com/fractalboxdev/sbx/internal/event"
	"github.com/fractalboxdev/sbx/internal/guard"
)

// Bounds of what is collected of one run.
const (
	maxCollected     = 1 << 30 // bytes
	maxCollectedFile = 10_000  // files
	maxSeen          = 100_000 // names that are looked at
	maxDepth         = 32      // directories in one another
	maxSkipped       = 100     // names that are said
)

// collector takes regular files over from the outbox.
type collector struct {
	from, to *os.Root
	run      *Run
	seen     int
	out      event.Collected
	failed   error // to write: nothing more is taken
}

// Collect copies the regular files that the command left in its outbox into FilesDir
// of the run's directory, with the run's secrets masked. It must be called when every
// process of the run is dead, and before Finish. No link is followed or copied; what
// git, editors or shells would obey in the collected tree is left out. nil means that
// there was nothing.
func (r *Run) Collect() (*event.Collected, error) {
	from, err := r.state.OpenRoot(filepath.Join(scratchDir, r.id))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil //nolint:nilnil // there is no outbox
	}
	if err != nil {
		return nil, fmt.Errorf("collecting artifacts: %w", err)
	}
	defer from.Close()
	c := &collector{from: from, run: r, out: event.Collected{Skipped: []event.Skipped{}}}
	c.directory(".", 0)
	if c.to != nil {
		err = c.to.Close()
	}
	if err = errors.Join(c.failed, err); err != nil {
		return nil, errors.Join(fmt.Errorf("collecting artifacts: %w", err), removeTree(r.root, FilesDir))
	}
	if c.out.Files+len(c.out.Skipped) == 0 {
		return nil, nil //nolint:nilnil // the outbox is empty
	}
	return &c.out, nil
}

func (c *collector) skip(name, why string) {
	if len(c.out.Skipped) < maxSkipped {
		c.out.Skipped = append(c.out.Skipped, event.Skipped{Path: name, Why: why})
	} else {
		c.out.Left++
	}
}

// directory goes through one directory of the outbox. One that cannot be entered even
// by its owner is opened up: nothing of the run uses it any more.
func (c *collector) directory(name string, depth int) {
	if depth > maxDepth {
		c.skip(name, fmt.Sprintf("deeper than %d directories", maxDepth))
		return
	}
	_ = openUpOne(c.from, name) // what stays closed is said to be unreadable
	dir, err := c.from.Open(name)
	if err != nil {
		c.skip(name, "cannot be read")
		return
	}
	entries, err := dir.ReadDir(maxSeen - c.seen + 1)
	_ = dir.Close()
	if err != nil && !errors.Is(err, io.EOF) {
		c.skip(name, "cannot be read")
		return
	}
	repository := looksLikeRepository(entries)
	for _, e := range entries {
		if c.failed != nil {
			return
		}
		if c.seen++; c.seen > maxSeen {
			c.skip(name, fmt.Sprintf("over %d names", maxSeen))
			return
		}
		c.entry(path.Join(name, e.Name()), e, repository, depth)
	}
}

// looksLikeRepository: such a directory would be a repository whatever it is called.
func looksLikeRepository(entries []fs.DirEntry) bool {
	marks := 0
	for _, e := range entries {
		switch e.Name() {
		case "HEAD", "objects", "refs", "commondir":
			marks++
		}
	}
	return marks > 1
}

func (c *collector) entry(name string, e fs.DirEntry, repository bool, depth int) {
	kind := guard.Of([]byte(e.Name()))
	switch {
	case strings.ContainsFunc(e.Name(), misleads):
		c.skip(name, "its name has control characters")
	case kind != guard.Plain && kind != guard.Quiet && kind != guard.Skip || repository && strings.HasPrefix(e.Name(), "config"):
		c.skip(name, "programs outside would run or obey it")
	case e.Name() == ".git-credentials" || e.Name() == ".netrc":
		c.skip(name, "it holds credentials")
	case e.IsDir():
		c.directory(name, depth+1)
	case !e.Type().IsRegular():
		c.skip(name, "not a regular file")
	default:
		c.file(name)
	}
}

func (c *collector) file(name string) {
	in, err := c.openRegular(name)
	if err != nil {
		c.skip(name, "cannot be read")
		return
	}
	defer in.Close()
	info, err := in.Stat()
	switch {
	case err != nil || !info.Mode().IsRegular():
		c.skip(name, "not a regular file")
	case c.out.Files >= maxCollectedFile:
		c.skip(name, fmt.Sprintf("over %d files", maxCollectedFile))
	case c.out.Bytes+info.Size() > maxCollected:
		c.skip(name, fmt.Sprintf("over %d bytes in all", maxCollected))
	default:
		c.failed = c.copy(name, in, info.Size())
	}
}

// misleads reports whether a character changes how a terminal shows others.
func misleads(r rune) bool { return unicode.IsControl(r) || unicode.Is(unicode.Bidi_Control, r) }

// openRegular never waits, and follows no link.
func (c *collector) openRegular(name string) (*os.File, error) {
	const flags = os.O_RDONLY | unix.O_NOFOLLOW | unix.O_NONBLOCK
	in, err := c.from.OpenFile(name, flags, 0)
	if errors.Is(err, fs.ErrPermission) && c.from.Chmod(name, 0o600) == nil {
		in, err = c.from.OpenFile(name, flags, 0)
	}
	return in, err
}

func (c *collector) copy(name string, in *os.File, size int64) error {
	if c.to == nil {
		if err := c.run.root.Mkdir(FilesDir, 0o700); err != nil {
			return err
		}
		to, err := c.run.root.OpenRoot(FilesDir)
		if err != nil {
			return err
		}
		c.to = to
	}
	if dir := path.Dir(name); dir != "." {
		if err := c.to.MkdirAll(dir, 0o700); err != nil {
			return err
		}
	}
	out, err := c.to.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	masked := c.run.opt.Redact.Writer(out)
	_, err = io.Copy(masked, io.LimitReader(in, size))
	c.out.Files++
	c.out.Bytes += size
	return errors.Join(err, masked.Close(), out.Close())
}

// openUpOne gives the owner all rights on one directory.
func openUpOne(root *os.Root, name string) error {
	info, err := root.Lstat(name)
	if err != nil || !info.IsDir() || info.Mode().Perm()&0o700 == 0o700 {
		return err
	}
	return root.Chmod(name, 0o700)
}
