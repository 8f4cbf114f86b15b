"""Retries of a failed sync, with a controlled clock; the rest is tested with a real server."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from msgspec.structs import replace

from lbagent.cloud.controller.controller_metrics import ControllerMetrics
from lbagent.cloud.controller.service_controller import ServiceController
from lbagent.cloud.controller.service_writer import NotLeading, Outdated
from lbagent.cloud.controller.watched_objects import WatchedNode, WatchedService, watched
from lbagent.cloud.controller.work_queue import WorkQueue
from lbagent.cloud.provider import Ingress, LoadBalancer, LoadBalancerStatus, RetryAfter, Service
from lbagent.errors import LbError
from lbagent.kube.kube_client import ApiError
from lbagent.objects.decode.decode_object import decode_json
from lbagent.objects.records import NOWHERE, ObjectChange

RAW = (
    b'{"metadata": {"name": "web", "namespace": "shop", "uid": "u", "finalizers": ["service.kubernetes.io/load-balancer-cleanup"]},'
    b' "spec": {"type": "LoadBalancer", "clusterIP": "10.96.0.1", "ports": [{"port": 80}]}}'
)
KEY = "shop/web"


class Informers:
    def __init__(self) -> None:
        found = watched(decode_json("Service", RAW, NOWHERE).obj, RAW)
        assert isinstance(found, WatchedService)
        self.there = found

    def service(self, key: str) -> WatchedService | None:
        return self.there if key == KEY else None

    def nodes(self) -> Iterator[WatchedNode]:
        return iter(())


class Balancers(LoadBalancer):
    """Raises the given errors, in order."""

    def __init__(self) -> None:
        self.raises: list[Exception] = []

    async def get(self, cluster: str, service: Service) -> LoadBalancerStatus | None:
        return None

    def name(self, cluster: str, service: Service) -> str:
        return "one"

    async def ensure(self, cluster: str, service: Service, nodes: Any) -> LoadBalancerStatus:
        if self.raises:
            raise self.raises.pop(0)
        return LoadBalancerStatus((Ingress(ip="192.0.2.1"),))

    async def update(self, cluster: str, service: Service, nodes: Any) -> None:
        pass

    async def ensure_deleted(self, cluster: str, service: Service) -> None:
        pass


class Writer:
    async def set_status(self, *_: object) -> bool:
        return True


class Bench:
    def __init__(self) -> None:
        self.now = 100.0
        self.queue = WorkQueue(5.0, 300.0, lambda: self.now)
        self.balancers, self.informers = Balancers(), Informers()
        self.reasons: list[str] = []
        self.controller = ServiceController(
            self.balancers, self.informers, Writer(), self.queue, ControllerMetrics(),  # type: ignore[arg-type]
            write_event=lambda _service, reason, _text, warning: self.reasons.append(reason) if warning else None,
        )  # fmt: skip
        self.controller.take([ObjectChange("Service", KEY, None, self.informers.there)])

    async def run(self, *raises: Exception) -> float | None:
        """Process the key, which is due; return the seconds until it is due again."""
        self.balancers.raises = list(raises)
        assert self.queue.take() == KEY
        await self.controller._process(KEY)
        self.queue.done(KEY)
        return self.queue.next_due_s()

    async def run_when_due(self, *raises: Exception) -> float | None:
        self.now += self.queue.next_due_s() or 0.0
        return await self.run(*raises)


@pytest.fixture
def bench() -> Bench:
    return Bench()


async def test_pauses_of_a_service_that_fails(bench: Bench) -> None:
    assert await bench.run(LbError("no")) == 5
    assert [await bench.run_when_due(LbError("no")) for _ in range(7)] == [10, 20, 40, 80, 160, 300, 300]
    assert await bench.run_when_due() is None
    bench.controller.sync(KEY)
    assert await bench.run(LbError("no")) == 5


async def test_a_provider_that_says_when_to_ask_again(bench: Bench) -> None:
    assert await bench.run(LbError("no")) == 5
    assert await bench.run_when_due(RetryAfter("later", 42)) == 42
    assert await bench.run_when_due(RetryAfter("later", 42)) == 42
    assert await bench.run_when_due(LbError("no")) == 10
    assert bench.reasons == ["UnAvailableLoadBalancer", "SyncLoadBalancerFailed"] * 4


async def test_a_server_that_says_when_to_ask_again(bench: Bench) -> None:
    assert await bench.run(ApiError(429, "", 30.0)) == 30


async def test_a_defect_of_a_provider_is_a_failure_like_others(bench: Bench) -> None:
    assert await bench.run(ZeroDivisionError()) == 5
    assert "SyncLoadBalancerFailed" in bench.reasons


@pytest.mark.parametrize("error", [Outdated("x"), NotLeading("x")])
async def test_what_is_no_failure_is_looked_at_again_soon(bench: Bench, error: Exception) -> None:
    raises: Callable[[], Any] = lambda: bench.run_when_due(error)  # noqa: E731
    assert [round(await raises(), 6) for _ in range(3)] == [0.2] * 3
    assert "SyncLoadBalancerFailed" not in bench.reasons
    assert await bench.run_when_due() is None


async def test_source_ranges_that_are_refused_are_a_warning_and_the_balancer_is_made(bench: Bench) -> None:
    there = bench.informers.there
    bench.informers.there = replace(there, record=replace(there.record, source_ranges=("10.0.0.0/8", "foo.bar")))
    assert await bench.run() is None
    assert bench.reasons == ["UnAvailableLoadBalancer", "SourceRangesRefused"]
    bench.controller.sync(KEY)
    bench.informers.there = there
    await bench.run()
    assert bench.reasons.count("SourceRangesRefused") == 1
