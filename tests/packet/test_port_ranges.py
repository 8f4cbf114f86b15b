"""A frontend with a range of ports: each of them is served, and packets keep their destination port."""

from __future__ import annotations

from dataclasses import replace

import pytest

from lbagent.maps import layout
from lbagent.maps.layout import PathL4
from lbagent.maps.reasons import Reason
from tests.packet import craft, expect, table
from tests.packet.craft import Family
from tests.packet.world import (
    MAGLEV,
    ROUTABLE,
    SOURCE_RANGE,
    TCP,
    TWO_SCOPES,
    TYPE_CLUSTER_IP,
    TYPE_LOAD_BALANCER,
    UDP,
    XDP,
    World,
)

FIRST, LAST = 10000, 10063
PROTOCOLS = pytest.mark.parametrize("proto", [TCP, UDP], ids=["tcp", "udp"])
PORTS = pytest.mark.parametrize("port", [FIRST, 10031, LAST])


def request(fam: Family, proto: int, port: int, flags: str = "S", sport: int = 40000, **kw: object) -> bytes:
    """Return a client's frame to a port of the VIP."""
    return craft.frame(craft.segment(fam, proto, fam.client, sport, fam.vip, port, flags, **kw))


@PROTOCOLS
@PORTS
def test_remote_backend(world: World, fam: Family, hook: str, proto: int, port: int) -> None:
    """Request, reply, and data of the same flow: both sides of the translation leave the service's port as it is."""
    backend = world.backend(fam, fam.remote(1), 0, proto)
    service = world.service(fam, fam.vip, FIRST, proto, [backend], last_port=LAST)
    there, here = replace(backend, port=port), replace(service, port=port)
    first = request(fam, proto, port)
    out = world.run(hook, first)
    snat = expect.forwarded_to(out, first, there)
    assert out.counted == {Reason.FWD_NEW: 1}

    answer = expect.remote_reply(fam, proto, there, snat)
    back = world.run(hook, answer, world.net.lb1)
    expect.replied(back, answer, here, fam.client, 40000)
    assert back.counted == {Reason.FWD_REPLY: 1}

    for _ in range(2):
        data = request(fam, proto, port, "PA", load=b"GET / HTTP/1.1\r\n\r\n")
        again = world.run(hook, data)
        assert expect.forwarded_to(again, data, there) == snat
        assert again.counted == {Reason.FWD_ESTABLISHED: 1}
        answer = expect.remote_reply(fam, proto, there, snat, "PA", load=b"answer")
        expect.replied(world.run(hook, answer, world.net.lb1), answer, here, fam.client, 40000)
    assert table.only(world, fam).state == table.EST
    assert table.held_slots(world, fam) == 1


@PROTOCOLS
@PORTS
def test_local_backend(world: World, fam: Family, hook: str, proto: int, port: int) -> None:
    """A backend of this node sees the client's own address, at the client's port of the service."""
    backend = world.backend(fam, fam.local(1), 0, proto, local=True)
    service = world.service(fam, fam.vip, FIRST, proto, [backend], last_port=LAST)
    there, here = replace(backend, port=port), replace(service, port=port)
    first = request(fam, proto, port)
    out = world.run(hook, first)
    expect.handed_up_to(out, first, there)
    assert out.counted == {Reason.FWD_LOCAL: 1}
    answer = expect.local_reply(fam, proto, there, fam.client, 40000)
    back = expect.at_pod(world, answer)
    expect.replied(back, answer, here, fam.client, 40000)
    second = request(fam, proto, port, "A")
    again = world.run(hook, second)
    expect.handed_up_to(again, second, there)
    assert again.counted == {Reason.FWD_LOCAL: 1}


@PROTOCOLS
@pytest.mark.parametrize("port", [FIRST - 1, LAST + 1, 1, 65535])
def test_other_ports_have_no_service(world: World, fam: Family, hook: str, proto: int, port: int) -> None:
    """A port outside passes; at a ClusterIP it is rejected, as ever."""
    backend = world.backend(fam, fam.remote(1), 0, proto)
    world.service(fam, fam.vip, FIRST, proto, [backend], last_port=LAST)
    frame = request(fam, proto, port)
    expect.untouched(world.run(hook, frame), frame)


@PROTOCOLS
def test_another_protocol_has_no_range(world: World, fam: Family, hook: str, proto: int) -> None:
    """A range is of one protocol."""
    world.service(fam, fam.vip, FIRST, proto, [world.backend(fam, fam.remote(1), 0, proto)], last_port=LAST)
    frame = request(fam, UDP if proto == TCP else TCP, FIRST)
    expect.untouched(world.run(hook, frame), frame)


@PROTOCOLS
@PORTS
def test_a_port_of_its_own_wins(world: World, fam: Family, hook: str, proto: int, port: int) -> None:
    """A frontend with one port inside the range serves that port; those beside it are the range's."""
    ranged = world.backend(fam, fam.remote(1), 0, proto)
    world.service(fam, fam.vip, FIRST, proto, [ranged], last_port=LAST)
    own = world.backend(fam, fam.remote(2), 8080, proto)
    world.service(fam, fam.vip, port, proto, [own])
    frame = request(fam, proto, port)
    expect.forwarded_to(world.run(hook, frame), frame, own)
    beside = port + 1 if port < LAST else port - 1
    frame = request(fam, proto, beside)
    expect.forwarded_to(world.run(hook, frame), frame, replace(ranged, port=beside))


def test_longest_prefix(world: World, fam: Family, hook: str) -> None:
    """One entry may stand for many ports."""
    backend = world.backend(fam, fam.remote(1), 0)
    world.service(fam, fam.vip, 8192, TCP, [backend], last_port=16383, prefixes=[(8192, 3)])
    for port in (8192, 12000, 16383):
        frame = request(fam, TCP, port, sport=port)
        expect.forwarded_to(world.run(hook, frame), frame, replace(backend, port=port))
    for port in (8191, 16384):
        frame = request(fam, TCP, port)
        expect.untouched(world.run(hook, frame), frame)


def test_flows_of_several_ports(world: World, fam: Family, hook: str) -> None:
    """One client port that uses two ports of the range has two flows, and each reply finds its own."""
    backend = world.backend(fam, fam.remote(1), 0, UDP)
    service = world.service(fam, fam.vip, FIRST, UDP, [backend], last_port=LAST)
    ports = {}
    for port in (FIRST, FIRST + 1, LAST):
        frame = request(fam, UDP, port)
        ports[port] = expect.forwarded_to(world.run(hook, frame), frame, replace(backend, port=port))
    for port, snat in ports.items():
        answer = expect.remote_reply(fam, UDP, replace(backend, port=port), snat)
        back = world.run(hook, answer, world.net.lb1)
        expect.replied(back, answer, replace(service, port=port), fam.client, 40000)
    assert table.held_slots(world, fam) == 3


def test_a_reply_from_another_port_is_nobodys(world: World, fam: Family, hook: str) -> None:
    """A packet of the backend from a port that the flow does not use is no reply of it."""
    backend = world.backend(fam, fam.remote(1), 0, UDP)
    world.service(fam, fam.vip, FIRST, UDP, [backend], last_port=LAST)
    frame = request(fam, UDP, FIRST)
    snat = expect.forwarded_to(world.run(hook, frame), frame, replace(backend, port=FIRST))
    for port in (FIRST + 1, 53):
        answer = expect.remote_reply(fam, UDP, replace(backend, port=port), snat)
        expect.untouched(world.run(hook, answer, world.net.lb1), answer)


def test_snat_port_towards_one_endpoint(world: World, fam: Family, hook: str) -> None:
    """A frontend with one port and a range lead to the same port of the same pod: no SNAT port is given twice."""
    own, ranged = world.backend(fam, fam.remote(1), FIRST, UDP), world.backend(fam, fam.remote(1), 0, UDP)
    world.service(fam, fam.vip, 53, UDP, [own])
    world.service(fam, fam.vip, FIRST, UDP, [ranged], last_port=LAST)
    seen = set()
    for sport in range(20000, 20150):
        for port in (53, FIRST):
            frame = request(fam, UDP, port, sport=sport)
            seen.add(expect.forwarded_to(world.run(hook, frame), frame, own))
    assert len(seen) == 300


@PROTOCOLS
def test_backend_gone(world: World, fam: Family, hook: str, proto: int) -> None:
    """The record of a removed backend takes no packet, and a flow of UDP goes to another one."""
    backend = world.backend(fam, fam.remote(1), 0, proto)
    row = world.service(fam, fam.vip, FIRST, proto, [backend], last_port=LAST)
    world.run(hook, request(fam, proto, LAST))
    world.path(backend, flags=(PathL4.UDP if proto == UDP else PathL4.TCP) << layout.PATH_L4_SHIFT, gen=2)
    other = world.backend(fam, fam.remote(2), 0, proto)
    world.slot(row, 1, target=other.id)
    frame = request(fam, proto, LAST, "S" if proto == TCP else "")
    out = world.run(hook, frame)
    expect.forwarded_to(out, frame, replace(other, port=LAST))
    assert out.counted == {Reason.FWD_RESELECTED: 1}
    assert table.held_slots(world, fam) == 1


def test_service_gone(world: World, fam: Family, hook: str) -> None:
    """A removed range is known by its reverse NAT row: the next segment of a connection is reset."""
    backend = world.backend(fam, fam.remote(1), 0)
    row = world.service(fam, fam.vip, FIRST, TCP, [backend], last_port=LAST)
    world.run(hook, request(fam, TCP, LAST))
    world.remove_service(row)
    out = world.run(hook, request(fam, TCP, LAST, "A"))
    assert out.counted == {Reason.REJECT_SERVICE_GONE: 1}


def test_no_backend(world: World, fam: Family, hook: str) -> None:
    """A range without a backend rejects, as one port does; the answer comes from the port that was used."""
    world.service(fam, fam.vip, FIRST, TCP, [], last_port=LAST)
    out = world.run(hook, request(fam, TCP, LAST))
    assert out.counted == {Reason.REJECT_NO_BACKEND: 1}
    assert expect.source(out) == (fam.vip, LAST)


def test_undefined_port_of_a_cluster_ip(world: World, fam: Family) -> None:
    """The wildcard entry of a ClusterIP rejects the ports outside the range, and none inside."""
    backend = world.backend(fam, fam.remote(1), 0)
    world.service(fam, fam.vip, FIRST, TCP, [backend], last_port=LAST, flags=TYPE_CLUSTER_IP)
    world.wildcard(fam, fam.vip)
    inside = craft.frame(craft.tcp(fam, fam.local(9), 40000, fam.vip, LAST), src=craft.LOCAL_MAC, dst=craft.POD_MAC)
    out = world.run("tc_ingress", inside, world.net.pod0)
    assert out.counted == {Reason.FWD_NEW: 1}
    other = craft.frame(craft.tcp(fam, fam.local(9), 40000, fam.vip, LAST + 1), src=craft.LOCAL_MAC, dst=craft.POD_MAC)
    assert world.run("tc_ingress", other, world.net.pod0).counted == {Reason.REJECT_UNDEFINED_PORT: 1}


def test_source_ranges(world: World, fam: Family, hook: str) -> None:
    """Source ranges hold for each port."""
    backend = world.backend(fam, fam.remote(1), 0)
    flags = TYPE_LOAD_BALANCER | ROUTABLE | SOURCE_RANGE
    bits = "/32" if fam.version == 4 else "/128"
    world.service(fam, fam.vip, FIRST, TCP, [backend], last_port=LAST, flags=flags, ranges=[fam.client2 + bits])
    assert world.run(hook, request(fam, TCP, LAST)).counted == {Reason.DROP_SOURCE_RANGE: 1}
    frame = craft.frame(craft.tcp(fam, fam.client2, 40000, fam.vip, LAST))
    expect.forwarded_to(world.run(hook, frame), frame, replace(backend, port=LAST))


def test_affinity_holds_for_all_ports(world: World, fam: Family, hook: str) -> None:
    """A client has one backend for all ports of the range."""
    backends = [world.backend(fam, fam.remote(n), 0, UDP) for n in (1, 2, 3)]
    world.service(fam, fam.vip, FIRST, UDP, backends, last_port=LAST, affinity_s=600)
    seen = set()
    for port in range(FIRST, FIRST + 20):
        out = world.run(hook, request(fam, UDP, port, sport=port))
        seen.add(expect.destination(out)[0])
    assert len(seen) == 1


def test_maglev(world: World, fam: Family, hook: str) -> None:
    """The table of a range decides for each of its ports."""
    backends = [world.backend(fam, fam.remote(n), 0, UDP) for n in (1, 2)]
    row = world.service(fam, fam.vip, FIRST, UDP, backends, last_port=LAST, algorithm=MAGLEV)
    world.maglev(row, [backends[1].id] * world.sizes.maglev_size)
    frame = request(fam, UDP, LAST)
    expect.forwarded_to(world.run(hook, frame), frame, replace(backends[1], port=LAST))


def test_two_scopes(world: World, fam: Family) -> None:
    """Clients inside the cluster have the slots of the range's inner scope."""
    outer, inner = (world.backend(fam, fam.remote(n), 0) for n in (1, 2))
    flags = TYPE_LOAD_BALANCER | ROUTABLE | TWO_SCOPES
    world.service(fam, fam.vip, FIRST, TCP, [outer], last_port=LAST, flags=flags)
    world.service(fam, fam.vip, FIRST, TCP, [inner], last_port=LAST, flags=flags, scope=1)
    frame = request(fam, TCP, LAST)
    expect.forwarded_to(world.run(XDP, frame), frame, replace(outer, port=LAST))
    inside = craft.frame(craft.tcp(fam, fam.local(9), 40000, fam.vip, LAST), src=craft.LOCAL_MAC, dst=craft.POD_MAC)
    out = world.run("tc_ingress", inside, world.net.pod0)
    assert expect.destination(out) == (inner.address, LAST)


def test_icmp_error(world: World, fam: Family, hook: str) -> None:
    """An error about a translated request quotes what the client sent, with the port of the service."""
    backend = world.backend(fam, fam.remote(1), 0, UDP)
    world.service(fam, fam.vip, FIRST, UDP, [backend], last_port=LAST)
    frame = request(fam, UDP, LAST)
    out = world.run(hook, frame)
    expect.forwarded_to(out, frame, replace(backend, port=LAST))
    quoted = craft.decode(out.packet).payload
    error = fam.ip(backend.address, fam.node2) / fam.unreachable() / quoted
    back = world.run(hook, craft.frame(error, src=craft.BACKEND_MAC, dst=craft.NODE2_MAC), world.net.lb1)
    assert back.counted == {Reason.FWD_ICMP: 1}
    seen = craft.decode(back.packet)
    text = seen.show2(dump=True)
    assert fam.vip in text
    assert fam.client in text
    assert backend.address not in text
