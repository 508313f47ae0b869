package sandbox

import (
	"errors"
	"fmt"
	"os"
	"path"
	"strings"

	"golang.org/x/sys/unix"
)

// etc lays files over the host's /etc in one read-only overlay without an upper
// directory: links, dangling ones too, are replaced where they stand, and nothing
// of the host is touched.
func (b *Builder) etc(e Entry) error {
	if err := b.mkdirAll(e.Target); err != nil {
		return err
	}
	for _, name := range sortedKeys(e.Files) {
		if err := writeLayer(path.Join(etcLayer, name), e.Files[name]); err != nil {
			return err
		}
	}
	err := mount("etc", rootDir+e.Target, "overlay", tmpfsOptions|unix.MS_RDONLY, "lowerdir="+etcLayer+":"+e.Source)
	if errors.Is(err, unix.EINVAL) || errors.Is(err, unix.EPERM) || errors.Is(err, unix.ENODEV) {
		return b.etcByBinds(e)
	}
	return err
}

// linkMark begins the content of a layer's file that is a symlink.
const linkMark = "-> "

func writeLayer(at, content string) error {
	if err := os.MkdirAll(path.Dir(at), 0o755); err != nil { //nolint:gosec // what the command must read
		return err
	}
	if link, ok := strings.CutPrefix(content, linkMark); ok {
		return unix.Symlink(link, at)
	}
	return writeFile(at, []byte(content), 0o444)
}

// etcByBinds does the same with a bind for each file, for kernels without overlays
// in user namespaces, and for an /etc with mounts of its own, as in containers: the
// kernel refuses to look below those. Files that the host does not have stay absent;
// whoever then asks the wrong name server reaches sbx's all the same.
func (b *Builder) etcByBinds(e Entry) error {
	fd, err := openTree(e.Source)
	if err != nil {
		return err
	}
	readOnly := &unix.MountAttr{Attr_set: unix.MOUNT_ATTR_RDONLY | unix.MOUNT_ATTR_NOSUID | unix.MOUNT_ATTR_NODEV}
	if err := b.place(fd, e.Target, readOnly); err != nil {
		return err
	}
	for _, name := range sortedKeys(e.Files) {
		at, err := b.covered(path.Join(e.Target, name))
		if err != nil {
			continue
		}
		source := path.Join(etcLayer, name)
		if link, ok := strings.CutPrefix(e.Files[name], linkMark); ok {
			source = path.Join(runFilesDir, path.Base(link))
			if err := writeFile(source, nil, 0o444); err != nil && !errors.Is(err, unix.EEXIST) {
				return err // its content comes with PlaceFile
			}
		}
		file, err := openTree(source)
		if err != nil {
			return err
		}
		if err := b.place(file, at, readOnly); err != nil {
			return fmt.Errorf("covering %s: %w", at, err)
		}
	}
	return nil
}

// covered finds where a file of /etc really lies inside, and makes it where its
// link leads into the sandbox's own memory.
func (b *Builder) covered(name string) (string, error) {
	for range 8 {
		link, err := os.Readlink(rootDir + name)
		if errors.Is(err, unix.EINVAL) {
			return name, nil // a file
		}
		if err != nil {
			return "", err
		}
		if !path.IsAbs(link) {
			link = path.Join(path.Dir(name), link)
		}
		name = path.Clean(link)
		if _, err := os.Lstat(rootDir + name); errors.Is(err, unix.ENOENT) {
			return name, b.prepareTarget(name, false)
		}
	}
	return "", unix.ELOOP
}

func (b *Builder) dev() error {
	dev := rootDir + "/dev"
	if err := b.mkdirAll("/dev"); err != nil {
		return err
	}
	if err := mount("dev", dev, "tmpfs", unix.MS_NOSUID, "mode=755,size=64k"); err != nil {
		return err
	}
	for _, name := range []string{"null", "zero", "full", "random", "urandom", "tty"} {
		if err := unix.Mknod(dev+"/"+name, unix.S_IFREG|0o444, 0); err != nil {
			return fmt.Errorf("making /dev/%s: %w", name, err)
		}
		if err := mount("/dev/"+name, dev+"/"+name, "", unix.MS_BIND, ""); err != nil {
			return err
		}
	}
	links := [][2]string{
		{"/proc/self/fd", "fd"},
		{"/proc/self/fd/0", "stdin"},
		{"/proc/self/fd/1", "stdout"},
		{"/proc/self/fd/2", "stderr"},
		{"pts/ptmx", "ptmx"},
	}
	for _, l := range links {
		if err := unix.Symlink(l[0], dev+"/"+l[1]); err != nil {
			return err
		}
	}
	if err := errors.Join(unix.Mkdir(dev+"/pts", 0o755), unix.Mkdir(dev+"/shm", 0o755)); err != nil {
		return err
	}
	if err := mount("devpts", dev+"/pts", "devpts", unix.MS_NOSUID|unix.MS_NOEXEC, "newinstance,ptmxmode=0666,mode=0620"); err != nil {
		return err
	}
	if err := mount("shm", dev+"/shm", "tmpfs", tmpfsOptions|unix.MS_NOEXEC, "mode=1777"+b.size()); err != nil {
		return err
	}
	return remount(dev, unix.MS_RDONLY|unix.MS_NOSUID)
}
