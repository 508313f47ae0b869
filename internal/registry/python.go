package registry

import (
	"archive/zip"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"slices"
	"strings"
)

// pipSettings are the settings of pip that say where it asks.
type pipSettings struct {
	index setting
	extra []setting
}

// python reads pip's files, user before global, and else the pair of index and
// file host that pip's own source has as its default.
func (r *Resolver) python() (*answer, error) {
	b, complete := r.begin("python")
	if complete {
		if base, files, err := r.pipDefault(); err == nil && b.first() == base.value {
			b.add("files", files)
		}
		pipEnv(b, b.first()+operatorPage(r.opts.Operator["python"])+"/", nil)
		return b.done()
	}
	s, err := r.pipFiles()
	if err != nil {
		return nil, err
	}
	if v, ok := r.clientVar("PIP_INDEX_URL"); ok {
		s.index = v
	}
	index, err := r.addIndex(b, s.index)
	if err != nil {
		return nil, err
	}
	var extra []string
	for _, e := range s.extra {
		base, _ := splitIndex(e.value)
		b.add("", setting{base, e.source})
		extra = append(extra, withoutUserinfo(e.value))
	}
	pipEnv(b, index, extra)
	return b.done()
}

// pages are the paths of the simple interface below an index: the usual one, and
// that of devpi.
var pages = []string{"/simple", "/+simple"}

// splitIndex takes the page off an index: packages lie beside it. An index that
// is written without its page has the usual one.
func splitIndex(index string) (base, page string) {
	index = strings.TrimRight(index, "/")
	for _, page := range pages {
		if base, ok := strings.CutSuffix(index, page); ok {
			return base, page
		}
	}
	return index, pages[0]
}

// operatorPage is the page of the operator's default index.
func operatorPage(entries []string) string {
	for _, entry := range entries {
		if role, address := splitEntry(entry); role == "" {
			_, page := splitIndex(address)
			return page
		}
	}
	return pages[0]
}

// addIndex adds the index and, for pip's own default, its file host; it returns
// the index in the form that clients want.
func (r *Resolver) addIndex(b *builder, index setting) (string, error) {
	base, files, err := r.pipDefault()
	if index.value == "" {
		if err != nil {
			r.ask(b, err)
			return b.first() + "/simple/", b.err
		}
		index = setting{base.value + "/simple/", base.source}
	}
	own, _ := splitIndex(index.value)
	b.add("", setting{own, index.source})
	if b.err == nil && err == nil && b.first() == base.value {
		b.add("files", files)
	}
	return withoutUserinfo(index.value), b.err
}

func pipEnv(b *builder, index string, extra []string) {
	b.setenv("PIP_INDEX_URL", index)
	b.setenv("UV_DEFAULT_INDEX", index)
	if len(extra) > 0 {
		b.setenv("PIP_EXTRA_INDEX_URL", strings.Join(extra, " "))
		b.setenv("UV_INDEX", strings.Join(extra, " "))
	}
}

// pipFiles joins pip's files, the weightiest first.
func (r *Resolver) pipFiles() (pipSettings, error) {
	var s pipSettings
	for _, path := range []string{
		filepath.Join(r.configHome(), "pip/pip.conf"), r.home(".pip/pip.conf"), "/etc/xdg/pip/pip.conf", "/etc/pip.conf",
	} {
		text, found, err := r.read(path)
		if err != nil {
			return s, err
		}
		if !found {
			continue
		}
		here := r.pipFile(path, text)
		if s.index.value == "" {
			s.index = here.index
		}
		if len(s.extra) == 0 {
			s.extra = here.extra
		}
	}
	return s, nil
}

// pipFile reads the sections that installing looks at; [install] outweighs [global].
func (r *Resolver) pipFile(path, text string) pipSettings {
	bySection := map[string]*pipSettings{"global": {}, "install": {}}
	section, key := "", ""
	for i, line := range strings.Split(text, "\n") {
		trimmed := strings.TrimSpace(line)
		indented := line != "" && (line[0] == ' ' || line[0] == '\t')
		value := trimmed
		switch {
		case trimmed == "" || trimmed[0] == '#' || trimmed[0] == ';':
			continue
		case trimmed[0] == '[':
			section, key = strings.Trim(trimmed, "[]"), ""
			continue
		case !indented:
			at := strings.IndexAny(trimmed, "=:")
			if at < 0 {
				continue
			}
			key = strings.ReplaceAll(strings.ToLower(strings.TrimSpace(trimmed[:at])), "_", "-")
			value = strings.TrimSpace(trimmed[at+1:])
		}
		if s := bySection[section]; s != nil {
			s.take(key, setting{value, r.lineSource(path, i+1)})
		}
	}
	out, global := *bySection["install"], *bySection["global"]
	if out.index.value == "" {
		out.index = global.index
	}
	if len(out.extra) == 0 {
		out.extra = global.extra
	}
	return out
}

func (s *pipSettings) take(key string, v setting) {
	switch key {
	case "index-url":
		if v.value != "" {
			s.index = v
		}
	case "extra-index-url":
		for text := range strings.FieldsSeq(v.value) {
			s.extra = append(s.extra, setting{text, v.source})
		}
	}
}

// pipIndexFile holds pip's default index and file host.
const pipIndexFile = "pip/_internal/models/index.py"

// pipDefault reads the default pair out of an installed pip's source.
func (r *Resolver) pipDefault() (index, files setting, err error) {
	err = errors.New("no installed pip that can be trusted was found")
	for _, dir := range r.pipDirs() {
		path := filepath.Join(dir, pipIndexFile)
		text, found, readErr := r.read(path)
		if readErr != nil {
			err = readErr
		}
		if !found {
			continue
		}
		index, files, ok := pipLiterals(text)
		if ok {
			source := "pip's built-in default in " + r.display(path)
			return setting{index, source}, setting{files, source}, nil
		}
	}
	for _, path := range r.pipWheels() {
		text, wheelErr := r.wheelFile(path)
		if wheelErr != nil {
			err = wheelErr
		}
		if index, files, ok := pipLiterals(text); ok {
			source := "pip's built-in default in " + r.display(path)
			return setting{index, source}, setting{files, source}, nil
		}
	}
	return setting{}, setting{}, err
}

// maxWheel bounds a wheel of pip's, in bytes; they have about 2 MB.
const maxWheel = 16 << 20

// pipWheels are those that an interpreter brings for virtual environments.
func (r *Resolver) pipWheels() []string {
	var paths []string
	for _, pattern := range []string{
		"/usr/share/python-wheels/pip-*.whl", "/usr/lib/python3*/ensurepip/_bundled/pip-*.whl", "/usr/local/lib/python3*/ensurepip/_bundled/pip-*.whl",
		r.home(".pyenv/versions/*/lib/python3*/ensurepip/_bundled/pip-*.whl"), r.home(".local/share/uv/python/*/lib/python3*/ensurepip/_bundled/pip-*.whl"),
	} {
		paths = append(paths, r.glob(pattern)...)
	}
	return paths
}

// wheelFile reads pip's index file out of a wheel, which is a ZIP archive (PEP 427).
func (r *Resolver) wheelFile(path string) (string, error) {
	packed, err := r.readPrefix(path, maxWheel)
	if err != nil {
		return "", err
	}
	archive, err := zip.NewReader(strings.NewReader(packed), int64(len(packed)))
	if err != nil {
		return "", fmt.Errorf("reading %s: %w", path, err)
	}
	file, err := archive.Open(pipIndexFile)
	if err != nil {
		return "", fmt.Errorf("reading %s: %w", path, err)
	}
	defer file.Close()
	text, err := io.ReadAll(io.LimitReader(file, maxFile))
	if err != nil {
		return "", fmt.Errorf("reading %s: %w", path, err)
	}
	return string(text), nil
}

// pipLiterals finds the first PackageIndex of pip's source.
func pipLiterals(source string) (index, files string, ok bool) {
	_, rest, ok := strings.Cut(source, "PyPI = PackageIndex(")
	if !ok {
		return "", "", false
	}
	call, _, _ := strings.Cut(rest, ")")
	parts := strings.FieldsFunc(call, func(c rune) bool { return c == '"' || c == '\'' })
	if len(parts) < 3 || !strings.HasPrefix(parts[0], "https://") || !strings.Contains(parts[1], "file_storage_domain=") {
		return "", "", false
	}
	return strings.TrimRight(parts[0], "/"), "https://" + parts[2], true
}

// pipDirs returns directories of Python packages: of the pip on PATH, of the
// system, and of pyenv, newest first.
func (r *Resolver) pipDirs() []string {
	var dirs []string
	for _, name := range []string{"pip3", "pip", "python3"} {
		if real, ok := r.program(name); ok {
			dirs = append(dirs, r.glob(filepath.Join(filepath.Dir(filepath.Dir(real)), "lib/python3*/site-packages"))...)
		}
	}
	dirs = append(dirs, "/usr/lib/python3/dist-packages")
	for _, pattern := range []string{
		"/usr/local/lib/python3*/site-packages", "/usr/local/lib/python3*/dist-packages", "/usr/lib/python3*/site-packages",
		r.home(".local/lib/python3*/site-packages"), r.home(".pyenv/versions/*/lib/python3*/site-packages"),
	} {
		dirs = append(dirs, r.glob(pattern)...)
	}
	return slices.Compact(dirs)
}

// glob lists directories; what they hold is checked when it is read.
func (r *Resolver) glob(pattern string) []string {
	paths, err := filepath.Glob(r.opts.Root + pattern)
	if err != nil {
		return nil
	}
	for i := range paths {
		paths[i] = strings.TrimPrefix(paths[i], r.opts.Root)
	}
	slices.Sort(paths)
	slices.Reverse(paths)
	return paths
}
