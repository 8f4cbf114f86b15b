"""Frames with wrong lengths in headers, or with headers that are not translated: the stack gets the same bytes."""

from __future__ import annotations

import pytest
from scapy.layers.inet import IP, UDP, IPOption_NOP
from scapy.layers.inet import TCP as TcpLayer
from scapy.layers.inet6 import IPv6, IPv6ExtHdrFragment, IPv6ExtHdrRouting
from scapy.packet import Packet, Raw

from lbagent.maps.reasons import Reason
from tests.packet import craft, expect
from tests.packet.craft import V4, V6, Family
from tests.packet.world import TCP, XDP, World, runnable
from tests.packet.world import UDP as UDP_NUMBER

PORTS = {"sport": 40000, "dport": 80}


def serve(world: World, fam: Family) -> None:
    """Have a service for TCP and UDP."""
    for proto in (TCP, UDP_NUMBER):
        world.service(fam, fam.vip, 80, proto, [world.backend(fam, fam.remote(1), 8080, proto)])


def patched(frame: bytes, at: int, new: bytes) -> bytes:
    """Return the frame with these bytes of the IP packet changed."""
    return frame[: 14 + at] + new + frame[14 + at + len(new) :]


def plain(fam: Family, layer: Packet | None = None) -> bytes:
    """Return a frame to the service."""
    return craft.frame(fam.ip(fam.client, fam.vip) / (layer or TcpLayer(**PORTS)) / Raw(b"x" * 20))


def goes_up_as_it_came(world: World, hook: str, frame: bytes) -> None:
    """Assert that nothing was translated, and that it was counted as not supported."""
    if not runnable(hook, frame):
        return
    out = world.run(hook, frame)
    expect.untouched(out, frame)
    assert out.counted == {Reason.PASS_UNSUPPORTED: 1}


@pytest.mark.parametrize("layer", [TcpLayer(**PORTS), UDP(**PORTS)], ids=["tcp", "udp"])
def test_a_packet_longer_than_its_frame(world: World, fam: Family, hook: str, layer: Packet) -> None:
    """One byte is enough. A packet that is shorter is padded, and that is all right."""
    serve(world, fam)
    frame = plain(fam, layer)
    at = 2 if fam.version == 4 else 4
    length = int.from_bytes(frame[14 + at : 16 + at], "big")
    goes_up_as_it_came(world, hook, patched(frame, at, (length + 1).to_bytes(2, "big")))
    assert world.run(hook, patched(frame, at, length.to_bytes(2, "big"))).forwarded


@pytest.mark.parametrize("size", [0, 1, 7, 8, 19, 20])
@pytest.mark.parametrize("tagged", [False, True], ids=["plain", "tagged"])
def test_a_header_that_the_packet_does_not_hold(
    world: World, fam: Family, hook: str, size: int, *, tagged: bool
) -> None:
    """TCP takes 20 bytes, UDP 8: what lies behind them in the frame is padding."""
    serve(world, fam)
    vlans = (7,) if tagged else ()
    start = 14 + 4 * tagged
    for layer, needed in ((TcpLayer(**PORTS), 20), (UDP(**PORTS, len=8), 8)):
        whole = craft.frame(fam.ip(fam.client, fam.vip) / layer / Raw(bytes(30)), vlans=vlans)
        at = start + (2 if fam.version == 4 else 4)
        length = size + (20 if fam.version == 4 else 0)
        frame = whole[:at] + length.to_bytes(2, "big") + whole[at + 2 :]
        if size < needed:
            goes_up_as_it_came(world, hook, frame)
        else:
            assert world.run(hook, frame).counted[Reason.PASS_UNSUPPORTED] == 0


@pytest.mark.parametrize("words", [0, 1, 4])
def test_an_ipv4_header_shorter_than_one(world: World, hook: str, words: int) -> None:
    """IHL counts words of four bytes; five is the least."""
    serve(world, V4)
    goes_up_as_it_came(world, hook, patched(plain(V4), 0, bytes((0x40 | words,))))


def test_an_ipv4_header_longer_than_its_packet(world: World, hook: str) -> None:
    """The header has 60 bytes, the packet 60 in all, so there is no TCP header."""
    serve(world, V4)
    goes_up_as_it_came(world, hook, patched(plain(V4), 0, b"\x4f"))


def test_another_version_than_the_frame_says(world: World, fam: Family, hook: str) -> None:
    """The Ethernet type is of one family, the header of another version: passed."""
    serve(world, fam)
    for version in (0, 5, 7, 15):
        first = bytes((version << 4 | (5 if fam.version == 4 else 0),))
        goes_up_as_it_came(world, hook, patched(plain(fam), 0, first))


@pytest.mark.parametrize(
    ("options", "ours"),
    [
        (b"\x01\x01\x01\x00", True),  # three NOP, the end
        (b"\x94\x04\x00\x00", True),  # router alert, of the right length
        (b"\x94\x01\x00\x00", True),  # an option of one byte: what follows cannot be read, so there is no source route
        (b"\x94\x01\x83\x07\x04\xc6\x33\x64\x09\x00\x00\x00", True),
        (b"\x94\x00\x83\x03", True),
        (b"\x07\x04\x05\x00\x83\x07\x04\xc6\x33\x64\x09\x00", False),  # a source route behind a record of routes
        (b"\x01\x89\x07\x04\xc6\x33\x64\x09", False),
        (b"\x01\x01\x01\x01\x01\x89\x07\x04\xc6\x33\x64\x09", False),
        (b"\x94\x04\x00\x00\x83\x07\x04\xc6\x33\x64\x09\x00", False),  # behind options of four bytes, and of two
        (b"\x94\x02\x83\x07\x04\xc6\x33\x64\x09\x00\x00\x00", False),
        (b"\x83\x07\x07\xc6\x33\x64\x09\x00", False),  # its pointer is at its last byte
        (b"\x83\x07\x08\xc6\x33\x64\x09\x00", True),  # at its end: the destination is the last one
        (b"\x00\x83\x07\x04\xc6\x33\x64\x09", True),  # behind the end of the options
        (b"\x00\x02\x83\x07\x04\xc6\x33\x64\x09\x00\x00\x00", True),
    ],
)
def test_ipv4_options(world: World, hook: str, options: bytes, *, ours: bool) -> None:
    """A source route that is not at its end (RFC 791 §3.1) makes the destination a stop; other options do not matter."""
    serve(world, V4)
    size = 20 + len(options)
    raw = bytes(IP(src=V4.client, dst=V4.vip, proto=6, ihl=size // 4, len=size + 20))[:20] + options
    packet = IP(raw + bytes(TcpLayer(**PORTS)))
    del packet.chksum
    data = craft.frame(IP(bytes(packet)))
    if ours:
        assert world.run(hook, data).counted[Reason.PASS_UNSUPPORTED] == 0
    else:
        goes_up_as_it_came(world, hook, data)


def test_ports_are_no_options(world: World, hook: str) -> None:
    """The options end where the header ends: the bytes after it look like a source route."""
    serve(world, V4)
    ip = IP(src=V4.client, dst=V4.vip, options=[IPOption_NOP()] * 4)
    data = craft.frame(ip / TcpLayer(sport=0x8307, dport=PORTS["dport"]))
    assert world.run(hook, data).counted[Reason.PASS_UNSUPPORTED] == 0


def chain(*headers: Packet) -> bytes:
    """Return a TCP SYN behind these extension headers."""
    packet: Packet = IPv6(src=V6.client, dst=V6.vip)
    for header in headers:
        packet /= header
    return craft.frame(packet / TcpLayer(**PORTS))


def options(*units: int, label: int = 0) -> bytes:
    """Return a TCP SYN behind destination options of so many units of eight bytes each, padded (RFC 8200 §4.2)."""
    following = [60] * (len(units) - 1) + [6]
    headers = b"".join(
        bytes((header, count - 1, 1, 8 * count - 4)) + bytes(8 * count - 4)
        for header, count in zip(following, units, strict=True)
    )
    segment = IPv6(src=V6.client, dst=V6.vip) / TcpLayer(**PORTS)
    packet = IPv6(src=V6.client, dst=V6.vip, nh=60, fl=label) / Raw(headers + bytes(segment)[40:])
    return craft.frame(packet)


def test_extension_headers_are_stepped_over_up_to_a_bound(world: World, hook: str) -> None:
    """Six, and 400 bytes of them."""
    serve(world, V6)
    for good in ((1,) * 6, (25, 25), (20, 20, 10)):
        out = world.run(hook, options(*good))
        assert out.forwarded, good
        assert out.packet[54 : 54 + 8 * sum(good)] == options(*good)[54 : 54 + 8 * sum(good)]
    for bad in ((1,) * 7, (25, 26), (20, 20, 11)):
        goes_up_as_it_came(world, hook, options(*bad))


def test_behind_too_many_of_them_nothing_is_read(world: World, hook: str) -> None:
    """Flow label and length of the IPv6 header read like a service's port, if that is where the segment were looked for."""
    frame = options(25, 26, label=0x1F)
    port = int.from_bytes(frame[17:19], "big")
    serve(world, V6)
    world.service(V6, V6.vip, port, TCP, [world.backend(V6, V6.remote(2), 8080)])
    assert world.run(hook, options(1)).forwarded  # a segment of TCP, whose protocol is still known
    goes_up_as_it_came(world, hook, frame)


@pytest.mark.parametrize("left", [0, 1, 3])
def test_a_routing_header(world: World, hook: str, left: int) -> None:
    """With segments left the destination is a stop, not the last one (RFC 8200 §4.4)."""
    serve(world, V6)
    frame = chain(IPv6ExtHdrRouting(type=0, segleft=left, addresses=["2001:db8::9"] * 3))
    if left:
        goes_up_as_it_came(world, hook, frame)
    else:
        assert world.run(hook, frame).forwarded


def test_an_extension_header_that_is_not_there(world: World) -> None:
    """The frame ends within it, also where one before it ended well."""
    serve(world, V6)
    assert world.run(XDP, options(1)).forwarded
    whole = craft.frame(IPv6(src=V6.client, dst=V6.vip, nh=60, plen=4) / Raw(b"\x06\x00\x01\x00"))
    goes_up_as_it_came(world, XDP, whole)


def test_authentication_header(world: World, hook: str) -> None:
    """Its length counts words of four bytes less two (RFC 4302 §2.2), others' words of eight less one."""
    serve(world, V6)
    ah = bytes((6, 4, 0, 0)) + bytes(20)  # 24 bytes
    packet = IPv6(src=V6.client, dst=V6.vip, nh=51) / Raw(ah + bytes(TcpLayer(**PORTS, chksum=1)))
    out = world.run(hook, craft.frame(packet))
    assert out.forwarded
    assert out.packet[14 + 40 : 14 + 64] == ah
    assert out.packet[14 + 64 + 2 : 14 + 64 + 4] == (8080).to_bytes(2, "big")


def test_a_first_fragment_without_its_ports(world: World, fam: Family, hook: str) -> None:
    """Eight bytes of a fragment are too few for TCP's header."""
    serve(world, fam)
    if fam.version == 4:
        packet = IP(src=fam.client, dst=fam.vip, flags="MF", proto=6) / Raw(bytes(TcpLayer(**PORTS))[:8])
    else:
        head = IPv6(src=fam.client, dst=fam.vip) / IPv6ExtHdrFragment(nh=6, m=1)
        packet = head / Raw(bytes(TcpLayer(**PORTS))[:8])
    goes_up_as_it_came(world, hook, craft.frame(packet) + bytes(30))


@pytest.mark.parametrize("number", [1, 2, 33, 47, 50, 255])
def test_protocols_that_are_not_translated(world: World, fam: Family, hook: str, number: int) -> None:
    """DCCP, GRE, ESP and so on to a VIP's address belong to the stack; so does ICMP of the other family."""
    serve(world, fam)
    frame = craft.frame(fam.ip(fam.client, fam.vip, **{"proto" if fam.version == 4 else "nh": number}) / Raw(bytes(40)))
    out = world.run(hook, frame)
    expect.untouched(out, frame)
    if number != 1 or fam.version == 6:
        assert out.counted == {Reason.PASS_UNSUPPORTED: 1}


def test_nothing_but_headers_before_icmp(world: World, fam: Family, hook: str) -> None:
    """A packet may end with its IP headers, and holds no error then; one that is shorter than they are is broken."""
    serve(world, fam)
    if fam.version == 4:
        packet = bytes(fam.ip(fam.client, fam.vip, proto=1, options=[IPOption_NOP()] * 4))
        at, whole = 2, 24
    else:
        packet = bytes(IPv6(src=fam.client, dst=fam.vip, nh=60) / Raw(bytes((58, 0, 1, 4)) + bytes(4)))
        at, whole = 4, 8
    frame = craft.frame(fam.ip(fam.client, fam.vip))[:14] + packet + bytes(40)
    out = world.run(hook, patched(frame, at, whole.to_bytes(2, "big")))
    assert out.counted == {Reason.PASS_NOT_SERVICE: 1}
    for length in (whole - 1, whole - 4):
        goes_up_as_it_came(world, hook, patched(frame, at, length.to_bytes(2, "big")))
