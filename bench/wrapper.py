"""The undo wrapper (reference/undo.c): its packets, and one instance of it in front of a program under test."""

from __future__ import annotations

import mmap
import os
import socket
import struct
from collections.abc import Sequence
from dataclasses import dataclass

from bench.programs import ARRAY, MMAPABLE, PROG_ARRAY, Map, Maps, load

LIST_ENTRIES = 1 << 19
SYN, ACK, FIN = 0x02, 0x10, 0x11
SYN_ACK, RST_ACK, DATA = 0x12, 0x14, 0x18
TCP, UDP, SCTP = 6, 17, 132
INIT, INIT_ACK, SACK, COOKIE_ECHO, COOKIE_ACK = 1, 2, 3, 10, 11  # chunks of SCTP, in the place of flags
SCTP_BYTES = 100  # of a packet from its ports on
NODE_MAC, CLIENT_MAC = bytes.fromhex("020000000001"), bytes.fromhex("0200000000c1")
ODD = 0x9E3779B1  # visits every flow of a power of two once, in an order that no prefetcher predicts
TTL = 64
PORT_BITS = 14  # PORTS in packet.h
FRAME4, FRAME6 = 64, 84  # bytes of a frame: headers and 10 bytes of payload


@dataclass(frozen=True)
class Tuple:
    """Addresses and ports of one direction of a flow; packed addresses, host-order ports."""

    src: bytes
    dst: bytes
    sport: int
    dport: int

    def record(self) -> bytes:
        """Return the form that reference/undo.c reads."""
        return self.src + self.dst + struct.pack(">HH4x", self.sport, self.dport)


def ones_sum(data: bytes) -> int:
    """Return the folded ones' complement sum of 16-bit words (RFC 1071)."""
    data += b"\0" * (len(data) % 2)
    total: int = sum(struct.unpack(f">{len(data) // 2}H", data))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return total


def frame_bytes(family: int, proto: int) -> int:
    """Return the bytes of a frame."""
    if proto == SCTP:
        return (34 if family == 4 else 54) + SCTP_BYTES
    return FRAME4 if family == 4 else FRAME6


def ip_header(family: int, proto: int) -> bytes:
    """Return an IP header whose checksum is right for addresses and identification of zero sum."""
    size = frame_bytes(family, proto) - (14 if family == 4 else 54)
    if family == 6:
        return struct.pack(">IHBB32x", 0x60000000, size, proto, TTL)
    head = struct.pack(">BBHHHBBH8x", 0x45, 0, size, 0, 0, TTL, proto, 0)
    return head[:10] + struct.pack(">H", ~ones_sum(head) & 0xFFFF) + head[12:]


def l4_header(family: int, proto: int) -> bytes:
    """Return a TCP or UDP header with its checksum for addresses, ports, flags and first payload word of zero sum.

    Of SCTP: a header with a checksum that is not 0, and a chunk that has the tag of both sides where an INIT ACK has it.
    """
    if proto == SCTP:
        tag = 0x01020304
        return struct.pack(">HHIIBBHII", 0, 0, tag, 1, 0, 0, 20, tag, 0)
    size = (FRAME4 - 34) if family == 4 else (FRAME6 - 54)
    if proto == TCP:
        head, at = struct.pack(">HHIIHHHH4x", 0, 0, 1, 1, 0, 8192, 0, 0), 16
    else:
        head, at = struct.pack(">HHHH16x", 0, 0, size, 0), 6
    check = ~ones_sum(head + struct.pack(">HH", proto, size)) & 0xFFFF
    return head[:at] + struct.pack(">H", check) + head[at + 2 :]


@dataclass(frozen=True)
class Plan:
    """Which packets to write: flows base .. base + flows of one client tuple, or the tuples of the list."""

    first: Tuple  # flow 0; the source port is ignored, flow numbers become ports and addresses
    flows: int = 1  # a power of two
    flags: int = ACK
    proto: int = TCP
    base: int = 0
    in_order: bool = False
    listed: bool = False
    flood_from: bytes = b""  # address of the first flood client; '' = no flood
    flood_flags: int = SYN
    flood_copies: int = 1  # 1 or 2 packets of each flood flow
    flood_ratio: int = 1  # flood packets to one of the others: 1, 3, 7, 15
    answer: int = (
        0  # flags by which the backend answers the flood (without one: every packet); UDP: any number; 0 = silent
    )
    dmac: bytes = NODE_MAC
    smac: bytes = CLIENT_MAC

    @property
    def family(self) -> int:
        """4 or 6, from the addresses."""
        return 4 if len(self.first.src) == 4 else 6


def flag_word(plan: Plan, flags: int) -> bytes:
    """Return bytes 12 and 13 of the L4 header: TCP's data offset and flags, or kind and flags of SCTP's first chunk."""
    return bytes((flags, 0)) if plan.proto == SCTP else bytes((0x50, flags))


class Wrapper:
    """One loaded copy of undo.c with its own control record, in front of one program."""

    def __init__(self, family: int, target_fd: int) -> None:
        """Load it with the program under test as its tail call."""
        self.family = family
        self.record_size = 16 if family == 4 else 40
        self.maps = Maps(
            {
                "undo_control": Map(ARRAY, 4, self.control_size(family), 1, MMAPABLE),
                "undo_list": Map(ARRAY, 4, LIST_ENTRIES * self.record_size, 1, MMAPABLE),
                "undo_calls": Map(PROG_ARRAY, 4, 4, 1),
            }
        )
        self.fd = load("undo", family, self.maps, (f"-DLIST_MASK={LIST_ENTRIES - 1}ull",))
        self.maps.put("undo_calls", struct.pack("<I", 0), struct.pack("<I", target_fd))
        self._control = self.view(self.maps.fds["undo_control"])
        self.frame = bytes(FRAME4 if family == 4 else FRAME6)

    @staticmethod
    def control_format(family: int) -> str:
        """Return struct control of reference/packet.h."""
        address = f"{4 if family == 4 else 16}s"
        return f"<8Q{address}{address}{address}2s2s2sH{'4x' if family == 4 else ''}2s6xQ16s40s24s"

    @classmethod
    def control_size(cls, family: int) -> int:
        """Return its size in bytes."""
        return struct.calcsize(cls.control_format(family))

    @staticmethod
    def view(fd: int) -> mmap.mmap:
        """Map a control record into this process."""
        return mmap.mmap(fd, mmap.PAGESIZE)

    @classmethod
    def encode(cls, plan: Plan, seq: int, flood_seq: int) -> tuple[bytes, bytes]:
        """Return the control record and the input frame (with the bytes that the program does not change)."""
        first, ether = plan.first, plan.dmac + plan.smac + (b"\x08\x00" if plan.family == 4 else b"\x86\xdd")
        head, l4 = ip_header(plan.family, plan.proto), l4_header(plan.family, plan.proto)
        data = struct.pack(
            cls.control_format(plan.family),
            seq, 1 if plan.in_order else ODD, plan.flows - 1, plan.base, plan.listed, plan.flood_ratio if plan.flood_from else 0, flood_seq,
            plan.flood_copies - 1, first.src, first.dst, plan.flood_from, struct.pack(">H", first.dport),
            flag_word(plan, plan.flags), bytes((0x50, plan.flood_flags)), plan.proto, flag_word(plan, plan.answer) if plan.answer else b"", 0,
            ether, head, l4,
        )  # fmt: skip
        return data, (ether + head + l4).ljust(frame_bytes(plan.family, plan.proto), b"\0")

    def set(self, plan: Plan, *, place: tuple[int, int] = (0, 0)) -> None:
        """Switch to other packets; `place` is the start of the flow and flood counters."""
        data, self.frame = self.encode(plan, *place)
        self._control[: len(data)] = data

    @property
    def position(self) -> tuple[int, int]:
        """Packets written so far: of the plan's flows, of the flood."""
        return struct.unpack_from("<Q", self._control, 0)[0], struct.unpack_from("<Q", self._control, 48)[0]

    @staticmethod
    def client_tuple(plan: Plan, flow: int) -> Tuple:
        """Return the tuple packet.h computes for a flow number."""
        first = plan.first
        host = int.from_bytes(first.src[-4:], "big") + (flow >> PORT_BITS)
        return Tuple(first.src[:-4] + host.to_bytes(4, "big"), first.dst, 1024 + flow % (1 << PORT_BITS), first.dport)

    def fill_list(self, tuples: Sequence[Tuple]) -> None:
        """Write the tuples for the list mode."""
        data = b"".join(item.record() for item in tuples)
        with mmap.mmap(self.maps.fds["undo_list"], (len(data) + mmap.PAGESIZE - 1) & -mmap.PAGESIZE) as view:
            view[: len(data)] = data

    def close(self) -> None:
        """Unload."""
        self._control.close()
        os.close(self.fd)
        self.maps.close()


def tuple_of(frame: bytes) -> Tuple:
    """Read addresses and ports of a frame without options."""
    if frame[12:14] == b"\x08\x00":
        src, dst, at = frame[26:30], frame[30:34], 34
    else:
        src, dst, at = frame[22:38], frame[38:54], 54
    return Tuple(src, dst, *struct.unpack_from(">HH", frame, at))


def ip(text: str) -> bytes:
    """Return packed bytes of an address."""
    return socket.inet_pton(socket.AF_INET6 if ":" in text else socket.AF_INET, text)
