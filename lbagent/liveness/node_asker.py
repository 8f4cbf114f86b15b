"""Asks nodes whether they live: by the echo of their agents, and, while an agent is silent, by their kernels."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import socket
import time
from collections.abc import Callable, Collection

from lbagent.liveness.echo_packet import ANSWER, MAX_BYTES, NONCE_BYTES, QUESTION, Echo, read_echo, step_at, write_echo
from lbagent.liveness.observed_nodes import WAIT_S, Attempt
from lbagent.model.address import L3n4Addr, L4Type
from lbagent.probes.icmp_probe import IcmpProbe
from lbagent.probes.pending_connects import PendingConnects
from lbagent.probes.probe_protocol import Outcome, Probe, Result
from lbagent.probes.probe_spec import ProbeKind, ProbeSpec
from lbagent.probes.tcp_probe import TcpProbe

ANSWER_S = 2.0  # an answer that comes later is of no open question
MAX_READS = 200  # datagrams per look
_ANSWERED = frozenset((Result.OK, Result.REFUSED))  # a refused connection is an answer of the kernel


class NodeAsker:
    """Sends questions and probes, and reports answers to `on_answer`."""

    def __init__(
        self,
        port: int,
        key: Callable[[], bytes],
        on_answer: Callable[[str, Attempt], None],
        clock: Callable[[], float] = time.monotonic,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        """`key` returns the present key, b'' for none; `clock` is steady."""
        self._port, self._key, self._on_answer = port, key, on_answer
        self._clock, self._wall_clock = clock, wall_clock
        self._sockets: dict[socket.AddressFamily, socket.socket] = {}
        self._open: dict[bytes, tuple[str, float]] = {}  # by nonce, the oldest first
        self._probes: dict[tuple[str, Attempt], asyncio.Task[None]] = {}
        self._connects: PendingConnects | None = None  # from the first probe by TCP on
        self.failure = ""

    def ask(self, node: str, address: bytes) -> None:
        """Ask the agent of a node. Without a key nothing is sent: its kernel is asked then."""
        key = self._key()
        if not key:
            return
        nonce = secrets.token_bytes(NONCE_BYTES)
        question = write_echo(Echo(QUESTION, step_at(self._wall_clock()), nonce, node), key)
        family = socket.AF_INET6 if len(address) == 16 else socket.AF_INET
        with contextlib.suppress(OSError):  # no route: the node does not answer
            self._socket(family).sendto(question, (socket.inet_ntop(family, address), self._port))
        self._open[nonce] = node, self._clock()

    def ask_kernel(self, node: str, address: bytes, attempt: Attempt) -> bool:
        """Probe the kernel of a node, unless such a probe has not ended yet; return whether it was begun."""
        if (node, attempt) in self._probes:
            return False
        task = asyncio.create_task(self._probe(node, attempt, self._probe_of(address, attempt)))
        self._probes[node, attempt] = task
        task.add_done_callback(lambda _task: self._probes.pop((node, attempt), None))
        return True

    def _probe_of(self, address: bytes, attempt: Attempt) -> Probe:
        if attempt is Attempt.ICMP:
            return IcmpProbe(address, WAIT_S, self._clock)
        server = L3n4Addr(address, self._port, L4Type.TCP)
        if self._connects is None:
            self._connects = PendingConnects(self._clock)
        return TcpProbe(server, ProbeSpec(kind=ProbeKind.TCP, timeout=WAIT_S), self._connects)

    async def _probe(self, node: str, attempt: Attempt, probe: Probe) -> None:
        try:
            outcome = await probe.ask()
        except OSError as error:
            self.failure = f"nodes cannot be probed: {error.strerror or error}"
            outcome = Outcome(Result.OK, "not probed")  # without the right to ask, its silence means nothing
        if outcome.result in _ANSWERED:
            self._on_answer(node, attempt)

    def read(self, nodes: Collection[str]) -> None:
        """Take the answers of these nodes that have arrived."""
        now, key = self._clock(), self._key()
        while self._open and now - next(iter(self._open.values()))[1] > ANSWER_S:
            del self._open[next(iter(self._open))]
        for sock in self._sockets.values():
            for _ in range(MAX_READS):
                try:
                    data = sock.recv(MAX_BYTES + 1)
                except BlockingIOError:
                    break
                except OSError:  # an ICMP error about a question
                    continue
                self._take(data, key, nodes)

    def _take(self, data: bytes, key: bytes, nodes: Collection[str]) -> None:
        echo = read_echo(data, key) if key else None
        if echo is None or echo.kind != ANSWER or echo.nonce not in self._open:
            return
        node, _ = self._open[echo.nonce]
        if echo.node == node:
            del self._open[echo.nonce]  # the same answer a second time is of no question
            if node in nodes:
                self._on_answer(node, Attempt.ECHO)

    def _socket(self, family: socket.AddressFamily) -> socket.socket:
        if family not in self._sockets:
            self._sockets[family] = socket.socket(family, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
        return self._sockets[family]

    def close(self) -> None:
        """Close its sockets, and end its probes."""
        for sock in self._sockets.values():
            sock.close()
        for task in list(self._probes.values()):
            task.cancel()
        if self._connects is not None:
            self._connects.close()
