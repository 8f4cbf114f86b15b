"""Attributes of netlink messages: building and reading them. Source: include/uapi/linux/netlink.h. Pure."""

from __future__ import annotations

import struct
from collections.abc import Iterator

NESTED = 0x8000
_KIND = 0x3FFF  # without the bits "nested" and "network byte order"
_HEADER = struct.Struct("=HH")
_U32, _U64 = struct.Struct("!I"), struct.Struct("!Q")
MAX_BYTES = 0xFFFF  # of one attribute, with its header


def attribute(kind: int, value: bytes) -> bytes:
    """Return an attribute, padded to four bytes."""
    return _HEADER.pack(len(value) + 4, kind) + value + bytes(-len(value) % 4)


def nested(kind: int, *parts: bytes) -> bytes:
    """Return an attribute of attributes."""
    return attribute(kind | NESTED, b"".join(parts))


def u32(kind: int, value: int) -> bytes:
    """Return an attribute of four bytes in network order; a negative number as its complement."""
    return attribute(kind, _U32.pack(value & 0xFFFFFFFF))


def u64(kind: int, value: int) -> bytes:
    """Return an attribute of eight bytes in network order."""
    return attribute(kind, _U64.pack(value))


def text(kind: int, value: str) -> bytes:
    """Return an attribute of a text that ends with a zero byte."""
    return attribute(kind, value.encode() + b"\0")


def read_attributes(body: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield the kind and the value of each attribute; stop at one that is cut."""
    at = 0
    while at + 4 <= len(body):
        length, kind = _HEADER.unpack_from(body, at)
        if length < 4:
            return
        yield kind & _KIND, body[at + 4 : at + length]
        at += length + (-length % 4)


def attributes_of(body: bytes) -> dict[int, bytes]:
    """Return the attributes by kind."""
    return dict(read_attributes(body))


def read_u32(value: bytes) -> int:
    """Return the number of an attribute of four bytes."""
    return int(_U32.unpack(value)[0])


def read_text(value: bytes) -> str:
    """Return the text of an attribute, up to its zero byte."""
    return value.split(b"\0", 1)[0].decode(errors="replace")
