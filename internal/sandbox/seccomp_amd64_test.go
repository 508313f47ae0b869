package sandbox

import (
	"encoding/binary"
	"math/rand/v2"
	"slices"
	"testing"

	"golang.org/x/sys/unix"
)

// seccompData is struct seccomp_data (seccomp(2)).
type seccompData struct {
	Call, Arch uint32
	At         uint64
	Args       [6]uint64
}

// words are what a classic BPF program loads.
func (d seccompData) words() [16]uint32 {
	out := [16]uint32{d.Call, d.Arch, uint32(d.At), uint32(d.At >> 32)}
	for i, arg := range d.Args {
		out[4+2*i], out[5+2*i] = uint32(arg), uint32(arg>>32)
	}
	return out
}

// evaluate runs a program as the kernel does, and counts its steps.
func evaluate(t *testing.T, program []byte, d seccompData) (result uint32, steps int) {
	t.Helper()
	var a uint32
	words := d.words()
	for pc := 0; pc*instruction < len(program); pc++ {
		at := program[pc*instruction:]
		code, k := binary.NativeEndian.Uint16(at), binary.NativeEndian.Uint32(at[4:])
		yes, no := int(at[2]), int(at[3])
		steps++
		var holds bool
		switch code {
		case unix.BPF_LD | unix.BPF_W | unix.BPF_ABS:
			a = words[k/4]
			continue
		case unix.BPF_ALU | unix.BPF_AND | unix.BPF_K:
			a &= k
			continue
		case unix.BPF_RET | unix.BPF_K:
			return k, steps
		case unix.BPF_JMP | unix.BPF_JA:
			pc += int(k)
			continue
		case unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K:
			holds = a == k
		case unix.BPF_JMP | unix.BPF_JGE | unix.BPF_K:
			holds = a >= k
		case unix.BPF_JMP | unix.BPF_JGT | unix.BPF_K:
			holds = a > k
		default:
			t.Fatalf("instruction %d has code %#x", pc, code)
		}
		if holds {
			pc += yes
		} else {
			pc += no
		}
	}
	t.Fatal("the program ends without a result")
	return 0, steps
}

// model decides a call from the data, not from the program. The errors are those of
// all refusals that hold: libseccomp chooses among them.
type model struct {
	permitted, privileged map[int32]bool
	refusals              map[int32][]refusal
}

func newModel(t *testing.T, userNamespaces bool) model {
	t.Helper()
	m := model{permitted: map[int32]bool{}, privileged: map[int32]bool{}, refusals: map[int32][]refusal{}}
	find := func(name string) int32 {
		n, err := number(name)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		return int32(n)
	}
	for _, group := range permitted {
		for _, name := range group {
			if n := find(name); m.permitted[n] {
				t.Errorf("%s is permitted twice", name)
			} else {
				m.permitted[n] = true
			}
		}
	}
	for _, name := range privileged {
		n := find(name)
		if m.permitted[n] {
			t.Errorf("%s is permitted and privileged", name)
		}
		if name == "chroot" && userNamespaces {
			m.permitted[n] = true
		} else {
			m.privileged[n] = true
		}
	}
	for _, r := range refusals(userNamespaces) {
		n := find(r.call)
		if !m.permitted[n] {
			t.Errorf("%s has a rule about its arguments and is not permitted", r.call)
		}
		m.refusals[n] = append(m.refusals[n], r)
	}
	return m
}

func (c condition) holds(args [6]uint64) bool {
	if c.mask == 0 {
		return args[c.arg] >= c.value
	}
	return args[c.arg]&c.mask == c.value
}

func (m model) decide(d seccompData) (results []uint32) {
	call := int32(d.Call)
	for _, r := range m.refusals[call] {
		if !slices.ContainsFunc(r.conditions, func(c condition) bool { return !c.holds(d.Args) }) {
			results = append(results, unix.SECCOMP_RET_ERRNO|uint32(r.errno))
		}
	}
	personality, _ := number("personality")
	asks := slices.ContainsFunc(personalities, func(p uint64) bool { return d.Args[0]&low32 == p })
	switch {
	case len(results) > 0:
		return results
	case m.privileged[call]:
		return []uint32{unix.SECCOMP_RET_ERRNO | uint32(unix.EPERM)}
	case m.permitted[call] && (call != int32(personality) || asks):
		return []uint32{unix.SECCOMP_RET_ALLOW}
	}
	return []uint32{unix.SECCOMP_RET_ERRNO | uint32(unix.ENOSYS)}
}

// nativeArch is AUDIT_ARCH_X86_64, for which the compiled programs are.
const nativeArch = unix.AUDIT_ARCH_X86_64

// interesting values of arguments: those that a rule names, with and without other bits.
func interesting(m model) []uint64 {
	values := []uint64{0, 1, 2, low32, ^uint64(0), uint64(unix.O_RDWR), addressNoRandomize, uint64(unix.SIGCHLD)}
	for _, rules := range m.refusals {
		for _, r := range rules {
			for _, c := range r.conditions {
				values = append(values, c.value, c.value|1<<40, c.value|1<<32, c.value+1, c.value^0x8000)
			}
		}
	}
	slices.Sort(values)
	return slices.Compact(values)
}

// TestBypass57_TheProgramDecidesAsItsDataSays compares the compiled programs, step by
// step as the kernel runs them, with the lists that they were made of.
func TestBypass57_TheProgramDecidesAsItsDataSays(t *testing.T) {
	for _, userNamespaces := range []bool{false, true} {
		program, err := compileFilter(userNamespaces)
		if err != nil {
			t.Fatal(err)
		}
		m := newModel(t, userNamespaces)
		values := interesting(m)
		random := rand.New(rand.NewPCG(1, 2))
		most := 0
		for call := range uint32(1024) {
			cases := 20
			if len(m.refusals[int32(call)]) > 0 {
				cases = 5_000
			}
			for range cases {
				d := seccompData{Call: call, Arch: nativeArch}
				for i := range d.Args {
					d.Args[i] = values[random.IntN(len(values))]
				}
				got, steps := evaluate(t, program, d)
				if want := m.decide(d); !slices.Contains(want, got) {
					t.Fatalf("call %d %x: %#x, want one of %#x", call, d.Args, got, want)
				}
				most = max(most, steps)
			}
		}
		t.Logf("user namespaces %v: %d instructions, at most %d for one call", userNamespaces, len(program)/instruction, most)
	}
}

// TestBypass58_ForeignNumbersAreKilled: of other architectures and of x32.
func TestBypass58_ForeignNumbersAreKilled(t *testing.T) {
	const i386, aarch64 = unix.AUDIT_ARCH_I386, unix.AUDIT_ARCH_AARCH64
	for _, userNamespaces := range []bool{false, true} {
		program, err := compileFilter(userNamespaces)
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range []seccompData{
			{Call: unix.SYS_GETPID, Arch: i386},
			{Call: unix.SYS_GETPID, Arch: aarch64},
			{Call: 0x40000000 | unix.SYS_GETPID, Arch: nativeArch},
			{Call: 0x40000000 | 521, Arch: nativeArch},
			{Call: 0x7fffffff, Arch: nativeArch},
			{Call: 0x80000000, Arch: nativeArch},
		} {
			if got, _ := evaluate(t, program, d); got != unix.SECCOMP_RET_KILL_PROCESS {
				t.Errorf("call %#x of architecture %#x: %#x", d.Call, d.Arch, got)
			}
		}
		// The number of a call that a tracer skipped; the kernel has none of it.
		if got, _ := evaluate(t, program, seccompData{Call: ^uint32(0), Arch: nativeArch}); got != unix.SECCOMP_RET_ERRNO|uint32(unix.ENOSYS) {
			t.Errorf("call -1: %#x", got)
		}
	}
}
