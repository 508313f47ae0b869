package sandbox

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"syscall"

	"golang.org/x/sys/unix"
)

// maxWalked bounds the search for privileged files, in directory entries.
const maxWalked = 2_000_000

var errTooMany = errors.New("too many files")

// CheckPrivilegeBits refuses a directory that the command could write and that holds
// a set-user-id or set-group-id file of the owner. Writing to one through a shared
// mapping keeps its bits, so that the command could choose what runs as the owner.
func CheckPrivilegeBits(root string, owner uint32) error {
	seen := 0
	err := filepath.WalkDir(root, func(p string, d fs.DirEntry, err error) error {
		if seen++; seen > maxWalked {
			return errTooMany
		}
		if err != nil || !d.Type().IsRegular() {
			return nil //nolint:nilerr // what cannot be read by the caller is gone or not the command's either
		}
		info, err := d.Info()
		if err != nil {
			return nil //nolint:nilerr // gone since
		}
		stat, ok := info.Sys().(*syscall.Stat_t)
		if ok && stat.Uid == owner && stat.Mode&(unix.S_ISUID|unix.S_ISGID) != 0 {
			return &Refusal{
				What: fmt.Sprintf("%s is a set-user-id or set-group-id file of the caller's: the command could rewrite it", p),
				Next: "remove the bits (chmod ug-s), use --ro, or run sbx as an ordinary user",
			}
		}
		return nil
	})
	if errors.Is(err, errTooMany) {
		return &Refusal{
			What: fmt.Sprintf("%s has over %d files: not all could be searched for set-user-id bits", root, maxWalked),
			Next: "run sbx in a smaller directory, or as an ordinary user",
		}
	}
	return err
}

// Resolve follows the symlinks of a path as far as it exists.
func Resolve(p string) string {
	if real, err := filepath.EvalSymlinks(p); err == nil {
		return real
	}
	dir := filepath.Dir(p)
	if dir == p {
		return p
	}
	return filepath.Join(Resolve(dir), filepath.Base(p))
}

func linksOf(info fs.FileInfo) uint64 {
	stat, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return 1
	}
	return uint64(stat.Nlink) //nolint:unconvert // 32 bits elsewhere
}
