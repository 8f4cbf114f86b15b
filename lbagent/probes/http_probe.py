"""The HTTP probe: one GET with a deadline. A status of 200-399 is up, everything else is a failure."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable

from lbagent.http.message_head import request_head
from lbagent.probes.check_time import Deadline
from lbagent.probes.destination import Destination
from lbagent.probes.http_connection import HttpConnection
from lbagent.probes.probe_protocol import FAILURES, NotHttp, Outcome, Result, outcome_of
from lbagent.probes.probe_spec import ProbeSpec
from lbagent.probes.tcp_connection import TcpConnection

UP_FIRST, UP_LAST = 200, 399


class HttpProbe:
    """Probes one server (see probe_protocol.Probe). Its idle connection is used for the next check that may use it."""

    def __init__(
        self, server: Destination, check: ProbeSpec, clock: Callable[[], float] = time.monotonic, *, keeps: bool = True
    ) -> None:
        """`clock` measures time-outs; `keeps`: a connection stays open for the next check."""
        self._server, self._check, self._clock, self._keeps = server, check, clock, keeps
        self._idle: HttpConnection | None = None
        self._request = request_of(check, server)

    async def ask(self, *, may_use_idle: bool = False) -> Outcome:
        """Check once. It ends after the check's timeout at the latest; connecting may take one interval at most, too."""
        idle, self._idle = self._idle, None
        if idle is not None and (idle.has_ended or not may_use_idle):
            idle.close()
            idle = None
        deadline = Deadline(self._check.timeout, self._clock)
        try:
            return (idle and await self._by_idle(idle, deadline)) or await self._by_new(deadline)
        except FAILURES as failure:
            return outcome_of(failure, self._check.timeout)
        finally:
            deadline.close()

    def close(self) -> None:
        """Close the idle connection."""
        if self._idle is not None:
            self._idle.close()
            self._idle = None

    async def _by_idle(self, idle: HttpConnection, deadline: Deadline) -> Outcome | None:
        """Check by the idle connection, and that the server accepts new ones; None when it ended while it was idle."""
        with contextlib.closing(TcpConnection(self._server, half_open=True)) as beside:
            try:
                status = await self._get(idle, deadline)
            except (OSError, NotHttp):
                return None
            await self._connect(beside, deadline)
        return _judged(status)

    async def _by_new(self, deadline: Deadline) -> Outcome:
        return _judged(await self._get(await self._open(deadline), deadline))

    async def _open(self, deadline: Deadline) -> HttpConnection:
        """Return a new connection that can send a request."""
        new = HttpConnection(self._server)
        try:
            await self._connect(new, deadline)
            new.begin()
        except BaseException:
            new.close()
            raise
        return new

    async def _connect(self, connection: TcpConnection, deadline: Deadline) -> None:
        """Wait until it is connected: at most for an interval where that is shorter than the time-out."""
        if self._check.interval >= self._check.timeout:
            await connection.established(deadline)
            return
        with contextlib.closing(Deadline(self._check.interval, self._clock)) as limit:
            await connection.established(limit)

    async def _get(self, connection: HttpConnection, deadline: Deadline) -> int:
        """Check by a connection, and keep it if it may be used again."""
        try:
            status = await connection.get(self._request, deadline)
        except BaseException:
            connection.close()
            raise
        if self._keeps and connection.stays and self._idle is None:
            self._idle = connection
        else:
            connection.close()
        return status


def request_of(check: ProbeSpec, server: Destination) -> bytes:
    """Return the request of a check (RFC 9112)."""
    host = check.host or str(server)
    return request_head("GET", check.path, {"Host": host, "User-Agent": "lbagent", "Accept": "*/*"})


def _judged(status: int) -> Outcome:
    is_up = UP_FIRST <= status <= UP_LAST
    return Outcome(Result.OK if is_up else Result.STATUS, f"HTTP status {status}")
