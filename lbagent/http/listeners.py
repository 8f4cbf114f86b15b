"""Keeps TCP ports open for one HttpServer. A port that cannot be opened is a named problem; the caller retries."""

from __future__ import annotations

import asyncio
import errno
import os
import socket
from collections.abc import Collection

from lbagent.http.http_server import MAX_HEAD_BYTES, Handler, HttpServer, Limits
from lbagent.model.address import L3n4Addr
from lbagent.model.family import Family

BACKLOG = 32
BIND_RETRY_DELAY_S = 5.0  # before the next try of a port that another process uses
PUBLIC_LIMITS = Limits(per_client=8, makes_room=True, answer_s=30.0)  # any host that reaches the port may connect


class Listeners:
    """The addresses on which a handler is served. `problems` has those that cannot be used, with the reason."""

    def __init__(self, handler: Handler, limits: Limits = PUBLIC_LIMITS) -> None:
        """`handler` gets any method: kube-proxy's ports ignore it, and balancers also send HEAD and OPTIONS."""
        self._http = HttpServer(handler, limits, methods=None)
        self._servers: dict[L3n4Addr, asyncio.Server] = {}
        self.problems: dict[L3n4Addr, str] = {}

    def keep(self, wanted: Collection[L3n4Addr]) -> None:
        """Stop listening on all other addresses."""
        for address in [address for address in self._servers if address not in wanted]:
            self._servers.pop(address).close()

    async def listen(self, wanted: Collection[L3n4Addr]) -> None:
        """Listen on these addresses and no others; call it again for those in `problems`."""
        self.keep(wanted)
        self.problems.clear()
        for address in wanted:
            if address in self._servers:
                continue
            try:
                sock = tcp_socket(address)
            except OSError as error:
                if error.errno != errno.EAFNOSUPPORT:  # a kernel without IPv6 has no IPv6 client
                    self.problems[address] = os.strerror(error.errno) if error.errno else str(error)
                continue
            self._servers[address] = await asyncio.start_server(self._http.connected, sock=sock, limit=MAX_HEAD_BYTES)

    async def close(self) -> None:
        """Close every port and the connections."""
        for server in self._servers.values():
            server.close()
        self._servers.clear()
        self.problems.clear()
        await self._http.close()


def tcp_socket(address: L3n4Addr) -> socket.socket:
    """Return a listening socket; [::] accepts no IPv4. Raises OSError."""
    family = socket.AF_INET6 if address.family is Family.IPV6 else socket.AF_INET
    return socket.create_server((address.ip, address.port), family=family, backlog=BACKLOG)
