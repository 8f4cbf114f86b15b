"""The Ethernet frames of a capture: files of pcap (microseconds, nanoseconds, both byte orders) and pcapng.

Source: draft-ietf-opsawg-pcap, draft-ietf-opsawg-pcapng. A packet without an Ethernet header (link types RAW, LINUX_SLL and
LINUX_SLL2) gets one with addresses of zeros.
"""

from __future__ import annotations

import struct
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO

from lbagent.errors import ConfigError

_PCAP = {b"\xa1\xb2\xc3\xd4": ">", b"\xd4\xc3\xb2\xa1": "<", b"\xa1\xb2\x3c\x4d": ">", b"\x4d\x3c\xb2\xa1": "<"}
_PCAPNG = b"\x0a\x0d\x0d\x0a"
_BYTE_ORDER = {b"\x1a\x2b\x3c\x4d": ">", b"\x4d\x3c\x2b\x1a": "<"}
_INTERFACE, _SIMPLE, _ENHANCED = 1, 3, 6
MAX_RECORD = 1 << 20  # bytes
MAX_PADDING = 1 << 16  # bytes: no packet is longer
_RAW = (12, 101, 228, 229)
_SLL, _SLL2 = 113, 276


def whole_file(path: str) -> bytes:
    """Return the bytes of a file, of stdin for `-`. Raises ConfigError."""
    try:
        return sys.stdin.buffer.read() if path == "-" else Path(path).read_bytes()
    except OSError as error:
        raise ConfigError(f"--pcap {path}: {error.strerror}") from None


def frames(path: str) -> Iterator[bytes]:
    """Yield the frames of a file, of stdin for `-`, as they come. Raises ConfigError."""
    if path == "-":
        yield from _frames(sys.stdin.buffer, "stdin")
        return
    try:
        file = open(path, "rb")  # noqa: SIM115 - the file is open while the caller takes frames
    except OSError as error:
        raise ConfigError(f"--pcap {path}: {error.strerror}") from None
    with file:
        yield from _frames(file, path)


def _frames(file: BinaryIO, name: str) -> Iterator[bytes]:
    def read(count: int, *, end_is_error: bool = True) -> bytes:
        if count > MAX_RECORD:
            raise ConfigError(f"--pcap {name}: a record of {count} bytes; is it a capture?")
        data = file.read(count)
        if len(data) < count and (data or end_is_error):
            raise ConfigError(f"--pcap {name}: the capture ends in the middle of a record")
        return data

    magic = file.read(4)
    if magic in _PCAP:
        yield from _pcap(read, _PCAP[magic])
    elif magic == _PCAPNG:
        yield from _pcapng(read, name)
    elif magic or name != "stdin":
        raise ConfigError(f"--pcap {name}: neither pcap nor pcapng")


def _pcap(read: Callable[..., bytes], order: str) -> Iterator[bytes]:
    (link_type,) = struct.unpack(f"{order}16xI", read(20))
    while head := read(16, end_is_error=False):
        size, whole = struct.unpack(f"{order}8xII", head)
        yield _padded(_with_header(read(size), link_type & 0xFFFF), whole - size)


def _pcapng(read: Callable[..., bytes], name: str) -> Iterator[bytes]:
    kind, order, links = _PCAPNG, "", list[int]()
    first = True
    while first or (kind := read(4, end_is_error=False)):
        first = False
        if kind == _PCAPNG:
            size, order = read(4), _BYTE_ORDER.get(read(4), "")
            if not order:
                raise ConfigError(f"--pcap {name}: not a pcapng section")
            read(struct.unpack(f"{order}I", size)[0] - 12)
            links = []
            continue
        (size,) = struct.unpack(f"{order}I", read(4))
        body = read(max(0, size - 8))[:-4]
        number = struct.unpack(f"{order}I", kind)[0]
        if number == _INTERFACE and len(body) >= 2:
            links.append(struct.unpack_from(f"{order}H", body)[0])
        elif number == _ENHANCED and len(body) >= 20:
            interface, captured, whole = struct.unpack_from(f"{order}I8xII", body)
            frame = _with_header(body[20 : 20 + captured], links[interface] if interface < len(links) else 1)
            yield _padded(frame, whole - captured)
        elif number == _SIMPLE and len(body) >= 4 and links:
            yield _with_header(body[4 : 4 + struct.unpack_from(f"{order}I", body)[0]], links[0])


def _padded(frame: bytes, missing: int) -> bytes:
    """Return the frame with zeros in the place of what the capture left out (tcpdump -s)."""
    return frame + bytes(max(0, min(missing, MAX_PADDING)))


def _with_header(data: bytes, link_type: int) -> bytes:
    """Return the Ethernet frame of a record."""
    if link_type in _RAW:
        kind = b"\x86\xdd" if data[:1] and data[0] >> 4 == 6 else b"\x08\x00"
        return bytes(12) + kind + data
    if link_type == _SLL:
        return bytes(12) + data[14:]
    if link_type == _SLL2:
        return bytes(12) + data[:2] + data[20:]
    return data
