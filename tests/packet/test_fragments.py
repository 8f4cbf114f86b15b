"""Fragments: the first one's ports are remembered, later ones follow it."""

from __future__ import annotations

import pytest
from scapy.layers.inet import UDP as UdpLayer
from scapy.layers.inet6 import IPv6ExtHdrFragment
from scapy.packet import Raw

from lbagent.maps import prefilter
from lbagent.maps.reasons import Reason
from tests.packet import craft, expect, table
from tests.packet.craft import BACKEND_MAC, LOCAL_MAC, NODE2_MAC, POD_MAC, Family
from tests.packet.world import TC_INGRESS, TCP, UDP, BackendRow, Outcome, World

SIZE = 1192  # bytes of datagram in the first fragment: an odd number of eights


def datagram(fam: Family, src: str, sport: int, dst: str, dport: int, load: bytes) -> bytes:
    """Return UDP header and payload with the checksum over the whole datagram."""
    return bytes(craft.udp(fam, src, sport, dst, dport, load))[20 if fam.version == 4 else 40 :]


def pieces(
    fam: Family, src: str, sport: int, dst: str, dport: int, *, ident: int = 77, ttl: int = 64, size: int = SIZE
) -> list[bytes]:
    """Return an UDP datagram in two IP fragments, the first one with `size` bytes of it."""
    whole = datagram(fam, src, sport, dst, dport, bytes(range(256)) * 8)
    if fam.version == 4:
        heads = [
            fam.ip(src, dst, ttl, id=ident, flags="MF", proto=17),
            fam.ip(src, dst, ttl, id=ident, frag=size // 8, proto=17),
        ]
    else:
        heads = [
            fam.ip(src, dst, ttl) / IPv6ExtHdrFragment(id=ident, m=1, offset=0, nh=17),
            fam.ip(src, dst, ttl) / IPv6ExtHdrFragment(id=ident, m=0, offset=size // 8, nh=17),
        ]
    return [bytes(heads[0] / Raw(whole[:size])), bytes(heads[1] / Raw(whole[size:]))]


def run_all(world: World, hook: str, packets: list[bytes], **macs: str) -> list[Outcome]:
    """Run fragments in order."""
    device = {NODE2_MAC: world.net.lb1, POD_MAC: world.net.pod0}.get(macs.get("dst", ""), 0)
    return [world.run(hook, _frame(packet, **macs), device) for packet in packets]


def _frame(packet: bytes, src: str = craft.ROUTER_MAC, dst: str = craft.NODE_MAC) -> bytes:
    kind = b"\x08\x00" if packet[0] >> 4 == 4 else b"\x86\xdd"
    return bytes.fromhex((dst + src).replace(":", "")) + kind + packet


def service(world: World, fam: Family, *, local: bool) -> BackendRow:
    """Enter an UDP service with one backend."""
    backend = world.backend(fam, fam.local(1) if local else fam.remote(1), 53, UDP, local=local)
    world.service(fam, fam.vip, 53, UDP, [backend])
    return backend


def test_both_fragments_reach_the_remote_backend(world: World, fam: Family, hook: str) -> None:
    """What comes out is the datagram from the SNAT address and port, fragmented as before, checksum right."""
    backend = service(world, fam, local=False)
    outs = run_all(world, hook, pieces(fam, fam.client, 40000, fam.vip, 53))
    assert [out.forwarded for out in outs] == [True, True]
    first = craft.decode(outs[0].packet)
    port = first[UdpLayer].sport
    wanted = pieces(fam, fam.node2, port, backend.address, 53, ttl=63)
    assert [out.packet for out in outs] == [_frame(packet, NODE2_MAC, BACKEND_MAC) for packet in wanted]
    assert outs[1].counted[Reason.FWD_FRAGMENT] == 1


def test_both_fragments_reach_the_local_backend(world: World, fam: Family, hook: str) -> None:
    """The same without SNAT."""
    backend = service(world, fam, local=True)
    outs = run_all(world, hook, pieces(fam, fam.client, 40000, fam.vip, 53))
    assert [out.passed for out in outs] == [True, True]
    assert [out.packet[14:] for out in outs] == pieces(fam, fam.client, 40000, backend.address, 53)


def test_fragmented_reply_of_a_remote_backend(world: World, fam: Family, hook: str) -> None:
    """A big answer comes back in fragments; the client gets all of them from the VIP."""
    backend = service(world, fam, local=False)
    out = world.run(hook, craft.frame(craft.udp(fam, fam.client, 40000, fam.vip, 53)))
    port = expect.source(out)[1]
    outs = run_all(world, hook, pieces(fam, backend.address, 53, fam.node2, port), src=BACKEND_MAC, dst=NODE2_MAC)
    assert [out.forwarded for out in outs] == [True, True]
    wanted = pieces(fam, fam.vip, 53, fam.client, 40000, ttl=63)
    assert [out.packet for out in outs] == [_frame(packet, craft.NODE_MAC, craft.ROUTER_MAC) for packet in wanted]


def test_fragmented_reply_of_a_local_backend(world: World, fam: Family) -> None:
    """The same from a pod of this node."""
    backend = service(world, fam, local=True)
    world.run(TC_INGRESS, craft.frame(craft.udp(fam, fam.client, 40000, fam.vip, 53)))
    packets = pieces(fam, backend.address, 53, fam.client, 40000)
    outs = run_all(world, TC_INGRESS, packets, src=LOCAL_MAC, dst=POD_MAC)
    assert [out.forwarded for out in outs] == [True, True]
    assert [out.packet[14:] for out in outs] == pieces(fam, fam.vip, 53, fam.client, 40000, ttl=63)


def test_later_fragment_of_an_unknown_datagram(world: World, fam: Family, hook: str) -> None:
    """A later fragment without its first one has no ports, so no flow is found: it is never forwarded."""
    service(world, fam, local=False)
    out = run_all(world, hook, pieces(fam, fam.client, 40000, fam.vip, 53)[1:])[0]
    assert not out.forwarded
    assert out.dropped or out.packet == _frame(pieces(fam, fam.client, 40000, fam.vip, 53)[1])


def test_datagrams_are_told_apart(world: World, fam: Family, hook: str) -> None:
    """Two clients, two identifications, fragments interleaved: each later one follows its own first one."""
    backends = [world.backend(fam, fam.remote(n), 53, UDP) for n in range(1, 9)]
    world.service(fam, fam.vip, 53, UDP, backends)
    flows = [(fam.client, 40000, 1), (fam.client, 40001, 2), (fam.client2, 40000, 1), (fam.client2, 40007, 3)]
    fragments = [pieces(fam, src, sport, fam.vip, 53, ident=ident) for src, sport, ident in flows]
    firsts = [run_all(world, hook, [pair[0]])[0] for pair in fragments]
    laters = [run_all(world, hook, [pair[1]])[0] for pair in fragments]
    for first, later in zip(firsts, laters, strict=True):
        assert expect.parsed(first).dst == expect.parsed(later).dst
        assert expect.parsed(first).src == expect.parsed(later).src


def test_datagrams_of_one_number_are_told_apart(world: World, fam: Family, hook: str) -> None:
    """One client and one identification: destination and protocol distinguish the datagrams (RFC 791 §3.2, RFC 8200 §4.5)."""
    backends = [world.backend(fam, fam.remote(n), 53, proto) for n, proto in ((1, UDP), (2, UDP), (3, TCP))]
    for vip, proto, backend in zip((fam.vip, fam.vip2, fam.vip), (UDP, UDP, TCP), backends, strict=True):
        world.service(fam, vip, 53, proto, [backend])
    pairs = [pieces(fam, fam.client, 40000, fam.vip, 53), pieces(fam, fam.client, 40001, fam.vip2, 53)]
    pairs.append([as_tcp(fam, packet) for packet in pieces(fam, fam.client, 40002, fam.vip, 53)])
    firsts = [run_all(world, hook, [pair[0]])[0] for pair in pairs]
    laters = [run_all(world, hook, [pair[1]])[0] for pair in pairs]
    for outs in (firsts, laters):
        assert [wire_destination(fam, out) for out in outs] == [backend.address for backend in backends]
    assert len(table.flows(world, fam)) == 3, "a later fragment is of the flow of its first one"


def as_tcp(fam: Family, packet: bytes) -> bytes:
    """Return a fragment as one of TCP; its checksum is not looked at."""
    changed = bytearray(packet)
    changed[9 if fam.version == 4 else 40] = TCP
    header = 20 if fam.version == 4 else 48
    changed[header + 12 : header + 14] = 0x50, 0x10  # five words, ACK
    return bytes(changed)


def wire_destination(fam: Family, out: Outcome) -> str:
    """Return where a fragment went."""
    assert out.forwarded, out
    at = 14 + (16 if fam.version == 4 else 24)
    return fam.text(out.packet[at : at + (4 if fam.version == 4 else 16)])


def test_ipv6_atomic_fragment(world: World, hook: str) -> None:
    """A fragment header on a whole packet (offset 0, no more) is just another extension header. Source: RFC 6946."""
    fam = craft.V6
    backend = service(world, fam, local=False)
    packet = (
        fam.ip(fam.client, fam.vip)
        / IPv6ExtHdrFragment(id=5, m=0, offset=0)
        / UdpLayer(sport=40000, dport=53)
        / Raw(b"q")
    )
    frame = craft.frame(packet)
    expect.forwarded_to(world.run(hook, frame), frame, backend)


def test_tiny_first_fragment(world: World, fam: Family, hook: str) -> None:
    """A first fragment that does not even hold the ports is not forwarded. Source: RFC 1858, RFC 7112."""
    service(world, fam, local=False)
    world.service(fam, fam.vip, 80, TCP, [world.backend(fam, fam.remote(2), 8080)])
    if fam.version == 4:
        packet = bytes(fam.ip(fam.client, fam.vip, id=3, flags="MF", proto=17) / Raw(b"\x9c\x40\x00\x35"))
    else:
        packet = bytes(
            fam.ip(fam.client, fam.vip) / IPv6ExtHdrFragment(id=3, m=1, offset=0, nh=17) / Raw(b"\x9c\x40\x00\x35")
        )
    out = run_all(world, hook, [packet])[0]
    assert not out.forwarded
    assert out.dropped or out.packet == _frame(packet)


# --- what is not ours ---

INVERSE4 = pow(0x9E3779B1, -1, 1 << 32)  # of the filter's multiplications: maps/prefilter.py
INVERSE6 = pow(0xBF58476D1CE4E5B9, -1, 1 << 64)


def stranger(fam: Family, address: str) -> str:
    """Return another address at the position that one has in the prefilter."""
    raw = fam.packed(address)
    wanted = prefilter.filter_position(raw)
    if fam.version == 4:
        found = ((wanted << 12 | low) * INVERSE4 & 0xFFFFFFFF for low in range(1 << 12))
        candidates = [word.to_bytes(4, "little") for word in found]
    else:
        high = int.from_bytes(raw[:8], "little") * 0x9E3779B97F4A7C15 & (1 << 64) - 1
        high ^= high >> 32
        candidates = [
            raw[:8] + (((wanted << 44 | n) * INVERSE6 & (1 << 64) - 1) ^ high).to_bytes(8, "little") for n in (1, 2)
        ]
    chosen = next(
        each for each in candidates if each != raw and (fam.version == 6 or (1 <= each[0] < 224 and each[0] != 127))
    )
    assert prefilter.filter_position(chosen) == wanted
    return fam.text(chosen)


@pytest.mark.parametrize("cluster_ip", [False, True])
def test_later_fragment_of_somebody_else(world: World, fam: Family, hook: str, *, cluster_ip: bool) -> None:
    """An address that shares its bits with a VIP: every piece passes untouched, whatever comes first."""
    service(world, fam, local=False)
    if cluster_ip:
        world.wildcard(fam, fam.vip)
    for packet in reversed(pieces(fam, fam.client, 40000, stranger(fam, fam.vip), 53)):
        out = run_all(world, hook, [packet])[0]
        expect.untouched(out, _frame(packet))
        assert out.counted == {Reason.PASS_NOT_SERVICE: 1}


def test_later_fragment_to_a_cluster_ip(world: World, fam: Family, hook: str) -> None:
    """No other host has a ClusterIP: without its first fragment a later one is useless."""
    service(world, fam, local=False)
    world.wildcard(fam, fam.vip)
    out = run_all(world, hook, pieces(fam, fam.client, 40000, fam.vip, 53)[1:])[0]
    assert out.dropped
    assert out.counted == {Reason.DROP_FRAGMENT: 1}
