"""The loop: when it writes, when it must not, and failures."""

from __future__ import annotations

import asyncio
import errno
import logging

import msgspec
import pytest
from msgspec.structs import replace

from lbagent.errors import KernelError
from lbagent.maps.consistency import check
from lbagent.maps.dump import dump
from lbagent.maps.memory_maps import MemoryMaps
from lbagent.model.address import L3n4Addr
from lbagent.model.backend import BackendState
from lbagent.model.family import Family
from lbagent.model.path_info import PathInfo
from lbagent.model.state import State
from lbagent.objects.records import EndpointSlice, Node
from lbagent.resolve import Options, Resolver
from lbagent.sync import backoff, failures
from lbagent.sync.target_protocol import Desired, ObjectFacts
from lbagent.testing.faulty_maps import FaultyMaps, fail_often
from lbagent.testing.snapshot_target import SnapshotTarget
from tests.sync.rig import SMALL, ListSource, endpoints, make, make_loop, running, service


async def until(condition) -> None:  # type: ignore[no-untyped-def]
    async with asyncio.timeout(10):
        while not condition():  # noqa: ASYNC110 - nothing tells
            await asyncio.sleep(0.005)


async def test_nothing_is_written_before_every_source_has_its_first_list() -> None:
    maps = FaultyMaps(MemoryMaps(SMALL))
    quick, slow = ListSource("quick"), ListSource("slow")
    loop, target, _ = make(maps, quick, slow)
    async with running(loop):
        quick.first_list(service(1), endpoints(1, 1, 2))
        await asyncio.sleep(0.05)
        assert maps.writes == 0
        assert not target.ready.is_set()
        assert "slow" in loop.waiting
        slow.first_list(service(2), endpoints(2, 1))
        await asyncio.wait_for(target.ready.wait(), 5)
        assert loop.waiting == ""
    assert {str(name) for name in target.state.by_name} == {"default/s1", "default/s2"}
    assert check(maps, settled=True) == []


async def test_settled_means_in_the_maps() -> None:
    maps = MemoryMaps(SMALL)
    source = ListSource()
    loop, _, _ = make(maps, source)
    async with running(loop):
        source.first_list(service(1), endpoints(1, 1))
        await loop.settled()
        for host in range(2, 30):
            source.put(endpoints(1, *range(1, host + 1)))
            await loop.settled()
            assert len(maps.items("lb4_service")) == host + 2  # master, slots, the wildcard row
            assert check(maps, settled=True) == []


async def test_a_restart_with_nothing_to_change_writes_nothing() -> None:
    maps = MemoryMaps(SMALL)
    objects = [service(1), endpoints(1, 1, 2), service(2, affinity_timeout_s=60), endpoints(2, 3)]
    source = ListSource()
    loop, target, _ = make(maps, source)
    async with running(loop):
        source.first_list(*objects)
        await target.ready.wait()
    before = dump(maps)
    again = FaultyMaps(maps)
    source = ListSource()
    loop, target, _ = make(again, source)
    async with running(loop):
        source.first_list(*reversed(objects))
        await target.ready.wait()
    assert again.writes == 0
    assert dump(maps) == before


async def test_what_went_while_no_agent_ran_is_taken_away_and_ids_stay() -> None:
    maps = MemoryMaps(SMALL)
    source = ListSource()
    loop, target, _ = make(maps, source)
    async with running(loop):
        source.first_list(service(1), endpoints(1, 1, 2), service(2), endpoints(2, 3))
        await target.ready.wait()
    kept = [line for line in dump(maps) if "10.96.0.2" in line]
    source = ListSource()
    loop, target, _ = make(maps, source)
    async with running(loop):
        source.first_list(service(2), endpoints(2, 3))
        await target.ready.wait()
    assert [line for line in dump(maps) if line.startswith(("SVC", "REV"))] == kept
    assert check(maps, settled=True) == []


async def test_a_source_that_cannot_vouch_for_its_list_takes_nothing_away() -> None:
    maps = MemoryMaps(SMALL)
    source = ListSource()
    loop, target, _ = make(maps, source)
    async with running(loop):
        source.first_list(service(1), endpoints(1, 1))
        await target.ready.wait()
    before = dump(maps)
    source = ListSource()
    source.trusted = False  # an empty folder, a list that failed
    loop, target, _ = make(maps, source)
    async with running(loop):
        source.first_list()
        await asyncio.wait_for(target.first_pass.wait(), 5)
        assert not target.ready.is_set()
        assert "list" in target.waiting
        assert dump(maps) == before
        source.trusted = True
        source.put(service(2), endpoints(2, 1))
        await asyncio.wait_for(target.ready.wait(), 5)
        assert target.waiting == ""
    assert {str(name) for name in target.state.by_name} == {"default/s2"}


async def test_an_untrusted_source_over_empty_maps_holds_nothing_up() -> None:
    good, doubtful = ListSource("good"), ListSource("doubtful")
    doubtful.trusted = False
    loop, target, _ = make(MemoryMaps(SMALL), good, doubtful)
    async with running(loop):
        good.first_list(service(1), endpoints(1, 1))
        doubtful.first_list()
        await asyncio.wait_for(target.ready.wait(), 5)


async def test_a_storm_of_changes_takes_few_passes() -> None:
    source = ListSource()
    loop, target, _ = make(MemoryMaps(SMALL), source)
    async with running(loop):
        source.first_list(service(1), endpoints(1, 1))
        await loop.settled()
        passes = target.counts.syncs
        for host in range(2, 200):
            source.put(endpoints(1, host))
        await loop.settled()
    assert target.counts.syncs == passes + 1


async def test_a_full_map_stops_one_service_and_names_what_to_raise() -> None:
    maps = MemoryMaps(SMALL)
    source = ListSource()
    loop, target, _ = make(maps, source)
    async with running(loop):
        source.first_list(service(1), endpoints(1, *range(1, 101)))
        await loop.settled()
        source.put(service(2), endpoints(2, *range(1, 201)))  # 102 + 202 of 256
        await loop.settled()
        assert {frontend.address for frontend in target.failing} == {b"\x0a\x60\0\x02"}
        error = str(next(iter(target.failing.values())).error)
        assert "lb4_service" in error
        assert "--max-service-slots" in error
        assert check(maps) == []
        source.drop(service(1), endpoints(1, *range(1, 101)))
        await loop.settled()
        await until(lambda: not target.failing)  # its own next try finds room
        assert check(maps, settled=True) == []
    assert sum("ADDR=10.96.0.2:80" in line and line.startswith("SVC") for line in dump(maps)) == 201


async def test_a_service_that_failed_and_went_is_forgotten(caplog: pytest.LogCaptureFixture) -> None:
    """A deleted frontend is no longer a failure, without another attempt; a repeated failure is logged once."""
    caplog.set_level(logging.INFO)
    maps = MemoryMaps(SMALL)
    source = ListSource()
    loop, target, _ = make(maps, source)
    async with running(loop):
        source.first_list(service(1), endpoints(1, *range(1, 101)))
        await loop.settled()
        source.put(service(2), endpoints(2, *range(1, 201)))
        await until(lambda: target.counts.errors >= 2)
        lines = len(caplog.records)
        await until(lambda: target.counts.errors >= 4)
        assert len(caplog.records) == lines
        source.drop(service(2), endpoints(2, *range(1, 201)))
        await loop.settled()
        assert not target.failing
        assert not target.shadow.dirty
        assert check(maps, settled=True) == []


async def test_it_gets_there_although_one_write_in_ten_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(failures, "delays", lambda: backoff.delays(0.01, 0.05))
    inner = MemoryMaps(SMALL)
    maps = FaultyMaps(inner)
    source = ListSource()
    loop, target, _ = make(maps, source)
    maps.before = fail_often(0.1, 4)
    async with running(loop):
        source.first_list(*[o for n in range(1, 9) for o in (service(n), endpoints(n, 1, 2, 3))])
        for turn in range(10):
            source.put(endpoints(1 + turn % 8, *range(1, 2 + turn % 5)))
            await asyncio.sleep(0.02)
            assert check(inner) == []
        await until(lambda: not target.failing and not target.error and not target.shadow.dirty)
        maps.before = None
        source.put(service(20), endpoints(20, 1))
        await loop.settled()
        await until(lambda: not target.failing and not target.error)
    assert check(inner, settled=True) == []
    assert target.counts.errors > 0


async def test_a_service_that_always_fails_holds_up_nobody_and_is_tried_less_and_less() -> None:
    inner = MemoryMaps(SMALL)
    tries = []

    def before(_: int, map_name: str) -> None:
        if map_name == "lb_affinity_match":
            tries.append(asyncio.get_running_loop().time())
            raise KernelError("update", errno.ENOMEM, map_name)

    source = ListSource()
    loop, target, _ = make(FaultyMaps(inner, before), source)
    async with running(loop):
        source.first_list(service(1, affinity_timeout_s=60), endpoints(1, 1))
        for host in range(1, 60):
            source.put(service(2), endpoints(2, *range(1, host + 1)))
            await loop.settled()
            await asyncio.sleep(0.01)
        assert len(inner.items("lb4_service")) >= 61
        assert 1 < len(tries) < 8
        assert len(target.failing) == 1
        source.drop(service(1), endpoints(1, 1))
        await loop.settled()
        await until(lambda: not target.failing)
    assert check(inner, settled=True) == []


async def test_changed_ways_are_path_writes_only() -> None:
    maps = FaultyMaps(MemoryMaps(SMALL))
    written: list[str] = []
    maps.before = lambda _, name: written.append(name)
    source = ListSource()
    loop, target, paths = make(maps, source)
    async with running(loop):
        source.first_list(service(1), endpoints(1, 1, 2))
        await loop.settled()
        written.clear()
        paths.info = PathInfo(b"\x0a\0\0\1", 7, 1400, False, False)
        target.paths_changed()
        await loop.settled()
    assert set(written) == {"lb4_path"}
    assert len(written) == 2
    assert check(maps.inner, settled=True) == []


async def test_the_generation_moves_and_can_be_waited_for() -> None:
    source = ListSource()
    loop, target, _ = make(MemoryMaps(SMALL), source)
    async with running(loop):
        source.first_list(service(1), endpoints(1, 1))
        await loop.settled()
        now = target.state.generation
        waiter = asyncio.create_task(target.changed_from(now))
        await asyncio.sleep(0.01)
        assert not waiter.done()
        source.put(endpoints(1, 1, 2))
        assert await asyncio.wait_for(waiter, 5) > now


async def test_what_a_stranger_changed_is_put_right() -> None:
    maps = MemoryMaps(SMALL)
    source = ListSource()
    loop, target, _ = make(maps, source)
    async with running(loop):
        source.first_list(service(1, affinity_timeout_s=60), endpoints(1, 1, 2), service(2), endpoints(2, 3))
        await loop.settled()
        before = dump(maps)
        assert await target.resync() == []
        for name in ("lb4_service", "lb4_backend", "lb_affinity_match"):
            key = maps.items(name)[0][0]
            maps.delete_many(name, [key])
            assert dump(maps) != before
            assert await target.resync()
            await loop.settled()
            assert dump(maps) == before
        stranger = next(item for item in maps.items("lb4_service") if item[0][6:8] == b"\0\0")  # a master
        maps.put_many("lb4_service", [(b"\xc0\0\2\1" + stranger[0][4:], stranger[1])])
        assert any("192.0.2.1" in str(each) for each in await target.resync())
        await loop.settled()
        assert dump(maps) == before
    assert check(maps, settled=True) == []


async def test_what_is_wrong_with_objects_together_is_said_until_it_is_mended(caplog: pytest.LogCaptureFixture) -> None:
    source = ListSource()
    loop, _, _ = make(MemoryMaps(SMALL), source)
    first = service(1)
    second = msgspec.structs.replace(first, name="also1", created=2.0)  # the same address and port
    async with running(loop):
        source.first_list(first, endpoints(1, 1), second)
        await loop.settled()
        assert [message.subject for message in loop.messages] == ["Service default/also1"]
        source.put(endpoints(1, 1, 2))
        await loop.settled()
        source.drop(second)
        await loop.settled()
        assert loop.messages == ()
        source.put(second)
        await loop.settled()
        assert [message.subject for message in loop.messages] == ["Service default/also1"]
    said = [record for record in caplog.records if record.message == "object refused"]
    assert len(said) == 2


class Asked(SnapshotTarget):
    """Records what it is given; the test sets `retains`."""

    def __init__(self, *, retains: bool = False) -> None:
        super().__init__("asked")
        self.retains = retains
        self.given: list[Desired] = []
        self.watched = asyncio.Event()

    async def reconcile(self, desired: Desired) -> None:
        self.given.append(desired)
        await super().reconcile(desired)

    async def write(self, state: State) -> None:
        pass

    async def watch(self) -> None:
        self.watched.set()


async def test_a_source_without_objects_is_a_list_too() -> None:
    source, target = ListSource(), Asked()
    loop = make_loop([source], target)
    assert loop.waiting == ""
    async with running(loop):
        source.synced.set()  # it never had anything to tell
        await asyncio.wait_for(target.ready.wait(), 10)
        assert target.watched.is_set()
    assert target.given[0].state.services == ()


async def test_facts_about_objects_are_given_where_a_target_needs_them() -> None:
    """A slice without endpoints changes no State, but the facts."""
    source, target, other = ListSource(), Asked(), Asked()
    target.needs_facts = True
    loop = make_loop([source], target, other)
    async with running(loop):
        source.first_list(
            service(1), Node("me", internal_ips=(b"\x0a\0\0\1",)), Node("far", internal_ips=(b"\x0a\0\0\2",))
        )
        await loop.settled()
        source.put(endpoints(1))
        await loop.settled()
    before, after = (given.facts for given in target.given)
    assert before == ObjectFacts((b"\x0a\0\0\1",), frozenset({b"\x0a\0\0\1", b"\x0a\0\0\2"}), frozenset())
    assert after == replace(before, services_with_endpoints=frozenset({"default/s1"}))
    assert target.given[0].state.generation == target.given[1].state.generation
    loop = make_loop([source := ListSource()], other := Asked())
    async with running(loop):
        source.first_list(service(1), endpoints(1, 5))
        await loop.settled()
    assert [given.facts for given in other.given] == [None]


async def test_other_options_hold_from_the_next_pass_on() -> None:
    """The node has another name: another backend is local."""
    source, target = ListSource(), Asked()
    loop = make_loop([source], target)
    async with running(loop):
        here = endpoints(1, 1, 2)
        nodes = zip(here.endpoints, ("me", "you"), strict=True)
        placed = msgspec.structs.replace(
            here, endpoints=tuple(msgspec.structs.replace(each, node=node) for each, node in nodes)
        )
        source.first_list(service(1), placed)
        await loop.settled()
        loop.replace_resolver(Resolver(Options("you", keep_existing=True)))
        await loop.settled()
        source.put()
        await loop.settled()
    local = [
        sorted(found.address.address[3] for found in each.state.backends.values() if found.local)
        for each in target.given
    ]
    assert local == [[1], [2]]
    assert [each.state.generation for each in target.given] == [1, 2]


async def test_other_options_take_no_frontend_from_the_service_that_is_served() -> None:
    """Neither has a creationTimestamp; a resolver with new options starts empty, and the copy's name sorts first."""
    source, target = ListSource(), Asked()
    loop = make_loop([source], target)
    changes = 0

    def changed() -> None:
        nonlocal changes
        changes += 1

    loop.on_owners = changed
    served = msgspec.structs.replace(service(1), created=0.0)
    async with running(loop):
        source.first_list(served, endpoints(1, 1))
        await loop.settled()
        source.put(msgspec.structs.replace(served, name="a-copy"))
        await loop.settled()
        before = changes
        source.put(endpoints(1, 1, 2))
        await loop.settled()
        assert changes == before == 2, "endpoints change nothing about who has a frontend"
        for name in ("you", "they"):
            loop.replace_resolver(Resolver(Options(name, keep_existing=True)))
            await loop.settled()
            assert {str(svc.name) for svc in loop.state.services} == {"default/s1"}
            assert {(each.loser, each.winner) for each in loop.contests} == {("default/a-copy", "default/s1")}
            assert {*loop.owned_frontends().by_service()} == {"default/s1", "default/a-copy"}
        source.put(endpoints(1, 1))
        await loop.settled()
    assert {str(svc.name) for svc in loop.state.services} == {"default/s1"}


@pytest.mark.parametrize(
    ("trusted", "retains", "given"),
    [(True, True, False), (False, True, True), (False, False, False), (True, False, False)],
)
async def test_where_objects_come_from_is_told_while_it_matters(trusted: bool, retains: bool, given: bool) -> None:
    """From the first untrusted source on, while a target retains: also when all are trusted again."""
    source, target = ListSource(), Asked(retains=retains)
    source.trusted = trusted
    loop = make_loop([source], target)
    async with running(loop):
        source.first_list(service(1), endpoints(1, 1))
        await loop.settled()
        assert [each.provenance is not None for each in target.given] == [given]
        source.put()
        await loop.settled()
        passes = len(target.given)
        assert passes == 1 + given, "without a change only the provenance is new"
        source.trusted = True
        source.put()
        await loop.settled()
        assert [each.provenance is not None for each in target.given] == [given] * len(target.given)
        assert len(target.given) == passes + given
        if given:
            assert [each.provenance.untrusted for each in target.given] == [("list",), ("list",), ()]  # type: ignore[union-attr]
            assert len({each.state.generation for each in target.given}) == 1


async def test_flows_of_a_backend_are_ended_by_its_leave_and_return() -> None:
    """The path record of the backend dies and comes back with another generation: what its flows had is gone."""
    source = ListSource()
    loop, target, _ = make(None, source)
    backend = L3n4Addr.parse("10.1.1.1:8080/TCP")
    states: list[bool] = []
    loop.runners[0].on_in_force.append(lambda _generation, _seconds: states.append(backend in target.state.backends))
    async with running(loop):
        source.first_list(service(1), endpoints(1, 1, 2))
        await asyncio.sleep(0)
        await loop.settled()
        before = target.state
        path = target.shadow.paths[Family.IPV4].get(before.backends[backend].id)
        await loop.end_flows([backend], [target])
    assert states == [True, False, True]
    now = target.state.backends[backend].id
    assert (now, target.shadow.paths[Family.IPV4].get(now)) != (before.backends[backend].id, path)
    assert [svc.frontend for svc in target.state.services] == [svc.frontend for svc in before.services]
    assert target.state.backends.keys() == before.backends.keys()


def _on_nodes(number: int, **nodes: int) -> EndpointSlice:
    """Return a slice with an endpoint on each node."""
    piece = endpoints(number, *nodes.values())
    found = [replace(each, node=node) for each, node in zip(piece.endpoints, nodes, strict=True)]
    return replace(piece, endpoints=tuple(found))


def _selectable(target: SnapshotTarget, number: int) -> set[str]:
    (groups,) = {svc.selectable for svc in target.state.services if svc.name.name == f"s{number}" and not svc.wildcard}
    return {str(backend.address.address[3]) for backend in groups}


async def test_endpoints_of_a_dead_node_take_no_new_flows_until_it_lives() -> None:
    source = ListSource()
    loop, target, _ = make(None, source)
    alone = L3n4Addr.parse("10.1.1.1:8080/TCP")
    async with running(loop):
        source.first_list(service(1), _on_nodes(1, n1=1, n2=2), service(2), _on_nodes(2, n1=1))
        await asyncio.sleep(0)
        await loop.settled()
        ids = {address: backend.id for address, backend in target.state.backends.items()}
        loop.set_dead_nodes(frozenset({"n1"}))
        await loop.settled()
        assert _selectable(target, 1) == {"2"}
        assert _selectable(target, 2) == {"1"}, "no other endpoint of the Service is left"
        assert target.state.backends[alone].id == ids[alone], "its flows go on"
        assert target.state.backends[alone].state is BackendState.QUARANTINED
        assert loop.causes.between(0, loop.state.generation).endswith("dead nodes: n1")
        source.put(_on_nodes(3, n1=1, n2=2), service(3))  # objects that come later
        await loop.settled()
        assert _selectable(target, 3) == {"2"}
        loop.replace_resolver(Resolver(Options("me", keep_existing=True, max_frontends=99)))
        await loop.settled()
        assert _selectable(target, 1) == {"2"}, "other options change nothing about it"
        objects, state = await loop.captured()
        assert (await loop.resolve_from_start(objects, state)).services == state.services
        loop.set_dead_nodes(frozenset())
        await loop.settled()
    assert _selectable(target, 1) == {"1", "2"}
    assert _selectable(target, 3) == {"1", "2"}
    assert {address: target.state.backends[address].id for address in ids} == ids


async def test_flows_to_a_dead_node_end_where_they_are_to_be_reset() -> None:
    """The backend leaves the maps, as one whose endpoint is gone: so its path ends."""
    source = ListSource()
    loop, target, _ = make(None, source)
    loop.replace_resolver(Resolver(Options("me", keep_existing=True, resets_dead_nodes=True)))
    alone, shared = L3n4Addr.parse("10.1.1.1:8080/TCP"), L3n4Addr.parse("10.1.2.1:8080/TCP")
    async with running(loop):
        source.first_list(service(1), _on_nodes(1, n1=1, n2=2), service(2), _on_nodes(2, n1=1))
        await asyncio.sleep(0)
        await loop.settled()
        loop.set_dead_nodes(frozenset({"n1"}))
        await loop.settled()
        assert alone not in target.state.backends
        assert shared in target.state.backends
        assert _selectable(target, 2) == {"1"}
        loop.set_dead_nodes(frozenset())
        await loop.settled()
    assert _selectable(target, 1) == {"1", "2"}


async def test_the_first_pass_waits_for_the_dead_nodes() -> None:
    source = ListSource()
    loop, target, _ = make(None, source)
    known = asyncio.Event()

    async def wait() -> None:
        await known.wait()

    loop.before_first_pass = wait
    async with running(loop):
        source.first_list(service(1), _on_nodes(1, n1=1, n2=2))
        await asyncio.sleep(0.05)
        assert not target.state.services
        loop.set_dead_nodes(frozenset({"n1"}))
        known.set()
        await loop.settled()
        assert _selectable(target, 1) == {"2"}
