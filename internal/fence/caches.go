package fence

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path"
	"path/filepath"

	"github.com/fractalboxdev/sbx/internal/sandbox"
)

// caches names the directories that are kept for each profile and project, below
// the user's own cache directory; never the host's own caches.
func (f *fence) caches(facts sandbox.Facts) ([]sandbox.Cache, error) {
	if f.o.NoCache || len(f.derived.Grant.Caches()) == 0 {
		return nil, nil
	}
	base, ok := CacheDirectory(f.o.Env)
	if !ok {
		return nil, &sandbox.Refusal{
			What: "there is no place for the profile's caches: neither XDG_CACHE_HOME nor HOME is an absolute path",
			Next: "set one of them, or use --no-cache",
		}
	}
	project := sha256.Sum256([]byte(facts.Workdir))
	var out []sandbox.Cache
	for _, c := range f.derived.Grant.Caches() {
		dir := path.Join(base, hex.EncodeToString(project[:8]), c.Profile, c.Name)
		out = append(out, sandbox.Cache{Source: dir, Target: path.Join(facts.Home, c.Path)})
	}
	return out, nil
}

// CacheDirectory is below which runs keep their caches: $XDG_CACHE_HOME/sbx, else
// $HOME/.cache/sbx.
func CacheDirectory(env []string) (dir string, ok bool) {
	if xdg, ok := lookup(env, "XDG_CACHE_HOME"); ok && path.IsAbs(xdg) {
		return path.Join(xdg, "sbx"), true
	}
	home, ok := lookup(env, "HOME")
	return path.Join(home, ".cache", "sbx"), ok && path.IsAbs(home)
}

// makePrivate makes a directory that is the caller's alone and returns its path
// without symlinks. One that is somebody else's is refused: its content would be
// trusted by the next run.
func makePrivate(dir string) (string, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return "", fmt.Errorf("making the cache directory: %w", err)
	}
	dir, err := filepath.EvalSymlinks(dir)
	if err != nil {
		return "", fmt.Errorf("checking the cache directory: %w", err)
	}
	info, err := os.Lstat(dir)
	if err != nil {
		return "", fmt.Errorf("checking the cache directory: %w", err)
	}
	if !info.IsDir() || !ownedByCaller(info) {
		return "", errors.New("checking the cache directory " + dir + ": it is not a directory of the caller's own")
	}
	return dir, nil
}
