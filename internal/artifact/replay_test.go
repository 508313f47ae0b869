package artifact

import (
	"errors"
	"io"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/fractalboxdev/sbx/internal/event"
	"github.com/fractalboxdev/sbx/internal/secret"
)

// collect reads a replay as far as it goes.
func collect(t *testing.T, r *Replay) (text [3]string, err error) {
	t.Helper()
	for {
		fd, piece, err := r.Next()
		if err != nil {
			return text, err
		}
		text[fd] += string(piece)
	}
}

func private(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	if err := os.Chmod(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	return dir
}

func replayed(t *testing.T, change func(*Options)) (*Run, *Replay) {
	t.Helper()
	opt := Options{StateDir: private(t), RunID: NewID(time.Now()), Replay: true}
	if change != nil {
		change(&opt)
	}
	run, err := Open(opt)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(run.Close)
	r, err := OpenReplay(opt.StateDir, opt.RunID)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { r.Close() })
	return run, r
}

func say(t *testing.T, run *Run, fd int, text string) {
	t.Helper()
	if _, err := io.WriteString(run.Stream(fd), text); err != nil {
		t.Fatal(err)
	}
}

func TestReplayTellsStreamsApartWhileTheRunGoesOn(t *testing.T) {
	run, r := replayed(t, nil)
	say(t, run, 1, "one ")
	say(t, run, 2, "two ")
	got, err := collect(t, r)
	if !errors.Is(err, io.EOF) || got != [3]string{"", "one ", "two "} {
		t.Fatalf("%q, %v", got, err)
	}
	say(t, run, 1, "three")
	if err := run.Finish(event.Receipt{}); err != nil {
		t.Fatal(err)
	}
	got, err = collect(t, r)
	if !errors.Is(err, io.EOF) || got != [3]string{"", "three", ""} {
		t.Errorf("%q, %v", got, err)
	}
	log, err := os.ReadFile(run.Dir() + "/" + OutputFile)
	if err != nil || string(log) != "one two three" {
		t.Errorf("%s: %q, %v", OutputFile, log, err)
	}
}

func TestReplayHasNoSecrets(t *testing.T) {
	v, err := secret.Parse("hunter2hunter2")
	if err != nil {
		t.Fatal(err)
	}
	run, r := replayed(t, func(o *Options) { o.Redact = secret.NewRedactor(v) })
	say(t, run, 1, "a hunter2")
	say(t, run, 2, "between")
	say(t, run, 1, "hunter2 b")
	if err := run.Finish(event.Receipt{}); err != nil {
		t.Fatal(err)
	}
	got, err := collect(t, r)
	if !errors.Is(err, io.EOF) || strings.Contains(got[1], "hunter2") || !strings.HasPrefix(got[1], "a ") || !strings.HasSuffix(got[1], " b") || got[2] != "between" {
		t.Errorf("%q, %v", got, err)
	}
}

func TestReplaySaysWhereItIsCut(t *testing.T) {
	run, r := replayed(t, func(o *Options) { o.MaxOutput = 10 })
	say(t, run, 1, "12345")
	_, _ = io.WriteString(run.Stream(1), "1234567890")
	_, _ = io.WriteString(run.Stream(1), "more")
	if got, err := collect(t, r); !errors.Is(err, ErrCut) || got[1] != "1234512345" {
		t.Errorf("%q, %v", got, err)
	}
}

func TestReplayIsOnlyKeptWhereItIsAskedFor(t *testing.T) {
	state, id := private(t), NewID(time.Now())
	run, err := Open(Options{StateDir: state, RunID: id})
	if err != nil {
		t.Fatal(err)
	}
	defer run.Close()
	say(t, run, 1, "text")
	if _, err := OpenReplay(state, id); !errors.Is(err, os.ErrNotExist) {
		t.Error(err)
	}
}

func TestDamagedReplayIsRefused(t *testing.T) {
	run, r := replayed(t, nil)
	f, err := os.OpenFile(run.Dir()+"/"+ReplayFile, os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := f.Write([]byte{1, 0xff, 0xff, 0xff, 0xff, 'x'}); err != nil {
		t.Fatal(err)
	}
	if _, err := collect(t, r); err == nil || errors.Is(err, io.EOF) {
		t.Error(err)
	}
}
