"""Rule A9, /healthz and /livez: when an agent is unhealthy, not eligible, or neither."""

from __future__ import annotations

import time
from datetime import datetime

import msgspec
import pytest

from lbagent.healthz.proxy_health import STALE_S, ProxyHealth, SyncProgress
from lbagent.http.http_server import Request


class Proxy:
    def __init__(self) -> None:
        self.progress = SyncProgress()
        self.eligible = True
        self.why_not_ready = "the first full State is not in force yet"
        self.health = ProxyHealth(lambda: self.progress, lambda: self.eligible, lambda: self.why_not_ready)

    async def ask(self, path: str) -> tuple[int, dict]:
        answer = await self.health.answer(Request("GET", path, {}, b""))
        return answer.status, msgspec.json.decode(answer.body)


@pytest.fixture
def proxy() -> Proxy:
    return Proxy()


async def test_a9_an_agent_that_starts_is_healthy(proxy: Proxy) -> None:
    for path in ("/healthz", "/livez"):
        status, body = await proxy.ask(path)
        assert (status, body["healthy"]) == (200, True)


@pytest.mark.parametrize(("age_s", "status"), [(0, 200), (STALE_S - 1, 200), (STALE_S + 1, 503)])
async def test_a9_an_update_that_waits_too_long(proxy: Proxy, age_s: float, status: int) -> None:
    """Twice kube-proxy's sync period of 30 s."""
    assert STALE_S == 60
    proxy.progress = SyncProgress(1000.0, time.monotonic() - age_s)
    assert [(await proxy.ask(path))[0] for path in ("/healthz", "/livez")] == [status, status]
    _, body = await proxy.ask("/healthz")
    last = datetime.fromisoformat(body["lastUpdated"]).timestamp()
    assert last == 1000 if status == 503 else abs(last - time.time()) < 60


async def test_a9_a_node_that_goes_away_lives(proxy: Proxy) -> None:
    proxy.eligible = False
    status, body = await proxy.ask("/healthz")
    assert (status, body["nodeEligible"], body["healthy"]) == (503, False, False)
    status, body = await proxy.ask("/livez")
    assert status == 200
    assert "nodeEligible" not in body


async def test_a9_the_body(proxy: Proxy) -> None:
    _, body = await proxy.ask("/healthz")
    assert set(body) == {"lastUpdated", "currentTime", "nodeEligible", "healthy"}


async def test_a9_answers_are_counted(proxy: Proxy) -> None:
    await proxy.ask("/healthz")
    proxy.eligible = False
    await proxy.ask("/healthz")
    await proxy.ask("/livez")
    assert proxy.health.codes == {("healthz", 200): 1, ("healthz", 503): 1, ("livez", 200): 1}


async def test_it_is_ready_when_packets_meet_the_first_full_state(proxy: Proxy) -> None:
    """Neither the removal of the node nor a waiting update changes it."""
    assert await proxy.ask("/readyz") == (503, {"ready": False, "reason": "the first full State is not in force yet"})
    proxy.why_not_ready, proxy.eligible, proxy.progress = (
        "",
        False,
        SyncProgress(1000.0, time.monotonic() - STALE_S - 1),
    )
    assert await proxy.ask("/readyz") == (200, {"ready": True})
    assert not proxy.health.codes


async def test_other_paths_are_not_there(proxy: Proxy) -> None:
    answer = await proxy.health.answer(Request("GET", "/metrics", {}, b""))
    assert answer.status == 404
    assert not proxy.health.codes
