"""Plain segments and datagrams, fifty times as fast as scapy: it builds one frame of each kind, and copies of that get the other
fields.

For tests that need thousands. `test_plain_frames.py` compares them with scapy's.
"""

from __future__ import annotations

import struct
from functools import cache
from typing import TYPE_CHECKING

from tests.packet import craft, wire

if TYPE_CHECKING:
    from tests.packet.craft import Family

L4_AT = {4: 34, 6: 54}
SUM_AT = {wire.TCP: 16, wire.UDP: 6}  # from the L4 header on


@cache
def _example(fam: Family, proto: int, flags: str, smac: str, dmac: str) -> bytes:
    return craft.frame(craft.segment(fam, proto, fam.client, 1, fam.vip, 1, flags), src=smac, dst=dmac)


def plain(
    fam: Family,
    proto: int,
    src: str,
    sport: int,
    dst: str,
    dport: int,
    flags: str = "S",
    *,
    smac: str = craft.ROUTER_MAC,
    dmac: str = craft.NODE_MAC,
) -> bytes:
    """Return the frame of `craft.segment` with the same words."""
    frame = bytearray(_example(fam, proto, flags, smac, dmac))
    at, addresses = L4_AT[fam.version], fam.packed(src) + fam.packed(dst)
    frame[at - len(addresses) : at] = addresses
    length = len(frame) - at
    if fam.version == 4:
        frame[24:26] = bytes(2)
        frame[24:26] = wire.checksum(frame[14:at]).to_bytes(2, "big")
        pseudo = addresses + struct.pack("!HH", proto, length)
    else:
        pseudo = addresses + struct.pack("!II", length, proto)
    struct.pack_into("!HH", frame, at, sport, dport)
    total = at + SUM_AT[proto]
    frame[total : total + 2] = bytes(2)
    value = wire.checksum(pseudo + frame[at:])
    frame[total : total + 2] = (value or 0xFFFF if proto == wire.UDP else value).to_bytes(2, "big")
    return bytes(frame)
