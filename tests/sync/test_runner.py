"""A runner and its target: when it is settled and in sync, when it calls again, and its reports of failures."""

from __future__ import annotations

import asyncio
import logging
from itertools import repeat

import pytest

from lbagent.errors import LbError
from lbagent.model.address import L3n4Addr
from lbagent.model.state import State
from lbagent.sync import loop as loops
from lbagent.sync import runner as runners
from lbagent.sync.backoff import Failure
from lbagent.sync.runner import TargetRunner
from lbagent.sync.target_protocol import Desired
from lbagent.testing.snapshot_target import SnapshotTarget
from tests.sync.rig import ListSource, endpoints, make_loop, running, service
from tests.sync.test_loop import until
from tests.sync.test_targets import Recorder

NEXT = Desired(State(7))


async def is_settled(runner: TargetRunner) -> bool:
    """Return whether nothing is left to wait for."""
    waiter = asyncio.create_task(runner.settled())
    for _ in range(5):
        await asyncio.sleep(0)
    done = waiter.done()
    waiter.cancel()
    return done


async def test_a_runner_is_in_sync_when_the_latest_state_is_in_force() -> None:
    target = Recorder()
    runner = TargetRunner(target)
    assert await is_settled(runner), "nothing was handed over"
    assert not runner.in_sync, "the target is not ready"
    runner.set_desired(NEXT)
    assert not await is_settled(runner)
    task = asyncio.create_task(runner.run())
    await asyncio.wait_for(target.ready.wait(), 10)
    await runner.settled()
    assert runner.in_sync
    assert (target.generation, runner.error) == (7, "")
    target.ready.clear()
    assert not runner.in_sync
    target.ready.set()
    target.wake.set()
    assert not runner.in_sync, "it is to be called again"
    target.free.clear()
    await until(lambda: target.tries == 2)
    assert not target.wake.is_set()
    assert not runner.in_sync, "it is at work"
    assert not await is_settled(runner)
    target.free.set()
    await asyncio.wait_for(runner.settled(), 10)
    assert runner.in_sync
    target.error = "the disk is full"
    assert not runner.in_sync
    assert runner.error == "the disk is full"
    target.error = ""
    target.failing = {L3n4Addr.parse("10.0.0.1:80"): Failure(LbError("no room"), 0.0, repeat(1.0))}
    assert runner.error == "no room"
    assert not runner.in_sync
    task.cancel()


async def test_a_runner_that_waits_after_a_failure_is_settled_and_says_so_once(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level(logging.INFO)
    pauses = iter([0.01, 0.01, 1000.0])
    monkeypatch.setattr(runners, "delays", lambda: pauses)
    target = Recorder(failures=3)
    runner = TargetRunner(target)
    runner.set_desired(NEXT)
    task = asyncio.create_task(runner.run())
    await until(lambda: target.tries == 3)
    runner.set_desired(Desired(State(8)))
    await asyncio.wait_for(runner.settled(), 10)
    assert "No space left" in runner.error
    runner.failure = None
    task.cancel()
    said = [record.message for record in caplog.records]
    assert said == ["a target could not be brought in sync"]


async def test_a_runner_says_when_a_failure_is_over(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level(logging.INFO)
    monkeypatch.setattr(runners, "delays", lambda: repeat(0.001))
    target = Recorder(failures=2)
    runner = TargetRunner(target)
    runner.set_desired(NEXT)
    task = asyncio.create_task(runner.run())
    await asyncio.wait_for(target.ready.wait(), 10)
    target.wake.set()
    await until(lambda: target.tries == 4)
    await runner.settled()
    task.cancel()
    said = [record.message for record in caplog.records]
    assert said == ["a target could not be brought in sync", "a target is in sync again"]


async def test_another_failure_is_said_too_and_keeps_its_kind(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runners, "delays", lambda: repeat(0.001))
    first, again, other = LbError("one"), LbError("one"), LbError("two")
    errors, kept = [first, again, other], []

    class Failing(SnapshotTarget):
        async def write(self, state: State) -> None:
            kept.append(runner.failure and runner.failure.error)
            if errors:
                raise errors.pop(0)

    target = Failing("failing")
    runner = TargetRunner(target)
    runner.set_desired(NEXT)
    task = asyncio.create_task(runner.run())
    await asyncio.wait_for(target.ready.wait(), 10)
    task.cancel()
    assert kept == [None, first, again, other]
    assert [vars(record)["error"] for record in caplog.records] == ["one", "two"]


async def test_a_target_is_not_called_before_there_is_a_state() -> None:
    target = Recorder()
    target.wake.set()  # its paths changed
    runner = TargetRunner(target)
    task = asyncio.create_task(runner.run())
    await asyncio.sleep(0.01)
    assert target.tries == 0
    runner.set_desired(NEXT)
    await asyncio.wait_for(target.ready.wait(), 10)
    task.cancel()
    assert target.tries == 1


async def test_a_target_is_called_when_its_time_has_come() -> None:
    target = Recorder()
    due = asyncio.get_running_loop().time() + 0.02  # the monotonic clock
    target.retry_at = lambda: due if target.tries == 1 else None  # type: ignore[method-assign]
    runner = TargetRunner(target)
    runner.set_desired(NEXT)
    task = asyncio.create_task(runner.run())
    await until(lambda: target.tries == 2)
    assert asyncio.get_running_loop().time() >= due
    await asyncio.sleep(0.01)
    assert target.tries == 2
    task.cancel()


def test_a_target_of_whole_states_begins_with_nothing() -> None:
    target = Recorder()
    assert (target.generation, target.waiting, target.error, target.retains) == (0, "", "", False)
    assert (target.retry_at(), list(target.restored_backends()), dict(target.failing)) == (None, [], {})
    assert not target.ready.is_set()


class Pauses:
    """Replaces the Pacer; records its calls."""

    made: list[Pauses]

    def __init__(self) -> None:
        self.paused, self.passes = 0, 0
        Pauses.made.append(self)

    async def pause(self) -> None:
        self.paused += 1

    def passed(self, began: float) -> None:
        assert began > 0
        self.passes += 1


async def test_the_loop_and_each_runner_pause_between_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    Pauses.made = []
    monkeypatch.setattr(loops, "Pacer", Pauses)
    monkeypatch.setattr(runners, "Pacer", Pauses)
    source, target = ListSource(), Recorder()
    loop = make_loop([source], target)
    async with running(loop):
        source.first_list(service(1), endpoints(1, 1))
        await loop.settled()
        source.put(endpoints(1, 1, 2))
        await loop.settled()
        await asyncio.sleep(0.01)
        assert target.tries == 2
        of_runner, of_loop = Pauses.made
        assert (of_runner.paused, of_runner.passes) == (2, 2)
        assert of_loop.paused == of_loop.passes >= 2
