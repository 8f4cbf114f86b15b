"""A frontend's kind is stored beside its policies: it is the origin of the frontend, and does not change them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from lbagent.bpf.load.program_settings import ProgramSettings
from lbagent.maps.reasons import Reason
from tests.packet import craft, expect
from tests.packet.craft import LOCAL_MAC, POD_MAC, Family
from tests.packet.harness import open_world
from tests.packet.world import ROUTABLE, SOURCE_RANGE, TCP, World

# lbagent/model/flags.py: ExternalIPs, NodePort, eTP Local, HostPort, LoadBalancer, local redirect, NAT46, iTP Local, DSR
KINDS = pytest.mark.parametrize(
    "kind", [0x0001, 0x0002, 0x0004, 0x0008, 0x0020, 0x0100, 0x0200, 0x1000, 0x8000], ids=hex
)


@pytest.fixture(scope="module")
def closed_world() -> Iterator[World]:
    """Load programs with `--external-clusterip` off."""
    with open_world(ProgramSettings(external_clusterip=False)) as world:
        yield world


@KINDS
def test_open_to_all_and_without_affinity(world: World, fam: Family, hook: str, kind: int) -> None:
    """A client's connections are spread; no table keeps where they went."""
    backends = [world.backend(fam, fam.remote(n), 8080) for n in (1, 2)]
    world.service(fam, fam.vip, 80, TCP, backends, flags=kind | ROUTABLE)
    outs = [world.run(hook, craft.frame(craft.tcp(fam, fam.client, 40000 + n, fam.vip, 80))) for n in range(24)]
    assert {expect.destination(out) for out in outs} == {backend.endpoint for backend in backends}
    assert world.maps.items(f"lb{fam.version}_affinity") == []


@KINDS
def test_source_ranges_let_in(world: World, fam: Family, hook: str, kind: int) -> None:
    """Who is in the ranges is served."""
    backend = world.backend(fam, fam.remote(1), 8080)
    bits = 32 if fam.version == 4 else 128
    world.service(
        fam, fam.vip, 80, TCP, [backend], flags=kind | ROUTABLE | SOURCE_RANGE, ranges=[f"{fam.client}/{bits}"]
    )
    frame = craft.frame(craft.tcp(fam, fam.client, 40000, fam.vip, 80))
    expect.forwarded_to(world.run(hook, frame), frame, backend)


@KINDS
def test_one_row_for_both_sides_of_the_node(world: World, fam: Family, hook: str, kind: int) -> None:
    """Without the flag for two scopes, a pod has the same backends as all others."""
    backend, other = (world.backend(fam, fam.remote(n), 8080) for n in (1, 2))
    world.service(fam, fam.vip, 80, TCP, [backend], flags=kind | ROUTABLE)
    world.service(fam, fam.vip, 80, TCP, [other], flags=kind | ROUTABLE, scope=1)
    frame = craft.frame(craft.tcp(fam, fam.local(9), 40000, fam.vip, 80), src=LOCAL_MAC, dst=POD_MAC)
    assert expect.destination(world.run(hook, frame, world.net.pod0)) == backend.endpoint


@KINDS
def test_closed_to_the_outside(closed_world: World, fam: Family, hook: str, kind: int) -> None:
    """What is not for the outside is dropped there."""
    world = closed_world
    world.reset()
    world.service(fam, fam.vip, 80, TCP, [world.backend(fam, fam.remote(1), 8080)], flags=kind)
    out = world.run(hook, craft.frame(craft.tcp(fam, fam.client, 40000, fam.vip, 80)))
    assert out.dropped
    assert out.counted == {Reason.DROP_NOT_ROUTABLE: 1}
