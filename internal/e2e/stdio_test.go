package e2e

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fractalboxdev/sbx/internal/event"
	"github.com/fractalboxdev/sbx/internal/sbxtest"
)

// outside runs a script of the caller's, not in the sandbox, in which $SBX is
// the binary.
func outside(t *testing.T, lab *sbxtest.Lab, who sbxtest.User, script string) sbxtest.Result {
	t.Helper()
	cmd := lab.Command(t, who, "bash", "-c", script)
	cmd.Env = append(cmd.Env, "SBX="+sbxtest.Binary(t))
	return within(t, 60*time.Second, lab, who, cmd)
}

// open opens a file of the project as a shell's redirection would.
func open(t *testing.T, path string, flags int) *os.File {
	t.Helper()
	file, err := os.OpenFile(path, flags, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = file.Close() })
	return file
}

func contents(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// What the command did not read of a file is left for whoever comes next.
func TestCase20_OffsetOfAFileIsGivenBack(t *testing.T) {
	lab := sbxtest.NewLab(t)
	everyone(t, func(t *testing.T, who sbxtest.User) {
		path := lab.Write(who, "../lines", strings.Repeat("one\ntwo\nthree\n", 20_000))
		for script, want := range map[string]int64{
			"read a; echo $a":                     4,
			"read a; read a; echo one":            8,
			"head -c 100000 >/dev/null; echo one": 100_000,
			"echo one":                            0,
			"cat >/dev/null; echo one":            280_000,
		} {
			file := open(t, path, os.O_RDONLY)
			cmd := lab.Command(t, who, "sbx", "exec", "--", "bash", "-c", script)
			cmd.Stdin = file
			printed(t, lab.RunCommand(t, who, cmd), "one\n")
			if at, err := file.Seek(0, io.SeekCurrent); err != nil || at != want {
				t.Errorf("after %q the offset is %d, %v, want %d", script, at, err, want)
			}
		}
		got := outside(t, lab, who, "(\"$SBX\" exec -- bash -c 'read a; echo inside $a'; head -n 1) <../lines")
		printed(t, got, "inside one\ntwo\n")
	})
}

// reach is what a command can do to the host through a descriptor of its own.
const reach = `
	readlink /proc/self/fd/%[1]d; stat -L -c %%i /proc/self/fd/%[1]d
	truncate -s 0 /proc/self/fd/%[1]d; : >/proc/self/fd/%[1]d; chmod 777 /proc/self/fd/%[1]d
	(echo EVIL >/proc/self/fd/%[1]d) & (echo EVIL >>/dev/fd/%[1]d) &
	node -e "const fs = require('fs'); for (const f of [() => fs.ftruncateSync(%[1]d, 0), () => fs.writeSync(%[1]d, 'EVIL'), () => fs.fchmodSync(%[1]d, 0o777)]) try { f() } catch {}"
	wait; echo done`

// A file on standard input can be read and nothing else.
func TestFileOnStdinCannotBeReached(t *testing.T) {
	lab := sbxtest.NewLab(t)
	everyone(t, func(t *testing.T, who sbxtest.User) {
		path := lab.Write(who, "../kept", "precious\n")
		inode := inodeOf(t, path)
		cmd := lab.Command(t, who, "sbx", "exec", "--", "bash", "-c", fmt.Sprintf(reach, 0))
		cmd.Stdin = open(t, path, os.O_RDWR)
		got := lab.RunCommand(t, who, cmd)
		succeeded(t, got)
		says(t, got.Stdout, "pipe:[", "done")
		if strings.Contains(got.Stdout, inode) || strings.Contains(got.Stdout, path) {
			t.Errorf("inode %s or path %s is known inside: %s", inode, path, got.Stdout)
		}
		if text := contents(t, path); text != "precious\n" || modeOf(t, path) != 0o755 {
			t.Errorf("the file is now %q, mode %o", text, modeOf(t, path))
		}
	})
}

// The log that stderr goes to cannot be reached, and keeps sbx's own lines.
func TestLogOnStderrCannotBeReached(t *testing.T) {
	lab := sbxtest.NewLab(t)
	everyone(t, func(t *testing.T, who sbxtest.User) {
		path := lab.Write(who, "../log", "")
		inode := inodeOf(t, path)
		cmd := lab.Command(t, who, "sbx", "exec", "--", "bash", "-c", "curl -s https://unlisted.test/a\n"+fmt.Sprintf(reach, 2))
		cmd.Stderr = open(t, path, os.O_RDWR)
		got := lab.RunCommand(t, who, cmd)
		succeeded(t, got)
		if strings.Contains(got.Stdout, inode) || strings.Contains(got.Stdout, path) {
			t.Errorf("inode %s or path %s is known inside: %s", inode, path, got.Stdout)
		}
		text := contents(t, path)
		says(t, text, "sbx: denied GET https://unlisted.test/a", "1 request denied")
		if modeOf(t, path) != 0o755 {
			t.Errorf("the log's mode is now %o", modeOf(t, path))
		}
	})
}

func inodeOf(t *testing.T, path string) string {
	t.Helper()
	var s unix.Stat_t
	if err := unix.Stat(path, &s); err != nil {
		t.Fatal(err)
	}
	return fmt.Sprint(s.Ino)
}

func modeOf(t *testing.T, path string) os.FileMode {
	t.Helper()
	info, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	return info.Mode().Perm()
}

// Directories and devices on a standard stream would be a way out.
func TestDirectoryOnStdinIsRefused(t *testing.T) {
	lab := sbxtest.NewLab(t)
	everyone(t, func(t *testing.T, who sbxtest.User) {
		for _, redirection := range []string{"</etc", "<.", "</dev/zero"} {
			got := outside(t, lab, who, `"$SBX" exec -- touch ran `+redirection)
			refused(t, got, "stdin is a d")
			if _, err := os.Stat(filepath.Join(lab.Project(who), "ran")); err == nil {
				t.Errorf("with %s the command ran", redirection)
			}
		}
	})
}

// Only the three standard streams pass into the sandbox.
func TestOtherDescriptorsStayOutside(t *testing.T) {
	lab := sbxtest.NewLab(t)
	everyone(t, func(t *testing.T, who sbxtest.User) {
		secret := lab.Write(who, "../secret", "secret\n")
		got := outside(t, lab, who, `exec 3<`+secret+` 4>>`+secret+` 5</ 9<.; "$SBX" exec -- bash -c 'ls /proc/$$/fd; cat <&3; echo x >&4'`)
		if strings.Fields(got.Stdout + " none")[0] != "0" || strings.Contains(got.Stdout, "secret") || contents(t, secret) != "secret\n" {
			t.Errorf("stdout %q, the file is %q", got.Stdout, contents(t, secret))
		}
		for fd := range strings.FieldsSeq(got.Stdout) {
			if len(fd) == 1 && fd > "2" && fd != "3" { // bash's ls may have its own directory open as 3
				t.Errorf("descriptor %s is open inside", fd)
			}
		}
	})
}

// Standard streams end when they should, and never hang.
func TestCase20_Stdin(t *testing.T) {
	lab := sbxtest.NewLab(t)
	everyone(t, func(t *testing.T, who sbxtest.User) {
		reader, _ := pipe(t) // nobody writes, nobody closes
		cmd := lab.Command(t, who, "sbx", "exec", "--", "echo", "hi")
		cmd.Stdin = reader
		printed(t, lab.RunCommand(t, who, cmd), "hi\n")

		for script, want := range map[string]string{
			`printf abc | "$SBX" exec -- cat`:                                               "abc",
			`"$SBX" exec -- cat </dev/null; echo $?`:                                        "0\n",
			`printf '1\n2\n3\n' >l; while read n; do "$SBX" exec -- true; echo $n; done <l`: "1\n2\n3\n",
			`printf '1\n2\n3\n' | while read n; do "$SBX" exec -- true; echo $n; done`:      "1\n2\n3\n",
			`"$SBX" exec -- bash -c 'echo out; echo err >&2' 2>&1 >/dev/null`:               "err\n",
		} {
			t.Run(script, func(t *testing.T) { printed(t, outside(t, lab, who, script), want) })
		}
	})
}

// A reader that leaves ends the command as it would outside; sbx itself lives on
// to take the run back.
func TestCase20_ReaderThatLeaves(t *testing.T) {
	lab := sbxtest.NewLab(t)
	everyone(t, func(t *testing.T, who sbxtest.User) {
		got := outside(t, lab, who, `"$SBX" exec -- yes | head -n 1; echo ${PIPESTATUS[0]}`)
		printed(t, got, "y\n141\n")
		var r event.Receipt
		if err := json.Unmarshal(got.File(t, "receipt.json"), &r); err != nil {
			t.Fatal(err)
		}
		if r.Result.Exit != 141 {
			t.Errorf("the receipt's result is %+v, want status 141", r.Result)
		}
		revoked(t, r)
		if next := run(t, lab, who, "--", "true"); next.Stderr != "" {
			t.Errorf("the next run said %q", next.Stderr)
		}
	})
}

// Callers that close a standard stream get neither a hang nor another file in
// its place.
func TestCase20_ClosedStreams(t *testing.T) {
	everyone(t, func(t *testing.T, who sbxtest.User) {
		for script, want := range map[string]string{
			`"$SBX" exec -- echo hi <&-`:                    "hi\n",
			`"$SBX" exec -- bash -c 'cat; echo over' <&-`:   "over\n",
			`"$SBX" exec -- bash -c 'exit 3' 2>&-; echo $?`: "3\n",
			`"$SBX" exec -- bash -c 'exit 3' >&-; echo $?`:  "3\n",
			`"$SBX" exec -- true <&- >&- 2>&-; echo $?`:     "0\n",
		} {
			t.Run(script, func(t *testing.T) {
				lab := sbxtest.NewLab(t)
				cmd := lab.Command(t, who, "bash", "-c", script)
				cmd.Env = append(cmd.Env, "SBX="+sbxtest.Binary(t))
				printed(t, within(t, 10*time.Second, lab, who, cmd), want)
			})
		}
	})
}

// Output that cannot be passed on is not lost without a word.
func TestOutputThatFailsIsStatus255(t *testing.T) {
	lab := sbxtest.NewLab(t)
	everyone(t, func(t *testing.T, who sbxtest.User) {
		got := outside(t, lab, who, `"$SBX" exec -- echo hi >/dev/full`)
		if got.Exit != 255 || !strings.Contains(got.Stderr, "sbx: ") {
			t.Errorf("exit status %d, stderr %q, want 255 and a reason", got.Exit, got.Stderr)
		}
	})
}

// Bytes pass unchanged, from a file and from a pipe.
func TestCase20_MuchData(t *testing.T) {
	lab := sbxtest.NewLab(t)
	everyone(t, func(t *testing.T, who sbxtest.User) {
		got := outside(t, lab, who, `head -c 200M /dev/urandom >data
			sha256sum <data; "$SBX" exec -- cat <data | sha256sum; cat data | "$SBX" exec -- cat | sha256sum
			"$SBX" exec -- sha256sum <data`)
		succeeded(t, got)
		sums := strings.Split(strings.TrimSpace(got.Stdout), "\n")
		for _, sum := range sums[1:] {
			if len(sums) != 4 || sum != sums[0] {
				t.Errorf("sums are %q, want four equal ones", sums)
			}
		}
	})
}

// Programs that start sbx with sockets for pipes, as some editors do, get all
// bytes; the command gets no socket.
func TestSocketsAreCarried(t *testing.T) {
	lab := sbxtest.NewLab(t)
	everyone(t, func(t *testing.T, who sbxtest.User) {
		pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			t.Fatal(err)
		}
		ours, theirs := os.NewFile(uintptr(pair[0]), "ours"), os.NewFile(uintptr(pair[1]), "theirs")
		defer ours.Close()
		defer theirs.Close()
		cmd := lab.Command(t, who, "sbx", "exec", "--", "bash", "-c", "readlink /proc/self/fd/0 /proc/self/fd/1 | sed 's/:.*//'; cat")
		cmd.Stdin, cmd.Stdout = theirs, theirs
		lab.Start(t, cmd)
		_ = theirs.Close()
		if _, err := ours.WriteString("carried"); err != nil {
			t.Fatal(err)
		}
		if err := unix.Shutdown(pair[0], unix.SHUT_WR); err != nil {
			t.Fatal(err)
		}
		got, err := io.ReadAll(ours)
		if exit := sbxtest.Wait(t, cmd); exit != 0 || err != nil || !bytes.Equal(got, []byte("pipe\npipe\ncarried")) {
			t.Errorf("exit status %d, %v, got %q", exit, err, got)
		}
	})
}
