"""A TCP connection of a health check, from start to end. It never blocks the event loop."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import socket
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from lbagent.model.address import L3n4Addr
    from lbagent.probes.check_time import Deadline

_LINGER_NONE = b"\1\0\0\0" + bytes(4)  # struct linger: on, 0 s
_UNDER_WAY = (errno.EINPROGRESS, errno.EALREADY)


class TcpConnection:
    """Starts to connect when it is made."""

    def __init__(self, server: L3n4Addr, *, half_open: bool = False) -> None:
        """`half_open`: leave the answer to the server's SYN-ACK to a delayed ACK.

        Closed before that, it sends a RST: the server's kernel has accepted the connection, its process never sees one.
        """
        self._address = (server.ip, server.port)
        family = socket.AF_INET6 if server.is_ipv6 else socket.AF_INET
        self._sock = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
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
        with contextlib.suppress(OSError):
            self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _LINGER_NONE)
        self._sock.close()
