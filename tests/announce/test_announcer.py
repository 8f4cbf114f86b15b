"""The announcer's turns over maps in memory, with a link of the test's own: what is written, sent and said, and when."""

from __future__ import annotations

import asyncio
from collections.abc import Collection

import pytest
from msgspec.structs import replace

from lbagent.announce.announcer import IN_USE, Announcer, NodeView
from lbagent.announce.frames import Claim
from lbagent.announce.vip_map import VipMap, read
from lbagent.announce.vip_rows import vip_rows, why
from lbagent.errors import NotFound
from lbagent.maps.memory_maps import MemoryMaps
from lbagent.model.address import parse_ip
from lbagent.net.snapshot import EMPTY, Link, NodeAddress
from lbagent.objects.object_event import ObjectEvent
from lbagent.objects.records import Node, ObjectSnapshot, Service
from lbagent.pools.read_pools import parse_pools

VIP, OTHER = parse_ip("10.0.0.9"), parse_ip("10.0.0.10")
IFINDEX, MAC, STRANGER = 999_999, b"\2\0\0\0\0\1", b"\2\0\0\0\0\7"
NETWORK = replace(
    EMPTY,
    links={IFINDEX: Link(IFINDEX, "eth0", MAC, 1500, True)},
    addresses=(NodeAddress(parse_ip("10.0.0.5"), 24, IFINDEX),),
)
POOLS = parse_pools(
    "pools: [{name: lan, addresses: [10.0.0.8/29], announce: [l2, bgp]}]\nbgp: {localASN: 64512, peers: []}", "p"
)


class Sockets:
    """A link that keeps what is sent."""

    def __init__(self) -> None:
        self.sent: list[tuple[str, bytes]] = []

    def use(self, devices: Collection[int]) -> None:
        self.devices = set(devices)

    def probe(self, ifindex: int, address: bytes, mac: bytes) -> None:
        self.sent.append(("probe", address))

    def tell(self, ifindex: int, address: bytes, mac: bytes) -> None:
        self.sent.append(("tell", address))


class Routes:
    def __init__(self) -> None:
        self.given: list[frozenset[bytes]] = []

    def set_routes(self, addresses: Collection[bytes]) -> None:
        self.given.append(frozenset(addresses))


class World:
    def __init__(self, maps: MemoryMaps | None = None) -> None:
        self.maps = maps or MemoryMaps()
        self.now, self.objects, self.network = 100.0, None, NETWORK
        self.events: list[ObjectEvent] = []
        around = NodeView(lambda: self.objects, lambda: self.network, lambda: {"eth0"}, lambda: {IFINDEX})
        self.announcer = Announcer("n", POOLS, self.maps, around, events=[self.events.append], clock=lambda: self.now)
        self.sockets = Sockets()
        self.announcer._sockets = self.sockets  # type: ignore[assignment]
        self.objects: ObjectSnapshot | None

    def run(self, seconds: float) -> None:
        for _ in range(round(seconds / 0.05)):
            self.now += 0.05
            self.announcer._turn(self.now, None)  # type: ignore[arg-type]

    def serve(self, *addresses: bytes, **more: object) -> None:
        web = Service("ns", "web", ingress=addresses, **more)  # type: ignore[arg-type]
        self.objects = ObjectSnapshot(services={web.key: web}, nodes={"n": Node("n")})
        self.announcer.objects_changed()
        self.run(0.3)

    def written(self) -> set[bytes]:
        return {address for _, address in read(self.maps)}


@pytest.fixture(autouse=True)
async def in_a_loop() -> None:
    asyncio.get_running_loop()


async def test_an_address_is_probed_then_answered_and_then_told_of() -> None:
    world = World()
    world.serve(VIP)
    assert world.written() == set()
    world.run(1.0)
    assert world.written() == {VIP}
    assert world.sockets.sent[:4] == [("probe", VIP)] * 3 + [("tell", VIP)]
    assert [(row.state, row.mode) for row in vip_rows(world.announcer)] == [("announced", "l2"), ("withdrawn", "bgp")]


async def test_until_objects_are_known_what_an_earlier_agent_announced_is_kept() -> None:
    maps = MemoryMaps()
    VipMap(maps, 30.0).write({(IFINDEX, VIP): MAC, (IFINDEX, OTHER): MAC}, 90.0)
    world = World(maps)
    world.run(60)
    assert world.written() == {VIP, OTHER}
    world.serve(VIP)
    assert world.written() == {VIP}
    assert world.sockets.sent == []


async def test_then_too_it_yields_to_a_host_that_insists() -> None:
    maps = MemoryMaps()
    VipMap(maps, 30.0).write({(IFINDEX, VIP): MAC}, 90.0)
    world = World(maps)
    world.run(1)
    for _ in range(2):
        world.announcer._heard(IFINDEX, Claim(VIP, STRANGER))
        world.run(0.1)
    assert world.sockets.sent == [("tell", VIP)]
    assert world.written() == set()


async def test_a_stranger_is_told_of_once_and_looked_for_each_minute() -> None:
    world = World()
    world.serve(VIP)
    for _ in range(3):
        world.announcer._heard(IFINDEX, Claim(VIP, STRANGER))
        world.run(60.1)
    assert [(event.key, event.reason) for event in world.events] == [("ns/web", IN_USE)]
    assert "02:00:00:00:00:07" in world.events[0].text
    assert world.written() == set()
    world.run(61)
    assert world.written() == {VIP}


async def test_its_own_frames_are_no_stranger_s() -> None:
    world = World()
    world.serve(VIP)
    world.announcer._heard(IFINDEX, Claim(VIP, MAC))
    world.run(1)
    assert world.written() == {VIP}


async def test_a_cordoned_node_withdraws_and_says_so() -> None:
    world = World()
    world.serve(VIP)
    world.run(1)
    assert world.objects is not None
    world.objects = replace(world.objects, nodes={"n": Node("n", cordoned=True)})
    world.announcer.objects_changed()
    world.run(1)
    assert world.written() == set()
    answer = why(world.announcer, "10.0.0.9")
    assert not answer.announced
    assert answer.lines[:2] == [
        "10.0.0.9 (l2, pool lan): withdrawn: the node is cordoned",
        "  kubectl uncordon NODE, or leave it to the other nodes",
    ]


async def test_an_address_of_the_node_itself_is_never_announced() -> None:
    world = World()
    own = parse_ip("10.0.0.12")
    world.network = replace(NETWORK, addresses=(*NETWORK.addresses, NodeAddress(own, 32, IFINDEX)))
    world.serve(own, VIP)
    world.run(1)
    assert world.written() == {VIP}


async def test_routes_are_handed_over_as_a_whole_and_only_with_endpoints() -> None:
    world = World()
    world.announcer.routes = routes = Routes()
    world.serve(VIP)
    world.run(1)
    assert routes.given == [frozenset()]


async def test_what_is_not_known_is_not_found() -> None:
    world = World()
    world.serve(VIP)
    for name in ("192.0.2.1", "ns/other"):
        with pytest.raises(NotFound):
            why(world.announcer, name)
    assert why(world.announcer, "10.0.0.11").lines == [
        "10.0.0.11: no Service has this address of pool lan; an address is announced while a Service has it"
    ]
