"""Ports at the ends of what is allowed: the lowest SNAT ports there can be, and a client port of 0."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from lbagent.bpf.load.program_settings import ProgramSettings
from lbagent.config import MIN_SNAT_PORT
from lbagent.maps.reasons import Reason
from tests.packet import table
from tests.packet.caller import Caller
from tests.packet.craft import Family
from tests.packet.harness import open_world
from tests.packet.world import TCP, UDP, World

PORTS = range(MIN_SNAT_PORT, MIN_SNAT_PORT + 3)


@pytest.fixture(scope="module")
def low_ports_world() -> Iterator[World]:
    """Load programs with the three lowest SNAT ports."""
    with open_world(ProgramSettings(snat_port_min=PORTS.start, snat_port_max=PORTS.stop - 1)) as world:
        yield world


@pytest.mark.parametrize("proto", [TCP, UDP], ids=["tcp", "udp"])
def test_the_lowest_snat_ports(low_ports_world: World, fam: Family, hook: str, proto: int) -> None:
    """Three connections have the three ports and keep them; there is no fourth port above or below."""
    world = low_ports_world
    world.reset()
    backend = world.backend(fam, fam.remote(1), 8080, proto)
    service = world.service(fam, fam.vip, 80, proto, [backend])
    talks = [Caller(world, service, port=40000 + n, hook=hook) for n in range(len(PORTS))]
    for talk in talks:
        talk.establish()
    assert sorted(talk.source for talk in talks) == [(fam.node2, port) for port in PORTS]
    assert Caller(world, service, port=50000, hook=hook).send("S").counted == {Reason.DROP_SNAT_EXHAUSTED: 1}
    for talk in talks:
        assert talk.stays()
        assert talk.is_answered()
        assert talk.is_answered("R")
    assert len(table.flows(world, fam)) == len(PORTS)


def test_a_client_port_of_0(world: World, fam: Family, hook: str) -> None:
    """UDP allows it (RFC 768): the flow has a SNAT port like any other, and its answers find it."""
    backend = world.backend(fam, fam.remote(1), 53, UDP)
    talk = Caller(world, world.service(fam, fam.vip, 53, UDP, [backend]), port=0, hook=hook)
    talk.establish()
    assert table.slot_holder(world, fam, table.held_slot_indexes(world, fam)[0]) == (fam.client, 0)
    assert talk.is_answered()
    assert talk.stays()
