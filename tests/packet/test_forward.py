"""New flows, established ones and replies: to remote backends (SNAT) and to those of this node, as seen on the wire."""

from __future__ import annotations

import pytest

from lbagent.maps.reasons import Reason
from tests.packet import craft, expect, table
from tests.packet.craft import Family
from tests.packet.world import TC_EGRESS, TC_INGRESS, TCP, UDP, XDP, World

PROTOCOLS = pytest.mark.parametrize("proto", [TCP, UDP], ids=["tcp", "udp"])


def request(fam: Family, proto: int, sport: int, flags: str = "S", **kw: object) -> bytes:
    """Return a client's frame to the VIP."""
    return craft.frame(craft.segment(fam, proto, fam.client, sport, fam.vip, 80, flags, **kw))


@PROTOCOLS
def test_remote_backend_round_trip(world: World, fam: Family, hook: str, proto: int) -> None:
    """SYN out, reply back, data out: both sides of the translation, one SNAT port for the whole flow."""
    backend = world.backend(fam, fam.remote(1), 8080, proto)
    service = world.service(fam, fam.vip, 80, proto, [backend])
    first = request(fam, proto, 40000)
    out = world.run(hook, first)
    port = expect.forwarded_to(out, first, backend)
    assert out.counted[Reason.FWD_NEW] == 1

    answer = expect.remote_reply(fam, proto, backend, port)
    back = world.run(hook, answer, world.net.lb1)
    expect.replied(back, answer, service, fam.client, 40000)
    assert back.counted[Reason.FWD_REPLY] == 1

    second = request(fam, proto, 40000, "PA", load=b"GET / HTTP/1.1\r\n\r\n")
    again = world.run(hook, second)
    assert expect.forwarded_to(again, second, backend) == port
    assert again.counted[Reason.FWD_ESTABLISHED] == 1


@PROTOCOLS
def test_local_backend_round_trip(world: World, fam: Family, hook: str, proto: int) -> None:
    """A backend of this node sees the client's own address; its reply is translated where it leaves the pod."""
    backend = world.backend(fam, fam.local(1), 8080, proto, local=True)
    service = world.service(fam, fam.vip, 80, proto, [backend])
    first = request(fam, proto, 40000)
    out = world.run(hook, first)
    expect.handed_up_to(out, first, backend)
    assert out.counted == {Reason.FWD_LOCAL: 1}

    answer = expect.local_reply(fam, proto, backend, fam.client, 40000)
    back = expect.at_pod(world, answer)
    expect.replied(back, answer, service, fam.client, 40000)
    assert back.counted[Reason.FWD_REPLY] == 1

    second = request(fam, proto, 40000, "A")
    again = world.run(hook, second)
    expect.handed_up_to(again, second, backend)
    assert again.counted[Reason.FWD_LOCAL] == 1


@PROTOCOLS
def test_reply_not_yet_translated_is_on_the_way_out(world: World, fam: Family, proto: int) -> None:
    """`tc_egress` of the device a reply leaves by translates what no pod device has (a backend in the host's own stack)."""
    backend = world.backend(fam, fam.local(1), 8080, proto, local=True)
    service = world.service(fam, fam.vip, 80, proto, [backend])
    world.run(XDP, request(fam, proto, 40000))
    packet = craft.segment(fam, proto, backend.address, backend.port, fam.client, 40000, "SA")
    answer = craft.frame(packet, src=craft.NODE_MAC, dst=craft.ROUTER_MAC)
    expect.replied_in_place(expect.leaving(world, answer), answer, service)


def test_egress_leaves_a_translated_reply_alone(world: World, fam: Family) -> None:
    """What already carries the VIP passes `tc_egress` as it is."""
    backend = world.backend(fam, fam.local(1), 8080, local=True)
    world.service(fam, fam.vip, 80, TCP, [backend])
    world.run(XDP, request(fam, TCP, 40000))
    done = craft.frame(craft.tcp(fam, fam.vip, 80, fam.client, 40000, "SA"), src=craft.NODE_MAC, dst=craft.ROUTER_MAC)
    expect.untouched(expect.leaving(world, done), done)


def test_flow_stays_while_others_spread(world: World, fam: Family, hook: str) -> None:
    """Each of 40 flows keeps its backend and its port over three packets; together they use every backend."""
    backends = [world.backend(fam, fam.remote(n), 8080) for n in range(1, 5)]
    world.service(fam, fam.vip, 80, TCP, backends)
    chosen = {}
    for sport in range(41000, 41040):
        out = world.run(hook, request(fam, TCP, sport))
        chosen[sport] = (expect.destination(out), expect.source(out))
    assert {place[0] for place in chosen.values()} == {b.endpoint for b in backends}
    for flags in ("A", "PA", "FA"):
        for sport, place in chosen.items():
            out = world.run(hook, request(fam, TCP, sport, flags))
            assert (expect.destination(out), expect.source(out)) == place


def test_snat_ports_of_one_backend_differ(world: World, fam: Family) -> None:
    """300 clients of one backend get 300 ports: a reply finds exactly one of them."""
    backend = world.backend(fam, fam.remote(1), 8080)
    service = world.service(fam, fam.vip, 80, TCP, [backend])
    ports = {}
    for sport in range(42000, 42300):
        out = world.run(XDP, request(fam, TCP, sport))
        ports[expect.source(out)[1]] = sport
    assert len(ports) == 300
    for port, sport in list(ports.items())[::10]:
        answer = expect.remote_reply(fam, TCP, backend, port)
        expect.replied(world.run(XDP, answer, world.net.lb1), answer, service, fam.client, sport)


def test_two_hooks_share_one_flow(world: World, fam: Family) -> None:
    """A flow begun at XDP is the same flow at tc and the other way round."""
    backends = [world.backend(fam, fam.remote(n), 8080) for n in range(1, 9)]
    world.service(fam, fam.vip, 80, TCP, backends)
    for sport, (one, other) in enumerate([(XDP, TC_INGRESS), (TC_INGRESS, XDP)] * 8, 43000):
        first = world.run(one, request(fam, TCP, sport))
        second = world.run(other, request(fam, TCP, sport, "A"))
        assert expect.destination(first) == expect.destination(second)
        assert expect.source(first) == expect.source(second)


def test_reply_of_a_stranger_is_not_translated(world: World, fam: Family, hook: str) -> None:
    """A packet to a live SNAT port from another host than the flow's backend is not let through to the client."""
    backend = world.backend(fam, fam.remote(1), 8080)
    world.service(fam, fam.vip, 80, TCP, [backend])
    out = world.run(hook, request(fam, TCP, 40000))
    port = expect.source(out)[1]
    for address, sport in ((fam.remote(2), 8080), (fam.remote(1), 8081)):
        stray = craft.frame(
            craft.tcp(fam, address, sport, fam.node2, port, "SA"), src=craft.BACKEND_MAC, dst=craft.NODE2_MAC
        )
        expect.untouched(world.run(hook, stray, world.net.lb1), stray)


def test_same_client_port_to_two_vips_and_one_local_backend(world: World, fam: Family, hook: str) -> None:
    """Two flows that would have one reply tuple never share a local backend unless SNAT distinguishes them."""
    backends = [world.backend(fam, fam.local(n), 8080, local=True) for n in (1, 2)]
    services = [world.service(fam, vip, 80, TCP, backends) for vip in (fam.vip, fam.vip2)]
    for sport in range(44000, 44030):
        places = []
        for service in services:
            packet = craft.frame(craft.tcp(fam, fam.client, sport, service.address, 80))
            out = world.run(hook, packet)
            places.append((expect.destination(out), expect.source(out)))
        assert places[0] != places[1], sport


def test_same_client_port_to_two_vips_and_the_only_local_backend(world: World, fam: Family, hook: str) -> None:
    """With a single backend the second flow is kept apart by SNAT, and each reply goes to its own VIP."""
    backend = world.backend(fam, fam.local(1), 8080, local=True)
    first, second = (world.service(fam, vip, 80, TCP, [backend]) for vip in (fam.vip, fam.vip2))
    outs = [world.run(hook, craft.frame(craft.tcp(fam, fam.client, 40000, vip.address, 80))) for vip in (first, second)]
    assert [expect.destination(out) for out in outs] == [backend.endpoint] * 2
    assert expect.source(outs[0]) == (fam.client, 40000)
    assert expect.source(outs[1]) != (fam.client, 40000)
    for out, service in zip(outs, (first, second), strict=True):
        address, port = expect.source(out)
        back = expect.at_pod(world, expect.local_reply(fam, TCP, backend, address, port))
        assert expect.source(back) == (service.address, 80)
        assert expect.destination(back) == (fam.client, 40000)


def test_udp_without_checksum(world: World, hook: str) -> None:
    """IPv4 UDP with checksum 0 (none) stays so in both directions. Source: RFC 768."""
    fam = craft.V4
    backend = world.backend(fam, fam.remote(1), 53, UDP)
    service = world.service(fam, fam.vip, 53, UDP, [backend])
    question = craft.frame(craft.udp(fam, fam.client, 40000, fam.vip, 53, chksum=0))
    port = expect.forwarded_to(world.run(hook, question), question, backend)
    answer = craft.frame(
        craft.udp(fam, backend.address, 53, fam.node2, port, chksum=0), src=craft.BACKEND_MAC, dst=craft.NODE2_MAC
    )
    expect.replied(world.run(hook, answer, world.net.lb1), answer, service, fam.client, 40000)


def test_udp_checksum_that_would_become_zero(world: World, fam: Family, hook: str) -> None:
    """A sum that comes out as 0 is sent as 0xffff, never as "no checksum". Source: RFC 768, RFC 8200 §8.1."""
    backend = world.backend(fam, fam.local(1), 53, UDP, local=True)
    world.service(fam, fam.vip, 53, UDP, [backend])
    target = craft.frame(craft.udp(fam, fam.client, 40000, backend.address, 53, b"\0\0"))
    sum_without = int.from_bytes(target[-4:-2], "big")  # the checksum field lies before the two bytes of payload
    load = sum_without.to_bytes(2, "big")  # adding its own complement makes the sum 0xffff, the field 0
    question = craft.frame(craft.udp(fam, fam.client, 40000, fam.vip, 53, load))
    out = world.run(hook, question)
    assert out.packet[-4:-2] == b"\xff\xff"
    assert expect.destination(out) == backend.endpoint


@pytest.mark.parametrize("vlans", [(5,), (5, 6)], ids=["tagged", "double"])
def test_vlan_tags_stay(world: World, fam: Family, vlans: tuple[int, ...]) -> None:
    """A local backend's frame keeps its tags; so does one that goes back out of the device it came by."""
    local = world.backend(fam, fam.local(1), 8080, local=True)
    world.service(fam, fam.vip, 80, TCP, [local])
    frame = craft.frame(craft.tcp(fam, fam.client, 40000, fam.vip, 80), vlans=vlans)
    expect.handed_up_to(world.run(XDP, frame), frame, local)


def test_ipv4_options(world: World, hook: str) -> None:
    """An IP header with options is translated and its options kept."""
    from scapy.layers.inet import IPOption_RR

    fam = craft.V4
    backend = world.backend(fam, fam.remote(1), 8080)
    service = world.service(fam, fam.vip, 80, TCP, [backend])
    for flags in ("S", "A"):
        frame = craft.frame(craft.tcp(fam, fam.client, 40000, fam.vip, 80, flags, options=[]))
        with_options = craft.decode(frame)
        with_options["IP"].options = [IPOption_RR(length=11, pointer=4, routers=["0.0.0.0", "0.0.0.0"])]
        del with_options["IP"].ihl, with_options["IP"].len
        frame = craft.recomputed(with_options)
        out = world.run(hook, frame)
        port = expect.forwarded_to(out, frame, backend)
    answer = expect.remote_reply(fam, TCP, backend, port)
    expect.replied(world.run(hook, answer, world.net.lb1), answer, service, fam.client, 40000)


@pytest.mark.parametrize("headers", ["HopByHop", "DestOpt", "Routing", "HopByHop+DestOpt"])
def test_ipv6_extension_headers(world: World, hook: str, headers: str) -> None:
    """Extension headers before TCP are stepped over and kept."""
    from scapy.layers import inet6
    from scapy.layers.inet import TCP as TcpLayer

    fam = craft.V6
    backend = world.backend(fam, fam.remote(1), 8080)
    world.service(fam, fam.vip, 80, TCP, [backend])
    packet = fam.ip(fam.client, fam.vip)
    for name in headers.split("+"):
        layer = getattr(inet6, f"IPv6ExtHdr{name}")
        packet = packet / (layer(type=0, segleft=0) if name == "Routing" else layer())
    frame = craft.frame(packet / TcpLayer(sport=40000, dport=80, flags="S"))
    expect.forwarded_to(world.run(hook, frame), frame, backend)


def test_packets_and_bytes_are_counted(world: World, fam: Family, hook: str) -> None:
    """Each direction of each packet counts for its service and its backend, with the frame's length."""
    backend = world.backend(fam, fam.remote(1), 8080)
    service = world.service(fam, fam.vip, 80, TCP, [backend])
    before = world.service_counter(service), world.backend_counter(backend)
    frames = [request(fam, TCP, 40000), request(fam, TCP, 40000, "A", load=b"x" * 100)]
    outs = [world.run(hook, frame) for frame in frames]
    answer = expect.remote_reply(fam, TCP, backend, expect.source(outs[0])[1])
    world.run(hook, answer, world.net.lb1)
    size = sum(len(frame) for frame in [*frames, answer])
    for old, new in zip(before, (world.service_counter(service), world.backend_counter(backend)), strict=True):
        assert (new[0] - old[0], new[1] - old[1]) == (3, size)


@PROTOCOLS
@pytest.mark.parametrize("local", [False, True], ids=["remote", "local"])
def test_an_established_flow_is_counted(world: World, fam: Family, hook: str, proto: int, *, local: bool) -> None:
    """Each packet of both directions, on the fast path as well: reason, service and backend, with all bytes of the frame."""
    others = [world.backend(fam, fam.remote(n), 8080, proto) for n in (5, 6)]
    world.service(fam, fam.vip2, 80, proto, others)
    backend = world.backend(fam, fam.local(1) if local else fam.remote(1), 8080, proto, local=local)
    service = world.service(fam, fam.vip, 80, proto, [backend])
    world.nexthop(world.net.lb0, craft.ROUTER_MAC, craft.NODE_MAC)
    source: tuple[str, int] = ("", 0)

    def both(flags: str, answer: str, load: bytes) -> int:
        """Let each side send a packet; return the bytes of both frames."""
        nonlocal source
        frame = request(fam, proto, 40000, flags, load=load)
        out = world.run(hook, frame)
        source = expect.source(out)
        reason = Reason.FWD_LOCAL if local else Reason.FWD_NEW if flags == "S" else Reason.FWD_ESTABLISHED
        assert out.counted == {reason: 1}
        if local:
            back = expect.local_reply(fam, proto, backend, *source, answer, load=load)
            out = expect.at_pod(world, back)
        else:
            back = expect.remote_reply(fam, proto, backend, source[1], answer, load=load)
            out = world.run(hook, back, world.net.lb1)
        assert out.counted == {Reason.FWD_REPLY: 1}
        return len(frame) + len(back)

    counters = [*map(world.backend_counter, (*others, backend)), *map(world.service_counter, world.services)]
    size = both("S", "SA", b"") + both("A", "PA", bytes(50))
    for n in range(3):
        size += both("A", "A", bytes(100 + n))
    now = [*map(world.backend_counter, (*others, backend)), *map(world.service_counter, world.services)]
    grown = [(new[0] - old[0], new[1] - old[1]) for old, new in zip(counters, now, strict=True)]
    assert grown == [(0, 0), (0, 0), (10, size), (0, 0), (10, size)]
    assert service is world.services[-1]


@pytest.mark.parametrize("local", [False, True], ids=["remote", "local"])
@PROTOCOLS
def test_each_packet_of_a_flow_has_right_checksums(
    world: World, fam: Family, hook: str, proto: int, *, local: bool
) -> None:
    """What the checksum changes by may be kept with the flow; it depends on the address that the flow is sent from, which may change."""
    backend = world.backend(fam, fam.local(1) if local else fam.remote(1), 8080, proto, local=local)
    service = world.service(fam, fam.vip, 80, proto, [backend])
    source = expect.source(world.run(hook, request(fam, proto, 40000)))
    if local:
        expect.at_pod(world, expect.local_reply(fam, proto, backend, *source))
    else:
        world.run(hook, expect.remote_reply(fam, proto, backend, source[1]), world.net.lb1)
    flags = 3 | (4 if local else 0) | (16 if proto == UDP else 0)  # live, selectable, local, protocol
    hop = world.nexthop(world.net.lb1, craft.BACKEND_MAC, craft.NODE2_MAC)
    for address in (fam.node2, fam.node2, fam.node, fam.node2, fam.node):
        if not local:
            world.path(backend, flags=flags, nexthop=hop, mtu=1500, snat=address)
        for n in range(3):
            frame = request(fam, proto, 40000, "A", load=bytes(range(60 + n)))
            out = world.run(hook, frame)
            if local:
                expect.handed_up_to(out, frame, backend)
                continue
            wanted = expect.translated(
                frame, src=address, sport=source[1], dst=backend.address, dport=8080, hop=1, **expect.TO_BACKEND
            )
            assert out.packet == wanted, expect.difference(out.packet, wanted)
    assert service.backends == (backend,)


def nexthop_of(world: World, fam: Family) -> int:
    """Return the next hop towards the client that the only flow's entry names."""
    flow = table.only(world, fam)
    size, at = (32, 24) if fam.version == 4 else (64, 48)
    with world.maps.window(f"lb{fam.version}_flow", flow.position * size + at + 6, 2) as view:
        return int.from_bytes(view, "little")


def test_a_local_flow_learns_its_next_hop(world: World, fam: Family) -> None:
    """By the first reply after it is established; when that neighbour is retired, and another one is there, it learns the other."""
    backend = world.backend(fam, fam.local(1), 8080, local=True)
    world.service(fam, fam.vip, 80, TCP, [backend])
    index = world.nexthop(world.net.lb0, craft.ROUTER_MAC, craft.NODE_MAC)
    world.run(XDP, request(fam, TCP, 40000))

    def from_backend(flags: str) -> None:
        frame = expect.local_reply(fam, TCP, backend, fam.client, 40000, flags)
        out = expect.at_pod(world, frame)
        wanted = expect.translated(frame, src=fam.vip, sport=80, hop=1, **expect.TO_CLIENT)
        assert out.packet == wanted, expect.difference(out.packet, wanted)

    from_backend("SA")
    assert nexthop_of(world, fam) & 0x8000  # the handshake is under way: that is no next hop
    from_backend("SA")
    world.run(XDP, request(fam, TCP, 40000, "A"))
    assert nexthop_of(world, fam) == 0
    for _ in range(2):
        from_backend("A")
        assert nexthop_of(world, fam) == index
    world.clear("lb_nexthop")
    world.nexthops = {(0, str(n)): n for n in range(1, 10)}  # retired: no index is used again soon
    other = world.nexthop(world.net.lb0, craft.ROUTER_MAC, craft.NODE_MAC)
    assert other == 10
    for _ in range(2):
        from_backend("A")
        assert nexthop_of(world, fam) == other


def test_next_hop_unknown_uses_the_kernels_routes(world: World, fam: Family, hook: str) -> None:
    """A path without a next hop is forwarded by the FIB, to the same place."""
    backend = world.backend(fam, fam.remote(1), 8080, nexthop=0)
    world.service(fam, fam.vip, 80, TCP, [backend])
    frame = request(fam, TCP, 40000)
    expect.forwarded_to(world.run(hook, frame), frame, backend)


def test_retired_next_hop_uses_the_kernels_routes(world: World, fam: Family, hook: str) -> None:
    """An index whose device was set to 0 is as good as none, also for a flow that is under way."""
    backend = world.backend(fam, fam.remote(1), 8080)
    world.service(fam, fam.vip, 80, TCP, [backend])
    frame = request(fam, TCP, 40000)
    expect.forwarded_to(world.run(hook, frame), frame, backend)
    world.clear("lb_nexthop")
    second = request(fam, TCP, 40000, "A")
    expect.forwarded_to(world.run(hook, second), second, backend)


def test_client_side_next_hop_is_learned(world: World, fam: Family, hook: str) -> None:
    """Replies go to the router with and without its entry in the next-hop table, and after it was retired."""
    backend = world.backend(fam, fam.remote(1), 8080)
    service = world.service(fam, fam.vip, 80, TCP, [backend])
    port = expect.source(world.run(hook, request(fam, TCP, 40000)))[1]
    for step in range(4):
        if step == 1:
            world.nexthop(world.net.lb0, craft.ROUTER_MAC, craft.NODE_MAC)
        if step == 3:
            world.clear("lb_nexthop")
        answer = expect.remote_reply(fam, TCP, backend, port, "A")
        expect.replied(world.run(hook, answer, world.net.lb1), answer, service, fam.client, 40000)


def test_node_port_on_the_nodes_own_address(world: World, fam: Family, hook: str) -> None:
    """A frontend on the node's address, which is also a SNAT address, works like any other."""
    backend = world.backend(fam, fam.remote(1), 8080)
    service = world.service(fam, fam.node2, 30080, TCP, [backend])
    frame = craft.frame(craft.tcp(fam, fam.client, 40000, fam.node2, 30080))
    port = expect.forwarded_to(world.run(hook, frame), frame, backend)
    answer = expect.remote_reply(fam, TCP, backend, port)
    expect.replied(world.run(hook, answer, world.net.lb1), answer, service, fam.client, 40000)


def test_pod_as_a_client(world: World, fam: Family) -> None:
    """A pod of this node reaches the service through its own veth; the reply goes back into it."""
    backend = world.backend(fam, fam.remote(1), 8080)
    service = world.service(fam, fam.vip, 80, TCP, [backend])
    packet = craft.tcp(fam, fam.local(9), 40000, fam.vip, 80)
    frame = craft.frame(packet, src=craft.LOCAL_MAC, dst=craft.POD_MAC)
    out = expect.at_pod(world, frame)
    port = expect.forwarded_to(out, frame, backend)
    answer = expect.remote_reply(fam, TCP, backend, port)
    back = world.run(TC_INGRESS, answer, world.net.lb1)
    assert back.forwarded
    assert (expect.source(back), expect.destination(back)) == ((service.address, 80), (fam.local(9), 40000))


def test_egress_leaves_the_nodes_own_traffic_alone(world: World, fam: Family) -> None:
    """`tc_egress` touches nothing that is not a local backend's reply."""
    world.service(fam, fam.vip, 80, TCP, [world.backend(fam, fam.remote(1), 8080)])
    packet = craft.tcp(fam, fam.node, 40000, fam.client, 443)
    frame = craft.frame(packet, src=craft.NODE_MAC, dst=craft.ROUTER_MAC)
    expect.untouched(world.run(TC_EGRESS, frame), frame)
