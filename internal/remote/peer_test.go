package remote

import (
	"errors"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// What this binary is to do in a test's child: listen on a socket and serve, or leave that
// to a child of its own, which gets the socket as its stdin.
const (
	childVariable = "SBX_REMOTE_TEST_SOCKET"
	heirVariable  = "SBX_REMOTE_TEST_HEIR"
	heirItself    = "itself"
)

// TestMain serves on a socket where a test started this binary for that.
func TestMain(m *testing.M) {
	at, heir := os.Getenv(childVariable), os.Getenv(heirVariable)
	if at == "" {
		os.Exit(m.Run())
	}
	if heir == heirItself {
		l, err := net.FileListener(os.Stdin)
		serveFine(l, err)
	}
	l, err := net.Listen("unix", at)
	if err == nil {
		err = os.Chmod(at, 0o666)
	}
	if err == nil && heir != "" {
		err = leave(l)
		os.Exit(map[bool]int{true: 0, false: 1}[err == nil])
	}
	serveFine(l, err)
}

// leave starts the heir, which ends when the test does.
func leave(l net.Listener) error {
	file, err := l.(*net.UnixListener).File()
	if err != nil {
		return err
	}
	cmd := exec.Command("/proc/self/exe")
	cmd.Env, cmd.Stdin, cmd.Stdout = append(os.Environ(), heirVariable+"="+heirItself), file, os.Stdout
	cmd.ExtraFiles = []*os.File{os.Stdin}
	return cmd.Start()
}

// serveFine serves until the test kills it, or closes its end of the heir's pipe.
func serveFine(l net.Listener, err error) {
	if err != nil {
		os.Exit(1)
	}
	if os.Getenv(heirVariable) == heirItself {
		go func() { _, _ = os.NewFile(3, "end").Read(make([]byte, 1)); os.Exit(0) }()
	}
	os.Stdout.WriteString("r")
	_ = http.Serve(l, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("fine")) }))
	os.Exit(1)
}

// served starts a server in a process of its own.
func served(t *testing.T, attributes *syscall.SysProcAttr) string {
	t.Helper()
	at, _ := started(t, attributes)
	return at
}

func started(t *testing.T, attributes *syscall.SysProcAttr, env ...string) (at string, cmd *exec.Cmd) {
	t.Helper()
	dir := t.TempDir()
	for d := dir; d != "/"; d = filepath.Dir(d) { // another user has to get at it
		_ = os.Chmod(d, 0o777|os.ModeSticky)
		if filepath.Dir(d) == os.TempDir() {
			break
		}
	}
	at = filepath.Join(dir, "s")
	cmd = exec.CommandContext(t.Context(), "/proc/self/exe")
	cmd.Env, cmd.SysProcAttr = append(append(os.Environ(), childVariable+"="+at), env...), attributes
	end, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = end.Close() })
	ready, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	if _, err := ready.Read(make([]byte, 1)); err != nil {
		t.Fatal(err)
	}
	return at, cmd
}

func TestOnlyAServerOfOnesOwnIsBelieved(t *testing.T) {
	ids := []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Geteuid(), Size: 1}}
	groups := []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getegid(), Size: 1}}
	rows := map[string]struct {
		attributes *syscall.SysProcAttr
		good       bool
	}{
		"own":                 {&syscall.SysProcAttr{}, true},
		"in a user namespace": {&syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWUSER, UidMappings: ids, GidMappings: groups}, false},
	}
	if os.Geteuid() == 0 {
		rows["somebody else's"] = struct {
			attributes *syscall.SysProcAttr
			good       bool
		}{&syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65533, Gid: 65533}}, false}
	}
	for name, row := range rows {
		t.Run(name, func(t *testing.T) {
			c, err := NewSocket(served(t, row.attributes), "")
			if err != nil {
				t.Fatal(err)
			}
			status, text, err := c.Ask(t.Context(), http.MethodGet, "/health")
			if row.good != (err == nil && status == http.StatusOK && string(text) == "fine") || !row.good && !errors.Is(err, ErrForeign) {
				t.Errorf("%d %q %v", status, text, err)
			}
		})
	}
}

// A process that listened and ended does not vouch for whoever answers in its place: its pid
// may be anybody's by now.
func TestAServerWhoseListenerHasEndedIsNotBelieved(t *testing.T) {
	at, cmd := started(t, &syscall.SysProcAttr{}, heirVariable+"=1")
	refused := func(when string) {
		t.Helper()
		c, err := NewSocket(at, "")
		if err != nil {
			t.Fatal(err)
		}
		if status, text, err := c.Ask(t.Context(), http.MethodGet, "/health"); !errors.Is(err, ErrForeign) {
			t.Errorf("%s: %d %q %v", when, status, text, err)
		}
	}
	var info unix.Siginfo
	if err := unix.Waitid(unix.P_PID, cmd.Process.Pid, &info, unix.WEXITED|unix.WNOWAIT, nil); err != nil {
		t.Fatal(err)
	}
	refused("before it was collected")
	if _, err := cmd.Process.Wait(); err != nil {
		t.Fatal(err)
	}
	refused("afterwards")
}

// A kernel that tells the process and not its user namespace is asked by the pid.
func TestTheUserNamespaceIsAlsoFoundByPID(t *testing.T) {
	living, end, err := os.Pipe() // as the descriptor of a process: no ioctl, and never readable
	if err != nil {
		t.Fatal(err)
	}
	defer living.Close()
	defer end.Close()
	p := peer{uid: os.Geteuid(), pid: os.Getpid(), process: living}
	if err := p.trusted(false); err != nil {
		t.Error(err)
	}
	p.pid = 0
	if err := p.trusted(true); !errors.Is(err, ErrForeign) {
		t.Errorf("outside of the pid namespace: %v", err)
	}
	ended, err := os.Open(os.DevNull) // readable
	if err != nil {
		t.Fatal(err)
	}
	defer ended.Close()
	p.pid, p.process = os.Getpid(), ended
	if err := p.trusted(true); !errors.Is(err, ErrForeign) {
		t.Errorf("after the end: %v", err)
	}
}

// A kernel that does not tell the process has only the place of the socket to go by.
func TestWithoutAProcessOnlyAHiddenPlaceIsBelieved(t *testing.T) {
	p := peer{uid: os.Geteuid(), pid: os.Getpid()}
	if err := p.trusted(true); err != nil {
		t.Error(err)
	}
	if err := p.trusted(false); !errors.Is(err, ErrForeign) {
		t.Errorf("anywhere: %v", err)
	}
	p.uid = 65533
	if err := p.trusted(true); !errors.Is(err, ErrForeign) {
		t.Errorf("of somebody else: %v", err)
	}
	dir := t.TempDir()
	for _, name := range []string{"state/run", "state2"} {
		if err := os.MkdirAll(filepath.Join(dir, name), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(os.Symlink("state/run", filepath.Join(dir, "in")), os.Symlink("../state2", filepath.Join(dir, "state/out"))); err != nil {
		t.Fatal(err)
	}
	hidden := filepath.Join(dir, "state")
	for socket, want := range map[string]bool{"state/s": true, "state/run/s": true, "in/s": true, "state/out/s": false, "state2/s": false, "s": false, "none/s": false} {
		if path, got := place(filepath.Join(dir, socket), hidden); got != want || filepath.Base(path) != "s" {
			t.Errorf("%s: %v, by %s", socket, got, path)
		}
	}
	if _, got := place(filepath.Join(dir, "s"), ""); got {
		t.Error("without a place that is hidden, one is")
	}
}

func TestNoRedirectIsFollowed(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	reached := make(chan string, 9)
	s := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		reached <- r.URL.Path
		http.Redirect(w, r, "/elsewhere", http.StatusFound)
	})}
	go func() { _ = s.Serve(l) }()
	t.Cleanup(func() { _ = s.Close() })
	c, err := NewURL("http://" + l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	if status, _, err := c.Ask(t.Context(), http.MethodGet, "/health"); err == nil {
		t.Errorf("%d", status)
	}
	if first := <-reached; first != "/health" || len(reached) != 0 {
		t.Errorf("asked %s, and %d times more", first, len(reached))
	}
}
