"""CRC32c (RFC 9260, appendix A) as shifts of its register: the contents of lb_crc32c, by which programs correct SCTP's checksum.

The register after a zero bit is a linear function of the register before it, over GF(2); so is that after any number of zero bytes.
"""

from __future__ import annotations

import struct
from functools import cache

from lbagent.maps.layout import CRC32C_NIBBLES, CRC32C_SHIFTS, CRC32C_VALUES

POLYNOMIAL = 0x82F63B78  # reflected: the lowest bit is that of the highest power
_ONES = 0xFFFFFFFF


def _bit(register: int) -> int:
    return register >> 1 ^ (POLYNOMIAL if register & 1 else 0)


def _apply(columns: tuple[int, ...], register: int) -> int:
    """Return what a shift makes of the register; `columns`: of each bit of it."""
    shifted = 0
    for bit, column in enumerate(columns):
        if register >> bit & 1:
            shifted ^= column
    return shifted


@cache
def shifts() -> tuple[tuple[int, ...], ...]:
    """Return the shift by 2^n bytes for each n, as what each bit of the register becomes."""
    byte = []
    for bit in range(32):
        register = 1 << bit
        for _ in range(8):
            register = _bit(register)
        byte.append(register)
    found = [tuple(byte)]
    while len(found) < CRC32C_SHIFTS:
        found.append(tuple(_apply(found[-1], column) for column in found[-1]))
    return tuple(found)


@cache
def shift_tables() -> bytes:
    """Return the value of lb_crc32c: by shift and four bits of the register, what each value of them becomes (u32)."""
    words = [
        _apply(columns, value << nibble * 4)
        for columns in shifts()
        for nibble in range(CRC32C_NIBBLES)
        for value in range(CRC32C_VALUES)
    ]
    return struct.pack(f"<{len(words)}I", *words)


def crc32c(data: bytes) -> int:
    """Return the CRC32c of data, as the number that an SCTP header holds in the order of x86."""
    register = _ONES
    for byte in data:
        register ^= byte
        for _ in range(8):
            register = _bit(register)
    return register ^ _ONES
