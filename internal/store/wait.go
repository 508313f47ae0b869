//go:build !sbxbreak

package store

import "time"

// DefaultWait is how long a transaction waits for those of other processes: longer than
// hundreds of them take together on a machine that is busy with other things.
const DefaultWait = 30 * time.Second
