package sandbox

import (
	"encoding/binary"
	"errors"
	"fmt"
)

// errShort means that an encoded specification ends too early.
var errShort = errors.New("decoding the specification: it ends too early")

// Encode lays the specification out for the runner. Strings travel as bytes: paths
// and arguments need not be UTF-8.
func (s Spec) Encode() []byte {
	var w writer
	w.text(s.Run)
	w.number(s.UID)
	w.number(s.GID)
	w.flag(s.Mapping != nil)
	if m := s.Mapping; m != nil {
		for _, id := range []uint32{m.KUID, m.KGID, m.FileUID, m.FileGID} {
			w.number(id)
		}
	}
	w.number(uint32(len(s.Tree))) //nolint:gosec // bounded by the frame
	for _, e := range s.Tree {
		w.entry(e)
	}
	w.text(s.Workdir)
	w.texts(s.Argv)
	w.texts(s.Env)
	for i := range 3 {
		w.flag(s.Stdio.TTY[i])
		w.flag(s.Stdio.Null[i])
	}
	w.number(uint32(s.Stdio.Rows))
	w.number(uint32(s.Stdio.Cols))
	w.text(string(s.Probe.V4[:]))
	w.text(string(s.Probe.V6[:]))
	w.number(uint32(s.Probe.Port))
	w.text(s.Probe.Nonce)
	w.flag(s.WaitChildren)
	w.flag(s.UserNamespaces)
	w.number(s.Landlock)
	for _, n := range []uint64{s.Limits.Files, s.Limits.FileSize, s.Limits.Processes, s.Limits.Data, s.PrivateSize} {
		w.number(uint32(n)) //nolint:gosec // the lower half
		w.number(uint32(n >> 32))
	}
	return w.b
}

// DecodeSpec reads what Encode wrote.
func DecodeSpec(b []byte) (Spec, error) {
	r := reader{b: b}
	s := Spec{Run: r.text(), UID: r.number(), GID: r.number()}
	if r.flag() {
		s.Mapping = &Mapping{KUID: r.number(), KGID: r.number(), FileUID: r.number(), FileGID: r.number()}
	}
	for range r.count() {
		s.Tree = append(s.Tree, r.entry())
	}
	s.Workdir, s.Argv, s.Env = r.text(), r.texts(), r.texts()
	for i := range 3 {
		s.Stdio.TTY[i], s.Stdio.Null[i] = r.flag(), r.flag()
	}
	s.Stdio.Rows, s.Stdio.Cols = uint16(r.number()), uint16(r.number()) //nolint:gosec // written from 16 bits
	copy(s.Probe.V4[:], r.text())
	copy(s.Probe.V6[:], r.text())
	s.Probe.Port, s.Probe.Nonce = uint16(r.number()), r.text() //nolint:gosec // written from 16 bits
	s.WaitChildren, s.UserNamespaces, s.Landlock = r.flag(), r.flag(), r.number()
	for _, n := range []*uint64{&s.Limits.Files, &s.Limits.FileSize, &s.Limits.Processes, &s.Limits.Data, &s.PrivateSize} {
		*n = uint64(r.number())
		*n |= uint64(r.number()) << 32
	}
	if r.err == nil && len(r.b) > 0 {
		r.err = fmt.Errorf("decoding the specification: %d bytes are left over", len(r.b))
	}
	return s, r.err
}

type writer struct{ b []byte }

func (w *writer) number(n uint32) { w.b = binary.LittleEndian.AppendUint32(w.b, n) }

func (w *writer) flag(on bool) {
	var b byte
	if on {
		b = 1
	}
	w.b = append(w.b, b)
}

func (w *writer) text(s string) {
	w.number(uint32(len(s))) //nolint:gosec // bounded by the frame
	w.b = append(w.b, s...)
}

func (w *writer) texts(list []string) {
	w.number(uint32(len(list))) //nolint:gosec // bounded by the frame
	for _, s := range list {
		w.text(s)
	}
}

func (w *writer) entry(e Entry) {
	w.text(string(e.Kind))
	w.text(e.Source)
	w.text(e.Target)
	w.flag(e.Writable)
	w.flag(e.Owned)
	w.number(e.Mode)
	w.number(uint32(len(e.Files))) //nolint:gosec // bounded by the frame
	for _, name := range sortedKeys(e.Files) {
		w.text(name)
		w.text(e.Files[name])
	}
}

// reader takes an encoding apart; after its first error everything is zero.
type reader struct {
	b   []byte
	err error
}

func (r *reader) take(n int) []byte {
	if r.err != nil || n > len(r.b) {
		r.err, r.b = errShort, nil
		return nil
	}
	out := r.b[:n]
	r.b = r.b[n:]
	return out
}

func (r *reader) number() uint32 {
	if b := r.take(4); b != nil {
		return binary.LittleEndian.Uint32(b)
	}
	return 0
}

// count reads a number of items; no item is shorter than a byte.
func (r *reader) count() int {
	n := int(r.number())
	if n > len(r.b) {
		r.err = errShort
		return 0
	}
	return n
}

func (r *reader) flag() bool {
	b := r.take(1)
	return b != nil && b[0] != 0
}

func (r *reader) text() string { return string(r.take(int(r.number()))) }

func (r *reader) texts() []string {
	var out []string
	for range r.count() {
		out = append(out, r.text())
	}
	return out
}

func (r *reader) entry() Entry {
	e := Entry{Kind: Kind(r.text()), Source: r.text(), Target: r.text(), Writable: r.flag(), Owned: r.flag(), Mode: r.number()}
	for range r.count() {
		name := r.text()
		if e.Files == nil {
			e.Files = map[string]string{}
		}
		e.Files[name] = r.text()
	}
	return e
}
