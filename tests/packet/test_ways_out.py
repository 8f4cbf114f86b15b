"""The egress path of a packet without a route, with a rule by source, and of one that ends on this node."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from lbagent.maps.reasons import Reason
from tests.packet import craft, expect
from tests.packet.caller import Caller
from tests.packet.craft import NODE_MAC, ROUTER_MAC, Family
from tests.packet.world import TC_EGRESS, TC_INGRESS, TCP, XDP, World


@contextmanager
def routing(world: World, fam: Family, what: str, line: str) -> Iterator[None]:
    """Add a route or rule for the block."""
    world.net.run(f"-{fam.version} {what} add {line}")
    try:
        yield
    finally:
        world.net.run(f"-{fam.version} {what} del {line}")


@pytest.mark.parametrize("local", [False, True], ids=["remote", "local"])
def test_a_reply_without_a_way_teaches_nothing(world: World, fam: Family, hook: str, *, local: bool) -> None:
    """While no route leads to the client its replies are dropped; with the route back they go by it."""
    backend = world.backend(fam, fam.local(1) if local else fam.remote(1), 8080, local=local)
    talk = Caller(world, world.service(fam, fam.vip, 80, TCP, [backend]), hook=hook)
    talk.send("S")
    device = world.net.pod0 if local else world.net.lb1
    answer = expect.local_reply if local else expect.remote_reply
    ends = talk.source if local else talk.source[1:]
    frames = [answer(fam, TCP, backend, *ends, flags) for flags in ("SA", "A", "PA")]
    with routing(world, fam, "route", f"unreachable {fam.client}"):
        out = world.run(hook, frames[0], device)
        assert out.dropped
        assert out.counted == {Reason.DROP_NO_NEIGHBOR: 1}
    for frame in frames:
        expect.replied(world.run(hook, frame, device), frame, talk.service, *talk.endpoint)
        talk.send("A")


def test_a_reply_on_its_way_out_teaches_nothing(world: World, fam: Family) -> None:
    """The kernel routed it; those that come in from the pod find their way themselves, before and after."""
    backend = world.backend(fam, fam.local(1), 8080, local=True)
    talk = Caller(world, world.service(fam, fam.vip, 80, TCP, [backend]), hook=XDP)
    talk.establish()
    frame = expect.local_reply(fam, TCP, backend, *talk.endpoint, "PA")
    for _ in range(2):
        out = world.run(TC_EGRESS, frame, world.net.lb0, came_by=world.net.pod0)
        expect.replied_in_place(out, frame, talk.service)
        for hook in (XDP, TC_INGRESS):
            expect.replied(world.run(hook, frame, world.net.pod0), frame, talk.service, *talk.endpoint)


def test_the_last_hop_of_a_reply_to_the_node_itself(world: World, fam: Family) -> None:
    """It is not forwarded, so its TTL may be 1: the client process gets it."""
    backend = world.backend(fam, fam.remote(1), 8080)
    world.service(fam, fam.vip, 80, TCP, [backend])
    frame = craft.frame(craft.tcp(fam, fam.node, 40000, fam.vip, 80), src=NODE_MAC, dst=ROUTER_MAC)
    port = expect.source(world.run(TC_EGRESS, frame, world.net.lb0))[1]
    answer = expect.remote_reply(fam, TCP, backend, port, ttl=1)
    for hook in (XDP, TC_INGRESS):
        out = world.run(hook, answer, world.net.lb1)
        assert out.passed
        assert out.packet == expect.translated(answer, src=fam.vip, sport=80, dst=fam.node, dport=40000)
        assert out.counted == {Reason.FWD_REPLY: 1}


def test_a_remote_backend_with_an_address_of_this_node(world: World, fam: Family, hook: str) -> None:
    """The stack would take no packet whose source is the node's own: it is dropped and counted."""
    backend = world.backend(fam, fam.node, 8080, nexthop=0)
    world.service(fam, fam.vip, 80, TCP, [backend])
    out = world.run(hook, craft.frame(craft.tcp(fam, fam.client, 40000, fam.vip, 80)))
    assert out.dropped
    assert out.counted == {Reason.DROP_NO_NEIGHBOR: 1}


def test_rules_about_the_client_are_not_about_what_the_node_sends(world: World, fam: Family, hook: str) -> None:
    """Towards a remote backend the packet is the node's own by then: a rule for that address decides."""
    backend = world.backend(fam, fam.remote(1), 8080, nexthop=0)
    world.service(fam, fam.vip, 80, TCP, [backend])
    frame = craft.frame(craft.tcp(fam, fam.client, 40000, fam.vip, 80))
    with routing(world, fam, "rule", f"from {fam.client} unreachable pref 50"):
        expect.forwarded_to(world.run(hook, frame), frame, backend)
    with routing(world, fam, "rule", f"from {fam.node2} unreachable pref 50"):
        assert world.run(hook, frame).counted == {Reason.DROP_NO_NEIGHBOR: 1}
