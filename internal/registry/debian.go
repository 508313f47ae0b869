package registry

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// debian reads apt's source lists in both of their forms (sources.list(5)).
// Sources that are not fetched over http or https need no grant.
func (r *Resolver) debian() (*answer, error) {
	b, complete := r.begin("debian")
	if complete {
		return b.done()
	}
	paths, err := r.aptLists()
	if err != nil {
		return nil, err
	}
	for _, path := range paths {
		text, found, err := r.read(path)
		if err != nil {
			return nil, err
		}
		if found && strings.HasSuffix(path, ".sources") {
			r.aptStanzas(b, path, text)
		} else if found {
			r.aptLines(b, path, text)
		}
	}
	return b.done()
}

// aptLists returns the main list and the parts, sorted by name as apt does.
func (r *Resolver) aptLists() ([]string, error) {
	paths := []string{"/etc/apt/sources.list"}
	dir := "/etc/apt/sources.list.d"
	entries, err := os.ReadDir(r.opts.Root + dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("listing %s: %w", dir, err)
	}
	for _, e := range entries {
		if ext := filepath.Ext(e.Name()); ext == ".list" || ext == ".sources" {
			paths = append(paths, filepath.Join(dir, e.Name()))
		}
	}
	return paths, nil
}

// aptLines reads lines like: deb [arch=amd64] http://deb.test/debian stable main.
func (r *Resolver) aptLines(b *builder, path, text string) {
	for i, line := range strings.Split(text, "\n") {
		line, _, _ = strings.Cut(line, "#")
		kind, rest, _ := strings.Cut(strings.TrimSpace(strings.ReplaceAll(line, "\t", " ")), " ")
		if kind != "deb" && kind != "deb-src" {
			continue
		}
		rest = strings.TrimSpace(rest)
		if strings.HasPrefix(rest, "[") {
			_, rest, _ = strings.Cut(rest, "]")
		}
		if fields := strings.Fields(rest); len(fields) > 0 {
			addArchive(b, setting{fields[0], r.lineSource(path, i+1)})
		}
	}
}

// aptStanzas reads deb822 stanzas; one with Enabled: no is left out.
func (r *Resolver) aptStanzas(b *builder, path, text string) {
	var uris []setting
	enabled, field := true, ""
	flush := func() {
		for _, s := range uris {
			if enabled {
				addArchive(b, s)
			}
		}
		uris, enabled, field = nil, true, ""
	}
	for i, line := range strings.Split(text, "\n") {
		value := line
		switch {
		case strings.HasPrefix(line, "#"):
			continue
		case strings.TrimSpace(line) == "":
			flush()
			continue
		case line[0] != ' ' && line[0] != '\t':
			field, value, _ = strings.Cut(line, ":")
			field = strings.ToLower(strings.TrimSpace(field))
		}
		switch field {
		case "uris":
			for uri := range strings.FieldsSeq(value) {
				uris = append(uris, setting{uri, r.lineSource(path, i+1)})
			}
		case "enabled":
			off := []string{"no", "false", "without", "off", "disable", "0"}
			enabled = !slices.Contains(off, strings.ToLower(strings.TrimSpace(value)))
		}
	}
	flush()
}

func addArchive(b *builder, s setting) {
	if strings.HasPrefix(s.value, "http://") || strings.HasPrefix(s.value, "https://") {
		b.add("", s)
	}
}
