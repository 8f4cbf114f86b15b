"""Backends that are gone from their slices: whose flows go on, for how long, and what a restart and a full map do to them."""

from __future__ import annotations

import errno
import time
from collections.abc import Sequence

import pytest
from msgspec.structs import replace

from lbagent.errors import KernelError
from lbagent.maps.map_names import family_map
from lbagent.maps.memory_maps import MemoryMaps
from lbagent.model.address import L3n4Addr, L4Type
from lbagent.model.backend import Backend, BackendState
from lbagent.model.family import Family
from lbagent.model.stale_flows import KEEP
from lbagent.objects.records import Endpoint, EndpointSlice, Service, ServicePort, SlicePort
from lbagent.resolve import Options, Resolver
from lbagent.sync.loop import SyncLoop
from lbagent.targets.bpf.bpf_target import BpfTarget
from lbagent.targets.bpf.stale_backends import MAP
from tests.lab.netns import Stopwatch
from tests.sync.rig import SMALL, FixedPaths, ListSource, endpoints, make, running, service
from tests.targets.bpf.test_departures import add_flows

A, B = 1, 2
X, Y, Z = 11, 12, 13
TCP, UDP = L4Type.TCP, L4Type.UDP
FLAG_LIVE = 1


def of(number: int, word: int, proto: L4Type = TCP) -> Service:
    return replace(service(number, stale_flows_s=word), ports=(ServicePort("http", proto, 80),))


def hosts(number: int, *found: int, proto: L4Type = TCP) -> EndpointSlice:
    every = tuple(Endpoint(bytes([10, 1, 0, host])) for host in found)
    return replace(endpoints(number), ports=(SlicePort("http", proto, 8080),), endpoints=every)


def address(host: int, proto: L4Type = TCP) -> L3n4Addr:
    return L3n4Addr(bytes([10, 1, 0, host]), 8080, proto)


def backend(target: BpfTarget, host: int, proto: L4Type = TCP) -> Backend | None:
    return target.state.backends.get(address(host, proto))


def rows(maps: MemoryMaps) -> int:
    return len(maps.items(family_map(Family.IPV4, "backend")))


async def started(maps: MemoryMaps, *objects: Service | EndpointSlice) -> tuple[SyncLoop, BpfTarget, ListSource]:
    source = ListSource()
    loop, target, _ = make(maps, source)
    source.first_list(*objects)
    return loop, target, source


async def swept(target: BpfTarget, loop: SyncLoop, flows: dict[int, int], used: Sequence[L3n4Addr] = ()) -> None:
    """Report a sweep that began long enough after all changes."""
    await target.flows_were_counted(flows, time.monotonic() + 5, used)
    await loop.settled()


@pytest.mark.parametrize("proto", [TCP, UDP])
async def test_a_backend_that_is_kept_takes_no_new_flow_and_keeps_its_id(proto: L4Type) -> None:
    maps = MemoryMaps(SMALL)
    loop, target, source = await started(maps, of(A, KEEP, proto), hosts(A, X, Y, proto=proto))
    async with running(loop):
        await loop.settled()
        before = backend(target, X, proto)
        assert before is not None
        source.put(hosts(A, Y, proto=proto))
        await loop.settled()
        kept = backend(target, X, proto)
        assert kept is not None
        assert (kept.id, kept.state, kept.gone) == (before.id, BackendState.TERMINATING, True)
        (svc,) = (each for each in target.state.services if not each.wildcard)
        assert [each.address for each in svc.selectable] == [address(Y, proto)]
        assert [each.address for each in svc.slotless] == [address(X, proto)]
        assert rows(maps) == 2
        assert len(maps.items(MAP)) == 1
        assert not target.former.waiting, "it is a backend of the Service"
        await swept(target, loop, {kept.id: 1})
        assert backend(target, X, proto)
        await swept(target, loop, {})
        assert backend(target, X, proto) is None
        assert rows(maps) == 1
        assert not maps.items(MAP)


async def test_without_the_word_it_is_gone_at_once() -> None:
    maps = MemoryMaps(SMALL)
    loop, target, source = await started(maps, of(A, 0), hosts(A, X, Y))
    async with running(loop):
        await loop.settled()
        source.put(hosts(A, Y))
        await loop.settled()
        assert backend(target, X) is None
        assert rows(maps) == 1


async def test_a_sweep_from_before_ends_nothing_nor_do_sockets_let_it_go() -> None:
    loop, target, source = await started(MemoryMaps(SMALL), of(A, KEEP), hosts(A, X, Y))
    async with running(loop):
        await loop.settled()
        source.put(hosts(A, Y))
        await loop.settled()
        await target.flows_were_counted({}, time.monotonic(), ())
        await swept(target, loop, {}, [address(X)])
        assert backend(target, X)


async def test_a_drain_ends_by_itself() -> None:
    maps = MemoryMaps(SMALL)
    loop, target, source = await started(maps, of(A, 1), hosts(A, X, Y))
    async with running(loop):
        await loop.settled()
        source.put(hosts(A, Y))
        began = Stopwatch()
        await loop.settled()
        assert backend(target, X)
        while backend(target, X):
            generation = target.generation
            await target.changed_from(generation)
        assert began.real_s > 0.9
        assert began.s < 5
        assert rows(maps) == 1
        assert not maps.items(MAP)


async def test_it_comes_back_with_its_flows() -> None:
    maps = MemoryMaps(SMALL)
    loop, target, source = await started(maps, of(A, KEEP), hosts(A, X, Y))
    async with running(loop):
        await loop.settled()
        before, path = backend(target, X), bytes(target.shadow.paths[Family.IPV4].get(backend(target, X).id))  # type: ignore[union-attr]
        source.put(hosts(A, Y))
        await loop.settled()
        source.put(hosts(A, X, Y))
        await loop.settled()
        assert backend(target, X) == before
        assert before is not None
        assert bytes(target.shadow.paths[Family.IPV4].get(before.id)) == path, "the same generation: its flows stay"
        assert not maps.items(MAP)


@pytest.mark.parametrize("resets", [False, True])
async def test_flows_to_dead_nodes_end_if_they_are_reset(*, resets: bool) -> None:
    """The word is for endpoints that are gone from their slices, not for those whose node is dead."""
    paths, source = FixedPaths(), ListSource()
    target = BpfTarget.open(MemoryMaps(SMALL), paths, "me")
    resolver = Resolver(Options("me", keep_existing=True, resets_dead_nodes=resets))
    loop = SyncLoop(resolver, [source], [target])
    source.changed = loop.inbox.feed(source)
    piece = hosts(A, X, Y)
    source.first_list(
        of(A, KEEP), replace(piece, endpoints=(replace(piece.endpoints[0], node="n1"), piece.endpoints[1]))
    )
    async with running(loop):
        await loop.settled()
        loop.set_dead_nodes(frozenset({"n1"}))
        await loop.settled()
        assert bool(backend(target, X)) is not resets
        assert not len(target.stale)


@pytest.mark.parametrize("change", ["word", "service"])
async def test_a_word_or_a_service_that_goes_ends_it(change: str) -> None:
    maps = MemoryMaps(SMALL)
    loop, target, source = await started(maps, of(A, KEEP), hosts(A, X, Y))
    async with running(loop):
        await loop.settled()
        source.put(hosts(A, Y))
        await loop.settled()
        source.put(of(A, 0)) if change == "word" else source.drop(of(A, KEEP))
        await loop.settled()
        assert backend(target, X) is None
        assert not maps.items(MAP)


async def test_end_flows_ends_also_those_that_are_kept() -> None:
    loop, target, source = await started(MemoryMaps(SMALL), of(A, KEEP), hosts(A, X, Y))
    async with running(loop):
        await loop.settled()
        source.put(hosts(A, Y))
        await loop.settled()
        await loop.end_flows([address(X)], [target])
        assert backend(target, X) is None


async def test_the_service_of_a_flow_decides() -> None:
    """A keeps the backend, B does not; flows of B to it end as soon as no Service has it in its slices."""
    maps = MemoryMaps(SMALL)
    loop, target, source = await started(maps, of(A, KEEP), of(B, 0), hosts(A, X, Y), hosts(B, X, Z))
    async with running(loop):
        await loop.settled()
        services = {svc.name.name: svc.id for svc in target.state.services if not svc.wildcard}
        ident = backend(target, X).id  # type: ignore[union-attr]
        add_flows(maps, (TCP, services["s1"], ident), (TCP, services["s2"], ident))
        source.put(hosts(B, Z))
        await loop.settled()
        await target.former.resolve_unknown()
        assert not target.former.waiting, "the backend lives: its connections stay"
        source.put(hosts(A, Y))
        await loop.settled()
        await target.former.resolve_unknown()
        assert target.former.waiting == target.former.of_all == {(services["s2"], ident)}
        source.put(hosts(A, X, Y))
        await loop.settled()
        assert not target.former.waiting, "it is back: they stay"


async def test_the_rest_of_the_time_survives_a_restart() -> None:
    maps = MemoryMaps(SMALL)
    loop, target, source = await started(maps, of(A, 3), hosts(A, X, Y))
    async with running(loop):
        await loop.settled()
        source.put(hosts(A, Y))
        await loop.settled()
        left = Stopwatch()
        ident = backend(target, X).id  # type: ignore[union-attr]
    loop, target, source = await started(maps, of(A, 3), hosts(A, Y))
    async with running(loop):
        await loop.settled()
        kept = backend(target, X)
        assert kept is not None
        assert (kept.id, kept.gone) == (ident, True)
        while backend(target, X):
            await target.changed_from(target.generation)
        assert left.real_s > 2.5
        assert left.s < 8


async def test_what_left_while_no_agent_ran_is_kept() -> None:
    maps = MemoryMaps(SMALL)
    loop, target, _ = await started(maps, of(A, KEEP), hosts(A, X, Y))
    async with running(loop):
        await loop.settled()
    loop, target, _ = await started(maps, of(A, KEEP), hosts(A, Y))
    async with running(loop):
        await loop.settled()
        assert backend(target, X)
        assert len(maps.items(MAP)) == 1


async def test_an_untrusted_source_changes_nothing() -> None:
    maps = MemoryMaps(SMALL)
    loop, target, source = await started(maps, of(A, KEEP), hosts(A, X, Y))
    async with running(loop):
        await loop.settled()
        source.put(hosts(A, Y))
        await loop.settled()
    source = ListSource()
    loop, target, _ = make(maps, source)
    source.trusted = False
    async with running(loop):
        source.first_list()
        await loop.settled()
        assert rows(maps) == 2
        assert len(maps.items(MAP)) == 1
        source.trusted = True
        source.put(of(A, KEEP), hosts(A, Y))
        await loop.settled()
        assert backend(target, X)
        assert rows(maps) == 2


async def test_a_map_that_cannot_be_written_holds_nothing_back() -> None:
    """Flows go on; the failure is shown, and the map is written as soon as it can be."""

    class Failing(MemoryMaps):
        fails = True

        def put_many(self, map_name: str, items: Sequence[tuple[bytes, bytes]]) -> None:
            if map_name == MAP and self.fails:
                raise KernelError("update", errno.ENOMEM, map_name)
            super().put_many(map_name, items)

    maps = Failing(SMALL)
    loop, target, source = await started(maps, of(A, KEEP), of(B, 0), hosts(A, X, Y))
    async with running(loop):
        await loop.settled()
        source.put(hosts(A, Y), hosts(B, Z))
        await loop.settled()
        assert backend(target, X)
        assert backend(target, Z)
        assert MAP in target.error
        maps.fails = False
        target.wake.set()
        await loop.settled()
        assert len(maps.items(MAP)) == 1


async def test_those_that_left_first_make_room_for_new_backends() -> None:
    """All ids are in use: a new endpoint gets one of a backend that is gone, and the newest ones of these stay."""
    maps = MemoryMaps(replace_sizes(64))
    many = list(range(1, 64))
    loop, target, source = await started(maps, of(A, KEEP), hosts(A, *many))
    async with running(loop):
        await loop.settled()
        for keep in (60, 50):
            source.put(hosts(A, *many[:keep]))
            await loop.settled()
        assert len(target.stale) == 13
        source.put(hosts(A, *many[:50], 101, 102))
        await loop.settled()
        await loop.settled()
        assert {host for host in (101, 102) if backend(target, host)} == {101, 102}
        assert len(target.stale) == 11
        assert target.stale.evicted == 2
        gone = {61, 62, 63} - {host for host in (61, 62, 63) if backend(target, host)}
        assert len(gone) == 2, "those that left first"
        assert "raise --max-backends" in target.stale.problem


def replace_sizes(backends: int):  # type: ignore[no-untyped-def]
    import dataclasses

    return dataclasses.replace(SMALL, backends=backends)
