"""XDP leaves frames that it cannot send untouched to tc_after_xdp on the same device, which translates and sends them.

A test run of a tc program has no metadata, so the mark is mostly the one in the source MAC address; real devices show the other one.
"""

from __future__ import annotations

import contextlib
import os
import socket
import struct
from collections.abc import Iterator

import pytest

from lbagent.errors import KernelError
from lbagent.kernel import bpf_link
from lbagent.kernel.features import has_tcx
from lbagent.maps.reasons import Reason
from lbagent.testing.bpf_test_run import Tc, Xdp, run_xdp
from tests.packet import craft, expect
from tests.packet.craft import BACKEND_MAC, LOCAL_MAC, NODE2_MAC, POD_MAC, ROUTER_MAC, Family
from tests.packet.harness import open_world
from tests.packet.world import TC_AFTER_XDP, TCP, UDP, XDP, BackendRow, Outcome, World

# On the link of lb1 and of lb0, and known to no neighbour table.
LOST_BACKEND = {4: "10.0.0.77", 6: "fd00::77"}
LOST_CLIENT = {4: "192.0.2.77", 6: "2001:db8:2::77"}
PROTOCOLS = pytest.mark.parametrize("proto", [TCP, UDP], ids=["tcp", "udp"])


def request(fam: Family, proto: int, sport: int, flags: str = "S", client: str = "") -> bytes:
    return craft.frame(craft.segment(fam, proto, client or fam.client, sport, fam.vip, 80, flags))


def sent_to(out: Outcome, frame: bytes, backend: BackendRow, reason: Reason, **macs: str) -> int:
    """Assert that tc_after_xdp translated and sent `frame`, and counted it once; return the SNAT port."""
    assert out.forwarded, out
    assert out.counted == {reason: 1}
    port = expect.source(out)[1]
    wanted = expect.translated(
        frame, src=backend.family.node2, sport=port, dst=backend.address, dport=backend.port, hop=1, **macs
    )
    assert out.packet == wanted, expect.difference(out.packet, wanted)
    return port


@PROTOCOLS
def test_a_backend_without_neighbour(world: World, fam: Family, proto: int) -> None:
    """No flow is made by XDP: the new one and its later packets are made and sent by tc, where the kernel resolves the neighbour."""
    backend = world.backend(fam, LOST_BACKEND[fam.version], 8080, proto, nexthop=0)
    service = world.service(fam, fam.vip, 80, proto, [backend])
    before = world.service_counter(service)[0]
    frame = request(fam, proto, 40000)
    port = sent_to(expect.handed_over(world, frame), frame, backend, Reason.FWD_NEW)
    again = request(fam, proto, 40000, "A")
    assert sent_to(expect.handed_over(world, again), again, backend, Reason.FWD_ESTABLISHED) == port
    assert world.service_counter(service)[0] - before == 2


@PROTOCOLS
def test_the_flow_is_the_same_in_both_programs(world: World, fam: Family, proto: int) -> None:
    """A flow that began in tc continues in XDP as soon as the next hop is known, from the same port, and in tc again when it is lost."""
    backend = world.backend(fam, LOST_BACKEND[fam.version], 8080, proto, nexthop=0)
    service = world.service(fam, fam.vip, 80, proto, [backend])
    frame = request(fam, proto, 40000)
    port = sent_to(expect.handed_over(world, frame), frame, backend, Reason.FWD_NEW)
    hop = world.nexthop(world.net.lb1, BACKEND_MAC, NODE2_MAC)
    flags = 1 | 2 | (1 << 4 if proto == UDP else 0)  # live, selectable, protocol
    world.path(backend, flags=flags, nexthop=hop)
    frame = request(fam, proto, 40000, "A")
    assert expect.forwarded_to(world.run(XDP, frame), frame, backend) == port
    answer = expect.remote_reply(fam, proto, backend, port, "A")
    expect.replied(world.run(XDP, answer, world.net.lb1), answer, service, fam.client, 40000)
    world.clear("lb_nexthop")
    assert sent_to(expect.handed_over(world, frame), frame, backend, Reason.FWD_ESTABLISHED) == port


def test_a_device_that_takes_no_frames_from_xdp(world: World, fam: Family) -> None:
    """The neighbour is known, but its device record does not allow XDP to send: tc sends to that MAC address."""
    world.device(world.net.lb1, 0, NODE2_MAC)
    backend = world.backend(fam, fam.remote(1), 8080, nexthop=0)
    world.service(fam, fam.vip, 80, TCP, [backend])
    for flags, reason in (("S", Reason.FWD_NEW), ("A", Reason.FWD_ESTABLISHED)):
        frame = request(fam, TCP, 40000, flags)
        sent_to(expect.handed_over(world, frame), frame, backend, reason, smac=NODE2_MAC, dmac=BACKEND_MAC)


def test_a_record_that_is_not_for_xdp(world: World, fam: Family) -> None:
    """tc sends by a next-hop record with this mark; XDP does not, neither a new flow nor an established one."""
    world.device(world.net.lb1, 0, NODE2_MAC)
    hop = world.nexthop(world.net.lb1, BACKEND_MAC, NODE2_MAC, xdp=False)
    backend = world.backend(fam, fam.remote(1), 8080, nexthop=hop)
    world.service(fam, fam.vip, 80, TCP, [backend])
    for flags, reason in (("S", Reason.FWD_NEW), ("A", Reason.FWD_ESTABLISHED), ("A", Reason.FWD_ESTABLISHED)):
        frame = request(fam, TCP, 40000, flags)
        sent_to(expect.handed_over(world, frame), frame, backend, reason, smac=NODE2_MAC, dmac=BACKEND_MAC)
    frame = request(fam, TCP, 40001)
    assert expect.forwarded_to(world.run("tc_ingress", frame), frame, backend)
    frame = request(fam, TCP, 40001, "A")
    assert expect.forwarded_to(world.run("tc_ingress", frame), frame, backend)


def test_a_record_that_is_not_for_xdp_is_not_learned_by_a_reply(world: World, fam: Family) -> None:
    """Each reply to such a client goes through tc; the flow is left as it is."""
    world.nexthop(world.net.lb0, ROUTER_MAC, craft.NODE_MAC, xdp=False)
    world.device(world.net.lb0, 0, craft.NODE_MAC)
    backend = world.backend(fam, fam.remote(1), 8080)
    service = world.service(fam, fam.vip, 80, TCP, [backend])
    frame = request(fam, TCP, 40000)
    port = expect.forwarded_to(world.run(XDP, frame), frame, backend)
    for _ in range(3):
        answer = expect.remote_reply(fam, TCP, backend, port, "A")
        out = expect.handed_over(world, answer, world.net.lb1)
        expect.replied(out, answer, service, fam.client, 40000)
        assert out.counted == {Reason.FWD_REPLY: 1}


@PROTOCOLS
def test_a_client_without_neighbour(world: World, fam: Family, proto: int) -> None:
    backend = world.backend(fam, fam.remote(1), 8080, proto)
    service = world.service(fam, fam.vip, 80, proto, [backend])
    client = LOST_CLIENT[fam.version]
    frame = request(fam, proto, 40000, client=client)
    port = expect.forwarded_to(world.run(XDP, frame), frame, backend)
    for flags in ("SA", "A", "FA"):
        answer = expect.remote_reply(fam, proto, backend, port, flags)
        out = expect.handed_over(world, answer, world.net.lb1)
        assert out.forwarded
        assert out.counted == {Reason.FWD_REPLY: 1}
        wanted = expect.translated(answer, src=service.address, sport=80, dst=client, dport=40000, hop=1)
        assert out.packet == wanted, expect.difference(out.packet, wanted)


def test_an_icmp_error_to_a_client_without_neighbour(world: World, fam: Family) -> None:
    backend = world.backend(fam, fam.remote(1), 8080)
    world.service(fam, fam.vip, 80, TCP, [backend])
    frame = request(fam, TCP, 40000, client=LOST_CLIENT[fam.version])
    sent = world.run(XDP, frame).packet[14:]
    error = craft.icmp_error(fam, fam.router2, fam.node2, fam.too_big(1300), sent)
    out = expect.handed_over(world, craft.frame(error, src=BACKEND_MAC, dst=NODE2_MAC), world.net.lb1)
    assert out.forwarded
    assert out.counted == {Reason.FWD_ICMP: 1}
    assert expect.parsed(out).dst == fam.packed(LOST_CLIENT[fam.version])


def test_a_backend_that_is_nowhere_is_dropped(world: World, fam: Family, hook: str) -> None:
    """No route leads to it: the stack could not send it either, and no flow is made for it."""
    world.net.run(f"-{fam.version} route add unreachable {fam.remote(200)}")
    try:
        backend = world.backend(fam, fam.remote(200), 8080, nexthop=0)
        world.service(fam, fam.vip, 80, TCP, [backend])
        for _ in range(2):
            out = world.run(hook, request(fam, TCP, 40000))
            assert out.dropped
            assert out.counted == {Reason.DROP_NO_NEIGHBOR: 1}
    finally:
        world.net.run(f"-{fam.version} route del unreachable {fam.remote(200)}")


def test_an_icmp_error_to_a_client_that_is_nowhere_is_dropped(world: World, fam: Family, hook: str) -> None:
    """The stack could not send it either, and cannot address the error."""
    world.service(fam, fam.vip, 80, TCP, [world.backend(fam, fam.remote(1), 8080)])
    sent = world.run(hook, request(fam, TCP, 40000)).packet[14:]
    error = craft.icmp_error(fam, fam.router2, fam.node2, fam.too_big(1300), sent)
    world.net.run(f"-{fam.version} route add unreachable {fam.client}")
    try:
        out = world.run(hook, craft.frame(error, src=BACKEND_MAC, dst=NODE2_MAC), world.net.lb1)
        assert out.dropped
        assert out.counted == {Reason.DROP_NO_NEIGHBOR: 1}
    finally:
        world.net.run(f"-{fam.version} route del unreachable {fam.client}")


@pytest.mark.parametrize("vlans", [(5,), (5, 6)], ids=["tagged", "double"])
def test_tags_stay_with_the_frame(world: World, fam: Family, vlans: tuple[int, ...]) -> None:
    world.service(fam, fam.vip, 80, TCP, [world.backend(fam, LOST_BACKEND[fam.version], 8080, nexthop=0)])
    frame = craft.frame(craft.tcp(fam, fam.client, 40000, fam.vip, 80), vlans=vlans)
    out = world.run(XDP, frame)
    expect.untouched(out, frame)
    assert out.metadata


def test_what_is_not_left_to_it_passes_tc_after_xdp(world: World, fam: Family) -> None:
    """A request without a mark, one that XDP translated for a local backend, and a reply that it passed up: untouched, uncounted,
    and the device's next program sees it."""
    local = world.backend(fam, fam.local(1), 8080, local=True)
    world.service(fam, fam.vip, 80, TCP, [local])
    world.service(fam, fam.local(1), 8080, TCP, [world.backend(fam, fam.remote(1), 8080)])
    frames = [request(fam, TCP, 40000), world.run(XDP, request(fam, TCP, 40001)).packet]
    frames.append(craft.frame(craft.tcp(fam, fam.vip, 80, fam.client, 40001, "SA"), src=LOCAL_MAC, dst=POD_MAC))
    for frame in frames:
        out = world.run(TC_AFTER_XDP, frame)
        assert out.verdict == Tc.UNSPEC
        assert out.packet == frame
        assert not out.counted


def test_a_frame_for_another_host_is_not_its_own(world: World, fam: Family) -> None:
    world.service(fam, fam.vip, 80, TCP, [world.backend(fam, fam.remote(1), 8080)])
    frame = craft.frame(craft.tcp(fam, fam.client, 40000, fam.vip, 80), dst=BACKEND_MAC)
    out = world.run(TC_AFTER_XDP, expect.marked(frame))
    assert out.passed
    assert out.packet == expect.marked(frame)
    assert not out.counted


def test_without_room_for_metadata_the_source_mac_is_the_mark(world: World, fam: Family) -> None:
    """As with a driver that has no metadata; here the room is used up already."""
    world.service(fam, fam.vip, 80, TCP, [world.backend(fam, LOST_BACKEND[fam.version], 8080, nexthop=0)])
    frame = request(fam, TCP, 40000)
    out = None
    for room in range(252, 0, -4):  # the most that this kernel allows
        with world.net.inside(), contextlib.suppress(KernelError):
            out = run_xdp(world.programs[XDP], frame, ifindex=world.net.lb0, metadata=bytes(room))
            break
    assert out is not None
    assert out.verdict == Xdp.PASS
    assert out.packet == expect.marked(frame)


# --- on real devices, with metadata ---

PACKET_AUXDATA, VLAN_VALID = 8, 1 << 4  # include/uapi/linux/if_packet.h
SOL_PACKET, XDP_DRV_MODE = 263, 4


@pytest.fixture(scope="module")
def wired_world() -> Iterator[World]:
    """Load the programs and attach those two to lb0."""
    if not has_tcx():
        pytest.skip("TCX links need Linux 6.6")
    with open_world() as world, contextlib.ExitStack() as stack, world.net.inside():
        for hook, kind, flags in (
            (XDP, bpf_link.AttachType.XDP, XDP_DRV_MODE), (TC_AFTER_XDP, bpf_link.AttachType.TCX_INGRESS, 0),
        ):  # fmt: skip
            stack.callback(os.close, bpf_link.link_create(world.programs[hook], world.net.lb0, kind, flags))
        yield world


@pytest.mark.parametrize("vlans", [(), (5,), (5, 6)], ids=["untagged", "tagged", "double"])
def test_a_frame_that_came_tagged_leaves_without_tags(wired_world: World, fam: Family, vlans: tuple[int, ...]) -> None:
    """tc gets the outer tag beside the frame and the inner one in it; neither belongs to the device by which it leaves."""
    world = wired_world
    world.reset()
    world.device(world.net.lb1, 0, NODE2_MAC)
    backend = world.backend(fam, fam.remote(1), 8080, nexthop=0)
    world.service(fam, fam.vip, 80, TCP, [backend])
    packet = craft.tcp(fam, fam.client, 40000, fam.vip, 80)
    with (
        socket.socket(socket.AF_PACKET, socket.SOCK_RAW) as sender,
        socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3)) as seen,
    ):
        sender.bind(("peer0", 0))
        seen.bind(("peer1", 0))
        seen.setsockopt(SOL_PACKET, PACKET_AUXDATA, 1)
        seen.settimeout(5)
        sender.send(craft.frame(packet, vlans=vlans))
        while True:
            data, (extra, *_), _, address = seen.recvmsg(4000, 100)
            got = expect.wire.parse(data)
            if address[2] != socket.PACKET_OUTGOING and got is not None and got.dst == fam.packed(backend.address):
                break
    status, *_, tag, _ = struct.unpack("=IIIHHHH", extra[2])
    assert (status & VLAN_VALID, tag) == (0, 0)
    wanted = expect.translated(
        craft.frame(packet), src=fam.node2, sport=got.sport, dst=backend.address, dport=8080, hop=1, **expect.TO_BACKEND
    )
    assert data == wanted, expect.difference(data, wanted)
