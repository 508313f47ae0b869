// Package stage holds what runs before the Go runtime: the constructor that
// splits a fencing sbx into supervisor and runner, and the sandbox's PID 1.
package stage

// #cgo CFLAGS: -O2 -Wall -Wextra
// #cgo sbxbreak CFLAGS: -DSBX_BREAKABLE
// #include "stage.h"
import "C"

import (
	"fmt"
	"os"
	"strconv"
	"syscall"
)

// Role says which half of a fencing sbx this process is.
type Role int

// A process that runs nothing has no role.
const (
	RoleNone       Role = C.SBX_ROLE_NONE
	RoleSupervisor Role = C.SBX_ROLE_SUPERVISOR
	RoleRunner     Role = C.SBX_ROLE_RUNNER
)

// InitPath is where the sandbox's PID 1 lies inside every sandbox.
const InitPath = C.SBX_INIT_PATH

// InitControl is the descriptor of the init's control socket.
const InitControl = C.SBX_INIT_CTL

// Self is what the constructor found and did.
type Self struct {
	Role       Role
	Socket     *os.File // this half's end of the socket pair, nil without a role
	Runner     int      // the runner's pid, in the supervisor
	UID, GID   int      // effective ids of the caller, before any namespace
	Privileged bool     // CAP_SYS_ADMIN in the caller's user namespace, which has ids to give
}

// Current returns what the constructor did. The socket belongs to the caller; call it once.
func Current() Self {
	s := Self{
		Role: Role(C.sbx_role), Runner: int(C.sbx_peer),
		UID: int(C.sbx_euid), GID: int(C.sbx_egid), Privileged: C.sbx_privileged != 0,
	}
	if C.sbx_socket >= 0 {
		s.Socket = os.NewFile(uintptr(C.sbx_socket), "stage")
	}
	return s
}

// FreeProcess gives a process that has one thread the processors that the caller of sbx
// may use: what starts it may keep to some of them, or have given it others. Where its
// control group has come to allow none of those, it has what the kernel gave it instead.
func FreeProcess(pid int) error {
	if n := C.sbx_free(C.int(pid)); n < 0 && n != -C.int(syscall.EINVAL) {
		return fmt.Errorf("giving process %d the caller's processors: %w", pid, syscall.Errno(-n))
	}
	return nil
}

// Free gives this process the processors that the caller may use: a fencing sbx keeps to
// half of them while it starts. What is not given is only slower. The Go runtime, which was
// sized by that half, follows within a second.
func Free() {
	for range 2 { // those that are made meanwhile are like the thread that makes them
		threads, _ := os.ReadDir("/proc/self/task")
		for _, t := range threads {
			if thread, err := strconv.Atoi(t.Name()); err == nil {
				C.sbx_free(C.int(thread))
			}
		}
	}
}

// IDMap opens a user namespace that shows the file owner uid:gid as kuid:kgid,
// for mount_setattr(2). It needs CAP_SETUID and CAP_SETGID over all four.
func IDMap(uid, gid, kuid, kgid uint32) (*os.File, error) {
	fd := C.sbx_idmap_userns(C.uint(uid), C.uint(gid), C.uint(kuid), C.uint(kgid))
	if fd < 0 {
		return nil, syscall.Errno(-fd)
	}
	return os.NewFile(uintptr(fd), "idmap"), nil
}
