"""Fragments on less usual ways: behind tags, of the node's own datagrams, with a number that was used before, behind more headers."""

from __future__ import annotations

import pytest
from scapy.layers.inet import TCP as TcpLayer
from scapy.layers.inet import UDP as UdpLayer
from scapy.layers.inet import IPOption_NOP
from scapy.layers.inet6 import IPv6ExtHdrDestOpt, IPv6ExtHdrFragment
from scapy.packet import Raw

from lbagent.maps.reasons import Reason
from tests.packet import craft, expect, table
from tests.packet.craft import BACKEND_MAC, LOCAL_MAC, NODE2_MAC, NODE_MAC, POD_MAC, ROUTER_MAC, V6, Family
from tests.packet.test_fragments import SIZE, as_tcp, pieces, service
from tests.packet.world import TC_EGRESS, TCP, UDP, XDP, World

TAG = bytes.fromhex("81000005")


def framed(packet: bytes, *, src: str, dst: str, tags: int = 0) -> bytes:
    """Put an IP packet into a frame."""
    kind = b"\x08\x00" if packet[0] >> 4 == 4 else b"\x86\xdd"
    return bytes.fromhex((dst + src).replace(":", "")) + TAG * tags + kind + packet


@pytest.mark.parametrize("tags", [1, 2])
def test_tags_of_fragments_end_where_their_device_ends(world: World, fam: Family, tags: int) -> None:
    """Each fragment leaves by the other device without them."""
    backend = service(world, fam, local=False)
    sent = pieces(fam, fam.client, 40000, fam.vip, 53)
    outs = [world.run(XDP, framed(packet, src=ROUTER_MAC, dst=NODE_MAC, tags=tags)) for packet in sent]
    assert [out.forwarded for out in outs] == [True, True]
    port = int.from_bytes(outs[0].packet[14 + (20 if fam.version == 4 else 48) :][:2], "big")
    wanted = pieces(fam, fam.node2, port, backend.address, 53, ttl=63)
    assert [out.packet for out in outs] == [framed(packet, src=NODE2_MAC, dst=BACKEND_MAC) for packet in wanted]


def test_the_nodes_own_fragments_reach_a_pod(world: World, fam: Family) -> None:
    """They were about to leave, and all of them go to the pod's device instead, as what is whole does."""
    backend = service(world, fam, local=True)
    sent = pieces(fam, fam.node, 40000, fam.vip, 53)
    outs = [world.run(TC_EGRESS, framed(packet, src=NODE_MAC, dst=ROUTER_MAC), world.net.lb0) for packet in sent]
    assert [out.forwarded for out in outs] == [True, True]
    wanted = pieces(fam, fam.node, 40000, backend.address, 53)
    assert [out.packet for out in outs] == [framed(packet, src=POD_MAC, dst=LOCAL_MAC) for packet in wanted]


def test_the_least_first_fragment(world: World, fam: Family, hook: str) -> None:
    """Eight bytes, which are UDP's header: the second one begins with what follows it and has no ports (RFC 791 §3.2)."""
    backend = world.backend(fam, fam.local(1), 53, UDP, local=True, mtu=0)
    world.service(fam, fam.vip, 53, UDP, [backend])
    sent = pieces(fam, fam.client, 40000, fam.vip, 53, size=8)
    outs = [world.run(hook, framed(packet, src=ROUTER_MAC, dst=NODE_MAC)) for packet in sent]
    assert [out.passed for out in outs] == [True, True]
    assert [out.packet[14:] for out in outs] == pieces(fam, fam.client, 40000, fam.local(1), 53, size=8)


def test_what_left_last_says_nothing_of_what_comes_in(world: World, fam: Family, hook: str) -> None:
    """After a fragment that the node itself sent, those of a client go up to the pod as if there had been none."""
    service(world, fam, local=True)
    own = framed(pieces(fam, fam.node, 40000, fam.vip, 53)[0], src=NODE_MAC, dst=ROUTER_MAC)
    for packet in pieces(fam, fam.client, 40000, fam.vip, 53):
        assert world.run(TC_EGRESS, own, world.net.lb0).forwarded
        out = world.run(hook, framed(packet, src=ROUTER_MAC, dst=NODE_MAC))
        assert out.passed
        assert fam.text(out.packet[30:34] if fam.version == 4 else out.packet[38:54]) == fam.local(1)


def test_a_number_that_is_used_again(world: World, fam: Family, hook: str) -> None:
    """A datagram's identification comes again some day: its later fragment goes with its own first one (RFC 791 §3.2)."""
    backends = [world.backend(fam, fam.remote(n), 53, UDP) for n in range(1, 9)]
    world.service(fam, fam.vip, 53, UDP, backends)
    for sport in range(40000, 40010):
        sent = pieces(fam, fam.client, sport, fam.vip, 53)
        outs = [world.run(hook, framed(packet, src=ROUTER_MAC, dst=NODE_MAC)) for packet in sent]
        assert [out.forwarded for out in outs] == [True, True]
        assert len({expect.parsed(out).dst for out in outs}) == 1


def test_a_whole_datagram_has_no_later_fragments(world: World, fam: Family, hook: str) -> None:
    """It was not cut, though it has a number and more headers than most: what comes with that number is of another datagram."""
    service(world, fam, local=False)
    layer = UdpLayer(sport=40000, dport=53) / Raw(b"q")
    if fam.version == 4:
        whole = fam.ip(fam.client, fam.vip, id=77, options=[IPOption_NOP()] * 4) / layer
    else:
        whole = fam.ip(fam.client, fam.vip) / IPv6ExtHdrFragment(id=77, m=0, offset=0) / layer  # RFC 6946
    assert world.run(hook, craft.frame(whole)).forwarded
    later = framed(pieces(fam, fam.client, 40000, fam.vip, 53)[1], src=ROUTER_MAC, dst=NODE_MAC)
    out = world.run(hook, later)
    expect.untouched(out, later)
    assert out.counted == {Reason.PASS_NOT_SERVICE: 1}


def test_no_headers_are_read_in_the_middle_of_a_datagram(world: World, hook: str) -> None:
    """A later fragment has the number of the datagram's first header; its own bytes are no such header (RFC 8200 §4.5)."""
    service(world, V6, local=False)
    first = framed(pieces(V6, V6.client, 40000, V6.vip, 53)[0], src=ROUTER_MAC, dst=NODE_MAC)
    assert world.run(hook, first).forwarded
    looks = bytes((17, 0, 1, 4)) + bytes(60)  # like destination options in front of UDP
    later = V6.ip(V6.client, V6.vip) / IPv6ExtHdrFragment(id=77, m=0, offset=SIZE // 8, nh=60) / Raw(looks)
    frame = craft.frame(later)
    out = world.run(hook, frame)
    expect.untouched(out, frame)
    assert out.counted == {Reason.PASS_UNSUPPORTED: 1}


def test_a_later_fragment_has_no_flags(world: World, fam: Family, hook: str) -> None:
    """Of TCP: it neither ends its connection nor takes part in another one's end that was seen just before."""
    world.service(fam, fam.vip, 53, TCP, [world.backend(fam, fam.remote(1), 53)])
    first, later = (
        framed(as_tcp(fam, packet), src=ROUTER_MAC, dst=NODE_MAC)
        for packet in pieces(fam, fam.client, 40000, fam.vip, 53)
    )
    end = TcpLayer(sport=40001, dport=53, flags="FA", ack=1)
    more = fam.ip(fam.client, fam.vip, options=[IPOption_NOP()] * 4) if fam.version == 4 else None
    for frame in (first, craft.frame((more or fam.ip(fam.client, fam.vip) / IPv6ExtHdrDestOpt()) / end), later):
        assert world.run(hook, frame).forwarded
    assert [flow.fin for flow in table.flows(world, fam) if flow.port == 40000] == [0]


def test_later_fragment_to_a_cluster_ip_that_may_be_the_nodes(world: World, fam: Family, hook: str) -> None:
    """Where the filter cannot distinguish it from an address of the node, whose stack waits for first fragments, it passes."""
    service(world, fam, local=False)
    world.wildcard(fam, fam.vip)
    world.filter("snat", fam.packed(fam.vip))
    later = framed(pieces(fam, fam.client, 40000, fam.vip, 53)[1], src=ROUTER_MAC, dst=NODE_MAC)
    out = world.run(hook, later)
    expect.untouched(out, later)
    assert out.counted == {Reason.PASS_NOT_SERVICE: 1}
