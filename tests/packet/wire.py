"""A small parser and checksum verifier for frames, written apart from the programs under test and from scapy.

Fast enough to run on each of a few hundred thousand packets; `test_wire.py` compares it with scapy.
Sums: RFC 1071; pseudo headers: RFC 9293 §3.1, RFC 768, RFC 8200 §8.1.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field

IPV4, IPV6 = 0x0800, 0x86DD
VLAN_TYPES = (0x8100, 0x88A8)
TCP, UDP, ICMP, ICMP6, SCTP = 6, 17, 1, 58, 132
EXTENSIONS = (0, 43, 60)  # hop-by-hop, routing, destination options: same length rule
FRAGMENT, AUTH = 44, 51
MAX_EXTENSIONS = 32
ICMP4_ERRORS = (3, 4, 5, 11, 12)
ICMP6_ERRORS = (1, 2, 3, 4)


@dataclass
class Wire:
    """The fields of a frame, addresses as packed bytes, ports and lengths in host order."""

    family: int = 0
    l2: int = 14  # bytes before the IP header
    l4: int = 0  # offset of the L4 header in the frame; 0 = none to be read
    end: int = 0  # offset after the IP packet (padding left out)
    src: bytes = b""
    dst: bytes = b""
    ttl: int = 0
    proto: int = -1  # of the L4 header
    sport: int = -1
    dport: int = -1
    first: bool = True  # not a later fragment
    fragment: bool = False
    mtu: int = 0  # of an ICMP error that carries one
    icmp: tuple[int, int] | None = None
    quoted: Wire | None = None  # the packet an ICMP error is about
    bad: list[str] = field(default_factory=list)  # names of wrong checksums


def ones_sum(data: bytes) -> int:
    """Return the ones' complement sum modulo 0xffff (0 stands for both zeros)."""
    return int.from_bytes(data + b"\0" if len(data) & 1 else data, "big") % 0xFFFF


def crc32c(data: bytes) -> int:
    """Return the CRC32c of data as an SCTP header has it, read as a number of x86. Source: RFC 9260, appendix A."""
    register = 0xFFFFFFFF
    for byte in data:
        register = register >> 8 ^ _CRC32C[(register ^ byte) & 0xFF]
    return register ^ 0xFFFFFFFF


def _reversed_bits(number: int, bits: int) -> int:
    return int(f"{number:0{bits}b}"[::-1], 2)


def _crc32c_of_byte(byte: int) -> int:
    """Divide by the polynomial, its highest power first."""
    register = _reversed_bits(byte, 8) << 24
    for _ in range(8):
        register = (register << 1 ^ (0x1EDC6F41 if register >> 31 else 0)) & 0xFFFFFFFF
    return _reversed_bits(register, 32)


_CRC32C = tuple(_crc32c_of_byte(byte) for byte in range(256))


def checksum(data: bytes) -> int:
    """Return the Internet checksum of data. Source: RFC 1071."""
    return 0xFFFF - (ones_sum(data) or (0xFFFF if any(data) else 0))


def parse(frame: bytes) -> Wire | None:
    """Parse an Ethernet frame; None when it is no IP packet that can be read."""
    if len(frame) < 14:
        return None
    (kind,) = struct.unpack_from("!H", frame, 12)
    at = 14
    while kind in VLAN_TYPES and at <= 18:
        if len(frame) < at + 4:
            return None
        (kind,) = struct.unpack_from("!H", frame, at + 2)
        at += 4
    if kind == IPV4:
        return parse4(frame, at, len(frame), strict=True)
    if kind == IPV6:
        return parse6(frame, at, len(frame), strict=True)
    return None


def parse4(frame: bytes, at: int, limit: int, *, strict: bool) -> Wire | None:
    """Parse an IPv4 packet at offset `at`. Not strict = a quoted packet, which may be cut off."""
    if limit < at + 20 or frame[at] >> 4 != 4:
        return None
    header = (frame[at] & 15) * 4
    total, ident_flags = struct.unpack_from("!2xH2xH", frame, at)
    if header < 20 or limit < at + header or (strict and not header <= total <= limit - at):
        return None
    wire = Wire(family=4, l2=at, src=frame[at + 12 : at + 16], dst=frame[at + 16 : at + 20])
    wire.ttl, wire.proto = frame[at + 8], frame[at + 9]
    wire.end = min(limit, at + total) if strict else limit  # quoted lengths are not trusted
    wire.first = not ident_flags & 0x1FFF
    wire.fragment = bool(ident_flags & 0x3FFF)
    if ones_sum(frame[at : at + header]):
        wire.bad.append("ip")
    if wire.first:
        pseudo = wire.src + wire.dst + struct.pack("!HH", wire.proto, (total - header) & 0xFFFF)
        whole = header <= total <= limit - at and not wire.fragment
        _l4(frame, wire, at + header, pseudo, whole=whole, strict=strict)
    return wire


def parse6(frame: bytes, at: int, limit: int, *, strict: bool) -> Wire | None:
    """Parse an IPv6 packet at offset `at`, extension headers included."""
    if limit < at + 40 or frame[at] >> 4 != 6:
        return None
    (length,) = struct.unpack_from("!H", frame, at + 4)
    if strict and at + 40 + length > limit:
        return None
    wire = Wire(family=6, l2=at, src=frame[at + 8 : at + 24], dst=frame[at + 24 : at + 40])
    wire.ttl = frame[at + 7]
    wire.end = min(limit, at + 40 + length) if strict else limit
    proto, l4 = frame[at + 6], at + 40
    for _ in range(MAX_EXTENSIONS):
        if proto not in (*EXTENSIONS, FRAGMENT, AUTH) or not wire.first:
            break
        if wire.end < l4 + 8:
            return wire
        if proto == FRAGMENT:
            (offset,) = struct.unpack_from("!H", frame, l4 + 2)
            wire.first, wire.fragment, size = offset < 8, bool(offset & ~6), 8
        else:
            size = (frame[l4 + 1] + 2) * 4 if proto == AUTH else (frame[l4 + 1] + 1) * 8
        proto, l4 = frame[l4], l4 + size
    wire.proto = proto
    if wire.first and l4 <= wire.end:
        whole = l4 <= at + 40 + length <= limit and not wire.fragment
        pseudo = wire.src + wire.dst + struct.pack("!II", max(at + 40 + length - l4, 0), proto)
        _l4(frame, wire, l4, pseudo, whole=whole, strict=strict)
    return wire


def _l4(frame: bytes, wire: Wire, at: int, pseudo: bytes, *, whole: bool, strict: bool) -> None:
    room = wire.end - at
    if wire.proto in (TCP, UDP, SCTP):
        if room < 8:
            return
        wire.l4 = at
        wire.sport, wire.dport = struct.unpack_from("!HH", frame, at)
        if whole:
            _check_ports(frame, wire, at, pseudo, strict=strict)
    elif (wire.proto == ICMP and wire.family == 4) or (wire.proto == ICMP6 and wire.family == 6):
        if room < 8:
            return
        wire.l4 = at
        wire.icmp = (frame[at], frame[at + 1])
        if whole and ones_sum((pseudo if wire.family == 6 else b"") + frame[at : wire.end]):
            wire.bad.append("icmp")
        _quoted(frame, wire, at)


def _check_ports(frame: bytes, wire: Wire, at: int, pseudo: bytes, *, strict: bool) -> None:
    """Check the sum of the header at `at`. Not strict: in a quote, where SCTP's is not corrected."""
    if wire.proto == TCP and wire.end - at >= 20 and ones_sum(pseudo + frame[at : wire.end]):
        wire.bad.append("tcp")
    if wire.proto == SCTP and strict and wire.end - at >= 12:
        packet = frame[at : wire.end]
        field = int.from_bytes(packet[8:12], "little")
        if field and field != crc32c(packet[:8] + bytes(4) + packet[12:]):
            wire.bad.append("sctp")
    if wire.proto == UDP:
        length, value = struct.unpack_from("!HH", frame, at + 4)
        if length < 8 or at + length > wire.end:
            return
        if value == 0:
            if wire.family == 6:
                wire.bad.append("udp")
            return
        pseudo = (
            pseudo[:-2] + struct.pack("!H", length)
            if wire.family == 4
            else pseudo[:-8] + struct.pack("!II", length, UDP)
        )
        if ones_sum(pseudo + frame[at : at + length]):
            wire.bad.append("udp")


def _quoted(frame: bytes, wire: Wire, at: int) -> None:
    kind = frame[at]
    if wire.family == 4 and kind in ICMP4_ERRORS:
        wire.quoted = parse4(frame, at + 8, wire.end, strict=False)
        wire.mtu = struct.unpack_from("!H", frame, at + 6)[0] if frame[at : at + 2] == b"\3\4" else 0
    elif wire.family == 6 and kind in ICMP6_ERRORS:
        wire.quoted = parse6(frame, at + 8, wire.end, strict=False)
        wire.mtu = struct.unpack_from("!I", frame, at + 4)[0] if kind == 2 else 0


def l4_bytes(frame: bytes, wire: Wire) -> bytes:
    """Return the packet from its L4 header on, without padding."""
    return frame[wire.l4 : wire.end]
