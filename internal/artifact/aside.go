package artifact

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strings"
)

// Keep writes a file of the run's own into its directory, once.
func (r *Run) Keep(name string, content []byte) error {
	f, err := create(r.root, name)
	if err != nil {
		return fmt.Errorf("keeping %s: %w", name, err)
	}
	_, err = f.Write(content)
	if err = errors.Join(err, f.Close()); err != nil {
		return fmt.Errorf("keeping %s: %w", name, err)
	}
	return nil
}

// Aside makes the file for what is set aside of the run.
func (r *Run) Aside() (io.WriteCloser, error) { return makeAside(r.root) }

// maxAsides bounds the attempts of runs that died while they set things aside.
const maxAsides = 100

// makeAside never touches a file that an attempt before has left.
func makeAside(root *os.Root) (*os.File, error) {
	base, ext, _ := strings.Cut(AsideFile, ".")
	name := AsideFile
	for i := range maxAsides {
		if i > 0 {
			name = fmt.Sprintf("%s-%d.%s", base, i, ext)
		}
		f, err := create(root, name)
		if !errors.Is(err, fs.ErrExist) {
			return f, err
		}
	}
	return nil, fmt.Errorf("making %s: %w", name, fs.ErrExist)
}

// maxGuarded bounds what a sweep reads of GuardedFile, in bytes.
const maxGuarded = 4 << 20

// readGuarded returns what the run had written of what it guarded, nil for nothing.
func readGuarded(root *os.Root) ([]byte, error) {
	f, err := root.Open(GuardedFile)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return io.ReadAll(io.LimitReader(f, maxGuarded))
}
