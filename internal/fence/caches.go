package fence

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"strings"

	"github.com/fractalboxdev/sbx/internal/event"
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

// makePrivate makes a directory below base, the cache directory, and returns its path
// without symlinks. One that is somebody else's, or below one that somebody else may
// change, is refused: its content would be trusted by the next run. The command may have
// changed the mode of its own, which is taken back.
func makePrivate(base, dir string) (string, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return "", fmt.Errorf("making the cache directory: %w", err)
	}
	at, err := filepath.EvalSymlinks(base)
	if err != nil {
		return "", fmt.Errorf("checking the cache directory: %w", err)
	}
	below := strings.Split(strings.TrimPrefix(dir, base+"/"), "/")
	for {
		info, err := os.Lstat(at)
		if err != nil {
			return "", fmt.Errorf("checking the cache directory: %w", err)
		}
		const others = 0o022
		switch {
		case !info.IsDir() || !ownedByCaller(info):
			return "", badCache("the cache directory " + at + " is not a directory of yours: what it holds could be somebody else's")
		case info.Mode()&others == 0:
		case len(below) > 0:
			return "", badCache("others may write the cache directory " + at)
		default:
			err = os.Chmod(at, 0o700) //nolint:gosec // a directory, to which nobody else can come
		}
		if err != nil || len(below) == 0 {
			return at, err
		}
		at, below = path.Join(at, below[0]), below[1:]
	}
}

func badCache(message string) error {
	return &event.Refusal{Kind: event.RefusedSandbox, Code: "cache-foreign", Message: message, Next: "remove it, or use --no-cache"}
}
