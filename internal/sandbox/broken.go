//go:build sbxbreak

package sandbox

import "os"

// brokenEnv tells the init which wall to leave out (stage/broken.h).
func brokenEnv() []string { return []string{"SBX_BREAK=" + os.Getenv("SBX_BREAK")} }

// mayGainPrivileges leaves out libcontainer's own no_new_privs, which cannot be taken back.
func mayGainPrivileges() bool { return os.Getenv("SBX_BREAK") == "privileges" }
