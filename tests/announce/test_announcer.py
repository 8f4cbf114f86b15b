"""The announcer's turns over maps in memory, with the test's own link: what is written, sent and logged, and when."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from lbagent.announce.announce_refusal import AnnounceRefusal, RefusalReason
from lbagent.announce.announcer import IN_USE, AddressConflict, Announcer, AnnouncerInputs
from lbagent.announce.l2.frames import AddressSighting
from lbagent.announce.l2.vip_machine import PROBE_S
from lbagent.announce.vip_rows import vip_rows, why
from lbagent.errors import MapFull, NotFound
from lbagent.maps.layout import LB_VIP, LB_VIP_KEY
from lbagent.maps.memory_maps import MemoryMaps
from lbagent.model.address import L3n4Addr, L4Type, parse_ip
from lbagent.model.backend import BackendState
from lbagent.model.family import Family
from lbagent.model.state import State
from lbagent.net.snapshot import EMPTY, Link, NodeAddress
from lbagent.objects.object_event import ObjectEvent
from lbagent.objects.records import (
    OPERATOR,
    Endpoint,
    EndpointSlice,
    Node,
    ObjectSnapshot,
    Origin,
    Service,
    ServicePort,
    SlicePort,
    StateOverride,
)
from lbagent.pools.announcement import L2Settings
from lbagent.pools.read_pools import PoolsFile, parse_pools
from lbagent.resolve import Options, resolve
from lbagent.targets.bpf.vip_map import FORMER_LEADER_MAP, NS, VipMap, read, responder

VIP, OTHER, VIP6 = parse_ip("10.0.0.9"), parse_ip("10.0.0.10"), parse_ip("fd00::9")
IFINDEX, MAC, STRANGER = 999_999, b"\2\0\0\0\0\1", b"\2\0\0\0\0\7"
NETWORK = replace(
    EMPTY,
    links={IFINDEX: Link(IFINDEX, "eth0", MAC, 1500, True)},
    addresses=(NodeAddress(parse_ip("10.0.0.5"), 24, IFINDEX), NodeAddress(parse_ip("fd00::5"), 64, IFINDEX)),
)
POOLS = parse_pools(
    'pools: [{name: lan, addresses: [10.0.0.8/29, "fd00::8/125"], announce: [l2, bgp]}]\nbgp: {localASN: 64512, peers: []}',
    "p",
)


class Sockets:
    """A link that records sent frames."""

    def __init__(self) -> None:
        self.sent: list[tuple[str, bytes]] = []

    def use(self, devices: Collection[int]) -> None:
        self.devices = set(devices)

    def close(self) -> None:
        pass

    def probe(self, ifindex: int, address: bytes, mac: bytes) -> None:
        self.sent.append(("probe", address))

    def announce(self, ifindex: int, address: bytes, mac: bytes) -> None:
        self.sent.append(("tell", address))


class Routes:
    def __init__(self) -> None:
        self.given: list[frozenset[bytes]] = []

    def set_routes(self, addresses: Collection[bytes]) -> None:
        self.given.append(frozenset(addresses))


def local_objects() -> ObjectSnapshot:
    """Return a Service of policy Local with an endpoint on this node, and one on another."""
    ports = (ServicePort("", L4Type.TCP, 80),)
    web = Service("ns", "web", ingress=(VIP,), external_local=True, ports=ports, type="LoadBalancer")
    endpoints = (Endpoint(parse_ip("10.1.0.1"), node="n"), Endpoint(parse_ip("10.1.0.2"), node="m"))
    slice_ports = (SlicePort("", L4Type.TCP, 8080),)
    piece = EndpointSlice("ns", "web-x", "web", Family.IPV4, ports=slice_ports, endpoints=endpoints)
    return ObjectSnapshot(services={web.key: web}, slices={piece.key: piece})


class World:
    def __init__(self, maps: MemoryMaps | None = None) -> None:
        self.maps = maps or MemoryMaps()
        self.now, self.objects, self.network = 100.0, None, NETWORK
        self.events: list[ObjectEvent] = []
        self.state, self.is_settled = State(), True
        around = AnnouncerInputs(
            lambda: self.objects, lambda: self.network, lambda: {"eth0"}, lambda: {IFINDEX},
            lambda: self.state, lambda: self.is_settled,
        )  # fmt: skip
        self.announcer = Announcer(
            "n",
            POOLS,
            responder(self.maps, POOLS.l2.restart_grace_s),
            around,
            events=[self.events.append],
            clock=lambda: self.now,
        )
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

    def serve_objects(self, objects: ObjectSnapshot) -> None:
        """Write the State of these objects on this node."""
        self.objects, self.state = objects, resolve(objects, Options("n")).state
        self.announcer.objects_changed()
        self.run(0.3)

    def withholds(self, address: bytes) -> bool:
        """Return whether the objects admit this node for an address whose endpoints can take flows."""
        vip = (self.announcer.wanted or {})[address]
        return vip.admits("n") and vip.has_endpoint

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


async def test_the_former_leader_that_an_earlier_agent_knew_is_kept_and_ends_with_what_is_announced() -> None:
    maps = MemoryMaps()
    VipMap(maps, 30.0).write({(IFINDEX, VIP): MAC, (IFINDEX, OTHER): MAC}, 90.0)
    VipMap(maps, 30.0, FORMER_LEADER_MAP).write({(IFINDEX, VIP): STRANGER, (IFINDEX, OTHER): STRANGER}, 90.0)
    world = World(maps)
    world.serve(VIP)
    assert read(maps, name=FORMER_LEADER_MAP) == {(IFINDEX, VIP): STRANGER}
    world.run(29)
    assert read(maps, name=FORMER_LEADER_MAP) == {(IFINDEX, VIP): STRANGER}
    world.run(2)  # no Lease shows that it is alive
    assert read(maps, name=FORMER_LEADER_MAP) == {}
    assert world.written() == {VIP}


async def test_a_former_leader_that_cannot_be_written_holds_up_no_answer() -> None:
    class Full(MemoryMaps):
        def put_many(self, name: str, rows: Sequence[tuple[bytes, bytes]]) -> None:
            if name == FORMER_LEADER_MAP and self.is_full:
                raise MapFull("write", 7, name)
            super().put_many(name, rows)

        is_full = False

    maps = Full()
    VipMap(maps, 30.0, FORMER_LEADER_MAP).write({(IFINDEX, VIP): STRANGER}, 90.0)
    VipMap(maps, 30.0).write({(IFINDEX, VIP): MAC}, 90.0)
    maps.is_full = True
    world = World(maps)
    world.serve(VIP)
    world.run(25)
    assert world.written() == {VIP}
    assert read(maps, world.now + 25) == {(IFINDEX, VIP): MAC}, "its end is moved on"
    assert world.announcer.problems() == ["addresses could not be announced: map lb_former_leader is full"]


async def test_what_could_not_be_written_is_written_when_nothing_else_changes() -> None:
    class Refusing(MemoryMaps):
        refusals = 0

        def put_many(self, name: str, rows: Sequence[tuple[bytes, bytes]]) -> None:
            if self.refusals:
                self.refusals -= 1
                raise MapFull("write", 7, name)
            super().put_many(name, rows)

    maps = Refusing()
    world = World(maps)
    world.serve(VIP)
    maps.refusals = 1
    world.run(1)
    assert maps.refusals == 0
    assert world.written() == {VIP}
    assert world.announcer.problems() == []


async def test_another_mac_address_is_answered_with_and_a_device_without_carrier_not_at_all() -> None:
    world = World()
    world.serve(VIP)
    world.run(1)
    link = replace(NETWORK.links[IFINDEX], mac=STRANGER)
    world.network = replace(NETWORK, links={IFINDEX: link})
    world.run(0.1)
    assert read(world.maps) == {(IFINDEX, VIP): STRANGER}
    world.network = replace(NETWORK, links={IFINDEX: replace(link, up=False)})
    world.run(0.1)
    assert world.written() == set()
    assert world.announcer.refusals == {VIP: AnnounceRefusal(RefusalReason.NO_CARRIER, "eth0")}
    assert why(world.announcer, "10.0.0.9").lines[:2] == [
        "10.0.0.9 (l2, pool lan): withdrawn: eth0 has no carrier",
        f"  {RefusalReason.NO_CARRIER.advice}",
    ]


async def test_what_has_ended_meanwhile_is_not_begun_again() -> None:
    maps = MemoryMaps()
    VipMap(maps, 30.0).write({(IFINDEX, VIP): MAC, (IFINDEX, OTHER): MAC}, 60.0)
    maps.put_many(
        "lb_vip", [(LB_VIP_KEY.pack(IFINDEX, bytes(10) + b"\xff\xff" + OTHER), LB_VIP.pack(101 * NS, MAC, b""))]
    )
    world = World(maps)
    world.run(0.1)
    assert world.written() == {OTHER}
    world.serve(VIP, OTHER)
    assert world.written() == {OTHER}
    assert {address for _, address in world.sockets.sent} == {VIP}


async def test_what_ends_before_it_begins_is_not_begun_again_either() -> None:
    maps = MemoryMaps()
    VipMap(maps, 30.0).write({(IFINDEX, VIP): MAC}, 71.0)
    world = World(maps)
    assert set(world.announcer.machines) == {VIP}
    world.now = 101.1
    running = asyncio.create_task(world.announcer.run())
    await asyncio.sleep(0.01)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert world.written() == set()


async def test_with_yield_it_yields_to_a_host_that_insists_then_too() -> None:
    maps = MemoryMaps()
    VipMap(maps, 30.0).write({(IFINDEX, VIP): MAC}, 90.0)
    world = World(maps)
    world.announcer.use_pools(PoolsFile(POOLS.pools, L2Settings(defends=False), POOLS.bgp))
    world.run(1)
    for _ in range(2):
        world.announcer._on_sighting(IFINDEX, AddressSighting(VIP, STRANGER))
        world.run(0.1)
    assert world.sockets.sent == [("tell", VIP)]
    assert world.written() == set()


async def test_a_stranger_is_told_of_once_and_looked_for_each_minute() -> None:
    world = World()
    world.serve(VIP)
    for _ in range(3):
        world.announcer._on_sighting(IFINDEX, AddressSighting(VIP, STRANGER))
        world.run(60.1)
    assert [(event.key, event.reason) for event in world.events] == [("ns/web", IN_USE)]
    assert "02:00:00:00:00:07" in world.events[0].text
    assert world.written() == set()
    world.run(61)
    assert world.written() == {VIP}


async def test_forged_claims_take_no_address_down_and_are_reported_once() -> None:
    world = World()
    world.serve(VIP)
    world.run(20)
    world.sockets.sent.clear()
    for _ in range(40):  # two in each second
        world.announcer._on_sighting(IFINDEX, AddressSighting(VIP, STRANGER))
        world.run(0.5)
    assert world.written() == {VIP}
    assert world.sockets.sent == [("tell", VIP)] * 2
    assert [(event.key, event.reason) for event in world.events] == [("ns/web", IN_USE)]
    (conflict,) = world.announcer.conflicts()
    assert conflict == AddressConflict(VIP, STRANGER, is_defended=True)
    assert "02:00:00:00:00:07" in conflict.text()
    world.run(66)
    assert world.announcer.conflicts() == []


@pytest.mark.parametrize("mac", ["ffffffffffff", "000000000000", "01005e000001", "333300000001"])
@pytest.mark.parametrize("begins", [0.0, 20.0], ids=["probing", "announced"])
async def test_a_claim_by_a_mac_address_that_no_host_can_have_is_ignored(mac: str, begins: float) -> None:
    world = World()
    world.serve(VIP)
    world.run(begins)
    for _ in range(3):
        world.announcer._on_sighting(IFINDEX, AddressSighting(VIP, bytes.fromhex(mac)))
        world.run(0.2)
    world.run(1)
    assert (world.written(), world.events, world.announcer.conflicts()) == ({VIP}, [], [])


LOCAL_STATES = [
    (None, True), (BackendState.MAINTENANCE, False), (BackendState.QUARANTINED, False),
]  # fmt: skip


@pytest.mark.parametrize(("set_by_operator", "is_announced"), LOCAL_STATES)
async def test_policy_local_follows_what_the_programs_select(
    set_by_operator: BackendState | None, is_announced: bool
) -> None:
    world = World()
    objects = local_objects()
    world.serve_objects(objects)
    world.run(1)
    assert world.written() == {VIP}
    if set_by_operator is not None:
        here = L3n4Addr(parse_ip("10.1.0.1"), 8080)
        override = StateOverride("s", here, set_by_operator, Origin(OPERATOR))
        objects = replace(objects, backend_states={"s": override})
    world.serve_objects(objects)
    world.run(1)
    assert world.written() == ({VIP} if is_announced else set())
    assert world.announcer.wanted_routes() == frozenset({VIP} if is_announced else ())
    if not is_announced:
        assert world.announcer.refusals == {VIP: AnnounceRefusal(RefusalReason.NOT_SERVED_HERE)}
        assert world.announcer._withheld == {VIP}
        assert [row.reason for row in vip_rows(world.announcer)] == [
            RefusalReason.NOT_SERVED_HERE,
            "the programs of this node send no new connections to its endpoints, so the route is withdrawn",
        ]


async def test_what_the_maps_do_not_hold_yet_is_not_withheld() -> None:
    world = World()
    world.objects, world.is_settled = local_objects(), False
    world.announcer.objects_changed()
    world.run(0.3)
    assert world.announcer._withheld == frozenset()
    world.is_settled = True
    world.run(0.1)
    assert world.announcer._withheld == {VIP}


ENDPOINTS = st.lists(
    st.tuples(
        st.sampled_from(["n", "m", ""]), st.booleans(), st.booleans(), st.booleans(),
        st.sampled_from([None, None, *list(BackendState)[1:4]]), st.booleans(),
    ),
    max_size=4,
)  # fmt: skip


@given(ENDPOINTS, st.booleans(), st.booleans())
@settings(max_examples=150, deadline=None)
def test_what_is_announced_is_what_the_programs_of_the_node_serve(
    endpoints: list[tuple[str, bool, bool, bool, BackendState | None, bool]], local: bool, internal_local: bool
) -> None:
    """By BGP under each policy, and by layer 2 under Local, in each family; under Cluster layer 2 answers for all."""

    async def announced() -> None:
        four, six, states = [], [], {}
        for number, (node, ready, serving, terminating, state, is_six) in enumerate(endpoints):
            address = bytes(15) + bytes([number + 1]) if is_six else bytes([10, 1, 0, number + 1])
            (six if is_six else four).append(
                Endpoint(address, ready=ready, serving=serving, terminating=terminating, node=node)
            )
            if state is not None:
                states[str(number)] = StateOverride(str(number), L3n4Addr(address, 8080), state, Origin(OPERATOR))
        web = Service(
            "ns", "web", ingress=(VIP, VIP6), external_local=local, internal_local=internal_local,
            ports=(ServicePort("", L4Type.TCP, 80),), type="LoadBalancer",
        )  # fmt: skip
        ports = (SlicePort("", L4Type.TCP, 8080),)
        slices = [
            EndpointSlice("ns", f"web-{family}", "web", family, ports=ports, endpoints=tuple(found))
            for family, found in ((Family.IPV4, four), (Family.IPV6, six))
        ]
        objects = ObjectSnapshot(
            services={web.key: web}, slices={each.key: each for each in slices}, backend_states=states
        )
        world = World()
        world.serve_objects(objects)
        world.run(1)
        served = {
            address for address in (VIP, VIP6)
            if world.state.by_frontend[L3n4Addr(address, 80)].selectable
        }  # fmt: skip
        assert world.announcer.wanted_routes() == served
        assert world.written() == (served if local else {VIP, VIP6})
        if local:
            assert (
                world.announcer._withheld == {each for each in world.announcer.wanted if world.withholds(each)} - served
            )

    asyncio.run(announced())


async def test_an_agent_that_did_not_run_for_too_long_begins_anew() -> None:
    world = World()
    world.serve(VIP)
    world.run(1)
    assert world.written() == {VIP}
    world.sockets.sent.clear()
    world.now += world.announcer.pools.l2.restart_grace_s
    world.run(0.1)
    assert world.written() == set()
    world.run(1)
    assert world.sockets.sent[:4] == [("probe", VIP)] * 3 + [("tell", VIP)]
    assert world.written() == {VIP}


async def test_its_own_frames_are_no_stranger_s() -> None:
    world = World()
    world.serve(VIP)
    world.announcer._on_sighting(IFINDEX, AddressSighting(VIP, MAC))
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


class Election:
    """The Leases, defined by the test: this node, and `i`, the leader by hashing, read at the time 100."""

    failure = ""
    fresh = True
    on_change: Callable[[Collection[str]], None]

    def __init__(self) -> None:
        self.holders: dict[bytes, str] = {}
        self.asked: list[bytes] = []  # addresses that were decided about
        self.removed: list[str] = []  # Leases

    def is_fresh(self, now: float) -> bool:
        return self.fresh

    def node_of(self, mac: bytes) -> str:
        return "i"

    def dead_s(self, node: str, now: float) -> float:
        return now - 102.0

    def state(self, now: float) -> tuple[object, ...]:
        return (self.fresh, now < 102.0 - PROBE_S, now < 102.0)

    def next_end(self, now: float, before_s: float) -> float:
        return min(at for at in (102.0 - before_s, 102.0, float("inf")) if at > now)

    def holder(self, address: bytes) -> str:
        self.asked.append(address)
        return self.holders.get(address, "i")

    def nodes_reaching(self, address: bytes, now: float) -> frozenset[str]:
        return frozenset({"n", "i"})

    def publish(self, networks: object, macs: object, withheld: Collection[bytes]) -> None:
        self.published = set(withheld)

    def leftovers(self, wanted: Collection[bytes], now: float, grace_s: float) -> list[str]:
        return [f"left beside {len(wanted)}"]

    async def remove(self, name: str) -> None:
        self.removed.append(name)


def elected() -> tuple[World, Election]:
    world, election = World(), Election()
    world.announcer.election = election  # type: ignore[assignment]
    world.objects = ObjectSnapshot(services={"ns/web": Service("ns", "web", ingress=(VIP, OTHER))})
    world.announcer._turn(100.0, None)  # type: ignore[arg-type]
    election.asked.clear()
    return world, election


async def test_a_turn_is_due_when_the_leader_s_lease_is_overdue_and_when_it_runs_out() -> None:
    world, _ = elected()
    world.announcer._objects_changed = False
    assert world.announcer._next_turn(101.5) == 102.0 - PROBE_S
    assert world.announcer._next_turn(101.8) == 102.0
    assert world.announcer._next_turn(102.5) == 103.5


async def test_only_addresses_with_news_are_decided_about_in_between() -> None:
    world, election = elected()
    for now, names, found in (
        (100.1, [], []),
        (100.2, ["lbagent-vip-10.0.0.9", "lbagent-node-i"], [VIP]),
        (100.3, [], []),
        (101.2, [], [VIP, OTHER]),
        (101.3, [], []),
        (102.0, [], [VIP, OTHER]),
    ):
        world.announcer._leases_change(names)
        world.announcer._turn(now, None)  # type: ignore[arg-type]
        assert sorted(set(election.asked)) == found, now
        election.asked.clear()


async def test_a_service_that_comes_changes_or_goes_is_decided_about_alone() -> None:
    world, election = elected()
    web, third = world.objects.services["ns/web"], parse_ip("10.0.0.11")
    local = Service("ns", "dns", ingress=(third,), external_local=True)
    for now, services, found in (
        (100.3, [web, replace(local, external_local=False)], {third}),
        (100.6, [web, local], {third}),
        (100.9, [replace(web, ingress=(OTHER,)), local], {VIP}),  # whose Lease might be this node's
    ):
        world.objects = ObjectSnapshot(services={each.key: each for each in services})
        world.announcer.objects_changed()
        election.asked.clear()
        world.announcer._turn(now, None)  # type: ignore[arg-type]
        assert set(election.asked) == found, now
    assert set(world.announcer.machines) == {OTHER, third}


async def test_a_cordon_is_decided_about_for_all_at_once() -> None:
    world, election = elected()
    world.objects = replace(world.objects, nodes={"n": Node("n", cordoned=True)})
    world.announcer.objects_changed()
    world.announcer._turn(100.5, None)  # type: ignore[arg-type]
    assert set(election.asked) == {VIP, OTHER}


async def test_the_node_that_follows_a_leader_whose_lease_is_overdue_probes_already() -> None:
    world, _ = elected()
    world.sockets.sent.clear()
    world.announcer._turn(101.6, None)  # type: ignore[arg-type]
    assert world.sockets.sent == []
    world.announcer._turn(102.0 - PROBE_S, None)  # type: ignore[arg-type]
    assert sorted(world.sockets.sent) == [("probe", VIP), ("probe", OTHER)]


async def test_a_leader_that_does_not_know_the_leases_asks_the_wire_and_then_about_all() -> None:
    many = [parse_ip(f"10.0.0.{number}") for number in range(8, 15)]
    maps = MemoryMaps()
    VipMap(maps, 30.0).write({(IFINDEX, address): MAC for address in many}, 95.0)
    world, election = World(maps), Election()
    world.announcer.election, election.fresh = election, False  # type: ignore[assignment]
    world.run(0.1)
    assert sorted(world.sockets.sent) == sorted(("probe", address) for address in many)
    world.sockets.sent.clear()
    world.announcer._on_sighting(IFINDEX, AddressSighting(many[0], STRANGER))
    world.run(0.1)
    assert world.written() == set(many[1:7])
    assert sorted(world.sockets.sent) == sorted(("probe", address) for address in set(many[1:7]))
    election.fresh = True
    world.sockets.sent.clear()
    world.run(3)
    assert world.sockets.sent == []


async def test_leases_that_are_left_over_are_deleted_each_half_a_minute() -> None:
    world, election = elected()
    async with asyncio.TaskGroup() as tasks:
        for now in (129.0, 130.0, 131.0, 160.0):
            world.announcer._turn(now, tasks)
    assert election.removed == ["left beside 2"] * 2
