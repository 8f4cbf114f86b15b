"""Frames that `explain` makes are what scapy makes, and read back as what scapy reads."""

from __future__ import annotations

import socket

import pytest
from scapy.layers.inet import IP, TCP, UDP
from scapy.layers.inet6 import IPv6, IPv6ExtHdrDestOpt, IPv6ExtHdrFragment
from scapy.layers.l2 import Dot1Q, Ether
from scapy.layers.sctp import SCTP, SCTPChunkInit
from scapy.packet import Packet

from lbagent.errors import ConfigError
from lbagent.targets.bpf import packet_frame
from lbagent.targets.bpf.packet_frame import Tuple, make_frame, read_frame, shortened

V4 = ("10.0.0.1", "192.0.2.9")
V6 = ("2001:db8::1", "fd00::9")
# With both addresses: for a missing one scapy asks the machine's own network.
LINK = Ether(src="02:00:00:00:00:01", dst="02:00:00:00:00:02")


def packed(text: str) -> bytes:
    return socket.inet_pton(socket.AF_INET6 if ":" in text else socket.AF_INET, text)


def with_right_checksums(frame: bytes) -> bytes:
    found = Ether(frame)
    for layer in (IP, TCP, UDP, SCTP):
        if layer in found:
            del found[layer].chksum
    return bytes(found)


@pytest.mark.parametrize("ends", [V4, V6])
@pytest.mark.parametrize("protocol", [6, 17])
@pytest.mark.parametrize("length", [0, 100, 101, 1514])
def test_made_frames_are_right(ends: tuple[str, str], protocol: int, length: int) -> None:
    to = Tuple(protocol, packed(ends[0]), 40000, packed(ends[1]), 80)
    frame = make_frame(to, b"\2" * 6 + b"\4" * 6, flags=packet_frame.flag_bits("SA"), length=length)
    assert frame == with_right_checksums(frame)
    assert not length or len(frame) == length
    seen = Ether(frame)
    ip = seen[IPv6 if ":" in ends[0] else IP]
    assert (ip.src, ip.dst, ip.payload.sport, ip.payload.dport) == (*ends, 40000, 80)
    assert protocol == 17 or ip.payload.flags == "SA"


@pytest.mark.parametrize("ends", [V4, V6])
def test_an_init_of_sctp(ends: tuple[str, str]) -> None:
    frame = make_frame(Tuple(132, packed(ends[0]), 40000, packed(ends[1]), 5060), b"\2" * 6 + b"\4" * 6)
    assert frame == with_right_checksums(frame)
    seen = Ether(frame)
    assert (seen[SCTP].sport, seen[SCTP].dport, seen[SCTP].tag) == (40000, 5060, 0)
    assert (seen[SCTPChunkInit].len, seen[SCTPChunkInit].init_tag) == (20, 1)
    longer = make_frame(Tuple(132, packed(ends[0]), 40000, packed(ends[1]), 5060), bytes(12), length=200)
    assert len(longer) == 200
    assert read_frame(longer).protocol_name == "sctp"


@pytest.mark.parametrize("length", [20, 53, 100_000])
def test_length_that_no_frame_has(length: int) -> None:
    with pytest.raises(ConfigError, match="54 to 3400 bytes"):
        make_frame(Tuple(6, packed(V4[0]), 1, packed(V4[1]), 2), bytes(12), length=length)


@pytest.mark.parametrize("flags", ["", "X", "SYN?"])
def test_flags_that_do_not_exist(flags: str) -> None:
    with pytest.raises(ConfigError, match="--flags"):
        packet_frame.flag_bits(flags)


@pytest.mark.parametrize(
    ("packet", "ports"),
    [
        (LINK / Dot1Q(vlan=5) / Dot1Q(vlan=6) / IP(src=V4[0], dst=V4[1]) / TCP(sport=7, dport=8), (7, 8)),
        (LINK / IP(src=V4[0], dst=V4[1], options=b"\1" * 8) / UDP(sport=7, dport=8), (7, 8)),
        (LINK / IP(src=V4[0], dst=V4[1], frag=3, proto=17) / (b"x" * 40), (None, None)),
        (LINK / IPv6(src=V6[0], dst=V6[1]) / IPv6ExtHdrDestOpt() / TCP(sport=7, dport=8), (7, 8)),
        (LINK / IPv6(src=V6[0], dst=V6[1]) / IPv6ExtHdrFragment(offset=2, nh=17) / (b"x" * 40), (None, None)),
    ],
)
def test_headers_before_the_ports(packet: Packet, ports: tuple[int | None, int | None]) -> None:
    found = read_frame(bytes(packet))
    ends = V4 if IP in packet else V6
    assert (found.source, found.destination) == (packed(ends[0]), packed(ends[1]))
    assert (found.source_port, found.destination_port) == ports


@pytest.mark.parametrize("frame", [b"", b"\0" * 13, b"\0" * 60, b"\0" * 12 + b"\x08\x00" + b"\x45"])
def test_what_is_no_packet(frame: bytes) -> None:
    assert read_frame(frame).family is None


@pytest.mark.parametrize("ends", [V4, V6])
def test_long_frames_become_short_ones_of_the_same_flow(ends: tuple[str, str]) -> None:
    kind = IPv6 if ":" in ends[0] else IP
    long = bytes(LINK / kind(src=ends[0], dst=ends[1]) / TCP(sport=1, dport=2, flags="PA") / (b"x" * 9000))
    short = shortened(long)
    assert len(short) == 1014
    assert read_frame(short) == read_frame(long)
    seen = Ether(short)[kind]
    assert (seen.plen + 40 if kind is IPv6 else seen.len) == 1000
    assert kind is IPv6 or seen.chksum == Ether(with_right_checksums(short))[IP].chksum
