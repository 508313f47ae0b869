package sbxtest

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"golang.org/x/sys/unix"
)

// Lab is one private world: a network namespace to run commands in, one with
// servers, and a copy of /etc. It ends with its test.
type Lab struct {
	t        testing.TB
	dir      string // below labRoot
	real     bool   // the machine's own network
	thread   *thread
	accounts map[User]account
	world    *world // nil with the real network
	ca       *authority

	mu      sync.Mutex
	servers map[string]*Server
}

// Option changes how a lab is made.
type Option func(*Lab)

// RealNetwork leaves commands in the machine's own network. Such a lab has no
// servers and no packet log.
func RealNetwork() Option { return func(l *Lab) { l.real = true } }

var labCount atomic.Int32

// NewLab makes a lab that lasts until the end of the test. It fails the test
// when the machine does not let it.
func NewLab(t testing.TB, opts ...Option) *Lab {
	t.Helper()
	if os.Getenv(insideVariable) == "" {
		t.Fatal("the package's TestMain does not call sbxtest.Main")
	}
	l := &Lab{
		t:        t,
		dir:      fmt.Sprintf("%s/lab%d", labRoot, labCount.Add(1)),
		accounts: map[User]account{},
		servers:  map[string]*Server{},
	}
	for _, opt := range opts {
		opt(l)
	}
	for _, step := range []func() error{l.makeHomes, l.copyEtc, l.enterMounts, l.makeWorld} {
		if err := step(); err != nil {
			t.Fatalf("making the lab: %v", err)
		}
	}
	return l
}

// makeHomes lays a home and a project for each user.
func (l *Lab) makeHomes() error {
	for _, u := range Everyone() {
		a, err := accountOf(u, l.dir)
		if err != nil {
			return err
		}
		l.accounts[u] = a
		if err := os.MkdirAll(filepath.Join(a.home, "project"), 0o755); err != nil {
			return fmt.Errorf("laying the home of %s: %w", u, err)
		}
		if err := l.give(u, a.home); err != nil {
			return err
		}
	}
	return nil
}

// give makes everything below path the user's.
func (l *Lab) give(u User, path string) error {
	a := l.accounts[u]
	if a.credential() == nil {
		return nil
	}
	return filepath.WalkDir(path, func(p string, _ os.DirEntry, err error) error {
		if err != nil {
			return err
		}
		return os.Lchown(p, a.uid, a.gid)
	})
}

// copyEtc copies what can be read of /etc, owners and links included, and adds
// the lab's accounts and resolver.
func (l *Lab) copyEtc() error {
	if err := copyTree("/etc", l.dir+"/etc"); err != nil {
		return fmt.Errorf("copying /etc: %w", err)
	}
	passwd, err := os.ReadFile("/etc/passwd")
	if err != nil {
		return fmt.Errorf("reading the accounts: %w", err)
	}
	text := string(passwd)
	for _, a := range l.accounts {
		text = a.inPasswd(text)
	}
	l.WriteEtc("passwd", text)
	l.WriteEtc("resolv.conf", string(hostResolvConf))
	l.WriteEtc("npmrc", "") // the machine's own settings would leak into tests
	return nil
}

// enterMounts starts the lab's thread, in a mount namespace of its own where
// /etc is the copy.
func (l *Lab) enterMounts() error {
	l.thread = newThread()
	l.t.Cleanup(l.thread.stop)
	return l.thread.run(func() error {
		if err := dropAmbient(); err != nil {
			return err
		}
		if err := unix.Unshare(unix.CLONE_FS | unix.CLONE_NEWNS); err != nil {
			return fmt.Errorf("making a mount namespace: %w", err)
		}
		if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
			return fmt.Errorf("making the mounts private: %w", err)
		}
		if err := unix.Mount(l.dir+"/etc", "/etc", "", unix.MS_BIND, ""); err != nil {
			return fmt.Errorf("putting the lab's /etc in place: %w", err)
		}
		return l.mountState()
	})
}

// rootState is where sbx keeps its runs when root starts it.
const rootState = "/var/lib/sbx"

// mountState gives root's runs a place of the lab's own.
func (l *Lab) mountState() error {
	if os.Geteuid() != 0 {
		return nil
	}
	for _, dir := range []string{rootState, l.StateDir(AsRoot)} {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return fmt.Errorf("making root's state directory: %w", err)
		}
	}
	if err := unix.Mount(l.StateDir(AsRoot), rootState, "", unix.MS_BIND, ""); err != nil {
		return fmt.Errorf("putting root's state directory in place: %w", err)
	}
	return nil
}

// dropAmbient makes what this thread executes lose the lab's capabilities.
func dropAmbient() error {
	if err := unix.Prctl(unix.PR_CAP_AMBIENT, unix.PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0); err != nil {
		return fmt.Errorf("clearing the ambient capabilities: %w", err)
	}
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var data [2]unix.CapUserData
	if err := unix.Capget(&header, &data[0]); err != nil {
		return fmt.Errorf("reading the capabilities: %w", err)
	}
	data[0].Inheritable, data[1].Inheritable = 0, 0
	if err := unix.Capset(&header, &data[0]); err != nil {
		return fmt.Errorf("clearing the inheritable capabilities: %w", err)
	}
	return nil
}

// WriteEtc writes a file of the lab's /etc; name is relative to it. An
// existing file or link is replaced.
func (l *Lab) WriteEtc(name, text string) {
	l.t.Helper()
	path := filepath.Join(l.dir, "etc", name)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		l.t.Fatalf("writing the lab's /etc/%s: %v", name, err)
	}
	_ = os.Remove(path) // a link would be followed
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		l.t.Fatalf("writing the lab's /etc/%s: %v", name, err)
	}
}

// Configure writes the machine-wide operator configuration, in TOML.
func (l *Lab) Configure(toml string) {
	l.t.Helper()
	l.WriteEtc("sbx/config.toml", toml)
}

// Home is the user's home directory.
func (l *Lab) Home(u User) string {
	l.t.Helper()
	a, ok := l.accounts[u]
	if !ok {
		l.t.Fatalf("no %s in this lab: range over sbxtest.Everyone()", u)
	}
	return a.home
}

// Project is the user's project, the working directory of the commands.
func (l *Lab) Project(u User) string { return filepath.Join(l.Home(u), "project") }

// UID is the user id that the user's files have on disk.
func (l *Lab) UID(u User) int { return l.accounts[u].uid }

// Write makes a file of the user's; name is relative to the project.
func (l *Lab) Write(u User, name, text string) string {
	l.t.Helper()
	path := filepath.Join(l.Project(u), name)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		l.t.Fatalf("writing %s: %v", name, err)
	}
	if err := os.WriteFile(path, []byte(text), 0o755); err != nil {
		l.t.Fatalf("writing %s: %v", name, err)
	}
	if err := l.give(u, l.Project(u)); err != nil {
		l.t.Fatalf("writing %s: %v", name, err)
	}
	return path
}

// CopyIn copies a directory's files into the user's project.
func (l *Lab) CopyIn(u User, dir string) {
	l.t.Helper()
	if err := copyTree(dir, l.Project(u)); err != nil {
		l.t.Fatalf("copying %s into the project: %v", dir, err)
	}
	if err := l.give(u, l.Project(u)); err != nil {
		l.t.Fatalf("copying %s into the project: %v", dir, err)
	}
}

// CA is the path of a PEM file with the lab's own CA alone.
func (l *Lab) CA() string { return filepath.Join(l.dir, "etc", "lab-ca.pem") }

// Mounts is the mount table of the lab's mount namespace, a line each, in the
// form of /proc/self/mountinfo.
func (l *Lab) Mounts() []string {
	l.t.Helper()
	var text []byte
	err := l.thread.run(func() (err error) {
		text, err = os.ReadFile("/proc/thread-self/mountinfo")
		return err
	})
	if err != nil {
		l.t.Fatalf("reading the lab's mounts: %v", err)
	}
	return strings.Split(strings.TrimSpace(string(text)), "\n")
}
