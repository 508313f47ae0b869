package e2e

import (
	"strconv"

	"golang.org/x/sys/unix"
)

// oldPrivilegeBitCalls are calls that later architectures lack.
func oldPrivilegeBitCalls(as string, mode int) []attempt {
	return []attempt{
		call("chmod"+as, "EPERM", unix.SYS_CHMOD, `"file`, mode),
		call("creat"+as, "EPERM", unix.SYS_CREAT, `"made`, mode),
		call("open"+as, "EPERM", unix.SYS_OPEN, `"made`, unix.O_CREAT|unix.O_WRONLY, mode),
		call("open O_TMPFILE"+as, "EPERM", unix.SYS_OPEN, `".`, aboveInt|unix.O_TMPFILE|unix.O_WRONLY, mode),
		call("mknod"+as, "EPERM", unix.SYS_MKNOD, `"made`, mode|unix.S_IFREG, 0),
	}
}

// x32 marks calls of the ABI with 32-bit pointers (x32(7)).
const x32 = 0x40000000

// foreignCalls have numbers of another ABI: the filter's would mean other calls.
var foreignCalls = []attempt{
	{"32-bit getpid", "SIGSYS", "int80:20"},
	{"32-bit mount", "SIGSYS", "int80:21"},
	{"32-bit socketcall", "SIGSYS", "int80:102"},
	{"x32 getpid", "SIGSYS", strconv.Itoa(x32 | unix.SYS_GETPID)},
	{"x32 chmod", "SIGSYS", strconv.Itoa(x32|unix.SYS_CHMOD) + ` "file 04755`},
	{"x32 ptrace", "SIGSYS", strconv.Itoa(x32|521) + " 0 0 0 0"},
	call("iopl", "EPERM", unix.SYS_IOPL, 3),
	call("ioperm", "EPERM", unix.SYS_IOPERM, 0x80, 1, 1),
}
