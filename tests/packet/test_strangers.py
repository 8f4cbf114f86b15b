"""Packets that only look like those of flows: impossible sources, source routes, replies to an address that no flow is sent from."""

from __future__ import annotations

import pytest
from scapy.layers.inet import IP, IPOption_LSRR, IPOption_NOP, IPOption_RR, IPOption_SSRR
from scapy.layers.inet import TCP as TcpLayer
from scapy.packet import Packet, Raw

from lbagent.maps.reasons import Reason
from tests.packet import craft, expect, wire
from tests.packet.craft import BACKEND_MAC, NODE2_MAC, Family
from tests.packet.world import TCP, UDP, XDP, World

# RFC 1122 §3.2.1.3, RFC 4291 §2.5.2, §2.5.3, §2.7: no packet on a wire may have these as its source
NO_HOST = {
    4: ("0.0.0.0", "0.1.2.3", "127.0.0.1", "127.9.9.9", "224.0.0.1", "239.1.2.3", "255.255.255.255"),
    6: ("::", "::1", "ff02::1", "ff0e::7"),
}


@pytest.mark.parametrize("proto", [TCP, UDP])
@pytest.mark.parametrize("local", [False, True], ids=["remote", "local"])
def test_source_that_is_no_host(world: World, fam: Family, hook: str, proto: int, *, local: bool) -> None:
    """No host could be answered at such a source: the packet is dropped, never translated, whatever the port."""
    address = fam.local(1) if local else fam.remote(1)
    world.service(fam, fam.vip, 80, proto, [world.backend(fam, address, 8080, proto, local=local)])
    for source in NO_HOST[fam.version]:
        for port in (0, 40000):
            for flags in ("S", "A"):
                frame = craft.frame(craft.segment(fam, proto, source, port, fam.vip, 80, flags))
                out = world.run(hook, frame)
                assert out.dropped, (source, port, flags)
                assert out.counted == {Reason.DROP_MALFORMED: 1}


# next to those above, and hosts all the same
NEARLY_NO_HOST = {
    4: ("1.0.0.1", "126.255.255.255", "128.0.0.1", "223.255.255.254"),
    6: ("::2", "::3", "::1:0:0:1", "0:0:0:1::", "0:0:0:1::1", "fe80::1", "fe00::", "100::", "::100"),
}


def test_source_next_to_one_that_is_no_host(world: World, fam: Family, hook: str) -> None:
    """It is served like any other, by a remote backend and by one of this node."""
    backends = [
        world.backend(fam, address, 8080, local=n > 0) for n, address in enumerate((fam.remote(1), fam.local(1)))
    ]
    for port, backend in zip((80, 81), backends, strict=True):
        world.service(fam, fam.vip, port, TCP, [backend])
        for source in NEARLY_NO_HOST[fam.version]:
            out = world.run(hook, craft.frame(craft.tcp(fam, source, 40000, fam.vip, port)))
            assert expect.destination(out) == backend.endpoint, source


def test_client_port_zero(world: World, fam: Family, hook: str) -> None:
    """Port 0 is odd and legal (RFC 768: "no port"); it is a client like any other."""
    backend = world.backend(fam, fam.remote(1), 8080)
    service = world.service(fam, fam.vip, 80, TCP, [backend])
    frame = craft.frame(craft.tcp(fam, fam.client, 0, fam.vip, 80))
    port = expect.forwarded_to(world.run(hook, frame), frame, backend)
    answer = expect.remote_reply(fam, TCP, backend, port)
    expect.replied(world.run(hook, answer, world.net.lb1), answer, service, fam.client, 0)


def test_reply_to_another_address(world: World, fam: Family, hook: str) -> None:
    """A backend's packet to the number of a SNAT port, but not to the address the flow is sent from, is not a reply.

    So is one to an address that only shares the SNAT address's place in the filter.
    """
    world.filter("snat", fam.packed(fam.client2))
    backend = world.backend(fam, fam.remote(1), 8080)
    world.service(fam, fam.vip, 80, TCP, [backend])
    frame = craft.frame(craft.tcp(fam, fam.client, 40000, fam.vip, 80))
    port = expect.forwarded_to(world.run(hook, frame), frame, backend)
    for address in (fam.node, fam.vip, fam.client2):
        other = craft.tcp(fam, backend.address, 8080, address, port, "SA")
        reply = craft.frame(other, src=BACKEND_MAC, dst=NODE2_MAC)
        expect.untouched(world.run(hook, reply, world.net.lb1), reply)


def routed(*options: Packet) -> bytes:
    """Return a SYN to the VIP with these IPv4 options."""
    fam = craft.V4
    return craft.frame(IP(src=fam.client, dst=fam.vip, options=list(options)) / TcpLayer(sport=40000, dport=80))


@pytest.mark.parametrize("kind", [IPOption_LSRR, IPOption_SSRR])
def test_source_route(world: World, hook: str, kind: type[Packet]) -> None:
    """With stops to come the destination is not the last one (RFC 791 §3.1), so nothing is for the VIP yet."""
    fam = craft.V4
    backend = world.backend(fam, fam.remote(1), 8080)
    world.service(fam, fam.vip, 80, TCP, [backend])
    stops = ["192.0.2.77", "192.0.2.78"]
    for options in (
        [kind(routers=stops)],
        [IPOption_NOP(), kind(routers=stops)],
        [IPOption_RR(routers=stops), kind(routers=stops)],
    ):
        frame = routed(*options)
        out = world.run(hook, frame)
        expect.untouched(out, frame)
        assert out.counted == {Reason.PASS_UNSUPPORTED: 1}
    through = routed(kind(routers=stops, pointer=12))  # beyond its 11 bytes: the route is at its end
    seen = wire.parse(world.run(hook, through).packet)
    assert seen is not None  # scapy sums up the last stop in place of the destination, so the checksum proves nothing
    assert (seen.dst, seen.dport) == (fam.packed(backend.address), 8080)
    recorded = routed(IPOption_RR(routers=stops))
    expect.forwarded_to(world.run(hook, recorded), recorded, backend)


def test_broken_options(world: World) -> None:
    """An option with a length below its own head, or beyond the header, ends the search."""
    fam = craft.V4
    backend = world.backend(fam, fam.remote(1), 8080)
    world.service(fam, fam.vip, 80, TCP, [backend])
    for option in (
        b"\x07\x00\x00\x00",
        b"\x07\x01\x83\x07",
        b"\x07\xff\x04\x00",
        b"\x01\x01\x01\x83",
        b"\x00\x83\x07\x04",
    ):
        frame = routed(Raw(option))
        out = world.run(XDP, frame)
        assert expect.destination(out) == backend.endpoint
