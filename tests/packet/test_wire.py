"""The verifier of the fuzzer agrees with scapy on the fields of frames and which checksums are right."""

from __future__ import annotations

import pytest
from scapy.layers.inet import IP, TCP, UDP, IPOption_NOP
from scapy.layers.inet6 import IPv6ExtHdrDestOpt, IPv6ExtHdrFragment, IPv6ExtHdrHopByHop
from scapy.packet import Raw

from tests.packet import craft, wire
from tests.packet.craft import Family


def frames(fam: Family) -> list[bytes]:
    """Return one frame of each kind the programs meet."""
    ip = fam.ip(fam.client, fam.vip)
    shapes = [
        craft.tcp(fam, fam.client, 1234, fam.vip, 80),
        craft.tcp(fam, fam.client, 1234, fam.vip, 80, "PA", load=b"odd length"[:9]),
        craft.udp(fam, fam.client, 1234, fam.vip, 53),
        craft.icmp_error(
            fam, fam.router, fam.vip, fam.too_big(1300), bytes(craft.tcp(fam, fam.vip, 80, fam.client, 9))
        ),
        craft.icmp_error(
            fam, fam.router, fam.vip, fam.unreachable(), bytes(craft.udp(fam, fam.vip, 80, fam.client, 9))[:60]
        ),
    ]
    if fam.version == 6:
        shapes.append(ip / IPv6ExtHdrHopByHop() / IPv6ExtHdrDestOpt() / TCP(sport=1, dport=2) / Raw(b"x"))
        shapes.append(ip / IPv6ExtHdrFragment(offset=0, m=0) / UDP(sport=1, dport=2) / Raw(b"x"))
    else:
        shapes.append(
            IP(src=fam.client, dst=fam.vip, options=[IPOption_NOP()] * 8) / UDP(sport=1, dport=2) / Raw(b"abc")
        )
    return [craft.frame(shape, vlans=vlans) for shape in shapes for vlans in ((), (7,), (7, 8))]


def test_says_what_scapy_says(fam: Family) -> None:
    """Addresses, TTL, ports and the right checksums of well-formed frames."""
    for data in frames(fam):
        seen, packet = wire.parse(data), craft.decode(data)
        assert seen is not None
        ip = packet[fam.ip("::" if fam.version == 6 else "0.0.0.0", fam.vip).__class__]
        assert (fam.text(seen.src), fam.text(seen.dst)) == (ip.src, ip.dst)
        assert seen.bad == []
        ports = packet.getlayer(TCP) or packet.getlayer(UDP)
        if ports is not None and seen.icmp is None:
            assert (seen.sport, seen.dport) == (ports.sport, ports.dport)
        if seen.quoted:
            assert seen.quoted.sport == 80
            assert seen.quoted.dport == 9


def test_finds_a_wrong_checksum(fam: Family) -> None:
    """One flipped bit always breaks the sum that covers it: the last byte is L4's, the hop before it IPv4's header."""
    for data in frames(fam):
        broken = bytearray(data)
        broken[-1] ^= 1
        seen = wire.parse(bytes(broken))
        assert seen is not None
        assert set(seen.bad) & {"tcp", "udp", "icmp"}, data.hex()
        if fam.version == 4:
            broken = bytearray(data)
            broken[seen.l2 + 4] ^= 1  # identification
            seen = wire.parse(bytes(broken))
            assert seen is not None
            assert seen.bad == ["ip"]


@pytest.mark.parametrize("length", range(60))
def test_survives_any_length(fam: Family, length: int) -> None:
    """A frame cut anywhere is parsed without an exception, and never as something longer than it is."""
    for data in frames(fam):
        seen = wire.parse(data[:length])
        if seen is not None:
            assert seen.end <= length
            assert seen.l4 <= length


def test_sum_of_known_bytes() -> None:
    """RFC 1071 §3's example: 00 01 f2 03 f4 f5 f6 f7 sums to ddf2."""
    data = bytes.fromhex("0001f203f4f5f6f7")
    assert wire.checksum(data) == 0xFFFF - 0xDDF2
    assert wire.ones_sum(data) == 0xDDF2
