"""An address proves nothing: replies are accepted only from the device of the backend, or of its route."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from lbagent.bpf.load.program_settings import ProgramSettings
from lbagent.maps.layout import DeviceFlag
from lbagent.maps.reasons import Reason
from tests.packet import craft, expect
from tests.packet.craft import Family
from tests.packet.harness import open_world
from tests.packet.world import TC_EGRESS, TC_INGRESS, TCP, UDP, BackendRow, Outcome, World

PROTOCOLS = pytest.mark.parametrize("proto", [TCP, UDP])


def local_flow(world: World, fam: Family, proto: int, **kind: bool) -> BackendRow:
    """Open a flow to a backend of this node."""
    backend = world.backend(fam, fam.local(1), 8080, proto, local=True, **kind)
    world.service(fam, fam.vip, 80, proto, [backend])
    out = world.run(TC_INGRESS, craft.frame(craft.segment(fam, proto, fam.client, 40000, fam.vip, 80)))
    assert expect.destination(out) == backend.endpoint
    return backend


def answer(fam: Family, proto: int, backend: BackendRow, dst: str = craft.NODE_MAC) -> bytes:
    """Return what the backend would answer, as a frame for one of the node's devices."""
    packet = craft.segment(fam, proto, *backend.endpoint, fam.client, 40000, "SA")
    return craft.frame(packet, dst=dst)


@PROTOCOLS
def test_a_pods_address_from_outside(world: World, fam: Family, hook: str, proto: int) -> None:
    """Not translated: the stack's own filter of sources decides."""
    frame = answer(fam, proto, local_flow(world, fam, proto))
    out = world.run(hook, frame)
    expect.untouched(out, frame)
    assert out.counted == {Reason.PASS_FOREIGN_SOURCE: 1}


@PROTOCOLS
def test_a_pods_address_that_is_forwarded(world: World, fam: Family, proto: int) -> None:
    """An outgoing packet is accepted if it came in by a pod's device, and not if it came from outside."""
    frame = answer(fam, proto, local_flow(world, fam, proto))
    spoofed = world.run(TC_EGRESS, frame, world.net.lb1, came_by=world.net.lb0)
    expect.untouched(spoofed, frame)
    assert spoofed.counted == {Reason.PASS_FOREIGN_SOURCE: 1}
    real = world.run(TC_EGRESS, frame, world.net.lb0, came_by=world.net.pod0)
    assert expect.source(real) == (fam.vip, 80)


@PROTOCOLS
def test_the_device_that_leads_to_the_backend(world: World, fam: Family, proto: int) -> None:
    """A device that is no --pod-device: the route to the backend uses it, so it is accepted."""
    backend = local_flow(world, fam, proto)
    world.device(world.net.pod0, 0, craft.POD_MAC)
    out = expect.at_pod(world, expect.local_reply(fam, proto, backend, fam.client, 40000))
    assert expect.source(out) == (fam.vip, 80)


@PROTOCOLS
def test_the_device_that_leads_to_the_backend_of_a_large_reply(world: World, fam: Family, proto: int) -> None:
    """This is so even if the reply itself takes another route."""
    backend = local_flow(world, fam, proto)
    world.device(world.net.pod0, 0, craft.POD_MAC)
    world.device(world.net.lb0, DeviceFlag.XDP_SEND, craft.NODE_MAC, mtu=9000)
    world.net.run(f"neigh replace {backend.address} lladdr {craft.LOCAL_MAC} dev pod0 nud permanent")
    try:
        large = expect.local_reply(fam, proto, backend, fam.client, 40000, load=bytes(2000))
        assert expect.source(expect.at_pod(world, large)) == (fam.vip, 80)
    finally:
        world.net.run(f"neigh del {backend.address} dev pod0")


@PROTOCOLS
def test_the_nodes_own_address(world: World, fam: Family, hook: str, proto: int) -> None:
    """A backend that is a process of the node answers from the node itself and by no device."""
    frame = answer(fam, proto, local_flow(world, fam, proto, host=True))
    for device, mac in ((world.net.lb0, craft.NODE_MAC), (world.net.pod0, craft.POD_MAC)):
        spoofed = answer(fam, proto, BackendRow(0, fam, fam.local(1), 8080, proto, local=True), mac)
        out = world.run(hook, spoofed, device)
        expect.untouched(out, spoofed)
        assert out.counted == {Reason.PASS_FOREIGN_SOURCE: 1}
    assert expect.source(world.run(TC_EGRESS, frame, world.net.lb0)) == (fam.vip, 80)


def test_an_error_in_a_pods_name(world: World, fam: Family, hook: str) -> None:
    """An ICMP error from the pod's address that comes from outside does not become the VIP's; a router's is translated."""
    backend = local_flow(world, fam, UDP)
    quoted = bytes(craft.udp(fam, fam.client, 40000, *backend.endpoint))[:100]
    forged = craft.frame(craft.icmp_error(fam, backend.address, fam.client, fam.unreachable(), quoted))
    expect.untouched(world.run(hook, forged), forged)
    real = craft.frame(
        craft.icmp_error(fam, backend.address, fam.client, fam.unreachable(), quoted),
        src=craft.LOCAL_MAC,
        dst=craft.POD_MAC,
    )
    assert expect.source(expect.at_pod(world, real))[0] == fam.vip


# --- --strict-source ---


@pytest.fixture(scope="module")
def strict() -> Iterator[World]:
    """Load programs with `--strict-source`."""
    with open_world(ProgramSettings(strict_source=True)) as world:
        yield world


@pytest.fixture
def strict_world(strict: World) -> World:
    """Return it with nothing in it."""
    strict.reset()
    return strict


def remote_flow(
    world: World, fam: Family, hook: str, proto: int, *, nexthop: int | None = None
) -> tuple[BackendRow, bytes]:
    """Open a flow to a remote backend behind lb1; return the backend and a reply of it that is large enough for the fast path."""
    backend = world.backend(fam, fam.remote(1), 8080, proto, nexthop=nexthop)
    world.service(fam, fam.vip, 80, proto, [backend])
    out = world.run(hook, craft.frame(craft.segment(fam, proto, fam.client, 40000, fam.vip, 80)))
    return backend, expect.remote_reply(fam, proto, backend, expect.source(out)[1], "A", load=bytes(100))


def spoofed(world: World, hook: str, reply: bytes) -> Outcome:
    """Run a backend's reply as if it came from the clients' side."""
    mac = bytes.fromhex(craft.NODE_MAC.replace(":", ""))
    return world.run(hook, mac + reply[6:], world.net.lb0)


@PROTOCOLS
@pytest.mark.parametrize("known", [True, False], ids=["next_hop", "fib"])
def test_strict_source(strict_world: World, fam: Family, hook: str, proto: int, *, known: bool) -> None:
    """A reply by the device of the route is translated, one by another device is dropped; and so once more on the fast path."""
    world = strict_world
    _, reply = remote_flow(world, fam, hook, proto, nexthop=None if known else 0)
    for _ in range(3):
        assert expect.destination(world.run(hook, reply, world.net.lb1)) == (fam.client, 40000)
        out = spoofed(world, hook, reply)
        assert out.dropped
        assert out.counted == {Reason.DROP_FOREIGN_SOURCE: 1}


@PROTOCOLS
def test_loose_by_default(world: World, fam: Family, hook: str, proto: int) -> None:
    """Replies may come back by another way: asymmetric routes are no fault."""
    _, reply = remote_flow(world, fam, hook, proto)
    assert expect.destination(spoofed(world, hook, reply)) == (fam.client, 40000)
