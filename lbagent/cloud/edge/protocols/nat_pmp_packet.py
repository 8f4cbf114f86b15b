"""NAT-PMP datagrams. All numbers are big-endian, times seconds. Source: RFC 6886, 3.2 to 3.5."""

from __future__ import annotations

import struct
from ipaddress import IPv4Address

from msgspec import Struct

VERSION = 0
ADDRESS, MAP_UDP, MAP_TCP = 0, 1, 2
ANSWER = 128
OPCODES = {"UDP": MAP_UDP, "TCP": MAP_TCP}
RESULTS = {
    1: "unsupported version",
    2: "not authorized, or disabled",
    3: "network failure: the router has no WAN address",
    4: "out of resources",
    5: "unsupported opcode",
}
REFUSED = 2
_MAP_REQUEST = struct.Struct(">BBHHHI")
_HEAD = struct.Struct(">BBHI")
_MAPPED = struct.Struct(">HHI")


class NatPmpAnswer(Struct, frozen=True):
    """An answer; `epoch_s` is the time since the router lost its mappings. Fields of other kinds are '' and 0."""

    opcode: int
    result: int
    epoch_s: int
    address: str = ""
    internal_port: int = 0
    external_port: int = 0
    lease_s: int = 0


def encode_address_request() -> bytes:
    """Return the request for the WAN address."""
    return bytes((VERSION, ADDRESS))


def encode_map_request(protocol: str, internal_port: int, external_port: int, lease_s: int) -> bytes:
    """Return the request for a mapping; port and lease 0 remove it."""
    return _MAP_REQUEST.pack(VERSION, OPCODES[protocol], 0, internal_port, external_port, lease_s)


def decode_answer(data: bytes) -> NatPmpAnswer:
    """Return an answer. Raises ValueError."""
    if len(data) < _HEAD.size or len(data) > 1100:
        raise ValueError(f"{len(data)} bytes are not an answer")
    version, opcode, result, epoch_s = _HEAD.unpack_from(data)
    if version != VERSION or not ANSWER <= opcode <= ANSWER + MAP_TCP:
        raise ValueError(f"version {version}, opcode {opcode} are not an answer")
    if result:
        return NatPmpAnswer(opcode - ANSWER, result, epoch_s)
    if opcode == ANSWER + ADDRESS:
        if len(data) != _HEAD.size + 4:
            raise ValueError("no address in the answer")
        return NatPmpAnswer(ADDRESS, 0, epoch_s, str(IPv4Address(data[_HEAD.size :])))
    if len(data) != _HEAD.size + _MAPPED.size:
        raise ValueError("no ports in the answer")
    return NatPmpAnswer(opcode - ANSWER, 0, epoch_s, "", *_MAPPED.unpack_from(data, _HEAD.size))
