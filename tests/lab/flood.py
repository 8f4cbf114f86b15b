"""A flood of forged packets by one device: `python -m tests.lab.flood` prints the number of sent packets.

Kinds are PROTOCOL-ANSWER-SOURCES: a firewall at the backend selects its action by the TTL (`RULES`), so that a backend can ignore
or refuse a flood, and still serve its clients. `few`: random tuples of two addresses, so that many repeat while the flow table
has them; `many`: every tuple is new.
"""

from __future__ import annotations

import argparse
import itertools
import random
import socket
import struct
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

SYN, ACK = 0x02, 0x10
TTLS = {"served": 64, "refused": 79, "silent": 99}
# for nft in the backend's namespace; a TTL is one less there
RULES = """table inet flood {
chain input {
  type filter hook input priority 0
  ip ttl 98 drop
  ip6 hoplimit 98 drop
  ip ttl 78 meta l4proto tcp reject with tcp reset
  ip6 hoplimit 78 meta l4proto tcp reject with tcp reset
  ip ttl 78 reject
  ip6 hoplimit 78 reject
}
}
"""
SOURCES = {4: "172.16.0.0", 6: "fd00:172::"}
ROUTES = {4: "172.16.0.0/12", 6: "fd00:172::/64"}
SPELL_S = 0.005


@dataclass(frozen=True)
class Target:
    """The target of the frames."""

    family: int
    vip: bytes
    port: int
    macs: bytes  # destination, source


def ones(data: bytes) -> int:
    """Return the sum of 16-bit words (RFC 1071), not folded."""
    return sum(struct.unpack(f">{len(data) // 2}H", data))


def checksum(total: int) -> int:
    """Return the Internet checksum of a sum."""
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return ~total & 0xFFFF


def segment(
    ends: tuple[bytes, bytes, int, int], flags: int, *, seq: int = 0, ack: int = 0, macs: bytes, ttl: int = 64
) -> bytes:
    """Return the frame of a TCP segment with 2 bytes of data, or with flags 0 of a datagram; `ends`: addresses, ports."""
    src, dst, sport, dport = ends
    ports = struct.pack(">HH", sport, dport)
    if not flags:
        proto, head, rest = socket.IPPROTO_UDP, ports + struct.pack(">H", 16), b"datagram"  # no DNS header: echoed
    else:
        proto, rest = socket.IPPROTO_TCP, bytes(2 if flags != SYN else 0)
        head = ports + struct.pack(">IIBBH", seq, ack, 0x50, flags, 8192)
        rest = bytes(2) + rest  # urgent pointer first
    size = len(head) + 2 + len(rest)
    sum_ = checksum(ones(src) + ones(dst) + proto + size + ones(head) + ones(rest))
    l4 = head + struct.pack(">H", sum_) + rest
    if len(src) == 16:
        return macs + b"\x86\xdd" + struct.pack(">IHBB", 0x60000000, size, proto, ttl) + src + dst + l4
    ip = struct.pack(">HHIBBH", 0x4500, 20 + size, 0, ttl, proto, 0) + src + dst
    return macs + b"\x08\x00" + ip[:10] + struct.pack(">H", checksum(ones(ip))) + ip[12:] + l4


def frame(target: Target, kind: str, flow: int) -> bytes:
    """Return the frame of a forged flow: its number becomes address and port."""
    what, answer, _ = kind.split("-")
    first = socket.inet_pton(socket.AF_INET if target.family == 4 else socket.AF_INET6, SOURCES[target.family])
    source = first[:-4] + (int.from_bytes(first[-4:], "big") + (flow >> 15)).to_bytes(4, "big")
    flags = {"syn": SYN, "ack": ACK, "udp": 0}[what]
    ends = (source, target.vip, 1024 + (flow & 0x7FFF), target.port)
    seq, ack = random.getrandbits(32), random.getrandbits(32) if flags == ACK else 0
    return segment(ends, flags, seq=seq, ack=ack, macs=target.macs, ttl=TTLS[answer])


def frames(targets: list[Target], kinds: list[str]) -> Iterator[bytes]:
    """Yield frames to all targets in turns, of all kinds that fit."""
    number = itertools.count()
    flow: dict[str, Callable[[], int]] = {"many": lambda: next(number), "few": lambda: random.randrange(1 << 16)}
    tcp = [kind for kind in kinds if not kind.startswith("udp")]
    udp = [kind for kind in kinds if kind.startswith("udp")]
    for turn in itertools.count():
        for target in targets:
            fitting = udp if target.port == 53 else tcp
            kind = fitting[turn % len(fitting)]
            yield frame(target, kind, flow[kind.rsplit("-", 1)[1]]())


def main() -> None:
    """Send until the time is over."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("device")
    parser.add_argument("mac", help="of the node")
    parser.add_argument("--to", action="append", default=[], help="VIP,PORT (53: UDP)")
    parser.add_argument(
        "--kind", action="append", default=[], help="syn, ack or udp; served, refused or silent; few or many"
    )
    parser.add_argument("--rate", type=int, default=4000, help="packets a second to each VIP")
    parser.add_argument("--seconds", type=float, default=10)
    options = parser.parse_args()
    sock = socket.socket(socket.AF_PACKET, socket.SOCK_RAW)
    sock.bind((options.device, 0))
    targets = []
    for vip, port in (each.split(",") for each in options.to):
        family = 6 if ":" in vip else 4
        packed = socket.inet_pton(socket.AF_INET6 if family == 6 else socket.AF_INET, vip)
        macs = bytes.fromhex(options.mac.replace(":", "")) + sock.getsockname()[4][:6]
        targets.append(Target(family, packed, int(port), macs))
    source, sent, began = frames(targets, options.kind), 0, time.monotonic()
    while (now := time.monotonic() - began) < options.seconds:
        for _ in range(int(now * options.rate * len(targets)) - sent):
            sock.send(next(source))
            sent += 1
        time.sleep(SPELL_S)
    print(sent, flush=True)


if __name__ == "__main__":
    main()
