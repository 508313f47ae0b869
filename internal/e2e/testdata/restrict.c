// restrict restricts itself with the sandbox's own Landlock code, version argv[1], to
// the writable paths that follow, and then makes each attempt that standard input
// lists, one a line: a verb and up to two paths. What came of it is a line of
// standard output: ok, or the number of an error.
#define _GNU_SOURCE
#include "../../sandbox/stage/stage.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

static int opened(const char *path, int flags)
{
	int fd = open(path, flags, 0644);

	return fd < 0 ? -1 : close(fd);
}

static int abstract(const char *name)
{
	struct sockaddr_un to = { .sun_family = AF_UNIX };
	int s = socket(AF_UNIX, SOCK_STREAM, 0);

	strncpy(to.sun_path + 1, name, sizeof to.sun_path - 2);
	return connect(s, (void *)&to, (socklen_t)(sizeof to.sun_family + 1 + strlen(name)));
}

static int attempt(const char *verb, const char *a, const char *b)
{
	if (!strcmp(verb, "read"))
		return opened(a, O_RDONLY);
	if (!strcmp(verb, "write"))
		return opened(a, O_WRONLY);
	if (!strcmp(verb, "make"))
		return opened(a, O_WRONLY | O_CREAT);
	if (!strcmp(verb, "mkdir"))
		return mkdir(a, 0755);
	if (!strcmp(verb, "mkfifo"))
		return mkfifo(a, 0644);
	if (!strcmp(verb, "symlink"))
		return symlink("x", a);
	if (!strcmp(verb, "remove"))
		return remove(a);
	if (!strcmp(verb, "rename"))
		return rename(a, b);
	if (!strcmp(verb, "link"))
		return link(a, b);
	if (!strcmp(verb, "kill"))
		return kill(atoi(a), 0);
	if (!strcmp(verb, "abstract"))
		return abstract(a);
	errno = EINVAL;
	return -1;
}

int main(int argc, char **argv)
{
	static char line[4096];

	if (argc < 2 || prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) < 0 || sbx_landlock((uint32_t)atoi(argv[1]), argv + 2) < 0)
		return perror("restricting"), 1;
	while (fgets(line, sizeof line, stdin)) {
		char *verb = strtok(line, " \n"), *a = strtok(NULL, " \n"), *b = strtok(NULL, " \n");
		if (attempt(verb, a ? a : "", b ? b : "") == 0)
			puts("ok");
		else
			printf("error %d\n", errno);
	}
	return 0;
}
