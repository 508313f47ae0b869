package stdio

import (
	"bytes"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

func null(t *testing.T) *os.File {
	t.Helper()
	f, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = f.Close() })
	return f
}

// run starts argv with the streams' descriptors, as the sandbox would, and
// returns what the caller's stdout got.
func run(t *testing.T, stdin *os.File, argv ...string) string {
	t.Helper()
	out, err := os.Create(filepath.Join(t.TempDir(), "out"))
	if err != nil {
		t.Fatal(err)
	}
	defer out.Close()
	s, err := Open(stdin, out, out, TTYNever, nil)
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), argv[0], argv[1:]...)
	files, set := s.Pipes()
	for fd, have := range set {
		if !have {
			continue
		}
		switch fd {
		case 0:
			cmd.Stdin = files[0]
		case 1:
			cmd.Stdout = files[0]
		case 2:
			cmd.Stderr = files[0]
		}
		files = files[1:]
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	s.Sent()
	var log bytes.Buffer
	s.Start(&log)
	_ = cmd.Wait()
	if err := s.Finish(); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(out.Name())
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(text, log.Bytes()) {
		t.Errorf("the log has %q, the caller got %q", log.Bytes(), text)
	}
	return string(text)
}

func TestFileOnStdinIsGivenBackFromWhereTheCommandStopped(t *testing.T) {
	f, err := os.Create(filepath.Join(t.TempDir(), "list"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	lines := strings.Repeat("0123456789abcde\n", 40_000) // more than a pipe holds
	if _, err := f.WriteString(lines); err != nil {
		t.Fatal(err)
	}
	if _, err := f.Seek(16, io.SeekStart); err != nil {
		t.Fatal(err)
	}
	if got := run(t, f, "dd", "bs=16", "count=2", "status=none"); got != lines[:32] {
		t.Errorf("read %q", got)
	}
	if at, _ := f.Seek(0, io.SeekCurrent); at != 48 {
		t.Errorf("after two lines from 16 the offset is %d, want 48", at)
	}
	if got := run(t, f, "true"); got != "" {
		t.Errorf("got %q", got)
	}
	if at, _ := f.Seek(0, io.SeekCurrent); at != 48 {
		t.Errorf("a command that reads nothing moved the offset to %d", at)
	}
	if got := run(t, f, "cat"); got != lines[48:] {
		t.Errorf("the rest is %d bytes, want %d", len(got), len(lines)-48)
	}
}

func TestCommandNeverGetsTheCallersDescriptors(t *testing.T) {
	f, err := os.Create(filepath.Join(t.TempDir(), "secret"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	got := run(t, f, "sh", "-c", "readlink /proc/self/fd/0 /proc/self/fd/1 /proc/self/fd/2")
	if strings.Contains(got, filepath.Dir(f.Name())) || strings.Count(got, "pipe:") != 3 {
		t.Errorf("the command's descriptors: %s", got)
	}
}

func TestDirectoriesAndDevicesOnStdinAreRefused(t *testing.T) {
	for _, name := range []string{t.TempDir(), "/dev/zero", "/dev/urandom"} {
		f, err := os.Open(name)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := Open(f, null(t), null(t), TTYNever, nil); err == nil {
			t.Errorf("%s was accepted", name)
		}
		_ = f.Close()
	}
}

func TestAnonymousPipesPassAndNamedOnesDoNot(t *testing.T) {
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	if kind, err := classify(r); err != nil || kind != inputPass {
		t.Errorf("an anonymous pipe: %v %v", kind, err)
	}
	name := filepath.Join(t.TempDir(), "fifo")
	if err := unix.Mkfifo(name, 0o600); err != nil {
		t.Fatal(err)
	}
	fifo, err := os.OpenFile(name, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer fifo.Close()
	if kind, err := classify(fifo); err != nil || kind != inputPump {
		t.Errorf("a named pipe: %v %v", kind, err)
	}
	if kind, err := classify(null(t)); err != nil || kind != inputNull {
		t.Errorf("/dev/null: %v %v", kind, err)
	}
}

func TestSocketOnStdinIsCopied(t *testing.T) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	theirs := os.NewFile(uintptr(fds[0]), "ours")
	c, err := net.FileConn(theirs)
	if err != nil {
		t.Fatal(err)
	}
	go func() { _, _ = c.Write([]byte("through")); _ = c.Close(); _ = theirs.Close() }()
	in := os.NewFile(uintptr(fds[1]), "stdin")
	defer in.Close()
	if got := run(t, in, "cat"); got != "through" {
		t.Errorf("got %q", got)
	}
}

func TestOrderOfStdoutAndStderrStaysWhereBothAreOneFile(t *testing.T) {
	if got := run(t, null(t), "sh", "-c", "for i in 1 2 3 4 5; do echo o$i; echo e$i >&2; done"); got != "o1\ne1\no2\ne2\no3\ne3\no4\ne4\no5\ne5\n" {
		t.Errorf("got %q", got)
	}
}

func TestReaderThatGoesAwayEndsTheCommand(t *testing.T) {
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	s, err := Open(null(t), w, null(t), TTYNever, nil)
	if err != nil {
		t.Fatal(err)
	}
	files, _ := s.Pipes()
	cmd := exec.CommandContext(t.Context(), "yes")
	cmd.Stdout, cmd.Stderr = files[0], files[1]
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	s.Sent()
	s.Start(nil)
	if _, err := r.Read(make([]byte, 2)); err != nil {
		t.Fatal(err)
	}
	_ = r.Close()
	if err := cmd.Wait(); err == nil || cmd.ProcessState.Sys().(interface{ ExitStatus() int }).ExitStatus() != -1 {
		t.Errorf("yes ended with %v, want SIGPIPE", err)
	}
	if err := s.Finish(); err != nil {
		t.Errorf("a reader that went away is no failed stream: %v", err)
	}
}
