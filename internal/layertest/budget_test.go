package layertest

import (
	"bytes"
	"go/ast"
	"go/token"
	"os"
	"path/filepath"
	"slices"
	"testing"
)

// The budgets, in lines.
const (
	medianFunction = 12
	mostFunctions  = 60 // 95 % of them
	anyFunction    = 100
	anyFile        = 600
	anyTestFile    = 1000
)

func TestFunctionsAreShort(t *testing.T) {
	var lengths []int
	for _, s := range sources(t) {
		if s.test {
			continue // tables make tests long without making them hard
		}
		for _, decl := range s.file.Decls {
			f, ok := decl.(*ast.FuncDecl)
			if !ok {
				continue
			}
			n := s.set.Position(f.End()).Line - s.set.Position(f.Pos()).Line + 1
			lengths = append(lengths, n)
			if n > anyFunction {
				t.Errorf("%s: %s has %d lines, more than %d", s.name, f.Name.Name, n, anyFunction)
			}
		}
	}
	slices.Sort(lengths)
	if median := lengths[len(lengths)/2]; median > medianFunction {
		t.Errorf("the median function has %d lines, more than %d", median, medianFunction)
	}
	if most := lengths[len(lengths)*95/100]; most > mostFunctions {
		t.Errorf("95 %% of the functions have up to %d lines, more than %d", most, mostFunctions)
	}
}

func TestFilesAreShort(t *testing.T) {
	for _, s := range sources(t) {
		limit := anyFile
		if s.test {
			limit = anyTestFile
		}
		if s.lines > limit {
			t.Errorf("%s has %d lines, more than %d: does it hold two ideas?", s.name, s.lines, limit)
		}
	}
	for _, name := range tracked(t) {
		if ext := filepath.Ext(name); ext != ".c" && ext != ".h" {
			continue
		}
		text, err := os.ReadFile(filepath.Join(top, name))
		if err != nil {
			t.Fatal(err)
		}
		if n := bytes.Count(text, []byte("\n")); n > anyFile {
			t.Errorf("%s has %d lines, more than %d", name, n, anyFile)
		}
	}
}

func TestEveryPackageIsDescribed(t *testing.T) {
	described := map[string]bool{}
	for _, s := range sources(t) {
		described[s.pkg] = described[s.pkg] || s.file.Doc != nil && !s.test
	}
	for pkg, has := range described {
		if !has && table[pkg].layer != tests {
			t.Errorf("package %s has no package comment", pkg)
		}
	}
}

func TestExportedNamesAreDescribed(t *testing.T) {
	for _, s := range sources(t) {
		if s.test || s.file.Name.Name == "main" {
			continue
		}
		for _, decl := range s.file.Decls {
			for _, name := range undescribed(decl) {
				t.Errorf("%s: exported %s has no comment", s.set.Position(name.Pos()), name.Name)
			}
		}
	}
}

// undescribed is the exported names that a declaration introduces without a
// comment of their own or, in a group, of the group's.
func undescribed(decl ast.Decl) []*ast.Ident {
	switch d := decl.(type) {
	case *ast.FuncDecl:
		if d.Doc == nil && d.Name.IsExported() && exportedReceiver(d) && !wellKnown(d) {
			return []*ast.Ident{d.Name}
		}
	case *ast.GenDecl:
		if d.Tok == token.IMPORT {
			return nil
		}
		return undescribedSpecs(d)
	}
	return nil
}

// wellKnown methods say by their name which interface they are there for.
func wellKnown(f *ast.FuncDecl) bool {
	known := []string{"Error", "Unwrap", "Is", "String", "Read", "Write", "Close", "ServeHTTP"}
	return f.Recv != nil && slices.Contains(known, f.Name.Name)
}

func undescribedSpecs(d *ast.GenDecl) []*ast.Ident {
	var bare []*ast.Ident
	for _, spec := range d.Specs {
		switch s := spec.(type) {
		case *ast.TypeSpec:
			if d.Doc == nil && s.Doc == nil && s.Name.IsExported() {
				bare = append(bare, s.Name)
			}
		case *ast.ValueSpec:
			for _, name := range s.Names {
				if d.Doc == nil && s.Doc == nil && s.Comment == nil && name.IsExported() {
					bare = append(bare, name)
				}
			}
		}
	}
	return bare
}

// exportedReceiver is true for functions and for methods of exported types:
// only those are seen from outside.
func exportedReceiver(f *ast.FuncDecl) bool {
	if f.Recv == nil {
		return true
	}
	receiver := f.Recv.List[0].Type
	if star, ok := receiver.(*ast.StarExpr); ok {
		receiver = star.X
	}
	if generic, ok := receiver.(*ast.IndexExpr); ok {
		receiver = generic.X
	}
	name, ok := receiver.(*ast.Ident)
	return ok && name.IsExported()
}
