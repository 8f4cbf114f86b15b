"""Local redirects: rows of internal scope that packets from outside, and those of their own pods, do not use."""

from __future__ import annotations

import pytest

from lbagent.maps.reasons import Reason
from tests.packet import craft, expect
from tests.packet.craft import LOCAL_MAC, NODE2_MAC, POD_MAC, Family
from tests.packet.world import ROUTABLE, SOURCE_RANGE, TC_EGRESS, TCP, TWO_SCOPES, UDP, BackendRow, Outcome, World

LOCAL_REDIRECT, LOOPBACK = 0x0100, 0x0800
REDIRECT = LOCAL_REDIRECT | ROUTABLE | TWO_SCOPES
PASSING = LOCAL_REDIRECT | LOOPBACK | TWO_SCOPES
PROTOCOLS = pytest.mark.parametrize("proto", [TCP, UDP], ids=["tcp", "udp"])


def near(world: World, fam: Family, proto: int = TCP) -> BackendRow:
    return world.backend(fam, fam.local(1), 8080, proto, local=True)


def from_pod(world: World, fam: Family, hook: str, proto: int, pod: int) -> Outcome:
    """Let a pod of this node send the first packet of a flow."""
    packet = craft.segment(fam, proto, fam.local(pod), 40000, fam.vip, 80, "S")
    return world.run(hook, craft.frame(packet, src=LOCAL_MAC, dst=POD_MAC), world.net.pod0)


@PROTOCOLS
def test_its_own_pod_uses_the_original_service(world: World, fam: Family, hook: str, proto: int) -> None:
    local, remote = near(world, fam, proto), world.backend(fam, fam.remote(1), 8080, proto)
    bits = 32 if fam.version == 4 else 128
    world.service(fam, fam.vip, 80, proto, [remote], flags=TWO_SCOPES)
    ranges = [f"{fam.local(9)}/{bits}"]
    world.service(fam, fam.vip, 80, proto, [local], flags=REDIRECT | SOURCE_RANGE, ranges=ranges, deny=True, scope=1)
    assert expect.destination(from_pod(world, fam, hook, proto, 9)) == remote.endpoint
    assert expect.destination(from_pod(world, fam, hook, proto, 8)) == local.endpoint
    outside = world.run(hook, craft.frame(craft.segment(fam, proto, fam.client, 40000, fam.vip, 80, "S")))
    assert expect.destination(outside) == remote.endpoint


@PROTOCOLS
def test_what_passed_where_it_came_in_passes_where_it_leaves(world: World, fam: Family, proto: int) -> None:
    """Also a pod's, which may have the node's address by then. What the node itself sends is redirected there."""
    local = near(world, fam, proto)
    world.service(fam, fam.vip, 80, proto, [], flags=PASSING)
    world.service(fam, fam.vip, 80, proto, [local], flags=REDIRECT, scope=1)
    frame = craft.frame(craft.segment(fam, proto, fam.client, 40000, fam.vip, 80, "S"), src=NODE2_MAC)
    for device in (world.net.lb0, world.net.pod0):
        out = world.run(TC_EGRESS, frame, world.net.lb1, came_by=device)
        expect.untouched(out, frame)
        assert out.counted == {Reason.PASS_NOT_SERVICE: 1}
    assert expect.destination(world.run(TC_EGRESS, frame, world.net.lb1)) == local.endpoint


def test_an_address_passes_from_outside(world: World, fam: Family, hook: str) -> None:
    world.service(fam, fam.vip, 80, TCP, [], flags=PASSING)
    world.service(fam, fam.vip, 80, TCP, [near(world, fam)], flags=REDIRECT, scope=1)
    frame = craft.frame(craft.tcp(fam, fam.client, 40000, fam.vip, 80))
    expect.untouched(world.run(hook, frame), frame)


def test_an_address_without_a_pod_passes_for_all(world: World, fam: Family, hook: str) -> None:
    """Also a datagram of a flow whose pod is gone."""
    local = near(world, fam, UDP)
    world.service(fam, fam.vip, 80, UDP, [], flags=PASSING)
    row = world.service(fam, fam.vip, 80, UDP, [local], flags=REDIRECT, scope=1)
    assert expect.destination(from_pod(world, fam, hook, UDP, 8)) == local.endpoint
    world.remove_backend(local)
    world.service(fam, fam.vip, 80, UDP, [], flags=PASSING, scope=1, ident=row.id)
    out = from_pod(world, fam, hook, UDP, 8)
    assert out.passed
    assert out.counted == {Reason.PASS_NOT_SERVICE: 1}


def test_a_redirect_that_drops(world: World, fam: Family, hook: str) -> None:
    world.service(fam, fam.vip, 80, TCP, [], flags=PASSING)
    world.service(fam, fam.vip, 80, TCP, [], flags=REDIRECT, scope=1, elsewhere=True)
    out = from_pod(world, fam, hook, TCP, 8)
    assert out.dropped
    assert out.counted == {Reason.DROP_NO_LOCAL_BACKEND: 1}
