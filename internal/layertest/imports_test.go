package layertest

import (
	"slices"
	"strconv"
	"strings"
	"testing"
)

func TestEveryPackageHasAPlace(t *testing.T) {
	for _, s := range sources(t) {
		if _, known := table[s.pkg]; !known {
			t.Errorf("%s: package %s is not in the table of internal/layertest", s.name, s.pkg)
		}
		if name := s.file.Name.Name; slices.Contains([]string{"util", "utils", "common", "helpers", "misc"}, name) {
			t.Errorf("%s: a package called %s says nothing about what is in it", s.name, name)
		}
	}
}

func TestTableKeepsTheLayers(t *testing.T) {
	for name, from := range table {
		for _, imported := range from.may {
			to, known := table[imported]
			switch {
			case !known:
				t.Errorf("%s may import %s, which is not in the table", name, imported)
			case shared[name] == imported, to.layer == value && imported != name:
			case to.layer < from.layer, to.layer == from.layer && to.layer >= story && imported != name:
			default:
				t.Errorf("%s may import %s, which is not on a lower layer", name, imported)
			}
		}
	}
	for name := range table {
		if path := cycle(name, nil); path != nil {
			t.Errorf("the table has a cycle: %s", strings.Join(path, " imports "))
		}
	}
}

// cycle follows what name may import and returns the way back to it, if any.
func cycle(name string, way []string) []string {
	if slices.Contains(way, name) {
		return append(way, name)
	}
	for _, next := range table[name].may {
		if found := cycle(next, append(slices.Clip(way), name)); found != nil {
			return found
		}
	}
	return nil
}

func TestImportsFollowTheTable(t *testing.T) {
	for _, s := range sources(t) {
		if s.test {
			continue // tests may bring packages together; see the next ones for what they may not
		}
		for _, path := range imports(t, s) {
			imported, own := inTree(path)
			if own && !slices.Contains(table[s.pkg].may, imported) {
				t.Errorf("%s imports %s, which the table does not let %s do", s.name, imported, s.pkg)
			}
		}
	}
}

func TestLibrariesHaveOneHome(t *testing.T) {
	for _, s := range sources(t) {
		for _, path := range imports(t, s) {
			for library, known := range homes {
				inside := path == library || strings.HasPrefix(path, library+"/")
				allowed := slices.Contains(known, s.pkg) || s.test && forTests(library)
				if inside && !allowed {
					t.Errorf("%s imports %s: only %v may", s.name, path, known)
				}
			}
		}
	}
}

// forTests says which libraries any test may use. Where one has a home, so do
// its types in tests: they are not for comparing across packages.
func forTests(library string) bool {
	switch library {
	case "testing", "github.com/google/go-cmp", "github.com/rogpeppe/go-internal",
		// The other side of what a package makes: a name server, a terminal, a link.
		"github.com/miekg/dns", "github.com/creack/pty", "github.com/vishvananda/netlink":
		return true
	}
	return false
}

func TestTheLabIsForTests(t *testing.T) {
	for _, s := range sources(t) {
		for _, path := range imports(t, s) {
			imported, own := inTree(path)
			if own && !s.test && table[imported].layer == tests && table[s.pkg].layer != tests {
				t.Errorf("%s imports %s, which is for test files", s.name, imported)
			}
		}
	}
}

func TestValuesDoNoIO(t *testing.T) {
	for _, s := range sources(t) {
		if s.test || table[s.pkg].layer != value {
			continue
		}
		for _, path := range imports(t, s) {
			if slices.Contains(impure, path) {
				t.Errorf("%s imports %s: values do no I/O", s.name, path)
			}
		}
	}
}

func imports(t *testing.T, s source) []string {
	t.Helper()
	paths := make([]string, 0, len(s.file.Imports))
	for _, spec := range s.file.Imports {
		path, err := strconv.Unquote(spec.Path.Value)
		if err != nil {
			t.Fatalf("%s: reading import %s: %v", s.name, spec.Path.Value, err)
		}
		paths = append(paths, path)
	}
	return paths
}

// inTree is the table's key of an import path, if it is of this module.
func inTree(path string) (string, bool) {
	if path == module {
		return "sbx", true
	}
	rest, own := strings.CutPrefix(path, module+"/")
	return key(rest), own
}
