package notify

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

func sockaddr(family byte, path string) (a address) {
	a.bytes[0] = family
	a.size = 2 + copy(a.bytes[2:], path)
	return a
}

// TestBypass60_PathsAreReadAsTheKernelDoes: what the kernel would look up is a path,
// and nothing else is.
func TestBypass60_PathsAreReadAsTheKernelDoes(t *testing.T) {
	long := strings.Repeat("x", 108)
	for _, c := range []struct {
		name    string
		address address
		want    string
		ok      bool
	}{
		{"a path", sockaddr(unix.AF_UNIX, "a/b\x00"), "a/b", true},
		{"without an end", sockaddr(unix.AF_UNIX, "a/b"), "a/b", true},
		{"with rubbish behind its end", sockaddr(unix.AF_UNIX, "a\x00b"), "a", true},
		{"the longest", sockaddr(unix.AF_UNIX, long), long, true},
		{"longer", sockaddr(unix.AF_UNIX, long+"x"), "", false},
		{"abstract", sockaddr(unix.AF_UNIX, "\x00a"), "", false},
		{"unnamed", sockaddr(unix.AF_UNIX, ""), "", false},
		{"of another family", sockaddr(unix.AF_INET, "a"), "", false},
		{"no family", address{size: 1}, "", false},
		{"nothing", address{}, "", false},
	} {
		if got, ok := c.address.path(); got != c.want || ok != c.ok {
			t.Errorf("%s: %q, %v, want %q, %v", c.name, got, ok, c.want, c.ok)
		}
	}
}

func TestOwnDescriptorsArePathsOfTheCaller(t *testing.T) {
	for _, c := range []struct {
		path string
		fd   uint64
		rest string
		ok   bool
	}{
		{"/proc/self/fd/7", 7, "", true},
		{"/proc/self/fd/7/", 7, "", true},
		{"/proc/thread-self/fd/12//etc/x", 12, "etc/x", true},
		{"/dev/fd/0/a/b", 0, "a/b", true},
		{"/proc/self/fd/", 0, "", false},
		{"/proc/self/fd/x", 0, "", false},
		{"/proc/self/fd/-1", 0, "", false},
		{"/proc/self/fd/99999999999", 0, "", false},
		{"/proc/1/fd/7", 0, "", false},
		{"proc/self/fd/7", 0, "", false},
	} {
		if fd, rest, ok := ownDescriptor(c.path); ok != c.ok || ok && (fd != c.fd || rest != c.rest) {
			t.Errorf("%s: %d, %q, %v", c.path, fd, rest, ok)
		}
	}
}

// node makes a socket's file and opens it.
func node(t *testing.T, path string) int {
	t.Helper()
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	l.SetUnlinkOnClose(false)
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	return opened(t, path)
}

func opened(t *testing.T, path string) int {
	t.Helper()
	fd, err := unix.Open(path, unix.O_PATH|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	return fd
}

// TestFilesAreKnownWhileTheyAreHeld: by any of their names, until there are too many;
// then those go that nobody can reach or nobody used.
func TestFilesAreKnownWhileTheyAreHeld(t *testing.T) {
	dir := t.TempDir()
	const most = 64
	m := made{most: most}
	at := func(i int) string { return filepath.Join(dir, fmt.Sprint(i)) }
	known := func(path string) bool {
		fd := opened(t, path)
		defer unix.Close(fd)
		return m.has(fd)
	}
	for i := range most {
		m.keep(node(t, at(i)))
	}
	m.keep(opened(t, at(3))) // listens again
	if err := os.Rename(at(0), at(-1)); err != nil {
		t.Fatal(err)
	}
	if !known(at(-1)) {
		t.Error("a file is not known by its new name")
	}
	if _ = unix.Close(node(t, at(0))); known(at(0)) {
		t.Error("another file is known by an old name")
	}
	m.keep(node(t, at(most)))
	if known(at(1)) || !known(at(-1)) || !known(at(most)) || len(m.files) != most {
		t.Errorf("of %d files the wrong one was let go", len(m.files))
	}
	for i := 2; i < 12; i++ {
		if err := os.Remove(at(i)); err != nil {
			t.Fatal(err)
		}
	}
	m.keep(node(t, at(most+1)))
	if len(m.files) != most-10+1 || !known(at(12)) || !known(at(most+1)) {
		t.Errorf("%d files are held after ten were removed", len(m.files))
	}
	for _, f := range m.files {
		_ = unix.Close(f.fd)
	}
}

// TestCallersStatus: what is read of a process that waits, here of this one.
func TestCallersStatus(t *testing.T) {
	c := caller{pid: os.Getpid()}
	if got := status(c.pid, "Tgid"); got != fmt.Sprint(os.Getpid()) {
		t.Errorf("Tgid is %q", got)
	}
	if got := c.interruption(); got != 0 {
		t.Errorf("interrupted by %v", got)
	}
	if got := status(1<<30, "Tgid"); got != "" {
		t.Errorf("a process that cannot be has Tgid %q", got)
	}
}
