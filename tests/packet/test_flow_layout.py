"""Layout 1 of flow entries, SNAT slots and path records: the bytes that earlier versions left in the maps.

An upgrade keeps the maps, so these programs read entries that earlier ones wrote. The bytes below are a copy from the maps of the
version before the protocol had two bits and the forwarding mode a field of its own (docs/datapath.md has the words): a program
that cannot use them loses the connections of every upgraded node.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

import pytest

from lbagent.config import MIN_SNAT_PORT
from lbagent.maps import flow_reader
from lbagent.maps.flow_layout import FlowState
from lbagent.maps.layout import PathL4
from lbagent.maps.reasons import Reason
from lbagent.model.family import Family as ModelFamily
from tests.packet import craft, expect, table
from tests.packet.caller import Caller
from tests.packet.craft import FAMILIES, Family
from tests.packet.test_state import DEFAULTS, Talk, sweep, ticks
from tests.packet.world import TCP, UDP, XDP, BackendRow, ServiceRow, World

ENTRY = {4: 32, 6: 64}  # bytes
SLOT = {4: 16, 6: 32}
SEEN = {4: 24, 6: 48}  # where an entry has its last packet's tick, 2 bytes
CSUM = {4: 32, 6: 56}  # where an IPv6 entry begins to keep what the checksum changes by: not part of the flow
SLOT_META = {4: 8, 6: 24}
CLIENT_PORT, VIP_PORT, BACKEND_PORT = 40000, 80, 8080


@dataclass(frozen=True)
class Golden:
    """One established flow as it was written, and where (the seeds and sizes are those of the packet tests)."""

    name: str
    version: int
    proto: int
    snat_port: int  # 0: a backend of this node
    position: int
    entry: str
    slot_position: int
    slot: str
    path: str

    @property
    def local(self) -> bool:
        """Whether the backend is on this node."""
        return not self.snat_port


GOLDEN = (
    Golden(
        "ipv4-tcp-local", 4, TCP, 0,
        96, "01009c40c6336407 01000050cb00710a 0100010010100000 b10b020001000000",
        0, "",
        "0a020001c0000201 1f9001070100dc05",
    ),
    Golden(
        "ipv4-tcp-snat", 4, TCP, 17693,
        96, "01009c40c6336407 01000050cb00710a 014051d411100000 b10b020001000000",
        11479, "01009c40c6336407 6117001000100000",
        "0a0100010a000001 1f9001030100dc05",
    ),
    Golden(
        "ipv4-udp-snat", 4, UDP, 9837,
        3352, "01409c40c6336407 01000050cb00710a 014061d216100000 b10b020001000000",
        20064, "01009c40c6336407 6117001000100000",
        "0a0100010a000001 1f9001130100dc05",
    ),
    Golden(
        "ipv6-tcp-local", 6, TCP, 0,
        1084, "0100001000509c40 20010db801000000 0000000000000007 20010db801130000 0000000000000010"
        "0100010010100000 b10b020001000000 0000000000000000",
        0, "",
        "fd00000200000000 0000000000000001 20010db800020000 0000000000000001 1f9001070100dc05" + "00" * 24,
    ),
    Golden(
        "ipv6-tcp-snat", 6, TCP, 4009,
        1084, "0100001000509c40 20010db801000000 0000000000000007 20010db801130000 0000000000000010"
        "0140f1901a100000 b10b020001000000 0000000000000000",
        2944, "0100010000009c40 20010db801000000 0000000000000007 6117001000100000",
        "fd00000100000000 0000000000000001 fd00000000000000 0000000000000001 1f9001030100dc05" + "00" * 24,
    ),
    Golden(
        "ipv6-udp-snat", 6, UDP, 7039,
        3168, "0140001000509c40 20010db801000000 0000000000000007 20010db801130000 0000000000000010"
        "0140b1f117100000 b10b020001000000 0000000000000000",
        29026, "0100010000009c40 20010db801000000 0000000000000007 6117001000100000",
        "fd00000100000000 0000000000000001 fd00000000000000 0000000000000001 1f9001130100dc05" + "00" * 24,
    ),
)  # fmt: skip


class Left:
    """The maps as the earlier version left them: one service, one backend, one flow of some seconds ago."""

    def __init__(self, world: World, golden: Golden, hook: str = XDP, age: int = 2) -> None:
        """Write the bytes, with the ticks of `age` ticks ago."""
        self.world, self.golden, self.hook = world, golden, hook
        self.fam: Family = FAMILIES[golden.version]
        address = self.fam.local(1) if golden.local else self.fam.remote(1)
        self.backend: BackendRow = world.backend(self.fam, address, BACKEND_PORT, golden.proto, local=golden.local)
        self.service: ServiceRow = world.service(self.fam, self.fam.vip, VIP_PORT, golden.proto, [self.backend])
        path = bytes.fromhex(golden.path)
        self._put("path", self.backend.id * len(path), path)
        seen = _now(world) - age
        entry = bytearray.fromhex(golden.entry)
        struct.pack_into("=H", entry, SEEN[golden.version], seen & 0xFFFF)
        self._put("flow", golden.position * len(entry), entry)
        if not golden.local:
            slot = bytearray.fromhex(golden.slot)
            at = SLOT_META[golden.version]
            (meta,) = struct.unpack_from("=Q", slot, at)
            struct.pack_into("=Q", slot, at, (meta & ~0xFFF0) | (seen >> 3 & 0xFFF) << 4)
            self._put("snat", golden.slot_position * len(slot), slot)

    def _put(self, name: str, at: int, data: bytes | bytearray) -> None:
        with self.world.maps.window(f"lb{self.fam.version}_{name}", at, len(data)) as view:
            view[:] = data

    def request(self, flags: str = "A") -> bytes:
        """Return the client's packet."""
        packet = craft.segment(self.fam, self.golden.proto, self.fam.client, CLIENT_PORT, self.fam.vip, VIP_PORT, flags)
        return craft.frame(packet)

    def forwards(self) -> None:
        """Assert that the client's next packet goes where the flow always went."""
        frame = self.request()
        out = self.world.run(self.hook, frame)
        if self.golden.local:
            expect.handed_up_to(out, frame, self.backend)
            assert out.counted == {Reason.FWD_LOCAL: 1}
        else:
            assert expect.forwarded_to(out, frame, self.backend) == self.golden.snat_port
            assert out.counted == {Reason.FWD_ESTABLISHED: 1}

    def replies(self) -> None:
        """Assert that the backend's next packet reaches the client as the frontend's."""
        if self.golden.local:
            frame = expect.local_reply(self.fam, self.golden.proto, self.backend, self.fam.client, CLIENT_PORT, "A")
            out = expect.at_pod(self.world, frame)
        else:
            frame = expect.remote_reply(self.fam, self.golden.proto, self.backend, self.golden.snat_port, "A")
            out = self.world.run(self.hook, frame, self.world.net.lb1)
        expect.replied(out, frame, self.service, self.fam.client, CLIENT_PORT)
        assert out.counted == {Reason.FWD_REPLY: 1}


@pytest.fixture(params=GOLDEN, ids=lambda golden: golden.name)
def golden(request: pytest.FixtureRequest) -> Golden:
    """Run the test for each kind of flow."""
    value: Golden = request.param
    return value


def test_programs_write_the_same_bytes(world: World, golden: Golden) -> None:
    """The same conversation leaves the same bytes: an older version can continue with them after a downgrade."""
    talk = Talk(world, FAMILIES[golden.version], XDP, golden.proto, local=golden.local)
    talk.from_client("S")
    talk.from_backend("SA")
    talk.from_client("A")
    version = golden.version
    entry = _read(world, f"lb{version}_flow", golden.position, ENTRY[version])
    seen = SEEN[version]
    wanted = bytes.fromhex(golden.entry)
    assert entry[:seen].hex(" ", 8) == wanted[:seen].hex(" ", 8)
    kept = (
        CSUM[version] - (golden.proto == UDP and not golden.local) * 2
    )  # there is the tick of the first reply, which they do not read
    assert entry[seen + 2 : kept] == wanted[seen + 2 : kept]
    path = bytes.fromhex(golden.path)
    assert _read(world, f"lb{version}_path", talk.backend.id, len(path)) == path
    if not golden.local:
        slot = bytearray(_read(world, f"lb{version}_snat", golden.slot_position, SLOT[version]))
        old = bytearray.fromhex(golden.slot)
        for record in (slot, old):  # all but the stamp
            (meta,) = struct.unpack_from("=Q", record, SLOT_META[version])
            struct.pack_into("=Q", record, SLOT_META[version], meta & ~0xFFF0)
        assert slot.hex(" ", 8) == old.hex(" ", 8)


def test_a_reader_finds_what_the_programs_wrote(world: World, golden: Golden) -> None:
    """maps/flow_reader.py returns each field as the packets had it, and counts the flow for its backend."""
    fam, family = FAMILIES[golden.version], ModelFamily(golden.version)
    talk = Talk(world, fam, XDP, golden.proto, local=golden.local)
    talk.from_client("S")
    talk.from_backend("SA")
    talk.from_client("A")
    (flow,) = (flow for piece in flow_reader.flows(world.maps, family) for flow in piece)
    seen = table.only(world, fam).seen
    assert (fam.text(flow.client), flow.client_port) == (fam.client, CLIENT_PORT)
    assert (fam.text(flow.vip), flow.vip_port) == (fam.vip, VIP_PORT)
    assert (flow.service, flow.backend) == (1, talk.backend.id)  # the only service
    assert flow.l4 == {TCP: PathL4.TCP, UDP: PathL4.UDP}[golden.proto]
    assert (flow.state, flow.fin) == (FlowState.ESTABLISHED, 0)
    assert (flow.snat_port, flow.mode, flow.spilled) == (golden.snat_port, int(not golden.local), False)
    assert flow.last_seen == seen
    assert flow.backend_generation == 1


def test_a_reader_counts_flows_that_live(world: World, fam: Family) -> None:
    """The one whose both sides have sent FIN is left out; the backend of the other one is counted."""
    family = ModelFamily(fam.version)
    backend = world.backend(fam, fam.remote(1), BACKEND_PORT)
    service = world.service(fam, fam.vip, VIP_PORT, backends=[backend])
    open_one, closed = Caller(world, service, hook=XDP), Caller(world, service, hook=XDP, port=CLIENT_PORT + 1)
    for caller in (open_one, closed):
        caller.establish()
    assert flow_reader.count(world.maps, family) == {backend.id: 2}
    closed.send("FA")
    closed.answer("FA")
    assert flow_reader.count(world.maps, family) == {backend.id: 1}
    states = sorted(flow.state for piece in flow_reader.flows(world.maps, family) for flow in piece)
    assert states == [FlowState.ESTABLISHED, FlowState.CLOSING]


def test_flow_goes_on(world: World, golden: Golden, hook: str) -> None:
    """Requests and replies are translated as before, and no second entry or slot is made."""
    left = Left(world, golden, hook)
    for _ in range(2):
        left.forwards()
        left.replies()
    flow = table.only(world, left.fam)
    assert (flow.position, flow.state, flow.snat_port) == (golden.position, table.EST, golden.snat_port)
    assert table.held_slots(world, left.fam) == (0 if golden.local else 1)


def test_reply_comes_first(world: World, golden: Golden, hook: str) -> None:
    """The backend may speak first after the upgrade."""
    left = Left(world, golden, hook)
    left.replies()
    left.forwards()


def test_connection_closes(world: World, fam: Family, hook: str) -> None:
    """FIN of both sides closes an old connection."""
    for golden in GOLDEN:
        if golden.version == fam.version and golden.proto == TCP:
            world.reset()
            left = Left(world, golden, hook)
            world.run(hook, left.request("FA"))
            if golden.local:
                expect.at_pod(world, expect.local_reply(fam, TCP, left.backend, fam.client, CLIENT_PORT, "FA"))
            else:
                world.run(hook, expect.remote_reply(fam, TCP, left.backend, golden.snat_port, "FA"), world.net.lb1)
            assert table.only(world, fam).state == table.CLOSING


def test_sweeper_keeps_what_lives_and_frees_what_has_expired(world: World, golden: Golden) -> None:
    """The time-out is that of the flow's protocol, and an entry takes its SNAT slot with it."""
    limit = ticks(DEFAULTS.timeout_tcp_s if golden.proto == TCP else DEFAULTS.timeout_udp_s)
    left = Left(world, golden, age=limit - 60)  # a minute of real time does not matter
    assert sweep(world, left.fam) == 1
    table.age(world, left.fam, 62)
    assert sweep(world, left.fam) == 0
    assert not table.flows(world, left.fam)
    assert table.held_slots(world, left.fam) == 0


def test_the_next_hop_of_a_port(world: World, fam: Family, hook: str) -> None:
    """Learned by a reply it stands in twelve bits of the slot, and the replies that follow go there; so with the one that comes after it."""
    backend = world.backend(fam, fam.remote(1), BACKEND_PORT)
    talk = Caller(world, world.service(fam, fam.vip, VIP_PORT, backends=[backend]), hook=hook)
    talk.establish()
    (slot,) = table.held_slot_indexes(world, fam)
    for index in (0xAAB, 0x554):
        world.clear("lb_nexthop")  # the one before is retired
        world.nexthops = {(0, str(n)): n for n in range(1, index - 1)}
        world.nexthop(world.net.lb1, craft.BACKEND_MAC, craft.NODE2_MAC)  # the number before it is that of another one
        assert world.nexthop(world.net.lb0, craft.ROUTER_MAC, craft.NODE_MAC) == index
        for _ in range(3):
            frame = expect.remote_reply(fam, TCP, backend, talk.source[1], "A")
            expect.replied(world.run(hook, frame, world.net.lb1), frame, talk.service, *talk.endpoint)
            at = slot * SLOT[fam.version] + SLOT_META[fam.version]
            with world.maps.window(f"lb{fam.version}_snat", at, 8) as view:
                meta = int.from_bytes(view, "little")
            assert (meta >> 16 & 0xFFF, meta >> 28 & 0xFFFF, meta >> 44) == (index, talk.service.id, backend.id)


def test_no_snat_port_reads_as_a_way_of_forwarding(world: World, fam: Family) -> None:
    """The lowest port that can be configured has a bit in the byte that distinguishes a port from a forwarding mode."""
    assert MIN_SNAT_PORT >> 8 and not (MIN_SNAT_PORT - 1) >> 8


def _read(world: World, name: str, index: int, size: int) -> bytes:
    with world.maps.window(name, index * size, size) as view:
        return bytes(view)


def _now(world: World) -> int:
    """Return the tick of the programs' clock, read from a flow that is made for it."""
    fam = FAMILIES[4]
    helper = world.backend(fam, fam.remote(9), 9, UDP)
    world.service(fam, fam.vip2, 9, UDP, [helper])
    world.run(XDP, craft.frame(craft.segment(fam, UDP, fam.client2, 9, fam.vip2, 9)))
    seen = table.only(world, fam).seen
    world.forget_flows()
    return seen
