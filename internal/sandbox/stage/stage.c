// The constructor that splits a fencing sbx into supervisor and runner before
// the Go runtime exists: only a single-threaded process may enter a user
// namespace, and libcontainer starts faster from inside one (user_namespaces(7)).
#define _GNU_SOURCE
#include "stage.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/capability.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

int sbx_role, sbx_socket = -1, sbx_euid, sbx_egid, sbx_privileged;
pid_t sbx_peer;

// The commands that run something fenced. Every other command stays one process.
static const char *const fencing[] = { "exec", "canary", "dogfood-pass", "preflight-trial", NULL };

static int fences(const char *command)
{
	int i;

	for (i = 0; fencing[i]; i++)
		if (!strcmp(fencing[i], command))
			return 1;
	return 0;
}

// The name and the first argument of this process, empty if they are long: then they
// are none of those that matter here. Not every C library passes arguments to constructors (musl does not).
static void read_arguments(char name[64], char command[64])
{
	char line[4096];
	int fd = open("/proc/self/cmdline", O_RDONLY | O_CLOEXEC);
	ssize_t n = fd < 0 ? -1 : read(fd, line, sizeof line - 1);
	size_t first;

	if (fd >= 0)
		close(fd);
	name[0] = command[0] = 0;
	if (n <= 0)
		return;
	line[n] = 0;
	first = strlen(line);
	if (first < 64)
		memcpy(name, line, first + 1);
	if ((ssize_t)first + 1 < n && strlen(line + first + 1) < 64)
		strcpy(command, line + first + 1);
}

// What sbx needs at least. With less the Go runtime itself would crash, with a status that
// could be the command's.
static const struct need {
	int resource;
	rlim_t least;
	const char *what, *of, *flag;
	rlim_t unit; // of ulimit
} needs[] = {
	{ RLIMIT_NOFILE, 64, "descriptors", "", "-n", 1 },
	{ RLIMIT_NPROC, 32, "processes", "", "-u", 1 },
	{ RLIMIT_AS, 1 << 30, "address space", " bytes", "-v", 1024 },
	{ RLIMIT_DATA, 96 << 20, "memory for data", " bytes", "-d", 1024 },
};

static void check_limits(void)
{
	const struct need *n;
	struct rlimit l;
	rlim_t has;

	for (n = needs; n < needs + sizeof needs / sizeof *needs; n++) {
		if (getrlimit(n->resource, &l) < 0 || (n->resource == RLIMIT_NPROC && geteuid() == 0))
			continue;
		has = n->resource == RLIMIT_NOFILE ? l.rlim_max : l.rlim_cur; // the runtime raises that one
		if (has >= n->least)
			continue;
		dprintf(2, "sbx: not enough %s: the limit is %llu%s, and sbx needs %llu\n  next: raise it, as in: ulimit %s %llu\n", n->what,
			(unsigned long long)has, n->of, (unsigned long long)n->least, n->flag, (unsigned long long)(n->least / n->unit));
		_exit(125);
	}
}

// A descriptor below 3 that the caller left closed would become one of sbx's own
// and then the command's.
static void fill_stdio(void)
{
	int fd;

	do
		fd = open("/dev/null", O_RDWR);
	while (fd >= 0 && fd <= 2);
	if (fd < 0) {
		dprintf(2, "sbx: opening /dev/null: %s\n", strerror(errno));
		_exit(125);
	}
	close(fd);
}

// Reports a failed step to the supervisor as one frame of package handshake: four
// bytes of length, one of the name's length, the name; then step, errno and detail,
// separated by NUL.
static void fail(const char *step)
{
	char frame[256];
	int n = 4 + snprintf(frame + 4, sizeof frame - 4, "\006failed%s%c%d%c", step, 0, errno, 0);

	frame[0] = (char)(n - 4), frame[1] = frame[2] = frame[3] = 0;
	(void)!write(sbx_socket, frame, n);
	_exit(125);
}

static void write_file(const char *path, const char *text, const char *step)
{
	int fd = open(path, O_WRONLY | O_CLOEXEC);

	if (fd < 0 || write(fd, text, strlen(text)) < 0)
		fail(step);
	close(fd);
}

static int has_sys_admin(void)
{
	struct __user_cap_header_struct head = { _LINUX_CAPABILITY_VERSION_3, 0 };
	struct __user_cap_data_struct data[2];

	if (syscall(SYS_capget, &head, data) < 0)
		return 0;
	return (data[CAP_SYS_ADMIN >> 5].effective >> (CAP_SYS_ADMIN & 31)) & 1;
}

// Whether this user namespace has an id to give besides the caller's own. One made
// by `unshare -r`, say, has none: root there is an ordinary user outside.
static int has_other_ids(void)
{
	char map[4096];
	unsigned long inside, outside, count, total = 0;
	int fd = open("/proc/self/uid_map", O_RDONLY | O_CLOEXEC), used;
	ssize_t n = fd < 0 ? -1 : read(fd, map, sizeof map - 1);
	char *at = map;

	if (fd >= 0)
		close(fd);
	if (n < 0)
		return 0;
	map[n] = 0;
	for (; sscanf(at, "%lu %lu %lu%n", &inside, &outside, &count, &used) == 3; at += used)
		total += count;
	return total > 1;
}

static void enter_user_namespace(void)
{
	char map[64];

	if (unshare(CLONE_NEWUSER) < 0)
		fail("unshare-user");
	write_file("/proc/self/setgroups", "deny", "setgroups");
	snprintf(map, sizeof map, "0 %d 1", sbx_euid);
	write_file("/proc/self/uid_map", map, "uid-map");
	snprintf(map, sizeof map, "0 %d 1", sbx_egid);
	write_file("/proc/self/gid_map", map, "gid-map");
}

// Nothing of the caller's may live on in the half that starts hostile code:
// no descriptor, no terminal, no session.
static void shed_caller(void)
{
	int null = open("/dev/null", O_RDWR | O_CLOEXEC), fd;

	if (null < 0)
		fail("open-null");
	for (fd = 0; fd <= 1; fd++)
		if (dup2(null, fd) < 0)
			fail("shed-stdio");
	if ((sbx_socket > 3 && syscall(SYS_close_range, 3, sbx_socket - 1, 0) < 0) ||
	    syscall(SYS_close_range, sbx_socket + 1, ~0U, 0) < 0)
		fail("close-range");
	if (setsid() < 0)
		fail("setsid");
}

// The processors that the caller may use; none where they could not be read.
static cpu_set_t callers_processors;

// Where few processors have three Go programs to start, most of the time goes into
// threads that wake each other and move. So each half keeps to its own part of the
// processors while it starts, the supervisor to where it runs already; sized by them,
// its runtime also begins with fewer threads. sbx_free gives the rest back.
static void keep_to_half(int here, int runner)
{
	cpu_set_t half;
	int cpu, seen = 0, lower = 0, total = CPU_COUNT(&callers_processors);

	if (total < 2)
		return;
	for (cpu = 0; cpu <= here && cpu < CPU_SETSIZE; cpu++)
		lower += CPU_ISSET(cpu, &callers_processors) != 0;
	lower = (lower <= total / 2) != runner;
	CPU_ZERO(&half);
	for (cpu = 0; cpu < CPU_SETSIZE; cpu++)
		if (CPU_ISSET(cpu, &callers_processors) && (seen++ < total / 2) == lower)
			CPU_SET(cpu, &half);
	(void)sched_setaffinity(0, sizeof half, &half); // else it is only slower
}

int sbx_free(int thread)
{
	if (CPU_COUNT(&callers_processors) == 0)
		return 0;
	return sched_setaffinity(thread, sizeof callers_processors, &callers_processors) < 0 ? -errno : 0;
}

static void become_runner(pid_t parent)
{
	sbx_role = SBX_ROLE_RUNNER;
	prctl(PR_SET_NAME, "sbx-runner", 0, 0, 0);
	// The death signal does not fire for a parent that died before it was set.
	if (prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0) < 0 || getppid() != parent)
		_exit(125);
	shed_caller();
	if (!sbx_privileged)
		enter_user_namespace();
	// Changing credentials clears the death signal (prctl(2)).
	if (prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0) < 0)
		fail("pdeathsig");
	if (unshare(CLONE_NEWNS) < 0)
		fail("unshare-mount");
	if (unshare(CLONE_NEWNET) < 0)
		fail("unshare-net");
	// So that an empty cgroup tree can be shown to libcontainer (cgroup_namespaces(7)).
	if (unshare(CLONE_NEWCGROUP) < 0)
		fail("unshare-cgroup");
	if (mount("", "/", NULL, MS_REC | MS_SLAVE, NULL) < 0)
		fail("mount-slave");
}

// Before libcontainer's own constructor, which obeys a variable of the environment.
__attribute__((constructor(101))) static void sbx_stage(void)
{
	struct rlimit none = { 0, 0 };
	char name[64], command[64];
	int pair[2], here;
	pid_t self, child;

	read_arguments(name, command);
	if (!strcmp(name, SBX_INIT_PATH) && getpid() == 1)
		sbx_init_main();
	if (strcmp(command, "init") != 0)
		unsetenv("_LIBCONTAINER_INITPIPE");
	check_limits();
	fill_stdio();
	sbx_euid = (int)geteuid(), sbx_egid = (int)getegid();
	if (!fences(command))
		return;
	sbx_privileged = has_sys_admin() && has_other_ids();
	if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) < 0)
		return; // the supervisor finds itself without a runner and says so
	setrlimit(RLIMIT_CORE, &none);
	if (sched_getaffinity(0, sizeof callers_processors, &callers_processors) < 0)
		CPU_ZERO(&callers_processors); // there are more than a set has room for
	here = sched_getcpu();
	self = getpid();
	child = fork();
	if (child == 0) {
		sbx_socket = pair[1];
		close(pair[0]);
		keep_to_half(here, 1);
		become_runner(self);
		return;
	}
	close(pair[1]);
	if (child < 0) {
		close(pair[0]);
		return;
	}
	keep_to_half(here, 0);
	sbx_role = SBX_ROLE_SUPERVISOR, sbx_socket = pair[0], sbx_peer = child;
	prctl(PR_SET_DUMPABLE, 0, 0, 0, 0);
}

static int write_map(pid_t pid, const char *name, unsigned int disk, unsigned int kid)
{
	char path[64], map[64];
	int fd, n;

	snprintf(path, sizeof path, "/proc/%d/%s", (int)pid, name);
	n = snprintf(map, sizeof map, "%u %u 1", disk, kid);
	fd = open(path, O_WRONLY | O_CLOEXEC);
	if (fd < 0)
		return -errno;
	n = write(fd, map, n) < 0 ? -errno : 0;
	close(fd);
	return n;
}

int sbx_idmap_userns(unsigned int disk_uid, unsigned int disk_gid, unsigned int kuid, unsigned int kgid)
{
	char path[64];
	int err, fd = -1, block[2];
	pid_t child;

	if (pipe2(block, O_CLOEXEC) < 0)
		return -errno;
	// A bare clone: no fork handlers, since the Go runtime's threads are there.
	child = (pid_t)syscall(SYS_clone, CLONE_NEWUSER | SIGCHLD, 0, 0, 0, 0);
	if (child == 0) {
		char c;
		syscall(SYS_close, block[1]);
		syscall(SYS_read, block[0], &c, 1);
		syscall(SYS_exit_group, 0);
	}
	err = child < 0 ? -errno : 0;
	close(block[0]);
	if (!err)
		err = write_map(child, "uid_map", disk_uid, kuid);
	if (!err)
		err = write_map(child, "gid_map", disk_gid, kgid);
	if (!err) {
		snprintf(path, sizeof path, "/proc/%d/ns/user", (int)child);
		fd = open(path, O_RDONLY | O_CLOEXEC);
		if (fd < 0)
			err = -errno;
	}
	close(block[1]);
	if (child > 0)
		while (waitpid(child, NULL, 0) < 0 && errno == EINTR)
			;
	return err ? err : fd;
}
