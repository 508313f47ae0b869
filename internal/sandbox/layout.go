package sandbox

import (
	"fmt"
	"path"
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
	ReadOnly bool     // the working directory is read-only
	Resolver string   // address of the resolver inside
	Bundle   string   // path inside of the certificate bundle
	Caches   []Cache  // writable
	Sockets  []string // of the host, to connect to
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
	if !readOnly && holdsHome(f) {
		return &Refusal{
			What: fmt.Sprintf("working directory %s is / or holds the home directory: everything in it would be writable by the command", f.Workdir),
			Next: "start sbx in a project directory, name one with -C DIR, or use --ro to run without any of it",
		}
	}
	return nil
}

func holdsHome(f Facts) bool {
	for _, home := range []string{f.HomeReal, f.Home, f.Account} {
		if home != "" && Within(home, f.Workdir) {
			return true
		}
	}
	return false
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
	for _, g := range f.GitDirs {
		tree = append(tree, Entry{Kind: Bind, Source: g, Target: g, Owned: true})
	}
	tree = append(tree, workdirEntries(f, r)...)
	for _, s := range r.Sockets {
		tree = append(tree, Entry{Kind: Socket, Source: s, Target: s})
	}
	return tree
}

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

// workdirEntries put the project where it is outside. A read-only directory that
// holds the home directory shows nothing of either.
func workdirEntries(f Facts, r LayoutRequest) []Entry {
	if holdsHome(f) {
		return nil
	}
	tree := []Entry{{Kind: Bind, Source: f.Workdir, Target: f.Workdir, Writable: !r.ReadOnly, Owned: true}}
	for _, p := range f.Protected {
		at := path.Join(f.Workdir, p.Path)
		tree = append(tree, Entry{
			Kind: Bind, Source: at, Target: at, Owned: true, Writable: p.Pin && !r.ReadOnly,
		})
	}
	for _, h := range r.Hidden {
		if Within(h, f.Workdir) {
			tree = append(tree, Entry{Kind: Mask, Target: h})
		}
	}
	return tree
}

// Workdir is where the command starts inside.
func Workdir(f Facts) string {
	switch {
	case !holdsHome(f):
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
		"hosts":         "127.0.0.1\tlocalhost\n::1\tlocalhost ip6-localhost ip6-loopback\n127.0.0.1\t" + r.Hostname + "\n",
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
