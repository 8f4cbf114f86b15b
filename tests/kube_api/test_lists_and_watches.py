"""Lists and watches of a real API server, read by the source only."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from lbagent.objects.source import Missed
from tests.kube_api.cluster import Cluster
from tests.kube_api.following import following, settings
from tests.kube_api.proxy import Proxy

pytestmark = [pytest.mark.root]
EVENTS, SLICES = 5000, 50


async def test_it_follows_the_slices_that_the_controller_makes(cluster: Cluster, config: Path) -> None:
    cluster.add_service("web", ipFamilyPolicy="RequireDualStack")
    cluster.add_pod("web-0", "web", "10.244.0.10", "fd00:10:244::10")
    async with following(settings(config)) as one:
        await one.until(lambda: one.addresses("web") == ["10.244.0.10", "fd00:10:244::10"])
        cluster.add_pod("web-1", "web", "10.244.0.11", ready=False)
        await one.until(lambda: any(len(each.endpoints) == 2 for each in one.source.snapshot().slices.values()))
        assert "10.244.0.11" not in one.addresses("web")
        cluster.set_pod("web-1", ["10.244.0.11"], ready=True)
        await one.until(lambda: "10.244.0.11" in one.addresses("web"))
        cluster.delete_pod("web-0")
        await one.until(lambda: one.addresses("web") == ["10.244.0.11"])
        cluster.delete_service("web")
        await one.until(lambda: "default/web" not in one.source.snapshot().services)
        await one.converges(config)


async def test_fields_that_this_version_does_not_know(cluster: Cluster, config: Path) -> None:
    cluster.add_service(
        "web", trafficDistribution="PreferSameZone", sessionAffinity="ClientIP", publishNotReadyAddresses=True
    )
    cluster.add_pod("web-0", "web", "10.244.0.10", ready=False)
    async with following(settings(config)) as one:
        await one.until(lambda: one.addresses("web") == ["10.244.0.10"])
        assert not one.texts
        raw = cluster.plane.ask("GET", "/api/v1/namespaces/default/services/web")
        assert {"managedFields", "uid"} <= raw["metadata"].keys()  # the read objects are among many others


async def test_labels_and_kinds_that_are_left_to_others(cluster: Cluster, config: Path) -> None:
    cluster.add_service("web")
    cluster.add_service("headless", clusterIP="None")
    cluster.add_pod("web-0", "web", "10.244.0.10")
    cluster.add_pod("headless-0", "headless", "10.244.0.11")
    label = "service.kubernetes.io/service-proxy-name"
    async with following(settings(config)) as one:
        await one.until(lambda: one.addresses("web") == ["10.244.0.10"])
        assert not one.addresses("headless")
        cluster.patch_service("web", {"metadata": {"labels": {label: "another"}}})
        await one.until(lambda: "default/web" not in one.source.snapshot().services, "the label")
        cluster.patch_service("web", {"metadata": {"labels": {label: None}}})
        await one.until(lambda: "default/web" in one.source.snapshot().services, "without the label")
        await one.until(lambda: one.addresses("web") == ["10.244.0.10"])
        await one.converges(config)


async def test_a_slice_of_a_thousand_endpoints(cluster: Cluster, config: Path) -> None:
    cluster.add_service("web", selector=False)
    addresses = [f"10.244.{number // 250}.{number % 250 + 1}" for number in range(1000)]
    async with following(settings(config)) as one:
        cluster.put_slice("web-x", "web", *addresses)
        await one.until(lambda: len(one.addresses("web")) == 1000)
        cluster.put_slice("web-x", "web", *addresses[1:])
        await one.until(lambda: len(one.addresses("web")) == 999)
        assert "10.244.0.1" not in one.addresses("web")
        await one.converges(config)


async def test_five_thousand_events_in_a_burst(cluster: Cluster, proxy: Proxy, config: Path) -> None:
    """The server sends them while nothing is read, so that they arrive all at once; it may end the watch in the meantime."""
    for number in range(SLICES):
        cluster.put_slice(f"web-{number}", "web", "10.244.0.1")
    cluster.add_service("web", selector=False)
    async with following(settings(config)) as one:
        await one.until(lambda: len(one.source.snapshot().slices) >= SLICES)
        before = len(cluster.plane.requests())
        proxy.stall()
        await asyncio.to_thread(write_slices, cluster)
        proxy.flow()
        last = f"10.244.1.{EVENTS // SLICES}"
        await one.until(lambda: one.addresses("web") == [last] * SLICES, "the last of the events", 60)
        assert len(cluster.plane.requests()) - before <= 12
        await one.converges(config)


def write_slices(cluster: Cluster) -> None:
    for turn in range(EVENTS // SLICES):
        for number in range(SLICES):
            cluster.put_slice(f"web-{number}", "web", f"10.244.1.{turn + 1}")


async def test_a_second_list_during_changes_finds_nothing_missed(cluster: Cluster, config: Path) -> None:
    """What a real server lists is what its watches send, a moment later."""
    cluster.add_service("web", selector=False)
    cluster.put_slice("web-x", "web", "10.244.0.1")
    async with following(settings(config)) as one:
        await one.until(lambda: one.addresses("web") == ["10.244.0.1"])
        stop = asyncio.Event()

        def churn() -> None:
            number = 0
            while not stop.is_set():
                number += 1
                cluster.put_slice("web-x", "web", f"10.244.1.{number % 250 + 1}")
                cluster.add_service(f"brief-{number}")
                cluster.delete_service(f"brief-{number}")

        changes = asyncio.create_task(asyncio.to_thread(churn))
        try:
            for _ in range(10):
                assert await one.source.find_missed() == Missed()
        finally:
            stop.set()
            await changes
        await one.converges(config)
