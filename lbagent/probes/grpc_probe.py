"""The gRPC probe: grpc.health.v1.Health/Check without TLS. SERVING is up, everything else is a failure."""

from __future__ import annotations

import time
from collections.abc import Callable

from lbagent.probes.check_time import Deadline
from lbagent.probes.destination import Destination
from lbagent.probes.grpc_frames import ServingStatus, health_answer, health_request
from lbagent.probes.http_connection import HttpConnection
from lbagent.probes.probe_protocol import FAILURES, NotHttp, Outcome, Result, outcome_of
from lbagent.probes.probe_spec import ProbeSpec


class GrpcConnection(HttpConnection):
    """One connection, for one request."""

    async def health(self, request: bytes, deadline: Deadline) -> ServingStatus:
        """Send the request; return the status of the answer. Raises OSError, NotHttp or CheckTimeout."""
        await self._do(lambda: self._send(request), deadline)
        data = await self._read(b"", lambda data: health_answer(data) is not None, deadline)
        status = health_answer(data)
        if status is None:
            raise NotHttp("the connection ended before the answer")
        return status


class GrpcProbe:
    """Probes one server. See probe_protocol.Probe. `path` of its ProbeSpec is the name of the service, '' = the server."""

    def __init__(self, server: Destination, check: ProbeSpec, clock: Callable[[], float] = time.monotonic) -> None:
        """`clock` measures time-outs."""
        self._server, self._check, self._clock = server, check, clock
        self._request = health_request(check.host or str(server), check.path.removeprefix("/"))

    async def ask(self, *, may_use_idle: bool = False) -> Outcome:
        """Check once; no connection is kept."""
        del may_use_idle
        deadline = Deadline(self._check.timeout, self._clock)
        try:
            connection = GrpcConnection(self._server)
            try:
                await connection.established(deadline)
                connection.begin()
                status = await connection.health(self._request, deadline)
            finally:
                connection.close()
        except FAILURES as failure:
            return outcome_of(failure, self._check.timeout)
        finally:
            deadline.close()
        return Outcome(Result.OK if status is ServingStatus.SERVING else Result.STATUS, status.name)

    def close(self) -> None:
        """Do nothing: no connection is kept."""
