"""Long work in slices: a generator that yields where other tasks may run, and returns its result. Pure.

The caller decides how it runs: `run_whole` at once, `run_cooperatively` on an event loop, with its clock, `run_in_background`
where no caller waits. A pass over 100,000 backends takes seconds; between two slices the agent answers its clients and receives
changes.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator
from types import coroutine
from typing import TypeVar

T = TypeVar("T")
Cooperative = Generator[None, None, T]

SLICE_S = 0.01  # seconds for which other tasks wait
BACKGROUND_SLICE_S, BACKGROUND_PAUSE_S = 0.0005, 0.002
BETWEEN_YIELDS = 16  # frontends per yield: a yield after each would cost 0.3 us, as much as some of the work


def run_whole(work: Cooperative[T]) -> T:
    """Do the work at once."""
    while True:
        try:
            next(work)
        except StopIteration as end:
            result: T = end.value
            return result


async def run_cooperatively(work: Cooperative[T], clock: Callable[[], float]) -> T:
    """Do the work on an event loop, with a turn for all other tasks every `SLICE_S` of `clock` (seconds: `time.monotonic`)."""
    return await _in_slices(work, clock, SLICE_S, _turn)


async def run_in_background(
    work: Cooperative[T], clock: Callable[[], float], sleep: Callable[[float], Awaitable[object]]
) -> T:
    """Do work for which no caller waits, in a fifth of the time: a change needs several turns of the event loop.

    With slices of SLICE_S, each change took 50 ms while the work lasted. `sleep`: `asyncio.sleep`.
    """
    return await _in_slices(work, clock, BACKGROUND_SLICE_S, lambda: sleep(BACKGROUND_PAUSE_S))


async def _in_slices(
    work: Cooperative[T], clock: Callable[[], float], slice_s: float, pause: Callable[[], Awaitable[object]]
) -> T:
    until = clock() + slice_s
    while True:
        try:
            next(work)
        except StopIteration as end:
            result: T = end.value
            return result
        if clock() >= until:
            await pause()
            until = clock() + slice_s


@coroutine
def _turn() -> Generator[None, None, None]:
    """Let the event loop run its other tasks once: a bare yield, which is all `asyncio.sleep(0)` does."""
    yield
