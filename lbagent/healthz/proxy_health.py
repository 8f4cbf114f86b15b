"""/healthz and /livez: whether the node's proxy keeps up, and whether the node should get traffic. /readyz: whether it forwards.

An agent is unhealthy if a State waits longer than STALE_S to be in force; a silent API server does not make it unhealthy. A node
that is being removed is not eligible (/healthz only), and balancers stop sending to it. Source: KEP-3836, kube-proxy's
proxy_health.go (behaviour). /readyz is not kube-proxy's: it is the readiness probe of the DaemonSet, so that a rolling update
continues only when the datapath has the API server's objects, and its self-test passes.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime

import msgspec
from msgspec import Struct

from lbagent.http.http_server import Request, Response

STALE_S = 60.0  # twice kube-proxy's sync period
PATHS = ("healthz", "livez")
READY_PATH = "readyz"


class SyncProgress(Struct, frozen=True):
    """When a State came into force last (epoch seconds, 0: never), and since when a newer one waits (monotonic)."""

    updated_at: float = 0.0
    pending_since: float | None = None


class ProxyHealth:
    """Serves these paths; `codes` counts the answers by (path, status)."""

    def __init__(
        self,
        progress: Callable[[], SyncProgress],
        is_eligible: Callable[[], bool],
        why_not_ready: Callable[[], str] = lambda: "not started",
    ) -> None:
        """`why_not_ready` returns '' when packets meet the first full State, and the data planes' self-tests passed."""
        self._progress = progress
        self._is_eligible = is_eligible
        self._why_not_ready = why_not_ready
        self.codes: Counter[tuple[str, int]] = Counter()

    def is_healthy(self) -> bool:
        """Return whether no State waits too long. A starting agent is healthy: the previous entries serve."""
        since = self._progress().pending_since
        return since is None or time.monotonic() - since < STALE_S

    async def answer(self, request: Request) -> Response:
        """Answer GET /healthz, GET /livez and GET /readyz."""
        name = request.path.strip("/")
        if name == READY_PATH:
            why = self._why_not_ready()
            answer = {"ready": False, "reason": why} if why else {"ready": True}
            return Response(503 if why else 200, msgspec.json.encode(answer) + b"\n")
        if name not in PATHS:
            return Response(404, b"only /healthz, /livez and /readyz are here\n", "text/plain; charset=utf-8")
        alive, now = self.is_healthy(), time.time()
        eligible = self._is_eligible()
        healthy = alive and (eligible or name == "livez")
        last = now if healthy else self._progress().updated_at  # for a healthy agent it is recent, as in kube-proxy
        body: dict[str, object] = {"lastUpdated": _text(last), "currentTime": _text(now)}
        if name == "healthz":
            body["nodeEligible"] = eligible
        body["healthy"] = healthy
        status = 200 if healthy else 503
        self.codes[name, status] += 1
        headers = (("X-Content-Type-Options", "nosniff"),)
        return Response(status, msgspec.json.encode(body) + b"\n", headers=headers)


def _text(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat().replace("+00:00", "Z")
