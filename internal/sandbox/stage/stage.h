// Shared declarations of the stage: what happens before, and instead of, the Go runtime.
#ifndef SBX_STAGE_H
#define SBX_STAGE_H

#include <stdint.h>
#include <sys/types.h>

// The path of the init inside every sandbox; a process that is started under
// this name as PID 1 never becomes a Go program.
#define SBX_INIT_PATH "/run/sbx/init"
// The descriptor of the init's control socket.
#define SBX_INIT_CTL 3

enum sbx_role { SBX_ROLE_NONE = 0, SBX_ROLE_SUPERVISOR = 1, SBX_ROLE_RUNNER = 2 };

extern int sbx_role;      // enum sbx_role
extern int sbx_socket;    // this half's end of the socket pair, or -1
extern pid_t sbx_peer;    // supervisor only: the runner's pid
extern int sbx_euid;      // the caller's ids, as seen before any namespace
extern int sbx_egid;
extern int sbx_privileged; // CAP_SYS_ADMIN in the caller's user namespace, which has ids to give

// Runs the init's whole life. Never returns.
void sbx_init_main(void) __attribute__((noreturn));

// Makes the kernel ask the holder of the returned descriptor about each connect and
// listen of this process and its children. Returns -1 and errno where it cannot.
int sbx_ask_runner(void);

// Leaves this process and its children no unix sockets but pairs. Returns -1 and errno.
int sbx_forbid_unix_sockets(void);

// Restricts this process and its children with Landlock, version abi: they change
// nothing but what lies beneath the writable paths. Returns -1 and errno.
int sbx_landlock(uint32_t abi, char **writable);

// Lets a thread, 0 for the calling one, run on all processors that the caller of sbx may
// use. Returns 0 or -errno.
int sbx_free(int thread);

// Opens a user namespace in which id 0 stands for `kuid`/`kgid` of this
// namespace, for idmapped mounts. Returns its descriptor or -errno.
int sbx_idmap_userns(unsigned int disk_uid, unsigned int disk_gid, unsigned int kuid, unsigned int kgid);

#endif
