"""Pings of the addresses of services: answered while a frontend takes new flows, else dropped; nothing loops, nothing grows."""

from __future__ import annotations

import time

import pytest
from scapy.layers.inet import ICMP, IP, IPOption_NOP
from scapy.layers.inet6 import (
    ICMPv6EchoReply,
    ICMPv6EchoRequest,
    IPv6,
    IPv6ExtHdrDestOpt,
    IPv6ExtHdrFragment,
)
from scapy.layers.l2 import Ether
from scapy.packet import Packet, Raw

from lbagent.bpf.load.program_settings import ProgramSettings
from lbagent.maps.layout import DeviceFlag
from lbagent.maps.reasons import Reason
from tests.packet import craft, expect
from tests.packet.craft import NODE_MAC, Family
from tests.packet.harness import one_cpu, open_world
from tests.packet.world import (
    ROUTABLE,
    SOURCE_RANGE,
    TC_EGRESS,
    TC_INGRESS,
    TCP,
    TWO_SCOPES,
    TYPE_CLUSTER_IP,
    TYPE_LOAD_BALANCER,
    XDP,
    Outcome,
    ServiceRow,
    World,
)

HOOKS = pytest.mark.parametrize("hook", [XDP, TC_INGRESS, TC_EGRESS])
L7 = 0x0400
LOAD = bytes(range(48))


def ping(
    fam: Family, src: str = "", dst: str = "", load: bytes = LOAD, *, reply: bool = False, **fields: object
) -> Packet:
    """Return a ping of the VIP."""
    ip = fam.ip(src or fam.client, dst or fam.vip, **fields)
    if fam.version == 4:
        return ip / ICMP(type=0 if reply else 8, id=7, seq=3) / Raw(load)
    return ip / (ICMPv6EchoReply if reply else ICMPv6EchoRequest)(id=7, seq=3, data=load)


def serve(world: World, fam: Family, backends: int = 1, **more: object) -> ServiceRow:
    """Serve the VIP, and let that frontend decide about its pings."""
    row = world.service(
        fam, fam.vip, 80, TCP, [world.backend(fam, fam.remote(n + 1), 8080) for n in range(backends)], **more
    )
    world.echo(fam.vip, row)
    return row


def answered(out: Outcome, frame: bytes, fam: Family) -> None:
    """The frame went back to its sender with addresses exchanged, all else kept, and right checksums."""
    assert out.forwarded, out
    assert out.counted == {Reason.ANSWER_ECHO: 1}
    question, answer = craft.decode(frame), craft.decode(out.packet)
    assert len(out.packet) == len(frame)
    assert (answer[Ether].src, answer[Ether].dst) == (question[Ether].dst, question[Ether].src)
    layer = IP if fam.version == 4 else IPv6
    assert (answer[layer].src, answer[layer].dst) == (question[layer].dst, question[layer].src)
    wanted = question.copy()
    wanted[Ether].src, wanted[Ether].dst = question[Ether].dst, question[Ether].src
    wanted[layer].src, wanted[layer].dst = question[layer].dst, question[layer].src
    if fam.version == 4:
        wanted[IP].ttl = 64
        wanted[ICMP].type = 0
    else:
        wanted[IPv6].hlim = 64
        wanted[ICMPv6EchoRequest].type = 129
    assert out.packet == craft.recomputed(wanted), expect.difference(out.packet, craft.recomputed(wanted))


@HOOKS
@pytest.mark.parametrize("size", [0, 1, 7, 56, 1400])
def test_a_ping_is_answered(world: World, fam: Family, hook: str, size: int) -> None:
    serve(world, fam)
    frame = craft.frame(ping(fam, load=bytes(n * 7 & 0xFF for n in range(size)), ttl=3))
    answered(world.run(hook, frame), frame, fam)


@HOOKS
def test_without_backends_it_is_dropped(world: World, fam: Family, hook: str) -> None:
    serve(world, fam, backends=0)
    out = world.run(hook, craft.frame(ping(fam)))
    assert out.dropped
    assert out.counted == {Reason.DROP_NO_BACKEND: 1}


@HOOKS
def test_an_address_without_an_entry_is_the_stacks(world: World, fam: Family, hook: str) -> None:
    """A NodePort's address, for one."""
    world.service(fam, fam.vip, 30080, TCP, [world.backend(fam, fam.remote(1), 8080)])
    frame = craft.frame(ping(fam))
    out = world.run(hook, frame)
    expect.untouched(out, frame)
    assert Reason.ANSWER_ECHO not in out.counted


@HOOKS
def test_an_echo_reply_is_never_answered(world: World, fam: Family, hook: str) -> None:
    serve(world, fam)
    frame = craft.frame(ping(fam, reply=True))
    expect.untouched(world.run(hook, frame), frame)


@HOOKS
def test_the_answer_is_not_answered_either(world: World, fam: Family, hook: str) -> None:
    serve(world, fam)
    out = world.run(hook, craft.frame(ping(fam)))
    again = world.run(hook, bytes.fromhex(NODE_MAC.replace(":", "")) + out.packet[6:])
    assert again.passed
    assert Reason.ANSWER_ECHO not in again.counted


@HOOKS
def test_sources_that_are_no_single_host(world: World, fam: Family, hook: str) -> None:
    serve(world, fam)
    groups = ("255.255.255.255", "224.0.0.1", "0.0.0.0", "127.0.0.1") if fam.version == 4 else ("ff02::1", "::", "::1")
    for source in (*groups, fam.vip):
        out = world.run(hook, craft.frame(ping(fam, src=source)))
        assert Reason.ANSWER_ECHO not in out.counted, source
        assert not out.forwarded, source


@HOOKS
def test_another_service_s_address_as_source(world: World, fam: Family, hook: str) -> None:
    """Two nodes, or two addresses, cannot be made to talk to each other."""
    serve(world, fam)
    other = world.service(fam, fam.vip2, 80, TCP, [world.backend(fam, fam.remote(2), 8080)])
    world.echo(fam.vip2, other)
    out = world.run(hook, craft.frame(ping(fam, src=fam.vip2)))
    assert out.dropped
    assert out.counted == {Reason.DROP_MALFORMED: 1}


@pytest.mark.parametrize("hook", [XDP, TC_INGRESS])
def test_frames_of_and_for_a_group(world: World, fam: Family, hook: str) -> None:
    serve(world, fam)
    for macs in ({"dst": "ff:ff:ff:ff:ff:ff"}, {"dst": "01:00:5e:00:00:01"}, {"src": "03:00:00:00:00:01"}):
        out = world.run(hook, craft.frame(ping(fam), **macs))
        assert not out.forwarded, macs
        assert Reason.ANSWER_ECHO not in out.counted


@HOOKS
def test_a_wrong_checksum_stays_wrong_by_as_much(world: World, fam: Family, hook: str) -> None:
    serve(world, fam)
    right = craft.frame(ping(fam))
    at = 14 + (20 if fam.version == 4 else 40) + 2
    for wrong in (b"\x00\x00", b"\x12\x34", b"\xff\xff"):
        assert right[at : at + 2] != wrong
        out = world.run(hook, right[:at] + wrong + right[at + 2 :])
        assert out.forwarded
        packet = craft.decode(out.packet)
        assert craft.recomputed(packet) != out.packet


def test_an_ip_header_with_a_wrong_checksum_stays_wrong(world: World, hook: str) -> None:
    serve(world, craft.V4)
    frame = bytearray(craft.frame(ping(craft.V4)))
    frame[24] ^= 0x40
    out = world.run(hook, bytes(frame))
    if out.forwarded:
        assert craft.recomputed(craft.decode(out.packet)) != out.packet


@pytest.mark.parametrize("hook", [XDP, TC_INGRESS])
def test_fragments_are_the_stacks(world: World, fam: Family, hook: str) -> None:
    serve(world, fam)
    if fam.version == 4:
        parts = [fam.ip(fam.client, fam.vip, flags="MF", id=9) / ICMP(id=7) / Raw(LOAD)]
        parts.append(fam.ip(fam.client, fam.vip, frag=8, id=9, proto=1) / Raw(LOAD))
    else:
        echo = bytes(ping(fam))[40:]
        parts = [fam.ip(fam.client, fam.vip) / IPv6ExtHdrFragment(nh=58, m=1, id=9) / Raw(echo)]
        parts.append(fam.ip(fam.client, fam.vip) / IPv6ExtHdrFragment(nh=58, offset=8, id=9) / Raw(LOAD))
    for part in parts:
        frame = craft.frame(part)
        out = world.run(hook, frame)
        expect.untouched(out, frame)
        assert Reason.ANSWER_ECHO not in out.counted


@pytest.mark.parametrize("hook", [XDP, TC_INGRESS])
def test_options_and_extension_headers_are_kept(world: World, fam: Family, hook: str) -> None:
    serve(world, fam)
    if fam.version == 4:
        packet = ping(fam, options=[IPOption_NOP()] * 8)
    else:
        packet = fam.ip(fam.client, fam.vip) / IPv6ExtHdrDestOpt() / ICMPv6EchoRequest(id=7, data=LOAD)
    frame = craft.frame(packet)
    answered(world.run(hook, frame), frame, fam)


def test_tags_are_kept(world: World, fam: Family) -> None:
    serve(world, fam)
    for vlans in ((5,), (5, 6)):
        frame = craft.frame(ping(fam), vlans=vlans)
        answered(world.run(XDP, frame), frame, fam)


@HOOKS
def test_other_kinds_and_codes_pass(world: World, fam: Family, hook: str) -> None:
    serve(world, fam)
    kinds = [(13, 0), (17, 0), (8, 1), (5, 0)] if fam.version == 4 else [(128, 1), (135, 0), (133, 0), (139, 0)]
    for kind, code in kinds:
        frame = bytearray(craft.frame(ping(fam)))
        at = 14 + (20 if fam.version == 4 else 40)
        frame[at : at + 2] = bytes((kind, code))
        out = world.run(hook, bytes(frame))
        assert out.passed, (kind, code)
        assert out.packet == bytes(frame)


@pytest.mark.parametrize("hook", [XDP, TC_INGRESS])
def test_a_packet_that_is_too_short_for_an_echo(world: World, fam: Family, hook: str) -> None:
    """The type is behind the end of the packet, in what pads the frame."""
    serve(world, fam)
    whole = bytes(ping(fam))
    size = len(whole) - len(LOAD) - 4
    head = bytearray(whole)
    head[2:4] = size.to_bytes(2, "big") if fam.version == 4 else head[2:4]
    if fam.version == 6:
        head[4:6] = (size - 40).to_bytes(2, "big")
    out = world.run(hook, craft.frame(Raw(b""))[:12] + (b"\x08\x00" if fam.version == 4 else b"\x86\xdd") + bytes(head))
    assert Reason.ANSWER_ECHO not in out.counted
    assert out.passed


def test_the_answers_are_within_the_rate(fam: Family) -> None:
    with one_cpu(), open_world(ProgramSettings(reject_rate=5)) as world:
        serve(world, fam)
        began = time.monotonic()
        reasons = [world.run(XDP, craft.frame(ping(fam))).counted for _ in range(60)]
        took_s = time.monotonic() - began
    count = sum(Reason.ANSWER_ECHO in each for each in reasons)
    assert 5 <= count <= 5 * (1.1 + took_s) + 1
    assert all(each in ({Reason.ANSWER_ECHO: 1}, {Reason.DROP_NO_BACKEND: 1}) for each in reasons)


@HOOKS
def test_with_the_option_off_it_is_the_stacks(fam: Family, hook: str) -> None:
    with open_world(ProgramSettings(echo_reply=False)) as world:
        for backends in (0, 1):
            serve(world, fam, backends)
            frame = craft.frame(ping(fam))
            expect.untouched(world.run(hook, frame), frame)


def test_the_scope_of_the_sender_decides(world: World, fam: Family) -> None:
    """With a Local policy and no backend here, clients of outside are not served, pods are."""
    outside = world.service(fam, fam.vip, 80, TCP, [], flags=TYPE_LOAD_BALANCER | ROUTABLE | TWO_SCOPES)
    inside = world.service(
        fam, fam.vip, 80, TCP, [world.backend(fam, fam.remote(1), 8080)],
        flags=TYPE_LOAD_BALANCER | ROUTABLE | TWO_SCOPES, scope=1,
    )  # fmt: skip
    world.echo(fam.vip, outside, inside)
    assert world.run(TC_INGRESS, craft.frame(ping(fam))).counted == {Reason.DROP_NO_BACKEND: 1}
    assert world.run(XDP, craft.frame(ping(fam))).counted == {Reason.DROP_NO_BACKEND: 1}
    frame = craft.frame(ping(fam, src=fam.local(1)), src=craft.LOCAL_MAC, dst=craft.POD_MAC)
    answered(world.run(TC_INGRESS, frame, world.net.pod0), frame, fam)
    frame = craft.frame(ping(fam, src=fam.node))
    answered(world.run(TC_EGRESS, frame), frame, fam)


@HOOKS
def test_source_ranges_decide_too(world: World, fam: Family, hook: str) -> None:
    bits = 32 if fam.version == 4 else 128
    serve(world, fam, flags=TYPE_LOAD_BALANCER | ROUTABLE | SOURCE_RANGE, ranges=[f"{fam.client}/{bits}"])
    frame = craft.frame(ping(fam))
    answered(world.run(hook, frame), frame, fam)
    out = world.run(hook, craft.frame(ping(fam, src=fam.client2)))
    assert out.dropped
    assert out.counted == {Reason.DROP_SOURCE_RANGE: 1}


def test_a_cluster_ip_from_outside(fam: Family) -> None:
    with open_world(ProgramSettings(external_clusterip=False)) as world:
        serve(world, fam, flags=TYPE_CLUSTER_IP)
        out = world.run(XDP, craft.frame(ping(fam)))
        assert out.counted == {Reason.DROP_NOT_ROUTABLE: 1}
        frame = craft.frame(ping(fam, src=fam.local(1)), src=craft.LOCAL_MAC, dst=craft.POD_MAC)
        answered(world.run(TC_INGRESS, frame, world.net.pod0), frame, fam)


def test_an_address_of_an_l7_proxy_is_the_proxys(world: World, fam: Family, hook: str) -> None:
    serve(world, fam, flags=TYPE_LOAD_BALANCER | ROUTABLE | L7)
    frame = craft.frame(ping(fam))
    expect.untouched(world.run(hook, frame), frame)


def test_a_device_that_takes_no_frames_of_xdp(world: World, fam: Family) -> None:
    """Then tc answers."""
    serve(world, fam)
    world.device(world.net.lb0, 0, NODE_MAC)
    frame = craft.frame(ping(fam))
    out = expect.handed_over(world, frame)
    answered(out, frame, fam)
    world.device(world.net.lb0, DeviceFlag.XDP_SEND, NODE_MAC)


def test_each_byte_of_the_address_counts(world: World, fam: Family, hook: str) -> None:
    serve(world, fam)
    packed = fam.packed(fam.vip)
    for n in range(len(packed)):
        other = fam.text(packed[:n] + bytes((packed[n] ^ 1,)) + packed[n + 1 :])
        world.filter("vip", fam.packed(other))
        frame = craft.frame(ping(fam, dst=other))
        expect.untouched(world.run(hook, frame), frame)
