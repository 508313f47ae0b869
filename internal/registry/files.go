package registry

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"github.com/fractalboxdev/sbx/internal/links"
)

// maxFile bounds a configuration or source file, in bytes.
const maxFile = 1 << 20

// ErrUntrusted is wrapped when a file that would count could have been written by
// somebody who may not decide where clients ask.
var ErrUntrusted = errors.New("the file cannot be trusted")

// read returns the text of a configuration file; found is false when it is not there.
func (r *Resolver) read(path string) (text string, found bool, err error) {
	text, err = r.readPrefix(path, maxFile+1)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENOTDIR) {
		return "", false, nil
	}
	if err == nil && len(text) > maxFile {
		err = fmt.Errorf("reading %s: %w: it is larger than %d bytes", path, ErrUntrusted, maxFile)
	}
	return text, err == nil, err
}

// readPrefix reads the beginning of a file after checking everybody who could
// have written it. Nobody else can swap a directory between check and open:
// every directory on the way belongs to root or the caller and is closed to others.
func (r *Resolver) readPrefix(path string, limit int64) (string, error) {
	real, err := r.resolve(path)
	if err != nil {
		return "", err
	}
	file, err := os.OpenFile(r.opts.Root+real, os.O_RDONLY|syscall.O_NOFOLLOW|syscall.O_NONBLOCK|syscall.O_CLOEXEC, 0) //nolint:forbidigo // needs the flags; nothing is created
	if err != nil {
		return "", fmt.Errorf("opening %s: %w", path, err)
	}
	defer file.Close()
	info, err := file.Stat()
	if err != nil {
		return "", fmt.Errorf("inspecting %s: %w", path, err)
	}
	if !info.Mode().IsRegular() {
		return "", fmt.Errorf("reading %s: %w: it is not a regular file", path, ErrUntrusted)
	}
	if err := r.checkOwner(path, info); err != nil {
		return "", err
	}
	text, err := io.ReadAll(io.LimitReader(file, limit))
	if err != nil {
		return "", fmt.Errorf("reading %s: %w", path, err)
	}
	return string(text), nil
}

// resolve follows symbolic links one by one and checks every directory and link
// on the way. Paths are absolute and, with Options.Root, below it.
func (r *Resolver) resolve(path string) (string, error) {
	if !filepath.IsAbs(path) {
		return "", fmt.Errorf("resolving %s: %w: the path is not absolute", path, ErrUntrusted)
	}
	real, err := links.Follow(path, func(at string) (link bool, err error) {
		if r.checked[at] {
			return false, nil
		}
		info, err := os.Lstat(r.opts.Root + at)
		if err != nil {
			return false, fmt.Errorf("resolving %s: %w", path, err)
		}
		if err := r.checkPlace(path, at, info); err != nil {
			return false, err
		}
		if info.Mode()&fs.ModeSymlink != 0 {
			return true, nil
		}
		r.checked[at] = info.IsDir()
		return false, nil
	}, func(at string) (string, error) { return os.Readlink(r.opts.Root + at) })
	if errors.Is(err, links.ErrUnfollowed) {
		err = fmt.Errorf("resolving %s: %w: %w", path, ErrUntrusted, err)
	}
	return real, err
}

func (r *Resolver) checkPlace(path, place string, info fs.FileInfo) error {
	if r.forbidden(place, info) {
		return fmt.Errorf("reading %s: %w: %s can be written from inside a sandbox; name the endpoint in operator configuration", path, ErrUntrusted, place)
	}
	shared := info.Mode()&fs.ModeSymlink != 0 || info.Mode()&fs.ModeSticky != 0
	if shared { // links have no mode of their own; under the sticky bit only owners can swap entries
		return r.checkUser(path, place, info)
	}
	return r.checkOwner(place, info)
}

// forbidden compares paths and, for bind mounts and other names, identities.
func (r *Resolver) forbidden(place string, info fs.FileInfo) bool {
	for _, f := range r.opts.Forbidden {
		f = filepath.Clean(f)
		if place == f || strings.HasPrefix(place, strings.TrimSuffix(f, "/")+"/") {
			return true
		}
	}
	return slices.ContainsFunc(r.writable, func(known fs.FileInfo) bool { return os.SameFile(known, info) })
}

// identify looks the forbidden paths up; what is not there cannot be reached by
// another name either.
func identify(opts Options) []fs.FileInfo {
	var found []fs.FileInfo
	for _, f := range opts.Forbidden {
		if info, err := os.Stat(opts.Root + filepath.Clean(f)); err == nil {
			found = append(found, info)
		}
	}
	return found
}

func (r *Resolver) checkUser(path, place string, info fs.FileInfo) error {
	stat, ok := info.Sys().(*syscall.Stat_t)
	if !ok || int(stat.Uid) != r.opts.RootID && int(stat.Uid) != r.opts.UserID {
		return fmt.Errorf("reading %s: %w: %s belongs neither to you nor to root", path, ErrUntrusted, place)
	}
	return nil
}

// checkOwner demands that only the caller and root can write. Groups of one user
// (the usual umask 002) and, for root's files, the system's static groups below
// 100 (Debian policy 9.2.2) count as their owner.
func (r *Resolver) checkOwner(place string, info fs.FileInfo) error {
	if err := r.checkUser(place, place, info); err != nil {
		return err
	}
	stat := info.Sys().(*syscall.Stat_t) // checkUser looked
	root := int(stat.Uid) == r.opts.RootID
	ownGroup := stat.Gid == stat.Uid || root && (stat.Gid < 100 || r.opts.RootID != 0)
	if info.Mode().Perm()&0o002 != 0 || info.Mode().Perm()&0o020 != 0 && !ownGroup {
		return fmt.Errorf("reading %s: %w: others can write it; chmod go-w it or name the endpoint in operator configuration", place, ErrUntrusted)
	}
	return nil
}

// program finds the file behind a command of the caller's PATH without running
// it: only absolute entries, only what passes the same checks as files do, and
// nothing that belongs to a project, since some sandbox has installed that.
func (r *Resolver) program(name string) (real string, found bool) {
	for _, dir := range filepath.SplitList(r.opts.Env["PATH"]) {
		if !filepath.IsAbs(dir) || r.ofProject(dir) {
			continue
		}
		real, err := r.resolve(filepath.Join(dir, name))
		if err == nil {
			return real, true
		}
	}
	return "", false
}

// ofProject recognises the directories of programs that projects have: npm run
// and npx put all node_modules/.bin above the working directory on PATH, and a
// virtual environment of Python is activated.
func (r *Resolver) ofProject(dir string) bool {
	if slices.Contains(strings.Split(dir, "/"), "node_modules") {
		return true
	}
	_, err := os.Lstat(r.opts.Root + filepath.Join(filepath.Dir(filepath.Clean(dir)), "pyvenv.cfg"))
	return err == nil
}

// home returns a path below the caller's home directory.
func (r *Resolver) home(parts ...string) string {
	return filepath.Join(append([]string{r.opts.Home}, parts...)...)
}

// configHome is the directory for user configuration (XDG base directory specification).
func (r *Resolver) configHome() string {
	if dir := r.opts.Env["XDG_CONFIG_HOME"]; filepath.IsAbs(dir) {
		return dir
	}
	return r.home(".config")
}

// display shows a path below HOME with a tilde.
func (r *Resolver) display(path string) string {
	if rest, ok := strings.CutPrefix(path, strings.TrimSuffix(r.opts.Home, "/")+"/"); ok && r.opts.Home != "" {
		return "~/" + rest
	}
	return path
}

// setting is a value with where it was read.
type setting struct{ value, source string }

func (r *Resolver) lineSource(path string, line int) string {
	return fmt.Sprintf("%s line %d", r.display(path), line)
}
