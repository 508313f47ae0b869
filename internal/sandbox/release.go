package sandbox

import (
	"errors"
	"fmt"
	"os"
	"runtime"

	"golang.org/x/sys/unix"

	"github.com/fractalboxdev/sbx/internal/sandbox/stage"
)

// libcontainer's init is started before there is anything for it to run in: the kernel's
// and the Go runtime's part of that takes as long as admission, records and mount tree
// together. It waits in takeTree, in namespaces of its own that show an empty root, and
// goes on only with what Release sends: one byte, a bit for each of stdin, stdout and
// stderr that comes along, and with it the tree and those files, in this order.

// Release lets a container go on that is being started, with the tree as it is built.
// stdio may hold nil where the init opens its own. After an error the container ends.
func (b *Builder) Release(c *Container, stdio [3]*os.File) error {
	err := b.release(c, stdio)
	if err != nil {
		err = errors.Join(err, c.control.CloseWrite())
	}
	return err
}

func (b *Builder) release(c *Container, stdio [3]*os.File) error {
	tree, err := unix.OpenTree(unix.AT_FDCWD, rootDir, unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC|unix.AT_RECURSIVE)
	if err != nil {
		return fmt.Errorf("detaching the mount tree: %w", err)
	}
	defer unix.Close(tree)
	present, fds := byte(0), []int{tree}
	for i, f := range stdio {
		if f != nil {
			present |= 1 << i
			fds = append(fds, int(f.Fd()))
		}
	}
	if _, _, err := c.control.WriteMsgUnix([]byte{present}, unix.UnixRights(fds...), nil); err != nil {
		return fmt.Errorf("giving the container its mount tree: %w", err)
	}
	runtime.KeepAlive(stdio)
	return nil
}

// takeTree waits for Release, in libcontainer's init. What stands in the way is not told
// from here: the runner sees the init end.
func takeTree() error {
	var present [1]byte
	oob := make([]byte, unix.CmsgSpace(4*4))
	n, oobn, err := retriedReceive(present[:], oob)
	if err != nil || n == 0 {
		return errors.Join(errors.New("the runner is gone"), err)
	}
	messages, err := unix.ParseSocketControlMessage(oob[:oobn])
	if err != nil || len(messages) != 1 {
		return errors.Join(errors.New("there is no tree"), err)
	}
	fds, err := unix.ParseUnixRights(&messages[0])
	if err != nil {
		return err
	}
	if err := unix.MoveMount(fds[0], "", unix.AT_FDCWD, rootDir, unix.MOVE_MOUNT_F_EMPTY_PATH); err != nil {
		return err
	}
	return errors.Join(unix.Close(fds[0]), placeStdio(present[0], fds[1:]))
}

func retriedReceive(b, oob []byte) (n, oobn int, err error) {
	for {
		n, oobn, _, _, err = unix.Recvmsg(stage.InitControl, b, oob, unix.MSG_CMSG_CLOEXEC)
		if !errors.Is(err, unix.EINTR) {
			return n, oobn, err
		}
	}
}

// placeStdio puts the files over the first three descriptors, which are /dev/null.
func placeStdio(present byte, fds []int) error {
	for i := range 3 {
		if present&(1<<i) == 0 {
			continue
		}
		if len(fds) == 0 {
			return errors.New("too few files")
		}
		if err := unix.Dup3(fds[0], i, 0); err != nil {
			return err
		}
		if err := unix.Close(fds[0]); err != nil {
			return err
		}
		fds = fds[1:]
	}
	return nil
}
