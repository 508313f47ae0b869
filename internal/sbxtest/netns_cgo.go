//go:build cgo

package sbxtest

import "errors"

// namespace stands for the real type of netns.go, so that the tree compiles
// with cgo as well; no lab can be made with it.
type namespace struct{ NsHandle handle }

type handle int

// RunFunc never runs: newNamespace made no such namespace.
func (*namespace) RunFunc(func() error) error { return errCgo }

// Close has nothing to release.
func (*namespace) Close() error { return nil }

var errCgo = errors.New("the lab is built without cgo: run the tests with .ci/test, or with CGO_ENABLED=0")

func newNamespace(string) (*namespace, error) { return nil, errCgo }
