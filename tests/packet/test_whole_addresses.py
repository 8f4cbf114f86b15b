"""Addresses and MAC addresses whose bits are all of use: none is lost on the way, in a checksum, or in a route look-up."""

from __future__ import annotations

import random
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import pytest

from lbagent.maps.layout import DeviceFlag
from lbagent.maps.reasons import Reason
from tests.packet import craft, expect
from tests.packet.craft import NODE_MAC, Family
from tests.packet.test_icmp import Flow, check_error, cut_at, l3
from tests.packet.world import TC_INGRESS, TCP, UDP, XDP, Outcome, World

PROTOCOLS = pytest.mark.parametrize("proto", [TCP, UDP])
MACS = ("9e:3b:5d:7f:a1:c3", "b6:d9:e5:27:4b:8d")
FIRST = {4: (198, 203, 10, 10), 6: (0x20, 0x2A, 0xFD, 0xFC)}  # bytes of the client, the VIP, the node, the backend


def scattered(fam: Family, seed: int) -> Family:
    """Return a family with other addresses of client, VIP, SNAT and backends, of which every bit is drawn."""
    rng = random.Random(seed)
    size = 4 if fam.version == 4 else 16
    client, vip, node, net = (bytes((first, *rng.randbytes(size - 1))) for first in FIRST[fam.version])
    text = socket.inet_ntop(fam.af, net[:-2] + b"\x55\x55")
    backends = text[: text.rindex("." if fam.version == 4 else ":") + 1]
    return replace(fam, client=fam.text(client), vip=fam.text(vip), node2=fam.text(node), remote_net=backends)


@pytest.fixture(params=range(3))
def wide(request: pytest.FixtureRequest, world: World, fam: Family) -> Family:
    """Return such a family, whose SNAT address is in the filter."""
    made = scattered(fam, request.param)
    world.filter("snat", made.packed(made.node2))
    return made


@PROTOCOLS
def test_there_and_back(world: World, wide: Family, hook: str, proto: int) -> None:
    """First packets and later ones, whole and with more headers (tagged, where XDP sees tags)."""
    backend = world.backend(wide, wide.remote(9), 8080, proto)
    service = world.service(wide, wide.vip, 80, proto, [backend])
    for client_flags, backend_flags in (("S", "SA"), ("A", "A"), ("A", "A")):
        request = craft.segment(wide, proto, wide.client, 40000, wide.vip, 80, client_flags)
        port = expect.forwarded_to(world.run(hook, craft.frame(request)), craft.frame(request), backend)
        answer = expect.remote_reply(wide, proto, backend, port, backend_flags)
        expect.replied(world.run(hook, answer, world.net.lb1), answer, service, wide.client, 40000)
        if hook == XDP:
            out = world.run(hook, craft.frame(request, vlans=(7,)))
            assert expect.forwarded_to(out, craft.frame(request), backend) == port


@PROTOCOLS
@pytest.mark.parametrize("cut", [8, None], ids=["8-bytes", "whole"])
def test_errors(world: World, wide: Family, hook: str, proto: int, cut: int | None) -> None:
    """About a request and about a reply: the receiver reads about its own packet, each checksum right."""
    flow = Flow(world, wide, proto, local=False)
    kind = wide.unreachable()
    out = world.run(hook, flow.error(kind, wide.router2, cut), world.net.lb1)
    check_error(out.packet, src=wide.router2, dst=wide.client, quoted=flow.seen_by_client(cut), kind=kind)
    answer = expect.remote_reply(wide, proto, flow.backend, flow.snat[1], "PA", load=b"y" * 31)
    reply = world.run(hook, answer, world.net.lb1)
    quoted = cut_at(wide, l3(reply.packet), cut)
    out = world.run(hook, craft.frame(craft.icmp_error(wide, wide.client, wide.vip, kind, quoted)))
    seen = expect.parsed(out)
    assert (wide.text(seen.dst), seen.quoted is not None) == (flow.backend.address, True)
    assert out.counted == {Reason.FWD_ICMP: 1}


def test_an_error_of_nearly_the_backend(world: World, fam: Family, hook: str) -> None:
    """One bit of the address makes another host of it: its error keeps its source, that of the backend comes from the VIP."""
    wide = scattered(fam, 3)
    world.filter("snat", wide.packed(wide.node2))
    flow = Flow(world, wide, UDP, local=False)
    backend = wide.packed(flow.backend.address)
    for at in range(len(backend)):
        router = bytearray(backend)
        router[at] ^= 2
        source = wide.text(bytes(router))
        out = world.run(hook, flow.error(wide.unreachable(), source, None), world.net.lb1)
        assert wide.text(expect.parsed(out).src) == source
    out = world.run(hook, flow.error(wide.unreachable(), flow.backend.address, None), world.net.lb1)
    assert wide.text(expect.parsed(out).src) == wide.vip


@PROTOCOLS
@pytest.mark.parametrize("vlans", [(), (0x5A5,), (0x5A5, 0xA5A)], ids=["untagged", "tagged", "double"])
def test_answers(world: World, wide: Family, hook: str, proto: int, vlans: tuple[int, ...]) -> None:
    """To a service without backends: headers as a host writes them, to the MAC address that the frame came from."""
    world.service(wide, wide.vip, 80, proto)
    mine = MACS[0] if hook == XDP else NODE_MAC  # the kernel compares it with the device's own
    world.device(world.net.lb0, DeviceFlag.XDP_SEND, mine)
    for size in (0, 1, 2, 3, 4, 9, 30):
        packet = craft.segment(wide, proto, wide.client, 40000, wide.vip, 80, load=bytes(range(1, size + 1)))
        frame = craft.frame(packet, src=MACS[1], dst=mine, vlans=vlans)
        out = world.run(hook, frame)
        assert out.counted == {Reason.REJECT_NO_BACKEND: 1}
        seen = expect.parsed(out)
        assert out.packet[: seen.l2] == frame[6:12] + frame[:6] + frame[12 : seen.l2]
        ip = out.packet[seen.l2 : seen.l4]
        if wide.version == 4:  # RFC 1812 §4.3.2.5: errors have precedence 6; RFC 6864: no number without fragments
            assert (ip[:2], ip[4:9]) == (b"\x45\xc0" if proto == UDP else b"\x45\x00", b"\0\0\x40\0\x40")
        else:
            assert (ip[:4], ip[7]) == (b"\x60\0\0\0", 64)
        if proto == UDP:
            assert out.packet[seen.l4 + 4 : seen.l4 + 8] == bytes(4)


# --- routes ---


def left_by_detour(out: Outcome) -> bool:
    """Return whether a frame left between the MAC addresses of the detour."""
    return out.forwarded and out.packet[:12] == bytes.fromhex((MACS[1] + MACS[0]).replace(":", ""))


@contextmanager
def detour(world: World, fam: Family, src: str, dst: str) -> Iterator[None]:
    """Give packets from one address to one other a way by a device of its own; all of it is gone at the end."""
    hop = "192.0.2.99" if fam.version == 4 else "fe80::99"
    ip = f"-{fam.version}"
    world.net.run(f"link add way0 address {MACS[0]} type veth peer name way1")
    try:
        world.net.run("link set way0 up")
        world.net.run("link set way1 up")
        world.net.run(f"{ip} neigh add {hop} lladdr {MACS[1]} dev way0 nud permanent")
        world.net.run(f"{ip} route add default via {hop} dev way0 onlink table 100")
        world.net.run(f"{ip} rule add from {src} to {dst} lookup 100 priority 100")
        with world.net.inside():
            index = socket.if_nametoindex("way0")
        world.device(index, DeviceFlag.XDP_SEND, MACS[0])
        yield
    finally:
        world.net.run(f"{ip} rule del priority 100")
        world.net.run("link del way0")


def test_a_way_by_both_addresses(world: World, fam: Family, hook: str) -> None:
    """The route of a request without a next hop is looked up with its translated addresses, and that of a reply, too."""
    wide = scattered(fam, 1)
    world.filter("snat", wide.packed(wide.node2))
    backend = world.backend(wide, wide.remote(9), 8080, nexthop=0)
    world.service(wide, wide.vip, 80, TCP, [backend])
    request = craft.frame(craft.tcp(wide, wide.client, 40000, wide.vip, 80))
    with detour(world, wide, wide.node2, backend.address):
        out = world.run(hook, request)
        assert left_by_detour(out)
    answer = expect.remote_reply(wide, TCP, backend, expect.source(out)[1])
    with detour(world, wide, wide.vip, wide.client):
        assert left_by_detour(world.run(hook, answer, world.net.lb1))


def test_a_way_that_nothing_leads(world: World, fam: Family) -> None:
    """With an unreachable route the packet is dropped, and counted as such."""
    wide = scattered(fam, 1)
    backend = world.backend(wide, wide.remote(9), 8080, nexthop=0)
    world.service(wide, wide.vip, 80, TCP, [backend])
    request = craft.frame(craft.tcp(wide, wide.client, 40000, wide.vip, 80))
    world.net.run(f"-{fam.version} route add prohibit {backend.address}")
    try:
        for hook in (XDP, TC_INGRESS):
            out = world.run(hook, request)
            assert out.dropped
            assert out.counted == {Reason.DROP_NO_NEIGHBOR: 1}
    finally:
        world.net.run(f"-{fam.version} route del prohibit {backend.address}")


def test_a_reply_by_a_device_of_which_nothing_is_known(world: World, fam: Family, hook: str) -> None:
    """Its MTU is not known either, so nothing is too large for it."""
    world.nexthop(world.net.lb0, craft.ROUTER_MAC, craft.NODE_MAC)
    backend = world.backend(fam, fam.remote(1), 8080)
    service = world.service(fam, fam.vip, 80, TCP, [backend])
    request = craft.frame(craft.tcp(fam, fam.client, 40000, fam.vip, 80))
    port = expect.source(world.run(hook, request))[1]
    for flags in ("SA", "A"):
        answer = expect.remote_reply(fam, TCP, backend, port, flags)
        expect.replied(world.run(hook, answer, world.net.lb1), answer, service, fam.client, 40000)
    world.clear("lb_device")
    for _ in range(2):
        answer = expect.remote_reply(fam, TCP, backend, port, "A", load=bytes(1400))
        expect.replied(world.run(hook, answer, world.net.lb1), answer, service, fam.client, 40000)
