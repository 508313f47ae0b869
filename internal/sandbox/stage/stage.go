// Package stage holds what runs before the Go runtime: the constructor that
// splits a fencing sbx into supervisor and runner, and the sandbox's PID 1.
package stage

// #cgo CFLAGS: -O2 -Wall -Wextra
// #cgo sbxbreak CFLAGS: -DSBX_BREAKABLE
// #include "stage.h"
import "C"

import (
	"os"
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

// IDMap opens a user namespace that shows the file owner uid:gid as kuid:kgid,
// for mount_setattr(2). It needs CAP_SETUID and CAP_SETGID over all four.
func IDMap(uid, gid, kuid, kgid uint32) (*os.File, error) {
	fd := C.sbx_idmap_userns(C.uint(uid), C.uint(gid), C.uint(kuid), C.uint(kgid))
	if fd < 0 {
		return nil, syscall.Errno(-fd)
	}
	return os.NewFile(uintptr(fd), "idmap"), nil
}
