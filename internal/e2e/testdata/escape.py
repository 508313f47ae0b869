# What the attempts of escape_test.go, one Python expression a line of standard
# input, need to be short. What came of each is a line of standard output.
import ctypes, errno, os, struct, sys, threading
from socket import *

libc = ctypes.CDLL(None, use_errno=True)


def code(attempt):
    """What comes of an attempt: ok, an error's name, or the result."""
    try:
        result = attempt()
    except OSError as e:
        return errno.errorcode.get(e.errno, repr(e))
    except Exception as e:
        return repr(e)
    return 'ok' if result is None else result


def connect(address, family=AF_INET, before=lambda s: None, protocol=0):
    s = socket(family, SOCK_STREAM, protocol)
    s.settimeout(20)
    before(s)
    s.connect(address)
    return s


def status(address, family=AF_INET, before=lambda s: None, protocol=0):
    """The status that an HTTP request gets from a server, which it names."""
    s = connect(address, family, before, protocol)
    host = address[0].removeprefix('::ffff:') if family == AF_INET or '.' in address[0] else '[' + address[0] + ']'
    s.sendall('GET /x HTTP/1.1\r\nHost: {}:{}\r\n\r\n'.format(host, address[1]).encode())
    return (s.recv(4096).split() + [b'end', b'end'])[1].decode()


def datagram(address, family=AF_INET, protocol=0, options=(), before=lambda s: None):
    """Sends one datagram."""
    s = socket(family, SOCK_DGRAM, protocol)
    before(s)
    return s.sendmsg([b'x'], options, 0, address)


def bound(address, family=AF_INET, kind=SOCK_DGRAM):
    socket(family, kind).bind(address)


def option(family, level, name, value, kind=SOCK_DGRAM):
    socket(family, kind).setsockopt(level, name, value)


def ask(server, name, kind=1, family=AF_INET, tcp=False):
    """Asks a name server, and says its code and the addresses of the answer."""
    question = struct.pack('>6H', 7, 0x100, 1, 0, 0, 0)
    question += b''.join(bytes([len(label)]) + label for label in name.encode().split(b'.')) + b'\0' + struct.pack('>2H', kind, 1)
    if tcp:
        s = connect((server, 53), family)
        s.sendall(struct.pack('>H', len(question)) + question)
        answer = s.recv(4096)[2:]
    else:
        s = socket(family, SOCK_DGRAM)
        s.settimeout(20)
        s.sendto(question, (server, 53))
        answer = s.recv(4096)
    found, at = [], len(question)
    for _ in range(struct.unpack('>H', answer[6:8])[0]):
        while 0 < answer[at] < 192:
            at += 1 + answer[at]
        at += 1 if answer[at] == 0 else 2
        kind, _, _, size = struct.unpack('>2HIH', answer[at:at + 10])
        data = answer[at + 10:at + 10 + size]
        found.append(inet_ntop(AF_INET6 if kind == 28 else AF_INET, data) if kind in (1, 28) else data.hex())
        at += 10 + size
    return ' '.join(['code', str(answer[3] & 15)] + found)


# A route through a host that the segment names (RFC 8754), and through an IPv4
# host (RFC 791).
segments = bytes([0, 2, 4, 0, 0, 0, 0, 0]) + inet_pton(AF_INET6, '2600::2')
source_route = bytes([131, 7, 4]) + inet_aton('8.8.4.4') + bytes(1)


def unix(path, kind=SOCK_STREAM):
    """What a server at a path or an abstract name says first."""
    s = socket(AF_UNIX, kind)
    s.connect(path)
    return s.recv(16)


def made(path, kind=SOCK_STREAM, say=lambda c: b'inside'):
    """Serves a unix socket from inside."""
    s = socket(AF_UNIX, kind)
    s.bind(path)
    s.listen(16)

    def serve():
        try:
            while True:
                c = s.accept()[0]
                c.send(say(c))
                c.close()
        except OSError:
            pass
    threading.Thread(target=serve, daemon=True).start()
    return s


def peer():
    """Whom a server inside sees when it is connected to: pid, uid and gid."""
    made('\0peer', say=lambda c: c.getsockopt(SOL_SOCKET, SO_PEERCRED, 12))
    return struct.unpack('3i', unix('\0peer'))


def libc_call(name, *arguments):
    if getattr(libc, name)(*arguments) < 0:
        raise OSError(ctypes.get_errno(), name)


def address(s, bytes_or_pointer, size):
    """connect(2) with an address as it is."""
    libc_call('connect', s.fileno(), bytes_or_pointer, size)


def mode(path):
    return oct(os.lstat(path).st_mode)


def swap(a, b):
    """renameat2 with RENAME_EXCHANGE."""
    if libc.renameat2(-100, os.fsencode(a), -100, os.fsencode(b), 2) != 0:
        raise OSError(ctypes.get_errno(), 'renameat2')


for line in sys.stdin:
    print(code(lambda: eval(line)), flush=True)
