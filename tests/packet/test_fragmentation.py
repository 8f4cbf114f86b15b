"""Datagrams without DF that are larger than their way: tc sends them in fragments, XDP leaves them to tc, the stack cuts for pods."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from scapy.layers.inet import IP, IPOption_NOP

from lbagent.maps.layout import DeviceFlag
from lbagent.maps.reasons import Reason
from tests.packet import craft, expect
from tests.packet.craft import BACKEND_MAC, NODE2_MAC, Family
from tests.packet.test_fragments import _frame, pieces
from tests.packet.test_handover import LOST_CLIENT
from tests.packet.world import TC_INGRESS, TCP, UDP, XDP, BackendRow, Outcome, World

V4 = craft.V4
MTU = 1400
PROTOCOLS = pytest.mark.parametrize("proto", [TCP, UDP])


@contextmanager
def sent_by(world: World, device: str) -> Iterator[list[bytes]]:
    """Collect what the other end of a device receives in the block."""
    got: list[bytes] = []
    with world.net.inside(), socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3)) as raw:
        raw.bind((device.replace("lb", "peer"), 0))
        raw.settimeout(0.2)
        yield got
        try:
            while True:
                got.append(raw.recv(65535))
        except TimeoutError:
            return


def reassembled(fragments: list[bytes], mtu: int) -> bytes:
    """Return the datagram that the fragments are of: as one frame with the flags of a whole one."""
    heads = [craft.decode(fragment)[IP] for fragment in fragments]
    data, wanted = b"", 0
    for fragment, head in zip(fragments, heads, strict=True):
        assert head.len <= mtu
        assert head.frag * 8 == wanted
        assert head.len == len(fragment) - 14
        assert craft.recomputed(craft.decode(fragment)[IP].copy())[10:12] == fragment[24:26], "header checksum"
        data, wanted = data + fragment[34:], wanted + head.len - 20
    assert [head.flags.MF for head in heads] == [True] * (len(heads) - 1) + [False]
    assert {(head.id, head.ttl, head.src, head.dst) for head in heads} == {
        (heads[0].id, heads[0].ttl, heads[0].src, heads[0].dst)
    }
    whole = IP(fragments[0][14:34])
    whole.len, whole.flags, whole.chksum = 20 + len(data), 0, None
    return fragments[0][:14] + bytes(whole)[:20] + data


def large(proto: int, size: int, sport: int = 40000, *, vip: str = V4.vip) -> bytes:
    """Return a request of `size` bytes without DF."""
    header = 20 + (20 if proto == TCP else 8)
    load = bytes(n * 7 & 0xFF for n in range(size - header))
    return craft.frame(craft.segment(V4, proto, V4.client, sport, vip, 80, "PA", load=load, id=4711))


def run_cut(world: World, frame: bytes, device: str, came_by: int = 0) -> tuple[Outcome, list[bytes]]:
    """Run a frame at tc_ingress; return the outcome and everything that was sent by `device`, the last fragment too."""
    with sent_by(world, device) as got:
        out = world.run(TC_INGRESS, frame, came_by)
    here = [
        sent for sent in got if sent[22] == out.packet[22]
    ]  # not what the namespace's stack sends on: it has another TTL
    return out, [*here, out.packet]


@PROTOCOLS
@pytest.mark.parametrize("size", [1401, 1404, 1500, 2900, 3300])
def test_a_large_request_leaves_in_fragments(world: World, proto: int, size: int) -> None:
    """Two to three fragments that are the translated datagram, bit for bit, for new flows and for known ones."""
    backend = world.backend(V4, V4.remote(1), 8080, proto, mtu=MTU)
    world.service(V4, V4.vip, 80, proto, [backend])
    for _ in range(2):
        frame = large(proto, size)
        out, fragments = run_cut(world, frame, "lb1")
        assert out.forwarded, out
        assert len(fragments) == -(-(size - 20) // 1376)
        whole = reassembled(fragments, MTU)
        port = expect.source(whole)[1]
        wanted = expect.translated(
            frame, src=V4.node2, sport=port, dst=backend.address, dport=8080, hop=1, smac=NODE2_MAC, dmac=BACKEND_MAC
        )
        assert whole == wanted, expect.difference(whole, wanted)


def test_fragments_are_cut_further(world: World) -> None:
    """What comes in fragments that are still too large: each is cut, and all of them are the datagram."""
    backend = world.backend(V4, V4.remote(1), 53, UDP, mtu=620)
    world.service(V4, V4.vip, 53, UDP, [backend])
    sent: list[bytes] = []
    for piece in pieces(V4, V4.client, 40000, V4.vip, 53):
        out, fragments = run_cut(world, _frame(piece), "lb1")
        assert out.forwarded
        sent += fragments
    assert len(sent) == 4  # 1,192 and 864 bytes of data, at most 600 each
    port = craft.decode(sent[0])["UDP"].sport
    first, second = pieces(V4, V4.node2, port, backend.address, 53, ttl=63)
    whole = reassembled(sent, 620)
    assert whole[34:] == first[20:] + second[20:]


def test_xdp_leaves_it_to_tc(world: World) -> None:
    """XDP can send a frame once only: untouched, to the tc program behind it."""
    world.service(V4, V4.vip, 80, TCP, [world.backend(V4, V4.remote(1), 8080, mtu=MTU)])
    frame = large(TCP, 1401)
    with sent_by(world, "lb1") as got:
        out = expect.handed_over(world, frame, reason=Reason.PASS_MTU)
    assert out.forwarded
    whole = reassembled([sent for sent in [*got, out.packet] if sent[22] == out.packet[22]], MTU)
    assert whole[54:] == frame[54:]


@pytest.mark.parametrize("vlans", [(5,), (5, 6)], ids=["tagged", "double"])
def test_xdp_leaves_a_tagged_one_to_tc_as_well(world: World, vlans: tuple[int, ...]) -> None:
    """Without DF it is not answered, whichever parser has read it; with DF it is."""
    world.service(V4, V4.vip, 80, TCP, [world.backend(V4, V4.remote(1), 8080, mtu=MTU)])
    plain = large(TCP, 1401)
    for df in (False, True):
        packet = craft.decode(plain)[IP]
        packet.flags = "DF" if df else ""
        out = world.run(XDP, craft.frame(IP(craft.recomputed(packet)), vlans=vlans))
        assert out.counted == {Reason.ANSWER_TOO_BIG if df else Reason.PASS_MTU: 1}


@PROTOCOLS
def test_for_a_pod_the_stack_cuts(world: World, hook: str, proto: int) -> None:
    """A local backend's request is translated and handed up whatever its size; it still comes from the client."""
    backend = world.backend(V4, V4.local(1), 8080, proto, local=True, mtu=MTU)
    world.service(V4, V4.vip, 80, proto, [backend])
    for _ in range(2):
        frame = large(proto, 1500)
        expect.handed_up_to(world.run(hook, frame), frame, backend)


def reply_of(world: World, vip: str, proto: int, backend: BackendRow, client: str = V4.client) -> bytes:
    """Open a flow to the VIP and return a large answer to it."""
    out = world.run(TC_INGRESS, craft.frame(craft.segment(V4, proto, client, 40000, vip, 80)))
    return expect.remote_reply(V4, proto, backend, expect.source(out)[1], "A", load=bytes(1450), id=99)


@PROTOCOLS
@pytest.mark.parametrize("vip", [V4.vip, V4.node], ids=["vip", "node_port"])
def test_a_large_reply_leaves_in_fragments(world: World, proto: int, vip: str) -> None:
    """Also from the node's own address, from which the stack would take no packet that came from outside."""
    world.device(world.net.lb0, DeviceFlag.XDP_SEND, craft.NODE_MAC, mtu=MTU)
    backend = world.backend(V4, V4.remote(1), 8080, proto)
    service = world.service(V4, vip, 80, proto, [backend])
    frame = reply_of(world, vip, proto, backend)
    out, fragments = run_cut(world, frame, "lb0", world.net.lb1)
    assert len(fragments) == 2
    whole = reassembled(fragments, MTU)
    expect.replied(Outcome(TC_INGRESS, out.verdict, whole), frame, service, V4.client, 40000)


def test_a_large_reply_at_xdp(world: World) -> None:
    """From a VIP it goes up translated, and the stack cuts it; from the node's own address it is left to tc."""
    world.device(world.net.lb0, DeviceFlag.XDP_SEND, craft.NODE_MAC, mtu=MTU)
    for vip in (V4.vip, V4.node):
        backend = world.backend(V4, V4.remote(1), 8080)
        service = world.service(V4, vip, 80, TCP, [backend])
        frame = reply_of(world, vip, TCP, backend)
        out = world.run(XDP, frame, world.net.lb1)
        if vip == V4.vip:
            expect.replied_in_place(out, expect.translated(frame, dst=V4.client, dport=40000), service)
        else:
            expect.untouched(out, frame)
            assert (out.counted, bool(out.metadata)) == ({Reason.PASS_MTU: 1}, True)


@PROTOCOLS
def test_what_cannot_be_cut_is_answered(world: World, proto: int) -> None:
    """Many segments in one frame, and a header with options: fragmentation needed, with the MTU; nothing is sent on."""
    world.service(V4, V4.vip, 80, proto, [world.backend(V4, V4.remote(1), 8080, proto, mtu=MTU)])
    options = craft.decode(large(proto, 1450))
    options[IP].options = [IPOption_NOP()] * 4
    del options[IP].ihl, options[IP].len
    for frame, gso_size in ((large(proto, 3000), 1460), (craft.recomputed(options), 0)):
        out = world.run(TC_INGRESS, frame, gso_size=gso_size)
        assert out.counted == {Reason.ANSWER_TOO_BIG: 1}, out
        seen = expect.parsed(out)
        assert (seen.icmp, seen.mtu) == ((3, 4), MTU)


@PROTOCOLS
@pytest.mark.parametrize("vip", [V4.vip, V4.node], ids=["vip", "node_port"])
def test_a_reply_that_cannot_be_cut(world: World, proto: int, vip: str) -> None:
    """A header with options: from a VIP it goes up translated, from the node's own address the backend gets an error with the MTU."""
    world.device(world.net.lb0, DeviceFlag.XDP_SEND, craft.NODE_MAC, mtu=MTU)
    backend = world.backend(V4, V4.remote(1), 8080, proto)
    service = world.service(V4, vip, 80, proto, [backend])
    packet = craft.decode(reply_of(world, vip, proto, backend))
    packet[IP].options = [IPOption_NOP()] * 4
    del packet[IP].ihl, packet[IP].len
    frame = craft.recomputed(packet)
    out = world.run(TC_INGRESS, frame, world.net.lb1)
    if vip == V4.vip:
        expect.replied_in_place(out, expect.translated(frame, dst=V4.client, dport=40000), service)
    else:
        assert out.counted == {Reason.ANSWER_TOO_BIG: 1}
        seen = expect.parsed(out)
        assert (seen.icmp, seen.mtu) == ((3, 4), MTU)


@pytest.mark.parametrize("vip", [V4.vip, V4.node], ids=["vip", "node_port"])
def test_a_large_reply_to_a_client_without_neighbour(world: World, vip: str) -> None:
    """Fragments have no MAC address to go to: as what cannot be cut."""
    client = LOST_CLIENT[4]
    world.device(world.net.lb0, DeviceFlag.XDP_SEND, craft.NODE_MAC, mtu=MTU)
    backend = world.backend(V4, V4.remote(1), 8080)
    service = world.service(V4, vip, 80, TCP, [backend])
    frame = reply_of(world, vip, TCP, backend, client)
    out = world.run(TC_INGRESS, frame, world.net.lb1)
    if vip == V4.vip:
        expect.replied_in_place(out, expect.translated(frame, dst=client, dport=40000), service)
    else:
        assert out.counted == {Reason.ANSWER_TOO_BIG: 1}


@pytest.mark.parametrize(("options", "fits"), [(0, True), (12, False)], ids=["plain", "timestamps"])
def test_segments_are_measured_with_their_options(world: World, fam: Family, *, options: int, fits: bool) -> None:
    """1,440 (IPv6: 1,420) bytes a segment and 20 of header fit a way of 1,492; with timestamps each has 12 bytes more."""
    size = 1452 if fam.version == 4 else 1432  # 1,492 with plain headers
    backend = world.backend(fam, fam.remote(1), 8080, mtu=1492)
    world.service(fam, fam.vip, 80, TCP, [backend])
    world.run(TC_INGRESS, craft.frame(craft.tcp(fam, fam.client, 40000, fam.vip, 80)))
    words = [("NOP", None), ("NOP", None), ("Timestamp", (1, 2))] if options else []
    for vlans in ((), (5,)):
        packet = craft.tcp(fam, fam.client, 40000, fam.vip, 80, "A", load=bytes(2 * size), options=words)
        if fam.version == 4:
            packet.flags = "DF"
        out = world.run(TC_INGRESS, craft.frame(packet, vlans=vlans), gso_size=size)
        assert (out.counted[Reason.FWD_ESTABLISHED], out.counted[Reason.ANSWER_TOO_BIG]) == (fits, not fits)
