"""Less usual ways in and out: tagged frames that leave by another device, one-armed nodes, the node itself as a client."""

from __future__ import annotations

import pytest

from lbagent.maps.reasons import Reason
from lbagent.testing.bpf_test_run import Tc, Xdp
from tests.packet import craft, expect
from tests.packet.craft import NODE_MAC, ROUTER_MAC, Family
from tests.packet.world import TC_EGRESS, TC_INGRESS, TCP, XDP, Outcome, World

TAGS = pytest.mark.parametrize("vlans", [(5,), (5, 6)], ids=["tagged", "double"])


@TAGS
def test_tags_end_where_their_device_ends(world: World, fam: Family, vlans: tuple[int, ...]) -> None:
    """A tagged request to a backend behind another device leaves without tags: they belong to the link it came by."""
    backend = world.backend(fam, fam.remote(1), 8080)
    world.service(fam, fam.vip, 80, TCP, [backend])
    packet = craft.tcp(fam, fam.client, 40000, fam.vip, 80)
    for _ in range(2):
        out = world.run(XDP, craft.frame(packet, vlans=vlans))
        expect.forwarded_to(out, craft.frame(packet), backend)


@TAGS
def test_one_armed_node_takes_tags_off(world: World, fam: Family, vlans: tuple[int, ...]) -> None:
    """A neighbour on the device itself is not in a VLAN, also where the request came by that device with tags."""
    hop = world.nexthop(world.net.lb0, ROUTER_MAC, NODE_MAC)
    backend = world.backend(fam, fam.remote(1), 8080, nexthop=hop)
    world.service(fam, fam.vip, 80, TCP, [backend])
    packet = craft.tcp(fam, fam.client, 40000, fam.vip, 80)
    out = world.run(XDP, craft.frame(packet, vlans=vlans))
    assert out.forwarded
    port = expect.source(out)[1]
    wanted = expect.translated(
        craft.frame(packet),
        src=fam.node2,
        sport=port,
        dst=backend.address,
        dport=8080,
        hop=1,
        smac=NODE_MAC,
        dmac=ROUTER_MAC,
    )
    assert out.packet == wanted, expect.difference(out.packet, wanted)


def test_one_armed_node(world: World, fam: Family, hook: str) -> None:
    """Request and reply by the same device."""
    hop = world.nexthop(world.net.lb0, ROUTER_MAC, NODE_MAC)
    backend = world.backend(fam, fam.remote(1), 8080, nexthop=hop)
    service = world.service(fam, fam.vip, 80, TCP, [backend])
    out = world.run(hook, craft.frame(craft.tcp(fam, fam.client, 40000, fam.vip, 80)))
    assert out.verdict == (Xdp.TX if hook == XDP else Tc.REDIRECT)
    assert out.packet[:12] == bytes.fromhex((ROUTER_MAC + NODE_MAC).replace(":", ""))
    packet = craft.tcp(fam, backend.address, 8080, fam.node2, expect.source(out)[1], "SA")
    answer = craft.frame(packet, src=ROUTER_MAC, dst=NODE_MAC)
    expect.replied(world.run(hook, answer), answer, service, fam.client, 40000)


def test_node_as_a_client_of_a_remote_backend(world: World, fam: Family) -> None:
    """What the node itself sends to a VIP is balanced where it leaves; the reply goes up to the node's own socket."""
    backend = world.backend(fam, fam.remote(1), 8080)
    service = world.service(fam, fam.vip, 80, TCP, [backend])
    frame = craft.frame(craft.tcp(fam, fam.node, 40000, fam.vip, 80), src=NODE_MAC, dst=ROUTER_MAC)
    out = world.run(TC_EGRESS, frame, world.net.lb0)
    assert out.forwarded
    assert expect.destination(out) == backend.endpoint
    address, port = expect.source(out)
    packet = craft.tcp(fam, backend.address, 8080, address, port, "SA")
    answer = craft.frame(packet, src=craft.BACKEND_MAC, dst=craft.NODE2_MAC)
    for hook in (XDP, TC_INGRESS):
        back = world.run(hook, answer, world.net.lb1)
        assert back.passed
        assert (expect.source(back), expect.destination(back)) == ((service.address, 80), (fam.node, 40000))
        assert expect.parsed(back).ttl == 64


@pytest.mark.parametrize("known", [True, False], ids=["next-hop", "neighbour"])
def test_node_as_a_client_of_a_local_backend(world: World, fam: Family, *, known: bool) -> None:
    """The request was about to leave and goes to the pod's device: coming in again, with the node's address as its source, it would
    be a martian. Without a next hop the kernel finds the neighbour."""
    backend = world.backend(fam, fam.local(1), 8080, local=True, nexthop=None if known else 0)
    service = world.service(fam, fam.vip, 80, TCP, [backend])
    for flags in ("S", "A"):
        frame = craft.frame(craft.tcp(fam, fam.node, 40000, fam.vip, 80, flags), src=NODE_MAC, dst=ROUTER_MAC)
        out = world.run(TC_EGRESS, frame, world.net.lb0)
        assert out.forwarded
        smac, dmac = (craft.POD_MAC, craft.LOCAL_MAC) if known else (NODE_MAC, ROUTER_MAC)
        wanted = expect.translated(frame, dst=backend.address, dport=8080, smac=smac, dmac=dmac)
        assert out.packet == wanted, expect.difference(out.packet, wanted)
    answer = expect.local_reply(fam, TCP, backend, fam.node, 40000)
    expect.replied_in_place(expect.at_pod(world, answer), answer, service)


def test_node_as_a_client_of_a_backend_on_the_node(world: World, fam: Family) -> None:
    """What was forwarded, and is for the node itself after all, turns back: our own MAC, so that the stack takes it."""
    backend = world.backend(fam, fam.node, 8080, local=True, host=True, nexthop=0)
    world.service(fam, fam.vip, 80, TCP, [backend])
    frame = craft.frame(craft.tcp(fam, fam.client2, 40000, fam.vip, 80), src=NODE_MAC, dst=ROUTER_MAC)
    out = world.run(TC_EGRESS, frame, world.net.lb0)
    assert out.forwarded
    wanted = expect.translated(frame, dst=backend.address, dport=8080, dmac=NODE_MAC)
    assert out.packet == wanted, expect.difference(out.packet, wanted)


def test_the_node_asks_itself(world: World, fam: Family) -> None:
    """A process of the node, and a backend that is one: the two ends would be one address. It is not a want of SNAT ports."""
    world.service(fam, fam.vip, 80, TCP, [world.backend(fam, fam.node, 8080, local=True, host=True, nexthop=0)])
    frame = craft.frame(craft.tcp(fam, fam.node, 40000, fam.vip, 80), src=NODE_MAC, dst=ROUTER_MAC)
    out = world.run(TC_EGRESS, frame, world.net.lb0)
    assert out.dropped
    assert out.counted == {Reason.DROP_REPLY_CLASH: 1}


def test_one_port_through_two_frontends_to_a_process_of_the_node(world: World, fam: Family, hook: str) -> None:
    """The replies of the second connection would look like those of the first one."""
    backend = world.backend(fam, fam.node, 8080, local=True, host=True, nexthop=0)
    for vip in (fam.vip, fam.vip2):
        world.service(fam, vip, 80, TCP, [backend])
    frames = [craft.frame(craft.tcp(fam, fam.client, 40000, vip, 80)) for vip in (fam.vip, fam.vip2)]
    expect.handed_up_to(world.run(hook, frames[0]), frames[0], backend)
    assert world.run(hook, frames[1]).counted == {Reason.DROP_REPLY_CLASH: 1}


def test_a_port_goes_on_to_talk_to_the_pod_itself(world: World, fam: Family, hook: str) -> None:
    """The connection through the VIP has ended, and the client uses its port for one directly to the pod: that one's answers are the pod's."""
    backend = world.backend(fam, fam.local(1), 8080, local=True)
    world.service(fam, fam.vip, 80, TCP, [backend])

    def from_backend(flags: str) -> Outcome:
        return expect.at_pod(world, expect.local_reply(fam, TCP, backend, fam.client, 40000, flags))

    for client_flags, answer in (("S", "SA"), ("A", "A"), ("FA", "FA"), ("A", "")):
        world.run(hook, craft.frame(craft.tcp(fam, fam.client, 40000, fam.vip, 80, client_flags)))
        if answer:
            assert expect.source(from_backend(answer)) == (fam.vip, 80)
    for flags in ("SA", "A", "PA", "FA"):
        frame = expect.local_reply(fam, TCP, backend, fam.client, 40000, flags)
        expect.untouched(expect.at_pod(world, frame), frame)
    again = craft.frame(craft.tcp(fam, fam.client, 40000, fam.vip, 80))
    expect.handed_up_to(world.run(hook, again), again, backend)
    assert expect.source(from_backend("SA")) == (fam.vip, 80)


def test_reply_to_a_pod(world: World, fam: Family, hook: str) -> None:
    """A remote backend's reply to a pod of this node: XDP leaves it to tc, for a pod's veth may not take redirected frames."""
    backend = world.backend(fam, fam.remote(1), 8080)
    service = world.service(fam, fam.vip, 80, TCP, [backend])
    world.net.run(f"neigh replace {fam.local(9)} lladdr {craft.LOCAL_MAC} dev pod0 nud permanent")
    request = craft.frame(craft.tcp(fam, fam.local(9), 40000, fam.vip, 80), src=craft.LOCAL_MAC, dst=craft.POD_MAC)
    port = expect.source(expect.at_pod(world, request))[1]
    for _ in range(3):
        answer = expect.remote_reply(fam, TCP, backend, port)
        lan = world.net.lb1
        out = expect.handed_over(world, answer, lan) if hook == XDP else world.run(hook, answer, lan)
        assert out.forwarded
        assert (expect.source(out), expect.destination(out)) == ((service.address, 80), (fam.local(9), 40000))
        assert expect.parsed(out).ttl == 63


def test_pod_that_meets_itself(world: World, fam: Family) -> None:
    """A pod reaches its own service and is its only backend: SNAT keeps the two ends apart, both ways work."""
    backend = world.backend(fam, fam.local(1), 8080, local=True)
    service = world.service(fam, fam.vip, 80, TCP, [backend])
    for flags in ("S", "A"):
        packet = craft.tcp(fam, fam.local(1), 40000, fam.vip, 80, flags)
        request = craft.frame(packet, src=craft.LOCAL_MAC, dst=craft.POD_MAC)
        out = expect.at_pod(world, request)
        assert out.forwarded
        address, port = expect.source(out)
        assert (address, expect.destination(out)) == (fam.node, backend.endpoint)
        answer = expect.local_reply(fam, TCP, backend, address, port)
        back = expect.at_pod(world, answer)
        assert (expect.source(back), expect.destination(back)) == ((service.address, 80), (fam.local(1), 40000))


def test_pod_meets_itself_as_often_as_others(world: World, fam: Family) -> None:
    """Where there are others it is chosen as they are, by SNAT; towards them it keeps its address."""
    backends = [world.backend(fam, fam.local(n), 8080, local=True) for n in (1, 2)]
    world.service(fam, fam.vip, 80, TCP, backends)
    sources = {backends[0].endpoint: fam.node, backends[1].endpoint: fam.local(1)}
    seen = set()
    for sport in range(40000, 40020):
        packet = craft.tcp(fam, fam.local(1), sport, fam.vip, 80)
        out = expect.at_pod(world, craft.frame(packet, src=craft.LOCAL_MAC, dst=craft.POD_MAC))
        seen.add(expect.destination(out))
        assert expect.source(out)[0] == sources[expect.destination(out)]
    assert seen == sources.keys()


def test_by_which_device_xdp_sends(world: World, fam: Family) -> None:
    """Back by the device a frame came in by, or on by another one; first packets and those of the fast path, tagged ones as well."""
    world.nexthop(world.net.lb0, ROUTER_MAC, NODE_MAC)
    hops = {
        Xdp.TX: world.nexthop(world.net.lb0, craft.BACKEND_MAC, NODE_MAC),
        Xdp.REDIRECT: world.nexthop(world.net.lb1, craft.BACKEND_MAC, craft.NODE2_MAC),
    }
    for n, (verdict, hop) in enumerate(hops.items(), 1):
        backend = world.backend(fam, fam.remote(n), 8080, nexthop=hop)
        world.service(fam, fam.vip, 80 + n, TCP, [backend])
        for vlans in ((), (5,)):
            for client_flags, backend_flags in (("S", "SA"), ("A", "PA"), ("A", "A"), ("A", "A")):
                packet = craft.tcp(fam, fam.client, 40000, fam.vip, 80 + n, client_flags, load=bytes(40))
                out = world.run(XDP, craft.frame(packet, vlans=vlans))
                assert out.verdict == verdict
                back = craft.tcp(fam, *backend.endpoint, *expect.source(out), backend_flags, load=bytes(40))
                for device, mac, wanted in (
                    (world.net.lb0, NODE_MAC, Xdp.TX),
                    (world.net.lb1, craft.NODE2_MAC, Xdp.REDIRECT),
                ):
                    assert world.run(XDP, craft.frame(back, dst=mac), device).verdict == wanted
