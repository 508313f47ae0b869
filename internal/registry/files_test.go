package registry_test

import (
	"archive/zip"
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/fractalboxdev/sbx/internal/registry"
)

const userFile = "registry=https://npm.test\n"

// disown makes a file belong to somebody who is neither the caller nor root.
func (w *world) disown(t *testing.T, path string) {
	t.Helper()
	if os.Getuid() != 0 {
		w.opts.UserID = os.Getuid() + 1 // the files are ours, so now they are another's
		return
	}
	if err := os.Lchown(filepath.Join(w.root, path), 4711, 4711); err != nil {
		t.Fatal(err)
	}
}

func (w *world) chmod(t *testing.T, path string, mode os.FileMode) {
	t.Helper()
	if err := os.Chmod(filepath.Join(w.root, path), mode); err != nil {
		t.Fatal(err)
	}
}

// TestHostileFiles: a file that others, or a sandbox, could have written is an
// error that says so, never ignored and never believed.
func TestHostileFiles(t *testing.T) {
	for name, c := range map[string]struct {
		spoil func(t *testing.T, w *world)
		want  string
	}{
		"owner":            {func(t *testing.T, w *world) { w.disown(t, "home/u/.npmrc") }, "belongs neither to you nor to root"},
		"owner of a dir":   {func(t *testing.T, w *world) { w.disown(t, "home/u") }, "belongs neither to you nor to root"},
		"world-writable":   {func(t *testing.T, w *world) { w.chmod(t, "home/u/.npmrc", 0o666) }, "others can write it"},
		"writable dir":     {func(t *testing.T, w *world) { w.chmod(t, "home/u", 0o777) }, "others can write it"},
		"writable parent":  {func(t *testing.T, w *world) { w.chmod(t, "home", 0o777) }, "others can write it"},
		"below a sandbox":  {func(_ *testing.T, w *world) { w.opts.Forbidden = []string{"/home/u"} }, "written from inside a sandbox"},
		"the file itself":  {func(_ *testing.T, w *world) { w.opts.Forbidden = []string{"/x", "/home/u/.npmrc"} }, "written from inside a sandbox"},
		"the whole system": {func(_ *testing.T, w *world) { w.opts.Forbidden = []string{"/"} }, "written from inside a sandbox"},
		"another name": {func(t *testing.T, w *world) {
			w.link(t, "home/u", "alias")
			w.opts.Forbidden = []string{"/alias/"}
		}, "written from inside a sandbox"},
		"link into a sandbox": {func(t *testing.T, w *world) {
			w.write(t, "proj/npmrc", userFile)
			w.relink(t, "/proj/npmrc", "home/u/.npmrc")
			w.opts.Forbidden = []string{"/proj"}
		}, "written from inside a sandbox"},
		"link through a sandbox": {func(t *testing.T, w *world) {
			w.write(t, "home/u/real", userFile)
			w.link(t, "/home/u/real", "proj/hop")
			w.relink(t, "../../proj/hop", "home/u/.npmrc")
			w.opts.Forbidden = []string{"/proj"}
		}, "written from inside a sandbox"},
		"link loop":     {func(t *testing.T, w *world) { w.relink(t, ".npmrc", "home/u/.npmrc") }, "symbolic links"},
		"directory":     {func(t *testing.T, w *world) { w.replace(t, func(p string) error { return os.Mkdir(p, 0o755) }) }, "not a regular file"},
		"pipe":          {func(t *testing.T, w *world) { w.replace(t, func(p string) error { return syscall.Mkfifo(p, 0o600) }) }, "not a regular file"},
		"too large":     {func(t *testing.T, w *world) { w.write(t, "home/u/.npmrc", userFile+strings.Repeat("#", 1<<20)) }, "larger than"},
		"relative home": {func(_ *testing.T, w *world) { w.opts.Home = "home/u" }, "not absolute"},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, "home/u/.npmrc", userFile)
			c.spoil(t, w)
			w.wantError(t, "npm", registry.ErrUntrusted, c.want)
		})
	}
}

func (w *world) relink(t *testing.T, target, path string) {
	t.Helper()
	if err := os.Remove(filepath.Join(w.root, path)); err != nil {
		t.Fatal(err)
	}
	w.link(t, target, path)
}

func (w *world) replace(t *testing.T, make func(path string) error) {
	t.Helper()
	path := filepath.Join(w.root, "home/u/.npmrc")
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	if err := make(path); err != nil {
		t.Fatal(err)
	}
}

// TestHarmlessFiles: what people really have is read.
func TestHarmlessFiles(t *testing.T) {
	for name, prepare := range map[string]func(t *testing.T, w *world){
		"plain":       func(*testing.T, *world) {},
		"private":     func(t *testing.T, w *world) { w.chmod(t, "home/u/.npmrc", 0o600) },
		"sticky home": func(t *testing.T, w *world) { w.chmod(t, "home", 0o777|os.ModeSticky) },
		"dotfiles": func(t *testing.T, w *world) {
			w.write(t, "home/u/dotfiles/npmrc", userFile)
			w.relink(t, "dotfiles/npmrc", "home/u/.npmrc")
		},
		"linked home": func(t *testing.T, w *world) {
			w.link(t, "home/u", "u")
			w.opts.Home = "/u"
		},
		"a sandbox beside it": func(_ *testing.T, w *world) {
			w.opts.Forbidden = []string{"/home/u/project", "/home/u/.npm", "/home/uu"}
		},
		"group of one user": func(t *testing.T, w *world) {
			if err := os.Chown(filepath.Join(w.root, "home/u/.npmrc"), -1, os.Getuid()); err != nil {
				t.Log(err) // not a member of such a group: then it is the caller's group, not of one user
				return
			}
			w.chmod(t, "home/u/.npmrc", 0o664)
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, "home/u/.npmrc", userFile)
			prepare(t, w)
			if got := w.endpoints(t, "npm"); len(got) != 1 || !strings.HasPrefix(got[0], "https://npm.test ") {
				t.Errorf("%v", got)
			}
		})
	}
}

// TestBypass55_UntrustedPrograms: an npm, node or go that a sandbox could have
// written does not tell where to ask, however early it stands in PATH.
func TestBypass55_UntrustedPrograms(t *testing.T) {
	const source = "'registry', {\n default: 'https://evil.test/'"
	w := newWorld(t, "proj/npm/bin/npm-cli.js", "", "proj/npm/lib/utils/config/definitions.js", source, "proj/go/bin/go", "", "proj/go/go.env", "GOPROXY=https://evil.test\n",
		"proj/bin/node", "", "proj/etc/npmrc", "registry=https://evil.test",
		definitions, "'registry', {\n default: 'https://default.test/'", "usr/local/go/go.env", "GOPROXY=https://go.test\n")
	w.link(t, "../npm/bin/npm-cli.js", "proj/bin/npm")
	w.link(t, "/proj/npm/bin/npm-cli.js", "usr/bin/npm")
	w.opts.Env["PATH"] = ".:proj/bin:/proj/bin:/proj/go/bin:/usr/bin"
	w.opts.Forbidden = []string{"/proj"}
	w.want(t, "npm", "https://default.test (npm's built-in default in /"+definitions+")")
	w.want(t, "go", "https://go.test (/usr/local/go/go.env line 1)")
	w.chmod(t, definitions, 0o666)
	w.wantError(t, "npm", registry.ErrUnknown, "others can write it")
}

// TestBypass55_ProgramsOfProjects: what npm run and a virtual environment put on
// PATH tells nothing, wherever the working directory is.
func TestBypass55_ProgramsOfProjects(t *testing.T) {
	const npm, pip = "'registry', {\n default: 'https://evil.test/'", "PyPI = PackageIndex(\"https://evil.test/\", file_storage_domain=\"evil.test\")"
	w := newWorld(t, "home/u/p/node_modules/.bin/npm", "", "home/u/p/node_modules/lib/utils/config/definitions.js", npm,
		"home/u/p/node_modules/.bin/go", "", "home/u/p/node_modules/go.env", "GOPROXY=https://evil.test\n",
		"home/u/p/.venv/bin/pip", "", "home/u/p/.venv/pyvenv.cfg", "", "home/u/p/.venv/lib/python3.11/site-packages/"+strings.TrimPrefix(pipIndex, "usr/lib/python3/dist-packages/"), pip,
		definitions, "'registry', {\n default: 'https://default.test/'", "usr/local/go/go.env", "GOPROXY=https://go.test\n")
	w.opts.Env["PATH"] = "/home/u/p/node_modules/.bin:/home/u/p/.venv/bin/:/usr/bin"
	w.want(t, "npm", "https://default.test (npm's built-in default in /"+definitions+")")
	w.want(t, "go", "https://go.test (/usr/local/go/go.env line 1)")
	w.wantError(t, "python", registry.ErrUnknown)
	const wheel = "usr/share/python-wheels/pip-23.0-py3-none-any.whl"
	var packed bytes.Buffer
	archive := zip.NewWriter(&packed)
	file, err := archive.Create("pip/_internal/models/index.py")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := file.Write([]byte(strings.ReplaceAll(pip, "evil", "index"))); err != nil {
		t.Fatal(err)
	}
	if err := archive.Close(); err != nil {
		t.Fatal(err)
	}
	w.write(t, wheel, packed.String())
	const source = " (pip's built-in default in /" + wheel + ")"
	w.want(t, "python", "https://index.test"+source, "files https://index.test"+source)
	w.write(t, wheel, "no archive")
	w.wantError(t, "python", registry.ErrUnknown, wheel)
}
