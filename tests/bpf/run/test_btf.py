"""Offsets of the members of the kernel's structs."""

from __future__ import annotations

import struct

import pytest

from lbagent.bpf.run.btf import Btf, kernel_offsets


def test_offsets_are_read_from_structs_alone() -> None:
    names = b"\0device\0index\0number\0"
    device, index, number = 1, 8, 14
    pointer = struct.pack("<III", device, 2 << 24, 3)  # a pointer type with the name of the struct
    members = struct.pack("<IIIIII", index, 9, 64, number, 9, 1 << 24 | 128)  # the second: a field of one bit's width
    plain = struct.pack("<III", device, 4 << 24 | 1, 32) + members[:12]
    with_bits = struct.pack("<III", number, 1 << 31 | 4 << 24 | 2, 32) + members
    types = pointer + plain + with_bits
    header = struct.pack("<HBBIIIII", 0xEB9F, 1, 0, 24, 0, len(types), len(types), len(names))
    btf = Btf(header + types + names)
    assert btf.offset("device", "index") == 8
    assert btf.offset("number", "number") == 16
    assert btf.offset("device", "number") is None
    assert btf.offset("nothing", "index") is None
    with pytest.raises(ValueError, match="BTF"):
        Btf(b"\x7fELF" + bytes(40))


def test_members_that_no_kernel_has_are_not_found() -> None:
    assert kernel_offsets(("net_device", "no_such_member_at_all")) is None
