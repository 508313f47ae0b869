package sandbox

import (
	"errors"
	"fmt"
	"os"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/opencontainers/runc/libcontainer"
	"golang.org/x/sys/unix"
)

// Where the runner keeps what it builds, in its own mount namespace: a tmpfs over
// /sys, the one directory that exists everywhere and that nothing here needs.
const (
	scratch      = "/sys"
	rootDir      = scratch + "/root"
	stateDir     = scratch + "/state"
	runFilesDir  = scratch + "/run"
	etcLayer     = scratch + "/etc"
	emptyDir     = scratch + "/empty-dir"
	emptyFile    = scratch + "/empty-file"
	cgroupDir    = scratch + "/fs/cgroup"
	tmpfsOptions = unix.MS_NOSUID | unix.MS_NODEV
)

// MountMark is the source of a sandbox's first mount, to know it by in a mount table.
const MountMark = "sbx-scratch"

// ErrNotIDMappable means that a directory's file system cannot show its files as another owner's.
var ErrNotIDMappable = errors.New("the file system cannot be idmapped")

// Builder makes one sandbox, in the runner's own mount namespace. What does not
// depend on the run is made by Prepare, while the specification is on its way.
// Nothing hostile runs yet, but the project's own files may have been arranged by
// an earlier run.
type Builder struct {
	mapping   *Mapping
	idmap     func() (*os.File, error)
	container *libcontainer.Container
	made      map[string]bool
	owned     []string       // targets of memory that is the command's
	attached  []string       // targets of binds: below them nothing is ours to make
	private   uint64         // bytes of each private file system; 0: the kernel's default
	sockets   []unix.Stat_t  // files of the host's sockets in the tree
	system    map[string]int // detached mounts of /sys, taken before scratch covers it
}

// Prepare makes the empty root, the place of the init and the container's
// configuration. The caller's mount namespace must be private. mapping, as root
// only, is who the command will be; idmap opens its user namespace for idmapped mounts.
func Prepare(mapping *Mapping, idmap func() (*os.File, error)) (*Builder, error) {
	b := &Builder{mapping: mapping, idmap: idmap, made: map[string]bool{}, system: map[string]int{}}
	if err := b.takeSystemFiles(); err != nil {
		return nil, err
	}
	if err := b.prepareScratch(); err != nil {
		return nil, err
	}
	if err := b.placeInit(); err != nil {
		return nil, err
	}
	return b, b.create()
}

// Build makes the mount tree of a specification below the root.
func (b *Builder) Build(spec Spec) error {
	if (spec.Mapping == nil) != (b.mapping == nil) || spec.Mapping != nil && *spec.Mapping != *b.mapping {
		return errors.New("building the mount tree: the ids of the command changed while the sandbox was prepared")
	}
	b.private = spec.PrivateSize
	for _, e := range spec.Tree {
		if err := b.add(e); err != nil {
			return fmt.Errorf("building the mount tree: %s %s: %w", e.Kind, e.Target, err)
		}
	}
	return remount(rootDir, unix.MS_RDONLY|unix.MS_NOSUID|unix.MS_NODEV)
}

// takeSystemFiles detaches what is needed of /sys before scratch covers it.
func (b *Builder) takeSystemFiles() error {
	for _, source := range optionalSystem {
		if !strings.HasPrefix(source, "/sys/") {
			continue
		}
		fd, err := openTree(source)
		if errors.Is(err, unix.ENOENT) {
			continue
		}
		if err != nil {
			return fmt.Errorf("opening %s: %w", source, err)
		}
		b.system[source] = fd
	}
	return nil
}

// prepareScratch covers /sys.
func (b *Builder) prepareScratch() error {
	if err := mount(MountMark, scratch, "tmpfs", tmpfsOptions, "mode=755"); err != nil {
		return err
	}
	for _, dir := range []string{rootDir, stateDir, runFilesDir, etcLayer, emptyDir, scratch + "/fs", cgroupDir} {
		if err := unix.Mkdir(dir, 0o755); err != nil {
			return fmt.Errorf("making %s: %w", dir, err)
		}
	}
	if err := coverCgroups(); err != nil {
		return err
	}
	if err := writeFile(emptyFile, nil, 0o444); err != nil {
		return err
	}
	return mount("root", rootDir, "tmpfs", tmpfsOptions, "mode=755")
}

// coverCgroups shows libcontainer a read-only cgroup tree, in which it makes none:
// making them costs half its start. The unified one (cgroups(7)) is looked at
// faster; a kernel without it gets the empty directories of version 1.
func coverCgroups() error {
	const readOnly = unix.MS_RDONLY | unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC
	if unix.Mount("cgroup2", cgroupDir, "cgroup2", readOnly&^unix.MS_RDONLY, "") == nil {
		return remount(cgroupDir, readOnly)
	}
	if err := mount("cgroup", cgroupDir, "tmpfs", tmpfsOptions, "mode=755"); err != nil {
		return err
	}
	for name := range strings.FieldsSeq("blkio cpu cpuacct cpuset devices freezer hugetlb memory misc net_cls net_prio perf_event pids rdma systemd") {
		if err := unix.Mkdir(path.Join(cgroupDir, name), 0o755); err != nil {
			return fmt.Errorf("making an empty cgroup controller: %w", err)
		}
	}
	return remount(cgroupDir, unix.MS_RDONLY|tmpfsOptions)
}

// placeInit puts this binary where the container finds its init, on a mount of
// its own: files of the run come later, and the command only sees it read-only.
func (b *Builder) placeInit() error {
	for _, dir := range []string{"/proc", path.Dir(initPath)} {
		if err := b.mkdirAll(dir); err != nil {
			return err
		}
	}
	if err := writeFile(path.Join(runFilesDir, path.Base(initPath)), nil, 0o555); err != nil {
		return err
	}
	files, err := openTree(runFilesDir)
	if err != nil {
		return fmt.Errorf("opening the run's files: %w", err)
	}
	readOnly := &unix.MountAttr{Attr_set: unix.MOUNT_ATTR_RDONLY | unix.MOUNT_ATTR_NOSUID | unix.MOUNT_ATTR_NODEV}
	if err := b.place(files, path.Dir(initPath), readOnly); err != nil {
		return err
	}
	self, err := openSelf()
	if err != nil {
		return fmt.Errorf("opening this binary for the sandbox's init: %w", err)
	}
	return b.place(self, initPath, readOnly)
}

// PlaceFile copies a file of this run to its path inside, which must lie beside
// the init. It may be called until the command starts.
func PlaceFile(name string, from *os.File) error {
	if path.Dir(name) != path.Dir(initPath) {
		return fmt.Errorf("placing %s: not below %s", name, path.Dir(initPath))
	}
	info, err := from.Stat()
	if err != nil {
		return fmt.Errorf("placing %s: %w", name, err)
	}
	content := make([]byte, info.Size())
	if _, err := from.ReadAt(content, 0); err != nil {
		return fmt.Errorf("placing %s: %w", name, err)
	}
	at := path.Join(runFilesDir, path.Base(name))
	if err := writeFile(at, content, 0o444); !errors.Is(err, unix.EEXIST) {
		return err
	}
	if err := os.WriteFile(at, content, 0o444); err != nil { //nolint:gosec // bound already, by name; what the command must read
		return fmt.Errorf("placing %s: %w", name, err)
	}
	return nil
}

// errReplaced is a binary of which the sandbox can get no init any more; host.Explain knows
// it by its words.
var errReplaced = errors.New("was deleted or replaced while it ran")

// openSelf detaches a mount of this very binary. The magic link /proc/self/exe
// leads to a mount of another namespace, which cannot be cloned; so it goes by
// path, and must be the same file.
func openSelf() (int, error) {
	name, err := os.Readlink("/proc/self/exe")
	if err != nil {
		return -1, err
	}
	fd, err := unix.OpenTree(unix.AT_FDCWD, name, unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC)
	if path, deleted := strings.CutSuffix(name, " (deleted)"); deleted && errors.Is(err, unix.ENOENT) { // proc_pid_exe(5)
		return -1, fmt.Errorf("%s %w", path, errReplaced)
	}
	if err != nil {
		return -1, fmt.Errorf("%s: %w", name, err)
	}
	var running, found unix.Stat_t
	err = errors.Join(unix.Stat("/proc/self/exe", &running), unix.Fstat(fd, &found))
	if err == nil && (running.Dev != found.Dev || running.Ino != found.Ino) {
		err = fmt.Errorf("%s %w", name, errReplaced)
	}
	if err != nil {
		_ = unix.Close(fd)
		return -1, err
	}
	return fd, nil
}

func (b *Builder) add(e Entry) error {
	switch e.Kind {
	case Directory:
		return b.mkdirAll(e.Target)
	case Symlink:
		if err := b.mkdirAll(path.Dir(e.Target)); err != nil {
			return err
		}
		return unix.Symlink(e.Source, rootDir+e.Target)
	case Tmpfs:
		return b.tmpfs(e)
	case Bind, Socket:
		return b.bind(e)
	case Mask:
		return b.mask(e)
	case Etc:
		return b.etc(e)
	case Dev:
		return b.dev()
	case Text:
		if err := b.mkdirAll(path.Dir(e.Target)); err != nil {
			return err
		}
		return writeFile(rootDir+e.Target, []byte(e.Source), 0o444)
	}
	return fmt.Errorf("unknown kind %q", e.Kind)
}

func (b *Builder) tmpfs(e Entry) error {
	if err := b.mkdirAll(e.Target); err != nil {
		return err
	}
	options := fmt.Sprintf("mode=%o", e.Mode) + b.size()
	if e.Owned && b.mapping != nil {
		options += fmt.Sprintf(",uid=%d,gid=%d", b.mapping.KUID, b.mapping.KGID)
	}
	if e.Owned {
		b.owned = append(b.owned, e.Target)
	}
	if b.foreign(e.Target) {
		return b.cover(e.Target, options)
	}
	return mount("sbx", rootDir+e.Target, "tmpfs", tmpfsOptions, options)
}

// size bounds a private file system.
func (b *Builder) size() string {
	if b.private == 0 {
		return ""
	}
	return fmt.Sprintf(",size=%d", b.private)
}

// cover puts memory over a directory of a bind, never through a link.
func (b *Builder) cover(target, options string) error {
	at, err := openInRoot(target)
	if err != nil {
		return err
	}
	defer unix.Close(at)
	return mount("sbx", fmt.Sprintf("/proc/self/fd/%d", at), "tmpfs", tmpfsOptions, options)
}

func (b *Builder) bind(e Entry) error {
	fd, err := b.source(e)
	if err != nil {
		return err
	}
	var stat unix.Stat_t
	if err := unix.Fstat(fd, &stat); err != nil {
		return err
	}
	if e.Kind == Socket {
		if stat.Mode&unix.S_IFMT != unix.S_IFSOCK {
			return errors.Join(errNoSocket, unix.Close(fd))
		}
		b.sockets = append(b.sockets, stat)
	}
	if err := b.prepareTarget(e.Target, stat.Mode&unix.S_IFMT == unix.S_IFDIR); err != nil {
		_ = unix.Close(fd)
		return err
	}
	attr := &unix.MountAttr{Attr_set: unix.MOUNT_ATTR_NOSUID | unix.MOUNT_ATTR_NODEV}
	if !e.Writable {
		attr.Attr_set |= unix.MOUNT_ATTR_RDONLY
	}
	if e.Owned && b.mapping != nil {
		owner, err := b.idmap()
		if err != nil {
			return errors.Join(fmt.Errorf("making a user namespace for idmapped mounts: %w", err), unix.Close(fd))
		}
		attr.Attr_set |= unix.MOUNT_ATTR_IDMAP
		attr.Userns_fd = uint64(owner.Fd())
	}
	if err := b.placeOwned(fd, e, attr); err != nil {
		return err
	}
	b.attached = append(b.attached, e.Target)
	return nil
}

// errNoSocket means that a profile's socket has become something else.
var errNoSocket = errors.New("it is not a socket")

// Sockets are the files of the host's sockets that the tree shows. Its mounts hold them.
func (b *Builder) Sockets() []unix.Stat_t { return b.sockets }

// source detaches a copy of what is to be bound.
func (b *Builder) source(e Entry) (int, error) {
	if fd, ok := b.system[e.Source]; ok {
		return fd, nil
	}
	return openTree(e.Source)
}

// prepareTarget makes a mount point where the tree is still ours to write.
func (b *Builder) prepareTarget(target string, dir bool) error {
	if dir {
		return b.mkdirAll(target)
	}
	if b.foreign(target) {
		return nil
	}
	if err := b.mkdirAll(path.Dir(target)); err != nil {
		return err
	}
	var stat unix.Stat_t
	if unix.Lstat(rootDir+target, &stat) == nil {
		return nil
	}
	return writeFile(rootDir+target, nil, 0o444)
}

// placeOwned is place for files of the caller's. Where a file system cannot show them
// as the command's, read-only ones show as somebody else's: that gives away less.
func (b *Builder) placeOwned(fd int, e Entry, attr *unix.MountAttr) error {
	attr.Propagation = unix.MS_PRIVATE // as in place
	if attr.Attr_set&unix.MOUNT_ATTR_IDMAP != 0 && !e.Writable {
		err := unix.MountSetattr(fd, "", unix.AT_EMPTY_PATH|unix.AT_RECURSIVE, attr)
		if err == nil {
			defer unix.Close(fd)
			return b.attachBelowRoot(fd, e.Target)
		}
		attr.Attr_set &^= unix.MOUNT_ATTR_IDMAP
		attr.Userns_fd = 0
	}
	return b.place(fd, e.Target, attr)
}

// place changes a detached mount and attaches it, never through a symlink. What the host
// mounts later must not appear in it, with the host's own flags.
func (b *Builder) place(fd int, target string, attr *unix.MountAttr) error {
	defer unix.Close(fd)
	attr.Propagation = unix.MS_PRIVATE
	if err := unix.MountSetattr(fd, "", unix.AT_EMPTY_PATH|unix.AT_RECURSIVE, attr); err != nil {
		if attr.Attr_set&unix.MOUNT_ATTR_IDMAP != 0 && (errors.Is(err, unix.EINVAL) || errors.Is(err, unix.EPERM)) {
			return fmt.Errorf("%w (%w)", ErrNotIDMappable, err)
		}
		return fmt.Errorf("changing mount attributes: %w", err)
	}
	return b.attachBelowRoot(fd, target)
}

func (b *Builder) attachBelowRoot(fd int, target string) error {
	at, err := openInRoot(target)
	if err != nil {
		return err
	}
	defer unix.Close(at)
	if err := unix.MoveMount(fd, "", at, "", unix.MOVE_MOUNT_F_EMPTY_PATH|unix.MOVE_MOUNT_T_EMPTY_PATH); err != nil {
		return fmt.Errorf("attaching: %w", err)
	}
	return nil
}

// openInRoot opens a path of the tree without following any link.
func openInRoot(target string) (int, error) {
	root, err := unix.Open(rootDir, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return -1, err
	}
	defer unix.Close(root)
	at, err := unix.Openat2(root, strings.TrimPrefix(target, "/"), &unix.OpenHow{
		Flags: unix.O_PATH | unix.O_NOFOLLOW | unix.O_CLOEXEC, Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS,
	})
	if err != nil {
		return -1, fmt.Errorf("opening the mount point: %w", err)
	}
	return at, nil
}

// mask hides a file or directory. What does not show needs no hiding.
func (b *Builder) mask(e Entry) error {
	at, err := openInRoot(e.Target)
	if errors.Is(err, unix.ENOENT) {
		return nil
	}
	if err != nil {
		return err
	}
	defer unix.Close(at)
	var stat unix.Stat_t
	if err := unix.Fstat(at, &stat); err != nil {
		return err
	}
	source := emptyFile
	if stat.Mode&unix.S_IFMT == unix.S_IFDIR {
		source = emptyDir
	}
	fd, err := openTree(source)
	if err != nil {
		return err
	}
	return b.place(fd, e.Target, &unix.MountAttr{Attr_set: unix.MOUNT_ATTR_RDONLY | unix.MOUNT_ATTR_NOSUID | unix.MOUNT_ATTR_NODEV})
}

// mkdirAll makes a directory and its parents inside the tree. Below a bind it makes
// nothing: a link that an earlier run put there would lead out of the tree. What is
// needed there has to exist, and is opened without following links.
func (b *Builder) mkdirAll(dir string) error {
	if dir == "/" || dir == "." || b.made[dir] || b.foreign(dir) {
		return nil
	}
	if err := b.mkdirAll(path.Dir(dir)); err != nil {
		return err
	}
	if err := unix.Mkdir(rootDir+dir, 0o755); err != nil && !errors.Is(err, unix.EEXIST) {
		return fmt.Errorf("making the mount point %s: %w", dir, err)
	}
	b.made[dir] = true
	if b.mapping != nil && slices.ContainsFunc(b.owned, func(o string) bool { return Within(dir, o) && dir != o }) {
		return unix.Lchown(rootDir+dir, int(b.mapping.KUID), int(b.mapping.KGID))
	}
	return nil
}

// openTree detaches a copy of a mount tree. The path was resolved before; a symlink
// that stands in it now was put there since, and is refused.
// foreign reports whether a path lies in a bind.
func (b *Builder) foreign(target string) bool {
	for _, bind := range b.attached {
		if Within(target, bind) {
			return true
		}
	}
	return false
}

func openTree(source string) (int, error) {
	fd, err := unix.Openat2(unix.AT_FDCWD, source, &unix.OpenHow{
		Flags: unix.O_PATH | unix.O_NOFOLLOW | unix.O_CLOEXEC, Resolve: unix.RESOLVE_NO_SYMLINKS,
	})
	if err != nil {
		return -1, err
	}
	defer unix.Close(fd)
	return unix.OpenTree(fd, "", unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC|unix.AT_EMPTY_PATH|unix.AT_RECURSIVE)
}

func mount(source, target, kind string, flags uintptr, options string) error {
	if err := unix.Mount(source, target, kind, flags, options); err != nil {
		return fmt.Errorf("mounting %s on %s: %w", kind, strings.TrimPrefix(target, rootDir), err)
	}
	return nil
}

// remountTries times remountPause is how long a descriptor may keep a mount writable.
const (
	remountTries = 500
	remountPause = time.Millisecond
)

// remount changes the flags of a mount. A process that another thread has just forked
// holds this one's descriptors until it executes or ends, those open for writing among
// them, and as long the mount cannot become read-only (EBUSY).
func remount(target string, flags uintptr) (err error) {
	for range remountTries {
		if err = mount("", target, "", unix.MS_REMOUNT|unix.MS_BIND|flags, ""); !errors.Is(err, unix.EBUSY) {
			return err
		}
		time.Sleep(remountPause) //nolint:forbidigo // nothing tells when the forked process is through
	}
	return err
}

func writeFile(name string, content []byte, mode uint32) error {
	fd, err := unix.Open(name, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW|unix.O_CLOEXEC, mode)
	if err != nil {
		return fmt.Errorf("making %s: %w", name, err)
	}
	defer unix.Close(fd)
	for len(content) > 0 {
		n, err := unix.Write(fd, content)
		if err != nil {
			return fmt.Errorf("writing %s: %w", name, err)
		}
		content = content[n:]
	}
	return nil
}

func sortedKeys(m map[string]string) []string {
	keys := make([]string, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}
