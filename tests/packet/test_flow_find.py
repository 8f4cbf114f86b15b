"""Readers find a flow in the buckets that the programs choose, in the second bucket and in the spill map, too."""

from __future__ import annotations

from ipaddress import ip_address

import pytest

from lbagent.bpf.load.program_settings import ProgramSettings
from lbagent.maps.flow_hash import FlowEnd
from lbagent.maps.flow_reader import SPILLED, find_flow, snat_client
from lbagent.maps.layout import PathL4
from lbagent.model.family import Family as Version
from tests.packet.caller import Caller
from tests.packet.craft import Family
from tests.packet.harness import SEEDS, SMALL, open_world
from tests.packet.test_extra_snat_sources import EXTRA_SNAT, Crowd
from tests.packet.world import TCP, UDP, XDP, World

SEED_WORDS = (SEEDS.seed0, SEEDS.seed1)


@pytest.mark.parametrize(("proto", "l4"), [(TCP, PathL4.TCP), (UDP, PathL4.UDP)])
def test_every_flow_of_a_full_bucket_is_found(world: World, fam: Family, proto: int, l4: PathL4) -> None:
    """All flows of a client port lie in two buckets of four; more than eight spill."""
    backend = world.backend(fam, fam.remote(1), 8080, proto)
    frontends = [world.service(fam, fam.vip, 80 + n, proto, [backend]) for n in range(10)]
    callers = [Caller(world, service) for service in frontends]
    for each in callers:
        each.send("A")
        if proto == UDP:  # one without an answer may be evicted
            each.answer()
    client = FlowEnd(ip_address(fam.client).packed, 40000)
    spilled = 0
    for service in frontends:
        frontend = FlowEnd(ip_address(fam.vip).packed, service.port)
        raw = find_flow(world.maps, client, frontend, l4, SEED_WORDS)
        assert raw is not None
        spilled += raw[0] == SPILLED
        other = PathL4.UDP if l4 is PathL4.TCP else PathL4.TCP
        assert find_flow(world.maps, client, frontend, other, SEED_WORDS) is None
        assert find_flow(world.maps, FlowEnd(client.address, 40001), frontend, l4, SEED_WORDS) is None
    assert spilled == 2
    assert find_flow(world.maps, client, FlowEnd(ip_address(fam.vip).packed, 79), l4, SEED_WORDS) is None


def test_flows_of_many_clients_are_found(world: World, fam: Family) -> None:
    backend = world.backend(fam, fam.remote(1), 8080)
    service = world.service(fam, fam.vip, 80, TCP, [backend])
    frontend = FlowEnd(ip_address(fam.vip).packed, 80)
    for number in range(100):
        client = str(ip_address(fam.client) + 7 * number)
        Caller(world, service, client, 1000 + 611 * number % 64000).send("S")
        end = FlowEnd(ip_address(client).packed, 1000 + 611 * number % 64000)
        assert find_flow(world.maps, end, frontend, PathL4.TCP, SEED_WORDS) is not None


@pytest.mark.parametrize("proto", [TCP, UDP])
def test_the_client_of_a_snat_port_is_found(world: World, fam: Family, proto: int) -> None:
    """For each backend by itself; a free port has none, nor a port that is held towards another backend."""
    backends = [world.backend(fam, fam.remote(n), 8080, proto) for n in (1, 2)]
    held = {}
    for n, backend in enumerate(backends):
        service = world.service(fam, fam.vip, 80 + n, proto, [backend])
        for port in range(40000, 40020):
            caller = Caller(world, service, port=port)
            caller.send("S")
            held[backend.id, caller.source[1]] = FlowEnd(ip_address(fam.client).packed, port)
    assert len(held) == 40
    found = {
        (backend.id, port): end
        for backend in backends
        for port in range(1024, 30000)
        if (end := snat_client(world.maps, Version(fam.version), backend.id, port, SEED_WORDS))
    }
    assert found == held
    assert snat_client(world.maps, Version(fam.version), SMALL.backends, 2000, SEED_WORDS) is None


def test_the_client_of_a_port_of_an_extra_source_is_found(fam: Family) -> None:
    sources = list(EXTRA_SNAT.of_width(4 if fam.version == 4 else 16))
    with open_world(ProgramSettings(snat_port_min=2000, snat_port_max=2000, extra_snat=EXTRA_SNAT)) as world:
        crowd = Crowd(world, fam, XDP)
        crowd.establish(3)
        assert len(sources) == 2
        ids = [1, *(1 + number * (SMALL.backends // 5) for number, _ in sources)]
        found = [snat_client(world.maps, Version(fam.version), ident, 2000, SEED_WORDS) for ident in ids]
        assert found == [FlowEnd(ip_address(fam.client).packed, each.port) for each in crowd.clients[:3]]
