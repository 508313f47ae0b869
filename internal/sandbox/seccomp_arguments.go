package sandbox

import "golang.org/x/sys/unix"

// condition compares the masked low bits of a system call's argument. Masks never
// reach above bit 31 where the kernel takes an int: set high bits must not beat the filter.
type condition struct {
	arg   uint
	mask  uint64 // 0: the argument is at least value
	value uint64
}

// refusal is one rule of the filter: calls for which all conditions hold fail with errno.
type refusal struct {
	call       string
	errno      unix.Errno
	conditions []condition
}

const low32 = 0xffffffff

func low(arg uint, value uint64) condition { return condition{arg, low32, value & low32} }

func bit(arg uint, b uint64) condition { return condition{arg, b, b} }

func atLeast(arg uint, value uint64) condition { return condition{arg, 0, value} }

// namespaceFlags are CLONE_NEW* bits that no class may use: what they make could hide
// or change what the mount tree shows.
var namespaceFlags = []uint64{unix.CLONE_NEWNS, unix.CLONE_NEWCGROUP, unix.CLONE_NEWUTS}

// browserFlags are the bits that a browser's own sandbox uses.
var browserFlags = []uint64{unix.CLONE_NEWUSER, unix.CLONE_NEWPID, unix.CLONE_NEWNET, unix.CLONE_NEWIPC}

// families are the socket families that exist inside.
var families = map[uint64]bool{unix.AF_UNIX: true, unix.AF_INET: true, unix.AF_INET6: true, unix.AF_NETLINK: true}

// refusals are what the arguments of permitted calls must not be.
func refusals(userNamespaces bool) []refusal {
	var out []refusal
	flags := namespaceFlags
	if !userNamespaces {
		flags = append(append([]uint64{}, flags...), browserFlags...)
	}
	for _, flag := range flags {
		out = append(out,
			refusal{"clone", unix.EPERM, []condition{bit(0, flag)}},
			refusal{"unshare", unix.EPERM, []condition{bit(0, flag)}})
	}
	// In clone the same bit is part of the signal's number.
	out = append(out, refusal{"unshare", unix.EPERM, []condition{bit(0, unix.CLONE_NEWTIME)}})
	for _, request := range []uint64{unix.TIOCSTI, unix.TIOCLINUX, unix.TIOCSETD} {
		out = append(out, refusal{"ioctl", unix.EPERM, []condition{low(1, request)}})
	}
	out = append(out, initRefusals()...)
	return append(append(out, socketRefusals()...), privilegeBitRefusals()...)
}

// argument is a call with the position of one of its arguments.
type argument struct {
	call string
	arg  uint
}

// initRefusals keep the command from starving its init, which shares its uid: the
// end of the init would look like a failure of sbx.
func initRefusals() []refusal {
	var out []refusal
	for _, c := range []argument{
		{"prlimit64", 0},
		{"sched_setscheduler", 0},
		{"sched_setparam", 0},
		{"sched_setattr", 0},
		{"sched_setaffinity", 0},
		{"setpriority", 1},
		{"ioprio_set", 1},
	} {
		out = append(out, refusal{c.call, unix.EPERM, []condition{low(c.arg, 1)}})
	}
	return out
}

// socketKind are the bits of a socket's type that are not flags (socket(2)).
const socketKind = 0xf

// protocolSMC is IPPROTO_SMC.
const protocolSMC = 256

// socketRefusals leave unix, inet, inet6 and route netlink. AF_VSOCK is not
// namespaced: it would reach the hypervisor. SCTP would leave no trace in the rules.
func socketRefusals() []refusal {
	var out []refusal
	for family := range uint64(64) {
		if !families[family] {
			out = append(out,
				refusal{"socket", unix.EAFNOSUPPORT, []condition{low(0, family)}},
				refusal{"socketpair", unix.EAFNOSUPPORT, []condition{low(0, family)}})
		}
	}
	for _, family := range []uint64{unix.AF_INET, unix.AF_INET6} {
		for _, kind := range []uint64{unix.SOCK_SEQPACKET, unix.SOCK_DCCP} {
			out = append(out, refusal{"socket", unix.ESOCKTNOSUPPORT, []condition{low(0, family), {1, socketKind, kind}}})
		}
		// SOCK_PACKET of inet is another word for the family of packet sockets (packet(7)).
		for _, kind := range []uint64{unix.SOCK_RAW, unix.SOCK_PACKET} {
			out = append(out, refusal{"socket", unix.EPERM, []condition{low(0, family), {1, socketKind, kind}}})
		}
		for _, protocol := range []uint64{unix.IPPROTO_SCTP, unix.IPPROTO_DCCP, unix.IPPROTO_L2TP, protocolSMC} {
			out = append(out, refusal{"socket", unix.EPROTONOSUPPORT, []condition{low(0, family), low(2, protocol)}})
		}
	}
	for protocol := uint64(1); protocol < 32; protocol++ {
		out = append(out, refusal{"socket", unix.EPROTONOSUPPORT, []condition{low(0, unix.AF_NETLINK), low(2, protocol)}})
	}
	return append(append(out, datagramRefusals()...), tableRefusals()...)
}

// datagramRefusals close the one kind of unix socket that sends to any path without a
// connect, by calls that hide the path. SOCK_RAW is another word for it (unix(7)).
func datagramRefusals() []refusal {
	var out []refusal
	for _, call := range []string{"socket", "socketpair"} {
		for _, kind := range []uint64{unix.SOCK_DGRAM, unix.SOCK_RAW} {
			out = append(out, refusal{call, unix.ESOCKTNOSUPPORT, []condition{low(0, unix.AF_UNIX), {1, socketKind, kind}}})
		}
	}
	return out
}

// tableRefusals close the options by which packet filters are loaded: they need
// CAP_NET_ADMIN, which a browser's own user namespace gives it over a network of its own.
func tableRefusals() []refusal {
	const netfilterBase = 64 // IPT_BASE_CTL; nothing of the protocol's own lies above
	out := []refusal{{"setsockopt", unix.EPERM, []condition{low(1, unix.SOL_IP), atLeast(2, netfilterBase)}}}
	for _, option := range []uint64{netfilterBase, netfilterBase + 1} {
		out = append(out, refusal{"setsockopt", unix.EPERM, []condition{low(1, unix.SOL_IPV6), low(2, option)}})
	}
	return out
}

// modeArguments are where calls take a file mode.
var modeArguments = []argument{
	{"chmod", 1}, {"fchmod", 1}, {"fchmodat", 2}, {"fchmodat2", 2}, {"creat", 1}, {"mknod", 1}, {"mknodat", 2},
}

// privilegeBitRefusals forbid set-user-id and set-group-id bits: a file that the
// command leaves in the project belongs to the caller, who may be root.
func privilegeBitRefusals() []refusal {
	const tmpfile = unix.O_TMPFILE &^ unix.O_DIRECTORY
	var out []refusal
	for _, mode := range []uint64{unix.S_ISUID, unix.S_ISGID} {
		for _, c := range modeArguments {
			out = append(out, refusal{c.call, unix.EPERM, []condition{bit(c.arg, mode)}})
		}
		for _, create := range []uint64{unix.O_CREAT, tmpfile} {
			out = append(out,
				refusal{"open", unix.EPERM, []condition{bit(1, create), bit(2, mode)}},
				refusal{"openat", unix.EPERM, []condition{bit(2, create), bit(3, mode)}})
		}
	}
	return out
}
