"""What the target does beside the State: figures, paths that change, ids that run out, the look at the maps from time to time."""

from __future__ import annotations

import asyncio
import errno
import logging
from collections import Counter

import pytest

from lbagent.errors import KernelError
from lbagent.maps.consistency import check
from lbagent.maps.layout import LB4_PATH
from lbagent.maps.lbmaps import PathInfo
from lbagent.maps.memory_maps import FaultyMaps, MemoryMaps
from lbagent.maps.specs import Sizes
from lbagent.model.backend import BackendState
from lbagent.model.family import Family
from lbagent.sync import backoff, failures
from lbagent.sync.target.bpf_target import BpfTarget
from tests.sync.rig import SMALL, FixedPaths, ListSource, endpoints, make, make_loop, running, service
from tests.sync.test_loop import until


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

    async def resync() -> list[str]:
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
