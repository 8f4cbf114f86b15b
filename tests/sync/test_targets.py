"""Several targets: none waits for another, and each has its own readiness and failures."""

from __future__ import annotations

import asyncio

import pytest

from lbagent.errors import LbError
from lbagent.maps.consistency import check
from lbagent.maps.memory_maps import MemoryMaps
from lbagent.model.state import State
from lbagent.sync import backoff, runner
from lbagent.sync.loop import SyncLoop
from lbagent.sync.runner import TargetRunner
from lbagent.targets.bpf.bpf_target import BpfTarget
from lbagent.testing.faulty_maps import FaultyMaps
from lbagent.testing.snapshot_target import SnapshotTarget
from tests.sync.rig import SMALL, FixedPaths, ListSource, endpoints, make_loop, running, service


class Recorder(SnapshotTarget):
    """Records the States it gets; fails as often as the test sets, and waits while it must."""

    def __init__(self, name: str = "record", *, failures: int = 0) -> None:
        super().__init__(name)
        self.states: list[State] = []
        self.tries = 0
        self.failures = failures
        self.free = asyncio.Event()
        self.free.set()

    async def write(self, state: State) -> None:
        self.tries += 1
        await self.free.wait()
        if self.failures:
            self.failures -= 1
            raise OSError(28, "No space left on device")
        self.states.append(state)


@pytest.fixture(autouse=True)
def _short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner, "delays", lambda: backoff.delays(0.02, 0.1))


def rig(*others: SnapshotTarget) -> tuple[ListSource, MemoryMaps, BpfTarget, SyncLoop]:
    source, maps = ListSource(), MemoryMaps(SMALL)
    bpf = BpfTarget.open(maps, FixedPaths(), "me")
    return source, maps, bpf, make_loop([source], bpf, *others)


def runner_of(loop: SyncLoop, target: SnapshotTarget) -> TargetRunner:
    return next(found for found in loop.runners if found.target is target)


def slots(maps: MemoryMaps) -> int:
    return len(maps.items("lb4_service"))


async def test_a_second_target_gets_every_state_beside_the_maps() -> None:
    other = Recorder()
    source, maps, bpf, loop = rig(other)
    async with running(loop):
        await asyncio.sleep(0.02)
        assert (other.tries, other.generation) == (0, 0), "not before the first list"
        source.first_list(service(1), endpoints(1, 1))
        await loop.settled()
        source.put(endpoints(1, 1, 2))
        await loop.settled()
        assert bpf.ready.is_set()
        assert other.ready.is_set()
        assert all(found.in_sync for found in loop.runners)
        tries = other.tries
        source.put()  # the source reports a problem, and no object
        bpf.paths_changed()
        await loop.settled()
        assert other.tries == tries, "nothing changed for it"
        assert other.generation == loop.state.generation > 0
    assert [len(state.backends) for state in other.states] == [1, 2]
    generations = [state.generation for state in other.states]
    assert generations == sorted(set(generations))
    assert all(backend.id == 0 for backend in other.states[-1].backends.values()), "ids are those of the maps"
    assert check(maps, settled=True) == []


async def test_one_that_fails_is_tried_again_with_pauses_and_no_other_waits(caplog: pytest.LogCaptureFixture) -> None:
    other = Recorder(failures=4)
    source, maps, bpf, loop = rig(other)
    async with running(loop):
        source.first_list(service(1), endpoints(1, 1))
        for host in range(2, 12):
            source.put(endpoints(1, *range(1, host + 1)))
            await asyncio.wait_for(loop.settled(), 10)
            assert slots(maps) == host + 2
        assert bpf.ready.is_set()
        assert runner_of(loop, bpf).in_sync  # type: ignore[arg-type]
        found = runner_of(loop, other)
        assert not other.ready.is_set()
        assert not found.in_sync
        assert "No space left" in found.error
        assert found.failure is not None
        assert isinstance(found.failure.error, LbError)
        assert other.tries < 6, "not at each change"
        await asyncio.wait_for(other.ready.wait(), 5)
        await loop.settled()
        assert found.in_sync
        assert found.error == ""
    assert [len(state.backends) for state in other.states] == [11], "the latest one only"
    said = [record for record in caplog.records if record.message == "a target could not be brought in sync"]
    assert len(said) == 1


async def test_one_that_hangs_for_a_while_gets_the_latest_state_when_it_is_free() -> None:
    other = Recorder()
    source, maps, bpf, loop = rig(other)
    async with running(loop):
        other.free.clear()
        source.first_list(service(1), endpoints(1, 1))
        await loop.settled(bpf)
        for host in range(2, 12):
            source.put(endpoints(1, *range(1, host + 1)))
            await asyncio.wait_for(loop.settled(bpf), 10)
            assert slots(maps) == host + 2
        assert other.tries == 1
        assert not runner_of(loop, other).in_sync
        everything = asyncio.create_task(loop.settled())
        await asyncio.sleep(0.02)
        assert not everything.done()
        other.free.set()
        await asyncio.wait_for(everything, 5)
    assert [len(state.backends) for state in other.states] == [1, 11]


async def test_maps_that_cannot_be_written_do_not_hold_up_a_renderer() -> None:
    def refuse(_: int, map_name: str) -> None:
        raise LbError(f"{map_name} is out of order")

    other, source = Recorder(), ListSource()
    bpf = BpfTarget.open(FaultyMaps(MemoryMaps(SMALL), refuse), FixedPaths(), "me")
    loop = make_loop([source], bpf, other)
    async with running(loop):
        source.first_list(service(1), endpoints(1, 1))
        await asyncio.wait_for(loop.settled(), 5)
        assert other.ready.is_set()
        assert runner_of(loop, other).in_sync
        assert bpf.failing
        assert not runner_of(loop, bpf).in_sync  # type: ignore[arg-type]


async def test_a_defect_of_a_target_ends_the_loop() -> None:
    class Broken(SnapshotTarget):
        async def write(self, state: State) -> None:
            raise ZeroDivisionError(f"{state}")

    source, _, _, loop = rig(Broken("broken"))
    source.first_list(service(1), endpoints(1, 1))
    with pytest.raises(ExceptionGroup) as caught:
        await asyncio.wait_for(loop.run(), 5)
    assert caught.group_contains(ZeroDivisionError)


async def test_a_pass_that_broke_off_is_followed_by_another_look_at_the_maps() -> None:
    """An error beside the steps of the plan: the written entries are read again, and the rest is done."""
    inner, source = MemoryMaps(SMALL), ListSource()

    def before(number: int, _: str) -> None:
        if number == 7:
            raise OSError(5, "Input/output error")

    bpf = BpfTarget.open(FaultyMaps(inner, before), FixedPaths(), "me")
    loop = make_loop([source], bpf)
    async with running(loop):
        source.first_list(*[obj for n in range(1, 6) for obj in (service(n), endpoints(n, 1, 2))])
        await asyncio.wait_for(bpf.ready.wait(), 5)
    assert check(inner, settled=True) == []
    assert len(bpf.state.by_name) == 5
