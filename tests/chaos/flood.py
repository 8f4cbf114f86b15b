"""A flood: frames with forged sources, written directly to the client's device. `python -m tests.chaos.flood --help`.

The kinds are SYNs, ACKs of no connection, and datagrams, to ports that answer, refuse or stay silent. Forged sources are in networks
that the node routes to the client's namespace, which ignores the answers.
"""

from __future__ import annotations

import argparse
import ipaddress
import random
import socket
import sys
import time
from collections.abc import Iterator

from scapy.layers.inet import IP, TCP, UDP
from scapy.layers.inet6 import IPv6
from scapy.layers.l2 import Ether
from scapy.packet import Packet

FORGED = ("198.18.0.0/15", "fd99::/64")  # RFC 2544's network for such tests
FEW = 8
BATCH_S = 0.02
KINDS = ("syn", "ack", "udp", "mix")


def packet(kind: str, source: str, vip: str, port: int, generator: random.Random) -> Packet:
    """Return one L3 packet of the flood."""
    network = IPv6(src=source, dst=vip) if ":" in vip else IP(src=source, dst=vip)
    sport, seq = generator.randrange(1024, 65536), generator.getrandbits(32)
    if kind == "udp":
        return network / UDP(sport=sport, dport=port) / (b"\0" * 8)
    flags = {"syn": "S", "ack": "A"}[kind]
    return network / TCP(
        sport=sport, dport=port, flags=flags, seq=seq, ack=0 if kind == "syn" else generator.getrandbits(32)
    )


def frames(options: argparse.Namespace, count: int) -> Iterator[bytes]:
    """Create `count` frames; each ACK twice, as from a client that retransmits."""
    generator = random.Random(options.seed)
    networks = {4: ipaddress.ip_network(FORGED[0]), 6: ipaddress.ip_network(FORGED[1])}
    link = Ether(src=options.source_mac, dst=options.mac)
    while count > 0:
        kind = generator.choice(KINDS[:3]) if options.kind == "mix" else options.kind
        vip, port = generator.choice(options.udp if kind == "udp" else options.tcp).rsplit(",", 1)
        network = networks[6 if ":" in vip else 4]
        number = generator.randrange(1, FEW if options.few else min(network.num_addresses, 1 << 16))
        frame = bytes(link / packet(kind, str(network[number]), vip, int(port), generator))
        for _ in range(2 if kind == "ack" else 1):
            yield frame
            count -= 1


def send(options: argparse.Namespace) -> int:
    """Send at the rate for so long; return how many frames were sent."""
    wire = socket.socket(socket.AF_PACKET, socket.SOCK_RAW)
    wire.bind((options.device, 0))
    total, sent, start = int(options.rate * options.seconds), 0, time.monotonic()
    for frame in list(frames(options, total)):
        if not sent:
            start = time.monotonic()
        while (ahead := sent / options.rate - (time.monotonic() - start)) > BATCH_S:
            time.sleep(ahead)
        try:
            wire.send(frame)
        except OSError:  # the link is down at the moment
            time.sleep(BATCH_S)
        sent += 1
    return sent


def arguments(words: list[str]) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(prog="python -m tests.chaos.flood", description=__doc__)
    parser.add_argument("--kind", choices=KINDS, default="mix")
    parser.add_argument("--device", required=True)
    parser.add_argument("--source-mac", required=True)
    parser.add_argument("--mac", required=True, help="the node's, on that link")
    parser.add_argument("--tcp", action="append", default=[], metavar="VIP,PORT")
    parser.add_argument("--udp", action="append", default=[], metavar="VIP,PORT")
    parser.add_argument("--rate", type=float, default=2000.0, help="frames a second")
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--few", action="store_true", help="few source addresses")
    parser.add_argument("--seed", type=int, default=1)
    return parser.parse_args(words)


if __name__ == "__main__":
    print(send(arguments(sys.argv[1:])))
