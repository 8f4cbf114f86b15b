"""Raw sockets: send probes and announcements of addresses, and receive the frames in which other hosts claim one."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import logging
import socket
import struct
import sys
from collections.abc import Callable, Collection

from lbagent.announce.l2 import frames
from lbagent.announce.l2.frames import AddressSighting

log = logging.getLogger(__name__)
SO_ATTACH_FILTER = 26
ICMP6_FILTER = 1
IPV6_HOPLIMIT, IPV6_RECVHOPLIMIT = 52, 51
MAX_FRAME = 256  # bytes; the parsed part is shorter
FRAME_BATCH = 64  # frames between two turns of other tasks
PACKET_HOST, PACKET_BROADCAST, PACKET_MULTICAST = 0, 1, 2
_LD_H, _LD_W, _TAX, _JEQ, _JEQ_X, _RET = 0x28, 0x20, 0x07, 0x15, 0x1D, 0x06
# Classic BPF: passes replies, and requests for the sender's own address; the kernel drops all other requests.
_FILTER = (
    (_LD_H, 0, 0, 20),
    (_JEQ, 5, 0, frames.REPLY),
    (_LD_W, 0, 0, 28),
    (_TAX, 0, 0, 0),
    (_LD_W, 0, 0, 38),
    (_JEQ_X, 1, 0, 0),
    (_RET, 0, 0, 0),
    (_RET, 0, 0, MAX_FRAME),
)  # fmt: skip
OnSighting = Callable[[int, AddressSighting], None]  # gets the ifindex


class LinkSockets:
    """A socket for the ARP of each device, and one for all advertisements: no other packet passes either.

    `on_sighting` is called in the event loop for each claim of another host.
    """

    def __init__(self, on_sighting: OnSighting) -> None:
        self._on_sighting = on_sighting
        self._sockets: dict[int, socket.socket] = {}
        self._advertisements: socket.socket | None = None
        self._failed: set[int] = set()

    def use(self, devices: Collection[int]) -> None:
        """Listen on these devices, by ifindex, and on no other."""
        for ifindex in self._sockets.keys() - set(devices):
            self._close(ifindex)
        self._failed &= set(devices)
        if devices and self._advertisements is None:
            self._listen_to_advertisements()
        for ifindex in set(devices) - self._sockets.keys():
            try:
                self._open(ifindex)
                self._failed.discard(ifindex)
            except OSError as error:
                if ifindex not in self._failed:
                    log.warning("a device cannot be listened on", extra={"ifindex": ifindex, "error": str(error)})
                self._failed.add(ifindex)

    def probe(self, ifindex: int, address: bytes, mac: bytes) -> None:
        """Probe an address. A device that is being removed sends nothing."""
        self._send(ifindex, [frames.probe(address, mac)])

    def announce(self, ifindex: int, address: bytes, mac: bytes) -> None:
        """Announce an address to every host of the link."""
        self._send(ifindex, frames.announcements(address, mac))

    def close(self) -> None:
        """Close all sockets."""
        for ifindex in list(self._sockets):
            self._close(ifindex)
        if self._advertisements is not None:
            asyncio.get_running_loop().remove_reader(self._advertisements)
            self._advertisements.close()
            self._advertisements = None

    def _send(self, ifindex: int, what: list[bytes]) -> None:
        sock = self._sockets.get(ifindex)
        with contextlib.suppress(OSError):  # ENETDOWN, ENXIO, a full queue: a frame may be lost at any time
            for frame in what if sock else ():
                assert sock is not None
                sock.sendto(frame, (socket.if_indextoname(ifindex), int.from_bytes(frame[12:14])))

    def _open(self, ifindex: int) -> None:
        sock = socket.socket(socket.AF_PACKET, socket.SOCK_RAW | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC, 0)
        try:
            _attach_filter(sock)
            sock.bind((socket.if_indextoname(ifindex), frames.ETH_ARP))
        except OSError:
            sock.close()
            raise
        self._sockets[ifindex] = sock
        asyncio.get_running_loop().add_reader(sock, self._receive, ifindex, sock)

    def _listen_to_advertisements(self) -> None:
        """Open the socket for packets to all nodes (ff02::1); a machine without IPv6 has none."""
        with contextlib.suppress(OSError):
            sock = socket.socket(
                socket.AF_INET6, socket.SOCK_RAW | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC, socket.IPPROTO_ICMPV6
            )
            passed = bytearray(b"\xff" * 32)  # a bit blocks a type
            passed[frames.ADVERTISEMENT // 8] ^= 1 << frames.ADVERTISEMENT % 8
            sock.setsockopt(socket.IPPROTO_ICMPV6, ICMP6_FILTER, bytes(passed))
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_RECVPKTINFO, 1)
            sock.setsockopt(socket.IPPROTO_IPV6, IPV6_RECVHOPLIMIT, 1)
            self._advertisements = sock
            asyncio.get_running_loop().add_reader(sock, self._receive_advertisements, sock)

    def _close(self, ifindex: int) -> None:
        sock = self._sockets.pop(ifindex)
        asyncio.get_running_loop().remove_reader(sock)
        sock.close()

    def _receive(self, ifindex: int, sock: socket.socket) -> None:
        for _ in range(FRAME_BATCH):
            try:
                frame, sender = sock.recvfrom(MAX_FRAME)
            except (BlockingIOError, InterruptedError):
                return
            except OSError:  # ENETDOWN: the device is going
                return
            if sender[2] in (PACKET_HOST, PACKET_BROADCAST, PACKET_MULTICAST) and (sighting := frames.parse_arp(frame)):
                self._on_sighting(ifindex, sighting)

    def _receive_advertisements(self, sock: socket.socket) -> None:
        for _ in range(FRAME_BATCH):
            try:
                body, words, _, _ = sock.recvmsg(MAX_FRAME, 128)
            except OSError:  # also EAGAIN
                return
            found = {(level, kind): data for level, kind, data in words}
            place = found.get((socket.IPPROTO_IPV6, socket.IPV6_PKTINFO), b"")
            hops = found.get((socket.IPPROTO_IPV6, IPV6_HOPLIMIT), b"")
            if len(place) == 20 and int.from_bytes(hops, sys.byteorder) == frames.HOPS:
                ifindex = int.from_bytes(place[16:], sys.byteorder)
                if ifindex in self._sockets and (sighting := frames.parse_advertisement(body)):
                    self._on_sighting(ifindex, sighting)


def _attach_filter(sock: socket.socket) -> None:
    """Attach a filter that passes only frames that may claim an address. Source: linux/filter.h."""
    code = b"".join(struct.pack("HBBI", *instruction) for instruction in _FILTER)
    buffer = ctypes.create_string_buffer(code)
    program = struct.pack("HP", len(_FILTER), ctypes.addressof(buffer))
    sock.setsockopt(socket.SOL_SOCKET, SO_ATTACH_FILTER, program)
