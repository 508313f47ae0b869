//go:build !sbxbreak

package fence

import (
	"os"

	"github.com/fractalboxdev/sbx/internal/sandbox"
)

// Further places where a binary of the tests breaks the floor (broken_walls.go).

func brokenSpec(spec sandbox.Spec) (sandbox.Spec, error) { return spec, nil }
func brokenRules() error                                 { return nil }
func brokenAnswers(*os.File) (replaced bool)             { return false }
