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
)

const childVariable = "SBX_REMOTE_TEST_SOCKET"

// TestMain serves on a socket where a test started this binary for that.
func TestMain(m *testing.M) {
	at := os.Getenv(childVariable)
	if at == "" {
		os.Exit(m.Run())
	}
	l, err := net.Listen("unix", at)
	if err != nil {
		os.Exit(1)
	}
	_ = os.Chmod(at, 0o666)
	os.Stdout.WriteString("r")
	_ = http.Serve(l, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("fine")) })) // until the test kills it
}

// served starts a server in a process of its own.
func served(t *testing.T, attributes *syscall.SysProcAttr) string {
	t.Helper()
	dir := t.TempDir()
	for d := dir; d != "/"; d = filepath.Dir(d) { // another user has to get at it
		_ = os.Chmod(d, 0o777|os.ModeSticky)
		if filepath.Dir(d) == os.TempDir() {
			break
		}
	}
	at := filepath.Join(dir, "s")
	cmd := exec.CommandContext(t.Context(), "/proc/self/exe")
	cmd.Env, cmd.SysProcAttr = append(os.Environ(), childVariable+"="+at), attributes
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
	return at
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
			c, err := NewSocket(served(t, row.attributes))
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
