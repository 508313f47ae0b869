package sandbox

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"strings"

	"golang.org/x/sys/unix"
)

// planHead is struct plan_head of stage/init.c.
type planHead struct {
	UID, GID     uint32
	TTY, Null    uint32
	Rows, Cols   uint32
	Argc, Envc   uint32
	Text, Filter uint32
	ProbePort    uint32
	ProbeV4      [4]byte
	ProbeV6      [16]byte
	Nonce        [32]byte
	WaitChildren uint32
	Landlock     uint32
	Writable     uint32
	Unanswered   uint32    // errno
	Limits       [4]uint64 // in the order of init.c
}

// errNUL refuses what C strings cannot carry.
var errNUL = errors.New("contains a NUL byte")

// encodePlan lays the plan out as the init reads it: head, strings, seccomp program.
func encodePlan(s Spec, filter []byte, unanswered unix.Errno) ([]byte, error) {
	var text []byte
	paths := writable(s.Tree)
	for _, list := range [][]string{{s.Workdir}, s.Argv, s.Env, paths} {
		for _, item := range list {
			if strings.IndexByte(item, 0) >= 0 {
				return nil, fmt.Errorf("encoding %.40q for the command: %w", item, errNUL)
			}
			text = append(append(text, item...), 0)
		}
	}
	if len(s.Argv) == 0 || len(filter) == 0 || len(s.Probe.Nonce) != 32 {
		return nil, errors.New("encoding the init's plan: no command, no seccomp filter or no probe")
	}
	head := planHead{
		UID: s.UID, GID: s.GID, TTY: ttyBits(s.Stdio), Null: bits(s.Stdio.Null, 0),
		Rows: uint32(s.Stdio.Rows), Cols: uint32(s.Stdio.Cols),
		Argc: uint32(len(s.Argv)), Envc: uint32(len(s.Env)), //nolint:gosec // bounded by the frame
		Text: uint32(len(text)), Filter: uint32(len(filter)), //nolint:gosec // bounded by the frame
		ProbePort: uint32(s.Probe.Port), ProbeV4: s.Probe.V4, ProbeV6: s.Probe.V6,
		Landlock: s.Landlock, Writable: uint32(len(paths)), //nolint:gosec // bounded by the frame
		Unanswered: uint32(unanswered), //nolint:gosec // an errno
		Limits:     [4]uint64{s.Limits.Files, s.Limits.FileSize, s.Limits.Processes, s.Limits.Data},
	}
	copy(head.Nonce[:], s.Probe.Nonce)
	if s.WaitChildren {
		head.WaitChildren = 1
	}
	var out bytes.Buffer
	if err := binary.Write(&out, binary.NativeEndian, head); err != nil {
		return nil, fmt.Errorf("encoding the init's plan: %w", err)
	}
	out.Write(text)
	out.Write(filter)
	return out.Bytes(), nil
}

func ttyBits(s Stdio) uint32 {
	if !s.HasTTY() {
		return 0
	}
	return 1 | bits(s.TTY, 1)
}

func bits(set [3]bool, shift int) (out uint32) {
	for i, on := range set {
		if on {
			out |= 1 << (i + shift)
		}
	}
	return out
}
