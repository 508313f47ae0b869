package config

import (
	"fmt"
	"strconv"

	"github.com/fractalboxdev/sbx/internal/class"
)

// DefaultCeiling is how many runs go on at a time, of all classes together, where
// the operator says nothing.
const DefaultCeiling = 256

// mostByDefault is the most that a class gets whose cap nobody set.
const mostByDefault = 64

// maxCeiling is more than any machine can take, and little enough to be added up.
const maxCeiling = 100_000

func (c *Config) setPools(f file, src source) error {
	if f.Ceiling != nil && *f.Ceiling < len(class.Names()) {
		return src.fault([]string{"ceiling"}, fmt.Sprintf("ceiling = %d is less than one run of each class", *f.Ceiling))
	}
	if f.Ceiling != nil && *f.Ceiling > maxCeiling {
		return src.fault([]string{"ceiling"}, fmt.Sprintf("ceiling = %d is more than %d", *f.Ceiling, maxCeiling))
	}
	set(&c.Ceiling, f.Ceiling, src.at("ceiling"))
	set(&c.Queue, f.Queue, src.at("queue"))
	return nil
}

// Caps returns how many runs of each class go on at a time: what was set, and for the
// other classes equal shares of what that leaves below the ceiling, 64 at most.
func (c Config) Caps() map[class.Name]int {
	caps, left, unset := map[class.Name]int{}, c.Ceiling.V, 0
	for name, set := range c.Classes {
		if caps[name] = set.Cap.V; set.Cap.Source == SourceDefault {
			unset++
			continue
		}
		left -= set.Cap.V
	}
	for name, set := range c.Classes {
		if set.Cap.Source == SourceDefault {
			caps[name] = min(left/unset, mostByDefault)
		}
	}
	return caps
}

// checkCeiling refuses caps that together are more than the ceiling, and a ceiling that
// leaves nothing for a class without a cap.
func (c Config) checkCeiling() error {
	sum, source := 0, ""
	for name, limit := range c.Caps() {
		if set := c.Classes[name].Cap; set.Source != SourceDefault {
			source = set.Source
		}
		if limit < 1 && c.Classes[name].Cap.Source != SourceDefault {
			return fmt.Errorf("reading configuration: class.%s.cap is %d: a class has one run at a time at least (%s)", name, limit, source)
		}
		if limit < 1 || limit > c.Ceiling.V {
			return c.ceilingFault(source, fmt.Sprintf("the cap of class %s would be %d", name, limit))
		}
		sum += limit
	}
	if sum > c.Ceiling.V {
		return c.ceilingFault(source, fmt.Sprintf("the caps of the classes are %d together", sum))
	}
	return nil
}

func (c Config) ceilingFault(source, what string) error {
	if source == "" {
		source = c.Ceiling.Source
	}
	return fmt.Errorf("reading configuration: %s, and the ceiling is %d (%s; ceiling: %s)", what, c.Ceiling.V, source, c.Ceiling.Source)
}

// capRows lists the caps that nobody set.
func (c Config) capRows() []Row {
	var rows []Row
	for name, limit := range c.Caps() {
		if c.Classes[name].Cap.Source == SourceDefault {
			rows = append(rows, Row{"class." + string(name) + ".cap", strconv.Itoa(limit), SourceDefault})
		}
	}
	return rows
}
