"""The blocks of a pcapng file of Ethernet frames, as bytes: Wireshark, tcpdump and others read it. Pure.

A file is a section header, then in any order interfaces, packets of an interface that came before, and statistics of interfaces.
Every block is whole in itself, so a file that ends behind a block is readable. Times are nanoseconds since the epoch; the byte
order is that of this machine, which the section header tells. Source: draft-ietf-opsawg-pcapng.
"""

from __future__ import annotations

import struct

SECTION = 0x0A0D0D0A
_INTERFACE, _STATISTICS, _PACKET = 1, 5, 6
_BYTE_ORDER_MAGIC = 0x1A2B3C4D
_ETHERNET = 1  # link type
_NANOSECONDS = 9  # if_tsresol: 10^-9 s
_COMMENT = 1
_SHB_APPLICATION = 4
_IF_NAME, _IF_TIME_RESOLUTION = 2, 9
_PACKET_FLAGS = 2
INBOUND, OUTBOUND = 1, 2  # of the packet flags
_STATS_START, _STATS_END, _STATS_RECEIVED, _STATS_DROPPED = 2, 3, 4, 5
_MAX_OPTION = 0xFFFF  # bytes
_PACKET_HEAD, _SIZE = struct.Struct("=7I").pack, struct.Struct("=I").pack
_PACKET_KIND, _INTERFACE_KIND = _SIZE(_PACKET), _SIZE(_INTERFACE)
_PACKET_BYTES = 32  # of a packet without frame and options
_PADDING = (b"", bytes(1), bytes(2), bytes(3))


def section_header(application: str) -> bytes:
    """Return the first block of a file; `application` wrote it."""
    head = struct.pack("=IHHq", _BYTE_ORDER_MAGIC, 1, 0, -1)  # version 1.0; the length of the section is not known
    return _block(SECTION, head, _option(_SHB_APPLICATION, application.encode()))


def interface(name: str, snap_length: int) -> bytes:
    """Return the description of an interface, whose packets have at most `snap_length` bytes; the first of a file is number 0."""
    options = _option(_IF_NAME, name.encode()) + _option(_IF_TIME_RESOLUTION, bytes((_NANOSECONDS,)))
    return _block(_INTERFACE, struct.pack("=HHI", _ETHERNET, 0, snap_length), options)


def packet_options(comment: str, direction: int) -> bytes:
    """Return the options of a packet; `direction`: INBOUND or OUTBOUND. Many packets may have the same."""
    return _option(_COMMENT, comment.encode()) + _option(_PACKET_FLAGS, struct.pack("=I", direction)) + bytes(4)


def packet(number: int, time_ns: int, frame: bytes, length: int, options: bytes) -> bytes:
    """Return a packet of an interface: the first bytes of a frame that has `length` bytes, with `packet_options`."""
    kept = len(frame)
    padding = -kept % 4
    size = _PACKET_BYTES + kept + padding + len(options)
    head = _PACKET_HEAD(_PACKET, size, number, time_ns >> 32, time_ns & 0xFFFFFFFF, kept, max(kept, length))
    return b"".join((head, frame, _PADDING[padding], options, _SIZE(size)))


def statistics(number: int, start_ns: int, end_ns: int, received: int, dropped: int, comment: str = "") -> bytes:
    """Return what an interface has received since `start_ns`, and how much of it is missing in the file."""
    options = _option(_COMMENT, comment.encode()) if comment else b""
    for code, time_ns in ((_STATS_START, start_ns), (_STATS_END, end_ns)):
        options += _option(code, struct.pack("=II", *_halves(time_ns)))
    for code, count in ((_STATS_RECEIVED, received), (_STATS_DROPPED, dropped)):
        options += _option(code, struct.pack("=Q", count))
    return _block(_STATISTICS, struct.pack("=III", number, *_halves(end_ns)), options)


def is_packet(block: bytes) -> bool:
    """Whether a block is a packet."""
    return block[:4] == _PACKET_KIND


def is_interface(block: bytes) -> bool:
    """Whether a block is the description of an interface."""
    return block[:4] == _INTERFACE_KIND


def _halves(time_ns: int) -> tuple[int, int]:
    return time_ns >> 32 & 0xFFFFFFFF, time_ns & 0xFFFFFFFF


def _block(kind: int, body: bytes, options: bytes) -> bytes:
    data = body + options + bytes(4)  # opt_endofopt
    size = struct.pack("=I", 12 + len(data))
    return struct.pack("=I", kind) + size + data + size


def _option(code: int, value: bytes) -> bytes:
    value = value[:_MAX_OPTION]
    return struct.pack("=HH", code, len(value)) + _padded(value)


def _padded(data: bytes) -> bytes:
    return data + bytes(-len(data) % 4)
