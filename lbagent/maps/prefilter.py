"""The prefilter: the bits of lb_filter for an address. Pure.

A bit is a number, counted from the start of the map in little-endian words.
"""

from __future__ import annotations

import struct
import sys
from array import array
from collections.abc import Iterable, Sequence

from lbagent.maps.layout import FILTER_BITS, FILTER_DST_BYTES

_U64 = (1 << 64) - 1
_FACTOR4 = 0x9E3779B1
_SOURCES = FILTER_DST_BYTES * 8  # offset of the bits of sources


def filter_position(address: bytes) -> int:
    """Return the prefilter position of an IPv4 (4 bytes) or IPv6 (16) address; the same sum as `prefilter_position` in C.

    The address is read as the little-endian words that the kernel loads. IPv6 addresses of one plan differ in few bits of their
    halves (fd00:96::5, fd00:244::7): the halves are mixed by multiplication, as xor would make prefixes collide.
    """
    if len(address) == 16:
        high, low = struct.unpack("<2Q", address)
        word: int = high * 0x9E3779B97F4A7C15 & _U64
        word ^= word >> 32 ^ low
        return (word * 0xBF58476D1CE4E5B9 & _U64) >> (64 - FILTER_BITS)
    word = int.from_bytes(address, "little")
    return ((word * _FACTOR4) & 0xFFFFFFFF) >> (32 - FILTER_BITS)


def filter_positions(records: bytes | bytearray, record: int, width: int, *, once: bool = False) -> list[int]:
    """Return the positions of the addresses, `width` bytes each, at the start of packed records.

    `once`: each address once, however many records have it, in any order.
    """
    if width != 4 or record % 4:
        each: Iterable[bytes] = (bytes(records[at : at + width]) for at in range(0, len(records), record))
        return [filter_position(address) for address in (set(each) if once else each)]
    words = array("I", records)[:: record // 4]
    if sys.byteorder == "big":
        words.byteswap()
    return [(word * _FACTOR4 & 0xFFFFFFFF) >> (32 - FILTER_BITS) for word in (set(words) if once else words)]


def vip_bit(address: bytes) -> int:
    """Return the bit "a VIP or node address concerned" of an address."""
    return 2 * filter_position(address)


def snat_bits(address: bytes) -> tuple[int, int]:
    """Return the two bits "this node translates to it": the second one alone is `direct_bit`."""
    return vip_bit(address), direct_bit(address)


def direct_bit(address: bytes) -> int:
    """Return the bit that without `vip_bit` means "a local backend itself"."""
    return direct_bits((filter_position(address),))[0]


def direct_bits(positions: Sequence[int]) -> list[int]:
    """Return `direct_bit` of the addresses at each position."""
    return [2 * position + 1 for position in positions]


def source_bit(address: bytes) -> int:
    """Return the bit "source is a local backend"."""
    return source_bits((filter_position(address),))[0]


def source_bits(positions: Sequence[int]) -> list[int]:
    """Return `source_bit` of the addresses at each position."""
    return [_SOURCES + position for position in positions]


def datagram_bit(address: bytes) -> int:
    """Return the bit that with `direct_bit` means "a local backend of UDP": the source bit of its neighbour."""
    return datagram_bits((filter_position(address),))[0]


def datagram_bits(positions: Sequence[int]) -> list[int]:
    """Return `datagram_bit` of the addresses at each position."""
    return [_SOURCES + (position ^ 1) for position in positions]
