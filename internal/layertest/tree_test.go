package layertest

import (
	"bytes"
	"context"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// source is one Go file of the tree.
type source struct {
	name  string // relative to the top
	pkg   string // key of the table
	test  bool
	lines int
	file  *ast.File
	set   *token.FileSet
}

// top is the root of the tree; tests run in their package's directory.
const top = "../.."

// sources parses every Go file of the tree, whatever its build constraints.
func sources(t *testing.T) []source {
	t.Helper()
	var all []source
	err := filepath.WalkDir(top, func(path string, entry fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case entry.IsDir() && path != top && skipped(entry.Name()):
			return filepath.SkipDir
		case entry.IsDir() || filepath.Ext(path) != ".go":
			return nil
		}
		s, err := parse(path)
		all = append(all, s)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	if len(all) < 20 {
		t.Fatalf("found %d Go files below %s: not the tree", len(all), top)
	}
	return all
}

// skipped directories hold no source of the module.
func skipped(name string) bool {
	return strings.HasPrefix(name, ".") || name == "testdata" || name == "dist" || name == "bin" || name == "node_modules"
}

func parse(path string) (source, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return source{}, err
	}
	relative, err := filepath.Rel(top, path)
	if err != nil {
		return source{}, err
	}
	s := source{name: relative, pkg: key(filepath.Dir(relative)), lines: bytes.Count(text, []byte("\n")), set: token.NewFileSet()}
	s.test = strings.HasSuffix(path, "_test.go")
	s.file, err = parser.ParseFile(s.set, path, text, parser.ParseComments)
	return s, err
}

// key is a directory's name in the table.
func key(dir string) string {
	if dir == "." {
		return "sbx"
	}
	return strings.TrimPrefix(dir, "internal/")
}

// tracked lists the files that git knows, relative to the top.
func tracked(t *testing.T) []string {
	t.Helper()
	git := exec.CommandContext(context.Background(), "git", "-c", "safe.directory=*", "ls-files", "-z")
	git.Dir = top
	out, err := git.Output()
	if err != nil {
		t.Fatalf("listing the tracked files: %v (the test needs git and a clone)", err)
	}
	return strings.Split(strings.TrimSuffix(string(out), "\x00"), "\x00")
}
