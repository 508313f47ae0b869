package sandbox

import (
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"
)

// Facts are what the host's file system says about one run. ReadFacts collects
// them; Layout decides what they mean.
type Facts struct {
	Top         []TopEntry  // system directories and links at /
	System      []Tool      // further system paths that exist
	Home        string      // as the caller names it, where it can be private
	HomeReal    string      // without symlinks
	Account     string      // the account's own home directory, whatever HOME says
	Workdir     string      // without symlinks
	ToolRoots   []Tool      // toolchains on PATH outside the system directories
	Credentials []string    // files below tool roots that may hold secrets, as they appear inside
	Protected   []Protected // what programs outside run or obey, below what is writable
	Repository  Repository  // what is shown of the repository around
	Passwd      string
	Group       string
	Nsswitch    string
}

// TopEntry is one entry of /. Link is empty for a directory.
type TopEntry struct{ Name, Link string }

// Tool is a toolchain's directory: where it lies and under which path PATH names it.
type Tool struct{ Source, Target string }

// Protected is an existing path that becomes read-only, or (Pin) only a mount point,
// so that it cannot be renamed away, or (Private) memory of the sandbox's own.
type Protected struct {
	Path    string // absolute
	Pin     bool
	Private bool
}

// Refusal says why no sandbox can be made of what was asked, and what to do.
type Refusal struct{ What, Next string }

// Error returns what was refused.
func (r *Refusal) Error() string { return r.What }

// FactsRequest names what to look at.
type FactsRequest struct {
	Home    string
	Account string // home directory of the account, "" if unknown
	Path    string // the caller's PATH
	Workdir string // absolute, without links
}

// systemTop are the directories of / that hold programs and their data.
var systemTop = map[string]bool{
	"bin": true, "sbin": true, "lib": true, "lib32": true, "lib64": true, "libx32": true, "usr": true, "opt": true,
}

// optionalSystem are paths outside those directories that programs read. Of /nix
// and /gnu only the stores: beside them lie the daemons' sockets.
var optionalSystem = []string{"/var/lib/dpkg", "/sys/devices/system/cpu", "/nix/store", "/gnu/store"}

// ReadFacts looks at the host. It follows no symlink below the working directory.
func ReadFacts(r FactsRequest) (Facts, error) {
	f := Facts{Home: privateHome(r.Home), Account: r.Account, Workdir: r.Workdir}
	var err error
	if f.HomeReal, err = filepath.EvalSymlinks(f.Home); err != nil {
		f.HomeReal = f.Home // a home that does not exist is private and empty inside all the same
	}
	if f.Top, err = readTop(); err != nil {
		return f, err
	}
	for _, p := range optionalSystem {
		if source, err := filepath.EvalSymlinks(p); err == nil {
			f.System = append(f.System, Tool{Source: source, Target: p})
		}
	}
	f.ToolRoots, f.Credentials = readTools(f, r.Path)
	f.Repository = readRepository(f)
	f.Passwd, f.Group, f.Nsswitch = readText("/etc/passwd"), readText("/etc/group"), readText("/etc/nsswitch.conf")
	return f, nil
}

// privateHome is where the private home directory lies: where the caller's is, but
// never over a directory that the system needs.
func privateHome(home string) string {
	home = path.Clean(home)
	if top := strings.TrimPrefix(home, "/"); path.IsAbs(home) && top != "" && !systemTop[top] && !occupied[top] {
		return home
	}
	return "/home/sbx"
}

// occupied are directories of / that the mount tree fills itself.
var occupied = map[string]bool{"dev": true, "etc": true, "proc": true, "run": true, "sys": true, "tmp": true, "var": true, "home": true}

func readTop() ([]TopEntry, error) {
	entries, err := os.ReadDir("/")
	if err != nil {
		return nil, fmt.Errorf("reading /: %w", err)
	}
	var out []TopEntry
	for _, e := range entries {
		if !systemTop[e.Name()] {
			continue
		}
		top := TopEntry{Name: e.Name()}
		if e.Type()&fs.ModeSymlink != 0 {
			if top.Link, err = os.Readlink("/" + e.Name()); err != nil {
				return nil, fmt.Errorf("reading the link /%s: %w", e.Name(), err)
			}
		}
		out = append(out, top)
	}
	return out, nil
}

// readText returns a small system file, or nothing where there is none.
func readText(name string) string {
	b, err := os.ReadFile(name)
	if err != nil {
		return ""
	}
	return string(b)
}

func isDirectory(name string) bool {
	info, err := os.Stat(name)
	return err == nil && info.IsDir()
}

// Within reports whether p is dir or lies below it. Both must be clean and absolute.
func Within(p, dir string) bool {
	return p == dir || dir == "/" || strings.HasPrefix(p, dir+"/")
}
