# What the attempts of kernel_test.go, one Python expression a line of standard
# input, need to be short. What came of each is a line of standard output.
import ctypes, errno, os, sys
from socket import *

libc = ctypes.CDLL(None, use_errno=True)


def called(number, *arguments):
    """A bare system call (of amd64)."""
    if libc.syscall(ctypes.c_long(number), *arguments) == -1:
        raise OSError(ctypes.get_errno(), 'syscall')


def capabilities():
    return open('/proc/self/status').read().split('CapEff:\t')[1].split()[0].lstrip('0')


for line in sys.stdin:
    try:
        result = eval(line)
    except OSError as e:
        result = errno.errorcode[e.errno]
    print('ok' if result is None else result, flush=True)
