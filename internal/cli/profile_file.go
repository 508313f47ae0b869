package cli

import (
	"github.com/fractalboxdev/sbx/internal/grant"
	"github.com/fractalboxdev/sbx/internal/registry"
)

// resolved is what a selection came to.
type resolved struct {
	grant     grant.Grant
	endpoints *registry.Resolver // knows where the registries of the grant are
}
