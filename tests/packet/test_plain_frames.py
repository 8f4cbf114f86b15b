"""Quick frames are those that scapy builds."""

from __future__ import annotations

import socket

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.packet import craft
from tests.packet.craft import FAMILIES, V4
from tests.packet.plain_frames import plain
from tests.packet.world import TCP, UDP

MACS = (craft.ROUTER_MAC, craft.NODE_MAC, craft.BACKEND_MAC, craft.NODE2_MAC)
PORTS = st.integers(0, 65535)
VERSIONS = st.sampled_from([4, 6])


def text(version: int, number: int) -> str:
    """Return the address whose last bits are this number."""
    size, af = (4, socket.AF_INET) if version == 4 else (16, socket.AF_INET6)
    return socket.inet_ntop(af, (number % (1 << 8 * size)).to_bytes(size, "big"))


@given(
    VERSIONS, st.sampled_from([TCP, UDP]), st.integers(0), st.integers(0), PORTS, PORTS, st.sampled_from(["S", "SA", "A", "PA", "R", "FA"]),
    st.sampled_from(MACS), st.sampled_from(MACS),
)  # fmt: skip
def test_any_frame_is_scapys(
    version: int, proto: int, source: int, target: int, sport: int, dport: int, flags: str, smac: str, dmac: str
) -> None:
    fam, src, dst = FAMILIES[version], text(version, source), text(version, target)
    wanted = craft.frame(craft.segment(fam, proto, src, sport, dst, dport, flags), src=smac, dst=dmac)
    assert plain(fam, proto, src, sport, dst, dport, flags, smac=smac, dmac=dmac) == wanted


def test_a_datagram_whose_sum_is_zero_says_all_ones() -> None:
    """RFC 768: a sum of zero is written as all ones, as zero means "no checksum"."""
    sums = {plain(V4, UDP, V4.client, port, V4.vip, 53)[40:42] for port in range(65536)}
    assert b"\0\0" not in sums
    assert b"\xff\xff" in sums


@pytest.mark.parametrize("version", [4, 6])
def test_the_same_words_give_the_same_frame(version: int) -> None:
    """One frame does not change the next one."""
    fam = FAMILIES[version]
    first = plain(fam, TCP, fam.client, 40000, fam.vip, 80)
    assert plain(fam, TCP, fam.client2, 40001, fam.vip2, 81, "SA") != first
    assert plain(fam, TCP, fam.client, 40000, fam.vip, 80) == first
