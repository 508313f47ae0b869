// The one thing of the filter that no rule can decide: where a socket connects to.
// connect(2) has its address behind a pointer, and its descriptor does not tell the
// family, so the runner is asked, who makes the connection itself
// (seccomp_unotify(2)). listen(2) tells it which sockets were made inside.
#define _GNU_SOURCE
#include "stage.h"

#include <errno.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#ifndef SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV
#define SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV (1UL << 5)
#endif

#define LOAD(field) BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, field))
#define ANSWER(action) BPF_STMT(BPF_RET | BPF_K, action)
#define WHERE(value, action) BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, value, 0, 1), ANSWER(action)
#define LENGTH(program) (sizeof(program) / sizeof *(program))

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "an argument's low half comes first");

static int install(struct sock_filter *program, unsigned short length, unsigned long flags)
{
	struct sock_fprog filter = { length, program };

	return (int)syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, flags, &filter);
}

// Foreign ABIs, whose numbers mean something else, are killed by the main filter.
int sbx_ask_runner(void)
{
	struct sock_filter ask[] = {
		LOAD(nr),
		WHERE(__NR_connect, SECCOMP_RET_USER_NOTIF),
		WHERE(__NR_listen, SECCOMP_RET_USER_NOTIF),
		ANSWER(SECCOMP_RET_ALLOW),
	};
	// Once the runner has taken a call, only death interrupts it: a call that was made
	// and then restarted would be made twice. Kernels before 5.19 cannot promise that.
	int listener = install(ask, LENGTH(ask), SECCOMP_FILTER_FLAG_NEW_LISTENER | SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV);

	if (listener < 0 && errno == EINVAL)
		listener = install(ask, LENGTH(ask), SECCOMP_FILTER_FLAG_NEW_LISTENER);
	return listener;
}

// Of unix sockets only pairs are left: those are connected for good.
int sbx_forbid_unix_sockets(void)
{
	struct sock_filter forbid[] = {
		LOAD(nr),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, __NR_socket, 0, 3),
		LOAD(args[0]),
		WHERE(AF_UNIX, SECCOMP_RET_ERRNO | EAFNOSUPPORT),
		ANSWER(SECCOMP_RET_ALLOW),
	};

	return install(forbid, LENGTH(forbid), 0);
}
