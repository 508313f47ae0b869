package serve

import (
	"io/fs"
	"syscall"
)

func sysStat(info fs.FileInfo) (*syscall.Stat_t, bool) {
	stat, ok := info.Sys().(*syscall.Stat_t)
	return stat, ok
}
