package handshake

import (
	"bytes"
	"errors"
	"io"
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

func pair(t *testing.T) (a, b *Conn) {
	t.Helper()
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	a, aerr := New(os.NewFile(uintptr(fds[0]), "a"))
	b, berr := New(os.NewFile(uintptr(fds[1]), "b"))
	if err := errors.Join(aerr, berr); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = a.Close(); _ = b.Close() })
	return a, b
}

func TestMessageCarriesBodyAndDescriptors(t *testing.T) {
	a, b := pair(t)
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	body := []byte(strings.Repeat("x\xff\x00", 100_000))
	sent := make(chan error, 1)
	go func() { sent <- a.Send("spec", body, w) }()
	m, err := b.Expect("spec")
	if err != nil {
		t.Fatal(err)
	}
	files := m.Files
	if err := <-sent; err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(m.Body, body) || len(files) != 1 {
		t.Fatalf("got %d bytes and %d files", len(m.Body), len(files))
	}
	_ = w.Close()
	if _, err := files[0].WriteString("hello"); err != nil {
		t.Fatal(err)
	}
	_ = files[0].Close()
	if text, err := io.ReadAll(r); err != nil || string(text) != "hello" {
		t.Fatalf("through the passed pipe: %q, %v", text, err)
	}
}

func TestFailureAndEndAreErrors(t *testing.T) {
	a, b := pair(t)
	if err := a.Send(Failed, (&Failure{Step: "unshare-net", Errno: unix.EPERM, Detail: "a:b\x00c"}).Encode()); err != nil {
		t.Fatal(err)
	}
	_, err := b.Expect("listeners")
	if f, ok := errors.AsType[*Failure](err); !ok || f.Step != "unshare-net" || f.Detail != "a:b\x00c" || !errors.Is(err, unix.EPERM) {
		t.Fatalf("got %v", err)
	}
	if err := a.Send("other", nil); err != nil {
		t.Fatal(err)
	}
	if _, err := b.Expect("listeners"); err == nil || !strings.Contains(err.Error(), "other") {
		t.Fatalf("an unexpected kind: %v", err)
	}
	waiting := make(chan error, 1)
	go func() { _, err := a.Receive(); waiting <- err }()
	_ = a.Close()
	if _, err := b.Receive(); !errors.Is(err, ErrClosed) {
		t.Fatalf("after the end: %v", err)
	}
	if err := <-waiting; err == nil {
		t.Fatal("a Receive on the closed end returned a message")
	}
}
