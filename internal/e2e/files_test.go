package e2e

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/fractalboxdev/sbx/internal/sbxtest"
)

// The command is the caller, or nobody where the caller is root, and what it
// makes is the caller's.
func TestCase10_Identity(t *testing.T) {
	lab := sbxtest.NewLab(t)
	everyone(t, func(t *testing.T, who sbxtest.User) {
		lab.Write(who, "mine", "")
		got := shell(t, lab, who, `id -u; stat -c %u . mine; mkdir -p new/dir; echo x >new/dir/file; ln -s file new/dir/link; ln new/dir/file new/hard; stat -c %u new/dir/file`)
		succeeded(t, got)
		ids := strings.Fields(got.Stdout)
		if ids[0] == "0" || who == sbxtest.AsUser && ids[0] != strconv.Itoa(lab.UID(who)) {
			t.Errorf("the uid inside is %s; outside it is %d", ids[0], lab.UID(who))
		}
		if slices.ContainsFunc(ids, func(id string) bool { return id != ids[0] }) {
			t.Errorf("uid and owners differ inside: %v", ids)
		}
		foreign(t, lab, who)
		if who == sbxtest.AsRoot { // root's groups open too much; a user's cannot be dropped
			cmd := lab.Command(t, who, "sbx", "exec", "--", "sh", "-c", "grep ^Groups: /proc/self/status; id -G")
			cmd.SysProcAttr.Credential = &syscall.Credential{Groups: []uint32{0, 4, 27}}
			printed(t, lab.RunCommand(t, who, cmd), "Groups:\t \n"+ids[0]+"\n")
		}
	})
}

// setuid makes programs that would run as their owner, in every way there is.
const setuid = `
	cp /bin/true plain; chmod 4755 plain; chmod u+s,g+s plain
	cp /bin/true group; chmod 2755 group
	install -m 6755 /bin/true installed
	node -e "
		const fs = require('fs')
		for (const f of [() => fs.closeSync(fs.openSync('opened', 'w', 0o4755)), () => fs.fchmodSync(fs.openSync('plain', 'r'), 0o4755),
			() => fs.lchmodSync && fs.lchmodSync('plain', 0o4755)]) try { f() } catch {}"
	/usr/bin/python3 -c "
import ctypes, os
libc = ctypes.CDLL(None, use_errno=True)
for call in (lambda: os.mknod('node', 0o104755), lambda: libc.syscall(452, -100, b'plain', 0o4755, 0), lambda: libc.syscall(90, b'plain', 0o4755)):
    try: call()
    except OSError: pass"
	python3 -c "
import tarfile, io
a = tarfile.open('x.tar', 'w'); i = tarfile.TarInfo('untarred'); i.mode = 0o4755; a.addfile(i, io.BytesIO(b'')); a.close()"
	tar -xpf x.tar; true`

func TestSetuidFilesCannotBeMade(t *testing.T) {
	lab := sbxtest.NewLab(t)
	everyone(t, func(t *testing.T, who sbxtest.User) {
		shell(t, lab, who, setuid) // its own status does not matter
		seen := 0
		err := filepath.WalkDir(lab.Project(who), func(path string, entry fs.DirEntry, err error) error {
			if err != nil {
				return err
			}
			info, err := entry.Info()
			if err == nil && info.Mode().IsRegular() {
				seen++
				if info.Mode()&(fs.ModeSetuid|fs.ModeSetgid) != 0 {
					t.Errorf("%s has mode %s on disk", path, info.Mode())
				}
			}
			return err
		})
		if err != nil || seen < 3 {
			t.Errorf("%v; only %d files were made", err, seen)
		}
	})
}

// The home is an empty one of the run's own.
func TestHomeIsPrivate(t *testing.T) {
	lab := sbxtest.NewLab(t)
	everyone(t, func(t *testing.T, who sbxtest.User) {
		key := inHome(t, lab, who, ".ssh/id_ed25519", "PRIVATE KEY\n")
		inHome(t, lab, who, ".netrc", "machine x.test password hunter2\n")
		inHome(t, lab, who, "other/project/file", "other\n")
		got := shell(t, lab, who, `cat ~/.ssh/id_ed25519 ~/.netrc `+key+` ../other/project/file; ls -A ~/.ssh; ls -A ..; echo new >~/new; cat ~/new`)
		if !strings.HasSuffix(got.Stdout, "new\n") || strings.Contains(got.Stdout, "other") {
			t.Errorf("stdout is %q", got.Stdout)
		}
		for _, secret := range []string{"PRIVATE", "hunter2", ".ssh\n", "id_ed25519\n"} {
			if strings.Contains(got.Stdout, secret) {
				t.Errorf("%q is visible: %q", secret, got.Stdout)
			}
		}
		if _, err := os.Stat(filepath.Join(lab.Home(who), "new")); err == nil {
			t.Error("the host's home was written to")
		}
	})
}

// Only listed variables pass, and those that are asked for.
func TestSecretsOfTheEnvironmentStayOutside(t *testing.T) {
	lab := sbxtest.NewLab(t)
	everyone(t, func(t *testing.T, who sbxtest.User) {
		with := func(argv ...string) sbxtest.Result {
			cmd := lab.Command(t, who, append([]string{"sbx", "exec"}, argv...)...)
			cmd.Env = append(cmd.Env, "AWS_SECRET_ACCESS_KEY=hunter2", "GITHUB_TOKEN=hunter2", "SSH_AUTH_SOCK=/hunter2", "MY_VARIABLE=hunter2",
				"DBUS_SESSION_BUS_ADDRESS=unix:path=/hunter2", "LD_PRELOAD=/hunter2.so", "NODE_OPTIONS=--hunter2", "BASH_ENV=/hunter2", "LC_ALL=C.UTF-8")
			return lab.RunCommand(t, who, cmd)
		}
		got := with("--", "bash", "-c", "env; cat /proc/*/environ | tr '\\0' '\\n'")
		says(t, got.Stdout, "LC_ALL=C.UTF-8", "HOME=", "PATH=", "PWD="+lab.Project(who))
		if strings.Contains(got.Stdout, "hunter2") {
			t.Errorf("a secret is inside: %s", got.Stdout)
		}
		printed(t, with("--env", "MY_VARIABLE", "--env", "OTHER=a=b c", "--env", "EMPTY=", "--", "sh", "-c", `echo "$MY_VARIABLE,$OTHER,${EMPTY-unset}"`), "hunter2,a=b c,\n")
	})
}

// Tools below the home run when PATH names them; what lies beside them and
// gives access to something does not come along.
func TestToolsBelowTheHome(t *testing.T) {
	lab := sbxtest.NewLab(t)
	everyone(t, func(t *testing.T, who sbxtest.User) {
		home := lab.Home(who)
		for _, name := range []string{".cargo/bin/tool", ".local/bin/own"} {
			path := inHome(t, lab, who, name, "#!/bin/sh\necho ${0##*/} runs\n")
			if err := os.Chmod(path, 0o755); err != nil {
				t.Fatal(err)
			}
		}
		hidden := []string{".cargo/credentials.toml", ".cargo/credentials", ".local/share/keyrings/login.keyring"}
		for _, name := range hidden {
			inHome(t, lab, who, name, "hunter2\n")
		}
		script := "tool; own; echo x >>~/.cargo/bin/tool; rm -f ~/.cargo/bin/tool; cat"
		for _, name := range hidden {
			script += " " + filepath.Join(home, name)
		}
		cmd := lab.Command(t, who, "sbx", "exec", "--", "bash", "-c", script)
		cmd.Env = append(cmd.Env, "PATH="+home+"/.cargo/bin:"+home+"/.local/bin:/usr/bin:/bin")
		got := lab.RunCommand(t, who, cmd)
		if got.Stdout != "tool runs\nown runs\n" {
			t.Errorf("stdout is %q; stderr %s", got.Stdout, got.Stderr)
		}
		if text := contents(t, home+"/.cargo/bin/tool"); !strings.HasSuffix(text, "runs\n") {
			t.Errorf("the tool is now %q", text)
		}
	})
}

// repository is a project under git, with a submodule's and a worktree's parts.
const repository = `set -e
	export GIT_CONFIG_GLOBAL=/dev/null GIT_AUTHOR_NAME=x GIT_AUTHOR_EMAIL=x@git.test GIT_COMMITTER_NAME=x GIT_COMMITTER_EMAIL=x@git.test
	git init -q lib; git -C lib commit -q --allow-empty -m lib
	git init -q main; cd main; git commit -q --allow-empty -m first
	git -c protocol.file.allow=always submodule --quiet add ../lib lib; git commit -q -m lib
	git worktree add -q ../tree 2>/dev/null`

// tampering tries to make the host's next git command run something.
const tampering = `
	dir=$(git rev-parse --absolute-git-dir); common=$(cd "$(git rev-parse --git-common-dir)" && pwd)
	for d in "$dir" "$common" "$common/modules/lib"; do
		mkdir -p "$d/hooks"
		echo EVIL >"$d/hooks/pre-commit"; echo EVIL >"$d/hooks/new-hook"; chmod 755 "$d/hooks/new-hook"
		echo '[core] fsmonitor = EVIL' >>"$d/config"; echo EVIL >>"$d/config.worktree"
		git config -f "$d/config" core.pager EVIL
		rm -rf "$d/hooks" "$d/config"; mv "$d/hooks" "$d/hooks2"; mv "$d/config" "$d/config2"
	done
	for d in . lib; do
		mv $d/.git $d/.git2; rm -rf $d/.git
		mkdir evil; echo EVIL >evil/config; mv evil $d/.git
	done
	true`

// What git runs on the host's behalf cannot be changed from inside.
func TestBypass47_GitHooksAndConfigAreReadOnly(t *testing.T) {
	lab := sbxtest.NewLab(t)
	everyone(t, func(t *testing.T, who sbxtest.User) {
		guarded := func(at string) map[string]string {
			all := tree(t, at+"/main/.git")
			for name := range all {
				parts := strings.Split(name, "/")
				if parts[0] == "evil" || !slices.Contains(parts, "hooks") && !strings.HasPrefix(filepath.Base(name), "config") {
					delete(all, name)
				}
			}
			for _, link := range []string{"/tree/.git", "/main/lib/.git"} {
				text, err := os.ReadFile(at + link)
				all[link] = fmt.Sprint(string(text), err)
			}
			return all
		}
		for dir, works := range map[string]string{
			"main":     "git -c user.name=x -c user.email=x@git.test commit -q --allow-empty -m inside && git log -1 --format=%s",
			"tree":     "git log -1 --format=%s | sed s/.*/inside/", // its repository is shown read-only
			"main/lib": "git log -1 --format=%s | sed s/.*/inside/", // likewise
		} {
			t.Run(dir, func(t *testing.T) {
				at := filepath.Join(lab.Project(who), strings.ReplaceAll("at "+dir, "/", " "))
				succeeded(t, outside(t, lab, who, "mkdir '"+at+"'; cd '"+at+"'\n"+repository))
				before := guarded(at)
				printed(t, shell(t, lab, who, works, "-C", filepath.Join(at, dir)), "inside\n")
				succeeded(t, shell(t, lab, who, tampering, "-C", filepath.Join(at, dir)))
				same(t, before, guarded(at))
			})
		}
	})
}

// traps are changes inside after which the host's next git command would run
// a program.
var traps = map[string]string{
	"missing hooks":   `mkdir -p .git/hooks; printf '#!/bin/sh\ntouch pwned\n' >.git/hooks/post-commit; chmod 755 .git/hooks/post-commit`,
	"commondir":       `cp -r .git evil; printf '[core]\n fsmonitor = "touch pwned; false"\n' >>evil/config; echo ../evil >.git/commondir`,
	"config.worktree": `printf '[core]\n fsmonitor = "touch pwned; false"\n' >.git/config.worktree; git config extensions.worktreeConfig true`,
	"submodule's link": `cp -r .git/modules/lib evil; git config -f evil/config core.worktree ../; git config -f evil/config core.fsmonitor 'touch pwned; false'
		rm -rf lib/.git; mv evil lib/.git`,
}

func TestBypass46_GitRunsNothingOfTheSandboxes(t *testing.T) {
	lab := sbxtest.NewLab(t)
	everyone(t, func(t *testing.T, who sbxtest.User) {
		for name, script := range traps {
			t.Run(name, func(t *testing.T) {
				dir := strings.ReplaceAll(name, " ", "-")
				succeeded(t, outside(t, lab, who, "mkdir "+dir+"; cd "+dir+"\n"+repository+"\nrm -rf .git/hooks"))
				at := filepath.Join(lab.Project(who), dir, "main")
				shell(t, lab, who, script, "-C", at) // its own status does not matter
				outside(t, lab, who, "cd "+at+"; git status; git -c user.name=x -c user.email=x@git.test commit -q --allow-empty -m x")
				if found := outside(t, lab, who, "find "+dir+" -name pwned"); found.Stdout != "" {
					t.Errorf("git ran the sandbox's program outside: it made %s", found.Stdout)
				}
			})
		}
	})
}

// A run leaves nothing in project and home but its records, which are not
// visible inside.
func TestCase09_NothingIsLeftBehind(t *testing.T) {
	lab := sbxtest.NewLab(t)
	everyone(t, func(t *testing.T, who sbxtest.User) {
		succeeded(t, outside(t, lab, who, "git init -q . && mkdir src && echo x >src/file"))
		succeeded(t, run(t, lab, who, "--", "true"))
		list := func() map[string]string {
			all := tree(t, lab.Home(who))
			for name := range all {
				if strings.HasPrefix(name, ".local/state/sbx/") || name == "state" || strings.HasPrefix(name, "state/") {
					delete(all, name)
				} else {
					all[name] += changed(t, filepath.Join(lab.Home(who), name))
				}
			}
			return all
		}
		before := list()
		succeeded(t, shell(t, lab, who, "curl -s https://unlisted.test/; echo x >/tmp/x; echo x >~/x"))
		same(t, before, list())
		got := shell(t, lab, who, "ls -R / 2>/dev/null | grep -c -e denials.jsonl -e receipt.json -e requests.jsonl -e output.log; ls "+lab.StateDir(who)+" /var/lib/sbx")
		if !strings.HasPrefix(got.Stdout, "0\n") || len(got.Stdout) > 2 {
			t.Errorf("records are visible inside: %q", got.Stdout)
		}
	})
}

// changed is when a file or its list of names was changed last.
func changed(t *testing.T, path string) string {
	t.Helper()
	info, err := os.Lstat(path)
	if err != nil {
		t.Fatal(err)
	}
	return fmt.Sprint(" ", info.ModTime().UnixNano())
}

// The records of a run belong to the caller alone.
func TestRecordsAreTheCallersAlone(t *testing.T) {
	lab := sbxtest.NewLab(t)
	everyone(t, func(t *testing.T, who sbxtest.User) {
		got := shell(t, lab, who, "curl -s https://unlisted.test/; echo out; echo err >&2")
		succeeded(t, got)
		kept(t, lab, who, got.RunDir)
		says(t, string(got.File(t, "output.log")), "out", "err")
	})
}

// kept checks owner and modes of a directory of records.
func kept(t *testing.T, lab *sbxtest.Lab, who sbxtest.User, dir string) {
	t.Helper()
	for _, name := range []string{"", "receipt.json", "denials.jsonl", "requests.jsonl", "output.log"} {
		var s unix.Stat_t
		if err := unix.Lstat(filepath.Join(dir, name), &s); err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		want := uint32(unix.S_IFREG | 0o600)
		if name == "" {
			want = unix.S_IFDIR | 0o700
		}
		if s.Mode != want || int(s.Uid) != lab.UID(who) {
			t.Errorf("%s has mode %o and owner %d, want %o and %d", name, s.Mode, s.Uid, want, lab.UID(who))
		}
	}
}

// The kernel's account of what the command may do.
func TestNoPrivileges(t *testing.T) {
	lab := sbxtest.NewLab(t)
	everyone(t, func(t *testing.T, who sbxtest.User) {
		got := shell(t, lab, who, `grep -E '^(Cap|NoNewPrivs|Seccomp:)' /proc/self/status; sed 1,2d /proc/net/dev | cut -d: -f1; ulimit -c`)
		none := "0000000000000000\n"
		want := "CapInh:\t" + none + "CapPrm:\t" + none + "CapEff:\t" + none + "CapBnd:\t" + none + "CapAmb:\t" + none + "NoNewPrivs:\t1\nSeccomp:\t2\n    lo\n0\n"
		printed(t, got, want)
		for _, read := range []string{"cat environ", "cat maps", "head -c 1 mem", "bash -c 'for f in fd/*; do readlink $f && exit 0; done; exit 1'", "ls root/", "ls cwd/", "cat stack", "cat auxv", "readlink exe"} {
			if got := shell(t, lab, who, "cd /proc/1 && "+read); got.Exit == 0 {
				t.Errorf("in /proc/1 one can %s: %q", read, got.Stdout)
			}
		}
		for _, attempt := range []string{
			"unshare -Ur true", "unshare -Urn ip link", "mount -t tmpfs x /tmp", "chroot / true", "ip link add d type dummy", "ip addr flush dev lo",
			"ip route flush table local", "nft flush ruleset", "sysctl -w net.ipv4.ip_forward=1", "nsenter -t 1 -n true", "echo 1 >/proc/sys/net/ipv4/ip_forward",
		} {
			if got := shell(t, lab, who, attempt); got.Exit == 0 {
				t.Errorf("%s works: %q", attempt, got.Stdout)
			}
		}
	})
}

// Servers of the command's own are reached on loopback, and are nobody else's
// business.
func TestCase28_LoopbackIsPrivate(t *testing.T) {
	lab := sbxtest.NewLab(t)
	everyone(t, func(t *testing.T, who sbxtest.User) {
		lab.Write(who, "server.js", `
			const http = require('node:http')
			const { execFileSync } = require('node:child_process')
			const serve = (host) => new Promise((ready) => {
				const server = http.createServer((_, answer) => answer.end('own ' + host)).listen(8123, host, () => ready(server))
			})
			const ask = async (url) => { console.log(await (await fetch(url)).text()) }
			Promise.all(['127.0.0.1', '::1'].map(serve)).then(async (servers) => {
				await ask('http://127.0.0.1:8123/'); await ask('http://[::1]:8123/')
				const curl = require('node:child_process').spawn('curl', ['-sS', 'http://127.0.0.1:8123/', 'http://localhost:8123/', 'http://[::1]:8123/'], { stdio: ['ignore', 'inherit', 'inherit'] })
				curl.on('exit', () => servers.forEach((s) => s.close()))
			})`)
		got := run(t, lab, who, "--", "node", "server.js")
		succeeded(t, got)
		says(t, got.Stdout, "own 127.0.0.1\nown ::1\n")
		if n := strings.Count(got.Stdout, "own "); n != 5 {
			t.Errorf("%d answers, want 5: %q %q", n, got.Stdout, got.Stderr)
		}
		noDenials(t, got)
		if rows := got.Requests(t); len(rows) > 0 {
			t.Errorf("loopback was recorded: %+v", rows)
		}
	})
}
