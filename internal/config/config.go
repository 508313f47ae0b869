// Package config reads the operator's configuration: /etc/sbx/config.toml, then
// $XDG_CONFIG_HOME/sbx/config.toml, never a file of the project. Every value
// knows where it was set.
package config

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/fractalboxdev/sbx/internal/class"
)

// SystemFile is the machine's configuration; the user's is read after it.
const SystemFile = "/etc/sbx/config.toml"

// SourceDefault is the source of a value that no file sets.
const SourceDefault = "default"

// DefaultGrace is the time between the polite signal and SIGKILL.
const DefaultGrace = 5 * time.Second

// DefaultWait is how long a run waits for a slot, where it waits at all.
const DefaultWait = 10 * time.Minute

// Value is a setting with the place that set it, as in "/etc/sbx/config.toml:3".
type Value[T any] struct {
	V      T
	Source string
}

// Config is the operator's configuration. Make it with Load.
type Config struct {
	StateDir     Value[string]        // "" leaves the choice to the caller
	Timeout      Value[time.Duration] // 0: none
	Grace        Value[time.Duration]
	Quiet        Value[bool] // no live denial lines
	Summary      Value[bool] // the table at the end
	FailOnDenial Value[bool]
	ClientEnv    Value[bool] // npm_config_*, GOPROXY, PIP_* of the caller name registries
	EnvAllow     Value[[]string]
	Signers      Value[string]              // allowed_signers: who may approve; "" for nobody
	Advisory     Value[string]              // signed file on which versions may be relied on; "" for none
	CanaryFirst  Value[bool]                // every run needs a fresh pass of this deployment
	Registries   map[string]Value[[]string] // ecosystem → base URLs, of npm and yarn also "@scope=URL"
	FileHosts    map[string]Value[[]string] // python → base URLs of the files that an index points at
	Checksums    map[string]Value[[]string] // go → base URLs of the checksum database
	DefaultClass Value[class.Name]          // of runs whose profiles name none
	Classes      map[class.Name]Class       // every class, set or not
	Ceiling      Value[int]                 // runs at a time, of all classes together
	Queue        Value[bool]                // wait where a class's pool is full
	Wait         Value[time.Duration]       // at most; 0: without end
	Files        []string                   // what was read, in order
}

// Ecosystems returns the names that [registries] may use.
func Ecosystems() []string { return []string{"debian", "go", "npm", "python", "yarn"} }

// Options say where to look. Both paths may be missing files.
type Options struct {
	SystemFile string // SystemFile unless a test says otherwise
	UserFile   string // see UserFile; "" for none
	UID        int    // the caller: files must be its own or root's
	RootUID    int    // the uid that root's files show, 0 but in some user namespaces
}

// UserFile returns the path of the user's configuration, "" when neither
// XDG_CONFIG_HOME nor HOME is an absolute path.
func UserFile(getenv func(string) string) string {
	if dir := getenv("XDG_CONFIG_HOME"); filepath.IsAbs(dir) {
		return filepath.Join(dir, "sbx", "config.toml")
	}
	if home := getenv("HOME"); filepath.IsAbs(home) {
		return filepath.Join(home, ".config", "sbx", "config.toml")
	}
	return ""
}

// Load reads the files that exist. A later file wins, setting by setting: its
// lists replace and are not joined. Anything unknown or wrong is an error that
// names file, line and, for a name, the nearest one.
func Load(opt Options) (Config, error) {
	c := defaults()
	for _, path := range []string{opt.SystemFile, opt.UserFile} {
		if path == "" {
			continue
		}
		text, found, err := readFile(path, opt)
		if err != nil {
			return Config{}, err
		}
		if !found {
			continue
		}
		if err := c.apply(path, text); err != nil {
			return Config{}, err
		}
		c.Files = append(c.Files, path)
	}
	return c, errors.Join(c.checkTogether(), c.checkCeiling())
}

// checkTogether refuses files and checksums of an ecosystem whose index is left
// to the client: the two would belong to different registries.
func (c Config) checkTogether() error {
	for table, values := range map[string]map[string]Value[[]string]{"file_hosts": c.FileHosts, "checksums": c.Checksums} {
		for name, v := range values {
			if len(v.V) > 0 && len(c.Registries[name].V) == 0 {
				return fmt.Errorf("reading configuration: %s sets %s.%s, which needs registries.%s as well", v.Source, table, name, name)
			}
		}
	}
	return nil
}

func defaults() Config {
	return Config{
		StateDir:     Value[string]{"", SourceDefault},
		Timeout:      Value[time.Duration]{0, SourceDefault},
		Grace:        Value[time.Duration]{DefaultGrace, SourceDefault},
		Quiet:        Value[bool]{false, SourceDefault},
		Summary:      Value[bool]{true, SourceDefault},
		FailOnDenial: Value[bool]{false, SourceDefault},
		ClientEnv:    Value[bool]{false, SourceDefault},
		EnvAllow:     Value[[]string]{nil, SourceDefault},
		Signers:      Value[string]{"", SourceDefault},
		Advisory:     Value[string]{"", SourceDefault},
		CanaryFirst:  Value[bool]{false, SourceDefault},
		Registries:   map[string]Value[[]string]{},
		FileHosts:    map[string]Value[[]string]{},
		Checksums:    map[string]Value[[]string]{},
		DefaultClass: Value[class.Name]{class.Default, SourceDefault},
		Classes:      defaultClasses(),
		Ceiling:      Value[int]{DefaultCeiling, SourceDefault},
		Queue:        Value[bool]{false, SourceDefault},
		Wait:         Value[time.Duration]{DefaultWait, SourceDefault},
	}
}

// Row is one line of "sbx config show".
type Row struct {
	Key    string `json:"key"`
	Value  string `json:"value"` // as TOML
	Source string `json:"source"`
}

// Explain lists every setting, sorted by key.
func (c Config) Explain() []Row {
	rows := []Row{
		{"state_dir", strconv.Quote(c.StateDir.V), c.StateDir.Source},
		{"allowed_signers", strconv.Quote(c.Signers.V), c.Signers.Source},
		{"advisory", strconv.Quote(c.Advisory.V), c.Advisory.Source},
		{"require_canary", strconv.FormatBool(c.CanaryFirst.V), c.CanaryFirst.Source},
		{"timeout", strconv.Quote(c.Timeout.V.String()), c.Timeout.Source},
		{"grace", strconv.Quote(c.Grace.V.String()), c.Grace.Source},
		{"quiet", strconv.FormatBool(c.Quiet.V), c.Quiet.Source},
		{"summary", strconv.FormatBool(c.Summary.V), c.Summary.Source},
		{"fail_on_denial", strconv.FormatBool(c.FailOnDenial.V), c.FailOnDenial.Source},
		{"client_env", strconv.FormatBool(c.ClientEnv.V), c.ClientEnv.Source},
		{"env.allow", list(c.EnvAllow.V), c.EnvAllow.Source},
		{"ceiling", strconv.Itoa(c.Ceiling.V), c.Ceiling.Source},
		{"queue", strconv.FormatBool(c.Queue.V), c.Queue.Source},
		{"wait", strconv.Quote(c.Wait.V.String()), c.Wait.Source},
		{"default_class", strconv.Quote(string(c.DefaultClass.V)), c.DefaultClass.Source},
	}
	rows = append(rows, tableRows("registries", c.Registries)...)
	rows = append(rows, tableRows("file_hosts", c.FileHosts)...)
	rows = append(rows, tableRows("checksums", c.Checksums)...)
	rows = append(rows, classRows(c.Classes)...)
	rows = append(rows, c.capRows()...)
	slices.SortFunc(rows, func(a, b Row) int { return cmp.Compare(a.Key, b.Key) })
	return rows
}

func tableRows(table string, values map[string]Value[[]string]) []Row {
	var rows []Row
	for _, name := range slices.Sorted(maps.Keys(values)) {
		rows = append(rows, Row{table + "." + name, list(values[name].V), values[name].Source})
	}
	return rows
}

func list(items []string) string {
	quoted := make([]string, len(items))
	for i, item := range items {
		quoted[i] = strconv.Quote(item)
	}
	return "[" + strings.Join(quoted, ", ") + "]"
}

// FileError is a fault of a configuration file.
type FileError struct {
	File string
	Line int // 1-based; 0 when unknown
	What string
}

func (e *FileError) Error() string {
	if e.Line == 0 {
		return fmt.Sprintf("reading %s: %s", e.File, e.What)
	}
	return fmt.Sprintf("reading %s:%d: %s", e.File, e.Line, e.What)
}
