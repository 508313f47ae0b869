package sandbox

import (
	"errors"
	"fmt"
	"os"

	"github.com/fractalboxdev/sbx/internal/sandbox/stage"
	"github.com/opencontainers/cgroups"
	"github.com/opencontainers/runc/libcontainer"
	"github.com/opencontainers/runc/libcontainer/configs"
	_ "github.com/opencontainers/runc/libcontainer/nsenter" // libcontainer's own constructor
	"golang.org/x/sys/unix"
)

const initPath = stage.InitPath

// Reexec takes over the process when libcontainer started it as its own init. It
// must run before anything else in main; it returns in every other process.
func Reexec() {
	if len(os.Args) > 1 && os.Args[1] == "init" && os.Getenv("_LIBCONTAINER_INITPIPE") != "" {
		libcontainer.Init()
	}
}

// containerConfig is the libcontainer configuration of a specification. The tree,
// the network and the second user namespace are not libcontainer's.
func containerConfig(s Spec) *configs.Config {
	// Kept until the init has made the second user namespace, where it is dropped.
	setfcap := []string{"CAP_SETFCAP"}
	c := &configs.Config{
		Rootfs:          rootDir,
		RootlessCgroups: true,
		NoNewPrivileges: true,
		Hostname:        s.Hostname,
		Capabilities:    &configs.Capabilities{Bounding: setfcap, Effective: setfcap, Permitted: setfcap},
		Cgroups:         &cgroups.Cgroup{Name: "sbx", Rootless: true, Resources: &cgroups.Resources{}},
		Namespaces: configs.Namespaces{
			{Type: configs.NEWNS}, {Type: configs.NEWPID}, {Type: configs.NEWIPC},
			{Type: configs.NEWUTS}, {Type: configs.NEWCGROUP},
		},
		Mounts: []*configs.Mount{
			{Device: "proc", Source: "proc", Destination: "/proc", Flags: unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC},
			// A bind over itself: libcontainer then leaves /dev as it is.
			{Device: "bind", Source: rootDir + "/dev", Destination: "/dev", Flags: unix.MS_BIND | unix.MS_REC},
		},
		MaskPaths: []string{
			"/proc/acpi", "/proc/asound", "/proc/interrupts", "/proc/kcore", "/proc/keys", "/proc/latency_stats",
			"/proc/sched_debug", "/proc/scsi", "/proc/timer_list", "/proc/timer_stats",
		},
		ReadonlyPaths: []string{"/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger"},
	}
	if m := s.Mapping; m != nil {
		c.Namespaces = append(c.Namespaces, configs.Namespace{Type: configs.NEWUSER})
		c.UIDMappings = []configs.IDMap{{ContainerID: 0, HostID: int64(m.KUID), Size: 1}}
		c.GIDMappings = []configs.IDMap{{ContainerID: 0, HostID: int64(m.KGID), Size: 1}}
	}
	return c
}

// Container is a started container whose init waits for its plan.
type Container struct {
	container *libcontainer.Container
	process   *libcontainer.Process
	control   *os.File
	pid       int
}

// StartContainer starts the container up to its init, which waits for a plan. The
// calling goroutine must be locked to a thread that outlives the container: the
// init dies with that thread. stdio may hold nil where the init opens its own.
func StartContainer(s Spec, stdio [3]*os.File) (*Container, error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("making the init's control socket: %w", err)
	}
	control, theirs := os.NewFile(uintptr(fds[0]), "init"), os.NewFile(uintptr(fds[1]), "control")
	defer theirs.Close()
	c, err := libcontainer.Create(stateDir, "sbx", containerConfig(s))
	if err != nil {
		return nil, errors.Join(fmt.Errorf("creating container %s: %w", s.Run, err), control.Close())
	}
	p := &libcontainer.Process{
		Args: []string{initPath}, Env: []string{"PATH=/"}, Cwd: "/", Init: true, ExtraFiles: []*os.File{theirs},
	}
	if stdio[0] != nil {
		p.Stdin = stdio[0]
	}
	if stdio[1] != nil {
		p.Stdout = stdio[1]
	}
	if stdio[2] != nil {
		p.Stderr = stdio[2]
	}
	if err := c.Start(p); err != nil {
		return nil, errors.Join(fmt.Errorf("starting container %s: %w", s.Run, err), control.Close())
	}
	if err := c.Exec(); err != nil {
		return nil, errors.Join(fmt.Errorf("starting the init of container %s: %w", s.Run, err), control.Close())
	}
	pid, err := p.Pid()
	if err != nil {
		return nil, errors.Join(fmt.Errorf("finding the init of container %s: %w", s.Run, err), control.Close())
	}
	return &Container{container: c, process: p, control: control, pid: pid}, nil
}

// PID is the init's pid in the runner's pid namespace.
func (c *Container) PID() int { return c.pid }

// Control is the runner's end of the init's control socket.
func (c *Container) Control() *os.File { return c.control }

// Kill kills the init, and with it everything in its pid namespace.
func (c *Container) Kill() error {
	if err := unix.Kill(c.pid, unix.SIGKILL); err != nil && !errors.Is(err, unix.ESRCH) {
		return fmt.Errorf("killing the init: %w", err)
	}
	return nil
}

// Wait returns once the init is gone. The kernel lets it go only after every
// process of its pid namespace was reaped (pid_namespaces(7)), so an error-free
// return means that the namespace is empty.
func (c *Container) Wait() error {
	state, err := c.process.Wait()
	if state == nil {
		return fmt.Errorf("waiting for the init: %w", err)
	}
	return nil
}
