"""What the target does beside the State: figures, paths that change, ids that run out, the look at the maps from time to time."""

from __future__ import annotations

import asyncio
import dataclasses
import errno
import logging
from collections import Counter

import pytest
from msgspec.structs import replace

from lbagent.errors import KernelError
from lbagent.maps.consistency import check
from lbagent.maps.layout import LB4_PATH
from lbagent.maps.lbmaps import map_full
from lbagent.maps.memory_maps import MemoryMaps
from lbagent.maps.specs import Sizes
from lbagent.model.backend import BackendState
from lbagent.model.family import Family
from lbagent.model.path_info import PathInfo
from lbagent.model.state import State
from lbagent.render.renderer_types import Difference
from lbagent.sync import backoff, failures
from lbagent.sync.target_protocol import Desired, Provenance
from lbagent.targets.bpf.bpf_target import BpfTarget
from lbagent.testing.faulty_maps import FaultyMaps, fail_at
from lbagent.testing.snapshot_target import SnapshotTarget
from tests.sync.rig import SMALL, FixedPaths, ListSource, endpoints, make, make_loop, running, service
from tests.sync.test_loop import until
from tests.targets.bpf.plans import backends_of


@pytest.fixture(autouse=True)
def _short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(failures, "delays", lambda: backoff.delays(0.02, 0.1))


async def test_figures() -> None:
    source = ListSource()
    loop, target, _ = make(MemoryMaps(SMALL), source)
    async with running(loop):
        source.first_list(service(1), endpoints(1, 1, 2))
        await loop.settled()
        first = target.counts.writes
        assert first > 0
        assert target.counts.last_duration_s > 0
        assert target.backend_states() == Counter({BackendState.ACTIVE: 2})
        assert (target.frontends, target.backends, target.restored) == (1, 2, 2), "the wildcard row is no frontend"
        assert target.usage()["lb4_service"] == (4, 256)
        source.put(endpoints(1, 1))
        await loop.settled()
        assert target.counts.writes > first
        assert target.counts.syncs == 2
        assert target.backend_states() == Counter({BackendState.ACTIVE: 1})


async def test_only_new_backends_and_changed_paths_are_asked_for() -> None:
    source = ListSource()
    loop, target, paths = make(MemoryMaps(SMALL), source)
    async with running(loop):
        source.first_list(service(1), endpoints(1, 1, 2, 3))
        await loop.settled()
        assert paths.asked == 3
        for host in (4, 5):
            paths.asked = 0
            source.put(endpoints(1, *range(1, host + 1)))
            await loop.settled()
            assert paths.asked == 1
        paths.asked = 0
        target.paths_changed()
        await loop.settled()
        assert paths.asked == 5
        source.put(endpoints(1, 1, 2, 3, 4, 5, 6))
        await loop.settled()
        assert paths.asked == 5 + 1


async def test_a_path_that_could_not_be_written_is_written_later() -> None:
    maps, source = FaultyMaps(MemoryMaps(SMALL)), ListSource()
    loop, target, paths = make(maps, source)
    async with running(loop):
        source.first_list(service(1), endpoints(1, 1, 2))
        await loop.settled()
        size = maps.inner.specs["lb4_path"].value_size
        with maps.window("lb4_path", 0, size) as view:
            old = bytes(view)
        left = [2]

        def refuse(_: int, name: str) -> None:
            if left[0]:
                left[0] -= 1
                raise KernelError("update", errno.ENOMEM, name)

        maps.before = refuse
        paths.info = PathInfo(b"\x0a\0\0\1", 9, 1400, False, False)
        target.paths_changed()
        await until(lambda: target.error)
        assert "lb4_path" in target.error
        await until(lambda: not target.error)
        with maps.window("lb4_path", 0, size) as view:
            assert bytes(view) != old
    assert left == [0]
    assert check(maps.inner, settled=True) == []


class SlowNeighbours(FixedPaths):
    """The next hop is found while the target waits."""

    def __init__(self) -> None:
        super().__init__()
        self.waits = 0

    async def resolve_neighbours(self) -> bool:
        self.waits += 1
        self.info = PathInfo(b"\x0a\0\0\1", 40 + self.waits, 1500, False, False)
        return True


async def test_before_a_new_backend_is_served_its_neighbour_is_waited_for() -> None:
    """Not before the very first plan, when no packet can come, and not where nothing is to be written."""
    maps, source, paths = MemoryMaps(SMALL), ListSource(), SlowNeighbours()
    target = BpfTarget.open(maps, paths, "me")
    loop = make_loop([source], target)

    def next_hops() -> list[int]:
        records = [target.shadow.paths[Family.IPV4].get(ident) for ident in target.shadow.paths[Family.IPV4].used()]
        return sorted(
            LB4_PATH.unpack(record)[[name for name, _ in LB4_PATH.fields].index("nexthop")] for record in records
        )

    async with running(loop):
        source.first_list(service(1), endpoints(1, 1))
        await loop.settled()
        assert paths.waits == 0
        source.put(endpoints(1, 1, 2))
        await loop.settled()
        assert paths.waits == 1
        target.wake.set()  # a pass with nothing to write
        await loop.settled()
        assert paths.waits == 1
    assert check(maps, settled=True) == []
    assert next_hops() == [1, 41]


async def test_a_service_for_which_there_are_no_ids_fails_until_there_are() -> None:
    small = Sizes(
        flow4=1024, flow6=1024, snat4=1024, snat6=1024, services=256, backends=8, source_ranges=64, maglev_size=251
    )
    maps, source = MemoryMaps(small), ListSource()
    loop, target, _ = make(maps, source)
    async with running(loop):
        source.first_list(service(1), endpoints(1, 1, 2, 3, 4), service(2), endpoints(2, 1, 2, 3, 4, 5))
        await loop.settled()
        assert [frontend.address[3] for frontend in target.failing] == [2]
        assert "ids are in use" in str(next(iter(target.failing.values())).error)
        assert check(maps, settled=True) == []
        source.drop(service(1), endpoints(1, 1, 2, 3, 4))
        await loop.settled()
        await until(lambda: not target.failing)
    assert check(maps, settled=True) == []


async def test_ids_of_an_earlier_agent_are_free_once_its_services_are_gone() -> None:
    small = Sizes(
        flow4=1024, flow6=1024, snat4=1024, snat6=1024, services=256, backends=8, source_ranges=64, maglev_size=251
    )
    maps, source = MemoryMaps(small), ListSource()
    loop, target, _ = make(maps, source)
    async with running(loop):
        source.first_list(service(1), endpoints(1, 1, 2, 3, 4))
        await loop.settled()
    source = ListSource()
    loop, target, _ = make(maps, source)
    async with running(loop):
        source.first_list(service(2), endpoints(2, 1, 2, 3, 4, 5))
        await until(lambda: target.ready.is_set() and target.frontends == 1 and not target.failing)
    assert check(maps, settled=True) == []


async def test_the_maps_are_looked_at_from_time_to_time_once_it_is_ready(caplog: pytest.LogCaptureFixture) -> None:
    _, target, _ = make(MemoryMaps(SMALL), ListSource())
    target.resync_s = 0.001
    looks: list[bool] = []

    async def resync() -> list[Difference]:
        looks.append(target.ready.is_set())
        if len(looks) == 2:
            raise KernelError("look up", errno.EPERM, "lb4_service")
        return []

    target.resync = resync  # type: ignore[method-assign]
    watching = asyncio.create_task(target.watch())
    try:
        await asyncio.sleep(0.05)
        assert looks == []
        target.ready.set()
        await until(lambda: len(looks) > 3)
    finally:
        watching.cancel()
    assert all(looks)
    said = [record for record in caplog.records if record.levelno == logging.ERROR]
    assert [record.message for record in said] == ["the maps could not be compared"]


class CountedPaths(FixedPaths):
    """Counts how often paths were planned."""

    def __init__(self) -> None:
        super().__init__()
        self.planned = 0

    def paths_planned(self) -> None:
        self.planned += 1


async def test_a_target_that_has_done_nothing() -> None:
    target = BpfTarget.open(MemoryMaps(SMALL), FixedPaths(), "me")
    assert (target.waiting, target.error, target.retained, target.restored) == ("", "", 0, 0)
    assert (target.generation, target.retains, target.retry_at(), dict(target.failing)) == (0, False, None, {})
    assert (target.frontends, target.backends, list(target.restored_backends())) == (0, 0, [])
    assert (target.counts.syncs, target.counts.writes, target.counts.errors) == (0, 0, 0)
    assert (target.current_state.generation, target.current_state.services) == (0, ())
    assert target.wanted.services == ()
    assert not target.wake.is_set()


async def test_backends_of_an_earlier_agent_are_named_until_all_is_in_force() -> None:
    maps = MemoryMaps(SMALL)
    for _ in range(2):
        source = ListSource()
        loop, target, _ = make(maps, source)
        async with running(loop):
            before = {address.address[3] for address in target.restored_backends()}
            source.first_list(service(1), endpoints(1, 1, 2))
            await loop.settled()
            assert list(target.restored_backends()) == []
    assert before == {1, 2}


async def test_each_pass_goes_on_with_what_it_knows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Maps are read at the start and never again while no other process changes them; restored ids are released once."""
    source, paths = ListSource(), CountedPaths()
    target = BpfTarget.open(MemoryMaps(SMALL), paths, "me")
    loop = make_loop([source], target)
    released = []
    release = target._ids.release_restored
    monkeypatch.setattr(target._ids, "release_restored", lambda: released.append(1) or release())
    shadow = target.shadow
    async with running(loop):
        source.first_list(service(1), endpoints(1, 1, 2))
        await loop.settled()
        for hosts in ((1,), (1, 2, 3)):
            source.put(endpoints(1, *hosts))
            await loop.settled()
        assert await target.resync() == []
        assert not target.wake.is_set()
        assert target.shadow is shadow
        syncs = target.counts.syncs
        target.wake.set()
        await loop.settled()
        assert target.counts.syncs == syncs == 3, "a pass with nothing to do is none"
        assert paths.planned == 4
        assert 0 < target.counts.last_duration_s < 60
    assert released == [1]


async def test_figures_count_what_paths_take() -> None:
    source = ListSource()
    loop, target, paths = make(MemoryMaps(SMALL), source)
    async with running(loop):
        source.first_list(service(1), endpoints(1, 1, 2))
        await loop.settled()
        writes = target.counts.writes
        paths.info = PathInfo(b"\x0a\0\0\1", 9, 1400, False, False)
        target.paths_changed()
        await loop.settled()
        assert (target.counts.syncs, target.counts.writes) == (2, writes + 2)


async def test_while_the_maps_are_read_again_the_state_is_the_last_one() -> None:
    maps, source = MemoryMaps(SMALL), ListSource()
    loop, target, _ = make(maps, source)
    async with running(loop):
        source.first_list(service(1), endpoints(1, 1))
        await loop.settled()
    maps.delete_many("lb4_backend", [key for key, _ in maps.items("lb4_backend")])
    assert await target.resync()
    assert target.shadow.needs_full_sync
    assert target.wake.is_set()
    assert target.current_state is target.state


async def test_before_the_first_pass_what_the_maps_hold_is_read_once() -> None:
    maps, source = MemoryMaps(SMALL), ListSource()
    loop, _, _ = make(maps, source)
    async with running(loop):
        source.first_list(service(1), endpoints(1, 1))
        await loop.settled()
    _, again, _ = make(maps, ListSource())
    assert len(again.current_state.services) == 2
    assert again.current_state.generation == 0
    assert again.current_state is again.current_state


async def test_paths_that_are_about_to_be_written_are_no_difference() -> None:
    maps, source = MemoryMaps(SMALL), ListSource()
    loop, target, paths = make(maps, source)
    async with running(loop):
        source.first_list(service(1), endpoints(1, 1))
        await loop.settled()
    paths.info = PathInfo(b"\x0a\0\0\1", 9, 1400, False, False)
    assert len(await target.differences()) == 1
    target.paths_changed()
    assert await target.differences() == []
    target._paths_changed = False
    given = paths.path

    def meanwhile(backend: object) -> PathInfo:
        target.state = replace(target.state, generation=target.state.generation + 1)
        return given(backend)

    paths.path = meanwhile  # type: ignore[method-assign]
    assert await target.differences() == [], "a pass changed the State during the look"


async def test_a_pass_that_broke_off_leaves_nothing_that_is_not_wanted_any_more() -> None:
    """Of what was written before the exception the Shadow knows nothing: the maps are read again."""
    for number in range(3, 40, 4):
        inner, source = MemoryMaps(SMALL), ListSource()
        maps = FaultyMaps(inner)
        loop, target, _ = make(maps, source)
        task = asyncio.create_task(loop.run())
        source.first_list(service(1), endpoints(1, 1))
        await loop.settled()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        full = target.wanted
        maps.before, maps.writes = fail_at(number, OSError(5, "Input/output error")), 0
        other, more = ListSource(), [obj for n in range(2, 5) for obj in (service(n), endpoints(n, 1, 2))]
        grown = make_loop([other], Wanted())
        task = asyncio.create_task(grown.run())
        other.first_list(service(1), endpoints(1, 1), *more)
        await grown.settled()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        with pytest.raises(OSError, match="Input"):
            await target.reconcile(Desired(grown.state))
        assert len(inner.items("lb4_service")) >= 3
        await target.reconcile(Desired(full))
        assert len(inner.items("lb4_service")) == 3
        assert len(inner.items("lb4_reverse_nat")) == 1
        assert len(inner.items("lb4_backend")) == 1
        assert check(inner, settled=True) == []
        shadow = target.shadow
        await target.reconcile(Desired(full))
        assert target.shadow is shadow


class Wanted(SnapshotTarget):
    """Only asks for States."""

    def __init__(self) -> None:
        super().__init__("wanted")
        self.given: list[Desired] = []

    async def reconcile(self, desired: Desired) -> None:
        self.given.append(desired)
        await super().reconcile(desired)

    async def write(self, state: State) -> None:
        pass


async def test_what_could_not_be_taken_away_is_taken_away_later_whatever_comes_between() -> None:
    inner, source = MemoryMaps(SMALL), ListSource()
    broken = False

    def before(_: int, name: str) -> None:
        if broken and name == "lb4_reverse_nat":
            raise KernelError("update", errno.ENOMEM, name)

    loop, target, _ = make(FaultyMaps(inner, before), source)
    async with running(loop):
        source.first_list(service(1), endpoints(1, 1), service(2), endpoints(2, 1))
        await loop.settled()
        broken = True
        source.drop(service(1), endpoints(1, 1))
        await loop.settled()
        for host in (2, 3):
            source.put(endpoints(2, 1, host))
            await loop.settled()
        assert [frontend.address[3] for frontend in target.failing] == [1]
        assert len(inner.items("lb4_reverse_nat")) == 2
        broken = False
        await until(lambda: not target.failing)
        assert len(inner.items("lb4_reverse_nat")) == 1
    assert check(inner, settled=True) == []


async def test_a_frontend_that_is_wanted_as_it_is_again_fails_no_more() -> None:
    source = ListSource()
    loop, target, _ = make(MemoryMaps(replace_sizes(services=8)), source)
    async with running(loop):
        source.first_list(service(1), endpoints(1, 1, 2))
        await loop.settled()
        source.put(endpoints(1, *range(1, 12)))
        await loop.settled()
        assert len(target.failing) == 1
        assert target.counts.errors >= 1
        source.put(endpoints(1, 1, 2))
        await loop.settled()
        await until(lambda: not target.failing)
        source.put(endpoints(1, *range(1, 12)))
        await loop.settled()
        assert len(target.failing) == 1
        source.drop(service(1), endpoints(1))
        await loop.settled()
        assert not target.failing, "no State has it any more"


def replace_sizes(**change: int) -> Sizes:
    return dataclasses.replace(SMALL, **change)


async def test_plans_are_logged_with_what_they_did(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    source = ListSource()
    loop, target, _ = make(MemoryMaps(replace_sizes(services=4)), source)
    async with running(loop):
        source.first_list(service(1), endpoints(1, 1, 2))
        await loop.settled()
        target.wake.set()
        await loop.settled()
        source.put(service(2), endpoints(2, *range(1, 12)))
        await loop.settled()
    logged = [record for record in caplog.records if record.message == "plan applied"]
    assert [record.levelno for record in (logged[0], logged[-1])] == [logging.INFO, logging.DEBUG]
    assert [vars(record)["failed"] for record in (logged[0], logged[-1])] == [0, 2], "its address and its port"


async def test_a_target_that_is_ready_begins_to_retain_nothing() -> None:
    """Another target may still be given the provenance."""
    maps, source = MemoryMaps(SMALL), ListSource()
    loop, target, _ = make(maps, source)
    async with running(loop):
        source.first_list(service(1), endpoints(1, 1))
        await loop.settled()
    nothing = Desired(State(9), Provenance(("folder",), (), (), {}))
    await target.reconcile(nothing)
    assert maps.items("lb4_service") == []
    assert (target.waiting, target.retained) == ("", 0)


async def test_an_id_that_a_change_frees_is_given_again_in_the_next_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    """All seven ids are in use; the next pass comes at once, the retry of what failed only in an hour."""
    monkeypatch.setattr(failures, "delays", lambda: backoff.delays(3600, 3600))
    small = Sizes(
        flow4=1024, flow6=1024, snat4=1024, snat6=1024, services=256, backends=8, source_ranges=64, maglev_size=251
    )
    maps, source = MemoryMaps(small), ListSource()
    loop, target, _ = make(maps, source)
    async with running(loop):
        source.first_list(service(1), endpoints(1, 1, 2, 3, 4, 5, 6), service(2), endpoints(2, 7))
        await loop.settled()
        assert not target.failing
        freed = next(svc for svc in target.state.services if svc.frontend.address[3] == 2 and svc.id).selectable[0].id
        source.put(endpoints(2, 8))
        await loop.settled()
        await until(lambda: not target.failing)
        (now,) = next(svc for svc in target.state.services if svc.frontend.address[3] == 2 and svc.id).selectable
        assert (now.address.address[3], now.id) == (8, freed)
    assert check(maps, settled=True) == []


async def test_an_id_is_not_given_again_while_a_failed_write_leaves_its_slots() -> None:
    small = Sizes(
        flow4=1024, flow6=1024, snat4=1024, snat6=1024, services=256, backends=8, source_ranges=64, maglev_size=251
    )
    maps, source = FaultyMaps(MemoryMaps(small)), ListSource()
    loop, target, _ = make(maps, source)
    broken = True

    def refuse(_: int, name: str) -> None:
        if broken and name == "lb4_service":
            raise KernelError("update", 12, name)

    async with running(loop):
        source.first_list(service(1), endpoints(1, 1, 2, 3, 4, 5, 6), service(2), endpoints(2, 7))
        await loop.settled()
        maps.before = refuse
        source.put(endpoints(2, 8))
        for _ in range(3):
            await loop.settled()
            target.wake.set()
        rows = {svc.frontend.address[3]: svc for svc in target.state.services if svc.id}
        assert rows[2].selectable == ()
        broken = False
        await until(lambda: not target.failing)
    assert check(maps.inner, settled=True) == []


def _only_woken(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the pauses of failures so long that a retry without a wake does not come."""
    monkeypatch.setattr(failures, "delays", lambda: backoff.delays(3600, 3600))


def _hosts_of(target: BpfTarget, maps: MemoryMaps, number: int) -> set[int]:
    """Return the last byte of each backend that a new flow to a Service may get."""
    (frontend,) = [each for each in target.state.by_frontend if each.address[-1] == number and each.port]
    return {int(text[6:8], 16) for text in backends_of(maps, frontend) or ()}


async def test_freed_slots_are_used_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each Service takes a slot for its address, one for the master, and one for each backend: 3 and 6 of 9."""
    _only_woken(monkeypatch)
    maps, source = MemoryMaps(dataclasses.replace(SMALL, services=9)), ListSource()
    loop, target, _ = make(maps, source)
    async with running(loop):
        source.first_list(service(1), endpoints(1, 1), service(2), endpoints(2, 1, 2, 3, 4))
        await loop.settled()
        source.put(endpoints(1, 2, 3))
        await until(lambda: target.failing)
        assert _hosts_of(target, maps, 1) == {2}, "the backend that is gone gets no new flow"
        ((frontend, failure),) = target.failing.items()
        assert frontend.address == bytes([10, 96, 0, 1])
        assert "lb4_service is full: 9 of 9 entries used, 1 more needed; raise --max-service-slots" in str(
            failure.error
        )
        assert "1 of its 2 backends; no new flow goes to 10.1.1.3:8080/TCP" in str(failure.error)
        source.put(endpoints(2, 1, 2))
        await until(lambda: not target.failing)
        assert _hosts_of(target, maps, 1) == {2, 3}
        assert check(maps, settled=True) == []


async def test_a_frontend_that_waits_for_room_is_served_when_another_goes(monkeypatch: pytest.MonkeyPatch) -> None:
    _only_woken(monkeypatch)
    maps, source = MemoryMaps(dataclasses.replace(SMALL, services=9)), ListSource()
    loop, target, _ = make(maps, source)
    async with running(loop):
        source.first_list(service(1), endpoints(1, 1, 2, 3, 4, 5), service(2), endpoints(2, 1))
        await until(lambda: target.failing)
        source.put(endpoints(1, 1))
        await until(lambda: not target.failing)
        assert _hosts_of(target, maps, 2) == {1}


async def test_a_write_that_the_kernel_refuses_as_full_waits_for_its_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    """The plan saw room: no wake follows, or the target would write without a pause."""
    _only_woken(monkeypatch)
    full = map_full("lb4_service", 1, 256)
    maps, source = FaultyMaps(MemoryMaps(SMALL)), ListSource()
    loop, target, _ = make(maps, source)
    async with running(loop):
        source.first_list(service(1), endpoints(1, 1))
        await loop.settled()

        def refuse(_number: int, name: str) -> None:
            if name == "lb4_service":
                raise full

        maps.before = refuse
        source.put(endpoints(1, 1, 2))
        await until(lambda: target.failing)
        assert not target.wake.is_set()
