"""Frames the fuzzer starts from: all kinds that the programs have a rule for, around existing flows."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field

from scapy.layers.inet import ICMP, IPOption_NOP
from scapy.layers.inet import TCP as TcpLayer
from scapy.layers.inet import UDP as UdpLayer
from scapy.layers.inet6 import (
    ICMPv6EchoRequest,
    IPv6ExtHdrDestOpt,
    IPv6ExtHdrFragment,
    IPv6ExtHdrHopByHop,
    IPv6ExtHdrRouting,
)
from scapy.layers.sctp import SCTPChunkInit, SCTPChunkParamIPv4Addr, SCTPChunkParamIPv6Addr
from scapy.packet import Packet, Raw

from tests.packet import craft, expect
from tests.packet.craft import BACKEND_MAC, LOCAL_MAC, NODE2_MAC, NODE_MAC, POD_MAC, ROUTER_MAC, Family
from tests.packet.world import (
    MAGLEV,
    ROUTABLE,
    SCTP,
    SOURCE_RANGE,
    TC_EGRESS,
    TC_INGRESS,
    TCP,
    TYPE_LOAD_BALANCER,
    UDP,
    XDP,
    BackendRow,
    ServiceRow,
    World,
)

POD_PORTS = (40600, 2600)  # of client pods; the second one is a SNAT port of the node, too
PORTS = {"mixed": 80, "maglev": 81, "sticky": 82, "empty": 83, "ranged": 84, "small": 85, "proxied": 86}


@dataclass
class Scene:
    """The seeds and their allowed outcomes."""

    world: World
    kinds: dict[str, list[tuple[str, int, bytes]]] = field(default_factory=dict)  # hook, device, frame
    backends: set[tuple[bytes, int, int]] = field(default_factory=set)  # address, port, protocol; those that live
    frontends: set[tuple[bytes, int, int]] = field(default_factory=set)
    clients: set[tuple[bytes, int, int]] = field(default_factory=set)  # who has a flow
    snat: set[bytes] = field(default_factory=set)
    rows: list[ServiceRow] = field(default_factory=list)
    backend_rows: list[BackendRow] = field(default_factory=list)

    def add(self, kind: str, frame: bytes, device: int, *hooks: str) -> None:
        """Take a seed for some hooks."""
        self.kinds.setdefault(kind, []).extend((hook, device, frame) for hook in hooks)

    @property
    def seeds(self) -> list[tuple[str, int, bytes]]:
        """All seeds."""
        return [seed for seeds in self.kinds.values() for seed in seeds]


def build(world: World) -> Scene:
    """Fill an empty world with services, open flows, and return the seeds."""
    world.reset()
    scene = Scene(world)
    for fam in craft.FAMILIES.values():
        scene.snat |= {fam.packed(fam.node), fam.packed(fam.node2)}
        for proto in (TCP, UDP, SCTP):
            _services(scene, fam, proto)
            _flows(scene, fam, proto)
            _insiders(scene, fam, proto)
            _trains(scene, fam, proto)
        _odd(scene, fam)
        _chunks(scene, fam)
    return scene


def _services(scene: Scene, fam: Family, proto: int) -> None:
    world = scene.world
    remote = [world.backend(fam, fam.remote(n), 8080, proto) for n in (1, 2)]
    local = [world.backend(fam, fam.local(n), 8080, proto, local=True) for n in (1, 2)]
    small = [world.backend(fam, fam.remote(3), 8080, proto, mtu=1000)]
    scene.backend_rows += [*remote, *local, *small]
    scene.backends |= {(fam.packed(b.address), b.port, proto) for b in (*remote, *local, *small)}
    maglev = world.service(fam, fam.vip, PORTS["maglev"], proto, remote, algorithm=MAGLEV)
    world.maglev(maglev, [remote[i % 2].id for i in range(world.sizes.maglev_size)])
    ranged = ["198.51.100.0/25"] if fam.version == 4 else ["2001:db8:100::/64"]
    rows = [
        world.service(fam, fam.vip, PORTS["mixed"], proto, [*remote, *local]),
        maglev,
        world.service(fam, fam.vip, PORTS["sticky"], proto, [*remote, *local], affinity_s=60),
        world.service(fam, fam.vip, PORTS["empty"], proto),
        world.service(
            fam,
            fam.vip,
            PORTS["ranged"],
            proto,
            remote,
            flags=TYPE_LOAD_BALANCER | ROUTABLE | SOURCE_RANGE,
            ranges=ranged,
        ),
        world.service(fam, fam.vip, PORTS["small"], proto, small),
        world.service(fam, fam.vip, PORTS["proxied"], proto, remote, proxy_port=15001),
        world.service(fam, fam.node2, 30080, proto, [*remote, *local]),
        world.service(fam, fam.vip2, 80, proto, remote, flags=0),
    ]
    world.wildcard(fam, fam.vip2)
    scene.rows += rows
    scene.frontends |= {(fam.packed(row.address), row.port, proto) for row in rows}


def _flows(scene: Scene, fam: Family, proto: int) -> None:
    """Open flows to each service and add requests, replies and errors about them."""
    world = scene.world
    lb0, lb1, pod = world.net.lb0, world.net.lb1, world.net.pod0
    targets = [(fam.vip, port) for port in PORTS.values()] + [(fam.node2, 30080), (fam.vip2, 80), (fam.vip2, 99)]
    for n, (vip, port) in enumerate(targets * 2):
        sport = 40000 + n
        first = craft.frame(craft.segment(fam, proto, fam.client, sport, vip, port, "S"))
        out = world.run(XDP, first)
        for flags, vlans in (("S", ()), ("PA", ()), ("FA", (5,)), ("A", (5, 6))):
            packet = craft.segment(fam, proto, fam.client, sport, vip, port, flags, load=b"payload" * n)
            scene.add("request", craft.frame(packet, vlans=vlans), lb0, XDP, TC_INGRESS)
        place = expect.destination(out)
        if (fam.packed(place[0]), place[1], proto) not in scene.backends:
            continue
        scene.clients.add((fam.packed(fam.client), sport, proto))
        source = expect.source(out)
        answer = craft.segment(fam, proto, *place, *source, "SA", load=b"answer" * n)
        macs = (LOCAL_MAC, POD_MAC) if source[0] == fam.client else (BACKEND_MAC, NODE2_MAC)
        device = pod if source[0] == fam.client else lb1
        scene.add("reply", craft.frame(answer, src=macs[0], dst=macs[1]), device, XDP, TC_INGRESS)
        scene.add("reply", craft.frame(answer, src=NODE_MAC, dst=ROUTER_MAC), lb0, TC_EGRESS)
        _errors(scene, fam, bytes(out.packet[14:]), source[0], (vip, port), (fam.client, sport), proto)


def _insiders(scene: Scene, fam: Family, proto: int) -> None:
    """Add pods as clients, of themselves too, and one client port that talks to every frontend."""
    net = scene.world.net
    sent = craft.segment(fam, proto, fam.vip, PORTS["proxied"], fam.client, 40700, "PA", load=b"answer of the proxy")
    error = craft.icmp_error(fam, fam.router, fam.vip, fam.too_big(1300), bytes(sent))
    scene.add("error", craft.frame(error), net.lb0, XDP, TC_INGRESS)
    for row in scene.rows:
        if (row.family, row.proto) != (fam, proto):
            continue
        for flags in ("S", "PA"):
            for n, port in itertools.product((1, 2, 9), POD_PORTS):
                packet = craft.segment(fam, proto, fam.local(n), port, row.address, row.port, flags, load=b"pod")
                scene.add("inside", craft.frame(packet, src=LOCAL_MAC, dst=POD_MAC), net.pod0, XDP, TC_INGRESS)
            packet = craft.segment(fam, proto, fam.client, 40700, row.address, row.port, flags, load=b"same port")
            scene.add("inside", craft.frame(packet), net.lb0, XDP, TC_INGRESS)
            packet = craft.segment(fam, proto, fam.node, 40800, row.address, row.port, flags, load=b"node")
            scene.add("inside", craft.frame(packet, src=NODE_MAC, dst=ROUTER_MAC), net.lb0, TC_EGRESS)
    for n in (1, 2):
        pods = itertools.product((fam.local(1), fam.local(2), fam.local(9)), POD_PORTS)
        for source, port in ((fam.client, 40700), *pods):
            packet = craft.segment(fam, proto, fam.local(n), 8080, source, port, "SA", load=b"answer")
            scene.add("inside", craft.frame(packet, src=LOCAL_MAC, dst=POD_MAC), net.pod0, XDP, TC_INGRESS)


def _trains(scene: Scene, fam: Family, proto: int) -> None:
    """Add datagrams in three pieces, whose order the fuzzer makes up: requests, and replies of a local backend."""
    net = scene.world.net
    for n, (vip, port) in enumerate([(fam.vip, port) for port in PORTS.values()] + [(fam.node2, 30080)]):
        packet = craft.segment(fam, proto, fam.client, 40400 + n, vip, port, "PA", load=bytes(range(240)) * 2)
        for piece in pieces(fam, packet, 900 + n):
            scene.add("train", craft.frame(piece), net.lb0, XDP, TC_INGRESS)
        for local in (1, 2):
            packet = craft.segment(
                fam, proto, fam.local(local), 8080, fam.client, 40400 + n, "PA", load=bytes(range(240)) * 2
            )
            for piece in pieces(fam, packet, 700 + n):
                scene.add("train", craft.frame(piece, src=LOCAL_MAC, dst=POD_MAC), net.pod0, TC_INGRESS)
                scene.add("train", craft.frame(piece, src=NODE_MAC, dst=ROUTER_MAC), net.lb0, TC_EGRESS)


def pieces(fam: Family, packet: Packet, ident: int) -> list[Packet]:
    """Cut an IP packet without options or extension headers into three fragments."""
    raw = bytes(packet)
    head = 20 if fam.version == 4 else 40
    body, proto = raw[head:], raw[9 if fam.version == 4 else 6]
    made = []
    for start, stop in ((0, 160), (160, 320), (320, len(body))):
        more = stop < len(body)
        if fam.version == 4:
            ip = fam.ip(packet.src, packet.dst, id=ident, frag=start // 8, flags="MF" if more else 0, proto=proto)
        else:
            fragment = IPv6ExtHdrFragment(m=int(more), offset=start // 8, id=ident, nh=proto)
            ip = fam.ip(packet.src, packet.dst) / fragment
        made.append(ip / Raw(body[start:stop]))
    return made


def _errors(
    scene: Scene, fam: Family, request: bytes, source: str, vip: tuple[str, int], client: tuple[str, int], proto: int
) -> None:
    """Add ICMP errors about the request as forwarded and about a reply as the client got it."""
    net = scene.world.net
    reply = bytes(craft.segment(fam, proto, *vip, *client, "PA", load=b"z" * 30))
    for kind in (fam.unreachable(), fam.too_big(1280), fam.time_exceeded()):
        for cut in (28, 48, None):
            about_request = craft.icmp_error(fam, fam.router2, source, kind, request[:cut])
            scene.add("error", craft.frame(about_request, src=BACKEND_MAC, dst=NODE2_MAC), net.lb1, XDP, TC_INGRESS)
            scene.add("error", craft.frame(about_request, src=LOCAL_MAC, dst=POD_MAC), net.pod0, TC_INGRESS)
            scene.add("error", craft.frame(about_request, src=NODE_MAC, dst=ROUTER_MAC), net.lb0, TC_EGRESS)
            about_reply = craft.icmp_error(fam, fam.router, vip[0], kind, reply[:cut])
            scene.add("error", craft.frame(about_reply), net.lb0, XDP, TC_INGRESS)


def _odd(scene: Scene, fam: Family) -> None:
    """Add fragments, options, extension headers, pings and packets of no service."""
    lb0 = scene.world.net.lb0
    ip = fam.ip(fam.client, fam.vip)
    layers = [UdpLayer(sport=40100, dport=80, chksum=0) / Raw(b"none"), TcpLayer(sport=40101, dport=80, flags="S")]
    packets = [fam.ip(fam.client, fam.vip) / layer for layer in layers]
    packets.append(ip / (ICMP() if fam.version == 4 else ICMPv6EchoRequest()) / Raw(b"ping"))
    packets.append(fam.ip(fam.client, fam.router2) / TcpLayer(sport=1, dport=2))
    if fam.version == 4:
        packets.append(fam.ip(fam.client, fam.vip, options=[IPOption_NOP()] * 5) / layers[1])
        packets.append(fam.ip(fam.client, fam.vip, flags="MF", id=5) / UdpLayer(sport=40102, dport=80) / Raw(b"f" * 64))
        packets.append(fam.ip(fam.client, fam.vip, frag=9, id=5, proto=17) / Raw(b"later" * 10))
    else:
        for chain in (
            IPv6ExtHdrHopByHop() / IPv6ExtHdrDestOpt(),
            IPv6ExtHdrRouting(addresses=[fam.vip2], segleft=1),
            IPv6ExtHdrFragment(m=0, offset=0),
        ):
            packets.append(fam.ip(fam.client, fam.vip) / chain / layers[1])
        packets.append(ip / IPv6ExtHdrFragment(m=1, offset=0, id=5) / UdpLayer(sport=40102, dport=80) / Raw(b"f" * 64))
        packets.append(ip / IPv6ExtHdrFragment(m=0, offset=9, id=5, nh=17) / Raw(b"later" * 10))
    for packet in packets:
        scene.add("odd", craft.frame(packet), lb0, XDP, TC_INGRESS)
        scene.add("odd", craft.frame(packet, src=NODE_MAC, dst=ROUTER_MAC), lb0, TC_EGRESS)


def _chunks(scene: Scene, fam: Family) -> None:
    """Add what SCTP alone has: each kind of chunk, several in a packet, and an INIT that lists addresses."""
    lb0 = scene.world.net.lb0
    own, other = (
        SCTPChunkParamIPv4Addr(addr=each) if fam.version == 4 else SCTPChunkParamIPv6Addr(addr=each)
        for each in (fam.client, fam.client2)
    )
    inits = [SCTPChunkInit(init_tag=9, params=params) for params in ([own], [own, other], [own] * 30)]
    kinds = [craft.chunk(kind)[1] for kind in ("S", "SA", "echo", "cookie-ack", "A", "R", "complete")]
    for chunk in (*kinds, *inits, craft.chunk("echo")[1] / craft.chunk("A")[1]):
        for sport in (40000, 40900):
            packet = craft.sctp(fam, fam.client, sport, fam.vip, PORTS["mixed"], chunk, tag=craft.BACKEND_TAG)
            scene.add("chunk", craft.frame(packet), lb0, XDP, TC_INGRESS)
            scene.add("chunk", craft.frame(packet, src=NODE_MAC, dst=ROUTER_MAC), lb0, TC_EGRESS)
