// The sandbox's PID 1. It runs before (and instead of) the Go runtime, so it
// costs no runtime start: reads its plan from the runner, becomes the caller's
// uid without any capability, proves the floor, starts the command, reaps, and
// takes the whole pid namespace with it when it ends.
#define _GNU_SOURCE
#include "broken.h"
#include "stage.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/capability.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <netinet/in.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <termios.h>
#include <unistd.h>

// The plan's fixed head; Go writes the same layout (plan.go).
struct plan_head {
	uint32_t uid, gid;         // what the command sees
	uint32_t tty;              // bit 0: allocate a pty; bits 1 to 3: it is the command's fd 0, 1, 2
	uint32_t null;             // bits 0 to 2: that fd is the sandbox's own /dev/null
	uint32_t rows, cols;
	uint32_t argc, envc;
	uint32_t text;             // bytes of cwd, argv, env: NUL-terminated strings
	uint32_t filter;           // bytes of the seccomp program
	uint32_t probe_port;       // TCP port of both probes, host order
	uint8_t probe4[4], probe6[16];
	char nonce[32];            // hexadecimal, no NUL
	uint32_t wait_children;    // the end is that of the last process, not of the command
	uint32_t landlock;         // version to restrict the command with, 0 for not at all
	uint32_t writable;         // paths, after the environment, below which it may change files
	uint32_t unanswered;       // errno: why the runner could not answer connects, 0 if it can
	uint64_t limits[4];        // in the order of limited[]; 0 leaves the caller's
};

static pid_t command;
static int wait_children, command_status;

// 'E' frames: step, NUL, errno as text.
static void __attribute__((noreturn)) fail_as(const char *step, int status)
{
	char b[200];
	int n = snprintf(b, sizeof b, "E%s:%d\n", step, errno);

	(void)!write(SBX_INIT_CTL, b, n);
	_exit(status);
}

static void __attribute__((noreturn)) fail(const char *step) { fail_as(step, 125); }

static void read_full(void *p, size_t n)
{
	char *at = p;

	while (n) {
		ssize_t r = read(SBX_INIT_CTL, at, n);
		if (r < 0 && errno == EINTR)
			continue;
		if (r <= 0)
			_exit(125);
		at += r, n -= r;
	}
}

static void *must_alloc(size_t n)
{
	void *p = calloc(1, n ? n : 1);

	if (!p)
		fail("memory");
	return p;
}

static void write_file(const char *path, const char *text)
{
	int fd = open(path, O_WRONLY | O_CLOEXEC);

	if (fd < 0 || write(fd, text, strlen(text)) < 0)
		fail(path);
	close(fd);
}

// What of /proc tells about the host, or steers it. The command is nobody on the
// host, but as the caller's own uid it would own this namespace's sysctls. Done
// here, since libcontainer takes a millisecond for it.
static const char *const hidden[] = {
	"/proc/acpi", "/proc/asound", "/proc/cmdline", "/proc/interrupts", "/proc/kcore", "/proc/keys", "/proc/latency_stats",
	"/proc/pressure", "/proc/sched_debug", "/proc/scsi", "/proc/timer_list", "/proc/timer_stats", NULL,
};
static const char *const read_only[] = { "/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger", NULL };

static void cover_proc(void)
{
	const unsigned long safe = MS_NOSUID | MS_NODEV | MS_NOEXEC | MS_RDONLY;
	int i;

	if (broken("proc"))
		return;
	for (i = 0; hidden[i]; i++)
		if (mount("/dev/null", hidden[i], NULL, MS_BIND, NULL) < 0 && errno != ENOENT &&
		    (errno != ENOTDIR || mount("none", hidden[i], "tmpfs", safe, "size=0,mode=555") < 0))
			fail(hidden[i]);
	for (i = 0; read_only[i]; i++) {
		if (mount(read_only[i], read_only[i], NULL, MS_BIND | MS_REC, NULL) < 0) {
			if (errno == ENOENT)
				continue;
			fail(read_only[i]);
		}
		if (mount(NULL, read_only[i], NULL, MS_BIND | MS_REMOUNT | safe, NULL) < 0)
			fail(read_only[i]);
	}
}

// The second user namespace is the second wall: the command's own, without
// power over the network namespace and what is mounted, and with the caller's uid. The
// copy of the mounts that it gets is locked by the kernel (mount_namespaces(7)): as they
// are, not even a capability takes one of them away, or gives it back what it may not.
static void enter_own_user(const struct plan_head *h)
{
	char map[64];

	if (unshare(CLONE_NEWUSER | CLONE_NEWNS) < 0)
		fail("second-user-namespace");
	write_file("/proc/self/setgroups", "deny");
	snprintf(map, sizeof map, "%u 0 1", h->uid);
	write_file("/proc/self/uid_map", map);
	snprintf(map, sizeof map, "%u 0 1", h->gid);
	write_file("/proc/self/gid_map", map);
}

static void drop_privileges(void)
{
	struct __user_cap_header_struct head = { _LINUX_CAPABILITY_VERSION_3, 0 };
	struct __user_cap_data_struct none[2];
	struct rlimit core = { 0, 0 };
	int cap;

	for (cap = 0; cap < 64; cap++)
		if (!(broken("capability") && cap == CAP_NET_ADMIN) && prctl(PR_CAPBSET_DROP, cap, 0, 0, 0) < 0)
			break;
	prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0);
	memset(none, 0, sizeof none);
	if (broken("capability"))
		none[0].effective = none[0].permitted = none[0].inheritable = 1 << CAP_NET_ADMIN;
	// Without no_new_privs the filter takes a capability, which the exec then takes away.
	if (!broken("privileges") && syscall(SYS_capset, &head, none) < 0)
		fail("capset");
	if (broken("capability") && prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_RAISE, CAP_NET_ADMIN, 0, 0) < 0)
		fail("ambient");
	if (!broken("privileges") && prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) < 0)
		fail("no-new-privs");
	if (setrlimit(RLIMIT_CORE, &core) < 0)
		fail("rlimit-core");
	// The command shares this process's uid; it must not reach its memory or descriptors.
	if (prctl(PR_SET_DUMPABLE, 0, 0, 0, 0) < 0)
		fail("dumpable");
}

static int send_fd(char tag, int fd)
{
	char ctl[CMSG_SPACE(sizeof(int))] = { 0 };
	struct iovec iov = { &tag, 1 };
	struct msghdr m = { .msg_iov = &iov, .msg_iovlen = 1, .msg_control = ctl, .msg_controllen = sizeof ctl };
	struct cmsghdr *c = CMSG_FIRSTHDR(&m);

	c->cmsg_level = SOL_SOCKET, c->cmsg_type = SCM_RIGHTS, c->cmsg_len = CMSG_LEN(sizeof(int));
	memcpy(CMSG_DATA(c), &fd, sizeof fd);
	return sendmsg(SBX_INIT_CTL, &m, 0) < 0 ? -1 : 0;
}

// Opens the private pty inside, so that `tty` has a name there, and hands the
// master to the supervisor. Returns the slave.
static int open_pty(const struct plan_head *h)
{
	struct winsize size = { .ws_row = h->rows, .ws_col = h->cols };
	int master = open("/dev/ptmx", O_RDWR | O_NOCTTY | O_CLOEXEC), unlock = 0, slave;

	if (master < 0 || ioctl(master, TIOCSPTLCK, &unlock) < 0)
		fail("open-ptmx");
	slave = ioctl(master, TIOCGPTPEER, O_RDWR | O_NOCTTY | O_CLOEXEC);
	if (slave < 0)
		fail("open-pts");
	if (h->rows && ioctl(slave, TIOCSWINSZ, &size) < 0)
		fail("window-size");
	if (send_fd('F', master) < 0)
		fail("send-pty");
	close(master);
	return slave;
}

static void place_stdio(const struct plan_head *h)
{
	int slave = h->tty & 1 ? open_pty(h) : -1, null = -1, fd;

	for (fd = 0; fd <= 2; fd++) {
		int from = -1;
		if (h->tty & (2u << fd)) {
			from = slave;
		} else if (h->null & (1u << fd)) {
			if (null < 0 && (null = open("/dev/null", O_RDWR | O_CLOEXEC)) < 0)
				fail("open-null");
			from = null;
		}
		if (from >= 0 && dup2(from, fd) < 0)
			fail("place-stdio");
	}
	if (slave > 2)
		close(slave);
	if (null > 2)
		close(null);
}

// What of the command's can be bounded for each process, or for its uid in its user
// namespace (setrlimit(2)).
static const int limited[] = { RLIMIT_NOFILE, RLIMIT_FSIZE, RLIMIT_NPROC, RLIMIT_DATA };

static void bound(const struct plan_head *h)
{
	struct rlimit l;
	rlim_t most;
	int i;

	for (i = 0; i < 4; i++) {
		if (!h->limits[i])
			continue;
		most = (rlim_t)h->limits[i];
		if (getrlimit(limited[i], &l) < 0)
			fail("getrlimit");
		l.rlim_max = l.rlim_max < most ? l.rlim_max : most;
		l.rlim_cur = l.rlim_cur < l.rlim_max ? l.rlim_cur : l.rlim_max;
		if (setrlimit(limited[i], &l) < 0)
			fail("setrlimit");
	}
}

// A probe is one request to an address that nothing serves: only if the redirect
// and the proxy's floor stand does it come back as 520.
struct probe {
	int family, socket;
	const char *step;
};

static void ask(struct probe *p, const struct plan_head *h)
{
	struct sockaddr_in v4 = { .sin_family = AF_INET, .sin_port = htons(h->probe_port) };
	struct sockaddr_in6 v6 = { .sin6_family = AF_INET6, .sin6_port = htons(h->probe_port) };
	const int four = p->family == AF_INET;
	char host[INET6_ADDRSTRLEN], request[256];
	struct timeval limit = { 5, 0 };
	int s = socket(p->family, SOCK_STREAM | SOCK_CLOEXEC, 0), n;

	memcpy(&v4.sin_addr, h->probe4, 4);
	memcpy(&v6.sin6_addr, h->probe6, 16);
	inet_ntop(p->family, four ? (void *)&v4.sin_addr : (void *)&v6.sin6_addr, host, sizeof host);
	if (s < 0 || setsockopt(s, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit) < 0 ||
	    setsockopt(s, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit) < 0)
		fail(p->step);
	if (connect(s, four ? (void *)&v4 : (void *)&v6, four ? sizeof v4 : sizeof v6) < 0)
		fail(p->step);
	n = snprintf(request, sizeof request, "GET /%.32s HTTP/1.1\r\nHost: %s%s%s:%u\r\nConnection: close\r\n\r\n", h->nonce,
		     four ? "" : "[", host, four ? "" : "]", h->probe_port);
	if (write(s, request, n) != n)
		fail(p->step);
	p->socket = s;
}

static void hear(const struct probe *p)
{
	char answer[64];
	ssize_t got = 0, r;

	while (got < 12 && (r = read(p->socket, answer + got, sizeof answer - got)) > 0)
		got += r;
	if (got < 12 || memcmp(answer, "HTTP/1.1 520", 12) != 0) {
		errno = got < 12 ? ETIMEDOUT : EPROTO;
		fail(p->step);
	}
	close(p->socket);
}

static void prove_floor(const struct plan_head *h)
{
	struct probe v4 = { AF_INET, -1, "probe-v4" }, v6 = { AF_INET6, -1, "probe-v6" };

	ask(&v4, h);
	ask(&v6, h);
	hear(&v4);
	hear(&v6);
}

// From here on the runner answers connect and listen. What it answers by must not stay
// with the command. Where the kernel has no such thing, somebody else has it already, or
// the runner may not look at the command, there are no unix sockets.
static void ask_runner(const struct plan_head *h)
{
	char frame[5] = { 'U' };
	int listener = h->unanswered ? -1 : sbx_ask_runner();
	int reason = h->unanswered ? (int)h->unanswered : errno;

	if (listener >= 0) {
		if (send_fd('L', listener) < 0)
			fail("send-listener");
		close(listener);
		return;
	}
	memcpy(frame + 1, &reason, sizeof reason);
	if (sbx_forbid_unix_sockets() < 0 || write(SBX_INIT_CTL, frame, sizeof frame) != sizeof frame)
		fail("forbid-unix-sockets");
}

static int terminal_of(const struct plan_head *h) { return h->tty & 2 ? 0 : h->tty & 4 ? 1 : 2; }

// Makes the calling process the leader of a session with the pty.
static void take_terminal(const struct plan_head *h)
{
	if (setsid() < 0 && getsid(0) != getpid())
		fail("setsid");
	if (h->tty & 1 && ioctl(terminal_of(h), TIOCSCTTY, 0) < 0)
		fail("controlling-terminal");
}

static void __attribute__((noreturn)) run_command(const struct plan_head *h, char **argv, char **env, char **writable, struct sock_fprog *filter)
{
	sigset_t none;
	int sig;

	if (wait_children) {
		// The terminal is hung up when the session's leader ends: that is the init
		// here, so that the command's children keep it.
		if (setpgid(0, 0) < 0)
			fail("setpgid");
		signal(SIGTTOU, SIG_IGN);
		if (h->tty & 1 && tcsetpgrp(terminal_of(h), getpid()) < 0)
			fail("foreground");
	} else {
		take_terminal(h);
	}
	for (sig = 1; sig < NSIG; sig++)
		signal(sig, SIG_DFL);
	sigemptyset(&none);
	sigprocmask(SIG_SETMASK, &none, NULL);
	if (syscall(SYS_close_range, 3, ~0U, 4 /* CLOSE_RANGE_CLOEXEC */) < 0)
		fail("close-range");
	if (broken("descriptor") && open("/", O_RDONLY | O_DIRECTORY) < 0)
		fail("descriptor");
	if (h->landlock && sbx_landlock(h->landlock, writable) < 0)
		fail("landlock");
	ask_runner(h);
	bound(h);
	if (syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, filter) < 0)
		fail("seccomp");
	environ = env;
	execvpe(argv[0], argv, env);
	fail_as("exec", errno == ENOENT || errno == ENOTDIR ? 127 : 126);
}

static void __attribute__((noreturn)) end(int status)
{
	char frame[5] = { 'X' };

	// Everything in the namespace dies before the status is told.
	kill(-1, SIGKILL);
	while (waitpid(-1, NULL, 0) > 0 || errno == EINTR)
		;
	memcpy(frame + 1, &status, sizeof status);
	(void)!write(SBX_INIT_CTL, frame, sizeof frame);
	_exit(0);
}

// Reaps until the command itself is gone, or everybody where that is asked for.
static void reap(void)
{
	int status;
	pid_t p;

	while ((p = waitpid(-1, &status, WNOHANG)) > 0) {
		if (p != command)
			continue;
		command = 0, command_status = status;
		if (!wait_children)
			end(status);
	}
	if (p < 0 && errno == ECHILD)
		end(command_status);
}

// Interrupt and quit go to the foreground as from a terminal's keys, the rest
// to the command alone, as from kill(1). Once it is gone, all are for whoever is left.
static void deliver(int sig)
{
	if (!command)
		kill(-1, sig);
	else
		kill(sig == SIGINT || sig == SIGQUIT ? -command : command, sig);
}

static void __attribute__((noreturn)) supervise(int signals)
{
	struct pollfd fds[2] = { { SBX_INIT_CTL, POLLIN, 0 }, { signals, POLLIN, 0 } };
	struct signalfd_siginfo info;
	unsigned char sig;

	for (;;) {
		reap();
		if (poll(fds, 2, -1) < 0 && errno != EINTR)
			_exit(125);
		if (fds[1].revents && read(signals, &info, sizeof info) < 0 && errno != EAGAIN)
			_exit(125);
		if (!fds[0].revents)
			continue;
		if (read(SBX_INIT_CTL, &sig, 1) != 1)
			_exit(125); // the runner is gone: so is everything here
		deliver(sig);
	}
}

static char **strings(char **at, char *end, uint32_t n)
{
	char **list = must_alloc((n + 1) * sizeof *list);
	uint32_t i;

	for (i = 0; i < n; i++) {
		if (*at >= end)
			_exit(125);
		list[i] = *at;
		*at += strlen(*at) + 1;
	}
	return list;
}

void sbx_init_main(void)
{
	struct plan_head h;
	struct sock_fprog filter = { 0 };
	char *text, *at, *cwd, **argv, **env, **writable, go;
	sigset_t chld;
	int signals;

	// Bound to the runner's thread that started us; the control socket's end is the second watch.
	if (prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0) < 0 || syscall(SYS_close_range, SBX_INIT_CTL + 1, ~0U, 0) < 0)
		fail("pdeathsig");
	prctl(PR_SET_NAME, "sbx-init", 0, 0, 0);
	read_full(&h, sizeof h);
	text = must_alloc(h.text + 1), filter.filter = must_alloc(h.filter);
	read_full(text, h.text);
	read_full(filter.filter, h.filter);
	filter.len = h.filter / sizeof(struct sock_filter);
	at = text;
	cwd = strings(&at, text + h.text, 1)[0];
	argv = strings(&at, text + h.text, h.argc);
	env = strings(&at, text + h.text, h.envc);
	writable = strings(&at, text + h.text, h.writable);

	cover_proc();
	enter_own_user(&h);
	drop_privileges();
	if (prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0) < 0)
		fail("pdeathsig");
	place_stdio(&h);
	if (chdir(cwd) < 0)
		fail("chdir");
	prove_floor(&h);
	if (write(SBX_INIT_CTL, "P", 1) != 1)
		_exit(125);
	read_full(&go, 1);
	if (go != 'G')
		_exit(125);

	sigemptyset(&chld);
	sigaddset(&chld, SIGCHLD);
	sigprocmask(SIG_BLOCK, &chld, NULL);
	signals = signalfd(-1, &chld, SFD_CLOEXEC | SFD_NONBLOCK);
	if (signals < 0)
		fail("signalfd");
	wait_children = h.wait_children;
	if (wait_children)
		take_terminal(&h);
	command = fork();
	if (command < 0)
		fail("fork");
	if (command == 0)
		run_command(&h, argv, env, writable, &filter);
	// Only the command may keep its pipes and terminal open.
	close(0), close(1), close(2);
	supervise(signals);
}
