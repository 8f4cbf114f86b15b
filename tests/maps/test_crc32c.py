"""The CRC32c of SCTP as shifts: known sums, scapy's, and the change of a sum by other ports, whatever the packet."""

from __future__ import annotations

import struct

from hypothesis import given
from hypothesis import strategies as st
from scapy.layers.sctp import crc32c as scapy_crc32c

from lbagent.maps.crc32c import crc32c, shift_tables
from lbagent.maps.layout import CRC32C_NIBBLES, CRC32C_SHIFTS, CRC32C_SIZE, CRC32C_VALUES

TABLES = struct.unpack(f"<{CRC32C_SIZE // 4}I", shift_tables())


def shifted(register: int, shift: int) -> int:
    """Return what crc32c_shift() of bpf/include/base/crc32c.h does."""
    found = 0
    for nibble in range(CRC32C_NIBBLES):
        row = (shift * CRC32C_NIBBLES + nibble) * CRC32C_VALUES
        found ^= TABLES[row + (register >> nibble * 4 & CRC32C_VALUES - 1)]
    return found


def test_known_sums() -> None:
    """Source: RFC 3720, appendix B.4."""
    assert crc32c(bytes(32)) == 0x8A9136AA
    assert crc32c(b"\xff" * 32) == 0x62A8AB43
    assert crc32c(bytes(range(32))) == 0x46DD794E


@given(st.binary(max_size=200))
def test_as_scapy_computes_it(data: bytes) -> None:
    assert crc32c(data).to_bytes(4, "little") == scapy_crc32c(data).to_bytes(4, "big")


@given(st.binary(min_size=4, max_size=3000), st.binary(min_size=4, max_size=4))
def test_other_ports_change_it_whatever_follows(packet: bytes, ports: bytes) -> None:
    change = int.from_bytes(packet[:4], "little") ^ int.from_bytes(ports, "little")
    for shift in range(CRC32C_SHIFTS):
        if len(packet) >> shift & 1:
            change = shifted(change, shift)
    assert crc32c(packet) ^ change == crc32c(ports + packet[4:])
