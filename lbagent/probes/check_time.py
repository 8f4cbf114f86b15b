"""The time limit of a health check: time in which the agent's own event loop did not run does not count.

On a busy machine, or after a stop of the process or the VM, every answer would look late, and healthy servers would be removed.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

BEAT_S = 0.25  # a stop of the loop shorter than this may not be detected


class CheckTimeout(Exception):
    """The time of a check is over. It is no OSError, to differ from a kernel's ETIMEDOUT."""


class LoopClock:
    """Seconds like time.monotonic, but it stops while the event loop does not run."""

    def __init__(self) -> None:
        """Start inside the event loop to be watched."""
        self._loop = asyncio.get_running_loop()
        self._lost = 0.0
        self._schedule()

    def __call__(self) -> float:
        """Return the time; an overdue beat stops it, even before the loop runs it."""
        return min(self._loop.time(), self._due) - self._lost

    def _schedule(self) -> None:
        self._due = self._loop.time() + BEAT_S
        self._timer = self._loop.call_at(self._due, self._beat)

    def _beat(self) -> None:
        self._lost += max(0.0, self._loop.time() - self._due)
        self._schedule()

    def close(self) -> None:
        """Stop watching."""
        self._timer.cancel()


class Deadline:
    """The end of a wait; a task that waits for I/O waits by it. Close it."""

    def __init__(self, seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        """End it in so many seconds of a clock."""
        self._loop, self._clock = asyncio.get_running_loop(), clock
        self._end = clock() + seconds
        self._is_over = False
        self._waiting: asyncio.Future[Any] | None = None
        self._timer = self._loop.call_later(seconds, self._look)

    async def wait(self) -> Any:
        """Return the value of `done`, or raise the error of `failed`; raises CheckTimeout at the end."""
        if self._is_over:
            raise CheckTimeout
        self._waiting = self._loop.create_future()
        try:
            return await self._waiting
        finally:
            self._waiting = None

    def done(self, result: Any = None) -> None:
        """Resume the waiting task."""
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_result(result)

    def failed(self, error: Exception) -> None:
        """Resume the waiting task with an error."""
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
        """It ends no wait any more."""
        self._timer.cancel()
