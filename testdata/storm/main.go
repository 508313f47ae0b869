// Command storm runs many sbx at once, kills some of them at random moments, and
// afterwards checks from the records and from the machine that the fence kept its
// promises. See .ci/storm.
//
// To try something more, add an operation to the list in operations.go, and a check
// to the list in checks.go.
package main

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"time"
)

func main() {
	s := &storm{}
	flag.StringVar(&s.sbx, "sbx", "bin/sbx", "the binary")
	flag.DurationVar(&s.length, "time", 2*time.Minute, "how long new runs are begun")
	flag.IntVar(&s.workers, "workers", 200, "how many sbx at once")
	flag.Uint64Var(&s.seed, "seed", uint64(time.Now().UnixNano()), "of the random choices") //nolint:gosec // any number will do
	flag.Parse()
	if err := s.run(); err != nil {
		fmt.Fprintln(os.Stderr, "storm:", err)
		os.Exit(1)
	}
}

func (s *storm) run() (err error) {
	if s.sbx, err = filepath.Abs(s.sbx); err != nil {
		return err
	}
	if err := s.prepare(); err != nil {
		return err
	}
	fmt.Printf("storm of %s: %d sbx at once, seed %d, in %s\n", s.length, s.workers, s.seed, s.dir)
	s.blow()
	if err := s.settle(); err != nil {
		return err
	}
	s.summarise()
	failed := 0
	for _, c := range checks {
		problems := c.look(s)
		fmt.Printf("%-50s %s\n", c.name, verdict(problems))
		for i, p := range problems {
			if i == 10 {
				fmt.Printf("    and %d more\n", len(problems)-i)
				break
			}
			fmt.Println("   ", p)
		}
		failed += len(problems)
	}
	if failed > 0 {
		return fmt.Errorf("%d violations; everything is left in %s", failed, s.dir)
	}
	return os.RemoveAll(s.dir)
}

func verdict(problems []string) string {
	if len(problems) == 0 {
		return "held"
	}
	return fmt.Sprintf("VIOLATED %d times", len(problems))
}
