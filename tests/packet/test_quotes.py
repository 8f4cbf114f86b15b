"""Which quotes of an ICMP error are read, and how far: headers that are none, extension headers, what is quoted and what is padding."""

from __future__ import annotations

import pytest
from scapy.layers.inet import UDP as UdpLayer
from scapy.packet import Raw

from lbagent.maps.reasons import Reason
from tests.packet import craft, expect, wire
from tests.packet.craft import V4, V6, Family
from tests.packet.test_icmp import Flow, check_error, l3
from tests.packet.world import TCP, UDP, BackendRow, World

# as the two bytes of an IPv4 header behind its identification these mean "do not fragment", no offset
PORT, CLIENT_PORT = 0x1234, 0x4000
PORTS = PORT.to_bytes(2, "big") + CLIENT_PORT.to_bytes(2, "big")


def talk(world: World, fam: Family, hook: str, proto: int = UDP) -> BackendRow:
    """Send a client's request to a backend of this node; an error about the answer is for the backend."""
    backend = world.backend(fam, fam.local(1), 8080, proto, local=True)
    world.service(fam, fam.vip, PORT, proto, [backend])
    request = craft.frame(craft.segment(fam, proto, fam.client, CLIENT_PORT, fam.vip, PORT))
    expect.handed_up_to(world.run(hook, request), request, backend)
    return backend


def about(fam: Family, quoted: bytes, padding: bytes = b"") -> bytes:
    """Return the frame of an error about a packet from the VIP to the client."""
    return craft.frame(craft.icmp_error(fam, fam.router, fam.vip, fam.unreachable(), quoted)) + padding


def answer(
    fam: Family, source: tuple[str, int], destination: tuple[str, int], headers: bytes = b"", first: int = 17
) -> bytes:
    """Return a datagram with extension headers (the first one of which has this number) between IP header and UDP."""
    packet = fam.ip(source[0], destination[0]) / UdpLayer(sport=source[1], dport=destination[1]) / Raw(b"answer")
    raw = bytes(packet)
    if not headers:
        return raw
    length = (int.from_bytes(raw[4:6], "big") + len(headers)).to_bytes(2, "big")
    return raw[:4] + length + bytes((first,)) + raw[7:40] + headers + raw[40:]


def is_read(world: World, fam: Family, hook: str, backend: BackendRow, headers: bytes = b"", first: int = 17) -> bool:
    """Return whether an error about the answer with these headers is translated; if not it must pass unchanged."""
    client = (fam.client, CLIENT_PORT)
    frame = about(fam, answer(fam, (fam.vip, PORT), client, headers, first))
    out = world.run(hook, frame)
    if out.packet == frame:
        expect.untouched(out, frame)
        assert out.counted == {Reason.PASS_NOT_SERVICE: 1}
        return False
    quoted = answer(fam, backend.endpoint, client, headers, first)
    assert out.passed
    check_error(out.packet, src=fam.router, dst=backend.address, quoted=quoted, kind=fam.unreachable())
    return True


def header(fam: Family, start: bytes, protocol: int = UDP, end: bytes = b"") -> bytes:
    """Return an IP header from the VIP to the client with other first bytes."""
    addresses = fam.packed(fam.vip) + fam.packed(fam.client)
    if fam.version == 4:
        head = start + bytes(20)[len(start) : 8] + bytes((64, protocol, 0, 0)) + addresses
    else:
        head = start + bytes(6)[len(start) :] + bytes((protocol, 64)) + addresses
    return head + end + bytes(16)


LATER = b"\x00\x08"  # the fragment offset of the second eight bytes in IPv6, and some offset in IPv4
NOT_HEADERS = {  # in each the flow's ports stand where they would be found if the header counted as one
    4: {
        "version": header(V4, b"\x55" + PORTS),
        "later fragment": header(V4, b"\x45" + PORTS + b"\x00" + LATER),
        "of four bytes": header(V4, b"\x41\x00\x00\x40" + PORTS),
        "of none": header(V4, PORTS + bytes(2) + LATER),
        "of one byte": header(V4, b"\x44" + PORTS),
    },
    6: {
        "version": header(V6, b"\x55" + PORTS),
        "of none": header(V6, PORTS),
        "later fragment": header(V6, b"\x60" + PORTS, 44, b"\x11\x00" + LATER + bytes(4)),
        "too long": header(V6, b"\x60" + PORTS, 60, b"\x11\x1f" + bytes(254)),
    },
}


@pytest.mark.parametrize("proto", [TCP, UDP])
def test_a_quoted_header_that_is_none(world: World, fam: Family, hook: str, proto: int) -> None:
    """Nothing is looked up of it, whatever was quoted before."""
    talk(world, fam, hook, proto)
    layer = craft.segment(fam, proto, fam.vip, PORT, fam.client, CLIENT_PORT, "A")
    assert world.run(hook, about(fam, bytes(layer))).counted == {Reason.FWD_ICMP: 1}
    for name, quoted in NOT_HEADERS[fam.version].items():
        frame = about(fam, quoted)
        out = world.run(hook, frame)
        expect.untouched(out, frame)
        assert out.counted == {Reason.PASS_NOT_SERVICE: 1}, name


@pytest.mark.parametrize("proto", [TCP, UDP])
def test_padding_is_not_quoted(world: World, fam: Family, hook: str, proto: int) -> None:
    """The packet ends at its length: bytes of the frame behind it are neither read nor written, even if they would continue it."""
    backend = talk(world, fam, hook, proto)
    client = (fam.client, CLIENT_PORT)
    theirs, own = (
        bytes(craft.segment(fam, proto, *source, *client, "A", load=bytes(4)))
        for source in ((fam.vip, PORT), backend.endpoint)
    )
    start = 20 if fam.version == 4 else 40
    for cut in range(20):
        frame = about(fam, theirs[: start + cut], theirs[start + cut :])
        out = world.run(hook, frame)
        if cut < 8:
            expect.untouched(out, frame)
            continue
        assert out.passed
        end = len(frame) - len(theirs) + start + cut
        quoted = bytearray(own[: start + cut])
        if proto == TCP and cut < 18:  # no whole checksum is quoted: what there is of it stays
            quoted[start + 16 :] = theirs[start + 16 : start + cut]
        check_error(out.packet[:end], src=fam.router, dst=backend.address, quoted=bytes(quoted), kind=fam.unreachable())
        assert out.packet[end:] == frame[end:]


def options(*units: int, end: int = UDP) -> bytes:
    """Return destination options of so many units of eight bytes each, padded (RFC 8200 §4.2)."""
    following = [60] * (len(units) - 1) + [end]
    return b"".join(
        bytes((after, count - 1, 1, 8 * count - 4)) + bytes(8 * count - 4)
        for after, count in zip(following, units, strict=True)
    )


@pytest.mark.parametrize(
    ("units", "good"),
    [
        ((1,), True),
        ((2,), True),
        ((1,) * 4, True),
        ((1,) * 5, False),
        ((25, 1), True),
        ((26, 1), False),
        ((27,), False),
    ],
    ids=str,
)
def test_quoted_extension_headers_up_to_a_bound(world: World, hook: str, units: tuple[int, ...], *, good: bool) -> None:
    """Four of them, and 255 bytes of headers in all; what is longer goes up as it came."""
    backend = talk(world, V6, hook)
    assert is_read(world, V6, hook, backend, options(*units), 60) == good


def test_a_quoted_first_fragment(world: World, hook: str) -> None:
    """Its header has eight bytes, whatever stands in the reserved one (RFC 8200 §4.5), before and behind others."""
    backend = talk(world, V6, hook)
    for reserved in (0, 1, 0xFF):
        fragment = bytes((UDP, reserved, 0, 1)) + bytes(4)
        assert is_read(world, V6, hook, backend, fragment, 44)
        assert is_read(world, V6, hook, backend, options(1, end=44) + fragment, 60)


def test_a_quoted_authentication_header(world: World, hook: str) -> None:
    """It covers the addresses, so the backend's would not be right with it: the error goes up as it came (RFC 4302 §3.3.3)."""
    backend = talk(world, V6, hook)
    assert not is_read(world, V6, hook, backend, bytes((UDP, 0)) + bytes(6), 51)
    assert not is_read(world, V6, hook, backend, bytes((UDP, 4)) + bytes(22), 51)
    assert is_read(world, V6, hook, backend)


def test_an_error_in_fragments(world: World, fam: Family, hook: str) -> None:
    """Its checksum spans what is not here, so its first fragment goes up as it came, though the quote is whole."""
    talk(world, fam, hook)
    whole = l3(about(fam, answer(fam, (fam.vip, PORT), (fam.client, CLIENT_PORT))))
    if fam.version == 4:
        first = bytearray(whole)
        first[6:8] = b"\x20\x00"  # more fragments
        first[10:12] = b"\x00\x00"
        kind = b"\x08\x00"
    else:
        length = (int.from_bytes(whole[4:6], "big") + 8).to_bytes(2, "big")
        first = bytearray(whole[:4] + length + b"\x2c" + whole[7:40] + b"\x3a\x00\x00\x01" + bytes(4) + whole[40:])
        kind = b"\x86\xdd"
    frame = about(fam, b"")[:12] + kind + bytes(first)
    out = world.run(hook, frame)
    expect.untouched(out, frame)
    assert out.counted == {Reason.PASS_UNSUPPORTED: 1}


def test_a_segment_with_a_checksum_of_0_is_quoted_with_it(world: World, fam: Family, hook: str) -> None:
    """Of TCP 0 is a checksum like any other; only a datagram's is sent as 0xffff then (RFC 768)."""
    zeros = craft.frame(craft.tcp(fam, fam.client, 40000, fam.vip, 80, load=b"\0\0"))
    at = wire.parse(zeros).l4 + 16  # type: ignore[union-attr]
    flow = Flow(world, fam, TCP, local=False, load=zeros[at : at + 2])
    assert flow.sent[at : at + 2] == b"\0\0"
    out = world.run(hook, flow.error(fam.unreachable(), flow.backend.address, None), world.net.lb1)
    check_error(out.packet, src=fam.vip, dst=fam.client, quoted=flow.seen_by_client(None), kind=fam.unreachable())
