//go:build !sbxbreak

package fence

import (
	"os"

	"github.com/fractalboxdev/sbx/internal/proxy"
	"github.com/fractalboxdev/sbx/internal/trust"
)

// The places where a binary of the tests breaks the floor on purpose (broken.go), so
// that a canary can be seen to notice. In every other binary they do nothing.

func brokenPack(p trust.Pack) trust.Pack                { return p }
func brokenListeners(files []*os.File) []*os.File       { return files }
func brokenDevices() error                              { return nil }
func brokenFilter(filter []byte) []byte                 { return filter }
func brokenRoute(r route) route                         { return r }
func brokenProxy(cfg proxy.Config) proxy.Config         { return cfg }
func (n *network) brokenNames(*os.File) (replaced bool) { return false }
