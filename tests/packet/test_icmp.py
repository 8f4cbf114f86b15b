"""ICMP errors about translated flows: each receiver reads about the very packet it sent, so PMTU discovery works both ways."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from scapy.packet import Packet

from lbagent.maps.reasons import Reason
from tests.packet import craft, expect, wire
from tests.packet.craft import BACKEND_MAC, LOCAL_MAC, NODE2_MAC, NODE_MAC, POD_MAC, ROUTER_MAC, Family
from tests.packet.world import TC_EGRESS, TC_INGRESS, TCP, UDP, XDP, BackendRow, Outcome, ServiceRow, World

PROTOCOLS = pytest.mark.parametrize("proto", [TCP, UDP], ids=["tcp", "udp"])
QUOTES = pytest.mark.parametrize(
    "cut", [8, 13, 18, None], ids=["8-bytes", "13-bytes", "18-bytes", "whole"]
)  # bytes of L4
KINDS: dict[str, Callable[[Family], Packet]] = {
    "unreachable": lambda fam: fam.unreachable(),
    "too-big": lambda fam: fam.too_big(1320),
    "ttl": lambda fam: fam.time_exceeded(),
}
ERRORS = pytest.mark.parametrize("kind", list(KINDS))


def l3(frame: bytes) -> bytes:
    """Return the IP packet of an untagged frame."""
    return frame[14:]


def cut_at(fam: Family, packet: bytes, cut: int | None) -> bytes:
    """Return the IP header and `cut` bytes of L4."""
    return packet if cut is None else packet[: (20 if fam.version == 4 else 40) + cut]


def with_hops_of(fam: Family, packet: bytes, ttl: int) -> bytes:
    """Return a packet as it looks after its TTL was counted down to `ttl`, header checksum right."""
    layer = craft.decode(bytes(14)[:12] + (b"\x08\x00" if fam.version == 4 else b"\x86\xdd") + packet)
    ip = layer.payload
    setattr(ip, "ttl" if fam.version == 4 else "hlim", ttl)
    if fam.version == 4:
        del ip.chksum
    return bytes(ip)


def check_error(out: bytes, *, src: str, dst: str, quoted: bytes, kind: Packet, mtu: int = 0) -> None:
    """Assert source, destination, kind and every byte of the quoted packet; checksums are checked by parsing."""
    seen = expect.parsed(out)
    fam = craft.FAMILIES[seen.family]
    assert (fam.text(seen.src), fam.text(seen.dst)) == (src, dst)
    assert seen.icmp == (kind.type, kind.code)
    at = seen.l4 + 8
    assert out[at : at + len(quoted)] == quoted, expect.difference(out, out[:at] + quoted)
    assert seen.end == at + len(quoted)
    assert seen.mtu == mtu
    assert craft.recomputed(craft.decode(out)) == out


class Flow:
    """A flow of one packet: what the client sent and what left the node."""

    def __init__(self, world: World, fam: Family, proto: int, *, local: bool, load: bytes = b"x" * 40) -> None:
        """Open it through XDP."""
        self.world, self.fam, self.proto = world, fam, proto
        address = fam.local(1) if local else fam.remote(1)
        self.backend: BackendRow = world.backend(fam, address, 8080, proto, local=local)
        self.service: ServiceRow = world.service(fam, fam.vip, 80, proto, [self.backend])
        self.sent = craft.frame(craft.segment(fam, proto, fam.client, 40000, fam.vip, 80, "S", load=load))
        self.out: Outcome = world.run(XDP, self.sent)
        assert not self.out.dropped
        self.snat = expect.source(self.out)

    def error(self, kind: Packet, source: str, cut: int | None) -> bytes:
        """Return an error about the forwarded packet, as it reaches the node on lb1."""
        quoted = cut_at(self.fam, l3(self.out.packet), cut)
        packet = craft.icmp_error(self.fam, source, self.snat[0], kind, quoted)
        return craft.frame(packet, src=BACKEND_MAC, dst=NODE2_MAC)

    def seen_by_client(self, cut: int | None) -> bytes:
        """Return the quote the client must read: its own packet, one hop older."""
        ttl = wire.parse(self.out.packet).ttl  # type: ignore[union-attr]
        return cut_at(self.fam, with_hops_of(self.fam, l3(self.sent), ttl), cut)


@PROTOCOLS
@QUOTES
@ERRORS
@pytest.mark.parametrize("sender", ["router", "backend"])
def test_about_a_request_to_a_remote_backend(
    world: World, fam: Family, hook: str, proto: int, cut: int | None, kind: str, sender: str
) -> None:
    """An error for the SNAT address goes to the client; the backend's own errors come from the VIP."""
    flow = Flow(world, fam, proto, local=False)
    layer = KINDS[kind](fam)
    source = flow.backend.address if sender == "backend" else fam.router2
    error = flow.error(layer, source, cut)
    out = world.run(hook, error, world.net.lb1)
    assert out.forwarded
    assert out.counted[Reason.FWD_ICMP] == 1
    seen_source = fam.vip if sender == "backend" else source
    check_error(
        out.packet, src=seen_source, dst=fam.client, quoted=flow.seen_by_client(cut), kind=layer,
        mtu=1320 if kind == "too-big" else 0,
    )  # fmt: skip
    assert wire.parse(out.packet).ttl == 63  # type: ignore[union-attr]
    assert out.packet[:12] == bytes.fromhex((ROUTER_MAC + NODE_MAC).replace(":", ""))


@PROTOCOLS
@QUOTES
@ERRORS
def test_about_a_reply_of_a_remote_backend(
    world: World, fam: Family, hook: str, proto: int, cut: int | None, kind: str
) -> None:
    """A router on the client's side reports that a reply is too big: the backend gets the error about its packet to the SNAT port."""
    flow = Flow(world, fam, proto, local=False)
    answer = expect.remote_reply(fam, proto, flow.backend, flow.snat[1], "PA", load=b"y" * 60)
    reply = world.run(hook, answer, world.net.lb1)
    layer = KINDS[kind](fam)
    error = craft.frame(craft.icmp_error(fam, fam.router, fam.vip, layer, cut_at(fam, l3(reply.packet), cut)))
    out = world.run(hook, error)
    assert out.forwarded
    assert out.counted[Reason.FWD_ICMP] == 1
    quoted = cut_at(fam, with_hops_of(fam, l3(answer), 63), cut)
    check_error(
        out.packet,
        src=fam.router,
        dst=flow.backend.address,
        quoted=quoted,
        kind=layer,
        mtu=1320 if kind == "too-big" else 0,
    )
    assert wire.parse(out.packet).ttl == 63  # type: ignore[union-attr]
    assert out.packet[:12] == bytes.fromhex((BACKEND_MAC + NODE2_MAC).replace(":", ""))


@PROTOCOLS
@QUOTES
@pytest.mark.parametrize("sender", ["router", "client"])
def test_about_a_reply_of_a_local_backend(
    world: World, fam: Family, hook: str, proto: int, cut: int | None, sender: str
) -> None:
    """The error goes up to the pod, about the packet the pod sent; the hop count stays."""
    flow = Flow(world, fam, proto, local=True)
    expect.at_pod(world, expect.local_reply(fam, proto, flow.backend, fam.client, 40000, "SA"))
    answer = expect.local_reply(fam, proto, flow.backend, fam.client, 40000, "PA", load=b"y" * 60)
    reply = expect.at_pod(world, answer)
    source = fam.client if sender == "client" else fam.router
    layer = fam.too_big(1280)
    error = craft.frame(craft.icmp_error(fam, source, fam.vip, layer, cut_at(fam, l3(reply.packet), cut)))
    out = world.run(hook, error)
    assert out.passed
    assert out.counted == {Reason.FWD_ICMP: 1}
    check_error(
        out.packet, src=source, dst=flow.backend.address, quoted=cut_at(fam, with_hops_of(fam, l3(answer), 63), cut),
        kind=layer, mtu=1280,
    )  # fmt: skip
    assert wire.parse(out.packet).ttl == 64  # type: ignore[union-attr]
    assert out.packet[:12] == error[:12]


@PROTOCOLS
@QUOTES
@pytest.mark.parametrize("place", ["pod", "egress"])
@pytest.mark.parametrize("sender", ["backend", "node"])
def test_of_a_local_backend(world: World, fam: Family, proto: int, cut: int | None, place: str, sender: str) -> None:
    """A closed port in a pod: the client gets the error from the VIP, about its own packet. The node's own errors keep their source."""
    flow = Flow(world, fam, proto, local=True)
    layer = fam.unreachable()
    source = flow.backend.address if sender == "backend" else fam.node
    packet = craft.icmp_error(fam, source, fam.client, layer, cut_at(fam, l3(flow.out.packet), cut))
    if place == "pod":
        error = craft.frame(packet, src=LOCAL_MAC, dst=POD_MAC)
        out = world.run(TC_INGRESS, error, world.net.pod0)
    else:
        error = craft.frame(packet, src=NODE_MAC, dst=ROUTER_MAC)
        out = world.run(TC_EGRESS, error, world.net.lb0)
    assert out.passed
    if place == "pod" and sender == "node":
        return  # a pod does not speak with the node's address; whatever comes of it must not be forwarded
    assert out.counted == {Reason.FWD_ICMP: 1}
    check_error(
        out.packet, src=fam.vip if sender == "backend" else source, dst=fam.client,
        quoted=cut_at(fam, l3(flow.sent), cut), kind=layer,
    )  # fmt: skip
    assert wire.parse(out.packet).ttl == 64  # type: ignore[union-attr]


def test_udp_without_checksum_is_quoted_without_one(world: World, hook: str) -> None:
    """A quoted checksum of 0 stays 0."""
    fam = craft.V4
    backend = world.backend(fam, fam.remote(1), 53, UDP)
    world.service(fam, fam.vip, 53, UDP, [backend])
    sent = craft.frame(craft.udp(fam, fam.client, 40000, fam.vip, 53, chksum=0))
    out = world.run(hook, sent)
    layer = fam.unreachable()
    packet = craft.icmp_error(fam, backend.address, fam.node2, layer, l3(out.packet))
    back = world.run(hook, craft.frame(packet, src=BACKEND_MAC, dst=NODE2_MAC), world.net.lb1)
    check_error(back.packet, src=fam.vip, dst=fam.client, quoted=with_hops_of(fam, l3(sent), 63), kind=layer)


def load_of_no_sum(frame: bytes) -> bytes:
    """Return the two bytes that, in the place of the zeros in this datagram, make its checksum 0, which is sent as 0xffff (RFC 768)."""
    seen = wire.parse(frame)
    assert seen is not None
    assert frame[seen.end - 2 : seen.end] == b"\0\0"
    return frame[seen.l4 + 6 : seen.l4 + 8]


def test_udp_with_a_checksum_of_ffff_is_quoted_with_it(world: World, fam: Family, hook: str) -> None:
    """The client sent 0xffff, which stands for a sum of 0: it reads 0xffff in the error, not 0, "no checksum"."""
    zeros = craft.frame(craft.udp(fam, fam.client, 40000, fam.vip, 80, b"\0\0"))
    flow = Flow(world, fam, UDP, local=False, load=load_of_no_sum(zeros))
    at = wire.parse(flow.sent).l4 + 6  # type: ignore[union-attr]
    assert flow.sent[at : at + 2] == b"\xff\xff"
    out = world.run(hook, flow.error(fam.unreachable(), flow.backend.address, None), world.net.lb1)
    check_error(out.packet, src=fam.vip, dst=fam.client, quoted=flow.seen_by_client(None), kind=fam.unreachable())


@pytest.mark.parametrize("local", [False, True], ids=["remote", "local"])
def test_a_reply_with_a_checksum_of_ffff_is_quoted_with_it(
    world: World, fam: Family, hook: str, *, local: bool
) -> None:
    """The same for the backend, which reads about the packet it sent."""
    flow = Flow(world, fam, UDP, local=local)

    def answer(load: bytes) -> bytes:
        if local:
            return expect.local_reply(fam, UDP, flow.backend, fam.client, 40000, load=load)
        return expect.remote_reply(fam, UDP, flow.backend, flow.snat[1], load=load)

    sent = answer(load_of_no_sum(answer(b"\0\0")))
    at = wire.parse(sent).l4 + 6  # type: ignore[union-attr]
    assert sent[at : at + 2] == b"\xff\xff"
    reply = expect.at_pod(world, sent) if local else world.run(hook, sent, world.net.lb1)
    error = craft.frame(craft.icmp_error(fam, fam.client, fam.vip, fam.unreachable(), l3(reply.packet)))
    out = world.run(hook, error)
    ttl = wire.parse(reply.packet).ttl  # type: ignore[union-attr]
    check_error(
        out.packet, src=fam.client, dst=flow.backend.address, quoted=with_hops_of(fam, l3(sent), ttl), kind=fam.unreachable()
    )  # fmt: skip


def test_outer_ipv4_options(world: World, hook: str) -> None:
    """Options in the error's own header move the quote; it is found all the same."""
    from scapy.layers.inet import IPOption_NOP

    fam = craft.V4
    flow = Flow(world, fam, UDP, local=False)
    layer = fam.too_big(1400)
    packet = craft.icmp_error(fam, fam.router2, fam.node2, layer, l3(flow.out.packet), options=[IPOption_NOP()] * 8)
    out = world.run(hook, craft.frame(packet, src=BACKEND_MAC, dst=NODE2_MAC), world.net.lb1)
    assert out.forwarded
    check_error(out.packet, src=fam.router2, dst=fam.client, quoted=flow.seen_by_client(None), kind=layer, mtu=1400)


def test_quoted_extension_headers(world: World, hook: str) -> None:
    """A request with extension headers is quoted with them and translated behind them."""
    from scapy.layers.inet import TCP as TcpLayer
    from scapy.layers.inet6 import IPv6ExtHdrDestOpt, IPv6ExtHdrHopByHop

    fam = craft.V6
    backend = world.backend(fam, fam.remote(1), 8080)
    world.service(fam, fam.vip, 80, TCP, [backend])
    chain = fam.ip(fam.client, fam.vip) / IPv6ExtHdrHopByHop() / IPv6ExtHdrDestOpt()
    sent = craft.frame(chain / TcpLayer(sport=40000, dport=80, flags="S"))
    out = world.run(hook, sent)
    expect.forwarded_to(out, sent, backend)
    layer = fam.too_big(1300)
    packet = craft.icmp_error(fam, fam.router2, fam.node2, layer, l3(out.packet))
    back = world.run(hook, craft.frame(packet, src=BACKEND_MAC, dst=NODE2_MAC), world.net.lb1)
    assert back.forwarded
    check_error(
        back.packet, src=fam.router2, dst=fam.client, quoted=with_hops_of(fam, l3(sent), 63), kind=layer, mtu=1300
    )


def test_about_no_flow_of_ours(world: World, fam: Family, hook: str) -> None:
    """Errors about the node's own connections, about unknown ports, about other protocols: untouched."""
    flow = Flow(world, fam, TCP, local=False)
    own = bytes(craft.tcp(fam, fam.node, 33000, fam.remote(1), 8080, "A"))
    unknown = bytes(craft.tcp(fam, fam.node2, 999, fam.remote(1), 8080, "A"))
    other_port = bytes(craft.tcp(fam, fam.vip, 81, fam.client, 40000, "A"))
    other_vip_flow = bytes(craft.tcp(fam, fam.vip, 80, fam.client, 40001, "A"))
    forged = l3(flow.out.packet)  # the quote is right, but the error is not for who sent that packet
    for src, dst, quoted in (
        (fam.router2, fam.node, own),
        (fam.router2, fam.node2, unknown),
        (fam.router, fam.vip, other_port),
        (fam.router, fam.vip, other_vip_flow),
        (fam.router, fam.vip, forged),
    ):
        frame = craft.frame(craft.icmp_error(fam, src, dst, fam.unreachable(), quoted))
        out = world.run(hook, frame)
        expect.untouched(out, frame)
        assert out.counted == {Reason.PASS_NOT_SERVICE: 1}


def test_quote_too_short_or_broken(world: World, fam: Family, hook: str) -> None:
    """Less than eight bytes of L4, a later fragment, a header with a wrong length: untouched."""
    flow = Flow(world, fam, TCP, local=False)
    whole = l3(flow.out.packet)
    header = 20 if fam.version == 4 else 40
    ports = whole[header : header + 4]  # of the flow; of a later fragment the flow label begins with them, too
    bad = [whole[:n] for n in range(header + 8)]
    if fam.version == 4:
        later = bytearray(whole)
        later[6:8] = (5).to_bytes(2, "big")
        bad += [bytes(later), bytes([0x4F]) + whole[1:40], bytes([0x41]) + whole[1:], bytes([0x65]) + whole[1:]]
    else:
        bad += [
            bytes([0x45]) + whole[1:],
            whole[:6] + b"\x2c" + whole[7:],
            whole[:6] + b"\x00" + whole[7:40] + b"\x06\xff",
            b"\x60" + ports + whole[5:6] + b"\x2c" + whole[7:40] + b"\x06\x00\x00\x08" + bytes(4) + whole[40:],
        ]
    world.run(hook, flow.error(fam.unreachable(), fam.router2, None), world.net.lb1)  # what it left behind is of no use
    for quoted in bad:
        frame = craft.frame(
            craft.icmp_error(fam, fam.router2, fam.node2, fam.unreachable(), quoted), src=BACKEND_MAC, dst=NODE2_MAC
        )
        out = world.run(hook, frame, world.net.lb1)
        expect.untouched(out, frame)


def test_error_for_a_backend_that_is_gone(world: World, fam: Family, hook: str) -> None:
    """An error about a reply of a removed backend is not sent to the backend that has its path record now."""
    flow = Flow(world, fam, TCP, local=False)
    answer = expect.remote_reply(fam, TCP, flow.backend, flow.snat[1], "PA")
    reply = world.run(hook, answer, world.net.lb1)
    world.remove_backend(flow.backend)
    error = craft.frame(craft.icmp_error(fam, fam.router, fam.vip, fam.too_big(1280), l3(reply.packet)))
    out = world.run(hook, error)
    expect.untouched(out, error)
    assert out.counted == {Reason.PASS_NOT_SERVICE: 1}


def test_which_icmp_messages_are_errors(world: World, fam: Family) -> None:
    """RFC 792, RFC 4443 §2.1. Others quote no packet; a redirect is for the link where it was seen."""
    errors = {4: {3, 4, 11, 12}, 6: {1, 2, 3, 4}}[fam.version]
    good = Flow(world, fam, UDP, local=False).error(fam.time_exceeded(), fam.router2, None)
    at = 14 + (20 if fam.version == 4 else 40)
    for kind in range(256):
        other = good[:at] + bytes((kind,)) + good[at + 1 :]
        out = world.run(XDP, other, world.net.lb1)
        if kind in errors:
            assert out.forwarded, kind
            assert out.packet[at] == kind
        else:
            expect.untouched(out, other)


def test_error_about_a_service_that_is_gone(world: World, fam: Family, hook: str) -> None:
    """Its frontend is not known any more, so it goes up as it came; test_service_gone.py has what becomes of replies."""
    flow = Flow(world, fam, TCP, local=False)
    rows = f"lb{fam.version}_reverse_nat"
    world.put(rows, [(flow.service.id.to_bytes(4, "little"), bytes(world.maps.specs[rows].value_size))])
    frame = flow.error(fam.too_big(1400), fam.router2, None)
    out = world.run(hook, frame, world.net.lb1)
    expect.untouched(out, frame)
    assert out.counted == {Reason.PASS_NOT_SERVICE: 1}


def test_error_with_the_last_hop(world: World, fam: Family, hook: str) -> None:
    """An error that arrives with TTL 1 is not forwarded, and never answered."""
    flow = Flow(world, fam, TCP, local=False)
    packet = craft.icmp_error(fam, fam.router2, fam.node2, fam.too_big(1400), l3(flow.out.packet), ttl=1)
    frame = craft.frame(packet, src=BACKEND_MAC, dst=NODE2_MAC)
    out = world.run(hook, frame, world.net.lb1)
    expect.untouched(out, frame)
    assert out.counted == {Reason.PASS_TTL: 1}


def test_error_with_the_last_but_one_hop(world: World, fam: Family, hook: str) -> None:
    """TTL 2 is enough to be forwarded once."""
    flow = Flow(world, fam, TCP, local=False)
    packet = craft.icmp_error(fam, fam.router2, fam.node2, fam.too_big(1400), l3(flow.out.packet), ttl=2)
    out = world.run(hook, craft.frame(packet, src=BACKEND_MAC, dst=NODE2_MAC), world.net.lb1)
    assert out.forwarded
    assert expect.parsed(out).ttl == 1
    assert out.counted == {Reason.FWD_ICMP: 1}


def test_errors_do_not_keep_a_flow_alive_or_change_it(world: World, fam: Family, hook: str) -> None:
    """The flow continues unchanged after an error."""
    flow = Flow(world, fam, TCP, local=False)
    world.run(hook, flow.error(fam.too_big(1400), fam.router2, None), world.net.lb1)
    data = craft.frame(craft.tcp(fam, fam.client, 40000, fam.vip, 80, "PA", load=b"more"))
    assert expect.forwarded_to(world.run(hook, data), data, flow.backend) == flow.snat[1]


def test_pmtu_discovery_of_a_download(world: World, fam: Family, hook: str) -> None:
    """The whole story: a big reply leaves, a router reports 1280, the backend learns 1280 for the address it talks to."""
    flow = Flow(world, fam, TCP, local=False)
    big = expect.remote_reply(fam, TCP, flow.backend, flow.snat[1], "A", load=bytes(1400))
    reply = world.run(hook, big, world.net.lb1)
    expect.replied(reply, big, flow.service, fam.client, 40000)
    limit = 548 if fam.version == 4 else 1232
    error = craft.frame(craft.icmp_error(fam, fam.router, fam.vip, fam.too_big(1280), l3(reply.packet)[:limit]))
    out = world.run(hook, error)
    seen = expect.parsed(out)
    assert seen.mtu == 1280
    assert seen.quoted is not None
    assert (fam.text(seen.dst), fam.text(seen.quoted.src), fam.text(seen.quoted.dst)) == (
        flow.backend.address, flow.backend.address, fam.node2,
    )  # fmt: skip
    assert (seen.quoted.sport, seen.quoted.dport) == (8080, flow.snat[1])
