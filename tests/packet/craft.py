"""Frames for the packet tests, built by scapy, and the addresses of the small world they travel in.

client 198.51.100.7 -- router -- [lb0 node 192.0.2.1] -- lb1 -- remote backends 10.1.0.n
                                       pod0 -- local backends 10.2.0.n
"""

from __future__ import annotations

import logging
import socket
from dataclasses import dataclass
from typing import Any

logging.getLogger("scapy.runtime").setLevel(logging.ERROR)

from scapy.layers.inet import ICMP, IP, TCP, UDP  # noqa: E402
from scapy.layers.inet6 import (  # noqa: E402
    ICMPv6DestUnreach,
    ICMPv6PacketTooBig,
    ICMPv6TimeExceeded,
    IPv6,
)
from scapy.layers.l2 import Dot1Q, Ether  # noqa: E402
from scapy.layers.sctp import (  # noqa: E402
    SCTP,
    SCTPChunkAbort,
    SCTPChunkCookieAck,
    SCTPChunkCookieEcho,
    SCTPChunkData,
    SCTPChunkInit,
    SCTPChunkInitAck,
    SCTPChunkShutdownComplete,
)
from scapy.packet import Packet, Raw  # noqa: E402

NODE_MAC = "02:00:00:00:00:01"  # lb0
NODE2_MAC = "02:00:00:00:00:02"  # lb1
POD_MAC = "02:00:00:00:00:03"  # the node's end of pod0
ROUTER_MAC = "02:00:00:00:01:01"  # towards the clients, behind lb0
BACKEND_MAC = "02:00:00:00:01:02"  # next hop of the remote backends, behind lb1
LOCAL_MAC = "02:00:00:00:01:03"  # the pod


@dataclass(frozen=True)
class Family:
    """Addresses and layers of one IP version."""

    version: int
    client: str
    client2: str
    vip: str
    vip2: str
    node: str  # lb0
    node2: str  # lb1: the SNAT address towards remote backends
    router: str
    router2: str  # next hop behind lb1
    remote_net: str
    local_net: str

    @property
    def af(self) -> int:
        """Address family number."""
        return socket.AF_INET if self.version == 4 else socket.AF_INET6

    def packed(self, text: str) -> bytes:
        """Return the address in network byte order."""
        return socket.inet_pton(self.af, text)

    def text(self, packed: bytes) -> str:
        """Return the address as text."""
        return socket.inet_ntop(self.af, packed)

    def remote(self, n: int) -> str:
        """Return the address of remote backend n."""
        return self.remote_net + str(n)

    def local(self, n: int) -> str:
        """Return the address of local backend n."""
        return self.local_net + str(n)

    def ip(self, src: str, dst: str, ttl: int = 64, **fields: Any) -> Packet:
        """Return the IP layer."""
        if self.version == 4:
            return IP(src=src, dst=dst, ttl=ttl, **fields)
        return IPv6(src=src, dst=dst, hlim=ttl, **fields)

    def unreachable(self, code: int | None = None) -> Packet:
        """Return the ICMP layer of "port unreachable" (or another code)."""
        if self.version == 4:
            return ICMP(type=3, code=3 if code is None else code)
        return ICMPv6DestUnreach(code=4 if code is None else code)

    def too_big(self, mtu: int) -> Packet:
        """Return "fragmentation needed" or "packet too big"."""
        return ICMP(type=3, code=4, nexthopmtu=mtu) if self.version == 4 else ICMPv6PacketTooBig(mtu=mtu)

    def time_exceeded(self) -> Packet:
        """Return "time exceeded in transit"."""
        return ICMP(type=11, code=0) if self.version == 4 else ICMPv6TimeExceeded(code=0)


V4 = Family(4, "198.51.100.7", "198.51.100.8", "203.0.113.10", "203.0.113.11", "192.0.2.1", "10.0.0.1",
            "192.0.2.254", "10.0.0.254", "10.1.0.", "10.2.0.")  # fmt: skip
V6 = Family(6, "2001:db8:100::7", "2001:db8:100::8", "2001:db8:113::10", "2001:db8:113::11", "2001:db8:2::1", "fd00::1",
            "2001:db8:2::fe", "fd00::fe", "fd00:1::", "fd00:2::")  # fmt: skip
FAMILIES = {4: V4, 6: V6}


def frame(packet: Packet, *, src: str = ROUTER_MAC, dst: str = NODE_MAC, vlans: tuple[int, ...] = ()) -> bytes:
    """Put an IP packet into an Ethernet frame, outermost VLAN tag first (two tags: 802.1ad outside)."""
    head: Packet = Ether(src=src, dst=dst)
    for n, vlan in enumerate(vlans):
        if len(vlans) == 2 and n == 0:
            head.type = 0x88A8
        head = head / Dot1Q(vlan=vlan)
    return bytes(head / packet)


def tcp(
    fam: Family, src: str, sport: int, dst: str, dport: int, flags: str = "S", *, load: bytes = b"", **kw: Any
) -> Packet:
    """Return an IP/TCP packet; `seq`, `ack`, `options` go to TCP, the rest to IP.

    Without numbers it belongs to a connection in which both sides began with 0 and have sent no data yet: an ACK acknowledges the
    other side's SYN.
    """
    own = {k: kw.pop(k) for k in ("seq", "ack", "options", "window") if k in kw}
    if "A" in flags:
        own.setdefault("ack", 1)
    return fam.ip(src, dst, **kw) / TCP(sport=sport, dport=dport, flags=flags, **own) / Raw(load)


def udp(
    fam: Family,
    src: str,
    sport: int,
    dst: str,
    dport: int,
    load: bytes = b"question",
    *,
    chksum: int | None = None,
    **kw: Any,
) -> Packet:
    """Return an IP/UDP packet."""
    return fam.ip(src, dst, **kw) / UDP(sport=sport, dport=dport, chksum=chksum) / Raw(load)


CLIENT_TAG, BACKEND_TAG = 0x11223344, 0xA1B2C3D4  # initiate tags of an association's sides


def chunk(kind: str, load: bytes = b"x" * 40) -> tuple[int, Packet]:
    """Return a chunk of an association, and the verification tag of its packet.

    Kinds: TCP's letters for what means the same, as the tests of all protocols use them, or the kind itself.
    """
    chunks: dict[str, tuple[int, Packet]] = {
        "S": (0, SCTPChunkInit(init_tag=CLIENT_TAG, a_rwnd=65536, n_out_streams=10, n_in_streams=10, init_tsn=1)),
        "SA": (
            CLIENT_TAG,
            SCTPChunkInitAck(init_tag=BACKEND_TAG, a_rwnd=65536, n_out_streams=10, n_in_streams=10, init_tsn=1),
        ),
        "echo": (BACKEND_TAG, SCTPChunkCookieEcho(cookie=b"cookie" * 8)),
        "cookie-ack": (CLIENT_TAG, SCTPChunkCookieAck()),
        "A": (BACKEND_TAG, SCTPChunkData(data=load, beginning=1, ending=1, tsn=1)),
        "<A": (CLIENT_TAG, SCTPChunkData(data=load, beginning=1, ending=1, tsn=1)),
        "R": (BACKEND_TAG, SCTPChunkAbort()),
        "<R": (CLIENT_TAG, SCTPChunkAbort()),
        "complete": (BACKEND_TAG, SCTPChunkShutdownComplete()),
    }
    return chunks[kind]


def sctp(
    fam: Family, src: str, sport: int, dst: str, dport: int, kind: str | Packet = "S", *,
    tag: int | None = None, load: bytes = b"x" * 40, chksum: int | None = None, **kw: Any,
) -> Packet:  # fmt: skip
    """Return an IP/SCTP packet with one chunk: one of `chunk()` by its kind, or the caller's."""
    usual, inner = chunk(kind, load) if isinstance(kind, str) else (0, kind)
    head = SCTP(sport=sport, dport=dport, tag=usual if tag is None else tag, chksum=chksum)
    return fam.ip(src, dst, **kw) / head / inner


def segment(fam: Family, proto: int, src: str, sport: int, dst: str, dport: int, flags: str = "S", **kw: Any) -> Packet:
    """Return a TCP segment; for UDP a datagram (flags left out), for SCTP a packet whose chunk means the same as the flags."""
    if proto == socket.IPPROTO_UDP:
        return udp(fam, src, sport, dst, dport, **kw)
    if proto == socket.IPPROTO_SCTP:
        return sctp(fam, src, sport, dst, dport, flags if flags in ("S", "SA", "R") else "A", **kw)
    return tcp(fam, src, sport, dst, dport, flags, **kw)


def icmp_error(fam: Family, src: str, dst: str, kind: Packet, quoted: bytes, **kw: Any) -> Packet:
    """Return an ICMP error that quotes `quoted` (an IP packet, cut by the caller as it likes)."""
    return fam.ip(src, dst, **kw) / kind / Raw(quoted)


def decode(data: bytes) -> Packet:
    """Parse a frame with scapy."""
    return Ether(data)


def recomputed(packet: Packet) -> bytes:
    """Return the frame with all lengths and checksums computed again by scapy: equal bytes mean they were right.

    A quoted packet inside an ICMP error is left as it is.
    """
    fresh = packet.copy()
    layer: Packet | None = fresh
    while layer is not None and not str(layer.name).endswith(("in ICMP", "in ICMPv6")):
        for name in ("chksum", "cksum"):
            if name in layer.fields and not (layer.name in ("UDP", "SCTP") and layer.chksum == 0):
                delattr(layer, name)
        layer = layer.payload or None
    return bytes(fresh)
