"""The TCP probe: a server is up if its kernel accepts a connection. Its process never sees one."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from lbagent.probes.destination import Destination
from lbagent.probes.pending_connects import Connect, PendingConnects
from lbagent.probes.probe_protocol import Outcome
from lbagent.probes.probe_spec import ProbeSpec


class TcpProbe:
    """Connects to one server, and resets the connection before its process could accept it. See probe_protocol.QuickProbe."""

    __slots__ = ("_check", "_connects", "_server")

    def __init__(self, server: Destination, check: ProbeSpec, connects: PendingConnects) -> None:
        """`connects` has the connections in progress of many probes."""
        self._server, self._check, self._connects = server, check, connects

    def begin(self, done: Callable[[Connect, Outcome], None]) -> Connect:
        """Connect once; no connection is kept."""
        return self._connects.begin(self._server, self._check.timeout, done)

    async def ask(self, *, may_use_idle: bool = False) -> Outcome:
        """Connect once, and wait for the outcome."""
        del may_use_idle
        answered: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
        connect = self.begin(lambda _, outcome: answered.set_result(outcome))
        try:
            return await answered
        finally:
            connect.cancel()

    def close(self) -> None:
        """Do nothing: no connection is kept."""
