"""The watcher against a real kernel, in a namespace of its own."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from lbagent.net.netlink import NetworkWatcher
from lbagent.net.snapshot import NodeNetwork
from tests.lab.netns import Namespace, run, veth
from tests.net.builders import ip

pytestmark = pytest.mark.root


@pytest.fixture
def node() -> Iterator[Namespace]:
    node, peer = Namespace("net"), None
    try:
        peer = Namespace("peer")
        veth(node, "v0", peer, "v1")
        node.ip("addr add 10.9.0.1/24 dev v0", "addr add fd09::1/64 dev v0 nodad", "route add default via 10.9.0.254")
        peer.ip("addr add 10.9.0.2/24 dev v1", "addr add fd09::2/64 dev v1 nodad")
        yield node
    finally:
        node.delete()
        if peer:
            peer.delete()


class Follower:
    """A watcher with its loop, and `until` to wait for a state of the network."""

    def __init__(self) -> None:
        self.watcher = NetworkWatcher()
        self.changes = 0
        self._wake = asyncio.Event()

    def on_change(self, _network: NodeNetwork) -> None:
        self.changes += 1
        self._wake.set()

    async def until(self, condition) -> NodeNetwork:  # type: ignore[no-untyped-def]
        async with asyncio.timeout(30):
            while not condition(self.watcher.network):
                self._wake.clear()
                await self._wake.wait()
        return self.watcher.network


async def follow(node: Namespace, steps) -> None:  # type: ignore[no-untyped-def]
    """Run `steps(follower)` beside the watcher, the thread living in the namespace."""
    follower = Follower()
    await follower.watcher.start()
    task = asyncio.create_task(follower.watcher.run(follower.on_change))
    try:
        await steps(follower)
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        follower.watcher.close()


def in_node(node: Namespace, steps) -> None:  # type: ignore[no-untyped-def]
    with node.entered():
        asyncio.run(follow(node, steps))


def test_the_first_dump(node: Namespace) -> None:
    async def steps(follower: Follower) -> None:
        network = follower.watcher.network
        link = network.by_name("v0")
        assert link is not None
        assert (link.kind, link.mtu, link.up, link.mac) == ("veth", 1500, True, node.mac("v0"))
        assert network.is_own(ip("10.9.0.1"))
        assert network.is_own(ip("fd09::1"))
        assert network.is_own(ip("127.0.0.9"))
        assert not network.is_own(ip("10.9.0.2"))
        route = network.route(ip("192.0.2.1"))
        assert route is not None
        assert (route.ifindex, route.gateway) == (link.index, ip("10.9.0.254"))
        assert not network.policy4
        assert not network.policy6

    in_node(node, steps)


def test_it_follows_routes_rules_links_and_neighbours(node: Namespace) -> None:
    async def steps(follower: Follower) -> None:
        node.ip("route add 10.50.0.0/16 via 10.9.0.7 mtu 1300")
        network = await follower.until(lambda n: n.route(ip("10.50.1.1")).gateway == ip("10.9.0.7"))
        assert network.route(ip("10.50.1.1")).mtu == 1300
        node.ip("rule add from 10.1.1.1 table 77")
        await follower.until(lambda n: n.policy4 and not n.policy6)
        node.ip("rule del from 10.1.1.1 table 77")
        await follower.until(lambda n: not n.policy4)
        index = node.ifindex("v0")
        node.ip("neigh add 10.9.0.7 lladdr 02:00:00:00:00:07 dev v0")
        await follower.until(lambda n: n.neighbours.get((index, ip("10.9.0.7"))) == b"\x02\0\0\0\0\x07")
        assert (index, ip("10.9.0.7")) in follower.watcher.permanent
        node.ip("neigh del 10.9.0.7 dev v0")
        await follower.until(lambda n: (index, ip("10.9.0.7")) not in n.neighbours)
        node.ip("addr del 10.9.0.1/24 dev v0")  # the kernel drops the routes without a message
        await follower.until(lambda n: not n.is_own(ip("10.9.0.1")) and n.route(ip("192.0.2.1")) is None)
        node.ip("link del v0")
        await follower.until(lambda n: n.by_name("v0") is None)

    in_node(node, steps)


def test_a_device_going_down_takes_its_routes_along(node: Namespace) -> None:
    async def steps(follower: Follower) -> None:
        node.ip("link set v0 down")
        await follower.until(lambda n: n.route(ip("192.0.2.1")) is None and not n.by_name("v0").up)

    in_node(node, steps)


def test_lost_events_end_in_a_new_dump(node: Namespace) -> None:
    async def steps(follower: Follower) -> None:
        lines = [f"route add 10.{a}.{b}.0/24 via 10.9.0.2" for a in range(100, 108) for b in range(256)]
        sock = follower.watcher._events.socket
        sock.setsockopt(1, 8, 2048)  # SO_RCVBUF: a storm of 2,048 routes cannot fit
        await asyncio.to_thread(run, "ip", "-n", node.name, "-batch", "-", text="\n".join(lines) + "\n")
        await follower.until(lambda n: len(n.routes4.routes) > len(lines))
        node.ip("route add 10.250.0.0/16 via 10.9.0.3")
        await follower.until(lambda n: n.route(ip("10.250.0.1")).gateway == ip("10.9.0.3"))

    in_node(node, steps)


def test_multipath_and_ipv6_gateways_of_ipv4_routes(node: Namespace) -> None:
    node.ip(
        "route add 10.60.0.0/16 nexthop via 10.9.0.7 nexthop via 10.9.0.8",
        "route add 10.61.0.0/16 via inet6 fd09::9 dev v0",
    )
    node.ip("route add blackhole 10.62.0.0/16")

    async def steps(follower: Follower) -> None:
        network = follower.watcher.network
        assert not network.route(ip("10.60.0.1")).simple
        assert network.route(ip("10.61.0.1")).gateway == ip("fd09::9")
        assert not network.route(ip("10.62.0.1")).unicast

    in_node(node, steps)


def test_whose_word_a_source_is_and_which_addresses_are_on_their_way_out(node: Namespace) -> None:
    """The kernel's route to an address's subnet names that address; in any other route it is a setting."""
    node.ip("addr add fd09::5/64 dev v0 nodad preferred_lft 0", "route add 10.63.0.0/16 via 10.9.0.7 src 10.9.0.1")

    async def steps(follower: Follower) -> None:
        network = follower.watcher.network
        found = {item.address: (item.source, item.deprecated) for item in network.addresses}
        assert found[ip("fd09::1")] == found[ip("10.9.0.1")] == (True, False)
        assert found[ip("fd09::5")] == (False, True)
        (link_local,) = (item for item in network.addresses if item.address.startswith(ip("fe80::")[:2]))
        assert not link_local.source
        assert not link_local.deprecated
        own, other = network.route(ip("10.9.0.7")), network.route(ip("10.63.0.1"))
        assert (own.prefsrc, own.connected) == (ip("10.9.0.1"), True)
        assert (other.prefsrc, other.connected) == (ip("10.9.0.1"), False)

    in_node(node, steps)


def test_default_routes_that_are_not_the_best_one_are_seen(node: Namespace) -> None:
    async def steps(follower: Follower) -> None:
        network = follower.watcher.network
        v0 = next(link.index for link in network.links.values() if link.name == "v0")
        assert network.routes4.default_devices == {v0}
        node.ip(
            "link add d0 type veth peer name d1", "addr add 10.11.0.1/24 dev d0", "link set d0 up", "link set d1 up"
        )
        node.ip("route add default metric 900 nexthop via 10.11.0.2 dev d0 nexthop via 10.9.0.253 dev v0")
        found = await follower.until(lambda network: len(network.routes4.default_devices) == 2)
        assert {found.links[index].name for index in found.routes4.default_devices} == {"v0", "d0"}
        node.ip("route del default metric 900")
        await follower.until(lambda network: network.routes4.default_devices == {v0})

    with node.entered():
        asyncio.run(follow(node, steps))
