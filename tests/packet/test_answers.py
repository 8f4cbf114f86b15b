"""The program's own answers: RST, port unreachable, and packets without an answer."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from scapy.layers.inet import TCP as TcpLayer
from scapy.packet import Raw

from lbagent.bpf.load.program_settings import ProgramSettings
from lbagent.maps.reasons import Reason
from tests.packet import craft, expect, wire
from tests.packet.craft import NODE_MAC, ROUTER_MAC, Family
from tests.packet.harness import open_world
from tests.packet.world import (
    EXT_LOCAL,
    ROUTABLE,
    TC_EGRESS,
    TC_INGRESS,
    TCP,
    TYPE_LOAD_BALANCER,
    UDP,
    XDP,
    Outcome,
    World,
)

BACK = bytes.fromhex((ROUTER_MAC + NODE_MAC).replace(":", ""))


def empty_service(world: World, fam: Family, proto: int = TCP) -> None:
    """Enter a service without a backend."""
    world.service(fam, fam.vip, 80, proto)


def check_rst(out: Outcome, fam: Family, *, seq: int, ack: int, flags: str, vlans: int = 0) -> None:
    """Assert a RST from the VIP back to where the packet came from, with these numbers."""
    assert out.forwarded, out
    seen = expect.parsed(out)
    assert (seen.l2, seen.end, len(out.packet)) == (14 + 4 * vlans, len(out.packet), seen.l4 + 20)
    assert (expect.source(out), expect.destination(out)) == ((fam.vip, 80), (fam.client, 40000))
    assert out.packet[:12] == BACK
    segment = craft.decode(out.packet)[TcpLayer]
    assert (segment.seq, segment.ack, str(segment.flags), segment.window) == (seq, ack, flags, 0)
    assert craft.recomputed(craft.decode(out.packet)) == out.packet


# RFC 9293 §3.10.7.1: without ACK <SEQ=0><ACK=SEG.SEQ+SEG.LEN><CTL=RST,ACK>, with ACK <SEQ=SEG.ACK><CTL=RST>
@pytest.mark.parametrize(
    ("flags", "load", "seq", "ack", "answer"),
    [
        ("S", b"", 0, 1001, "RA"),
        ("S", b"fast open", 0, 1010, "RA"),
        ("", b"12345", 0, 1005, "RA"),
        ("F", b"12345", 0, 1006, "RA"),
        ("A", b"", 777, 0, "R"),
        ("PA", b"data", 777, 0, "R"),
        ("FA", b"", 777, 0, "R"),
        ("SA", b"", 777, 0, "R"),
    ],
)
@pytest.mark.parametrize("vlans", [(), (5,), (5, 6)], ids=["untagged", "tagged", "double"])
def test_rst_has_the_right_numbers(
    world: World,
    fam: Family,
    hook: str,
    flags: str,
    load: bytes,
    seq: int,
    ack: int,
    answer: str,
    vlans: tuple[int, ...],
) -> None:
    """A segment to a service without backends is refused as a closed port would."""
    empty_service(world, fam)
    packet = craft.tcp(fam, fam.client, 40000, fam.vip, 80, flags, seq=1000, ack=777, load=load)
    out = world.run(hook, craft.frame(packet, vlans=vlans))
    check_rst(out, fam, seq=seq, ack=ack, flags=answer, vlans=len(vlans))
    assert out.counted == {Reason.REJECT_NO_BACKEND: 1}


def test_rst_wraps_the_sequence_number(world: World, fam: Family, hook: str) -> None:
    """Sequence numbers count modulo 2^32."""
    empty_service(world, fam)
    packet = craft.tcp(fam, fam.client, 40000, fam.vip, 80, "S", seq=0xFFFFFFFF, load=b"ab")
    check_rst(world.run(hook, craft.frame(packet)), fam, seq=0, ack=2, flags="RA")


def test_rst_for_a_segment_with_options(world: World, fam: Family, hook: str) -> None:
    """TCP options and padding of the frame do not count as data."""
    empty_service(world, fam)
    options = [("MSS", 1460), ("SAckOK", b""), ("Timestamp", (1, 0)), ("NOP", None), ("WScale", 7)]
    frame = craft.frame(craft.tcp(fam, fam.client, 40000, fam.vip, 80, "S", seq=5, options=options)) + bytes(6)
    check_rst(world.run(hook, frame), fam, seq=0, ack=6, flags="RA")


def test_rst_for_a_packet_with_ip_options(world: World, hook: str) -> None:
    """IPv4 options are not sent back."""
    from scapy.layers.inet import IPOption_NOP

    fam = craft.V4
    empty_service(world, fam)
    packet = (
        fam.ip(fam.client, fam.vip, options=[IPOption_NOP()] * 12) / TcpLayer(sport=40000, dport=80, seq=9) / Raw(b"x")
    )
    check_rst(world.run(hook, craft.frame(packet)), fam, seq=0, ack=11, flags="RA")


def test_rst_for_a_packet_with_extension_headers(world: World, hook: str) -> None:
    """IPv6 extension headers are not sent back, and not counted as data."""
    from scapy.layers.inet6 import IPv6ExtHdrDestOpt, IPv6ExtHdrHopByHop

    fam = craft.V6
    empty_service(world, fam)
    packet = (
        fam.ip(fam.client, fam.vip)
        / IPv6ExtHdrHopByHop()
        / IPv6ExtHdrDestOpt()
        / TcpLayer(sport=40000, dport=80, seq=9)
    )
    check_rst(world.run(hook, craft.frame(packet)), fam, seq=0, ack=10, flags="RA")


@pytest.mark.parametrize("vlans", [(), (5,), (5, 6)], ids=["untagged", "tagged", "double"])
@pytest.mark.parametrize("size", [0, 1, 2, 3, 5, 8, 40, 500, 516, 517, 1200, 1400])
def test_port_unreachable(world: World, fam: Family, hook: str, size: int, vlans: tuple[int, ...]) -> None:
    """A datagram to a service without backends: unreachable from the VIP, quoting as much as the RFCs allow."""
    empty_service(world, fam, UDP)
    sent = craft.frame(craft.udp(fam, fam.client, 40000, fam.vip, 80, (b"quote me" * 180)[:size]), vlans=vlans)
    out = world.run(hook, sent)
    assert out.forwarded
    assert out.packet[:12] == BACK
    assert out.counted == {Reason.REJECT_NO_BACKEND: 1}
    seen = expect.parsed(out)
    l2 = 14 + 4 * len(vlans)
    assert seen.l2 == l2
    assert (fam.text(seen.src), fam.text(seen.dst)) == (fam.vip, fam.client)
    assert seen.icmp == ((3, 3) if fam.version == 4 else (1, 4))
    quoted, limit = out.packet[seen.l4 + 8 :], 576 if fam.version == 4 else 1280
    assert sent[l2:].startswith(quoted)
    assert len(out.packet) - l2 <= limit
    assert quoted == sent[l2:] or len(out.packet) - l2 > limit - 8
    assert craft.recomputed(craft.decode(out.packet)) == out.packet


def test_padding_is_not_quoted(world: World, fam: Family, hook: str) -> None:
    """Ethernet padding behind a short datagram is no part of it."""
    empty_service(world, fam, UDP)
    sent = craft.frame(craft.udp(fam, fam.client, 40000, fam.vip, 80, b"ab"))
    out = world.run(hook, sent + bytes(20))
    seen = expect.parsed(out)
    assert out.packet[seen.l4 + 8 :] == sent[14:]


@pytest.mark.parametrize(
    "source",
    ["0.0.0.0", "127.0.0.1", "224.0.0.1", "255.255.255.255", "::", "::1", "ff02::1"],
)
@pytest.mark.parametrize("proto", [TCP, UDP])
def test_source_that_cannot_be_answered(world: World, hook: str, source: str, proto: int) -> None:
    """Unspecified, loopback, multicast and broadcast senders get nothing. Source: RFC 1122 §3.2.2, RFC 4443 §2.4."""
    fam = craft.FAMILIES[6 if ":" in source else 4]
    empty_service(world, fam, proto)
    out = world.run(hook, craft.frame(craft.segment(fam, proto, source, 40000, fam.vip, 80)))
    assert not out.forwarded


def test_rst_is_not_answered(world: World, fam: Family, hook: str) -> None:
    """A RST never causes a RST."""
    empty_service(world, fam)
    for flags in ("R", "RA"):
        out = world.run(hook, craft.frame(craft.tcp(fam, fam.client, 40000, fam.vip, 80, flags)))
        assert out.dropped


def test_undefined_port_of_a_cluster_ip(world: World, fam: Family, hook: str) -> None:
    """The wildcard row of a ClusterIP rejects TCP and UDP to ports no service has; defined ones work."""
    backend = world.backend(fam, fam.remote(1), 8080)
    world.service(fam, fam.vip, 80, TCP, [backend], flags=0)
    world.wildcard(fam, fam.vip)
    sent = craft.frame(craft.tcp(fam, fam.client, 40000, fam.vip, 80))
    expect.forwarded_to(world.run(hook, sent), sent, backend)
    for proto in (TCP, UDP):
        out = world.run(hook, craft.frame(craft.segment(fam, proto, fam.client, 40000, fam.vip, 81)))
        assert out.forwarded
        assert fam.text(expect.parsed(out).src) == fam.vip
        assert out.counted == {Reason.REJECT_UNDEFINED_PORT: 1}


def test_local_policy_with_backends_elsewhere_drops(world: World, fam: Family, hook: str) -> None:
    """externalTrafficPolicy Local, none here but some on other nodes: silence, so that the client tries another node."""
    world.service(fam, fam.vip, 80, TCP, flags=TYPE_LOAD_BALANCER | ROUTABLE | EXT_LOCAL, elsewhere=True)
    out = world.run(hook, craft.frame(craft.tcp(fam, fam.client, 40000, fam.vip, 80)))
    assert out.dropped
    assert out.counted == {Reason.DROP_NO_LOCAL_BACKEND: 1}


def test_first_fragment_is_answered_and_later_ones_are_not(world: World, hook: str) -> None:
    """One error a datagram."""
    fam = craft.V4
    empty_service(world, fam, UDP)
    first = craft.frame(craft.udp(fam, fam.client, 40000, fam.vip, 80, b"x" * 64, flags="MF", id=9))
    later = craft.frame(fam.ip(fam.client, fam.vip, frag=9, id=9, proto=17) / Raw(b"y" * 64))
    assert world.run(hook, first).forwarded
    assert not world.run(hook, later).forwarded


# --- the rate ---


@pytest.fixture(scope="module")
def slow_world() -> Iterator[World]:
    """Load programs that may answer only five times a second and CPU."""
    with open_world(ProgramSettings(reject_rate=5)) as world:
        yield world


@pytest.mark.parametrize("proto", [TCP, UDP])
@pytest.mark.parametrize("hook", [XDP, TC_INGRESS])
def test_answers_are_limited(slow_world: World, fam: Family, hook: str, proto: int) -> None:
    """400 requests in a fraction of a second: a handful is answered, the rest is dropped and counted as such."""
    slow_world.reset()
    empty_service(slow_world, fam, proto)
    frames = [craft.frame(craft.segment(fam, proto, fam.client, 40000 + n, fam.vip, 80)) for n in range(400)]
    outs = [slow_world.run(hook, frame) for frame in frames]
    answered = [out for out in outs if out.forwarded]
    assert len(answered) < 100  # 5 a second: even a machine that takes ten seconds for this stays far below
    silent = [out for out in outs if not out.forwarded]
    assert all(out.dropped and out.counted == {Reason.DROP_NO_BACKEND: 1} for out in silent)


def test_nothing_is_answered_at_rate_zero() -> None:
    """`--reject-rate 0` turns answers off."""
    with open_world(ProgramSettings(reject_rate=0)) as world:
        for fam in (craft.V4, craft.V6):
            empty_service(world, fam)
            out = world.run(XDP, craft.frame(craft.tcp(fam, fam.client, 40000, fam.vip, 80)))
            assert out.dropped
            assert out.counted == {Reason.DROP_NO_BACKEND: 1}


def test_wire_reads_answers(world: World, fam: Family) -> None:
    """The quoted packet of an answer parses as the packet that was sent."""
    empty_service(world, fam, UDP)
    sent = craft.frame(craft.udp(fam, fam.client, 40000, fam.vip, 80))
    seen = expect.parsed(world.run(XDP, sent))
    original = wire.parse(sent)
    assert seen.quoted is not None
    assert original is not None
    assert (seen.quoted.src, seen.quoted.sport, seen.quoted.ttl) == (original.src, original.sport, original.ttl)


@pytest.mark.parametrize("proto", [TCP, UDP])
def test_node_as_a_client_is_answered(world: World, fam: Family, proto: int) -> None:
    """The answer to a packet that was leaving the node comes back to it: its own process gets the error at once."""
    world.service(fam, fam.vip, 80, proto)
    frame = craft.frame(craft.segment(fam, proto, fam.node, 40000, fam.vip, 80, "S"), src=NODE_MAC, dst=ROUTER_MAC)
    out = world.run(TC_EGRESS, frame, world.net.lb0)
    assert out.forwarded
    assert out.counted == {Reason.REJECT_NO_BACKEND: 1}
    seen = expect.parsed(out)
    assert (fam.text(seen.src), fam.text(seen.dst)) == (fam.vip, fam.node)
    assert out.packet[:12] == bytes.fromhex((NODE_MAC + ROUTER_MAC).replace(":", ""))
