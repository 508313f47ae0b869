package artifact

import (
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"strconv"
)

// removeTree removes name and everything beneath it, never through a link. What
// a command left may hold directories that even their owner may not enter, or that
// lie in one another deeper than there are descriptors: those are taken apart.
func removeTree(root *os.Root, name string) error {
	err := root.RemoveAll(name)
	if err != nil {
		err = takeApart(root, name)
	}
	if err != nil {
		return fmt.Errorf("removing %s: %w", name, err)
	}
	return nil
}

// takeApart removes a tree, and holds two descriptors however deep it is: directories
// are moved up to its top one after the other, and are empty by then. It is only called
// when no process of the run is left, so that a directory cannot turn into a link
// between the look and the change; os.Root keeps even that beneath the state directory.
func takeApart(root *os.Root, name string) error {
	if err := openUpOne(root, name); err != nil {
		return err
	}
	top, err := root.OpenRoot(name)
	if err != nil {
		return err
	}
	defer top.Close()
	t := apart{top: top, prefix: rand.Text() + "-"} // which nothing in there is called
	for {
		entries, err := t.list(".")
		if err != nil {
			return err
		}
		if len(entries) == 0 {
			return root.Remove(name)
		}
		for _, e := range entries {
			if err := t.remove(e); err != nil {
				return err
			}
		}
	}
}

type apart struct {
	top    *os.Root
	prefix string
	moved  int
}

// batch is how many names are looked at together.
const batch = 1024

// list returns some names of a directory, none when it is empty.
func (t *apart) list(name string) ([]os.DirEntry, error) {
	dir, err := t.top.Open(name)
	if err != nil {
		return nil, err
	}
	defer dir.Close()
	entries, err := dir.ReadDir(batch)
	if errors.Is(err, io.EOF) {
		err = nil
	}
	return entries, err
}

// remove removes an entry of the top, after moving the directories in it up.
func (t *apart) remove(e os.DirEntry) error {
	if !e.IsDir() {
		return t.top.Remove(e.Name())
	}
	if err := openUpOne(t.top, e.Name()); err != nil {
		return err
	}
	for {
		below, err := t.list(e.Name())
		if err != nil {
			return err
		}
		if len(below) == 0 {
			return t.top.Remove(e.Name())
		}
		for _, b := range below {
			if err := t.up(path.Join(e.Name(), b.Name()), b.IsDir()); err != nil {
				return err
			}
		}
	}
}

func (t *apart) up(name string, dir bool) error {
	err := t.top.Remove(name)
	if err == nil || !dir {
		return err
	}
	if err = openUpOne(t.top, name); err != nil { // a directory that is moved is written (rename(2))
		return err
	}
	t.moved++
	return t.top.Rename(name, t.prefix+strconv.Itoa(t.moved))
}
