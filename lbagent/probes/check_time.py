"""The time that a health check may take: that in which the agent's own event loop did not run is not counted.

A busy machine, a stopped process or a suspended VM would make every answer look late, and healthy servers would be taken out.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

BEAT_S = 0.25  # less than this of a time without the loop may go unnoticed


class CheckTimeout(Exception):
    """The time of a check is over. It is no OSError: a kernel's ETIMEDOUT is told apart."""


class LoopClock:
    """Seconds like time.monotonic, but it stands while the event loop does not run."""

    def __init__(self) -> None:
        """Begin inside the event loop that is watched."""
        self._loop = asyncio.get_running_loop()
        self._lost = 0.0
        self._schedule()

    def __call__(self) -> float:
        """Return the time; a beat that is overdue stops it, also before the loop comes to run it."""
        return min(self._loop.time(), self._due) - self._lost

    def _schedule(self) -> None:
        self._due = self._loop.time() + BEAT_S
        self._timer = self._loop.call_at(self._due, self._beat)

    def _beat(self) -> None:
        self._lost += max(0.0, self._loop.time() - self._due)
        self._schedule()

    def close(self) -> None:
        """Watch no more."""
        self._timer.cancel()


class Deadline:
    """When something ends; whoever waits for I/O waits by it. Close it."""

    def __init__(self, seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        """Let it end in so many seconds of a clock."""
        self._loop, self._clock = asyncio.get_running_loop(), clock
        self._end = clock() + seconds
        self._is_over = False
        self._waiting: asyncio.Future[Any] | None = None
        self._timer = self._loop.call_later(seconds, self._look)

    async def wait(self) -> Any:
        """Return what `done` gives, or raise what `failed` gives; raises CheckTimeout at the end."""
        if self._is_over:
            raise CheckTimeout
        self._waiting = self._loop.create_future()
        try:
            return await self._waiting
        finally:
            self._waiting = None

    def done(self, result: Any = None) -> None:
        """Let the waiting go on."""
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_result(result)

    def failed(self, error: Exception) -> None:
        """Let the waiting end with an error."""
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_exception(error)

    def _look(self) -> None:
        left = self._end - self._clock()
        if left > 0:
            self._timer = self._loop.call_later(left, self._look)
            return
        self._is_over = True
        self.failed(CheckTimeout())

    def close(self) -> None:
        """It ends nothing any more."""
        self._timer.cancel()
