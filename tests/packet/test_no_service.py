"""Traffic that is not for a service passes untouched, byte for byte, whatever it is."""

from __future__ import annotations

import random

import pytest
from scapy.layers.inet import ICMP, IP, IPOption_NOP
from scapy.layers.inet6 import ICMPv6EchoRequest, ICMPv6ND_NS, IPv6, IPv6ExtHdrDestOpt, IPv6ExtHdrFragment
from scapy.layers.l2 import ARP, Ether
from scapy.packet import Packet, Raw

from lbagent.maps.reasons import Reason
from tests.packet import craft, expect, table
from tests.packet.craft import NODE_MAC, ROUTER_MAC, Family
from tests.packet.world import ROUTABLE, TC_EGRESS, TC_INGRESS, TCP, TYPE_LOAD_BALANCER, UDP, XDP, World

L7 = 0x0400


@pytest.fixture
def served(world: World, fam: Family) -> World:
    """Return a world with one service of each protocol on the VIP."""
    for proto in (TCP, UDP):
        world.service(fam, fam.vip, 80, proto, [world.backend(fam, fam.remote(1), 8080, proto)])
    return world


@pytest.mark.parametrize("proto", [TCP, UDP])
@pytest.mark.parametrize("hook", [XDP, TC_INGRESS, TC_EGRESS])
def test_other_addresses(served: World, fam: Family, hook: str, proto: int) -> None:
    """Packets to addresses that are no frontend: the filter sends them on at once, and no counter moves."""
    for n in range(1, 60):
        dst = f"198.18.0.{n}" if fam.version == 4 else f"2001:db8:bad::{n:x}"
        for flags in "SA":
            frame = craft.frame(craft.segment(fam, proto, fam.client, 1000 + n, dst, 80, flags))
            out = served.run(hook, frame)
            expect.untouched(out, frame)
            assert not out.counted


def test_other_port_of_a_vip(served: World, fam: Family, hook: str) -> None:
    """A VIP that is no ClusterIP does not reject its other ports: the stack answers."""
    frame = craft.frame(craft.tcp(fam, fam.client, 40000, fam.vip, 81))
    expect.untouched(served.run(hook, frame), frame)


def test_same_port_other_protocol(world: World, fam: Family, hook: str) -> None:
    """TCP and UDP on one port are two services."""
    world.service(fam, fam.vip, 53, UDP, [world.backend(fam, fam.remote(1), 53, UDP)])
    frame = craft.frame(craft.tcp(fam, fam.client, 40000, fam.vip, 53))
    expect.untouched(world.run(hook, frame), frame)


@pytest.mark.parametrize("proto", [TCP, UDP])
def test_frontend_of_an_l7_proxy(world: World, fam: Family, hook: str, proto: int) -> None:
    """Its packets are the proxy's, which is reached through the stack; no flow is made."""
    backend = world.backend(fam, fam.remote(1), 8080, proto)
    world.service(fam, fam.vip, 80, proto, [backend], flags=TYPE_LOAD_BALANCER | ROUTABLE | L7)
    for flags in "SA":
        frame = craft.frame(craft.segment(fam, proto, fam.client, 40000, fam.vip, 80, flags))
        out = world.run(hook, frame)
        expect.untouched(out, frame)
        assert out.counted == {Reason.PASS_UNSUPPORTED: 1}
    assert table.flows(world, fam) == []


def test_echo_to_a_vip(served: World, fam: Family, hook: str) -> None:
    """Ping is the stack's."""
    echo = ICMP(id=7) / Raw(b"ping") if fam.version == 4 else ICMPv6EchoRequest(id=7, data=b"ping")
    frame = craft.frame(fam.ip(fam.client, fam.vip) / echo)
    expect.untouched(served.run(hook, frame), frame)


def test_not_ip(served: World, hook: str) -> None:
    """ARP, neighbour solicitation, spanning tree, unknown ethertypes."""
    for data in (
        bytes(Ether(src=ROUTER_MAC, dst="ff:ff:ff:ff:ff:ff") / ARP(pdst="192.0.2.1")),
        bytes(
            Ether(src=ROUTER_MAC, dst="33:33:ff:00:00:01")
            / IPv6(dst="ff02::1:ff00:1", hlim=255)
            / ICMPv6ND_NS(tgt="::1")
        ),
        bytes(Ether(src=ROUTER_MAC, dst=NODE_MAC, type=0x88CC) / Raw(b"lldp" * 20)),
        bytes.fromhex(NODE_MAC.replace(":", "") + ROUTER_MAC.replace(":", "")) + b"\x00\x26" + bytes(60),
    ):
        expect.untouched(served.run(hook, data), data)


@pytest.mark.parametrize("proto", [2, 33, 47, 50, 89, 255])
def test_protocols_we_do_not_balance(served: World, fam: Family, hook: str, proto: int) -> None:
    """IGMP, GRE, ESP, OSPF, DCCP and nonsense to a VIP pass."""
    ip = (
        IP(src=fam.client, dst=fam.vip, proto=proto)
        if fam.version == 4
        else IPv6(src=fam.client, dst=fam.vip, nh=proto)
    )
    frame = craft.frame(ip / Raw(bytes(range(40))))
    expect.untouched(served.run(hook, frame), frame)


def test_sctp_to_other_frontends(served: World, fam: Family, hook: str) -> None:
    """A frontend of TCP or UDP is none of SCTP."""
    for kind in ("S", "A", "R"):
        frame = craft.frame(craft.sctp(fam, fam.client, 40000, fam.vip, 80, kind))
        expect.untouched(served.run(hook, frame), frame)
    assert not table.flows(served, fam)


def test_frame_for_another_mac(served: World, fam: Family, hook: str) -> None:
    """A frame seen in promiscuous mode, for another station, is not touched even if it is for the VIP."""
    for mac in ("02:00:00:00:99:99", "ff:ff:ff:ff:ff:ff", "01:00:5e:00:00:01"):
        frame = craft.frame(craft.tcp(fam, fam.client, 40000, fam.vip, 80), dst=mac)
        expect.untouched(served.run(hook, frame), frame)


def test_short_and_broken_headers_pass(served: World, fam: Family, hook: str) -> None:
    """Cut anywhere, with a header length of less than five words or more than the packet holds: the stack decides."""
    whole = craft.frame(craft.tcp(fam, fam.client, 40000, fam.vip, 80, load=b"payload"))
    for length in range(14, len(whole)):
        out = served.run(hook, whole[:length])
        assert out.packet == whole[:length]
        assert not out.forwarded
    if fam.version == 4:
        for ihl in (0, 1, 4, 15):
            broken = bytearray(whole)
            broken[14] = 0x40 | ihl
            out = served.run(hook, bytes(broken))
            assert out.packet == broken
            assert not out.forwarded


def test_garbage(served: World, hook: str) -> None:
    """Random bytes behind a valid Ethernet type come out as they went in."""
    rng = random.Random(2)
    for kind in (0x0800, 0x86DD, 0x8100, 0x88A8):
        head = bytes.fromhex(NODE_MAC.replace(":", "") + ROUTER_MAC.replace(":", "")) + kind.to_bytes(2, "big")
        for _ in range(50):
            data = head + rng.randbytes(rng.randrange(1, 90))
            out = served.run(hook, data)
            assert out.packet == data
            assert not out.forwarded


def test_egress(served: World, fam: Family) -> None:
    """Leaving traffic that is no reply of a local backend passes `tc_egress` byte for byte."""
    for proto in (TCP, UDP):
        frame = craft.frame(craft.segment(fam, proto, fam.node, 40000, fam.client, 443), src=NODE_MAC, dst=ROUTER_MAC)
        expect.untouched(served.run(TC_EGRESS, frame), frame)


def of_no_service(fam: Family, ports: int) -> dict[str, Packet]:
    """Return packets of forms that the parser of plain frames does not read, from `ports` where they have one."""
    src, dst = fam.client, "198.18.0.9" if fam.version == 4 else "2001:db8:bad::9"
    load = craft.udp(fam, src, ports, dst, ports, b"q" * 24).payload
    if fam.version == 4:
        return {
            "short": fam.ip(src, dst) / craft.udp(fam, src, ports, dst, ports, b"").payload,
            "options": fam.ip(src, dst, options=[IPOption_NOP()] * 4) / load,
            "first": fam.ip(src, dst, proto=17, flags="MF") / Raw(bytes(load)),
            "later": fam.ip(src, dst, proto=17, frag=5) / Raw(bytes(load)),
            "echo": fam.ip(src, dst) / ICMP(id=7) / Raw(b"ping" * 8),
        }
    return {
        "short": fam.ip(src, dst) / craft.udp(fam, src, ports, dst, ports, b"").payload,
        "options": fam.ip(src, dst) / IPv6ExtHdrDestOpt() / load,
        "first": fam.ip(src, dst) / IPv6ExtHdrFragment(nh=17, m=1) / Raw(bytes(load)),
        "later": fam.ip(src, dst) / IPv6ExtHdrFragment(nh=17, offset=5) / Raw(bytes(load)),
        "echo": fam.ip(src, dst) / ICMPv6EchoRequest(id=7, data=b"ping" * 8),
    }


@pytest.mark.parametrize("hook", [XDP, TC_INGRESS, TC_EGRESS])
@pytest.mark.parametrize("ports", [0x0301, 40000])
def test_of_no_service_in_any_form(served: World, fam: Family, hook: str, ports: int) -> None:
    """What is read in more steps is not counted either, whatever its first byte behind the IP header."""
    for form, packet in of_no_service(fam, ports).items():
        for vlans in ((), (7,), (7, 8)) if hook == XDP else ((),):
            frame = craft.frame(packet, vlans=vlans)
            out = served.run(hook, frame)
            expect.untouched(out, frame)
            assert out.counted == {}, (form, vlans)


def test_an_error_about_no_service(served: World, fam: Family, hook: str) -> None:
    """Coming in, for an address of which nothing is known: not counted."""
    dst = "198.18.0.9" if fam.version == 4 else "2001:db8:bad::9"
    quoted = bytes(craft.tcp(fam, dst, 80, fam.client, 40000, "A"))
    for vlans in ((), (7,)) if hook == XDP else ((),):
        frame = craft.frame(craft.icmp_error(fam, fam.router, dst, fam.unreachable(), quoted), vlans=vlans)
        out = served.run(hook, frame)
        expect.untouched(out, frame)
        assert out.counted == {}
