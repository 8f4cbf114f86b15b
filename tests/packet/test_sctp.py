"""SCTP, packet by packet: ports and CRC32c, the states of an association's flow, what is refused, and what is answered."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator

import pytest
from scapy.layers.inet import IP, IPOption_NOP
from scapy.layers.inet6 import IPv6, IPv6ExtHdrDestOpt
from scapy.layers.sctp import (
    SCTP,
    SCTPChunkAbort,
    SCTPChunkData,
    SCTPChunkError,
    SCTPChunkInit,
    SCTPChunkParamHostname,
    SCTPChunkParamIPv4Addr,
    SCTPChunkParamIPv6Addr,
    SCTPChunkParamSupportedAddrTypes,
    SCTPChunkShutdownAck,
    SCTPChunkShutdownComplete,
)
from scapy.packet import Packet, Raw

from lbagent.bpf.load.program_settings import ProgramSettings
from lbagent.maps.reasons import Reason
from tests.packet import craft, expect, table
from tests.packet.caller import sweep
from tests.packet.corpus import pieces
from tests.packet.craft import BACKEND_MAC, BACKEND_TAG, CLIENT_TAG, NODE2_MAC, Family
from tests.packet.harness import open_world
from tests.packet.table import CLOSING, EST, NEW
from tests.packet.world import SCTP as PROTO
from tests.packet.world import TC_EGRESS, BackendRow, Outcome, ServiceRow, World

PORT = 40000
ABORT, SHUTDOWN_COMPLETE = 6, 14
REFLECTED = 1


class Association:
    """A service with one backend, and an association of one client with it."""

    def __init__(self, world: World, fam: Family, hook: str, *, local: bool = False, target_port: int = 8080) -> None:
        """Enter the service."""
        self.world, self.fam, self.hook, self.local = world, fam, hook, local
        address = fam.local(1) if local else fam.remote(1)
        self.backend: BackendRow = world.backend(fam, address, target_port, PROTO, local=local)
        self.service: ServiceRow = world.service(fam, fam.vip, 80, PROTO, [self.backend])
        self.snat = 0

    def frame(self, kind: str | Packet, **kw: object) -> bytes:
        """Return a packet of the client."""
        return craft.frame(craft.sctp(self.fam, self.fam.client, PORT, self.fam.vip, 80, kind, **kw))  # type: ignore[arg-type]

    def request(self, kind: str | Packet, **kw: object) -> Outcome:
        """Send a packet of the client to the frontend, and check what its backend gets."""
        frame = self.frame(kind, **kw)
        out = self.world.run(self.hook, frame)
        if self.local:
            expect.handed_up_to(out, frame, self.backend)
        else:
            port = expect.forwarded_to(out, frame, self.backend)
            assert self.snat in (0, port)
            self.snat = port
        return out

    def answer(self, kind: str | Packet, **kw: object) -> bytes:
        """Return a packet of the backend, as it comes to the node."""
        end = self.backend.address, self.backend.port
        if self.local:
            packet = craft.sctp(self.fam, *end, self.fam.client, PORT, kind, **kw)  # type: ignore[arg-type]
            return craft.frame(packet, src=craft.LOCAL_MAC, dst=craft.POD_MAC)
        packet = craft.sctp(self.fam, *end, self.fam.node2, self.snat, kind, **kw)  # type: ignore[arg-type]
        return craft.frame(packet, src=BACKEND_MAC, dst=NODE2_MAC)

    def reply(self, kind: str | Packet, **kw: object) -> Outcome:
        """Send a packet of the backend, and check what the client gets."""
        frame = self.answer(kind, **kw)
        if self.local:
            out = expect.at_pod(self.world, frame)
            wanted = expect.translated(frame, src=self.fam.vip, sport=80, hop=1, **expect.TO_CLIENT)
            assert out.packet == wanted, expect.difference(out.packet, wanted)
            return out
        out = self.world.run(self.hook, frame, self.world.net.lb1)
        expect.replied(out, frame, self.service, self.fam.client, PORT)
        return out

    def establish(self) -> None:
        """Go through the four packets of a handshake."""
        self.request("S")
        self.reply("SA")
        self.request("echo")
        self.reply("cookie-ack")

    @property
    def state(self) -> int:
        """The state of the only flow."""
        (flow,) = table.flows(self.world, self.fam)
        return flow.state


LOCAL = pytest.mark.parametrize("local", [False, True], ids=["snat", "local"])


@LOCAL
def test_an_association_from_its_first_packet_to_its_last(world: World, fam: Family, hook: str, local: bool) -> None:
    """Both sides get whole packets; the flow opens, is established and closes."""
    one = Association(world, fam, hook, local=local)
    out = one.request("S")
    assert out.counted == {Reason.FWD_LOCAL if local else Reason.FWD_NEW: 1}
    assert one.state == NEW
    assert one.reply("SA").counted == {Reason.FWD_REPLY: 1}
    assert one.state == NEW  # anyone can send an INIT with a forged source; its INIT ACK proves nothing
    one.request("echo")
    assert one.state == EST
    one.reply("cookie-ack")
    for load in (b"", b"1", b"12", b"123", b"x" * 900):
        out = one.request("A", load=load)
        assert out.counted == {Reason.FWD_LOCAL if local else Reason.FWD_ESTABLISHED: 1}
        assert one.reply("<A", load=load).counted == {Reason.FWD_REPLY: 1}
    assert one.state == EST
    one.request("complete")
    assert one.state == CLOSING


@LOCAL
@pytest.mark.parametrize("length", [*range(33), 63, 64, 127, 255, 256, 511, 777, 1023, 1024, 1400])
def test_any_length(world: World, fam: Family, hook: str, local: bool, length: int) -> None:
    """The CRC covers each byte: one of each power of two in the packet's length, and all around them."""
    one = Association(world, fam, hook, local=local)
    one.establish()
    one.request(_data(length), tag=BACKEND_TAG)
    one.reply(_data(length), tag=CLIENT_TAG)


def _data(length: int) -> Packet:
    return SCTPChunkData(data=(bytes(range(256)) * 6)[:length], beginning=1, ending=1, tsn=7)


@pytest.mark.parametrize("target_port", [80, 81, 0x5000, 65535])
@LOCAL
def test_any_port(world: World, fam: Family, hook: str, local: bool, target_port: int) -> None:
    """Also the port of the frontend: then a local backend's packets keep their checksum."""
    one = Association(world, fam, hook, local=local, target_port=target_port)
    one.establish()
    one.request("A")
    one.reply("<A")


@LOCAL
@pytest.mark.parametrize("kind", ["S", "A"])
def test_a_wrong_checksum_stays_wrong(world: World, fam: Family, hook: str, local: bool, kind: str) -> None:
    """By the same bits: its receiver drops it, as it would have done."""
    one = Association(world, fam, hook, local=local)
    if kind == "A":
        one.establish()
    good = one.frame(kind)
    at = 14 + (20 if fam.version == 4 else 40) + 8
    bad = bytearray(good)
    bad[at + 1] ^= 0x40
    after_good, after_bad = world.run(hook, good).packet, world.run(hook, bytes(bad)).packet
    assert len(after_good) == len(after_bad)
    differing = [(n, a ^ b) for n, (a, b) in enumerate(zip(after_good, after_bad, strict=True)) if a != b]
    assert differing == [(at + 1, 0x40)]


@LOCAL
@pytest.mark.parametrize("kind", ["S", "A"])
def test_no_checksum_stays_none(world: World, fam: Family, hook: str, local: bool, kind: str) -> None:
    """A field of 0 is completed by a device, or not wanted (RFC 9653)."""
    one = Association(world, fam, hook, local=local)
    if kind == "A":
        one.establish()
    frame = one.frame(kind, chksum=0)
    packet = craft.decode(world.run(hook, frame).packet)
    assert packet[SCTP].dport == 8080
    assert packet[SCTP].chksum == 0


@pytest.mark.parametrize("kind", ["A", "echo", "R", "complete", "SA", "cookie-ack"])
def test_what_is_neither_an_init_nor_of_a_known_flow(world: World, fam: Family, hook: str, kind: str) -> None:
    """It is dropped without an answer: an ABORT would end an association that another node may have."""
    one = Association(world, fam, hook)
    out = world.run(hook, one.frame(kind))
    assert out.dropped
    assert out.counted == {Reason.DROP_SCTP_UNKNOWN: 1}
    assert table.flows(world, fam) == []
    assert table.held_slots(world, fam) == 0


@pytest.mark.parametrize("side", ["client", "backend"])
@pytest.mark.parametrize("kind", ["R", "complete"])
def test_an_abort_closes_and_later_packets_show_whether_it_was_forged(
    world: World, fam: Family, hook: str, kind: str, side: str
) -> None:
    """ABORT and SHUTDOWN COMPLETE of either side; data of both sides after it: the association lives."""
    one = Association(world, fam, hook)
    one.establish()
    if side == "client":
        one.request(kind)
    else:
        one.reply("<R" if kind == "R" else kind, tag=CLIENT_TAG)
    assert one.state == CLOSING
    one.request("A")
    assert one.state == CLOSING
    one.reply("<A")
    assert one.state == EST


def test_a_backend_that_refuses_gives_the_port_back(world: World, fam: Family, hook: str) -> None:
    """Its ABORT to the INIT reaches the client, and the SNAT port is free."""
    one = Association(world, fam, hook)
    one.request("S")
    assert table.held_slots(world, fam) == 1
    one.reply("<R")
    assert table.held_slots(world, fam) == 0


def test_a_forged_cookie_establishes_nothing(world: World, fam: Family, hook: str) -> None:
    """The tag of the backend's INIT ACK is what a client must have received."""
    one = Association(world, fam, hook)
    one.request("S")
    one.reply("SA")
    one.request("echo", tag=BACKEND_TAG ^ 0x01000000)
    assert one.state == NEW
    one.request("echo")
    assert one.state == EST


def test_a_reply_of_an_association_establishes(world: World, fam: Family, hook: str) -> None:
    """Where this node has not seen the cookie: only an association sends data."""
    one = Association(world, fam, hook)
    one.request("S")
    one.reply("SA")
    one.reply("<A")
    assert one.state == EST


def test_an_init_again(world: World, fam: Family, hook: str) -> None:
    """The same flow, and on an established one nothing changes: the backend decides about a restart (RFC 9260 §5.2)."""
    one = Association(world, fam, hook)
    one.request("S")
    one.request("S")
    one.reply("SA")
    one.request("echo")
    one.request("S")
    assert one.state == EST


@pytest.fixture(scope="module")
def careful_world() -> Iterator[World]:
    """Load programs that leave what is older than they are to another proxy."""
    with open_world(ProgramSettings(new_flows="syn")) as made:
        yield made


def test_beside_another_proxy(careful_world: World, fam: Family, hook: str) -> None:
    """With --new-flows syn a packet that is no INIT passes, and an INIT opens a flow."""
    careful_world.reset()
    one = Association(careful_world, fam, hook)
    for kind in ("A", "echo", "R"):
        frame = one.frame(kind)
        out = careful_world.run(hook, frame)
        expect.untouched(out, frame)
        assert out.counted == {Reason.PASS_NEW_FLOW: 1}
    one.establish()
    assert one.state == EST


def test_an_established_association_lives_as_long_as_a_connection(world: World, fam: Family, hook: str) -> None:
    """Its flow is no victim, and expires by timeout-tcp: after that its packets are unknown."""
    one = Association(world, fam, hook)
    one.establish()
    for ticks, is_known in ((7_000, True), (8_200, False)):
        table.later(world, fam, ticks - ticks % table.SLOT_UNIT)
        sweep(world, fam)
        assert bool(table.flows(world, fam)) == is_known
        if is_known:
            one.request("A")
    assert world.run(hook, one.frame("A")).counted == {Reason.DROP_SCTP_UNKNOWN: 1}


# --- multi-homing ---


def init(*params: Packet) -> Packet:
    """Return an INIT with parameters."""
    return SCTPChunkInit(
        init_tag=CLIENT_TAG, a_rwnd=65536, n_out_streams=10, n_in_streams=10, init_tsn=1, params=list(params)
    )


def own(fam: Family) -> Packet:
    """Return the parameter with the client's own address."""
    return SCTPChunkParamIPv4Addr(addr=fam.client) if fam.version == 4 else SCTPChunkParamIPv6Addr(addr=fam.client)


def other(fam: Family) -> Packet:
    """Return one with another address."""
    return SCTPChunkParamIPv4Addr(addr=fam.client2) if fam.version == 4 else SCTPChunkParamIPv6Addr(addr=fam.client2)


KINDS = SCTPChunkParamSupportedAddrTypes(addr_type_list=["IPv4", "IPv6"])
LISTED: dict[str, Callable[[Family], list[Packet]]] = {
    "another": lambda fam: [other(fam)],
    "its own and another": lambda fam: [own(fam), other(fam)],
    "another after other parameters": lambda fam: [KINDS, KINDS, own(fam), KINDS, other(fam)],
    "one of the other family": lambda fam: [other(craft.FAMILIES[10 - fam.version])],
    "a host name": lambda _: [SCTPChunkParamHostname(hostname="client.example.org.")],
}


def abort_of(out: Outcome, frame: bytes, tag: int, *, flags: int = 0, kind: int = ABORT) -> None:
    """Assert that the sender of a frame gets an ABORT with this tag, byte for byte as scapy builds it."""
    assert out.forwarded, out
    asked = craft.decode(frame)
    ip = asked[IP] if IP in asked else asked[IPv6]
    layers = {ABORT: SCTPChunkAbort, SHUTDOWN_COMPLETE: SCTPChunkShutdownComplete}
    chunk = layers[kind](TCB=flags)
    fields = {"flags": "DF", "id": 0} if IP in asked else {}
    fam = craft.FAMILIES[4 if IP in asked else 6]
    answer = fam.ip(ip.dst, ip.src, **fields) / SCTP(sport=asked[SCTP].dport, dport=asked[SCTP].sport, tag=tag) / chunk
    wanted = craft.frame(answer, src=asked.dst, dst=asked.src)
    assert out.packet == wanted, expect.difference(out.packet, wanted)


@pytest.mark.parametrize("case", list(LISTED))
def test_multi_homing_is_refused(world: World, fam: Family, hook: str, case: str) -> None:
    """With the INIT's own tag; no flow and no port is left."""
    one = Association(world, fam, hook)
    frame = one.frame(init(*LISTED[case](fam)))
    out = world.run(hook, frame)
    abort_of(out, frame, CLIENT_TAG)
    assert out.counted == {Reason.REJECT_SCTP_MULTIHOMING: 1}
    assert table.flows(world, fam) == []
    assert table.held_slots(world, fam) == 0


def test_its_own_address_is_no_multi_homing(world: World, fam: Family, hook: str) -> None:
    one = Association(world, fam, hook)
    one.request(init(KINDS, own(fam), KINDS))
    one.reply("SA")


def test_multi_homing_of_no_service(world: World, fam: Family, hook: str) -> None:
    """What belongs to no frontend is not judged."""
    one = Association(world, fam, hook)
    frame = craft.frame(craft.sctp(fam, fam.client, PORT, fam.vip, 81, init(other(fam))))
    expect.untouched(world.run(hook, frame), frame)
    one.request("S")


def _patched(frame: bytes, at: int, value: bytes) -> bytes:
    return frame[:at] + value + frame[at + len(value) :]


@pytest.mark.parametrize("case", ["no tag", "short chunk", "long chunk", "endless parameter", "too many"])
def test_a_malformed_init(world: World, fam: Family, hook: str, case: str) -> None:
    """It is dropped: its tag is no tag to answer with."""
    one = Association(world, fam, hook)
    chunk = 14 + (20 if fam.version == 4 else 40) + 12
    if case == "too many":
        frame = one.frame(init(*[KINDS] * 30))
    else:
        frame = one.frame(init(KINDS, KINDS))
        at, value = {
            "no tag": (chunk + 4, bytes(4)),
            "short chunk": (chunk + 2, b"\0\x13"),
            "long chunk": (chunk + 2, b"\1\0"),
            "endless parameter": (chunk + 20 + 2, b"\0\0"),
        }[case]
        frame = _patched(frame, at, value)
    out = world.run(hook, frame)
    assert out.dropped
    assert out.counted == {Reason.DROP_MALFORMED: 1}
    assert table.flows(world, fam) == []


# --- answers ---


def test_no_backend(world: World, fam: Family, hook: str) -> None:
    """An ABORT with the INIT's own tag (RFC 9260 §8.4)."""
    world.service(fam, fam.vip, 80, PROTO)
    frame = craft.frame(craft.sctp(fam, fam.client, PORT, fam.vip, 80, "S"))
    out = world.run(hook, frame)
    abort_of(out, frame, CLIENT_TAG)
    assert out.counted == {Reason.REJECT_NO_BACKEND: 1}


@pytest.mark.parametrize("kind", ["S", "A", "R", "complete", "cookie-ack", "error", "shutdown ack"])
def test_a_port_of_a_cluster_ip_without_a_service(world: World, fam: Family, hook: str, kind: str) -> None:
    """As an SCTP stack answers what is out of the blue: never what ends an association."""
    world.service(fam, fam.vip, 80, PROTO)
    world.wildcard(fam, fam.vip)
    chunk: str | Packet = {"error": SCTPChunkError(), "shutdown ack": SCTPChunkShutdownAck()}.get(kind, kind)
    tag = None if isinstance(chunk, str) else BACKEND_TAG
    frame = craft.frame(craft.sctp(fam, fam.client, PORT, fam.vip, 99, chunk, tag=tag))
    out = world.run(hook, frame)
    if kind in ("S", "A", "shutdown ack"):
        last = SHUTDOWN_COMPLETE if kind == "shutdown ack" else ABORT
        abort_of(
            out, frame, CLIENT_TAG if kind == "S" else BACKEND_TAG, flags=0 if kind == "S" else REFLECTED, kind=last
        )
        assert out.counted == {Reason.REJECT_UNDEFINED_PORT: 1}
    else:
        assert out.dropped


@LOCAL
def test_a_backend_that_is_gone(world: World, fam: Family, hook: str, local: bool) -> None:
    """Its client gets an ABORT that it accepts: with the tag that it has itself sent."""
    one = Association(world, fam, hook, local=local)
    one.establish()
    world.remove_backend(one.backend)
    frame = one.frame("A")
    out = world.run(hook, frame)
    abort_of(out, frame, BACKEND_TAG, flags=REFLECTED)
    assert out.counted == {Reason.REJECT_BACKEND_GONE: 1}


# --- frames ---


def test_options_tags_and_extension_headers(world: World, fam: Family, hook: str) -> None:
    """What stands before the SCTP packet does not count."""
    one = Association(world, fam, hook)
    one.establish()
    if fam.version == 4:
        ip: Packet = fam.ip(fam.client, fam.vip, options=[IPOption_NOP()] * 4)
    else:
        ip = fam.ip(fam.client, fam.vip) / IPv6ExtHdrDestOpt()
    tag, inner = craft.chunk("A")
    frame = craft.frame(ip / SCTP(sport=PORT, dport=80, tag=tag) / inner)
    out = world.run(hook, frame)
    assert expect.forwarded_to(out, frame, one.backend) == one.snat


@pytest.mark.parametrize("short", [0, 3, 4, 11, 12, 15])
def test_without_a_whole_chunk_header(world: World, fam: Family, hook: str, short: int) -> None:
    """The stack decides."""
    Association(world, fam, hook)
    whole = bytes(craft.sctp(fam, fam.client, PORT, fam.vip, 80, "S"))
    head = 20 if fam.version == 4 else 40
    ip = fam.ip(fam.client, fam.vip, **{"proto" if fam.version == 4 else "nh": PROTO})
    frame = craft.frame(ip / Raw(whole[head : head + short])) + bytes(20)
    out = world.run(hook, frame)
    expect.untouched(out, frame)
    assert out.counted == {Reason.PASS_UNSUPPORTED: 1}


def test_fragments_pass(world: World, fam: Family, hook: str) -> None:
    """The first one has the checksum, and not the length of what it covers."""
    Association(world, fam, hook)
    packet = craft.sctp(fam, fam.client, PORT, fam.vip, 80, "A", load=b"y" * 400)
    for piece in pieces(fam, packet, 77):
        frame = craft.frame(piece)
        out = world.run(hook, frame)
        expect.untouched(out, frame)
        assert out.counted == {Reason.PASS_UNSUPPORTED: 1}


def test_too_large_for_the_path(world: World, fam: Family, hook: str) -> None:
    """Fragmentation needed, or packet too big, with the packet as it came."""
    backend = world.backend(fam, fam.remote(1), 8080, PROTO, mtu=1300)
    world.service(fam, fam.vip, 80, PROTO, [backend])
    small = craft.frame(craft.sctp(fam, fam.client, PORT, fam.vip, 80, "S"))
    port = expect.forwarded_to(world.run(hook, small), small, backend)
    fields = {"flags": "DF"} if fam.version == 4 else {}
    large = craft.frame(craft.sctp(fam, fam.client, PORT, fam.vip, 80, "A", load=b"z" * 1350, **fields))
    out = world.run(hook, large)
    assert out.counted == {Reason.ANSWER_TOO_BIG: 1}
    seen = expect.parsed(out)
    assert seen.mtu == 1300
    assert large[14:].startswith(out.packet[seen.l4 + 8 : seen.end])
    assert port


def test_an_error_about_an_association(world: World, fam: Family, hook: str) -> None:
    """The client reads about the ports and the tag that it has sent."""
    one = Association(world, fam, hook)
    one.establish()
    sent = one.frame("A")
    forwarded = world.run(hook, sent).packet[14:]
    cut = (20 if fam.version == 4 else 40) + 8
    error = craft.icmp_error(fam, fam.router2, fam.node2, fam.too_big(1320), forwarded[:cut])
    out = world.run(hook, craft.frame(error, src=BACKEND_MAC, dst=NODE2_MAC), world.net.lb1)
    assert out.forwarded
    assert out.counted == {Reason.FWD_ICMP: 1}
    seen = expect.parsed(out)
    quoted = out.packet[seen.l4 + 8 : seen.end]
    head = cut - 8
    assert quoted[head:] == struct.pack(">HHI", PORT, 80, BACKEND_TAG)
    assert seen.dst == fam.packed(fam.client)


def test_a_process_of_the_node(world: World, fam: Family) -> None:
    """tc_egress translates what the node itself sends."""
    backend = world.backend(fam, fam.remote(1), 8080, PROTO)
    world.service(fam, fam.vip, 80, PROTO, [backend])
    frame = craft.frame(craft.sctp(fam, fam.node, PORT, fam.vip, 80, "S"), src=craft.NODE_MAC, dst=craft.ROUTER_MAC)
    out = world.run(TC_EGRESS, frame, world.net.lb0)
    assert expect.destination(out) == backend.endpoint
