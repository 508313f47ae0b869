package config

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/fractalboxdev/sbx/internal/class"
	"github.com/fractalboxdev/sbx/internal/profile"
)

// Class is what the operator says of one class. Zero is no bound.
type Class struct {
	Cap       Value[int]   // runs at a time
	Memory    Value[int64] // bytes
	Processes Value[int]
	CPU       Value[int] // thousandths of a processor
	Files     Value[int]
	Disk      Value[int64] // bytes
	Time      Value[time.Duration]
	Require   Value[[]string] // limits without which nothing runs
}

// classTable is [class.NAME] as written.
type classTable struct {
	Cap       *int      `toml:"cap"`
	Memory    *string   `toml:"memory"`
	Processes *int      `toml:"processes"`
	CPU       *float64  `toml:"cpu"`
	Files     *int      `toml:"files"`
	Disk      *string   `toml:"disk"`
	Time      *string   `toml:"time"`
	Require   *[]string `toml:"require"`
}

func defaultClasses() map[class.Name]Class {
	out := map[class.Name]Class{}
	for _, name := range class.Names() {
		out[class.Name(name)] = Class{
			Cap: Value[int]{0, SourceDefault}, Memory: Value[int64]{0, SourceDefault}, Processes: Value[int]{class.DefaultProcesses, SourceDefault},
			CPU: Value[int]{0, SourceDefault}, Files: Value[int]{0, SourceDefault}, Disk: Value[int64]{0, SourceDefault},
			Time: Value[time.Duration]{0, SourceDefault}, Require: Value[[]string]{nil, SourceDefault},
		}
	}
	return out
}

// Limits returns the class's bounds.
func (c Class) Limits() class.Limits {
	return class.Limits{
		Memory: c.Memory.V, Processes: c.Processes.V, CPU: c.CPU.V, Files: c.Files.V, Disk: c.Disk.V, Time: c.Time.V,
	}
}

// Definition returns a class for those who know nothing of configuration.
func (c Config) Definition(name class.Name) class.Definition {
	of := c.Classes[name]
	d := class.Definition{Name: name, Cap: of.Cap.V, Limits: of.Limits(), Sources: map[class.Limit]string{}}
	for _, l := range class.LimitNames() {
		d.Sources[class.Limit(l)] = of.Source(class.Limit(l))
	}
	for _, l := range of.Require.V {
		d.Require = append(d.Require, class.Limit(l))
	}
	return d
}

// Source says what set a limit of the class.
func (c Class) Source(l class.Limit) string {
	switch l {
	case class.Memory:
		return c.Memory.Source
	case class.Processes:
		return c.Processes.Source
	case class.CPU:
		return c.CPU.Source
	case class.Files:
		return c.Files.Source
	case class.Disk:
		return c.Disk.Source
	case class.Time:
		return c.Time.Source
	}
	return SourceDefault
}

func (c *Config) setClasses(f file, src source) error {
	if f.DefaultClass != nil {
		if err := checkName("default_class", *f.DefaultClass, class.Names()); err != nil {
			return src.fault([]string{"default_class"}, err.Error())
		}
		c.DefaultClass = Value[class.Name]{class.Name(*f.DefaultClass), src.at("default_class")}
	}
	for name, table := range f.Class {
		if err := checkName("class", name, class.Names()); err != nil {
			return src.fault([]string{"class", name}, err.Error())
		}
		set := c.Classes[class.Name(name)]
		if err := set.apply(table, classSource{src, name}); err != nil {
			return err
		}
		c.Classes[class.Name(name)] = set
	}
	return nil
}

// checkName refuses a name that is none of the known ones.
func checkName(what, name string, known []string) error {
	if slices.Contains(known, name) {
		return nil
	}
	if near := profile.Nearest(name, known); near != "" {
		return fmt.Errorf("%s: there is no %q (did you mean %s?)", what, name, near)
	}
	return fmt.Errorf("%s: there is no %q (known: %s)", what, name, strings.Join(known, ", "))
}

// classSource makes sources and faults of one class's table.
type classSource struct {
	source
	name string
}

func (s classSource) at(key string) string { return s.source.at("class", s.name, key) }

func (s classSource) fault(key, what string) error {
	return s.source.fault([]string{"class", s.name, key}, fmt.Sprintf("class.%s.%s: %s", s.name, key, what))
}

func (c *Class) apply(t classTable, src classSource) error {
	for _, it := range []struct {
		key  string
		from *int
		into *Value[int]
	}{{"cap", t.Cap, &c.Cap}, {"processes", t.Processes, &c.Processes}, {"files", t.Files, &c.Files}} {
		if it.from != nil && *it.from < 0 {
			return src.fault(it.key, fmt.Sprintf("%d is no number from 1, or 0 for no bound", *it.from))
		}
		set(it.into, it.from, src.at(it.key))
	}
	for _, it := range []struct {
		key  string
		from *string
		into *Value[int64]
	}{{"memory", t.Memory, &c.Memory}, {"disk", t.Disk, &c.Disk}} {
		if it.from == nil {
			continue
		}
		n, err := class.ParseSize(*it.from)
		if *it.from == "0" {
			n, err = 0, nil
		}
		if err != nil {
			return src.fault(it.key, err.Error())
		}
		*it.into = Value[int64]{n, src.at(it.key)}
	}
	return c.applyRest(t, src)
}

func (c *Class) applyRest(t classTable, src classSource) error {
	if t.CPU != nil {
		n, err := class.CPUOf(*t.CPU)
		if *t.CPU == 0 {
			n, err = 0, nil
		}
		if err != nil {
			return src.fault("cpu", err.Error())
		}
		c.CPU = Value[int]{n, src.at("cpu")}
	}
	if t.Time != nil {
		d, err := time.ParseDuration(*t.Time)
		if err != nil || d < 0 {
			return src.fault("time", fmt.Sprintf("%q is no duration such as \"90s\" or \"30m\"", *t.Time))
		}
		c.Time = Value[time.Duration]{d, src.at("time")}
	}
	if t.Require == nil {
		return nil
	}
	for _, name := range *t.Require {
		if err := checkName("require", name, class.LimitNames()); err != nil {
			return src.fault("require", err.Error())
		}
	}
	c.Require = Value[[]string]{*t.Require, src.at("require")}
	return nil
}

// classRows lists what is set of the classes.
func classRows(classes map[class.Name]Class) []Row {
	var rows []Row
	for _, name := range slices.Sorted(maps.Keys(classes)) {
		c, table := classes[name], "class."+string(name)+"."
		if c.Cap.Source != SourceDefault {
			rows = append(rows, Row{table + "cap", strconv.Itoa(c.Cap.V), c.Cap.Source})
		}
		for _, l := range class.LimitNames() {
			text, source := c.Limits().Text(class.Limit(l)), c.Source(class.Limit(l))
			if text != "" || source != SourceDefault {
				rows = append(rows, Row{table + l, tomlText(class.Limit(l), text), source})
			}
		}
		if len(c.Require.V) > 0 {
			rows = append(rows, Row{table + "require", list(c.Require.V), c.Require.Source})
		}
	}
	return rows
}

func tomlText(l class.Limit, text string) string {
	if text == "" {
		text = "0"
	}
	if l == class.Memory || l == class.Disk || l == class.Time {
		return strconv.Quote(text)
	}
	return text
}
