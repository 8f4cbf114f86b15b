"""Pauses between passes: as long as the pass took. This limits the load of the event loop and the machine in a burst of changes."""

from __future__ import annotations

import asyncio
import time

MAX_PAUSE_S = 0.2


class Pacer:
    """Delays a pass that is requested too soon after the last one. A single change costs no timer."""

    def __init__(self) -> None:
        self._not_before = 0.0  # of the monotonic clock

    async def pause(self) -> None:
        """Return when the next pass may begin."""
        left = self._not_before - time.monotonic()
        if left > 0:
            await asyncio.sleep(left)

    def passed(self, began: float) -> None:
        """Record that a pass ends now; it began at this time of the monotonic clock."""
        now = time.monotonic()
        self._not_before = now + min(now - began, MAX_PAUSE_S)
