"""Where a probe goes: to a server, or through a frontend whose data plane sends its flow to that server."""

from __future__ import annotations

import socket
from collections.abc import Callable

from msgspec import Struct

from lbagent.model.address import L3n4Addr

MarkOf = Callable[[L3n4Addr], int]


def unmarked(_backend: L3n4Addr) -> int:
    """Return 0: no data plane sends marked flows to a certain backend."""
    return 0


class Through(Struct, frozen=True):
    """A backend behind a frontend. `mark_of` returns the mark of a socket whose flow reaches it; 0: there is none now."""

    frontend: L3n4Addr
    backend: L3n4Addr
    mark_of: MarkOf

    def __str__(self) -> str:
        """Return the backend's address and port."""
        return str(self.backend)


Destination = L3n4Addr | Through


def open_socket(to: Destination, kind: socket.SocketKind) -> tuple[socket.socket, tuple[str, int]]:
    """Return a new socket that does not block, and the address to connect it to. Raises OSError."""
    server, mark = to, 0
    if isinstance(to, Through):
        mark = to.mark_of(to.backend)
        server = to.frontend if mark else to.backend
    assert isinstance(server, L3n4Addr)
    family = socket.AF_INET6 if server.is_ipv6 else socket.AF_INET
    sock = socket.socket(family, kind | socket.SOCK_NONBLOCK)
    if mark:
        try:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_MARK, mark)
        except OSError:
            sock.close()
            raise
    return sock, (server.ip, server.port)
