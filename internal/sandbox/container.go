package sandbox

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"

	"github.com/opencontainers/cgroups"
	"github.com/opencontainers/runc/libcontainer"
	"github.com/opencontainers/runc/libcontainer/configs"
	_ "github.com/opencontainers/runc/libcontainer/nsenter" // libcontainer's own constructor
	"github.com/sirupsen/logrus"                            //nolint:depguard // libcontainer's own logger, to be silenced
	"golang.org/x/sys/unix"

	"github.com/fractalboxdev/sbx/internal/sandbox/stage"
)

const initPath = stage.InitPath

// Reexec takes over the process when libcontainer started it as its own init. It
// must run before anything else in main; it returns in every other process.
func Reexec() {
	if len(os.Args) > 1 && os.Args[1] == "init" && os.Getenv("_LIBCONTAINER_INITPIPE") != "" {
		dieWithRunner()
		if takeTree() != nil {
			os.Exit(125) //nolint:forbidigo // this process is libcontainer's init
		}
		libcontainer.Init()
	}
}

// dieWithRunner ends libcontainer's init with the runner that started it: without
// one it would wait for its go for ever. The control socket tells of a runner that
// was dead before the death signal was set.
func dieWithRunner() {
	logrus.SetOutput(io.Discard) // what went wrong reaches the runner as an error
	err := unix.Prctl(unix.PR_SET_PDEATHSIG, uintptr(unix.SIGKILL), 0, 0, 0)
	poll := []unix.PollFd{{Fd: stage.InitControl, Events: unix.POLLRDHUP}}
	if n, _ := unix.Poll(poll, 0); err != nil || n != 0 {
		os.Exit(125) //nolint:forbidigo // this process is libcontainer's init
	}
}

// Hostname is what every sandbox is called inside.
const Hostname = "sbx"

// containerConfig is the libcontainer configuration of every sandbox. The tree,
// the network and the second user namespace are not libcontainer's.
func containerConfig(m *Mapping) *configs.Config {
	// Kept until the init has covered parts of /proc and made the second user
	// namespace; there everything is dropped.
	kept := []string{"CAP_SETFCAP", "CAP_SYS_ADMIN"}
	c := &configs.Config{
		Rootfs:          rootDir,
		RootlessCgroups: true,
		NoNewPrivileges: !mayGainPrivileges(),
		// The seccomp filter lets nothing inside reach a keyring. One for each run would
		// count against the user's 200 keys (keyrings(7)) until the kernel has cleared the
		// dead run's namespaces away, which takes seconds where many runs end.
		NoNewKeyring: true,
		Hostname:     Hostname,
		Capabilities: &configs.Capabilities{Bounding: kept, Effective: kept, Permitted: kept},
		Cgroups:      &cgroups.Cgroup{Name: "sbx", Rootless: true, Resources: &cgroups.Resources{}},
		Namespaces: configs.Namespaces{
			{Type: configs.NEWNS},
			{Type: configs.NEWPID},
			{Type: configs.NEWIPC},
			{Type: configs.NEWUTS},
			{Type: configs.NEWCGROUP},
		},
		Mounts: []*configs.Mount{
			{Device: "proc", Source: "proc", Destination: "/proc", Flags: unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC},
			// A bind over itself: libcontainer then leaves /dev as it is.
			{Device: "bind", Source: rootDir + "/dev", Destination: "/dev", Flags: unix.MS_BIND | unix.MS_REC},
		},
	}
	if m != nil {
		c.Namespaces = append(c.Namespaces, configs.Namespace{Type: configs.NEWUSER})
		c.UIDMappings = []configs.IDMap{{ContainerID: 0, HostID: int64(m.KUID), Size: 1}}
		c.GIDMappings = []configs.IDMap{{ContainerID: 0, HostID: int64(m.KGID), Size: 1}}
	}
	return c
}

// Container is a container that is being started, or whose init waits for its plan.
type Container struct {
	container *libcontainer.Container
	process   *libcontainer.Process
	control   *net.UnixConn
	theirs    *os.File // the init's end of control, until it is started
	pid       int
}

func (b *Builder) create() (err error) {
	logrus.SetOutput(io.Discard) // what goes wrong is an error
	if b.container, err = libcontainer.Create(stateDir, "sbx", containerConfig(b.mapping)); err != nil {
		return fmt.Errorf("creating the container: %w", err)
	}
	return nil
}

// NewContainer makes what Start starts.
func (b *Builder) NewContainer() (*Container, error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("making the init's control socket: %w", err)
	}
	theirs := os.NewFile(uintptr(fds[1]), "control")
	control, err := unixConn(os.NewFile(uintptr(fds[0]), "init"))
	if err != nil {
		return nil, errors.Join(fmt.Errorf("making the init's control socket: %w", err), theirs.Close())
	}
	return &Container{container: b.container, process: initProcess(theirs), control: control, theirs: theirs}, nil
}

// unixConn takes over a socket; waiting on it then costs no thread.
func unixConn(socket *os.File) (*net.UnixConn, error) {
	defer socket.Close()
	c, err := net.FileConn(socket)
	if err != nil {
		return nil, err
	}
	return c.(*net.UnixConn), nil //nolint:forcetypeassert // made by socketpair above
}

func initProcess(control *os.File) *libcontainer.Process {
	return &libcontainer.Process{
		Args: []string{initPath}, Env: append([]string{"PATH=/"}, brokenEnv()...), Cwd: "/", Init: true, ExtraFiles: []*os.File{control},
	}
}

// Start starts the container up to its init, which waits for a plan. libcontainer's part
// of that waits for Release, and nothing of the run is in it before. The calling goroutine
// must be locked to a thread that outlives the container: the init dies with that thread.
func (c *Container) Start() (err error) {
	defer c.theirs.Close()
	// libcontainer's init needs one thread; told from the start, its runtime makes no more.
	if err := os.Setenv("GOMAXPROCS", "1"); err != nil {
		return fmt.Errorf("starting the container: %w", err)
	}
	if err := c.container.Start(c.process); err != nil {
		return fmt.Errorf("starting the container: %w", err)
	}
	if err := c.container.Exec(); err != nil {
		return fmt.Errorf("starting the container's init: %w", err)
	}
	if c.pid, err = c.process.Pid(); err != nil {
		return fmt.Errorf("finding the container's init: %w", err)
	}
	return nil
}

// PID is the init's pid in the runner's pid namespace.
func (c *Container) PID() int { return c.pid }

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
