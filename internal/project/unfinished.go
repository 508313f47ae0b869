package project

import (
	"errors"
	"path"

	"golang.org/x/sys/unix"

	"github.com/fractalboxdev/sbx/internal/guard"
)

// unfinished looks at a rebase or cherry-pick that the command left to be continued.
// Git's own, which run nothing, stay.
func (c *cleaner) unfinished(dir string) {
	for _, state := range guard.States() {
		p := path.Join(dir, state.Dir)
		now, err := identify(c.fd(), p)
		switch {
		case errors.Is(err, unix.ENOENT) || now.isLink() && now.changed < c.started:
		case err != nil:
			c.fail(p, err)
		case now.isDir():
			for _, name := range state.Files {
				c.continued(path.Join(p, name))
			}
		default:
			c.move(p)
		}
	}
}

// continued moves a file of such a state that would make git run something.
func (c *cleaner) continued(p string) {
	now, err := identify(c.fd(), p)
	if errors.Is(err, unix.ENOENT) || err == nil && now.changed < c.started {
		return
	}
	if err != nil {
		c.fail(p, err)
		return
	}
	text := readSmall(c.fd(), p)
	if !now.isRegular() || text == "" && now.size > 0 || guard.RunsContinued(path.Base(p), text) {
		c.move(p)
	}
}
