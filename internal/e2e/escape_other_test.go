//go:build !amd64

package e2e

// oldPrivilegeBitCalls are calls that only older architectures have.
func oldPrivilegeBitCalls(string, int) []attempt { return nil }

var foreignCalls []attempt
