package sandbox

import (
	"fmt"
	"path"
	"slices"
	"strconv"
	"strings"
)

// Cache is a directory of the host that is kept for one profile and project.
type Cache struct{ Source, Target string }

// File is a small file of the private home directory; Path is relative to it.
type File struct{ Path, Content string }

// LayoutRequest is what a run wants of the mount tree.
type LayoutRequest struct {
	UID, GID uint32 // what the command sees
	User     string
	Shell    string
	Hostname string
	Paths    Paths    // the working directory, and what else was asked for
	Resolver string   // address of the resolver inside
	Bundle   string   // path inside of the certificate bundle
	Caches   []Cache  // writable
	Sockets  []string // of the host, to connect to
	Outbox   string   // directory of the host for what the command leaves as artifacts
	Hidden   []string // the supervisor's own directories, masked where they would be visible
	Files    []File   // client configuration for the private home directory
}

// bundlePaths are where systems keep their certificate bundle, below /etc.
var bundlePaths = []string{
	"ssl/certs/ca-certificates.crt", "ssl/cert.pem", "ssl/ca-bundle.pem",
	"pki/tls/certs/ca-bundle.crt", "pki/tls/cert.pem", "pki/ca-trust/extracted/pem/tls-ca-bundle.pem",
}

// systemOnly are directories that no project is in or around.
var systemOnly = []string{
	"/proc", "/sys", "/dev", "/run", "/etc", "/boot", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/usr/bin", "/usr/sbin", "/usr/lib",
	"/usr/share", "/usr/libexec", "/usr/include", "/var/lib/dpkg", "/var/lib/apt",
}

// shared are directories of which only a part can be a project.
var shared = map[string]bool{"/home": true, "/tmp": true, "/var/tmp": true, "/opt": true, "/srv": true, "/mnt": true, "/media": true}

// CheckWorkdir refuses working directories that would give away too much: /, the
// home directory or what lies above it, unless they are read-only, and the
// sandbox's own directories.
func CheckWorkdir(f Facts, readOnly bool) error {
	for _, own := range systemOnly {
		if Within(f.Workdir, own) || Within(own, f.Workdir) && f.Workdir != "/" || shared[f.Workdir] && !readOnly {
			return &Refusal{
				What: fmt.Sprintf("working directory %s belongs to the system", f.Workdir),
				Next: "start sbx in a project directory, or name one with -C DIR",
			}
		}
	}
	if !readOnly && f.holdsHome(f.Workdir) {
		return &Refusal{
			What: fmt.Sprintf("working directory %s is / or holds the home directory: everything in it would be writable by the command", f.Workdir),
			Next: "start sbx in a project directory, name one with -C DIR, or use --ro to run without any of it",
		}
	}
	return nil
}

// holdsHome reports whether a path is the home directory or above it.
func (f Facts) holdsHome(p string) bool {
	for _, home := range []string{f.HomeReal, f.Home, f.Account} {
		if home != "" && Within(home, p) {
			return true
		}
	}
	return false
}

// tooWideToShow reports whether a directory is more than somebody's project.
func tooWideToShow(dir string, f Facts) bool {
	return f.holdsHome(dir) || shared[dir] || inMachinery(dir) || CheckWorkdir(Facts{Workdir: dir}, false) != nil
}

// Layout lists the mount tree of a run, in the order in which it is built. It is pure.
func Layout(f Facts, r LayoutRequest) []Entry {
	tree := systemEntries(f)
	tree = append(tree, Entry{Kind: Etc, Source: "/etc", Target: "/etc", Files: etcFiles(f, r)})
	tree = append(tree, Entry{Kind: Dev, Target: "/dev"},
		Entry{Kind: Tmpfs, Target: "/tmp", Mode: 0o1777},
		Entry{Kind: Tmpfs, Target: "/var/tmp", Mode: 0o1777},
		Entry{Kind: Symlink, Source: "/run", Target: "/var/run"},
		Entry{Kind: Tmpfs, Target: f.Home, Mode: 0o700, Owned: true})
	for _, file := range r.Files {
		tree = append(tree, Entry{Kind: Text, Source: file.Content, Target: path.Join(f.Home, file.Path)})
	}
	for _, t := range f.ToolRoots {
		tree = append(tree, Entry{Kind: Bind, Source: t.Source, Target: t.Target})
	}
	for _, c := range f.Credentials {
		tree = append(tree, Entry{Kind: Mask, Target: c})
	}
	for _, c := range r.Caches {
		tree = append(tree, Entry{Kind: Bind, Source: c.Source, Target: c.Target, Writable: true, Owned: true})
	}
	if r.Outbox != "" {
		tree = append(tree, Entry{Kind: Bind, Source: r.Outbox, Target: OutboxPath, Writable: true})
	}
	tree = append(tree, pathEntries(f, r)...)
	tree = append(tree, linkEntries(r.Paths, tree)...)
	for _, s := range r.Sockets {
		tree = append(tree, Entry{Kind: Socket, Source: s, Target: s})
	}
	return append(tree, maskEntries(r)...)
}

// OutboxPath is where the command leaves what is to be kept of a run.
const OutboxPath = "/run/artifacts"

func systemEntries(f Facts) (tree []Entry) {
	for _, t := range f.Top {
		if t.Link != "" {
			tree = append(tree, Entry{Kind: Symlink, Source: t.Link, Target: "/" + t.Name})
			continue
		}
		tree = append(tree, Entry{Kind: Bind, Source: "/" + t.Name, Target: "/" + t.Name})
	}
	for _, p := range f.System {
		tree = append(tree, Entry{Kind: Bind, Source: p.Source, Target: p.Target})
	}
	return tree
}

// pathEntries put the project, its repository and what else was asked for where they
// are outside, and what is protected there: what is in a directory after the directory,
// which would cover it.
func pathEntries(f Facts, r LayoutRequest) []Entry {
	var tree []Entry
	add := func(p string, access Access) {
		tree = append(tree, Entry{Kind: Bind, Source: p, Target: p, Writable: access == Writable, Owned: true})
	}
	for _, s := range r.Paths.Shown {
		if s.Access != Hidden {
			add(s.Real, s.Access)
		}
	}
	if !f.holdsHome(f.Workdir) { // read-only, it shows nothing of either
		add(f.Workdir, r.Paths.workdirAccess())
		for _, p := range append([]string{f.Repository.Top}, f.Repository.GitDirs...) {
			if _, shown := r.Paths.access(p, false); p != "" && !shown {
				add(p, ReadOnly)
			}
		}
	}
	for _, p := range f.Protected {
		tree = append(tree, protect(p))
	}
	slices.SortStableFunc(tree, func(a, b Entry) int { return strings.Compare(a.Target, b.Target) })
	return tree
}

func protect(p Protected) Entry {
	if p.Private {
		return Entry{Kind: Tmpfs, Target: p.Path, Mode: 0o755, Owned: true}
	}
	return Entry{Kind: Bind, Source: p.Path, Target: p.Path, Owned: true, Writable: p.Pin}
}

// linkEntries make the names by which paths were asked for, where they are links that
// do not show.
func linkEntries(p Paths, tree []Entry) (out []Entry) {
	for _, s := range p.Shown {
		shows := slices.ContainsFunc(tree, func(e Entry) bool { return e.Kind == Bind && Within(s.Path, e.Target) })
		if s.Path != s.Real && s.Access != Hidden && !shows {
			out = append(out, Entry{Kind: Symlink, Source: s.Real, Target: s.Path})
		}
	}
	return out
}

// maskEntries hide what was asked to be hidden, and what is the supervisor's own.
func maskEntries(r LayoutRequest) (out []Entry) {
	for _, h := range r.Hidden {
		out = append(out, Entry{Kind: Mask, Target: h})
	}
	for _, s := range r.Paths.Shown {
		if s.Access == Hidden {
			out = append(out, Entry{Kind: Mask, Target: s.Real})
		}
	}
	return out
}

// Workdir is where the command starts inside.
func Workdir(f Facts) string {
	switch {
	case !f.holdsHome(f.Workdir):
		return f.Workdir
	case f.Workdir == "/":
		return "/"
	}
	return f.Home
}

func etcFiles(f Facts, r LayoutRequest) map[string]string {
	files := map[string]string{
		"resolv.conf":   "nameserver " + r.Resolver + "\noptions ndots:0 edns0\n",
		"hostname":      r.Hostname + "\n",
		"hosts":         "127.0.0.1\tlocalhost\n::1\tlocalhost ip6-localhost ip6-loopback\n127.0.0.1\t" + r.Hostname + "\n::1\t" + r.Hostname + "\n",
		"passwd":        passwdLine(r, f.Home) + f.Passwd,
		"group":         r.User + ":x:" + strconv.Itoa(int(r.GID)) + ":\n" + f.Group,
		"nsswitch.conf": nsswitch(f.Nsswitch),
		// apt has no variable for it: a refusal is final.
		"apt/apt.conf.d/99sbx": "Acquire::Retries \"0\";\n",
	}
	for _, p := range bundlePaths {
		files[p] = "-> " + r.Bundle
	}
	return files
}

// passwdLine comes first, so that it wins for the command's own uid.
func passwdLine(r LayoutRequest, home string) string {
	return fmt.Sprintf("%s:x:%d:%d::%s:%s\n", r.User, r.UID, r.GID, home, r.Shell)
}

// nsswitch keeps the host's file but for hosts: a name must not be asked of a
// daemon of the host, only of the sandbox's resolver.
func nsswitch(host string) string {
	if host == "" {
		host = "passwd: files\ngroup: files\n"
	}
	var out strings.Builder
	out.WriteString("hosts: files dns\n")
	for line := range strings.Lines(host) {
		if !strings.HasPrefix(strings.TrimSpace(line), "hosts:") {
			out.WriteString(line)
		}
	}
	return out.String()
}
