"""Which hosts answer for addresses on a link: sends ARP or NDP requests for each continuously, and records the sender of each answer."""

from __future__ import annotations

import select
import socket
import threading
import time
from collections import defaultdict
from ipaddress import ip_address
from itertools import combinations
from types import TracebackType
from typing import Self

from scapy.layers.inet6 import ICMPv6ND_NS, ICMPv6NDOptSrcLLAddr, IPv6
from scapy.layers.l2 import ARP, Ether

from lbagent.announce.l2.frames import parse_advertisement, parse_arp
from lbagent.net.solicited_node import group_mac, solicited_node
from tests.lab.netns import Namespace

ASK_S = 0.05
SILENT_S = 0.5  # time without an answer after which a host has stopped answering
ALL_FRAMES = 3
NA_AT = 14 + 40  # behind Ethernet and IPv6


class WhoAnswers:
    """Sends requests until the end of the block; a context manager. `source` is an address of the client for each family."""

    def __init__(self, client: Namespace, device: str, source: dict[int, str], *addresses: str) -> None:
        self._mac = client.mac(device)
        self._questions = [self._question(source[ip_address(each).version], each) for each in addresses]
        self._answers: defaultdict[str, defaultdict[bytes, list[float]]] = defaultdict(lambda: defaultdict(list))
        with client.entered():
            self._socket = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(ALL_FRAMES))
        self._socket.bind((device, ALL_FRAMES))
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._work, daemon=True)

    def _question(self, source: str, address: str) -> bytes:
        mac = self._mac.hex(":")
        if ip_address(address).version == 4:
            return bytes(Ether(src=mac, dst="ff:ff:ff:ff:ff:ff") / ARP(op=1, hwsrc=mac, psrc=source, pdst=address))
        group = solicited_node(ip_address(address).packed)
        head = Ether(src=mac, dst=group_mac(group).hex(":")) / IPv6(src=source, dst=str(ip_address(group)), hlim=255)
        return bytes(head / ICMPv6ND_NS(tgt=address) / ICMPv6NDOptSrcLLAddr(lladdr=mac))

    def __enter__(self) -> Self:
        """Start."""
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, where: TracebackType | None
    ) -> None:
        """Stop."""
        self._end.set()
        self._thread.join()
        self._socket.close()

    def _work(self) -> None:
        ask_at = 0.0
        while not self._end.is_set():
            now = time.monotonic()
            if now >= ask_at:
                ask_at = now + ASK_S
                for frame in self._questions:
                    self._socket.send(frame)
            if select.select([self._socket], [], [], max(0.0, ask_at - time.monotonic()))[0]:
                self._take(self._socket.recv(2048))

    def _take(self, frame: bytes) -> None:
        if frame[:6] != self._mac:  # to all: an announcement, not an answer
            return
        kind = int.from_bytes(frame[12:14])
        claim = (
            parse_arp(frame)
            if kind == 0x0806
            else parse_advertisement(frame[NA_AT:])
            if _is_advertisement(frame)
            else None
        )
        if claim:
            self._answers[str(ip_address(claim.address))][claim.mac].append(time.monotonic())

    def last(self, address: str, within_s: float = SILENT_S) -> set[bytes]:
        """Return the MAC addresses of recent answers."""
        now = time.monotonic()
        return {mac for mac, times in list(self._answers[address].items()) if now - times[-1] < within_s}

    def together_s(self, address: str) -> float:
        """Return the longest time for which two hosts answered for an address."""
        stretches = {mac: _stretches(times) for mac, times in self._answers[address].items()}
        found = [
            min(one[1], other[1]) - max(one[0], other[0])
            for left, right in combinations(stretches.values(), 2)
            for one in left
            for other in right
        ]
        return max(0.0, *found, 0.0)


def _is_advertisement(frame: bytes) -> bool:
    return frame[12:14] == b"\x86\xdd" and frame[20:21] == b"\x3a" and len(frame) > NA_AT


def _stretches(times: list[float]) -> list[tuple[float, float]]:
    """Return the periods in which a host answered without a pause."""
    out: list[tuple[float, float]] = []
    for at in times:
        if out and at - out[-1][1] < SILENT_S:
            out[-1] = (out[-1][0], at)
        else:
            out.append((at, at))
    return out
