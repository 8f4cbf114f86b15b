"""The queue of keys, with a controlled clock."""

from __future__ import annotations

import asyncio

import pytest

from lbagent.cloud.controller.work_queue import WorkQueue


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def queue(clock: Clock) -> WorkQueue:
    return WorkQueue(5.0, 300.0, clock)


def test_a_key_is_there_once_and_in_its_order(queue: WorkQueue) -> None:
    for key in ("b", "a", "b"):
        queue.add(key)
    assert [queue.take(), queue.take(), queue.take()] == ["b", "a", None]


def test_a_key_that_is_being_processed_waits_until_it_is_done(queue: WorkQueue) -> None:
    queue.add("a")
    assert queue.take() == "a"
    queue.add("a")
    queue.add("a")
    assert queue.take() is None
    queue.done("a")
    assert [queue.take(), queue.take()] == ["a", None]
    queue.done("a")
    assert queue.take() is None


def test_pauses_double_up_to_the_longest_and_begin_anew_after_a_success(queue: WorkQueue, clock: Clock) -> None:
    pauses = []
    for _ in range(9):
        pauses.append(queue.add_rate_limited("a"))
        assert queue.next_due_s() == pauses[-1]
        clock.now += pauses[-1] - 0.001
        assert queue.take() is None
        clock.now += 0.001
        assert queue.take() == "a"
        queue.done("a")
    assert pauses == [5, 10, 20, 40, 80, 160, 300, 300, 300]
    assert queue.add_rate_limited("b") == 5  # each separately
    queue.forget("a")
    assert queue.add_rate_limited("a") == 5


def test_a_fixed_pause_is_no_failure(queue: WorkQueue, clock: Clock) -> None:
    queue.add_rate_limited("a")
    clock.now += 5
    assert queue.take() == "a"
    queue.add_after("a", 42)
    queue.done("a")
    clock.now += 41.9
    assert queue.take() is None
    clock.now += 0.1
    assert queue.take() == "a"
    queue.done("a")
    assert queue.add_rate_limited("a") == 10


def test_a_key_that_is_added_is_not_due_later_as_well(queue: WorkQueue, clock: Clock) -> None:
    queue.add_after("a", 10)
    queue.add("a")
    assert queue.take() == "a"
    queue.done("a")
    clock.now += 20
    assert queue.take() is None


def test_the_sooner_of_two_times_counts(queue: WorkQueue, clock: Clock) -> None:
    queue.add_after("a", 10)
    queue.add_after("a", 3)
    queue.add_after("a", 20)
    assert queue.next_due_s() == 3
    clock.now += 3
    assert queue.take() == "a"
    queue.done("a")
    clock.now += 30
    assert queue.take() is None


def test_a_server_that_asks_for_time_gets_it(queue: WorkQueue) -> None:
    assert queue.add_rate_limited("a", 30.0) == 30.0
    assert queue.add_rate_limited("b", 1.0) == 5.0


def test_a_key_that_is_due_while_it_is_processed(queue: WorkQueue, clock: Clock) -> None:
    queue.add("a")
    queue.take()
    queue.add_after("a", 1)
    clock.now += 2
    assert queue.take() is None
    queue.done("a")
    assert queue.take() == "a"


async def test_waiting_ends_when_a_key_comes_or_is_due() -> None:
    queue = WorkQueue(0.01, 1.0)
    waiting = asyncio.create_task(queue.get())
    await asyncio.sleep(0)
    queue.add("a")
    assert await waiting == "a"
    queue.add_after("b", 0.01)
    assert await queue.get() == "b"
