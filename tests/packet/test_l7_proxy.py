"""A Service with an L7 proxy: its packets are given to a transparent socket of the node, with client and frontend as they came.

A test run is at no device, so that the kernel gives its packet to no socket: what needs that is tested on real devices, by frames of
scapy.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import select
import socket
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest
from scapy.layers.inet import IP
from scapy.layers.inet import TCP as Tcp
from scapy.layers.inet import UDP as Udp
from scapy.layers.inet6 import IPv6
from scapy.layers.l2 import Ether
from scapy.packet import Packet, Raw

from lbagent.bpf.load.program_settings import ProgramSettings
from lbagent.bpf.run.rule_counts import tick_now
from lbagent.kernel import bpf_link
from lbagent.kernel.features import has_tcx, kernel_version
from lbagent.maps.backend_codec import check_mark
from lbagent.maps.layout import L7_MARK
from lbagent.maps.reasons import Reason
from lbagent.model.family import Family as ModelFamily
from lbagent.net import proxy_route
from lbagent.testing.bpf_test_run import Tc as Verdict
from lbagent.testing.bpf_test_run import run_tc
from tests.lab.netns import wait_for
from tests.packet import craft, expect, table
from tests.packet.clock import Clock
from tests.packet.corpus import pieces
from tests.packet.craft import BACKEND_MAC, NODE_MAC, ROUTER_MAC, Family
from tests.packet.harness import open_world
from tests.packet.test_flow_rules import NUMBER, RECORD, RULES, rules
from tests.packet.world import (
    L7,
    RANDOM,
    ROUTABLE,
    SOURCE_RANGE,
    TC_AFTER_XDP,
    TC_EGRESS,
    TC_INGRESS,
    TCP,
    TYPE_LOAD_BALANCER,
    UDP,
    XDP,
    Outcome,
    World,
)

PORT = 15001
PATIENCE_S = 10.0
XDP_DRV_MODE = 4
IP_TRANSPARENT, IPV6_TRANSPARENT = 19, 75
IP_RECVORIGDSTADDR, IPV6_RECVORIGDSTADDR = 20, 74
PROTOCOLS = pytest.mark.parametrize("proto", [TCP, UDP], ids=["tcp", "udp"])
LOOPBACK = {4: "127.0.0.1", 6: "::1"}
ANY = {4: "0.0.0.0", 6: "::"}


def transparent(fam: Family, proto: int, address: str, port: int, *, reuse_port: bool = False) -> socket.socket:
    """Return a socket that may have any address as its own."""
    sock = socket.socket(fam.af, socket.SOCK_STREAM if proto == TCP else socket.SOCK_DGRAM)
    if fam.version == 4:
        sock.setsockopt(socket.IPPROTO_IP, IP_TRANSPARENT, 1)
    else:
        sock.setsockopt(socket.IPPROTO_IPV6, IPV6_TRANSPARENT, 1)
        sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT if reuse_port else socket.SO_REUSEADDR, 1)
    sock.bind((address, port))
    return sock


def listener(fam: Family, proto: int, address: str = "", port: int = PORT, **words: bool) -> socket.socket:
    """Return the socket of a proxy."""
    sock = transparent(fam, proto, address or ANY[fam.version], port, **words)
    if proto == TCP:
        sock.listen(64)
    else:
        level, word = (
            (socket.IPPROTO_IP, IP_RECVORIGDSTADDR) if fam.version == 4 else (socket.IPPROTO_IPV6, IPV6_RECVORIGDSTADDR)
        )
        sock.setsockopt(level, word, 1)
    sock.settimeout(PATIENCE_S)
    return sock


def connection(fam: Family, proto: int, port: int) -> socket.socket:
    """Return a socket that is connected, or connecting, from VIP:80 to a port of the client."""
    sock = transparent(fam, proto, fam.vip, 80)
    sock.setblocking(False)
    with contextlib.suppress(BlockingIOError):
        sock.connect((fam.client, port))
    return sock


def request(fam: Family, proto: int, port: int = 40000, flags: str = "S", **fields: object) -> bytes:
    return craft.frame(craft.segment(fam, proto, fam.client, port, fam.vip, 80, flags, **fields))


def at_tc(world: World, hook: str, frame: bytes) -> Outcome:
    """Return what becomes of a frame in tc, which XDP leaves untouched."""
    if hook == XDP:
        return expect.handed_over(world, frame, reason=Reason.PASS_L7)
    return world.run(hook, frame)


def refused(out: Outcome, reason: Reason = Reason.REJECT_NO_BACKEND) -> None:
    assert out.forwarded, out
    assert out.counted == {reason: 1}
    assert not out.mark


# --- in test runs ---


@PROTOCOLS
@pytest.mark.parametrize("flags", ["S", "A", "FA", "R"])
def test_a_known_connection_is_marked(world: World, fam: Family, hook: str, proto: int, flags: str) -> None:
    """The kernel has its socket: the packet stays as it is, and no flow is made."""
    row = world.service(fam, fam.vip, 80, proto, proxy_port=PORT)
    with world.net.inside():
        opened = connection(fam, proto, 40000)
    with opened:
        frame = request(fam, proto, flags=flags)
        out = at_tc(world, hook, frame)
    assert out.passed
    assert out.packet == frame
    assert out.mark == L7_MARK
    assert out.counted == {Reason.FWD_L7: 1}
    assert world.service_counter(row)[0]
    assert table.flows(world, fam) == []


@PROTOCOLS
def test_backends_get_none_of_it(world: World, fam: Family, hook: str, proto: int) -> None:
    """With backends, too: the proxy decides where requests go."""
    world.service(fam, fam.vip, 80, proto, [world.backend(fam, fam.remote(1), 8080, proto)], proxy_port=PORT)
    with world.net.inside():
        opened = connection(fam, proto, 40000)
    with opened:
        assert at_tc(world, hook, request(fam, proto)).counted == {Reason.FWD_L7: 1}
    refused(at_tc(world, hook, request(fam, proto, 40001)))
    assert table.flows(world, fam) == []


@PROTOCOLS
def test_without_a_listener_it_is_refused(world: World, fam: Family, hook: str, proto: int) -> None:
    """As a Service without backends, by RST or port unreachable; sockets of others at the frontend's own port do not count."""
    world.service(fam, fam.vip, 80, proto, proxy_port=PORT)
    with world.net.inside():
        others = [listener(fam, proto, port=80)]
    with contextlib.closing(others[0]):
        for port, flags in ((40000, "S"), (40001, "A")):
            refused(at_tc(world, hook, request(fam, proto, port, flags)))
    assert table.flows(world, fam) == []


@PROTOCOLS
def test_a_local_policy_drops_without_a_listener(world: World, fam: Family, hook: str, proto: int) -> None:
    """As without backends on this node: another node has them."""
    world.service(fam, fam.vip, 80, proto, elsewhere=True, proxy_port=PORT)
    out = at_tc(world, hook, request(fam, proto))
    assert out.dropped
    assert out.counted == {Reason.DROP_NO_LOCAL_BACKEND: 1}


@PROTOCOLS
@pytest.mark.parametrize("is_known", [False, True], ids=["new", "known"])
def test_source_ranges_come_first(world: World, fam: Family, hook: str, proto: int, is_known: bool) -> None:
    """Each packet is checked, at the first hook that sees it."""
    flags = TYPE_LOAD_BALANCER | ROUTABLE | SOURCE_RANGE
    inside = f"{fam.client2}/{32 if fam.version == 4 else 128}"
    world.service(fam, fam.vip, 80, proto, flags=flags, ranges=[inside], proxy_port=PORT)
    with contextlib.ExitStack() as stack:
        if is_known:
            with world.net.inside():
                stack.enter_context(connection(fam, proto, 40000))
        out = world.run(hook, request(fam, proto))
    assert out.dropped
    assert out.counted == {Reason.DROP_SOURCE_RANGE: 1}


def test_the_rate_of_new_connections(world: World, fam: Family, hook: str) -> None:
    """A SYN beyond it is dropped before a socket is looked for; packets of known connections are not counted."""
    row = world.service(fam, fam.vip, 80, TCP, algorithm=RANDOM | RULES, proxy_port=PORT)
    rules(world, row.id, rate=1)
    try:
        refused(at_tc(world, hook, request(fam, TCP, 40000)))
        out = at_tc(world, hook, request(fam, TCP, 40001))
        assert out.dropped
        assert out.counted == {Reason.DROP_FLOW_RATE: 1}
        with world.net.inside():
            opened = connection(fam, TCP, 40002)
        with opened:
            for flags in "SA":
                assert at_tc(world, hook, request(fam, TCP, 40002, flags)).counted == {Reason.FWD_L7: 1}
        rules(world, row.id, rate=1, reject=True)
        refused(at_tc(world, hook, request(fam, TCP, 40003)), Reason.DROP_FLOW_RATE)
    finally:
        for name in ("lb_rules_of", "lb_rules", "lb_backend_flows"):
            world.clear(name)


def counted_at(world: World, tick: int) -> None:
    """Write when the agent counted."""
    with world.maps.window("lb_rules", NUMBER * RECORD + 16, 4) as view:
        view[:] = struct.pack("=I", tick & 0xFFFF)


def counted_connections(world: World, base: int, admitted: int, tick: int) -> None:
    """Write what the agent does: how many connections there were, less what `admitted` was, and when."""
    counted_at(world, tick)
    with world.maps.window("lb_rules", NUMBER * RECORD + 56, 8) as view:
        view[:] = struct.pack("=II", base - admitted & 0xFFFFFFFF, admitted)


@pytest.mark.parametrize("admitted", [0, 7, 0xFFFFFFFF])
def test_max_flows_of_connections_that_the_agent_counted(world: World, fam: Family, hook: str, admitted: int) -> None:
    """Known connections are not limited. A count that is too old limits nothing: no agent is there to count those that ended."""
    row = world.service(fam, fam.vip, 80, TCP, algorithm=RANDOM | RULES, proxy_port=PORT)
    rules(world, row.id, flows=3)
    try:
        for base, age, is_limited in ((2, 0, False), (3, 0, True), (3, 9, True), (3, 11, False), (4, 0, True)):
            counted_connections(world, base, admitted, Clock.START - age)
            out = at_tc(world, hook, request(fam, TCP))
            if is_limited:
                assert out.dropped
                assert out.counted == {Reason.DROP_FLOW_LIMIT: 1}
            else:
                refused(out)  # no socket is there
        with world.net.inside():
            opened = connection(fam, TCP, 40000)
        with opened:
            for flags in "SA":
                assert at_tc(world, hook, request(fam, TCP, flags=flags)).counted == {Reason.FWD_L7: 1}
    finally:
        for name in ("lb_rules_of", "lb_rules", "lb_backend_flows"):
            world.clear(name)


@PROTOCOLS
def test_what_leaves_the_node_is_refused(world: World, fam: Family, proto: int) -> None:
    """No packet on its way out can be given to a socket: the sender learns that at once."""
    world.service(fam, fam.vip, 80, proto, proxy_port=PORT)
    with world.net.inside():
        waiting = listener(fam, proto)
    with waiting:
        frame = craft.frame(craft.segment(fam, proto, fam.node, 40000, fam.vip, 80), src=NODE_MAC, dst=ROUTER_MAC)
        refused(world.run(TC_EGRESS, frame))


def test_a_flow_of_before_keeps_its_backend(world: World, fam: Family, hook: str) -> None:
    """A Service that gets a proxy: its open connections go on, a new one on the same port is the proxy's."""
    backend = world.backend(fam, fam.remote(1), 8080)
    row = world.service(fam, fam.vip, 80, TCP, [backend])
    frame = request(fam, TCP)
    port = expect.forwarded_to(world.run(hook, frame), frame, backend)
    world.service(fam, fam.vip, 80, TCP, [backend], ident=row.id, proxy_port=PORT)
    frame = request(fam, TCP, flags="A")
    assert expect.forwarded_to(world.run(hook, frame), frame, backend) == port
    refused(at_tc(world, hook, request(fam, TCP)))


def test_a_source_that_is_no_host(world: World, fam: Family, hook: str) -> None:
    world.service(fam, fam.vip, 80, TCP, proxy_port=PORT)
    source = "127.0.0.9" if fam.version == 4 else "ff02::9"
    out = world.run(hook, craft.frame(craft.tcp(fam, source, 40000, fam.vip, 80)))
    assert out.dropped
    assert out.counted == {Reason.DROP_MALFORMED: 1}


def test_without_a_port_it_is_left_to_another_data_plane(world: World, fam: Family, hook: str) -> None:
    """As every frontend is while nftables takes over."""
    world.service(fam, fam.vip, 80, TCP, flags=TYPE_LOAD_BALANCER | ROUTABLE | L7)
    frame = request(fam, TCP)
    out = world.run(hook, frame)
    expect.untouched(out, frame)
    assert out.counted == {Reason.PASS_UNSUPPORTED: 1}
    assert not out.metadata


def test_an_icmp_error_about_an_answer_of_the_proxy(world: World, fam: Family, hook: str) -> None:
    """The kernel of the proxy gets it: PMTU discovery. One that quotes a packet of another frontend passes without a mark."""
    world.service(fam, fam.vip, 80, TCP, proxy_port=PORT)
    world.service(fam, fam.vip, 81, TCP, [world.backend(fam, fam.remote(1), 8080)])
    for port in (80, 81):
        sent = bytes(craft.tcp(fam, fam.vip, port, fam.client, 40000, "A", load=bytes(64)))
        frame = craft.frame(craft.icmp_error(fam, fam.router, fam.vip, fam.too_big(1300), sent))
        if port == 80:
            out = at_tc(world, hook, frame)
            assert (out.mark, out.counted) == (L7_MARK, {Reason.FWD_L7: 1})
        else:
            out = world.run(hook, frame)
            assert (out.mark, out.counted) == (0, {Reason.PASS_NOT_SERVICE: 1})
        assert out.passed
        assert out.packet == frame


def test_with_new_flows_syn_known_connections_have_no_flow_either(fam: Family, hook: str) -> None:
    """They are older than no program: the kernel has them."""
    with open_world(ProgramSettings(new_flows="syn")) as world:
        world.service(fam, fam.vip, 80, TCP, proxy_port=PORT)
        with world.net.inside():
            opened = connection(fam, TCP, 40000)
        with opened:
            assert at_tc(world, hook, request(fam, TCP, flags="A")).counted == {Reason.FWD_L7: 1}
        refused(at_tc(world, hook, request(fam, TCP, 40001, "S")))


def test_connections_of_the_previous_leader(loaded_announcing_world: World, fam: Family, hook: str) -> None:
    """A segment in the middle of a connection that this kernel does not have goes there; one that it has stays."""
    world = loaded_announcing_world
    world.reset()
    world.vip("lb_vip", fam, fam.vip, NODE_MAC)
    world.vip("lb_former_leader", fam, fam.vip, BACKEND_MAC)
    world.device(world.net.lb0, 0, NODE_MAC)
    world.service(fam, fam.vip, 80, TCP, proxy_port=PORT)
    with world.net.inside():
        opened = connection(fam, TCP, 40000)
    with opened:
        assert at_tc(world, hook, request(fam, TCP, flags="A")).counted == {Reason.FWD_L7: 1}
    out = at_tc(world, hook, request(fam, TCP, 40001, "A"))
    assert out.forwarded
    assert out.counted == {Reason.FWD_FORMER_LEADER: 1}
    refused(at_tc(world, hook, request(fam, TCP, 40001, "S")))


@PROTOCOLS
@pytest.mark.parametrize("is_known", [False, True], ids=["new", "known"])
def test_fragments(world: World, fam: Family, hook: str, proto: int, is_known: bool) -> None:
    """Of a known connection, all are the kernel's; of another one, none: what is put together has lost its socket."""
    world.service(fam, fam.vip, 80, proto, proxy_port=PORT)
    whole = craft.segment(fam, proto, fam.client, 40000, fam.vip, 80, "A", load=bytes(600))
    with contextlib.ExitStack() as stack:
        with world.net.inside():
            if is_known:
                stack.enter_context(connection(fam, proto, 40000))
        for piece in pieces(fam, whole, 7):
            frame = craft.frame(piece)
            out = at_tc(world, hook, frame)
            assert (out.passed, out.packet) == (True, frame)
            wanted = (L7_MARK, {Reason.FWD_L7: 1}) if is_known else (0, {Reason.PASS_UNSUPPORTED: 1})
            assert (out.mark, out.counted) == wanted


def test_health_checks_through_the_service_go_to_backends(world: World, fam: Family) -> None:
    """The mark of a check's socket names the backend."""
    backend = world.backend(fam, fam.remote(1), 8080)
    world.service(fam, fam.vip, 80, TCP, [backend], proxy_port=PORT)
    frame = craft.frame(craft.tcp(fam, fam.node, 40000, fam.vip, 80), src=NODE_MAC, dst=ROUTER_MAC)
    with world.net.inside():
        fd, mark = world.programs[TC_EGRESS], check_mark(backend.id)
        found = run_tc(fd, frame, ifindex=world.net.lb0, came_by=0, mark=mark)
    assert found.verdict == Verdict.REDIRECT
    assert expect.destination(found.packet) == backend.endpoint


# --- on real devices ---


@pytest.fixture(scope="module", params=["xdp", "tc"])
def wired_world(request: pytest.FixtureRequest) -> Iterator[World]:
    """Load the programs, attach those of one mode to lb0, and make rule and route."""
    if not has_tcx():
        pytest.skip("TCX links need Linux 6.6")
    hooks = {
        "xdp": ((XDP, bpf_link.AttachType.XDP, XDP_DRV_MODE), (TC_AFTER_XDP, bpf_link.AttachType.TCX_INGRESS, 0)),
        "tc": ((TC_INGRESS, bpf_link.AttachType.TCX_INGRESS, 0),),
    }[request.param]
    with open_world() as world, contextlib.ExitStack() as stack, world.net.inside():
        for hook, kind, flags in hooks:
            stack.callback(os.close, bpf_link.link_create(world.programs[hook], world.net.lb0, kind, flags))
        asyncio.run(proxy_route.add(L7_MARK, tuple(ModelFamily)))
        yield world


@pytest.fixture
def wire(wired_world: World) -> Iterator[socket.socket]:
    """The other end of lb0."""
    wired_world.reset()
    wired_world.device(wired_world.net.lb0, 0, NODE_MAC)
    with wired_world.net.inside():
        sock = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3))
        sock.bind(("peer0", 0))
    with sock:
        yield sock


def answer(wire: socket.socket, fam: Family, wanted: Packet) -> Packet:
    """Return the next frame with the addresses and ports of `wanted`."""
    ip = IP if fam.version == 4 else IPv6
    l4 = Tcp if Tcp in wanted else Udp
    key = (wanted.src, wanted.dst, wanted[l4].sport, wanted[l4].dport)
    while select.select([wire], [], [], PATIENCE_S)[0]:
        data, address = wire.recvfrom(4000)
        found = Ether(data)
        if address[2] == socket.PACKET_OUTGOING or ip not in found or l4 not in found:
            continue
        if (found[ip].src, found[ip].dst, found[l4].sport, found[l4].dport) == key:
            return found
    raise AssertionError(f"no answer like {wanted!r}")


def counted(world: World, reason: Reason) -> int:
    return world.maps.counters([reason])[0][0]


@pytest.mark.parametrize("bound", ["any", "loopback", "frontend"])
def test_a_connection_to_the_proxy(wired_world: World, wire: socket.socket, fam: Family, bound: str) -> None:
    """SYN, ACK and data reach the proxy, which sees the client as its peer and the frontend as its own address, and answers from
    there."""
    world, port = wired_world, {"any": 41000, "loopback": 41001, "frontend": 41002}[bound]
    world.service(fam, fam.vip, 80, TCP, proxy_port=PORT)
    address = {"any": ANY[fam.version], "loopback": LOOPBACK[fam.version], "frontend": fam.vip}[bound]
    with world.net.inside():
        waiting = listener(fam, TCP, address)
    with waiting:
        before = counted(world, Reason.FWD_L7)
        wire.send(request(fam, TCP, port, seq=1000))
        reply = fam.ip(fam.vip, fam.client) / Tcp(sport=80, dport=port)
        shaken = answer(wire, fam, reply)[Tcp]
        assert (shaken.flags, shaken.ack) == ("SA", 1001)
        numbers = {"seq": 1001, "ack": shaken.seq + 1}
        wire.send(request(fam, TCP, port, "A", **numbers))
        wire.send(request(fam, TCP, port, "PA", load=b"question", **numbers))
        taken, peer = waiting.accept()
        with taken:
            taken.settimeout(PATIENCE_S)
            assert peer[:2] == (fam.client, port)
            assert taken.getsockname()[:2] == (fam.vip, 80)
            assert taken.recv(100) == b"question"
            taken.send(b"answer")
            while Raw not in (got := answer(wire, fam, reply)) or not bytes(got[Raw]).startswith(b"answer"):
                pass
        assert counted(world, Reason.FWD_L7) - before == 3
    assert table.flows(world, fam) == []


def test_each_syn_counts_until_the_agent_counts(wired_world: World, wire: socket.socket, fam: Family) -> None:
    """The third one is not let in, though the agent has counted none."""
    world = wired_world
    row = world.service(fam, fam.vip, 80, TCP, algorithm=RANDOM | RULES, proxy_port=PORT)
    rules(world, row.id, flows=2)
    counted_connections(world, 0, 0, tick_now())
    with world.net.inside():
        waiting = listener(fam, TCP)
    with waiting:
        for port in (41200, 41201):
            wire.send(request(fam, TCP, port, seq=1000))
            assert answer(wire, fam, fam.ip(fam.vip, fam.client) / Tcp(sport=80, dport=port))[Tcp].flags == "SA"
        before = counted(world, Reason.DROP_FLOW_LIMIT)
        counted_at(world, tick_now())  # it counts nothing, and is alive
        wire.send(request(fam, TCP, 41202, seq=1000))
        wait_for(lambda: counted(world, Reason.DROP_FLOW_LIMIT) > before, "a drop")
        counted_connections(world, 1, 2, tick_now())
        wire.send(request(fam, TCP, 41202, seq=1000))
        assert answer(wire, fam, fam.ip(fam.vip, fam.client) / Tcp(sport=80, dport=41202))[Tcp].flags == "SA"
    for name in ("lb_rules_of", "lb_rules", "lb_backend_flows"):
        world.clear(name)


def test_syn_cookies(wired_world: World, wire: socket.socket, fam: Family) -> None:
    """The kernel has no connection before the client's ACK, which the waiting socket gets."""
    world = wired_world
    world.service(fam, fam.vip, 80, TCP, proxy_port=PORT)
    with world.net.inside():
        Path("/proc/sys/net/ipv4/tcp_syncookies").write_text("2")
        waiting = listener(fam, TCP)
    try:
        with waiting:
            wire.send(request(fam, TCP, 41100, seq=1000))
            shaken = answer(wire, fam, fam.ip(fam.vip, fam.client) / Tcp(sport=80, dport=41100))[Tcp]
            wire.send(request(fam, TCP, 41100, "A", seq=1001, ack=shaken.seq + 1))
            taken, peer = waiting.accept()
            taken.close()
            assert peer[:2] == (fam.client, 41100)
    finally:
        with world.net.inside():
            Path("/proc/sys/net/ipv4/tcp_syncookies").write_text("1")


@pytest.mark.parametrize("bound", ["any", "loopback"])
def test_datagrams_to_the_proxy(wired_world: World, wire: socket.socket, fam: Family, bound: str) -> None:
    """Each datagram has its client as sender, and the frontend as the address to which it went."""
    world = wired_world
    world.service(fam, fam.vip, 80, UDP, proxy_port=PORT)
    with world.net.inside():
        waiting = listener(fam, UDP, {"any": ANY, "loopback": LOOPBACK}[bound][fam.version])
        speaking = transparent(fam, UDP, fam.vip, 80)
    with waiting, speaking:
        for port in (42000, 42001, 42000):
            wire.send(request(fam, UDP, port))
            data, [(_, _, to)], _, peer = waiting.recvmsg(100, 100)
            assert (data, peer[:2]) == (b"question", (fam.client, port))
            at = 4 if fam.version == 4 else 8  # struct sockaddr_in, sockaddr_in6
            assert int.from_bytes(to[2:4], "big") == 80
            assert to[at : at + len(fam.packed(fam.vip))] == fam.packed(fam.vip)
            speaking.sendto(b"answer", (fam.client, port))
            found = answer(wire, fam, fam.ip(fam.vip, fam.client) / Udp(sport=80, dport=port))
            assert bytes(found[Udp].payload)[:6] == b"answer"
    assert table.flows(world, fam) == []


@PROTOCOLS
def test_a_socket_with_so_reuseport(wired_world: World, wire: socket.socket, fam: Family, proto: int) -> None:
    """From Linux 6.6 on; before, the client is refused."""
    world = wired_world
    world.service(fam, fam.vip, 80, proto, proxy_port=PORT)
    with world.net.inside():
        several = [listener(fam, proto, reuse_port=True) for _ in range(2)]
    with contextlib.ExitStack() as stack:
        for each in several:
            stack.enter_context(each)
        before = counted(world, Reason.FWD_L7), counted(world, Reason.REJECT_NO_BACKEND)
        wire.send(request(fam, proto, 43000))
        accepts = kernel_version() >= (6, 6)
        if accepts and proto == UDP:
            ready, _, _ = select.select(several, [], [], PATIENCE_S)
            assert ready[0].recv(100) == b"question"
        elif proto == TCP:
            flags = answer(wire, fam, fam.ip(fam.vip, fam.client) / Tcp(sport=80, dport=43000))[Tcp].flags
            assert flags == ("SA" if accepts else "RA")
        after = counted(world, Reason.FWD_L7), counted(world, Reason.REJECT_NO_BACKEND)
        assert (after[0] - before[0], after[1] - before[1]) == ((1, 0) if accepts else (0, 1))
