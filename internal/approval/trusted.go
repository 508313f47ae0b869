package approval

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"time"

	"github.com/fractalboxdev/sbx/internal/links"
	"github.com/fractalboxdev/sbx/internal/sshsig"
)

// Bounds of files, in bytes.
const (
	maxProfile  = 1 << 20
	maxApproval = 64 << 10
	maxSigners  = 1 << 20
)

// signers reads the operator's allowed_signers file.
func (o Options) signers() (sshsig.Signers, error) {
	if o.Signers == "" {
		return sshsig.Signers{}, refuse(CodeNoSigners, `set it in the operator's configuration, as in: allowed_signers = "/etc/sbx/allowed_signers"`, nil,
			"custom profiles need approval, and nobody may approve: allowed_signers is not set")
	}
	text, err := o.readTrusted(o.Signers)
	if err != nil {
		return sshsig.Signers{}, refuse(CodeSigners, "give it to root or yourself alone, outside of what a sandbox can write", err, "the signers of %s do not count: %v", o.Signers, err)
	}
	signers, err := sshsig.ParseSigners(text, time.Local)
	if err != nil {
		return sshsig.Signers{}, refuse(CodeSigners, "correct the file; ssh-keygen(1) has its format", err, "the signers of %s do not count: %v", o.Signers, err)
	}
	return signers, nil
}

// readTrusted reads a file that nobody but root and the caller can have written
// or put there: every directory and link on the way is checked, then the open file.
func (o Options) readTrusted(path string) ([]byte, error) {
	real, err := o.walk(path)
	if err != nil {
		return nil, err
	}
	f, err := open(real)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, fmt.Errorf("inspecting %s: %w", path, err)
	}
	if !info.Mode().IsRegular() {
		return nil, fmt.Errorf("%s is not a regular file", path)
	}
	if err := o.own(real, info); err != nil {
		return nil, err
	}
	return readAll(f, maxSigners)
}

// walk follows symbolic links one by one and returns the path without any.
func (o Options) walk(path string) (string, error) {
	if !filepath.IsAbs(path) {
		return "", fmt.Errorf("%s is not an absolute path", path)
	}
	forbidden := identities(o.Forbidden)
	real, err := links.Follow(path, func(at string) (link bool, err error) {
		info, err := os.Lstat(at)
		if err != nil {
			return false, fmt.Errorf("finding %s: %w", path, err)
		}
		if slices.ContainsFunc(forbidden, func(known fs.FileInfo) bool { return os.SameFile(known, info) }) {
			return false, fmt.Errorf("%s can be written from inside a sandbox", at)
		}
		return info.Mode()&fs.ModeSymlink != 0, o.own(at, info)
	}, os.Readlink)
	if errors.Is(err, links.ErrUnfollowed) {
		err = fmt.Errorf("finding %s: %w", path, err)
	}
	return real, err
}

// identities looks paths up, so that no other name leads below them; what does
// not exist holds nothing.
func identities(paths []string) []fs.FileInfo {
	var found []fs.FileInfo
	for _, path := range paths {
		if info, err := os.Stat(path); err == nil {
			found = append(found, info)
		}
	}
	return found
}

// own demands that a file, directory or link belongs to root or the caller and
// that nobody else can write it. Links have no mode; in a directory with the
// sticky bit nobody else can replace what is not theirs.
func (o Options) own(path string, info fs.FileInfo) error {
	stat, ok := info.Sys().(*syscall.Stat_t)
	if !ok || int(stat.Uid) != o.RootUID && int(stat.Uid) != o.UID {
		return fmt.Errorf("%s belongs neither to root nor to you", path)
	}
	sticky := info.IsDir() && info.Mode()&fs.ModeSticky != 0
	if info.Mode()&fs.ModeSymlink == 0 && info.Mode().Perm()&0o022 != 0 && !sticky {
		return fmt.Errorf("others can write %s (mode %#o); chmod go-w mends it", path, info.Mode().Perm())
	}
	return nil
}

// open does not follow a link that was put there since, and does not wait.
func open(path string) (*os.File, error) {
	return os.OpenFile(path, os.O_RDONLY|syscall.O_NOFOLLOW|syscall.O_NONBLOCK|syscall.O_CLOEXEC, 0) //nolint:forbidigo // needs the flags; nothing is created
}

// readFile reads a regular file whose contents are proved by a signature, so
// that it does not matter who can write it.
func readFile(path string, limit int64) ([]byte, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK|syscall.O_CLOEXEC, 0) //nolint:forbidigo // needs the flags; nothing is created
	if err != nil {
		return nil, err
	}
	defer f.Close()
	if info, err := f.Stat(); err != nil || !info.Mode().IsRegular() {
		return nil, errors.Join(err, fmt.Errorf("%s is not a regular file", path))
	}
	return readAll(f, limit)
}

func readAll(f *os.File, limit int64) ([]byte, error) {
	text, err := io.ReadAll(io.LimitReader(f, limit+1))
	if err != nil {
		return nil, err
	}
	if int64(len(text)) > limit {
		return nil, fmt.Errorf("%s is larger than %d bytes", f.Name(), limit)
	}
	return text, nil
}

// CountSigners says how many lines of the operator's allowed_signers file may approve,
// once the file is one that counts. Every refusal is an *event.Refusal with the next step.
func CountSigners(o Options) (int, error) {
	signers, err := o.signers()
	return signers.Len(), err
}
