"""Faults of the network between the agent and a real API server: after each the objects are those of a new list."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from msgspec.structs import replace

from tests.kube_api.cluster import Cluster
from tests.kube_api.following import TIMING, Following, following, settings
from tests.kube_api.proxy import Proxy

pytestmark = [pytest.mark.root]
RESOURCES = 6  # that are watched


class Budget:
    """Later requests of the agent."""

    def __init__(self, cluster: Cluster) -> None:
        self._plane = cluster.plane
        self._before = len(self._plane.requests())

    @property
    def used(self) -> int:
        return len(self._plane.requests()) - self._before


def shop(cluster: Cluster) -> None:
    for number in range(3):
        cluster.add_service(f"web-{number}")
        cluster.add_pod(f"web-{number}", f"web-{number}", f"10.244.1.{number + 1}")


async def shop_is_there(one: Following) -> None:
    await one.until(lambda: all(one.addresses(f"web-{number}") for number in range(3)), "the shop")


def change(cluster: Cluster) -> None:
    """One Service is deleted, one is added, one changes its endpoints."""
    cluster.delete_service("web-0")
    cluster.add_service("new")
    cluster.add_pod("new-0", "new", "10.244.1.9")
    cluster.add_pod("web-1b", "web-1", "10.244.1.8")


async def change_is_there(one: Following) -> None:
    await one.until(lambda: one.addresses("new") == ["10.244.1.9"] and len(one.addresses("web-1")) == 2, "the change")
    await one.until(lambda: "default/web-0" not in one.source.snapshot().services, "the deletion")
    await one.until(
        lambda: all(each.service != "web-0" for each in one.source.snapshot().slices.values()),
        "the deletion of its slice",
    )


@pytest.mark.parametrize("count", [1, 40, 700])
async def test_a_reset_in_the_middle_of_an_event(cluster: Cluster, proxy: Proxy, config: Path, count: int) -> None:
    shop(cluster)
    async with following(settings(config)) as one:
        await shop_is_there(one)
        budget = Budget(cluster)
        proxy.cut_after(count)
        change(cluster)
        await change_is_there(one)
        assert proxy.is_cut
        assert budget.used <= 3 * RESOURCES  # the version, the watch, and which server it is
        await one.converges(config)
        assert one.deleted <= {"default/web-0"} | {key for key in one.deleted if key.startswith("default/web-0-")}


async def test_a_stall_of_five_seconds(cluster: Cluster, proxy: Proxy, config: Path) -> None:
    shop(cluster)
    async with following(settings(config)) as one:
        await shop_is_there(one)
        budget = Budget(cluster)
        proxy.stall()
        change(cluster)
        await asyncio.sleep(5)
        assert not one.addresses("new")
        assert one.source.trusted
        proxy.flow()
        await change_is_there(one)
        assert budget.used == 0
        await one.converges(config)


async def test_a_connection_that_is_dead_without_a_word(cluster: Cluster, proxy: Proxy, config: Path) -> None:
    shop(cluster)
    async with following(settings(config, timing=replace(TIMING, silence_s=4.0))) as one:
        await shop_is_there(one)
        budget = Budget(cluster)
        proxy.half_open()
        change(cluster)
        await change_is_there(one)
        assert budget.used <= 4 * RESOURCES
        await one.converges(config)


async def test_a_server_that_is_away_is_not_pestered(cluster: Cluster, proxy: Proxy, config: Path) -> None:
    shop(cluster)
    async with following(settings(config)) as one:
        await shop_is_there(one)
        before = proxy.connections
        proxy.is_refusing = True
        proxy.cut()
        await one.until(lambda: not one.source.trusted, "distrust")
        await asyncio.sleep(4)
        assert proxy.connections - before <= 10 * RESOURCES
        assert "the API server does not answer" in one.texts
        change(cluster)
        budget = Budget(cluster)
        proxy.is_refusing = False
        await change_is_there(one)
        await one.until(lambda: one.source.trusted, "trust")
        assert budget.used <= 3 * RESOURCES  # the version, the watch, and which server it is
        await one.converges(config)
