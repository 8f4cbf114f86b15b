"""`python -m bench.kube.pod_server ADDRESS`: the server of a pod: answers short requests at 8080, discards data at 9091.

Prints `ready` when it listens. It has blocking sockets and one process per port: the figures should be the network's, not the server's.
"""

from __future__ import annotations

import contextlib
import os
import socket
import sys

ANSWER_PORT, SINK_PORT = 8080, 9091
ANSWER = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"


def answer(listener: socket.socket) -> None:
    """Answer one request on each connection and close it."""
    while True:
        sock, _ = listener.accept()
        with contextlib.suppress(OSError), sock:
            if sock.recv(4096):
                sock.sendall(ANSWER)


def swallow(listener: socket.socket) -> None:
    """Read each connection to its end; send the client the number of bytes."""
    room = bytearray(1 << 20)
    while True:
        sock, _ = listener.accept()
        with contextlib.suppress(OSError), sock:
            count = 0
            while got := sock.recv_into(room):
                count += got
            sock.sendall(count.to_bytes(8, "big"))


def main(address: str) -> None:
    """Listen, and never return; on the first CPU (clients are on the last), with priority over other processes, like clients."""
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    os.setpriority(os.PRIO_PROCESS, 0, -20)
    listeners = [socket.create_server((address, port), backlog=4096) for port in (ANSWER_PORT, SINK_PORT)]
    print("ready", flush=True)
    if os.fork():
        answer(listeners[0])
    else:
        swallow(listeners[1])


if __name__ == "__main__":
    main(sys.argv[1])
