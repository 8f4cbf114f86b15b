"""A real API server that dies, forgets, is another one, or does not stream lists. Each test has a server of its own."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.kube_api.cluster import NODE, Cluster
from tests.kube_api.following import Following, following, settings
from tests.kube_api.proxy import Proxy

pytestmark = [pytest.mark.root]
SERVICES = 20


def last_requests(cluster: Cluster, since: int, resource: str) -> list[dict[str, str]]:
    return [each.query for each in cluster.plane.requests()[since:] if each.resource == resource]


def count(one: Following) -> int:
    return len(one.source.snapshot().services)


async def test_a_server_that_is_killed_and_comes_back(own: Cluster, own_config: Path) -> None:
    own.plane.start()
    own.prepare()
    own.add_services(3)
    async with following(settings(own_config)) as one:
        await one.until(lambda: count(one) == 4, "the shop")
        own.plane.kill()
        await one.until(lambda: "the API server does not answer" in one.texts, "the message")
        assert count(one) == 4
        since = len(own.plane.requests())
        own.plane.start()
        await one.until(lambda: one.source.trusted, "trust")
        own.put_slice("web-1-x", "web-1", "10.244.1.99")
        own.delete_service("web-2")
        await one.until(lambda: one.addresses("web-1") == ["10.244.1.99"] and count(one) == 3, "the change")
        assert one.deleted == {"default/web-2"}
        assert len(own.plane.requests()) - since <= 6 * 6
        await one.converges(own_config)


async def test_a_history_that_was_compacted(own: Cluster, front: Proxy, own_config: Path) -> None:
    own.plane.start("--watch-cache=false")
    own.prepare()
    own.add_services(3)
    async with following(settings(own_config)) as one:
        await one.until(lambda: count(one) == 4, "the shop")
        front.is_refusing = True
        front.cut()
        own.delete_service("web-0")
        fill_more(own)
        own.plane.compact()
        since = len(own.plane.requests())
        front.is_refusing = False
        await one.until(
            lambda: one.deleted and one.addresses("more") == ["10.244.2.1"] and count(one) == 4, "the changes"
        )
        assert one.deleted == {"default/web-0"}
        seen = last_requests(own, since, "services")
        assert any("resourceVersion" in query for query in seen)  # it continues where it stopped, and receives 410
        assert any("sendInitialEvents" in query for query in seen)  # so it lists again
        assert len(own.plane.requests()) - since <= 6 * 6
        await one.converges(own_config)


def fill_more(cluster: Cluster) -> None:
    cluster.add_service("more", selector=False)
    cluster.put_slice("more-x", "more", "10.244.2.1")


async def test_a_server_that_is_another_and_empty_one(own: Cluster, own_config: Path) -> None:
    """Its version is older, so a watch that continued from the old one would receive nothing until a bookmark (60 s) or a time-out."""
    own.plane.start()
    own.prepare()
    own.add_services(SERVICES)
    async with following(settings(own_config, state_dir=str(own_config.parent / "state"))) as one:
        await one.until(lambda: count(one) == SERVICES + 1, "the shop")
        own.plane.kill()
        own.plane.forget()
        own.plane.start()
        own.prepare()
        await one.until(lambda: one.source.held >= 2 * SERVICES, "what is held")
        assert count(one) == SERVICES + 1
        assert "too many at once" in one.texts
        assert "--max-delete-ratio" in one.source.remedy
        await one.until(own.events, "the Event")
        (event,) = own.events()
        assert (event["reason"], event["involvedObject"]["name"]) == ("DeletionsHeld", NODE)
        one.source.set_max_delete_ratio(100)
        await one.until(lambda: count(one) == 1, "the deletion")
        await one.converges(own_config)


async def test_lists_come_as_a_stream_where_the_server_has_that(own: Cluster, own_config: Path) -> None:
    own.plane.start()
    own.prepare()
    async with following(settings(own_config)) as one:
        await one.until(lambda: count(one) == 1)
    asked = own.plane.requests()
    assert {each.verb for each in asked if each.resource in ("services", "endpointslices", "nodes", "pods")} == {
        "watch"
    }
    (services,) = [each.query for each in asked if each.resource == "services"]
    assert services["sendInitialEvents"] == "true"
    assert services["labelSelector"] == "!service.kubernetes.io/service-proxy-name"


async def test_lists_come_in_pages_of_500_where_it_has_not(own: Cluster, front: Proxy, own_config: Path) -> None:
    own.plane.start("--feature-gates=WatchList=false")
    own.prepare()
    own.add_service("web", selector=False)
    for number in range(520):
        own.put_slice(f"web-{number}", "web", f"10.244.{number // 200}.{number % 200 + 1}")
    async with following(settings(own_config)) as one:
        await one.until(lambda: len(one.addresses("web")) == 520)
        pages = [
            each.query for each in own.plane.requests() if (each.verb, each.resource) == ("list", "endpointslices")
        ]
        assert [page["limit"] for page in pages] == ["500", "500"]
        assert ["continue" in page for page in pages] == [False, True]
        own.put_slice("web-0", "web", "10.244.9.9")
        await one.until(lambda: "10.244.9.9" in one.addresses("web"))
        front.cut()
        own.put_slice("web-1", "web", "10.244.9.8")
        await one.until(lambda: "10.244.9.8" in one.addresses("web"))
        await one.converges(own_config)
