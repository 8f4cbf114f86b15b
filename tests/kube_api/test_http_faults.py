"""Answers that no healthy API server returns, by a proxy of a real one: after each the objects are those of a new list, with few requests."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kube_api.cluster import Cluster
from tests.kube_api.control_plane import ControlPlane
from tests.kube_api.following import Following, following, settings
from tests.kube_api.http_proxy import HttpProxy
from tests.kube_api.test_faults import RESOURCES, change, change_is_there, shop, shop_is_there

pytestmark = [pytest.mark.root]


@pytest.fixture
def front(plane: ControlPlane) -> Iterator[HttpProxy]:
    proxy = HttpProxy(plane)
    yield proxy
    proxy.close()


@pytest.fixture
def config(plane: ControlPlane, front: HttpProxy, tmp_path: Path) -> Path:
    return plane.kubeconfig(plane.agent_token(), tmp_path / "kubeconfig", front.port)


class Budget:
    """Later requests to the proxy, also those that it answers itself."""

    def __init__(self, front: HttpProxy) -> None:
        self._front, self._before = front, front.requests.total()

    @property
    def used(self) -> int:
        return self._front.requests.total() - self._before


async def nothing_else_was_away(one: Following, config: Path) -> None:
    await one.converges(config)
    await one.until(lambda: one.source.trusted and not one.texts, "trust")
    assert all(key.startswith("default/web-0") for key in one.deleted), one.deleted


async def test_429_with_retry_after(cluster: Cluster, front: HttpProxy, config: Path) -> None:
    """Every resource gets Retry-After 2 s, and does not retry sooner."""
    shop(cluster)
    async with following(settings(config)) as one:
        await shop_is_there(one)
        front.answers.extend([(429, {"Retry-After": "2"})] * RESOURCES)
        budget, began = Budget(front), time.monotonic()
        front.cut()
        change(cluster)
        await one.until(lambda: not front.answers or time.monotonic() - began > 1.9, "the answers")
        told = budget.used
        await asyncio.sleep(max(0.0, began + 1.9 - time.monotonic()))
        assert budget.used == told <= RESOURCES
        front.answers.clear()  # a resource that is not installed sends no requests
        await change_is_there(one)
        assert budget.used <= 4 * RESOURCES
        await nothing_else_was_away(one, config)


async def test_a_burst_of_500(cluster: Cluster, front: HttpProxy, config: Path) -> None:
    """While a server returns nothing else for 3 s, the pauses between requests grow."""
    shop(cluster)
    async with following(settings(config)) as one:
        await shop_is_there(one)
        front.answers.extend([(500, {})] * 1000)
        budget = Budget(front)
        front.cut()
        change(cluster)
        await asyncio.sleep(3)
        assert RESOURCES <= budget.used <= 9 * RESOURCES
        front.answers.clear()
        await change_is_there(one)
        assert budget.used <= 13 * RESOURCES
        await nothing_else_was_away(one, config)


async def test_a_stale_list(cluster: Cluster, front: HttpProxy, config: Path) -> None:
    """After 410 a server whose cache is behind lists what was there before the change."""
    shop(cluster)
    async with following(settings(config)) as one:
        await shop_is_there(one)
        old = {name: front.lists[name] for name in ("services", "endpointslices")}
        change(cluster)
        await change_is_there(one)
        before = set(one.deleted)
        budget = Budget(front)
        front.stale, front.expired = dict(old), set(old)
        front.cut()
        await one.until(lambda: not front.stale and not front.expired, "the stale lists")
        cluster.add_service("last")
        await one.until(lambda: "default/last" in one.source.snapshot().services, "what came last")
        assert budget.used <= 5 * RESOURCES
        assert one.deleted == before  # objects newer than the stale list were never removed
        await nothing_else_was_away(one, config)


async def test_events_twice_and_in_another_order(cluster: Cluster, front: HttpProxy, config: Path) -> None:
    shop(cluster)
    front.disorders = True
    async with following(settings(config)) as one:
        await shop_is_there(one)
        budget = Budget(front)
        for number in range(10):
            cluster.put_slice("own", "web-2", f"10.244.7.{number + 1}")
            cluster.add_service(f"flaps-{number}", selector=False)
            cluster.delete_service(f"flaps-{number}")
        change(cluster)
        await change_is_there(one)
        await one.until(lambda: "10.244.7.10" in one.addresses("web-2"), "the last of the events")
        assert min(front.disordered["services"], front.disordered["endpointslices"]) > 5
        assert budget.used == 0
        await one.converges(config)
        assert one.source.trusted
