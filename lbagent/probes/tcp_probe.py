"""The TCP probe: a server is up if its kernel accepts a connection. Its process never sees one."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable

from lbagent.model.address import L3n4Addr
from lbagent.probes.check_time import Deadline
from lbagent.probes.probe_protocol import FAILURES, Outcome, Result, outcome_of
from lbagent.probes.probe_spec import ProbeSpec
from lbagent.probes.tcp_connection import TcpConnection


class TcpProbe:
    """Connects to one server, and resets the connection before its process could accept it. See probe_protocol.Probe."""

    def __init__(self, server: L3n4Addr, check: ProbeSpec, clock: Callable[[], float] = time.monotonic) -> None:
        """`clock` measures the time-out."""
        self._server, self._check, self._clock = server, check, clock

    async def ask(self, *, may_use_idle: bool = False) -> Outcome:
        """Connect once; no connection is kept."""
        del may_use_idle
        try:
            with (
                contextlib.closing(Deadline(self._check.timeout, self._clock)) as deadline,
                contextlib.closing(TcpConnection(self._server, half_open=True)) as connection,
            ):
                await connection.established(deadline)
        except FAILURES as failure:
            return outcome_of(failure, self._check.timeout)
        return Outcome(Result.OK, "connected")

    def close(self) -> None:
        """Do nothing: no connection is kept."""
