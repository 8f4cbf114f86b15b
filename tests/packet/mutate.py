"""Mutations of frames: bytes in, bytes out, quick enough for hundreds of thousands."""

from __future__ import annotations

import socket
import struct
from random import Random

from tests.packet import wire

LONGEST = 3000  # bytes: a test run takes one page, headroom included


def truncate(rng: Random, frame: bytes, _other: bytes) -> bytes:
    """Cut at a random length."""
    return frame[: rng.randrange(14, len(frame) + 1)]


def flip_bits(rng: Random, frame: bytes, _other: bytes) -> bytes:
    """Flip up to four bits, mostly in the headers."""
    out = bytearray(frame)
    for _ in range(rng.randrange(1, 5)):
        at = rng.randrange(12, min(len(out), 90)) if rng.random() < 0.9 else rng.randrange(len(out))
        out[at] ^= 1 << rng.randrange(8)
    return bytes(out)


def random_bytes(rng: Random, frame: bytes, _other: bytes) -> bytes:
    """Overwrite a few bytes of the headers with anything or with edge values."""
    out = bytearray(frame)
    for _ in range(rng.randrange(1, 4)):
        out[rng.randrange(12, min(len(out), 110))] = rng.choice(
            (0, 1, 6, 17, 44, 58, 127, 128, 254, 255, rng.randrange(256))
        )
    return bytes(out)


def header_length(rng: Random, frame: bytes, _other: bytes) -> bytes:
    """Give any IHL or version."""
    at = l3_of(frame)
    if at >= len(frame):
        return frame
    return (
        frame[:at]
        + bytes([rng.randrange(256) if rng.random() < 0.2 else frame[at] & 0xF0 | rng.randrange(16)])
        + frame[at + 1 :]
    )


def total_length(rng: Random, frame: bytes, _other: bytes) -> bytes:
    """Set a wrong length of the packet."""
    at = l3_of(frame)
    if len(frame) < at + 6:
        return frame
    at += 2 if frame[at] >> 4 == 4 else 4
    (old,) = struct.unpack_from("!H", frame, at)
    new = (
        rng.choice((0, 1, 19, 20, 27, 28, 39, 40, old - 1, old + 1, old + 8, old - 8, 65535, rng.randrange(65536)))
        & 0xFFFF
    )
    return frame[:at] + struct.pack("!H", new) + frame[at + 2 :]


def nest_vlan(rng: Random, frame: bytes, _other: bytes) -> bytes:
    """Put one to five VLAN tags in."""
    tags = b"".join(rng.choice((b"\x81\x00", b"\x88\xa8")) + rng.randbytes(2) for _ in range(rng.randrange(1, 6)))
    return frame[:12] + tags + frame[12:]


def extension_chain(rng: Random, frame: bytes, _other: bytes) -> bytes:
    """Put extension headers before the L4 header: known kinds and any length, sometimes consistent, sometimes not."""
    at = l3_of(frame)
    if len(frame) < at + 40 or frame[at] >> 4 != 6:
        return header_options(rng, frame)
    chain, following = b"", frame[at + 6]
    for _ in range(rng.randrange(1, 9)):
        kind = rng.choice((0, 43, 44, 51, 60, 135))
        size = 0 if rng.random() < 0.6 else rng.choice((1, 2, 3, 20, 255))
        body = rng.randbytes(6 + 8 * size) if rng.random() < 0.3 else bytes(6 + 8 * size)
        chain = bytes([following, 0 if kind == 44 else size]) + body + chain
        following = kind
        if kind == 51:
            chain = chain[:1] + bytes([size * 2 & 255]) + chain[2:]
    (length,) = struct.unpack_from("!H", frame, at + 4)
    length = (length + len(chain)) & 0xFFFF
    return frame[: at + 4] + struct.pack("!HB", length, following) + frame[at + 7 : at + 40] + chain + frame[at + 40 :]


def header_options(rng: Random, frame: bytes) -> bytes:
    """Put IPv4 options in, consistently."""
    at = l3_of(frame)
    if len(frame) < at + 20 or frame[at] != 0x45:
        return frame
    words = rng.randrange(1, 11)
    options = bytes([1]) * (4 * words) if rng.random() < 0.5 else rng.randbytes(4 * words)
    (total,) = struct.unpack_from("!H", frame, at + 2)
    head = (
        bytes([0x45 + words, frame[at + 1]]) + struct.pack("!H", (total + 4 * words) & 0xFFFF) + frame[at + 4 : at + 20]
    )
    return frame[:at] + head + options + frame[at + 20 :]


def fragment_bits(rng: Random, frame: bytes, _other: bytes) -> bytes:
    """Make it some fragment (IPv4), or put a fragment header in (IPv6)."""
    at = l3_of(frame)
    word = struct.pack("!H", rng.choice((0x2000, 0x2001, 0x0001, 0x1FFF, 0x8000, 0x4000, rng.randrange(65536))))
    if len(frame) >= at + 20 and frame[at] >> 4 == 4:
        return frame[: at + 6] + word + frame[at + 8 :]
    if len(frame) < at + 40:
        return frame
    (length,) = struct.unpack_from("!H", frame, at + 4)
    head = bytes([frame[at + 6], 0]) + word + rng.randbytes(1) + b"\0\0\1"
    return (
        frame[: at + 4]
        + struct.pack("!HB", (length + 8) & 0xFFFF, 44)
        + frame[at + 7 : at + 40]
        + head
        + frame[at + 40 :]
    )


def hops(rng: Random, frame: bytes, _other: bytes) -> bytes:
    """Set TTL or hop limit to an edge."""
    at = l3_of(frame)
    if len(frame) < at + 20:
        return frame
    at += 8 if frame[at] >> 4 == 4 else 7
    return frame[:at] + bytes([rng.choice((0, 1, 2, 255))]) + frame[at + 1 :]


def splice(rng: Random, frame: bytes, other: bytes) -> bytes:
    """Continue with the rest of another frame."""
    return frame[: rng.randrange(14, len(frame) + 1)] + other[rng.randrange(len(other)) :]


def pad(rng: Random, frame: bytes, _other: bytes) -> bytes:
    """Append padding."""
    return frame + rng.randbytes(rng.randrange(1, 60))


def grow(rng: Random, frame: bytes, _other: bytes) -> bytes:
    """Append payload that counts, so that the packet may exceed an MTU."""
    at, extra = l3_of(frame), rng.choice((1, 7, 200, 1400))
    if len(frame) < at + 20:
        return frame
    at += 2 if frame[at] >> 4 == 4 else 4
    (old,) = struct.unpack_from("!H", frame, at)
    return frame[:at] + struct.pack("!H", (old + extra) & 0xFFFF) + frame[at + 2 :] + rng.randbytes(extra)


def other_client(rng: Random, frame: bytes, _other: bytes) -> bytes:
    """Change the last byte of the source address and the source port: another flow."""
    at = l3_of(frame)
    seen = wire.parse(frame)
    if seen is None or seen.l4 == 0:
        return frame
    out = bytearray(frame)
    out[at + (15 if seen.family == 4 else 23)] = rng.randrange(256)
    out[seen.l4 : seen.l4 + 2] = rng.randbytes(2)
    return bytes(out)


SOURCES = {
    4: (
        "0.0.0.0",
        "127.0.0.1",
        "224.0.0.1",
        "255.255.255.255",
        "203.0.113.10",
        "192.0.2.1",
        "10.0.0.1",
        "10.1.0.1",
        "10.2.0.1",
    ),
    6: ("::", "::1", "ff02::1", "fe80::1", "2001:db8:113::10", "2001:db8:2::1", "fd00::1", "fd00:1::1", "fd00:2::1"),
}  # no host, groups, a VIP, the node, backends


def any_source(rng: Random, frame: bytes, _other: bytes) -> bytes:
    """Let it come from an address that should not send it."""
    at = l3_of(frame)
    if len(frame) < at + 40 or frame[at] >> 4 not in SOURCES:
        return frame
    version = frame[at] >> 4
    address = socket.inet_pton(socket.AF_INET if version == 4 else socket.AF_INET6, rng.choice(SOURCES[version]))
    at += 12 if version == 4 else 8
    return frame[:at] + address + frame[at + len(address) :]


def quote(rng: Random, frame: bytes, other: bytes) -> bytes:
    """Mutate the packet that an ICMP error quotes, and give the error its new length."""
    seen = wire.parse(frame)
    if seen is None or seen.quoted is None:
        return frame
    at = seen.l4 + 8
    inner = INNER[rng.randrange(len(INNER))](rng, frame[: seen.l2] + frame[at : seen.end], other)[seen.l2 :]
    grown, field = len(inner) - (seen.end - at), seen.l2 + (2 if seen.family == 4 else 4)
    (length,) = struct.unpack_from("!H", frame, field)
    head = frame[:field] + struct.pack("!H", (length + grown) & 0xFFFF) + frame[field + 2 : at]
    return head + inner


def tcp_flags(rng: Random, frame: bytes, _other: bytes) -> bytes:
    """Set any TCP flags."""
    seen = wire.parse(frame)
    if seen is None or seen.proto != wire.TCP or seen.end < seen.l4 + 20:
        return frame
    return frame[: seen.l4 + 13] + rng.randbytes(1) + frame[seen.l4 + 14 :]


def nothing(_rng: Random, frame: bytes, _other: bytes) -> bytes:
    """Leave it alone."""
    return frame


MUTATIONS = (
    truncate, flip_bits, flip_bits, random_bytes, header_length, total_length, nest_vlan, extension_chain, fragment_bits,
    hops, splice, pad, grow, other_client, any_source, quote, tcp_flags, nothing,
)  # fmt: skip
INNER = (truncate, flip_bits, header_length, total_length, extension_chain, fragment_bits, grow, other_client)


def l3_of(frame: bytes) -> int:
    """Return the offset of the IP header behind up to two tags."""
    at = 14
    while at <= 18 and frame[at - 2 : at] in (b"\x81\x00", b"\x88\xa8"):
        at += 4
    return at


def mutate(rng: Random, frame: bytes, other: bytes) -> bytes:
    """Apply one or two mutations, and repair the checksums half of the time so that broken headers pass the first check."""
    out = MUTATIONS[rng.randrange(len(MUTATIONS))](rng, frame, other)
    if rng.random() < 0.25:
        out = MUTATIONS[rng.randrange(len(MUTATIONS))](rng, out, other)
    out = out[:LONGEST]
    return mend(out) if rng.random() < 0.6 else out


def mend(frame: bytes) -> bytes:
    """Return the frame with right checksums where they can be computed."""
    seen = wire.parse(frame)
    if seen is None or not seen.bad:
        return frame
    out = bytearray(frame)
    if "ip" in seen.bad:
        size = (out[seen.l2] & 15) * 4
        out[seen.l2 + 10 : seen.l2 + 12] = b"\0\0"
        struct.pack_into("!H", out, seen.l2 + 10, wire.checksum(bytes(out[seen.l2 : seen.l2 + size])))
    if seen.bad[-1] == "sctp":
        out[seen.l4 + 8 : seen.l4 + 12] = bytes(4)
        out[seen.l4 + 8 : seen.l4 + 12] = wire.crc32c(bytes(out[seen.l4 : seen.end])).to_bytes(4, "little")
    offset = {"tcp": 16, "udp": 6, "icmp": 2}.get(seen.bad[-1])
    if offset is not None:
        pseudo = seen.src + seen.dst + struct.pack("!II", seen.end - seen.l4, seen.proto)
        covered = b"" if seen.proto == wire.ICMP else pseudo
        end = seen.end
        if seen.proto == wire.UDP:
            (length,) = struct.unpack_from("!H", out, seen.l4 + 4)
            end = seen.l4 + length
            covered = seen.src + seen.dst + struct.pack("!II", length, wire.UDP)
        out[seen.l4 + offset : seen.l4 + offset + 2] = b"\0\0"
        value = wire.checksum(covered + bytes(out[seen.l4 : end]))
        struct.pack_into("!H", out, seen.l4 + offset, value or (0xFFFF if seen.proto == wire.UDP else 0))
    return bytes(out)
