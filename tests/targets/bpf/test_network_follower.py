"""The follower of the network against a real kernel that forgets: what backends and clients need is resolved again."""

from __future__ import annotations

import asyncio
import errno
import json
import time
from collections.abc import Awaitable, Callable, Iterator

import pytest

from lbagent.bpf.run.send_errors import SendErrors
from lbagent.maps.memory_maps import MemoryMaps
from lbagent.net import near_clients, neighbours
from lbagent.net.paths import Hop, PathSettings
from lbagent.net.snapshot import Link
from lbagent.targets.bpf.network_follower import NetworkFollower
from lbagent.targets.bpf.send_watch import SendWatch
from tests.lab.netns import Namespace, Stopwatch, run, veth
from tests.net.builders import CNI0, ETH0, backend, ip, network
from tests.net.builders import address as of_device

pytestmark = pytest.mark.root
NEAR = ("10.9.0.2", "fd09::2")  # backends beside the node, one a family
GATEWAYS = ("10.9.0.3", "fd09::3")
SOON_S = 1.0


class Node:
    """A namespace with a peer behind v0, and another (w0) by which no backend is reached."""

    def __init__(self) -> None:
        self.space, self.peer = Namespace("nf"), Namespace("nfpeer")
        veth(self.space, "v0", self.peer, "v1")
        self.space.ip("addr add 10.9.0.1/24 dev v0", "addr add fd09::1/64 dev v0 nodad")
        for host in ("2", "3"):
            self.peer.ip(f"addr add 10.9.0.{host}/24 dev v1", f"addr add fd09::{host}/64 dev v1 nodad")

    def delete(self) -> None:
        self.space.delete()
        self.peer.delete()

    def ip(self, *words: str) -> None:
        run("ip", "-n", self.space.name, *words)

    def entries(self) -> dict[str, dict[str, object]]:
        """Return the kernel's entries by address."""
        return {item["dst"]: item for item in json.loads(run("ip", "-n", self.space.name, "-d", "-j", "neigh"))}


@pytest.fixture
def node() -> Iterator[Node]:
    made = Node()
    try:
        yield made
    finally:
        made.delete()


class Following:
    """A follower with its tasks, and what the tests wait for."""

    def __init__(self, follower: NetworkFollower, index: int) -> None:
        self.follower, self.index = follower, index

    def hops(self, *addresses: str) -> set[Hop]:
        return {(self.index, ip(address)) for address in addresses}

    def want(self, *addresses: str) -> None:
        """Let backends be planned."""

        def plan() -> None:
            for address in addresses:
                self.follower.path(backend(address, "elsewhere"))
            self.follower.paths_planned()

        self.follower.on_paths = plan
        plan()

    def published(self, *addresses: str) -> bool:
        return all(self.follower.table.index_of(hop) for hop in self.hops(*addresses))

    async def until(self, condition: Callable[[], bool], within_s: float = 5.0) -> float:
        """Wait until it holds and return after how many seconds (Stopwatch.s); TimeoutError."""
        watch = Stopwatch()
        while not condition():
            if watch.s > within_s:
                raise TimeoutError
            await asyncio.sleep(0.01)
        return watch.s

    async def resolved(self, *addresses: str, within_s: float = 5.0) -> float:
        return await self.until(lambda: self.published(*addresses), within_s)

    async def gone(self, *addresses: str) -> None:
        await self.until(lambda: not any(self.published(address) for address in addresses))


def follow(node: Node, steps: Callable[[Following], Awaitable[None]]) -> None:
    """Run `steps` beside a follower that lives in the node's namespace."""

    async def main() -> None:
        follower = NetworkFollower(MemoryMaps(), PathSettings("here"), 100.0)
        await follower.start()
        task = asyncio.create_task(follower.run())
        try:
            await steps(Following(follower, node.space.ifindex("v0")))
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            follower.close()

    with node.space.entered():
        asyncio.run(main())


@pytest.mark.parametrize("how", ["flush", "del", "replaced"])
def test_what_the_kernel_was_made_to_forget_is_asked_for_again(node: Node, how: str) -> None:
    async def steps(here: Following) -> None:
        here.want(*NEAR)
        await here.resolved(*NEAR)
        await asyncio.sleep(0.3)  # the answers to our own requests have arrived
        if how == "flush":
            node.ip("neigh", "flush", "dev", "v0")
            node.ip("-6", "neigh", "flush", "dev", "v0")
        for address in NEAR if how == "del" else ():
            node.ip("neigh", "del", address, "dev", "v0")
        for address in NEAR if how == "replaced" else ():  # another program's request takes the mark away
            node.ip("neigh", "replace", address, "lladdr", node.peer.mac("v1").hex(":"), "dev", "v0", "nud", "stale")
        await asyncio.sleep(0.1)
        assert await here.resolved(*NEAR) < SOON_S
        if here.follower.keeper.managed:
            await here.until(lambda: all("managed" in str(node.entries()[address]) for address in NEAR), SOON_S)

    follow(node, steps)


def test_a_neighbour_that_no_backend_needs_any_more_is_released(node: Node) -> None:
    """The kernel requests it no longer; one that a gateway route needs stays, and one of a backend that is there."""

    async def steps(here: Following) -> None:
        keeper, in_use = here.follower.keeper, [*NEAR, "10.9.0.77"]
        here.follower.backends_in_use = lambda: [backend(address, "elsewhere") for address in in_use]
        here.want(*in_use)
        await here.until(lambda: keeper.kept == here.hops(*in_use))
        await here.resolved(*NEAR)
        await asyncio.sleep(0.3)  # the answers have arrived: a change of the network would renew all paths
        in_use[:] = NEAR[:1]
        here.want(*in_use)  # also after a change of the network: plans have what is there
        await here.until(lambda: keeper.kept == here.hops(*NEAR[:1]))
        assert here.follower.finder.hops == here.hops(*NEAR[:1])
        if keeper.managed:
            await here.until(lambda: "managed" not in str(node.entries().get("10.9.0.77")))
            assert "managed" in str(node.entries()[NEAR[0]])

    follow(node, steps)


@pytest.mark.parametrize("end", ["ours", "theirs"])
def test_a_link_that_flaps_is_back_within_a_second(node: Node, end: str) -> None:
    space, device = (node.space, "v0") if end == "ours" else (node.peer, "v1")  # theirs: the carrier alone is lost
    for each, name in ((node.space, "v0"), (node.peer, "v1")):
        each.sysctl(f"ipv6/conf/{name}/keep_addr_on_down", 1)

    async def steps(here: Following) -> None:
        here.want(*NEAR)
        await here.resolved(*NEAR)
        for _ in range(2):
            run("ip", "-n", space.name, "link", "set", device, "down")
            await here.gone(*NEAR)
            await asyncio.sleep(1.2)
            run("ip", "-n", space.name, "link", "set", device, "up")
            assert await here.resolved(NEAR[0]) < SOON_S
            assert await here.resolved(NEAR[1]) < 3 * SOON_S  # IPv6 asks from an address that it has to try first

    follow(node, steps)


def test_gateways_are_kept_for_the_sake_of_clients(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(near_clients, "MAX_CLIENTS", 0)
    node.ip("route", "add", "192.0.2.0/24", "nexthop", "via", "10.9.0.3", "nexthop", "via", "10.9.0.2")
    node.ip("route", "add", "default", "via", "fd09::3")

    async def steps(here: Following) -> None:
        await here.resolved(*GATEWAYS, "10.9.0.2")
        node.ip("neigh", "flush", "dev", "v0")
        node.ip("-6", "neigh", "flush", "dev", "v0")
        await asyncio.sleep(0.1)
        assert await here.resolved(*GATEWAYS, "10.9.0.2") < SOON_S
        node.ip("-6", "route", "del", "default")
        await here.until(lambda: "managed" not in str(node.entries().get("fd09::3")))

    follow(node, steps)


def test_a_neighbour_that_does_not_exist_costs_few_requests(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Hop] = []

    async def steps(here: Following) -> None:
        real = neighbours._request

        async def counting(ipr, hop, *, managed):  # type: ignore[no-untyped-def]
            asked.append(hop)
            return await real(ipr, hop, managed=managed)

        monkeypatch.setattr(neighbours, "_request", counting)
        here.want("10.9.0.77", NEAR[0])
        await here.resolved(NEAR[0])
        await asyncio.sleep(4.0)  # longer than the kernel tries
        assert not here.published("10.9.0.77")
        assert 1 <= asked.count((here.index, ip("10.9.0.77"))) <= 4
        began = time.process_time()
        await asyncio.sleep(0.5)
        assert time.process_time() - began < 0.2  # nothing goes round and round

    follow(node, steps)


def test_a_device_that_refuses_in_deed_is_named_until_it_changes() -> None:
    called: list[int] = []
    watch = SendWatch(lambda: called.append(1))
    link = Link(9, "eth9", b"\2\0\0\0\0\x09", 1500, True)
    watch.follow({9: "as it is"})
    watch.take({9: SendErrors(3, 0)}, 100.0)  # a full queue: nothing to be concluded
    assert not called
    assert watch.problems({9: link}, 101.0) == {"eth9": "eth9 did not take 3 frames that XDP sent by it"}
    watch.take({9: SendErrors(5, errno.EOPNOTSUPP)}, 110.0)
    assert called == [1]
    assert watch.refusing.keys() == {9}
    watch.take({9: SendErrors(5, errno.EOPNOTSUPP)}, 120.0)
    assert called == [1]
    assert "5 frames" in watch.problems({9: link}, 121.0)["eth9"]
    assert watch.problems({9: link}, 300.0) == {}  # it is over
    watch.follow({9: "as it is"})
    assert watch.refusing.keys() == {9}
    watch.follow({9: "otherwise"})
    assert watch.refusing == {}


def test_a_client_beside_the_node_is_kept_resolved_until_it_is_silent(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(near_clients, "SILENT_S", 3.0)

    async def steps(here: Following) -> None:
        here.follower.use_devices(frozenset({here.index}), frozenset())
        node.ip("neigh", "replace", "10.9.0.3", "dev", "v0", "nud", "none", "use")  # as a packet of the node does it
        await here.resolved("10.9.0.3")
        node.ip("neigh", "flush", "dev", "v0")
        await asyncio.sleep(0.1)
        assert await here.resolved("10.9.0.3") < SOON_S
        run("ip", "-n", node.peer.name, "addr", "del", "10.9.0.3/24", "dev", "v1")
        node.ip("neigh", "flush", "dev", "v0")
        await here.gone("10.9.0.3")
        await here.until(lambda: "managed" not in str(node.entries().get("10.9.0.3")), 15)

    follow(node, steps)


def test_the_last_clients_are_kept_when_there_are_many() -> None:
    clients, limit = near_clients.NearClients(), near_clients.MAX_CLIENTS
    crowd = {(ETH0, ip(f"10.0.{i >> 8}.{i & 255}")): b"\2\0\0\0\0\1" for i in range(1, limit + 21)}
    others = {(CNI0, ip("10.244.0.5")): b"\2\0\0\0\0\2", (ETH0, ip("fe80::7")): b"\2\0\0\0\0\3"}
    now = network(neighbours=crowd | others)
    clients.follow(now, {ETH0}, 1.0)
    assert clients.hops(now, 1.0) == list(crowd)[20:]
    gone = network(neighbours={})
    clients.follow(gone, {ETH0}, 2.0)
    assert len(clients.hops(gone, 10.0)) == limit  # a link may flap
    assert clients.next_look_s(gone)
    assert clients.hops(gone, 99.0) == []


def test_replies_to_an_address_on_its_way_out_are_looked_at() -> None:
    """A path that had it as its source keeps it; an address of the link alone is never a source."""
    follower = NetworkFollower(MemoryMaps(), PathSettings("me"), 10.0)
    follower._known = network(
        addresses=(
            of_device("fd00::5/64", ETH0, source=False, deprecated=True),
            of_device("fe80::2/64", ETH0, source=False),
            of_device("10.0.0.1/24", ETH0),
        )
    )
    found = follower.snat_addresses()
    assert {ip("fd00::5"), ip("10.0.0.1")} <= set(found)
    assert ip("fe80::2") not in found
