//go:build !cgo

package sbxtest

import (
	"fmt"

	gont "cunicu.li/gont/v2/pkg"
)

// namespace is a network namespace with a name in the lab's own /run/netns.
// gont's larger Network type wants a running systemd, which containers and CI
// machines do not have.
type namespace = gont.Namespace

func newNamespace(name string) (*namespace, error) {
	ns, err := gont.NewNamespace(name)
	if err != nil {
		return nil, fmt.Errorf("making network namespace %s: %w", name, err)
	}
	return ns, nil
}
