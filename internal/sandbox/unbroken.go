//go:build !sbxbreak

package sandbox

// The places where a binary of the tests breaks the sandbox on purpose (broken.go).

func brokenEnv() []string     { return nil }
func mayGainPrivileges() bool { return false }
