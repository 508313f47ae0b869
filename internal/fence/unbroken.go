//go:build !sbxbreak

package fence

import (
	"io"
	"os"
	"time"

	"github.com/fractalboxdev/sbx/internal/proxy"
	"github.com/fractalboxdev/sbx/internal/trust"
)

// fault is where a binary of the tests has a step fail, hang, panic or be killed.
func fault(string, int) error { return nil }

// patience is a limit, which tests cannot wait for.
func patience(_ string, limit time.Duration) time.Duration { return limit }

// The places where a binary of the tests breaks the floor on purpose (broken.go), so
// that a canary can be seen to notice. In every other binary they do nothing.

func brokenPack(p trust.Pack) trust.Pack                    { return p }
func brokenListeners(files []*os.File) []*os.File           { return files }
func brokenDevices() error                                  { return nil }
func brokenFilter(filter []byte) []byte                     { return filter }
func brokenRoute(r route) route                             { return r }
func brokenProxy(cfg proxy.Config) proxy.Config             { return cfg }
func brokenLog(log func(int) io.Writer) func(int) io.Writer { return log }
func (n *network) brokenNames(*os.File) (replaced bool)     { return false }
