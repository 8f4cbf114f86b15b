"""Ethernet frames of TCP, UDP and SCTP packets, and of pings, as bytes: made from addresses, and read back. Pure.

Ports and lengths are host order; addresses are packed. Source: RFC 791, 8200, 9293, 768, 9260, 1071; IEEE 802.1Q.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from lbagent.errors import ConfigError
from lbagent.maps.crc32c import crc32c
from lbagent.model.family import Family

TCP, UDP, ICMP, ICMP6, SCTP = 6, 17, 1, 58, 132
PROTOCOLS = {"tcp": TCP, "udp": UDP, "sctp": SCTP, "icmp": ICMP}  # icmp: a ping, of either family
_NAMES = {TCP: "tcp", UDP: "udp", ICMP: "icmp", ICMP6: "icmp6", SCTP: "sctp"}
_TYPE = {Family.IPV4: 0x0800, Family.IPV6: 0x86DD}
_VLAN_TYPES = (0x8100, 0x88A8)
_PLAIN4, _TYPE6, _WITH_PORTS = (
    b"\x08\x00\x45",
    b"\x86\xdd",
    (b"\x06", b"\x11", b"\x84"),
)  # of frames whose fields have fixed places
_EXTENSIONS = (0, 43, 44, 60)  # IPv6 headers that may be before L4
FLAG_LETTERS = "FSRPAU"  # bit 0 and up
MIN_PAYLOAD = 22  # bytes: a frame has 60 bytes with the smallest headers, as on Ethernet
TTL = 64
MAX_FRAME = 3_400  # bytes that BPF_PROG_TEST_RUN takes: a page without head and tail room
GROUP_BIT = 1
_HEAD = 14  # bytes of an Ethernet header
_L4_HEADS = {TCP: 20, SCTP: 32}  # bytes that each packet has; of the other protocols 8
_INIT = struct.pack(">BBHIIHHI", 1, 0, 20, 1, 65536, 10, 10, 1)  # SCTP's chunk that opens an association, of tag 1


class Endpoints(NamedTuple):
    """What a frame says. `family` None: no IP packet; ports None: not in this frame."""

    family: Family | None
    protocol: int = 0
    source: bytes = b""
    source_port: int | None = None
    destination: bytes = b""
    destination_port: int | None = None
    flags: int = 0  # TCP

    @property
    def protocol_name(self) -> str:
        """The protocol as a word, else its number."""
        return _NAMES.get(self.protocol, str(self.protocol) if self.family else "")

    @property
    def flag_text(self) -> str:
        """The TCP flags as letters."""
        return "".join(letter for bit, letter in enumerate(FLAG_LETTERS) if self.flags >> bit & 1)


class Tuple(NamedTuple):
    """Addresses and ports of a packet to make; a ping has ports 0."""

    protocol: int
    source: bytes
    source_port: int
    destination: bytes
    destination_port: int


def flag_bits(text: str) -> int:
    """Return the TCP flags of letters. Raises ConfigError."""
    unknown = set(text.upper()) - set(FLAG_LETTERS)
    if unknown or not text:
        raise ConfigError(f"--flags {text}: letters of {FLAG_LETTERS} are flags (S: SYN, A: ACK, …), SA is a SYN-ACK")
    return sum(1 << FLAG_LETTERS.index(letter) for letter in set(text.upper()))


def make_frame(to: Tuple, macs: bytes, *, flags: int = 2, length: int = 0) -> bytes:
    """Return a frame with right checksums; `macs`: destination and source; `length`: of the whole frame, 0: the least.

    Of SCTP it is an INIT. Raises ConfigError where that is too little or too much.
    """
    family = Family.of(to.source)
    head = (20 if family is Family.IPV4 else 40) + _L4_HEADS.get(to.protocol, 8) + 14
    payload = max(0, length - head) if length else (0 if to.protocol in _L4_HEADS else MIN_PAYLOAD)
    if length and not head <= length <= MAX_FRAME:
        raise ConfigError(f"--length {length}: a frame of this packet has {head} to {MAX_FRAME} bytes")
    if to.protocol == TCP:
        sequence, acknowledged = 1, 1 if flags & 16 else 0
        segment = struct.pack(
            ">HHIIBBHHH", to.source_port, to.destination_port, sequence, acknowledged, 5 << 4, flags, 65535, 0, 0
        )
        at = 16
    elif to.protocol in (ICMP, ICMP6):
        segment, at = struct.pack(">BBHHH", 8 if to.protocol == ICMP else 128, 0, 0, 1, 1), 2
    elif to.protocol == SCTP:
        segment = struct.pack(">HHII", to.source_port, to.destination_port, 0, 0) + _INIT
    else:
        segment = struct.pack(">HHHH", to.source_port, to.destination_port, 8 + payload, 0)
        at = 6
    segment += bytes(payload)
    if to.protocol == SCTP:
        segment = segment[:8] + crc32c(segment).to_bytes(4, "little") + segment[12:]
    else:
        pseudo = to.source + to.destination + struct.pack(">II", len(segment), to.protocol)
        if to.protocol == ICMP:
            pseudo = b""  # RFC 792: its checksum covers no addresses
        total = internet_checksum(pseudo + segment) or 0xFFFF
        segment = segment[:at] + total.to_bytes(2, "big") + segment[at + 2 :]
    if family is Family.IPV4:
        ip = struct.pack(">BBHHHBBH", 0x45, 0, 20 + len(segment), 0, 0x4000, TTL, to.protocol, 0)
        ip += to.source + to.destination
        ip = ip[:10] + internet_checksum(ip).to_bytes(2, "big") + ip[12:]
    else:
        ip = struct.pack(">IHBB", 6 << 28, len(segment), to.protocol, TTL) + to.source + to.destination
    return macs + _TYPE[family].to_bytes(2, "big") + ip + segment


def internet_checksum(data: bytes) -> int:
    """Return the Internet checksum of bytes (RFC 1071)."""
    data += bytes(len(data) % 2)
    total: int = sum(struct.unpack(f">{len(data) // 2}H", data))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return ~total & 0xFFFF


def read_frame(frame: bytes) -> Endpoints:
    """Return what a frame says, as far as it can be read."""
    at = 12
    kind = int.from_bytes(frame[at : at + 2], "big")
    while kind in _VLAN_TYPES:
        at += 4
        kind = int.from_bytes(frame[at : at + 2], "big")
    packet = frame[at + 2 :]
    if kind == _TYPE[Family.IPV4] and len(packet) >= 20:
        first = not int.from_bytes(packet[6:8], "big") & 0x1FFF
        l4 = packet[(packet[0] & 15) * 4 :] if first else b""
        return _with_ports(Endpoints(Family.IPV4, packet[9], packet[12:16], None, packet[16:20]), l4)
    if kind == _TYPE[Family.IPV6] and len(packet) >= 40:
        protocol, l4 = packet[6], packet[40:]
        while protocol in _EXTENSIONS and len(l4) >= 8:
            if protocol == 44 and int.from_bytes(l4[2:4], "big") & 0xFFF8:
                protocol, l4 = l4[0], b""
                break
            size = 8 if protocol == 44 else (l4[1] + 1) * 8
            protocol, l4 = l4[0], l4[size:]
        return _with_ports(Endpoints(Family.IPV6, protocol, packet[8:24], None, packet[24:40]), l4)
    return Endpoints(None)


def _with_ports(found: Endpoints, l4: bytes) -> Endpoints:
    if found.protocol not in (TCP, UDP, SCTP) or len(l4) < 4:
        return found
    source, destination = struct.unpack(">HH", l4[:4])
    flags = l4[13] & 0x3F if found.protocol == TCP and len(l4) > 13 else 0
    return found._replace(source_port=source, destination_port=destination, flags=flags)


def flow_bytes(frame: bytes) -> bytes | None:
    """Return protocol, addresses and ports of a TCP, UDP or SCTP frame without tags, options, extension headers and fragments."""
    if frame[12:15] == _PLAIN4 and not frame[20] & 0x3F and not frame[21] and frame[23:24] in _WITH_PORTS:
        return frame[23:24] + frame[26:38]
    if frame[12:14] == _TYPE6 and frame[20:21] in _WITH_PORTS:
        return frame[20:21] + frame[22:58]
    return None


def handed_over(frame: bytes) -> bytes:
    """Return the frame as XDP leaves it to tc_after_xdp where there is no room for metadata (hook_xdp.h)."""
    return frame[:6] + bytes((frame[6] | GROUP_BIT,)) + frame[7:]


def shortened(frame: bytes) -> bytes:
    """Return the frame as one that a test run takes: of a longer one the first part, with the length of that in its IP header.

    A longer one stands for several segments; its addresses, ports and flags are those of each.
    """
    kind = frame[12:14]
    if len(frame) <= MAX_FRAME or kind not in (b"\x08\x00", b"\x86\xdd"):
        return frame[:MAX_FRAME]
    size = _HEAD + 1_000  # fits the MTU of any way
    cut = bytearray(frame[:size])
    if kind == b"\x86\xdd":
        cut[18:20] = (size - _HEAD - 40).to_bytes(2, "big")
        return bytes(cut)
    head = (cut[14] & 15) * 4
    cut[16:18] = (size - _HEAD).to_bytes(2, "big")
    cut[24:26] = bytes(2)
    cut[24:26] = internet_checksum(bytes(cut[_HEAD : _HEAD + head])).to_bytes(2, "big")
    return bytes(cut)


def addressed_to(frame: bytes, mac: bytes) -> bytes:
    """Return the frame with another destination MAC address; one for a group stays."""
    return frame if frame[:1] and frame[0] & GROUP_BIT else mac + frame[6:]
