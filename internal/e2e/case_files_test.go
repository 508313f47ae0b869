package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/fractalboxdev/sbx/internal/sbxtest"
)

// A state directory that cannot be written is refused by name, and nothing runs.
func TestCase06_ReadOnlyStateDirectory(t *testing.T) {
	lab := sbxtest.NewLab(t)
	everyone(t, func(t *testing.T, who sbxtest.User) {
		at := lab.Home(who) + "/readonly"
		succeeded(t, outside(t, lab, who, "mkdir -p -m 700 "+at+"/sbx"))
		lab.Within(t, func() error {
			if err := unix.Mount(at, at, "", unix.MS_BIND, ""); err != nil {
				return err
			}
			return unix.Mount("", at, "", unix.MS_BIND|unix.MS_REMOUNT|unix.MS_RDONLY, "")
		})
		cmd := lab.Command(t, who, "sbx", "exec", "--", "touch", "ran")
		cmd.Env = append(cmd.Env, "XDG_STATE_HOME="+at)
		refused(t, lab.RunCommand(t, who, cmd), at, "read-only file system", "next: ")
		nothingRan(t, lab, who)
	})
}

// watched reports every change of names, contents and attributes below a directory.
type watched struct {
	fd    int
	names map[int32]string
}

// startWatching watches a directory and all below it (inotify(7)).
func startWatching(t *testing.T, root string, but ...string) *watched {
	t.Helper()
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Close(fd) })
	w := &watched{fd: fd, names: map[int32]string{}}
	const events = unix.IN_CREATE | unix.IN_DELETE | unix.IN_MOVE | unix.IN_MODIFY | unix.IN_ATTRIB | unix.IN_CLOSE_WRITE | unix.IN_DELETE_SELF | unix.IN_MOVE_SELF
	err = filepath.WalkDir(root, func(p string, d os.DirEntry, err error) error {
		if err != nil || !d.IsDir() {
			return err
		}
		if slices.Contains(but, p) {
			return filepath.SkipDir
		}
		id, err := unix.InotifyAddWatch(fd, p, events)
		w.names[int32(id)] = p
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return w
}

// seen returns what has happened since.
func (w *watched) seen(t *testing.T) (out []string) {
	t.Helper()
	b := make([]byte, 1<<20)
	n, err := unix.Read(w.fd, b)
	if err != nil {
		return nil // EAGAIN: nothing
	}
	for at := 0; at < n; {
		e := (*unix.InotifyEvent)(unsafe.Pointer(&b[at]))
		name := strings.TrimRight(string(b[at+unix.SizeofInotifyEvent:at+unix.SizeofInotifyEvent+int(e.Len)]), "\x00")
		out = append(out, fmt.Sprintf("%s/%s %#x", w.names[e.Wd], name, e.Mask))
		at += unix.SizeofInotifyEvent + int(e.Len)
	}
	return out
}

// Setting a sandbox up and taking it down makes, changes and removes nothing in the
// project and the home, not even for a moment; nor does an sbx that is killed.
func TestCase09_NothingFlickers(t *testing.T) {
	lab := sbxtest.NewLab(t)
	everyone(t, func(t *testing.T, who sbxtest.User) {
		succeeded(t, outside(t, lab, who, `git init -q . && mkdir -p .vscode .github/workflows .husky/_ sub/deep nested && git init -q nested/repo && touch .envrc .env sub/file
			git -c user.name=x -c user.email=x@git.test commit -q --allow-empty -m x`))
		succeeded(t, run(t, lab, who, "--", "true"))
		state := lab.StateDir(who)
		w := startWatching(t, lab.Home(who), state, filepath.Dir(state))
		for _, flags := range [][]string{
			nil, {"--ro"}, {"--ro=sub", "--rw", "sub/deep", "--hide", ".env"}, {"-C", lab.Project(who) + "/sub"}, {"--profile", "js-install"}, {"--profile", "js-install", "--no-cache"},
		} {
			got := run(t, lab, who, append(flags, "--", "sh", "-c", "ls -Ra . ~ >/dev/null; echo x >/tmp/x; echo x >~/x; echo x >$SBX_ARTIFACTS/x")...)
			succeeded(t, got)
			seen := w.seen(t)
			if slices.Contains(flags, "js-install") && !slices.Contains(flags, "--no-cache") {
				seen = slices.DeleteFunc(seen, func(e string) bool { return strings.Contains(e, "/.cache") }) // the profile's own, kept below the home
			}
			if len(seen) > 0 {
				t.Errorf("%v: %v", flags, seen)
			}
		}
		for range 5 {
			cmd := lab.Command(t, who, "sbx", "exec", "--", "sh", "-c", "echo started; sleep 1000")
			stdout := newOutput()
			cmd.Stdout, cmd.Stderr = stdout, newOutput()
			lab.Start(t, cmd)
			stdout.until(t, "started\n")
			if err := cmd.Process.Kill(); err != nil {
				t.Fatal(err)
			}
			sbxtest.Wait(t, cmd)
		}
		succeeded(t, run(t, lab, who, "--", "true"))
		if seen := w.seen(t); len(seen) > 0 {
			t.Errorf("killed: %v", seen)
		}
		if got := outside(t, lab, who, "git status --porcelain -uall --ignored"); strings.Contains(got.Stdout, "sbx") {
			t.Errorf("git sees %s", got.Stdout)
		}
	})
}

// Files of others never appear as the caller's, and what root unpacks is root's.
func TestCase10_FilesOfOthers(t *testing.T) {
	lab := sbxtest.NewLab(t)
	everyone(t, func(t *testing.T, who sbxtest.User) {
		got := shell(t, lab, who, "id -u; stat -c %u . /usr /usr/bin/env /usr/lib")
		succeeded(t, got)
		ids := strings.Fields(got.Stdout)
		if ids[1] != ids[0] || slices.Contains(ids[2:], ids[0]) {
			t.Errorf("uid and owners inside: %v", ids)
		}
		script := `set -e
			mkdir t; cd t; mkdir package; echo '{"name":"p","version":"1.0.0"}' >package/package.json
			tar --owner=1000 --group=1000 -czf p.tgz package; rm -r package; tar -xf p.tgz; stat -c %u package/package.json
			echo x >f; chown "$(id -u)" f; npm i --no-audit --no-fund ./p.tgz >/dev/null; stat -c %u node_modules/p/package.json`
		got = shell(t, lab, who, script)
		printed(t, got, ids[0]+"\n"+ids[0]+"\n")
		foreign(t, lab, who)
		if who == sbxtest.AsUser {
			return
		}
		// A repository of somebody else's: git's verdict is that of outside.
		succeeded(t, outside(t, lab, who, "git init -q theirs && chown -R 4321:4321 theirs"))
		for _, in := range []string{"theirs", "."} {
			bare := outside(t, lab, who, "cd "+in+" && git status --short 2>&1 | grep -c 'dubious ownership'")
			inside := shell(t, lab, who, "git status --short 2>&1 | grep -c 'dubious ownership'; stat -c %u .", "-C", filepath.Join(lab.Project(who), in))
			want := bare.Stdout + map[string]string{"theirs": "65534\n", ".": ids[0] + "\n"}[in]
			if inside.Stdout != want {
				t.Errorf("in %s: %q inside, want %q", in, inside.Stdout, want)
			}
		}
		if got := shell(t, lab, who, "touch theirs/.git/x theirs/x"); got.Exit == 0 {
			t.Error("files of another user's were made")
		}
	})
}

// Programs that drop or take privileges fail at once and readably, or work.
func TestCase11_PrivilegeTools(t *testing.T) {
	lab := sbxtest.NewLab(t)
	everyone(t, func(t *testing.T, who sbxtest.User) {
		got := shell(t, lab, who, `/usr/bin/python3 -c 'import os
for f in (lambda: os.setgroups([]), lambda: os.setuid(0), lambda: os.setgid(0), lambda: os.chown("/tmp", 0, 0)):
    try: f(); print("allowed")
    except OSError as e: print(e.errno)'; su -c true </dev/null 2>&1 | tail -1; newgrp root </dev/null 2>&1 | tail -1`)
		lines := strings.SplitN(got.Stdout, "\n", 5)
		if len(lines) < 5 || slices.ContainsFunc(lines[:4], func(l string) bool {
			return l != strconv.Itoa(int(syscall.EPERM)) && l != strconv.Itoa(int(syscall.EINVAL))
		}) {
			t.Errorf("stdout is %q", got.Stdout)
		}
		if strings.TrimSpace(lines[4]) == "" {
			t.Error("su and newgrp said nothing")
		}
	})
}

// Inside the project links and moves are what they are outside; between the project
// and other places they fail as between file systems, which tools know.
func TestCase13_LinksAndMoves(t *testing.T) {
	lab := sbxtest.NewLab(t)
	everyone(t, func(t *testing.T, who sbxtest.User) {
		succeeded(t, outside(t, lab, who, "git init -q .; mkdir -p pkg/.vscode sub; git init -q sub/repo"))
		got := shell(t, lab, who, `set -e
			echo x >a; mkdir -p store pkg/lib d/e; ln a store/b; ln store/b pkg/lib/c; stat -c %h a; mv d pkg/d; mv pkg/lib/c sub/c; mv pkg pkg2; mv sub/repo repo2; git -C repo2 status --short
			/usr/bin/python3 -c '
import ctypes, os
libc = ctypes.CDLL(None, use_errno=True)
print(libc.renameat2(-100, b"a", -100, b"a2", 1), libc.renameat2(-100, b"store", -100, b"pkg2", 2))
for source, target in (("a2", "/tmp/a2"), ("a2", os.environ["HOME"] + "/a2")):
    for f in (os.link, os.rename):
        try: f(source, target); print("done")
        except OSError as e: print(e.errno)
'; cp --reflink=auto a2 /tmp/copy; mv /tmp/copy back; touch /tmp/t; mv /tmp/t .; stat -c %h back`)
		succeeded(t, got)
		if want := "3\n0 0\n18\n18\n18\n18\n1\n"; got.Stdout != want {
			t.Errorf("stdout is %q, want %q", got.Stdout, want)
		}
		if got.Stderr != "" {
			t.Errorf("stderr is %q", got.Stderr)
		}
	})
}

// pnpm links from a store in the project, and copies from one elsewhere; neither is
// taken for tampering.
func TestCase13_PNPMHardLinks(t *testing.T) {
	lab := sbxtest.NewLab(t, sbxtest.RealNetwork())
	everyone(t, func(t *testing.T, who sbxtest.User) {
		lab.Write(who, "package.json", `{"name": "x", "version": "1.0.0", "dependencies": {"is-odd": "3.0.1"}}`)
		succeeded(t, outside(t, lab, who, "git init -q ."))
		for store, want := range map[string]string{"--store-dir ./store": "2\n", "--store-dir ../elsewhere": "1\n"} {
			for range 2 {
				cmd := lab.Command(t, who, "sbx", "exec", "--profile", "js-install", "--no-cache", "--", "sh", "-c",
					"rm -rf node_modules; pnpm10 install "+store+" >log 2>&1 || cat log >&2; stat -c %h node_modules/is-odd/index.js; node -e 'console.log(require(\"is-odd\")(3))'")
				withPath(cmd, sbxtest.Clients(t))
				got := lab.RunCommand(t, who, cmd)
				printed(t, got, want+"true\n")
				if list := asideOf(t, lab, who, got); len(list) > 0 || strings.Contains(got.Stderr, "changed") {
					t.Errorf("set aside: %v; %s", list, got.Stderr)
				}
			}
		}
	})
}

// /dev has what scripts and programs need, and /dev/shm is the run's own.
func TestCase14_Devices(t *testing.T) {
	lab := sbxtest.NewLab(t)
	everyone(t, func(t *testing.T, who sbxtest.User) {
		got := shell(t, lab, who, `set -e
			/usr/bin/python3 -c 'import multiprocessing as m; m.Lock(); print(m.Pool(2).map(abs, [-1, 2]))'
			cat <(echo substituted); echo out >/dev/stdout; echo err >/dev/stderr; echo fd >/dev/fd/1; head -c8 /dev/urandom | wc -c; : >/dev/null; head -c3 /dev/zero | wc -c
			ls -A /dev/shm; test $(df --output=size -k /dev/shm | tail -1) -ge 65536; echo x >/dev/shm/sbx-case14; cat /dev/shm/sbx-case14; echo x >/dev/full && exit 1; test -c /dev/tty
			test -p /dev/stdin || echo "stdin is no pipe"`)
		printed(t, got, "[1, 2]\nsubstituted\nout\nfd\n8\n3\nx\nstdin is no pipe\n")
		says(t, got.Stderr, "err\n")
		if _, err := os.Stat("/dev/shm/sbx-case14"); err == nil {
			t.Error("/dev/shm is the host's")
		}
		// The same with a file as standard output.
		file := lab.Command(t, who, "sbx", "exec", "--", "sh", "-c", "echo a >/dev/stdout; echo b >>/dev/stdout; echo c >/proc/self/fd/1")
		to, err := os.Create(filepath.Join(t.TempDir(), "out"))
		if err != nil {
			t.Fatal(err)
		}
		defer to.Close()
		file.Stdout = to
		succeeded(t, lab.RunCommand(t, who, file))
		if text := contents(t, to.Name()); text != "a\nb\nc\n" {
			t.Errorf("the file has %q", text)
		}
	})
}
