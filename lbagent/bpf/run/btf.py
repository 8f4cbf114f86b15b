"""Offsets of members of the kernel's structs, from its BTF (/sys/kernel/btf/vmlinux). Without BTF there are none.

Source: Documentation/bpf/btf.rst.
"""

from __future__ import annotations

import struct
from functools import cache
from pathlib import Path

VMLINUX = Path("/sys/kernel/btf/vmlinux")
_MAGIC = 0xEB9F
_HEADER = struct.Struct("<HBBIIIII")  # magic, version, flags, hdr_len, type_off, type_len, str_off, str_len
_TYPE, _MEMBER = struct.Struct("<III"), struct.Struct("<III")  # name, info, size; name, type, offset in bits
_KIND_STRUCT = 4
_BIT_OFFSET = 0xFFFFFF  # of a member in a struct that has bit fields


class Btf:
    """The type information of one kernel."""

    def __init__(self, data: bytes) -> None:
        """Raises ValueError for data that is no BTF."""
        if len(data) < _HEADER.size:
            raise ValueError("too short for BTF")
        magic, _, _, header, type_off, type_len, str_off, str_len = _HEADER.unpack_from(data)
        if magic != _MAGIC:
            raise ValueError("no BTF of this byte order")
        self._types = data[header + type_off : header + type_off + type_len]
        self._names = data[header + str_off : header + str_off + str_len]

    def offset(self, struct_name: str, member: str) -> int | None:
        """Return the offset of a member in bytes; None if there is no such struct or member."""
        name, wanted = self._name(struct_name), self._name(member)
        if not name or not wanted:
            return None
        at = -1
        while (at := self._types.find(struct.pack("<I", name), at + 1)) >= 0:
            if at % 4 == 0 and (found := self._member(at, wanted)) is not None:
                return found
        return None

    def _name(self, text: str) -> int:
        """Return the offset of a name in the string section; 0: not there."""
        at = self._names.find(b"\0" + text.encode() + b"\0")
        return at + 1 if at >= 0 else 0

    def _member(self, at: int, wanted: int) -> int | None:
        """Return a member's offset if a struct's description begins here, None otherwise."""
        if at + _TYPE.size > len(self._types):
            return None
        _, info, size = _TYPE.unpack_from(self._types, at)
        if info >> 24 & 0x1F != _KIND_STRUCT:
            return None
        end = min(at + _TYPE.size + (info & 0xFFFF) * _MEMBER.size, len(self._types))
        for place in range(at + _TYPE.size, end - _MEMBER.size + 1, _MEMBER.size):
            name, _, bits = _MEMBER.unpack_from(self._types, place)
            bits = bits & _BIT_OFFSET if info >> 31 else bits
            if name == wanted and bits % 8 == 0 and bits // 8 < size:
                return int(bits // 8)
        return None


@cache
def kernel_offsets(*members: tuple[str, str]) -> tuple[int, ...] | None:
    """Return the offsets of (struct, member) pairs in this kernel; None if it has no BTF or lacks one of them."""
    try:
        btf = Btf(VMLINUX.read_bytes())
    except (OSError, ValueError):
        return None
    found = [btf.offset(*pair) for pair in members]
    return None if None in found else tuple(offset for offset in found if offset is not None)
