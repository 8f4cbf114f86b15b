"""The time of a check: it ends, but not because the event loop did not run."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator

import pytest

from lbagent.probes.check_time import CheckTimeout, Deadline, LoopClock


@pytest.fixture
async def clock() -> AsyncIterator[LoopClock]:
    made = LoopClock()
    yield made
    made.close()


@pytest.mark.long
async def test_a_clock_stands_while_the_loop_does_not_run(clock: LoopClock) -> None:
    before, began = clock(), time.monotonic()
    time.sleep(2)  # noqa: ASYNC251 it is the fault
    assert clock() - before <= 0.3  # also before the beat that is overdue
    await asyncio.sleep(0.05)
    assert clock() - before <= time.monotonic() - began - 1.7


async def test_a_clock_goes_on_while_it_runs(clock: LoopClock) -> None:
    before = clock()
    async with asyncio.timeout(60):
        while clock() - before < 0.6:  # noqa: ASYNC110 a clock has no event
            await asyncio.sleep(0.01)


async def test_a_deadline_ends_a_wait_and_all_later_ones(clock: LoopClock) -> None:
    deadline = Deadline(0.02, clock)
    for _ in range(2):
        with pytest.raises(CheckTimeout):
            await deadline.wait()


@pytest.mark.long
async def test_a_deadline_is_not_over_because_the_loop_did_not_run(clock: LoopClock) -> None:
    deadline, loop = Deadline(1.5, clock), asyncio.get_running_loop()

    def stop() -> None:
        time.sleep(3)
        loop.call_later(0.2, deadline.done, "answer")

    loop.call_later(0.1, stop)
    assert await deadline.wait() == "answer"
    deadline.close()


async def test_what_ends_a_wait(clock: LoopClock) -> None:
    deadline, loop = Deadline(60, clock), asyncio.get_running_loop()
    loop.call_soon(deadline.done, 7)
    loop.call_soon(deadline.done, 8)  # too late
    assert await deadline.wait() == 7
    loop.call_soon(deadline.failed, ConnectionRefusedError())
    with pytest.raises(ConnectionRefusedError):
        await deadline.wait()
    deadline.close()
