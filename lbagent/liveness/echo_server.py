"""Answers the echo of other nodes. Without a key it answers nothing."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import time
from collections.abc import Callable

from lbagent.liveness.echo_packet import MAX_BYTES, answer_to, step_at

log = logging.getLogger(__name__)
MAX_READS = (
    200  # datagrams per TURN_S: beside the questions of other nodes a flood has its turns, and the agent has its own
)
TURN_S = 0.1
BIND_RETRY_DELAY_S = 5.0


class EchoServer:
    """A UDP socket at a port of every address of this node."""

    def __init__(
        self, node: str, port: int, key: Callable[[], bytes], wall_clock: Callable[[], float] = time.time
    ) -> None:
        """`key` returns the present key, b'' for none."""
        self._node, self._port, self._key, self._wall_clock = node, port, key, wall_clock
        self.failure = ""

    async def run(self) -> None:
        """Answer until cancelled. A port that cannot be opened is tried again."""
        while True:
            try:
                with _open(self._port) as sock:
                    self.failure = ""
                    await self._answer(sock)
            except OSError as error:
                self.failure = f"UDP port {self._port} cannot be opened: {error.strerror or error}"
                log.warning("the echo of nodes cannot be answered", extra={"error": self.failure})
                await asyncio.sleep(BIND_RETRY_DELAY_S)

    async def _answer(self, sock: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        has_data = asyncio.Event()
        while True:
            has_data.clear()
            loop.add_reader(sock.fileno(), has_data.set)
            try:
                await has_data.wait()
            finally:
                loop.remove_reader(sock.fileno())
            if self._read(sock) >= MAX_READS:
                await asyncio.sleep(TURN_S)

    def _read(self, sock: socket.socket) -> int:
        """Answer what has arrived, at most MAX_READS datagrams; return their number."""
        key, step = self._key(), step_at(self._wall_clock())
        for number in range(MAX_READS):
            try:
                data, peer = sock.recvfrom(MAX_BYTES + 1)
            except OSError:  # nothing more, or an ICMP error about an earlier answer
                return number
            answer = answer_to(data, key, self._node, step)
            if answer is not None:
                with contextlib.suppress(OSError):
                    sock.sendto(answer, peer)
        return MAX_READS


def _open(port: int) -> socket.socket:
    """Return a bound socket for both families, or for IPv4 alone where the node has no IPv6. Raises OSError."""
    try:
        sock = socket.socket(socket.AF_INET6, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
    except OSError:
        sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
    try:
        if sock.family == socket.AF_INET6:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        sock.bind(("", port))
    except OSError:
        sock.close()
        raise
    return sock
