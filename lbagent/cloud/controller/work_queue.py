"""A queue of keys: each is queued once, and no two workers have the same one. Source: client-go, util/workqueue (behaviour)."""

from __future__ import annotations

import asyncio
import heapq
import time
from collections import OrderedDict
from collections.abc import Callable
from contextlib import suppress


class WorkQueue:
    """Keys that are due now, and keys that are due later; times are seconds of `clock`.

    After `done` a key that was added in the meantime is due again. A key that is added for now is removed from the later ones.
    """

    def __init__(self, base_s: float, max_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        """Pauses of `add_rate_limited` double from `base_s` to `max_s`, for each key separately, until `forget`."""
        self._base_s, self._max_s, self._clock = base_s, max_s, clock
        self._ready: OrderedDict[str, None] = OrderedDict()
        self._processing: set[str] = set()
        self._again: set[str] = set()  # added while they were being processed
        self._due: dict[str, float] = {}
        self._heap: list[tuple[float, str]] = []  # entries that `_due` does not confirm are stale
        self._failures: dict[str, int] = {}
        self._changed = asyncio.Event()

    def __len__(self) -> int:
        return len(self._ready)

    @property
    def is_idle(self) -> bool:
        """Whether nothing is due now and nothing is being processed."""
        return not self._ready and not self._processing

    def add(self, key: str) -> None:
        """Make a key due now."""
        self._due.pop(key, None)
        if key in self._processing:
            self._again.add(key)
        else:
            self._ready[key] = None
            self._changed.set()

    def add_after(self, key: str, seconds: float) -> None:
        """Make a key due after so many seconds, unless it is due sooner."""
        if seconds <= 0:
            self.add(key)
            return
        due = self._clock() + seconds
        if key in self._ready or self._due.get(key, due + 1) <= due:
            return
        self._due[key] = due
        heapq.heappush(self._heap, (due, key))
        self._changed.set()

    def add_rate_limited(self, key: str, at_least_s: float = 0.0) -> float:
        """Count a failure of a key, and make it due after the pause for that number; return the pause."""
        failures = self._failures.get(key, 0)
        self._failures[key] = failures + 1
        seconds = max(min(self._base_s * 2.0 ** min(failures, 64), self._max_s), at_least_s)
        self.add_after(key, seconds)
        return seconds

    def forget(self, key: str) -> None:
        """Reset the failures of a key."""
        self._failures.pop(key, None)

    def done(self, key: str) -> None:
        """Mark a key from `get` or `take` as processed."""
        self._processing.discard(key)
        if key in self._again:
            self._again.discard(key)
            self.add(key)

    def take(self) -> str | None:
        """Return a key that is due; None: there is none."""
        self._move_due()
        if not self._ready:
            return None
        key, _ = self._ready.popitem(last=False)
        self._processing.add(key)
        return key

    def next_due_s(self) -> float | None:
        """Return the seconds until the next key is due; None: there is none."""
        while self._heap and self._due.get(self._heap[0][1]) != self._heap[0][0]:
            heapq.heappop(self._heap)
        return max(0.0, self._heap[0][0] - self._clock()) if self._heap else None

    async def get(self) -> str:
        """Wait for a key that is due."""
        while (key := self.take()) is None:
            self._changed.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(self.next_due_s()):
                    await self._changed.wait()
        return key

    def _move_due(self) -> None:
        while self.next_due_s() == 0.0:
            _, key = heapq.heappop(self._heap)
            del self._due[key]
            self.add(key)
