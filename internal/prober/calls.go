package prober

import "golang.org/x/sys/unix"

// directCalls asks the kernel for what the seccomp filter must refuse. Said is the
// errno that the filter answers; without it the kernel says something else.
func directCalls() []Try {
	return []Try{
		call("io_uring_setup", "ENOSYS", func() error { return system(unix.SYS_IO_URING_SETUP, 1, 0) }),
		call("unshare(CLONE_NEWUSER)", "EPERM", func() error { return system(unix.SYS_UNSHARE, unix.CLONE_NEWUSER, 0) }),
		call("socket(AF_VSOCK)", "EAFNOSUPPORT", openVsock),
	}
}

func call(what, want string, do func() error) Try {
	return Try{What: what, Said: want, Error: nameOf(do())}
}

func system(number, first, second uintptr) error {
	if _, _, errno := unix.Syscall(number, first, second, 0); errno != 0 {
		return errno
	}
	return nil
}

func openVsock() error {
	fd, err := unix.Socket(unix.AF_VSOCK, unix.SOCK_STREAM, 0)
	if err == nil {
		err = unix.Close(fd)
	}
	return err
}
