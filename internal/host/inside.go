package host

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// insideTimeout ends a child that hangs; it works for a few milliseconds.
const insideTimeout = 10 * time.Second

// insideResult is what the child tried, as it reports it.
type insideResult struct {
	User       State    `json:"-"`
	Network    State    `json:"network"`
	NFT        State    `json:"nft"`
	NFTErr     string   `json:"nft_err,omitempty"`
	Proc       State    `json:"proc"`
	ProcErr    string   `json:"proc_err,omitempty"`
	Overlay    State    `json:"overlay"`
	OverlayErr string   `json:"overlay_err,omitempty"`
	Refused    []string `json:"refused,omitempty"` // system calls
	Idmap      State    `json:"-"`
	IdmapErr   string   `json:"-"`
	Err        string   `json:"-"` // why there is no report
}

// answer turns one field into a probe's answer.
func (r insideResult) answer(field func(insideResult) (State, string), fix string) answer {
	state, detail := field(r)
	switch {
	case state == "":
		return answer{Unknown, "not tried: " + r.Err, ""}
	case state == Yes:
		return answer{Yes, "tried", ""}
	}
	return answer{state, detail, fix}
}

// runInside starts the child in new namespaces, as uid 0 there, and reads its report.
func runInside(ctx context.Context, argv []string) insideResult {
	ctx, cancel := context.WithTimeout(ctx, insideTimeout)
	defer cancel()
	cmd := insideCommand(ctx, argv)
	var out, errOut bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errOut
	hold, err := cmd.StdinPipe()
	if err != nil {
		return insideResult{Err: err.Error()}
	}
	if err := cmd.Start(); err != nil {
		return refusedChild(err)
	}
	r := insideResult{User: Yes}
	// The child waits for the end of its stdin, so that its user namespace is there.
	r.Idmap, r.IdmapErr = tryIdmap(cmd.Process.Pid)
	hold.Close()
	err = cmd.Wait()
	if failed := json.Unmarshal(out.Bytes(), &r); err != nil || failed != nil {
		r.Err = fmt.Sprintf("the child: %v %s", errors.Join(err, failed), strings.TrimSpace(errOut.String()))
	}
	return r
}

func insideCommand(ctx context.Context, argv []string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, "/proc/self/exe", argv[1:]...) //nolint:gosec // this binary, with its own words
	cmd.Args[0] = argv[0]
	cmd.Env = []string{}
	cmd.Dir = "/"
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags:  syscall.CLONE_NEWUSER | syscall.CLONE_NEWNS | syscall.CLONE_NEWNET | syscall.CLONE_NEWPID | syscall.CLONE_NEWUTS,
		UidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Geteuid(), Size: 1}},
		GidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getegid(), Size: 1}},
		Pdeathsig:   syscall.SIGKILL,
	}
	return cmd
}

// refusedChild tells a refusal of the namespaces from any other failure.
func refusedChild(err error) insideResult {
	r := insideResult{Err: err.Error()}
	if errors.Is(err, unix.EPERM) || errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EINVAL) ||
		errors.Is(err, unix.ENOSYS) || errors.Is(err, unix.EACCES) {
		r.User = No
	}
	return r
}

// Inside is the child's half: it tries in its own namespaces what a run will
// do, and writes its report to out. It refuses to run anywhere else. network
// sets up what a run's network namespace has, nft rules included.
func Inside(in io.Reader, out io.Writer, network func() error) error {
	if err := checkInside(); err != nil {
		return err
	}
	r := insideResult{Network: Yes}
	r.NFT, r.NFTErr = outcome(network())
	if err := unix.Mount("none", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("making mounts private: %w", err)
	}
	r.Refused = refused(neededInside())
	r.Proc, r.ProcErr = outcome(tryProc())
	r.Overlay, r.OverlayErr = outcome(tryOverlay())
	if err := json.NewEncoder(out).Encode(r); err != nil {
		return fmt.Errorf("reporting: %w", err)
	}
	_, err := io.Copy(io.Discard, in)
	return err
}

// checkInside makes sure that nothing of the host can be touched: PID 1 of a
// namespace whose uid map is not the whole of the host's.
func checkInside() error {
	uids, err := os.ReadFile("/proc/self/uid_map")
	if err != nil {
		return fmt.Errorf("looking at the user namespace: %w", err)
	}
	fields := strings.Fields(string(uids))
	if os.Getpid() != 1 || len(fields) != 3 || fields[2] != "1" {
		return errors.New("this part of doctor only runs in the namespaces that doctor makes")
	}
	return nil
}

func outcome(err error) (State, string) {
	if err == nil {
		return Yes, ""
	}
	return No, err.Error()
}

// tryProc mounts a new procfs, which a kernel refuses where the one that is
// there is partly covered.
func tryProc() error {
	if err := unix.Mount("proc", "/proc", "proc", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, ""); err != nil {
		return fmt.Errorf("mounting: %w", err)
	}
	return nil
}

// tryOverlay mounts an overlay on a tmpfs of its own.
func tryOverlay() error {
	const base = "/proc/sys" // any directory: only this namespace sees what is mounted there
	if err := unix.Mount("tmpfs", base, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, "mode=0700"); err != nil {
		return fmt.Errorf("mounting a tmpfs: %w", err)
	}
	for _, dir := range []string{"/lower", "/upper", "/work", "/merged"} {
		if err := os.Mkdir(base+dir, 0o700); err != nil {
			return err
		}
	}
	options := "userxattr,lowerdir=" + base + "/lower,upperdir=" + base + "/upper,workdir=" + base + "/work"
	if err := unix.Mount("overlay", base+"/merged", "overlay", 0, options); err != nil {
		return fmt.Errorf("mounting: %w", err)
	}
	return nil
}

// seccomp is the system call; x/sys has no wrapper.
func seccomp(op uintptr, action *uint32) error {
	_, _, errno := unix.Syscall(unix.SYS_SECCOMP, op, 0, uintptr(unsafe.Pointer(action)))
	if errno != 0 {
		return errno
	}
	return nil
}
