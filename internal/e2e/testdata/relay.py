# Passes every connection to a port of loopback on to the proxy, both ways, and
# says when it is ready.
import os, socket, threading
from urllib.parse import urlsplit

proxy = urlsplit(os.environ['http_proxy'])


def pass_on(a, b):
    try:
        while data := a.recv(65536):
            b.sendall(data)
        b.shutdown(socket.SHUT_WR)
    except OSError:
        pass  # one of the two has left


server = socket.create_server(('127.0.0.1', 9000))
print('ready', flush=True)
while True:
    near, _ = server.accept()
    far = socket.create_connection((proxy.hostname, proxy.port))
    for pair in ((near, far), (far, near)):
        threading.Thread(target=pass_on, args=pair, daemon=True).start()
