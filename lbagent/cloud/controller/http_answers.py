"""The HTTP endpoints of `lbagent cloud run`: /healthz and /metrics, each at its own address."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable

import msgspec

from lbagent.http.http_server import Request, Response
from lbagent.http.listeners import BIND_RETRY_DELAY_S, Listeners
from lbagent.model.address import L3n4Addr
from lbagent.observe import exposition
from lbagent.observe.exposition import HistogramFamily, MetricFamily

log = logging.getLogger(__name__)
TEXT = "text/plain; charset=utf-8"


class HttpAnswers:
    """Opens the requested ports. `is_leading` is shown, and does not change the health."""

    def __init__(
        self,
        health: L3n4Addr | None,
        metrics: L3n4Addr | None,
        is_leading: Callable[[], bool],
        families: Callable[[], Iterable[MetricFamily | HistogramFamily]],
    ) -> None:
        self._is_leading, self._families = is_leading, families
        self._listeners = [
            (Listeners(answer), address)
            for answer, address in ((self._health, health), (self._metrics, metrics))
            if address is not None
        ]

    async def run(self) -> None:
        """Serve until cancelled."""
        logged: set[str] = set()
        try:
            while True:
                for listeners, address in self._listeners:
                    await listeners.listen([address])
                    for why in listeners.problems.values():
                        if str(address) not in logged:
                            logged.add(str(address))
                            log.error("a port cannot be opened", extra={"address": str(address), "error": why})
                await asyncio.sleep(BIND_RETRY_DELAY_S)
        finally:
            for listeners, _ in self._listeners:
                await listeners.close()

    async def _health(self, request: Request) -> Response:
        if request.path != "/healthz":
            return Response(404, b"only /healthz is here\n", TEXT)
        return Response(200, msgspec.json.encode({"healthy": True, "leading": self._is_leading()}) + b"\n")

    async def _metrics(self, request: Request) -> Response:
        if request.path != "/metrics":
            return Response(404, b"only /metrics is here\n", TEXT)
        text = "".join(exposition.render(self._families()))
        return Response(200, text.encode(), "text/plain; version=0.0.4; charset=utf-8")
