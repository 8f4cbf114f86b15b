"""Which flows of UDP choose again after a change: those whose backend left their frontend and lives by another one."""

from __future__ import annotations

import struct

import pytest
from msgspec.structs import replace

from lbagent.maps.flow_reader import Pair
from lbagent.maps.memory_maps import MemoryMaps
from lbagent.model.address import L3n4Addr, L4Type
from lbagent.model.state import State
from lbagent.objects.records import Endpoint, EndpointSlice, Service, ServicePort, SlicePort
from lbagent.targets.bpf.bpf_target import BpfTarget
from tests.sync.rig import SMALL, ListSource, endpoints, make, running, service

A, B = 1, 2  # numbers of Services
X, Y, Z = 11, 12, 13  # hosts of one network, whichever Service has them


def of(number: int, proto: L4Type = L4Type.UDP) -> Service:
    return replace(service(number), ports=(ServicePort("http", proto, 80),))


def hosts(number: int, *found: int, proto: L4Type = L4Type.UDP, sick: tuple[int, ...] = ()) -> EndpointSlice:
    """Return the slice of a Service with these hosts, and with some that are not ready."""
    every = tuple(Endpoint(bytes([10, 1, 0, host]), ready=host not in sick) for host in (*found, *sick))
    return replace(endpoints(number), ports=(SlicePort("http", proto, 8080),), endpoints=every)


def pair(state: State, number: int, host: int, proto: L4Type = L4Type.UDP) -> Pair:
    """Return the service id of a Service's frontend, and the id of a backend."""
    svc = state.by_frontend[L3n4Addr(bytes([10, 96, 0, number]), 80, proto)]
    backend = state.backends[L3n4Addr(bytes([10, 1, 0, host]), 8080, proto)]
    return svc.id, backend.id


UDP, TCP = L4Type.UDP, L4Type.TCP
CHANGES: dict[str, tuple[list[EndpointSlice], list[EndpointSlice], set[tuple[int, int]]]] = {
    "moves": ([hosts(A, X), hosts(B, Y)], [hosts(A, Z), hosts(B, X)], {(A, X)}),
    "leaves one of two": ([hosts(A, X, Y), hosts(B, X)], [hosts(A, Y)], {(A, X)}),
    "leaves the last one empty": ([hosts(A, X), hosts(B, X)], [hosts(A)], {(A, X)}),
    "two change places": ([hosts(A, X), hosts(B, Y)], [hosts(A, Y), hosts(B, X)], {(A, X), (B, Y)}),
    "leaves both": ([hosts(A, X), hosts(B, X)], [hosts(A, Y), hosts(B, Y)], set()),
    "is gone": ([hosts(A, X), hosts(B, Y)], [hosts(A, Z)], set()),
    "is not ready": ([hosts(A, X), hosts(B, X)], [hosts(A, Y, sick=(X,))], set()),
    "was not ready and leaves": ([hosts(A, Y, sick=(X,)), hosts(B, X)], [hosts(A, Y)], {(A, X)}),
    "comes": ([hosts(A, X), hosts(B, Y)], [hosts(A, X, Y)], set()),
}


@pytest.mark.parametrize("case", list(CHANGES))
async def test_what_leaves(case: str) -> None:
    before, after, wanted = CHANGES[case]
    source = ListSource()
    loop, target, _ = make(MemoryMaps(SMALL), source)
    async with running(loop):
        source.first_list(of(A), of(B), *before)
        await loop.settled()
        first = target.state
        target.former.arrived.clear()
        source.put(*after)
        await loop.settled()
        assert target.former.waiting == {pair(first, *each) for each in wanted}
        assert target.former.arrived.is_set() == bool(wanted)


async def test_connections_do_not_count() -> None:
    source = ListSource()
    loop, target, _ = make(MemoryMaps(SMALL), source)
    async with running(loop):
        source.first_list(of(A, TCP), of(B, TCP), hosts(A, X, proto=TCP), hosts(B, X, proto=TCP))
        await loop.settled()
        source.put(hosts(A, Y, proto=TCP))
        await loop.settled()
        assert not target.former.waiting


async def test_a_service_that_is_removed_ends_its_flows_itself() -> None:
    source = ListSource()
    loop, target, _ = make(MemoryMaps(SMALL), source)
    async with running(loop):
        source.first_list(of(A), of(B), hosts(A, X), hosts(B, X))
        await loop.settled()
        source.drop(of(A))
        await loop.settled()
        assert not target.former.waiting


async def test_a_backend_that_comes_back_in_time_has_not_left() -> None:
    source = ListSource()
    loop, target, _ = make(MemoryMaps(SMALL), source)
    async with running(loop):
        source.first_list(of(A), of(B), hosts(A, X), hosts(B, X))
        await loop.settled()
        source.put(hosts(A, Y))
        await loop.settled()
        assert target.former.waiting == {pair(target.state, A, X)}
        source.put(hosts(A, X, Y))
        await loop.settled()
        assert not target.former.waiting


async def test_a_renamed_port_takes_no_backend_from_its_flows() -> None:
    """The endpoint is in the slices of the Service, under the old name of the port."""
    source = ListSource()
    loop, target, _ = make(MemoryMaps(SMALL), source)
    ports = (ServicePort("web", UDP, 79), ServicePort("http", UDP, 80))
    async with running(loop):
        source.first_list(replace(of(A), ports=ports), of(B), hosts(A, X), hosts(B, X))
        await loop.settled()
        ident = pair(target.state, A, X)
        source.put(replace(of(A), ports=(ports[0], ServicePort("dns", UDP, 80))))
        await loop.settled()
        assert not target.former.waiting
        assert not target.is_former_backend(L3n4Addr(bytes([10, 96, 0, A]), 80, UDP), ident[1])
        source.put(hosts(A))
        await loop.settled()
        assert target.is_former_backend(L3n4Addr(bytes([10, 96, 0, A]), 80, UDP), ident[1])


async def test_what_left_while_no_agent_ran_is_found_in_the_flows() -> None:
    """Also a backend that had no slot: the maps do not know whose it was, the flows do."""
    maps, source = MemoryMaps(SMALL), ListSource()
    loop, target, _ = make(maps, source)
    async with running(loop):
        source.first_list(of(A), of(B), hosts(A, Y, sick=(X,)), hosts(B, X, Z))
        await loop.settled()
        ids = {(number, host): pair(target.state, number, host) for number, host in ((A, X), (A, Y), (B, X), (B, Z))}
        add_flows(maps, *((UDP, *each) for each in ids.values()), (TCP, ids[A, X][0], ids[B, Z][1]))
    source = ListSource()
    loop, target, _ = make(maps, source)
    await target.former.resolve_unknown()
    assert target.former.unknown, "nothing is known before the State is whole"
    async with running(loop):
        source.first_list(of(A), of(B), hosts(A, Y), hosts(B, X, Z))
        await loop.settled()
        assert not target.former.waiting
        assert target.former.arrived.is_set(), "the sweeper looks at once"
        await target.former.resolve_unknown()
        assert target.former.waiting == {ids[A, X]}
        assert not target.former.unknown


def add_flows(maps: MemoryMaps, *flows: tuple[L4Type, int, int]) -> None:
    """Write entries of protocol, service id and backend id into the table."""
    entry = struct.Struct("=HH4sHH4sQHHHH")
    with maps.window("lb4_flow", 0, len(flows) * entry.size) as view:
        for number, (proto, ident, backend) in enumerate(flows):
            own, client = (1 if proto is UDP else 0) << 14, bytes([192, 0, 2, 1 + number])
            entry.pack_into(view, number * entry.size, own, 7, client, 8, 0, bytes(4), backend << 44, 0, 0, ident, 0)


def test_of_a_frontend_that_is_not_there_nothing_is_known() -> None:
    target: BpfTarget = make(MemoryMaps(SMALL))[1]
    target.ready.set()
    assert not target.is_former_backend(L3n4Addr(bytes([10, 96, 0, 9]), 80, UDP), 1)
