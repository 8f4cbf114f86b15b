"""Long work in slices has the same result as at once, and other tasks run between its slices."""

from __future__ import annotations

import asyncio
import time

import pytest

from lbagent.model.cooperative import SLICE_S, Cooperative, run_cooperatively, run_whole


def work(steps: int) -> Cooperative[int]:
    for _ in range(steps):
        yield
    return steps


async def turns_of_another_task(clock) -> int:
    turns = 0

    async def other() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    task = asyncio.create_task(other())
    assert await run_cooperatively(work(7), clock) == 7
    task.cancel()
    return turns


async def test_the_result_is_the_same_in_one_go_and_in_slices() -> None:
    assert run_whole(work(7)) == 7
    assert await run_cooperatively(work(7), time.monotonic) == 7


async def test_other_tasks_run_when_a_slice_is_over_and_not_before() -> None:
    now = iter(range(100))
    assert await turns_of_another_task(lambda: float(next(now))) == 7  # each step takes a second: longer than a slice
    assert await turns_of_another_task(lambda: 0.0) == 0
    half = iter(range(100))
    assert await turns_of_another_task(lambda: next(half) * SLICE_S / 2) in (3, 4)


async def test_an_error_of_the_work_and_a_time_out_from_outside_end_it() -> None:
    def failing() -> Cooperative[None]:
        yield
        raise ValueError("in the middle")

    with pytest.raises(ValueError, match="in the middle"):
        await run_cooperatively(failing(), time.monotonic)

    def endless() -> Cooperative[None]:
        while True:
            yield

    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.05):
            await run_cooperatively(endless(), time.monotonic)
