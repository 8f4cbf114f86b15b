"""Which node answers for an address, by ARP requests from the backend's machine, so that the client's cache does not change."""

from __future__ import annotations

import socket
import struct
import time

from bench.cloud.stage import WORKER, Lan
from tests.lab.netns import LabError

ARP, REPLY_S = 0x0806, 0.4


def answerers(lan: Lan, address: str) -> set[str]:
    """Return the nodes that answer for an address."""
    macs = _macs(lan, address)
    found = {name for name in lan.nodes if lan.mac(name) in macs}
    if len(found) != len(macs):
        raise LabError(f"{address}: a host outside the cluster answers: {[mac.hex(':') for mac in macs]}")
    return found


def leader(lan: Lan, address: str, *, other_than: str = "", within_s: float = 90.0) -> str:
    """Wait until exactly one node answers, and return it. It must not be `other_than`."""
    deadline = time.monotonic() + within_s
    while True:
        found = answerers(lan, address)
        if len(found) == 1 and other_than not in found:
            return found.pop()
        if time.monotonic() > deadline:
            raise LabError(f"{address}: {sorted(found) or 'no node'} answers, not one alone other than {other_than!r}")


def _macs(lan: Lan, address: str) -> set[bytes]:
    own = lan.mac("worker")
    request = struct.pack(
        "!6s6sHHHBBH6s4s6s4s", b"\xff" * 6, own, ARP, 1, 0x0800, 6, 4, 1, own, socket.inet_aton(WORKER), bytes(6), socket.inet_aton(address)
    )  # fmt: skip
    sock = lan.worker.call(socket.socket, socket.AF_PACKET, socket.SOCK_RAW, socket.htons(ARP))
    found = set()
    with sock:
        lan.worker.call(sock.bind, ("eth0", ARP))
        sock.send(request)
        deadline = time.monotonic() + REPLY_S
        while (left := deadline - time.monotonic()) > 0:
            sock.settimeout(left)
            try:
                frame = sock.recv(128)
            except TimeoutError:
                break
            if frame[20:22] == b"\0\2" and frame[28:32] == socket.inet_aton(address):
                found.add(frame[22:28])
    return found
