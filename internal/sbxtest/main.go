package sbxtest

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"runtime"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// insideVariable marks the second, namespaced run of the test binary.
const insideVariable = "SBXTEST_INSIDE"

// labRoot is where labs keep their files, on a file system of the test's own.
const labRoot = "/srv"

// The capabilities that building a lab needs inside a user namespace: mounts,
// links and routes, packet sockets, and ports below 1024.
var labCapabilities = []uintptr{
	unix.CAP_SYS_ADMIN, unix.CAP_NET_ADMIN, unix.CAP_NET_RAW, unix.CAP_NET_BIND_SERVICE,
}

// The main goroutine keeps the main thread to itself: a lab changes the
// namespaces of its own thread, and /proc/self speaks of the main one.
func init() { runtime.LockOSThread() }

// Main runs m inside a private mount namespace (and, for an ordinary user, a
// user namespace), and returns the exit status for os.Exit. It is the whole
// TestMain of a package that makes labs.
func Main(m *testing.M) int {
	if os.Getenv(insideVariable) != "" {
		if err := furnish(); err != nil {
			fmt.Fprintln(os.Stderr, "sbxtest:", err)
			return 1
		}
		return m.Run()
	}
	code, err := again()
	if err != nil {
		fmt.Fprintln(os.Stderr, "sbxtest:", err)
		return 1
	}
	return code
}

// again runs this very program once more, inside its namespaces.
func again() (int, error) {
	cmd := exec.CommandContext(context.Background(), "/proc/self/exe", os.Args[1:]...)
	cmd.Args[0] = os.Args[0]
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	cmd.Env = append(os.Environ(), insideVariable+"=1")
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNS, Pdeathsig: syscall.SIGKILL}
	if os.Geteuid() != 0 {
		ownUserNamespace(cmd.SysProcAttr)
	}
	if err := cmd.Start(); err != nil {
		return 1, fmt.Errorf("starting the tests in namespaces of their own: %w"+
			" (an ordinary user needs unprivileged user namespaces)", err)
	}
	passSignals(cmd.Process)
	err := cmd.Wait()
	if exit, ok := errors.AsType[*exec.ExitError](err); ok && exit.Exited() {
		return exit.ExitCode(), nil
	}
	return 0, err
}

// ownUserNamespace maps the caller's ids to themselves, so that commands run
// as the same ordinary user as outside.
func ownUserNamespace(attr *syscall.SysProcAttr) {
	attr.Cloneflags |= syscall.CLONE_NEWUSER
	attr.UidMappings = []syscall.SysProcIDMap{{ContainerID: os.Getuid(), HostID: os.Getuid(), Size: 1}}
	attr.GidMappings = []syscall.SysProcIDMap{{ContainerID: os.Getgid(), HostID: os.Getgid(), Size: 1}}
	attr.AmbientCaps = labCapabilities
}

func passSignals(p *os.Process) {
	signals := make(chan os.Signal, 4)
	signal.Notify(signals, syscall.SIGTERM, syscall.SIGQUIT, syscall.SIGHUP)
	go func() {
		for s := range signals {
			_ = p.Signal(s) // a child that is gone needs no signal
		}
	}()
}

// furnish makes the mounts that all labs of the process share. The kernel
// hands them back when the process ends, however it ends.
func furnish() error {
	// Orphans of a command become children of the test, where Processes finds them.
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("becoming the reaper of orphans: %w", err)
	}
	// For this thread alone. gont returns to the main thread's namespace from
	// each visit to another, which an ordinary user may do only if it is his.
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
		return fmt.Errorf("making the main thread's network namespace: %w", err)
	}
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("making the mounts private: %w", err)
	}
	if err := readResolvConf(); err != nil { // it may be a link into /run
		return err
	}
	for _, dir := range []string{labRoot, "/run"} {
		if err := unix.Mount("sbxtest", dir, "tmpfs", unix.MS_NODEV|unix.MS_NOSUID, "mode=755,size=8g"); err != nil {
			return fmt.Errorf("mounting a file system of the test's own on %s: %w", dir, err)
		}
	}
	return nil
}

var hostResolvConf []byte

func readResolvConf() error {
	text, err := os.ReadFile("/etc/resolv.conf")
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("reading the machine's resolver configuration: %w", err)
	}
	hostResolvConf = text
	return nil
}
