"""A minimal API server, so that the load balancer's cost is visible: a thread for each connection, blocking calls.

`python -m bench.apilb.plain_and_tls_server FOLDER ADDRESS:PORT...` prints `ready`. The first byte of a connection
selects TLS (a handshake, and every request is answered with 200), or plain: each eight bytes are the number of bytes to send.
"""

from __future__ import annotations

import contextlib
import socket
import ssl
import sys
import threading
from pathlib import Path

from tests.lab.https_server import make_certificate

HANDSHAKE = b"\x16"  # the first byte of TLS (RFC 8446, 5.1)
BLOCK = bytes(1 << 20)
ANSWER = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"


def serve(sock: socket.socket, context: ssl.SSLContext) -> None:
    """Serve one connection to its end."""
    with contextlib.suppress(OSError), sock:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if sock.recv(1, socket.MSG_PEEK) == HANDSHAKE:
            with context.wrap_socket(sock, server_side=True) as wrapped:
                while wrapped.recv(4096):
                    wrapped.sendall(ANSWER)
        else:
            while asked := sock.recv(8, socket.MSG_WAITALL):
                send(sock, int.from_bytes(asked, "big"))


def send(sock: socket.socket, left: int) -> None:
    """Send so many bytes."""
    while left:
        left -= sock.send(BLOCK[:left] if left < len(BLOCK) else BLOCK)


def accept(listener: socket.socket, context: ssl.SSLContext) -> None:
    """Accept until killed."""
    while True:
        sock, _ = listener.accept()
        threading.Thread(target=serve, args=(sock, context), daemon=True).start()


def main(folder: str, *places: str) -> None:
    """Listen everywhere and never return."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*make_certificate(Path(folder)))
    threads = []
    for place in places:
        address, _, port = place.rpartition(":")
        listener = socket.create_server((address, int(port)), backlog=1024)
        threads.append(threading.Thread(target=accept, args=(listener, context)))
        threads[-1].start()
    print("ready", flush=True)
    threads[0].join()


if __name__ == "__main__":
    main(*sys.argv[1:])
