"""A TCP connection of a health check, from start to end. It never blocks the event loop."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import socket
from typing import TYPE_CHECKING

from lbagent.probes.destination import open_socket

if TYPE_CHECKING:
    from lbagent.probes.check_time import Deadline
    from lbagent.probes.destination import Destination

_LINGER_NONE = b"\1\0\0\0" + bytes(4)  # struct linger: on, 0 s
_UNDER_WAY = (errno.EINPROGRESS, errno.EALREADY)


def connect_half_open(server: Destination) -> tuple[socket.socket, OSError | None]:
    """Return a socket that begins to connect as TcpConnection does with `half_open`, and why it cannot. Raises OSError."""
    sock, address = open_socket(server, socket.SOCK_STREAM)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK, 0)
    code = sock.connect_ex(address)
    if code in (0, *_UNDER_WAY):
        return sock, None
    return sock, OSError(code, os.strerror(code))


def reset(sock: socket.socket) -> None:
    """Close a socket at once: a check leaves none in TIME_WAIT."""
    with contextlib.suppress(OSError):
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _LINGER_NONE)
    sock.close()


class TcpConnection:
    """Starts to connect when it is made."""

    def __init__(self, server: Destination, *, half_open: bool = False) -> None:
        """`half_open`: leave the answer to the server's SYN-ACK to a delayed ACK.

        Closed before that, it sends a RST: the server's kernel has accepted the connection, its process never sees one.
        """
        self._sock, self._address = open_socket(server, socket.SOCK_STREAM)
        self._loop = asyncio.get_running_loop()
        if half_open:
            self._sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK, 0)
        self._code = self._sock.connect_ex(self._address)

    async def established(self, deadline: Deadline) -> None:
        """Return when it is connected; raises OSError with the reason if it fails."""
        if self._code in _UNDER_WAY:
            self._code = self._sock.connect_ex(self._address)  # it may be connected by now: that saves the wait
        if self._code in _UNDER_WAY:
            handle = self._sock.fileno()
            self._loop.add_writer(handle, deadline.done)
            try:
                await deadline.wait()
            finally:
                self._loop.remove_writer(handle)
            self._code = self._sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if self._code not in (0, errno.EISCONN):
            raise OSError(self._code, os.strerror(self._code))

    def close(self) -> None:
        """Close it at once: a check leaves no socket in TIME_WAIT."""
        reset(self._sock)
