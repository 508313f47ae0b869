// sockets connects in ways that a careless broker of connections gets wrong:
//
//	sockets race-address HOST   the address changes while the kernel reads it
//	sockets race-path HOST      the path comes to mean another file
//	sockets race-descriptor HOST  the descriptor comes to mean another socket
//	sockets storm               a thousand connections at once, by path and by TCP
//	sockets blocked             connections that wait, and what ends their waiting
//
//	sockets forbidden COMMAND...  runs a command that may not take others' descriptors
//	sockets asked COMMAND...    runs a command whose calls somebody is asked about already
//
// HOST is a socket of the host's. A line of standard output says what came of it.
#define _GNU_SOURCE
#include <errno.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <netinet/in.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

static struct sockaddr_un named(const char *path) {
	struct sockaddr_un a = {.sun_family = AF_UNIX};
	snprintf(a.sun_path, sizeof a.sun_path, "%s", path);
	return a;
}

static int listening(int family, const void *a, socklen_t size, int backlog) {
	int s = socket(family, SOCK_STREAM, 0);
	if (s < 0 || bind(s, a, size) < 0 || listen(s, backlog) < 0) {
		perror("listening");
		exit(1);
	}
	return s;
}

// greeter answers every connection with i, in a process of its own.
static void greeter(int s) {
	if (fork() > 0)
		return;
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	for (;;) {
		int c = accept(s, NULL, NULL);
		if (c >= 0 && write(c, "i", 1) == 1)
			close(c);
	}
}

// What came of an attempt: i for a socket inside, h for the host's, else an errno.
static atomic_int inside, host, refused, other, last;

static void count(int s, const void *a, socklen_t size) {
	char greeting = 0;
	if (connect(s, a, size) < 0) {
		if (errno == EACCES) {
			refused++;
		} else {
			last = errno;
			other++;
		}
	} else if (read(s, &greeting, 1) == 1 && greeting == 'i') {
		inside++;
	} else {
		host++;
	}
}

static void say(void) {
	printf("inside %d refused %d host %d other %d (%s)\n", inside, refused, host, other, other ? strerrorname_np(last) : "-");
}

static struct sockaddr_un shared;
static atomic_int over;
static const char *host_path;

static void *flip_address(void *unused) {
	(void)unused;
	struct sockaddr_un ours = named("in.sock"), theirs = named(host_path);
	while (!over) {
		memcpy(shared.sun_path, theirs.sun_path, sizeof shared.sun_path);
		__asm__ volatile("" ::: "memory"); // or the compiler leaves the first one out
		memcpy(shared.sun_path, ours.sun_path, sizeof shared.sun_path);
		__asm__ volatile("" ::: "memory");
	}
	return NULL;
}

static void *flip_path(void *unused) {
	(void)unused;
	while (!over) {
		unlink("next"), symlink(host_path, "next"), rename("next", "link");
		unlink("next"), symlink("in.sock", "next"), rename("next", "link");
	}
	return NULL;
}

static int victim, spares[2];

static void *flip_descriptor(void *unused) {
	(void)unused;
	while (!over) {
		dup2(spares[0], victim);
		dup2(spares[1], victim);
	}
	return NULL;
}

static void race(void *(*flip)(void *)) {
	enum { rounds = 4000 };
	pthread_t t;
	struct sockaddr_un own = named("in.sock");
	greeter(listening(AF_UNIX, &own, sizeof own, 1000));
	shared = own;
	if (flip == flip_path) {
		symlink("in.sock", "link");
		shared = named("link");
	}
	if (flip == flip_descriptor) {
		shared = named(host_path);
		victim = dup(0);
		spares[0] = socket(AF_INET, SOCK_STREAM, 0);
		spares[1] = socket(AF_UNIX, SOCK_STREAM, 0);
	}
	pthread_create(&t, NULL, flip, NULL);
	for (int i = 0; i < rounds; i++) {
		int s = flip == flip_descriptor ? victim : socket(AF_UNIX, SOCK_STREAM, 0);
		count(s, &shared, sizeof shared);
		if (s != victim)
			close(s);
	}
	over = 1;
	pthread_join(t, NULL);
	say();
}

static pthread_barrier_t start;
static struct sockaddr_in port;

static void *connect_once(void *number) {
	struct sockaddr_un a = named("in.sock");
	pthread_barrier_wait(&start);
	if ((long)number % 2)
		count(socket(AF_UNIX, SOCK_STREAM, 0), &a, sizeof a);
	else
		count(socket(AF_INET, SOCK_STREAM, 0), &port, sizeof port);
	return NULL;
}

static void storm(void) {
	enum { many = 1000 };
	static pthread_t all[many];
	struct sockaddr_un a = named("in.sock");
	struct sockaddr_in any = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	socklen_t size = sizeof port;
	pthread_attr_t small;
	greeter(listening(AF_UNIX, &a, sizeof a, 5));
	int s = listening(AF_INET, &any, sizeof any, 1000);
	getsockname(s, (struct sockaddr *)&port, &size);
	greeter(s);
	pthread_attr_init(&small);
	pthread_attr_setstacksize(&small, 65536);
	pthread_barrier_init(&start, NULL, many);
	for (long i = 0; i < many; i++)
		if (pthread_create(&all[i], &small, connect_once, (void *)i) != 0)
			exit(1);
	for (long i = 0; i < many; i++)
		pthread_join(all[i], NULL);
	say();
}

static void on_alarm(int sig) { (void)sig; }

static const char *outcome(int s, const struct sockaddr_un *a) {
	return connect(s, (const void *)a, sizeof *a) == 0 ? "ok" : strerrorname_np(errno);
}

static void blocked(void) {
	struct sockaddr_un a = named("full.sock");
	struct timeval limit = {.tv_usec = 100000};
	struct sigaction action = {.sa_handler = on_alarm};
	int full = listening(AF_UNIX, &a, sizeof a, 0), status;
	printf("first %s\n", outcome(socket(AF_UNIX, SOCK_STREAM, 0), &a));
	printf("without waiting %s\n", outcome(socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0), &a));
	int s = socket(AF_UNIX, SOCK_STREAM, 0);
	setsockopt(s, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit);
	printf("with a limit %s\n", outcome(s, &a));
	sigaction(SIGALRM, &action, NULL);
	alarm(1);
	s = socket(AF_UNIX, SOCK_STREAM, 0);
	printf("interrupted %s\n", outcome(s, &a));
	fflush(stdout);
	pid_t killed = fork();
	if (killed == 0) {
		outcome(socket(AF_UNIX, SOCK_STREAM, 0), &a);
		_exit(1);
	}
	usleep(200000);
	kill(killed, SIGKILL);
	waitpid(killed, &status, 0);
	printf("killed by %d\n", WIFSIGNALED(status) ? WTERMSIG(status) : 0);
	fflush(stdout);
	pid_t waits = fork();
	if (waits == 0)
		_exit(strcmp(outcome(socket(AF_UNIX, SOCK_STREAM, 0), &a), "ok"));
	usleep(200000);
	close(accept(full, NULL, NULL));
	waitpid(waits, &status, 0);
	printf("after its turn came %s\n", status == 0 ? "ok" : "no");
	fflush(stdout);
	// A handler that asks for the call to be made again, then a stop and its end.
	waits = fork();
	if (waits == 0) {
		action.sa_flags = SA_RESTART;
		sigaction(SIGALRM, &action, NULL);
		_exit(strcmp(outcome(socket(AF_UNIX, SOCK_STREAM, 0), &a), "ok"));
	}
	usleep(200000);
	kill(waits, SIGALRM);
	usleep(200000);
	kill(waits, SIGSTOP);
	waitpid(waits, &status, WUNTRACED);
	printf("stopped by %d\n", WIFSTOPPED(status) ? WSTOPSIG(status) : 0);
	fflush(stdout);
	kill(waits, SIGCONT);
	usleep(200000);
	close(accept(full, NULL, NULL));
	waitpid(waits, &status, 0);
	printf("made again %s\n", status == 0 ? "ok" : "no");
	fflush(stdout);
	// Left waiting when the command ends.
	if (fork() == 0)
		_exit(outcome(socket(AF_UNIX, SOCK_STREAM, 0), &a) == NULL);
	usleep(100000);
}

// The kernel knows one listener for a process: this one, which asks about nothing, as
// long as somebody has it open.
static void asked(char **command) {
	struct sock_filter allow = BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
	struct sock_fprog program = {1, &allow};
	prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
	if (syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_NEW_LISTENER, &program) < 0) {
		perror("seccomp");
		exit(1);
	}
	pid_t child = fork();
	int status = -1;
	if (child == 0) {
		execv(command[0], command);
		perror(command[0]);
		_exit(1);
	}
	waitpid(child, &status, 0);
	exit(WIFEXITED(status) ? WEXITSTATUS(status) : 1);
}

// As the filters of some containers do.
static void forbidden(char **command) {
	struct sock_filter filter[] = {
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, 0), // its number comes first (struct seccomp_data)
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_pidfd_getfd, 0, 1),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
	};
	struct sock_fprog program = {4, filter};
	prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
	if (syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, &program) == 0)
		execv(command[0], command);
	perror("forbidden");
	exit(1);
}

int main(int argc, char **argv) {
	if (argc > 2)
		host_path = argv[2];
	signal(SIGPIPE, SIG_IGN);
	if (!strcmp(argv[1], "storm"))
		storm();
	else if (!strcmp(argv[1], "asked"))
		asked(argv + 2);
	else if (!strcmp(argv[1], "forbidden"))
		forbidden(argv + 2);
	else if (!strcmp(argv[1], "blocked"))
		blocked();
	else if (!strcmp(argv[1], "race-address"))
		race(flip_address);
	else if (!strcmp(argv[1], "race-path"))
		race(flip_path);
	else
		race(flip_descriptor);
	fflush(stdout);
	return 0;
}
