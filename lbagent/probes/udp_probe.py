"""The UDP probe: one datagram. A server is down that answers with port unreachable, or is silent but must answer."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import time
from collections.abc import Callable

from lbagent.probes.check_time import CheckTimeout, Deadline
from lbagent.probes.destination import Destination, open_socket
from lbagent.probes.probe_protocol import FAILURES, Outcome, Result, outcome_of
from lbagent.probes.probe_spec import ProbeSpec

MAX_DATAGRAM = 2048  # bytes of an answer that are read


class UdpProbe:
    """Sends one datagram to one server from its own socket. See probe_protocol.Probe.

    Without `needs_answer` silence until the time-out is up: few servers answer unknown datagrams, and a host without the server
    answers with port unreachable. A host that is gone is silent, too, so require an answer where the server sends one.
    """

    def __init__(
        self,
        server: Destination,
        check: ProbeSpec,
        clock: Callable[[], float] = time.monotonic,
        *,
        payload: bytes = b"",
        needs_answer: bool = False,
    ) -> None:
        """`payload` is sent; `clock` measures the time-out."""
        self._server, self._check, self._clock = server, check, clock
        self._payload, self._needs_answer = payload, needs_answer

    async def ask(self, *, may_use_idle: bool = False) -> Outcome:
        """Send one datagram, and wait for an answer or an ICMP error."""
        del may_use_idle
        try:
            sock, address = open_socket(self._server, socket.SOCK_DGRAM)
            with contextlib.closing(Deadline(self._check.timeout, self._clock)) as deadline, sock:
                sock.connect(address)  # so that ICMP errors come back to this socket
                sock.send(self._payload)
                await _readable(sock, deadline)
                sock.recv(MAX_DATAGRAM)
        except CheckTimeout as failure:
            if self._needs_answer:
                return outcome_of(failure, self._check.timeout)
            return Outcome(Result.OK, f"not refused within {self._check.timeout:g} s")
        except ConnectionRefusedError:
            return Outcome(Result.REFUSED, "port unreachable")
        except FAILURES as failure:
            return outcome_of(failure, self._check.timeout)
        return Outcome(Result.OK, "answered")

    def close(self) -> None:
        """Do nothing: no socket is kept."""


async def _readable(sock: socket.socket, deadline: Deadline) -> None:
    """Wait for a datagram or an error."""
    loop = asyncio.get_running_loop()
    loop.add_reader(sock.fileno(), deadline.done)
    try:
        await deadline.wait()
    finally:
        loop.remove_reader(sock.fileno())
