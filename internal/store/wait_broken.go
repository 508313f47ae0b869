//go:build sbxbreak

package store

import "time"

// DefaultWait is short in the binary of the tests, which lock the store on purpose.
const DefaultWait = 3 * time.Second
