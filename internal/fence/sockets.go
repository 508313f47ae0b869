package fence

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/fractalboxdev/sbx/internal/event"
)

func (f *fence) socketPaths() (paths []string) {
	for _, s := range f.derived.Grant.UnixSockets() {
		paths = append(paths, s.Path)
	}
	return paths
}

// checkSockets refuses sockets of the grant that are not there, or that links lead to:
// they would not be where the profile's reader looks for them.
func (f *fence) checkSockets() error {
	for _, s := range f.derived.Grant.UnixSockets() {
		refusal := &event.Refusal{Kind: event.RefusedRecipe, Code: "bad-socket"}
		real, err := filepath.EvalSymlinks(s.Path)
		if err != nil {
			refusal.Message, refusal.Cause = fmt.Sprintf("the socket of profile %s cannot be found: %v", s.Profile, err), err
			refusal.Next = "start what serves it, or leave the profile out"
			return refusal
		}
		if real != s.Path {
			refusal.Message = fmt.Sprintf("the socket %s of profile %s is behind a symbolic link", s.Path, s.Profile)
			refusal.Next = "name it " + real
			return refusal
		}
		info, err := os.Lstat(real)
		if err != nil || info.Mode().Type() != fs.ModeSocket {
			refusal.Message, refusal.Cause = fmt.Sprintf("%s of profile %s is not a socket", s.Path, s.Profile), err
			refusal.Next = "name the socket itself"
			return refusal
		}
	}
	return nil
}
