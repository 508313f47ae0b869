package credential

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strings"
	"syscall"

	"github.com/fractalboxdev/sbx/internal/links"
	"github.com/fractalboxdev/sbx/internal/secret"
)

// ErrUntrusted is wrapped when a file could have been written by somebody who may
// not decide what is sent.
var ErrUntrusted = errors.New("the file cannot be trusted")

// file returns the text of a file, "" when it is not there.
func (r Reader) file(name string) (string, error) {
	name, err := r.expand(name)
	if err != nil {
		return "", err
	}
	f, err := r.open(name)
	if errors.Is(err, fs.ErrNotExist) {
		return "", nil
	}
	if err != nil {
		return "", err
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, secret.MaxLength+1))
	if err != nil {
		return "", fmt.Errorf("reading %s: %w", name, err)
	}
	return string(text), nil
}

// open opens a regular file after checking everybody who could have written it.
// Nobody else can swap a directory between check and open: every directory on the
// way belongs to root or the caller and is closed to others.
func (r Reader) open(name string) (*os.File, error) {
	real, err := r.resolve(name)
	if err != nil {
		return nil, err
	}
	f, err := os.OpenFile(real, os.O_RDONLY|syscall.O_NOFOLLOW|syscall.O_NONBLOCK|syscall.O_CLOEXEC, 0) //nolint:forbidigo // needs the flags; nothing is created
	if err != nil {
		return nil, fmt.Errorf("opening %s: %w", name, err)
	}
	info, err := f.Stat()
	if err == nil && !info.Mode().IsRegular() {
		err = fmt.Errorf("opening %s: %w: it is not a regular file", name, ErrUntrusted)
	}
	if err == nil {
		err = r.checkOwner(name, info)
	}
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

// resolve follows symbolic links one by one and checks everything on the way.
func (r Reader) resolve(name string) (string, error) {
	real, err := links.Follow(name, func(at string) (link bool, err error) {
		info, err := os.Lstat(at)
		if err != nil {
			return false, fmt.Errorf("finding %s: %w", name, err)
		}
		return info.Mode()&fs.ModeSymlink != 0, r.checkPlace(at, info)
	}, os.Readlink)
	if errors.Is(err, links.ErrUnfollowed) {
		err = fmt.Errorf("finding %s: %w: %w", name, ErrUntrusted, err)
	}
	return real, err
}

func (r Reader) checkPlace(place string, info fs.FileInfo) error {
	for _, dir := range r.Forbidden {
		below := place == dir || strings.HasPrefix(place, strings.TrimSuffix(dir, "/")+"/")
		if known, err := os.Stat(dir); below || err == nil && os.SameFile(known, info) {
			return fmt.Errorf("%w: %s can be written from inside a sandbox", ErrUntrusted, place)
		}
	}
	if info.Mode()&fs.ModeSymlink != 0 || info.IsDir() && info.Mode()&fs.ModeSticky != 0 {
		return r.checkUser(place, info) // links have no mode; under the sticky bit only owners swap entries
	}
	return r.checkOwner(place, info)
}

func (r Reader) checkUser(place string, info fs.FileInfo) error {
	stat, ok := info.Sys().(*syscall.Stat_t)
	if !ok || int(stat.Uid) != r.RootID && int(stat.Uid) != os.Geteuid() {
		return fmt.Errorf("%w: %s belongs neither to you nor to root", ErrUntrusted, place)
	}
	return nil
}

// checkOwner demands that only the caller and root can write. Groups of one user
// (the usual umask 002) and, for root's files, the system's static groups below
// 100 (Debian policy 9.2.2) count as their owner.
func (r Reader) checkOwner(place string, info fs.FileInfo) error {
	if err := r.checkUser(place, info); err != nil {
		return err
	}
	stat := info.Sys().(*syscall.Stat_t) // checkUser looked
	root := int(stat.Uid) == r.RootID
	ownGroup := stat.Gid == stat.Uid || root && (stat.Gid < 100 || r.RootID != 0)
	if info.Mode().Perm()&0o002 != 0 || info.Mode().Perm()&0o020 != 0 && !ownGroup {
		return fmt.Errorf("%w: others can write %s; chmod go-w it", ErrUntrusted, place)
	}
	return nil
}
