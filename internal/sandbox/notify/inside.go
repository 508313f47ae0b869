package notify

import (
	"fmt"
	"runtime"
	"strconv"

	"golang.org/x/sys/unix"
)

// inside is a thread that sees the sandbox's files from the sandbox's root and has no
// right that the command has not. What depends on names of files, or could depend on
// rights, is done there.
type inside struct{ work chan func() }

// Identity is who the command is, in this process's user namespace.
type Identity struct{ UID, GID uint32 }

// enter starts the thread. init is the pid of the sandbox's first process; who is nil
// where this process's own ids are the command's.
func enter(init int, who *Identity) (*inside, error) {
	i := &inside{work: make(chan func())}
	entered := make(chan error)
	go func() {
		runtime.LockOSThread() // and never unlocked: the thread is of no other use
		err := settle(init, who)
		entered <- err
		for err == nil {
			(<-i.work)()
		}
	}()
	if err := <-entered; err != nil {
		return nil, fmt.Errorf("entering the sandbox's files: %w", err)
	}
	return i, nil
}

// do runs f on the thread and waits for it.
func (i *inside) do(f func()) {
	done := make(chan struct{})
	i.work <- func() { f(); close(done) }
	<-done
}

// settle gives the calling thread the sandbox's root, the host's /proc as its working
// directory, and the command's rights.
func settle(init int, who *Identity) error {
	proc, err := unix.Open("/proc", unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(proc)
	if err := unix.Unshare(unix.CLONE_FS); err != nil {
		return err
	}
	if err := unix.Chroot("/proc/" + strconv.Itoa(init) + "/root"); err != nil {
		return err
	}
	if err := unix.Fchdir(proc); err != nil {
		return err
	}
	if who != nil {
		if err := become(*who); err != nil {
			return err
		}
	}
	var none [2]unix.CapUserData
	return unix.Capset(&unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}, &none[0])
}

// become changes the ids of this thread alone, as the raw system calls do.
func become(who Identity) error {
	uid, gid := uintptr(who.UID), uintptr(who.GID)
	for _, call := range [][4]uintptr{
		{unix.SYS_SETGROUPS, 0, 0, 0},
		{unix.SYS_SETRESGID, gid, gid, gid},
		{unix.SYS_SETRESUID, uid, uid, uid},
	} {
		if _, _, errno := unix.RawSyscall(call[0], call[1], call[2], call[3]); errno != 0 {
			return errno
		}
	}
	return nil
}

// find opens the file of a name, from a directory if it is relative. Only the thread's
// rights count, and no file is opened for use.
func (i *inside) find(dir int, name string) (fd int, err error) {
	i.do(func() { fd, err = unix.Openat(dir, name, unix.O_PATH|unix.O_CLOEXEC, 0) })
	return fd, err
}
