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

	"github.com/fractalboxdev/sbx/internal/trap"
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
	files := s.Pipes()
	if !s.Null[0] {
		cmd.Stdin, files = files[0], files[1:]
	}
	cmd.Stdout, cmd.Stderr = files[0], files[1]
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	s.Sent()
	var log bytes.Buffer
	s.Start(func(int) io.Writer { return &log })
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

func TestPipeOnStdinKeepsWhatTheCommandDidNotRead(t *testing.T) {
	name := filepath.Join(t.TempDir(), "fifo")
	if err := unix.Mkfifo(name, 0o600); err != nil {
		t.Fatal(err)
	}
	fifo, err := os.OpenFile(name, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer fifo.Close()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	for what, ends := range map[string][2]*os.File{"anonymous": {r, w}, "named": {fifo, fifo}} {
		if _, err := ends[1].WriteString("one\ntwo\nthree\n"); err != nil {
			t.Fatal(err)
		}
		if got := run(t, ends[0], "true"); got != "" {
			t.Errorf("%s: got %q", what, got)
		}
		if got := run(t, ends[0], "dd", "bs=4", "count=1", "status=none"); got != "one\n" {
			t.Errorf("%s: the command read %q", what, got)
		}
		rest := make([]byte, 32)
		if n, err := ends[0].Read(rest); err != nil || string(rest[:n]) != "two\nthree\n" {
			t.Errorf("%s: the caller kept %q (%v)", what, rest[:n], err)
		}
	}
}

func TestPipeOnStdinArrivesWholeAndEnds(t *testing.T) {
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	text := strings.Repeat("0123456789abcdef", 100_000)
	go func() { _, _ = w.WriteString(text); _ = w.Close() }()
	if got := run(t, r, "cat"); got != text {
		t.Errorf("%d bytes arrived, want %d", len(got), len(text))
	}
}

func TestPipeOnStdinCannotBeWrittenFromInside(t *testing.T) {
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	run(t, r, "sh", "-c", "echo injected >/proc/self/fd/0")
	if n, err := unread(r); err != nil || n > 0 {
		t.Errorf("the caller's script now has %d bytes more (%v)", n, err)
	}
}

func TestWriterThatOutlivesTheCommandIsNotWaitedFor(t *testing.T) {
	out, err := os.Create(filepath.Join(t.TempDir(), "out"))
	if err != nil {
		t.Fatal(err)
	}
	s, err := Open(null(t), out, out, TTYNever, nil)
	if err != nil {
		t.Fatal(err)
	}
	parked, err := duplicate(s.Pipes()[0]) // as if passed to another process
	if err != nil {
		t.Fatal(err)
	}
	if _, err := parked.WriteString("before its death"); err != nil {
		t.Fatal(err)
	}
	s.Sent()
	s.Start(nil)
	if err := s.Finish(); err != nil {
		t.Fatal(err)
	}
	if _, err := parked.WriteString("after"); err == nil {
		t.Error("the pipe still takes what somebody else writes")
	}
	if text, err := os.ReadFile(out.Name()); err != nil || string(text) != "before its death" {
		t.Errorf("the caller got %q (%v)", text, err)
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
	files := s.Pipes()
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

type faulty struct{}

func (faulty) Write([]byte) (int, error) { panic("odd") }

// TestVector34_APanicOfAReaderIsTold: whoever trapped it hears of it, and Finish does not
// wait for what is gone.
func TestVector34_APanicOfAReaderIsTold(t *testing.T) {
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer null.Close()
	s, err := Open(null, null, null, TTYNever, nil)
	if err != nil {
		t.Fatal(err)
	}
	told := make(chan *trap.Panic, 2)
	s.Trap = func(p *trap.Panic) { told <- p }
	s.Start(func(int) io.Writer { return faulty{} })
	if _, err := s.Pipes()[0].WriteString("x"); err != nil {
		t.Fatal(err)
	}
	if p := <-told; p.Value != "odd" {
		t.Errorf("%v", p)
	}
	if err := s.Finish(); err != nil {
		t.Error(err)
	}
}
