"""The tests that every renderer passes, in a network namespace of their own: `unshare --net pytest examples/renderer`."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from pyroute2 import IPRoute
from routes_renderer import factory

from lbagent.render import IPAddresses, ProtocolType, ResolvedService, ServiceBackend, ServicePort, ServiceRenderer
from lbagent.testing.renderer import LOCAL_PODS, RendererSuite, TortureSuite


@pytest.fixture(scope="module", autouse=True)
def pods() -> Iterator[None]:
    """A device on whose link the Pods of this node are."""
    with IPRoute() as ipr:
        if os.geteuid() or any(link["flags"] & 1 for link in ipr.get_links()):  # 1: IFF_UP
            pytest.skip("it changes routes: run it as root in a new network namespace (unshare --net)")
        ipr.link("add", ifname="pods0", kind="veth", peer="pods1")
        (index,), (peer,) = ipr.link_lookup(ifname="pods0"), ipr.link_lookup(ifname="pods1")
        for each in (index, peer):
            ipr.link("set", index=each, state="up")
        ipr.route("add", dst=LOCAL_PODS[6], oif=index, family=10)
        yield
        ipr.link("del", index=index)


class TestRoutes(RendererSuite):
    def make_renderer(self) -> ServiceRenderer:
        return factory({"table": "200"})


class TestRoutesTortured(TortureSuite):
    def make_renderer(self) -> ServiceRenderer:
        return factory({})


async def _one(renderer: ServiceRenderer) -> None:
    port = {"http": ServicePort(ProtocolType.TCP, 80)}
    backends = (
        ServiceBackend("fd00:244::6", 80, local=True),
        ServiceBackend("fd00:244::5", 80, local=True),
        ServiceBackend("fd00:244:1::1", 80),
        ServiceBackend("10.244.0.5", 80, local=True),
    )
    both = IPAddresses("10.96.0.1", "fd00:96::1")
    await renderer.add_service(ResolvedService("shop/web", cluster_ips=both, ports=port, backends={"http": backends}))
    far = ResolvedService(
        "shop/far", cluster_ips=IPAddresses("fd00:96::2"), ports=port, backends={"http": backends[2:3]}
    )
    await renderer.add_service(far)
    await renderer.flush()


def test_the_route_of_a_service() -> None:
    import asyncio

    async def run() -> list[str]:
        renderer = factory({"protocol": "201"})
        await _one(renderer)
        found = await renderer.dump()
        await renderer.close(keep=False)
        assert await renderer.dump() == []
        return found

    assert asyncio.run(run()) == ["fd00:96::1 via fd00:244::5"]


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"tables": "1"}, "unknown setting 'tables'"),
        ({"table": "main"}, "no number"),
        ({"protocol": "256"}, "at most 255"),
    ],
)
def test_settings_that_it_refuses(settings: dict[str, str], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        factory(settings)
