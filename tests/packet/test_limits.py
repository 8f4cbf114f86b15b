"""TTL and MTU: what may not be forwarded is answered or handed to the stack, never bent."""

from __future__ import annotations

import pytest

from lbagent.maps.layout import DeviceFlag
from lbagent.maps.reasons import Reason
from tests.packet import craft, expect
from tests.packet.craft import NODE_MAC, ROUTER_MAC, Family
from tests.packet.world import TCP, UDP, XDP, Outcome, World

BACK = bytes.fromhex((ROUTER_MAC + NODE_MAC).replace(":", ""))


def big(fam: Family, size: int, flags: str = "A", *, df: bool = True, ttl: int = 64) -> bytes:
    """Return a TCP frame whose IP packet has `size` bytes."""
    headers = (20 if fam.version == 4 else 40) + 20
    packet = craft.tcp(fam, fam.client, 40000, fam.vip, 80, flags, load=bytes(size - headers), ttl=ttl)
    if fam.version == 4 and df:
        packet.flags = "DF"
    return craft.frame(packet)


def check_too_big(out: Outcome, fam: Family, frame: bytes, mtu: int) -> None:
    """Assert the answer: from the VIP, with the MTU, quoting the packet the client sent."""
    assert out.forwarded
    assert out.counted == {Reason.ANSWER_TOO_BIG: 1}
    seen = expect.parsed(out)
    assert seen.icmp == ((3, 4) if fam.version == 4 else (2, 0))
    assert seen.mtu == mtu
    assert (fam.text(seen.src), fam.text(seen.dst)) == (fam.vip, fam.client)
    assert out.packet[:12] == BACK
    assert frame[14:].startswith(out.packet[seen.l4 + 8 : seen.end])


@pytest.mark.parametrize("local", [False, True], ids=["remote", "local"])
def test_packet_larger_than_the_way_out(world: World, fam: Family, hook: str, *, local: bool) -> None:
    """Established or new: 1,400 bytes fit a way of 1,400, 1,401 are answered before anything is translated."""
    address = fam.local(1) if local else fam.remote(1)
    backend = world.backend(fam, address, 8080, local=local, mtu=1400)
    world.service(fam, fam.vip, 80, TCP, [backend])
    for flags in ("S", "A", "A"):
        fits, over = big(fam, 1400, flags), big(fam, 1401, flags)
        check_too_big(world.run(hook, over), fam, over, 1400)
        out = world.run(hook, fits)
        assert expect.destination(out) == backend.endpoint


def test_unknown_mtu_lets_everything_through(world: World, fam: Family, hook: str) -> None:
    """MTU 0 means that it is unknown."""
    backend = world.backend(fam, fam.remote(1), 8080, mtu=0)
    world.service(fam, fam.vip, 80, TCP, [backend])
    frame = big(fam, 2900)
    expect.forwarded_to(world.run(hook, frame), frame, backend)


def test_a_route_by_a_device_that_carries_less(world: World, fam: Family, hook: str) -> None:
    """A way without a next hop: the path record has its MTU, also if the device has a smaller one."""
    backend = world.backend(fam, fam.remote(1), 8080, mtu=0, nexthop=0)
    world.service(fam, fam.vip, 80, TCP, [backend])
    frame = big(fam, 2900)
    expect.forwarded_to(world.run(hook, frame), frame, backend)


@pytest.mark.parametrize("ttl", [0, 1])
@pytest.mark.parametrize("proto", [TCP, UDP])
def test_last_hop_of_a_request(world: World, fam: Family, hook: str, ttl: int, proto: int) -> None:
    """TTL 1 to a remote backend is answered with time exceeded from the VIP, for new and established flows."""
    backend = world.backend(fam, fam.remote(1), 8080, proto)
    world.service(fam, fam.vip, 80, proto, [backend])
    for flags in ("S", "A"):
        frame = craft.frame(craft.segment(fam, proto, fam.client, 40000, fam.vip, 80, flags, ttl=ttl))
        out = world.run(hook, frame)
        assert out.forwarded
        assert out.counted == {Reason.ANSWER_TTL: 1}
        seen = expect.parsed(out)
        assert seen.icmp == ((11, 0) if fam.version == 4 else (3, 0))
        assert (fam.text(seen.src), fam.text(seen.dst)) == (fam.vip, fam.client)
        assert seen.quoted is not None
        assert seen.quoted.ttl == ttl
        world.run(hook, craft.frame(craft.segment(fam, proto, fam.client, 40000, fam.vip, 80, "S")))


def test_last_hop_to_a_local_backend(world: World, fam: Family, hook: str) -> None:
    """Delivery here is no hop: TTL 1 arrives with TTL 1."""
    backend = world.backend(fam, fam.local(1), 8080, local=True)
    world.service(fam, fam.vip, 80, TCP, [backend])
    frame = craft.frame(craft.tcp(fam, fam.client, 40000, fam.vip, 80, ttl=1))
    expect.handed_up_to(world.run(hook, frame), frame, backend)


def test_last_hop_of_a_reply(world: World, fam: Family, hook: str) -> None:
    """A reply with TTL 1 is never forwarded with 0: up untranslated, or answered."""
    backend = world.backend(fam, fam.remote(1), 8080)
    world.service(fam, fam.vip, 80, TCP, [backend])
    port = expect.source(world.run(hook, craft.frame(craft.tcp(fam, fam.client, 40000, fam.vip, 80))))[1]
    for _ in range(2):
        answer = expect.remote_reply(fam, TCP, backend, port, ttl=1)
        out = world.run(hook, answer, world.net.lb1)
        if out.passed:
            assert out.packet == answer
        else:
            assert expect.parsed(out).icmp in ((11, 0), (3, 0))


@pytest.mark.parametrize("size", [40, 41, 60, 100, 1000, 1399, 1400])
def test_every_size_that_fits(world: World, fam: Family, hook: str, size: int) -> None:
    """Odd and even lengths are translated with right checksums."""
    backend = world.backend(fam, fam.remote(1), 8080, mtu=1400)
    world.service(fam, fam.vip, 80, TCP, [backend])
    frame = big(fam, max(size, 60), "S")
    expect.forwarded_to(world.run(hook, frame), frame, backend)


def test_padded_frame(world: World, fam: Family, hook: str) -> None:
    """Ethernet padding is not part of the packet: it does not count against the MTU and does not disturb checksums."""
    backend = world.backend(fam, fam.remote(1), 8080, mtu=100)
    world.service(fam, fam.vip, 80, TCP, [backend])
    frame = big(fam, 100, "S")
    out = world.run(hook, frame + bytes(30))
    assert out.forwarded
    expect.forwarded_to(Outcome(hook, out.verdict, out.packet[: len(frame)], out.counted), frame, backend)


def reply_of(fam: Family, source: tuple[str, int], port: int, size: int, flags: str, *, df: bool) -> bytes:
    """Return a remote backend's segment whose IP packet has `size` bytes."""
    headers = (20 if fam.version == 4 else 40) + 20
    packet = craft.tcp(fam, *source, fam.node2, port, flags, load=bytes(size - headers))
    if fam.version == 4 and df:
        packet.flags = "DF"
    return craft.frame(packet, src=craft.BACKEND_MAC, dst=craft.NODE2_MAC)


def test_reply_larger_than_the_way_to_the_client(world: World, fam: Family, hook: str) -> None:
    """The first one and a later one: 1,399 bytes fit, 1,400 are answered to the backend, about the packet it sent."""
    world.device(world.net.lb0, DeviceFlag.XDP_SEND, NODE_MAC, mtu=1399)
    backend = world.backend(fam, fam.remote(1), 8080)
    service = world.service(fam, fam.vip, 80, TCP, [backend])
    port = expect.source(world.run(hook, craft.frame(craft.tcp(fam, fam.client, 40000, fam.vip, 80))))[1]
    for flags in ("SA", "A", "A"):
        over = reply_of(fam, backend.endpoint, port, 1400, flags, df=True)
        out = world.run(hook, over, world.net.lb1)
        assert out.counted == {Reason.ANSWER_TOO_BIG: 1}
        seen = expect.parsed(out)
        assert seen.mtu == 1399
        assert (fam.text(seen.src), fam.text(seen.dst)) == (fam.node2, backend.address)
        assert over[14:].startswith(out.packet[seen.l4 + 8 : seen.end])
        fits = reply_of(fam, backend.endpoint, port, 1399, flags, df=True)
        expect.replied(world.run(hook, fits, world.net.lb1), fits, service, fam.client, 40000)


def test_reply_that_may_be_fragmented_goes_up_at_xdp(world: World) -> None:
    """IPv4 without DF: translated, with its TTL, and up to the stack, which cuts it; tc cuts it itself (test_fragmentation.py)."""
    fam = craft.V4
    world.device(world.net.lb0, DeviceFlag.XDP_SEND, NODE_MAC, mtu=1400)
    backend = world.backend(fam, fam.remote(1), 8080)
    world.service(fam, fam.vip, 80, TCP, [backend])
    port = expect.source(world.run(XDP, craft.frame(craft.tcp(fam, fam.client, 40000, fam.vip, 80))))[1]
    for flags in ("SA", "A", "A"):
        over = reply_of(fam, backend.endpoint, port, 1401, flags, df=False)
        out = world.run(XDP, over, world.net.lb1)
        assert out.passed
        assert out.packet == expect.translated(over, src=fam.vip, sport=80, dst=fam.client, dport=40000)
        assert out.counted == {Reason.FWD_REPLY: 1}


def test_the_last_but_one_hop(world: World, fam: Family, hook: str) -> None:
    """TTL 2 is forwarded with 1, in both directions, by the first packets and by those of an established flow."""
    backend = world.backend(fam, fam.remote(1), 8080)
    service = world.service(fam, fam.vip, 80, TCP, [backend])
    for client_flags, backend_flags in (("S", "SA"), ("A", "PA"), ("A", "A"), ("A", "A")):
        frame = craft.frame(craft.tcp(fam, fam.client, 40000, fam.vip, 80, client_flags, ttl=2, load=bytes(40)))
        port = expect.forwarded_to(world.run(hook, frame), frame, backend)
        answer = expect.remote_reply(fam, TCP, backend, port, backend_flags, ttl=2, load=bytes(40))
        expect.replied(world.run(hook, answer, world.net.lb1), answer, service, fam.client, 40000)
        last = expect.remote_reply(fam, TCP, backend, port, "A", ttl=1, load=bytes(40))
        out = world.run(hook, last, world.net.lb1)
        assert out.counted == {Reason.ANSWER_TTL: 1}
        assert fam.text(expect.parsed(out).dst) == backend.address


def test_the_last_hop_of_a_local_backends_reply(world: World, fam: Family, hook: str) -> None:
    """The stack, which passed its requests, reports the end of the path."""
    backend = world.backend(fam, fam.local(1), 8080, local=True)
    world.service(fam, fam.vip, 80, TCP, [backend])
    for client_flags, backend_flags in (("S", "SA"), ("A", "A")):
        world.run(hook, craft.frame(craft.tcp(fam, fam.client, 40000, fam.vip, 80, client_flags)))
        last = expect.local_reply(fam, TCP, backend, fam.client, 40000, backend_flags, ttl=1)
        out = world.run(hook, last, world.net.pod0)
        expect.untouched(out, last)
        assert out.counted == {Reason.PASS_TTL: 1}


def test_a_way_whose_mtu_is_not_known(world: World, fam: Family, hook: str) -> None:
    """0 in the path record, or in the device's: nothing is too large."""
    world.device(world.net.lb0, DeviceFlag.XDP_SEND, NODE_MAC, mtu=0)
    backend = world.backend(fam, fam.remote(1), 8080, mtu=0)
    service = world.service(fam, fam.vip, 80, TCP, [backend])
    for flags in ("S", "A"):
        frame = big(fam, 1500, flags)
        port = expect.forwarded_to(world.run(hook, frame), frame, backend)
        answer = reply_of(fam, backend.endpoint, port, 1500, "SA" if flags == "S" else "A", df=True)
        expect.replied(world.run(hook, answer, world.net.lb1), answer, service, fam.client, 40000)


def test_what_fits_every_link_is_not_measured(world: World, fam: Family, hook: str) -> None:
    """A reply of 1,280 bytes, which each IPv6 link takes (RFC 8200 §5), goes; one of 1,281 is compared with the device's MTU."""
    world.device(world.net.lb0, DeviceFlag.XDP_SEND, NODE_MAC, mtu=1270)
    backend = world.backend(fam, fam.remote(1), 8080)
    service = world.service(fam, fam.vip, 80, TCP, [backend])
    port = expect.source(world.run(hook, craft.frame(craft.tcp(fam, fam.client, 40000, fam.vip, 80))))[1]
    for flags in ("SA", "A", "A"):
        fits = reply_of(fam, backend.endpoint, port, 1280, flags, df=True)
        expect.replied(world.run(hook, fits, world.net.lb1), fits, service, fam.client, 40000)
        over = reply_of(fam, backend.endpoint, port, 1281, flags, df=True)
        assert world.run(hook, over, world.net.lb1).counted == {Reason.ANSWER_TOO_BIG: 1}
